"""The extensions linalg and fft: by NumPy where the result is unique, by what defines it where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_oracle import COMPLEX, FLOATS, INTEGERS, NUMERIC, REAL_FLOATS, agree, same, sample, to_host

import pygpukit as gp
from pygpukit import array_api as xp

Host = np.ndarray[Any, Any]


def names(device: str, every: Any = FLOATS) -> tuple[str, ...]:
    return tuple(every) if device == "cpu" else ("float32",)


def close(ours: Any, theirs: Host, name: str) -> None:
    single = name in ("float32", "complex64")
    np.testing.assert_allclose(to_host(ours), theirs, rtol=2e-3 if single else 1e-9, atol=2e-4 if single else 1e-10)


def matrix(name: str, shape: Any, seed: int = 0) -> Host:
    """Well conditioned where it is square."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if name in COMPLEX else 0)
    if len(shape) > 1 and shape[-1] == shape[-2]:
        x = x + 4 * np.eye(shape[-1])
    return x.astype(name)


def hermitian(name: str, shape: Any) -> Host:
    x = matrix(name, shape)
    return np.asarray(x @ np.conj(np.swapaxes(x, -1, -2)), name)


SQUARE = ((1, 1), (3, 3), (2, 4, 4))
WIDE = ((3, 2), (2, 3), (2, 4, 3))


def test_solutions(device: str) -> None:
    for name in names(device):
        for shape in SQUARE:
            x = matrix(name, shape)
            agree(lambda n, x: n.linalg.inv(x), x, tolerance=2e-3)
            agree(lambda n, x: n.linalg.det(x), x, tolerance=2e-3)
            agree(lambda n, x: tuple(n.linalg.slogdet(x)), x, tolerance=2e-3)
            b = matrix(name, (*shape[:-1], 2), 3)
            agree(lambda n, x, b: n.linalg.solve(x, b), x, b, tolerance=5e-3)
            agree(lambda n, x, b: n.linalg.solve(x, b), x, matrix(name, shape[-1:], 5), tolerance=5e-3)
    sign, logabsdet = xp.linalg.slogdet(xp.eye(2))
    assert (float(sign), float(logabsdet)) == (1.0, 0.0)
    assert xp.linalg.slogdet(xp.eye(2))._fields == ("sign", "logabsdet")


def test_decompositions(device: str) -> None:
    for name in names(device):
        for shape in SQUARE:
            x = hermitian(name, shape)
            lower = to_host(xp.linalg.cholesky(gp.from_numpy(x)))
            close(lower @ np.conj(np.swapaxes(lower, -1, -2)), x, name)
            np.testing.assert_array_equal(lower, np.tril(lower))
            upper = to_host(xp.linalg.cholesky(gp.from_numpy(x), upper=True))
            close(np.conj(np.swapaxes(upper, -1, -2)) @ upper, x, name)
            found = xp.linalg.eigh(gp.from_numpy(x))
            assert found._fields == ("eigenvalues", "eigenvectors")
            values, vectors = (to_host(part) for part in found)
            close(x @ vectors, vectors * values[..., None, :], name)
            close(values, np.linalg.eigvalsh(x), name)
            assert (values.dtype, vectors.dtype) == (np.zeros(1, name).real.dtype, np.dtype(name))
            close(xp.linalg.eigvalsh(gp.from_numpy(x)), values, name)
        for shape in (*SQUARE, *WIDE):
            x = matrix(name, shape)
            for mode in ("reduced", "complete"):
                found = xp.linalg.qr(gp.from_numpy(x), mode=mode)
                assert found._fields == ("Q", "R")
                q, r = (to_host(part) for part in found)
                assert (q.shape, r.shape) == tuple(part.shape for part in np.linalg.qr(x, mode=mode))
                close(q @ r, x, name)
                np.testing.assert_array_equal(r, np.triu(r))
            for full in (True, False):
                found = xp.linalg.svd(gp.from_numpy(x), full_matrices=full)
                assert found._fields == ("U", "S", "Vh")
                u, s, vh = (to_host(part) for part in found)
                assert [p.shape for p in (u, s, vh)] == [p.shape for p in np.linalg.svd(x, full_matrices=full)]
                k = s.shape[-1]
                close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, name)
            agree(lambda n, x: n.linalg.svdvals(x), x, tolerance=2e-3)
            assert to_host(xp.linalg.svdvals(gp.from_numpy(x))).dtype == np.zeros(1, name).real.dtype


def test_ranks_powers_and_inverses(device: str) -> None:
    for name in names(device):
        for shape in (*SQUARE, *WIDE):
            x = matrix(name, shape)
            agree(lambda n, x: n.linalg.pinv(x), x, tolerance=5e-2 if name in ("float32", "complex64") else 1e-6)
            agree(lambda n, x: n.linalg.matrix_rank(x), x)
            agree(lambda n, x: n.linalg.matrix_rank(x, rtol=0.5), x)
        x = matrix(name, (2, 3, 3))
        for power in (0, 1, 2, 5, -1, -2):
            agree(lambda n, x, p=power: n.linalg.matrix_power(x, p), x, tolerance=2e-2)
    low = np.outer(np.arange(1.0, 4), np.arange(1.0, 4))
    agree(lambda n, x: n.linalg.matrix_rank(x), low)
    agree(lambda n, x: n.linalg.matrix_rank(x), np.zeros((2, 3)))


def test_products(device: str) -> None:
    for name in names(device, NUMERIC):
        x, y = sample(name, (2, 3, 4), 1), sample(name, (2, 3, 4), 2)
        agree(lambda n, x, y: n.vecdot(x, y), x, y, tolerance=1e-4)
        agree(lambda n, x, y: n.linalg.vecdot(x, y, axis=-2), x, y[:1], tolerance=1e-4)
        agree(lambda n, x, y: n.tensordot(x, y.T, axes=1), x, y, tolerance=1e-4)
        agree(lambda n, x, y: n.linalg.tensordot(x, y, axes=((0, 2), (0, 2))), x, y, tolerance=1e-4)
        agree(lambda n, x, y: n.tensordot(x[0, 0], y[0, 0], axes=0), x, y, tolerance=1e-4)
        agree(lambda n, x, y: n.linalg.outer(x[0, 0], y[0, 1, :2]), x, y)
        agree(lambda n, x, y: n.linalg.cross(x[..., :3], y[..., 1:]), x, y, tolerance=1e-4)
        agree(lambda n, x, y: n.linalg.cross(x, y, axis=1), x, y, tolerance=1e-4)
        agree(lambda n, x, y: n.linalg.matmul(x, n.linalg.matrix_transpose(y)), x, y, tolerance=1e-4)


def test_diagonals(device: str) -> None:
    for name in names(device, NUMERIC):
        x = sample(name, (2, 3, 4))
        for offset in (-3, -1, 0, 1, 2, 6):
            agree(lambda n, x, o=offset: n.linalg.diagonal(x, offset=o), x)
            agree(lambda n, x, o=offset: n.linalg.trace(x, offset=o), x)
    agree(lambda n, x: n.linalg.trace(x, dtype=n.float64), sample("float32", (3, 3)))
    agree(lambda n, x: n.linalg.trace(x, dtype=n.int64), sample("int8", (3, 3)))


ORDERS: list[Any] = [0, 1, 2, 3, -1, -2, 2.5, np.inf, -np.inf]


def test_norms(device: str) -> None:
    for name in names(device):
        x = sample(name, (2, 3, 4))
        for order in ORDERS:
            for axis in (None, 0, -1, (0, 1), (0, 1, 2)):
                for keepdims in (False, True):
                    if axis in (None, (0, 1), (0, 1, 2)) and order != 2:
                        continue
                    agree(
                        lambda n, x, a=axis, k=keepdims, o=order: n.linalg.vector_norm(x, axis=a, keepdims=k, ord=o),
                        x,
                        tolerance=1e-4,
                    )
        for matrix_order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
            for keepdims in (False, True):
                agree(
                    lambda n, x, k=keepdims, o=matrix_order: n.linalg.matrix_norm(x, keepdims=k, ord=o),
                    x,
                    tolerance=1e-4,
                )


def test_errors(device: str) -> None:
    for function in ("inv", "det", "cholesky", "eigh"):
        with pytest.raises(ValueError, match=r"."):
            getattr(xp.linalg, function)(xp.ones((2, 3)))
        with pytest.raises(ValueError, match=r"."):
            getattr(xp.linalg, function)(xp.ones(3))


ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
MANY_AXES = ("fftn", "ifftn", "rfftn", "irfftn")


def source(function: str, name: str) -> Host:
    real = function in ("rfft", "ihfft", "rfftn")
    width = {"float32": "complex64", "float64": "complex128"}[name]
    return sample(name if real else width, (2, 3, 6))


def test_transforms(device: str) -> None:
    for name in names(device, REAL_FLOATS):
        tolerance = 2e-3 if name == "float32" else 1e-9
        for function in ONE_AXIS:
            x = source(function, name)
            for n in (None, 4, 9):
                for axis in (-1, 1):
                    for norm in ("backward", "ortho", "forward"):
                        agree(
                            lambda s, x, f=function, n=n, a=axis, m=norm: getattr(s.fft, f)(x, n=n, axis=a, norm=m),
                            x,
                            tolerance=tolerance,
                        )
        for function in MANY_AXES:
            x = source(function, name)
            for s, axes in ((None, None), (None, (0, 2)), ((4, 5), (1, 2)), (None, (1,))):
                agree(
                    lambda n, x, f=function, s=s, a=axes: getattr(n.fft, f)(x, s=s, axes=a),
                    x,
                    tolerance=tolerance,
                )


def test_frequencies_and_shifts(device: str) -> None:
    for n in (1, 4, 7):
        agree(lambda s, n=n: s.fft.fftfreq(n, d=0.5))
        agree(lambda s, n=n: s.fft.rfftfreq(n, d=0.5))
        same(xp.fft.fftfreq(n, dtype=xp.float32), np.fft.fftfreq(n).astype(np.float32))
        same(xp.fft.rfftfreq(n, dtype=xp.float32), np.fft.rfftfreq(n).astype(np.float32))
    for name in names(device, (*INTEGERS, *FLOATS)):
        x = sample(name, (3, 4))
        for axes in (None, 0, (0, 1)):
            agree(lambda s, x, a=axes: s.fft.fftshift(x, axes=a), x)
            agree(lambda s, x, a=axes: s.fft.ifftshift(x, axes=a), x)
    assert xp.fft.fftfreq(4, device=xp.ones(1).device).device == xp.ones(1).device
