"""gp.linalg against numpy.linalg: values, types, shapes, layouts, empty matrices, and what is raised."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp

TYPES = ("float32", "float64", "complex64", "complex128")
Array = np.ndarray[Any, Any]


def values(name: str, shape: Any, seed: int = 0) -> Array:
    """Random numbers; square matrices are well conditioned."""
    rng = np.random.default_rng([seed, len(name)])
    x = rng.standard_normal(shape)
    if name.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    if len(x.shape) > 1 and x.shape[-1] == x.shape[-2]:
        x = x + 3 * np.eye(x.shape[-1])
    return x.astype(name) if name[0] in "fc" else (x * 4).astype(name)


def adjoint(x: Array) -> Array:
    return np.swapaxes(x.conj(), -1, -2)


def host(x: Any) -> Any:
    return x.to_numpy() if isinstance(x, gp.GPUArray) else x


def tolerance(kind: Any) -> float:
    return 2e-4 if np.dtype(kind).name in ("float32", "complex64") else 1e-10


def same(got: Any, want: Any, context: str = "") -> None:
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other, context)
        return
    if type(got) is int:
        assert got == want, context
        return
    want = np.asarray(want)
    ours = np.asarray(host(got))
    assert (ours.dtype, ours.shape) == (want.dtype, want.shape), context
    if want.dtype.kind in "fc":
        np.testing.assert_allclose(ours, want, rtol=tolerance(want.dtype), atol=tolerance(want.dtype), err_msg=context)
    else:
        np.testing.assert_array_equal(ours, want, err_msg=context)


def both(name: str, *args: Any, **options: Any) -> None:
    """Compare a function of linalg, or the class of what it raises."""
    ours = [gp.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args]
    named = {key: gp.from_numpy(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    context = f"{name} of {[getattr(x, 'shape', x) for x in args]} {options}"
    try:
        with np.errstate(all="ignore"):
            want = getattr(np.linalg, name)(*args, **options)
    except Exception as error:
        with pytest.raises(type(error)):
            getattr(gp.linalg, name)(*ours, **named)
        return
    same(getattr(gp.linalg, name)(*ours, **named), want, context)


def close(x: Any, y: Any) -> None:
    x, y = host(x), host(y)
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance(x.dtype) * 10)


def test_every_name_of_numpy_is_there() -> None:
    ours = set(gp.linalg.__all__)
    theirs = {name for name in dir(np.linalg) if not name.startswith("_")} - {"linalg", "test"}
    assert theirs <= ours
    assert gp.linalg.LinAlgError is np.linalg.LinAlgError


def test_equations_and_inverses(device: str) -> None:
    for name in TYPES if device == "cpu" else ("float32", "complex64"):
        a, b = values(name, (3, 4, 4)), values(name, (3, 4, 2), 1)
        x = gp.linalg.solve(gp.from_numpy(a), gp.from_numpy(b))
        assert x.dtype.name == name
        close(a @ x.to_numpy(), b)
        close(a @ gp.linalg.inv(gp.from_numpy(a)).to_numpy(), np.broadcast_to(np.eye(4, dtype=name), a.shape))
        both("solve", a[0], b[0, :, 0])
        both("solve", a, b[0, :, 0])
        both("solve", a[0], b)
        both("det", a)
        both("slogdet", a)
        both("pinv", a[:, :, :3])
        both("matrix_power", a[0], -2)


def test_cholesky(device: str) -> None:
    for name in TYPES if device == "cpu" else ("float32", "complex64"):
        x = values(name, (2, 5, 5))
        a = x @ adjoint(x) + 5 * np.eye(5, dtype=name)
        lower = gp.linalg.cholesky(gp.from_numpy(a)).to_numpy()
        upper = gp.linalg.cholesky(gp.from_numpy(a), upper=True).to_numpy()
        close(lower @ adjoint(lower), a)
        close(adjoint(upper) @ upper, a)
        assert not np.triu(lower, 1).any()
        assert not np.tril(upper, -1).any()
        both("cholesky", a)
    with pytest.raises(np.linalg.LinAlgError):
        gp.linalg.cholesky(gp.asarray([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 2), (1, 1), (0, 3), (3, 0)])
def test_qr(shape: tuple[int, ...]) -> None:
    for name in TYPES:
        a = values(name, shape)
        for mode in ("reduced", "complete"):
            made = gp.linalg.qr(gp.from_numpy(a), mode)
            q, r = made.Q.to_numpy(), made.R.to_numpy()
            assert (q.shape, r.shape) == tuple(x.shape for x in np.linalg.qr(a, mode))
            assert q.dtype == r.dtype == a.dtype
            close(q @ r, a)
            close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1], dtype=name), (*a.shape[:-2], *[q.shape[-1]] * 2)))
            assert not np.tril(r, -1).any()
        same(gp.linalg.qr(gp.from_numpy(a), "r").shape, np.linalg.qr(a, "r").shape)
        h, tau = gp.linalg.qr(gp.from_numpy(a), mode="raw")
        assert (h.shape, tau.shape) == tuple(x.shape for x in np.linalg.qr(a, "raw"))
    both("qr", values("float64", shape), "most")


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 2), (1, 1), (0, 3), (3, 0)])
def test_svd(shape: tuple[int, ...]) -> None:
    for name in TYPES:
        a = values(name, shape)
        for full in (True, False):
            made = gp.linalg.svd(gp.from_numpy(a), full)
            u, s, vh = (x.to_numpy() for x in made)
            want = np.linalg.svd(a, full)
            assert [x.shape for x in (u, s, vh)] == [x.shape for x in want]
            assert [x.dtype for x in (u, s, vh)] == [x.dtype for x in want]
            k = s.shape[-1]
            close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a)
            close(adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1], dtype=name), (*a.shape[:-2], *[u.shape[-1]] * 2)))
            close(s, want.S)
        both("svdvals", a)
        both("svd", a, compute_uv=False)
        if name == "float64" and 0 not in shape:
            for p in (None, 2, -2, 1, -1, np.inf, -np.inf, "fro", "nuc"):
                both("cond", a, p)
            for axis in (None, (0, 1), (-1, -2)):
                for order in (2, -2, "nuc", 1, "fro", 7):
                    for keep in (False, True):
                        both("norm", a, order, axis, keep)
            both("matrix_norm", a, ord=2)
            both("matrix_rank", a)
            both("vector_norm", a, ord=3, keepdims=True)


def test_decompositions_on_devices(device: str) -> None:
    a = values("float32", (2, 5, 3))
    ours = gp.from_numpy(a)
    q, r = gp.linalg.qr(ours)
    close(q.to_numpy() @ r.to_numpy(), a)
    u, s, vh = gp.linalg.svd(ours, full_matrices=False)
    close((u.to_numpy() * s.to_numpy()[:, None]) @ vh.to_numpy(), a)
    x = a[0, :3] + a[0, :3].T
    w, v = gp.linalg.eigh(gp.from_numpy(x))
    close(v.to_numpy() @ np.diag(w.to_numpy()) @ v.to_numpy().T, x)
    same(gp.linalg.eigvalsh(gp.from_numpy(x)), np.linalg.eigvalsh(x))


def test_norms_of_all_kinds() -> None:
    for shape in ((3, 4), (2, 3, 4), (4,), (), (0, 3), (0,)):
        x = values("float64", shape)
        for order in (None, 2, -2, 1, -1, np.inf, -np.inf, "fro", "nuc", 3, 0, 0.5, "most"):
            # An array without axes has axis 0 here, as of reductions.
            for axis in (None, 0, 1, (0, 1), (1, 0), (0, 0), (0, 5), [0, 1], "a") if shape else (None,):
                both("norm", x, order, axis, True)
    x = gp.from_numpy(values("float32", (3, 4)))
    assert gp.norm(x, 2).tolist() == gp.linalg.norm(x, 2).tolist()


def test_hermitian_matrices() -> None:
    for name in TYPES:
        x = values(name, (3, 4, 4))
        a = x + adjoint(x)
        for side in ("L", "U", "l"):
            made = gp.linalg.eigh(gp.from_numpy(np.tril(a) if side != "U" else np.triu(a)), side)
            w, v = made.eigenvalues.to_numpy(), made.eigenvectors.to_numpy()
            close((v * w[..., None, :]) @ adjoint(v), a)
            assert (np.diff(w) >= 0).all()
            both("eigvalsh", a, side)
        u, s, vh = (x.to_numpy() for x in gp.linalg.svd(gp.from_numpy(a), hermitian=True))
        close((u * s[..., None, :]) @ vh, a)
        close(s, np.linalg.svdvals(a))
        both("svd", a, compute_uv=False, hermitian=True)
        both("pinv", a, hermitian=True)
        both("matrix_rank", a, hermitian=True)
    both("eigh", values("float64", (2, 2)), "X")


def test_general_eigenvalues() -> None:
    for name in TYPES:
        a = values(name, (3, 4, 4))
        made = gp.linalg.eig(gp.from_numpy(a))
        w, v = made.eigenvalues.to_numpy(), made.eigenvectors.to_numpy()
        assert (w.dtype, v.dtype) == tuple(x.dtype for x in np.linalg.eig(a))
        close(a @ v, v * w[..., None, :])
        both("eigvals", a)
    triangular = np.triu(values("float32", (4, 4)))
    assert gp.linalg.eig(gp.from_numpy(triangular)).eigenvalues.dtype is gp.float32
    assert gp.linalg.eigvals(gp.from_numpy(triangular)).dtype is gp.float32
    both("eig", np.full((2, 2), np.nan))
    both("eigvals", np.full((2, 2), np.inf))


def test_least_squares() -> None:
    for name in TYPES:
        for m, n in ((5, 3), (3, 5), (4, 4), (5, 1)):
            a = values(name, (m, n))
            for b in (values(name, (m,), 1), values(name, (m, 2), 1), values(name, (m, 0), 1)):
                both("lstsq", a, b)
    low = np.outer([1.0, 2.0, 3.0], [1.0, 1.0])
    both("lstsq", low, np.array([1.0, 0.0, 2.0]))
    both("lstsq", low, np.array([1.0, 0.0, 2.0]), 1e-3)
    both("lstsq", low, np.ones(4))
    both("lstsq", np.ones((2, 2, 2)), np.ones(2))
    both("lstsq", np.ones((0, 2)), np.ones(0))
    both("lstsq", np.ones((2, 0)), np.ones(2))


def test_ranks_and_pseudo_inverses() -> None:
    low = np.outer([1.0, 2.0, 3.0], [1.0, 1.0])
    stack = np.stack([low, low * 0, low + np.eye(3, 2)])
    for a in (low, stack, np.zeros((2, 2)), np.ones((0, 0)), np.ones((3, 0))):
        both("matrix_rank", a)
        both("pinv", a)
        both("pinv", a, rtol=None)
        both("pinv", a, 1e-3)
    both("matrix_rank", stack, 0.5)
    both("matrix_rank", stack, rtol=0.9)
    both("matrix_rank", stack, tol=np.array([0.1, 0.1, 1e9]))
    both("matrix_rank", stack, 1.0, rtol=1.0)
    both("matrix_rank", np.array([0.0, 1.0]))
    both("matrix_rank", np.array([0.0, 0.0]))
    both("pinv", low, 1e-3, rtol=1e-3)
    both("cond", np.ones((2, 2)), 1)
    both("cond", np.stack([np.eye(2), np.full((2, 2), np.nan), np.zeros((2, 2))]))
    both("cond", np.ones((0, 0)))


def test_powers_chains_and_the_rest() -> None:
    a = values("float64", (4, 4))
    for n in (-3, -1, 0, 1, 2, 3, 4, 7):
        both("matrix_power", a, n)
    both("matrix_power", values("int64", (2, 2, 2)), 3)
    both("matrix_power", values("int64", (2, 2)), 0)
    both("matrix_power", a, 2.5)
    both("matrix_power", a[:3], 2)
    chain = [values("float64", s) for s in ((2, 9), (9, 3), (3, 7), (7, 4))]
    for count in (1, 2, 3, 4):
        arrays = [gp.from_numpy(x) for x in chain[:count]]
        with pytest.raises(ValueError, match="at least two") if count == 1 else contextlib.nullcontext():
            same(gp.linalg.multi_dot(arrays), np.linalg.multi_dot(chain[: max(count, 2)]))
    vectors = [chain[0][0], *chain[1:3], chain[3][:, 0]]
    same(gp.linalg.multi_dot([gp.from_numpy(x) for x in vectors]), np.linalg.multi_dot(vectors))
    same(gp.linalg.multi_dot([gp.from_numpy(x) for x in vectors[:3]]), np.linalg.multi_dot(vectors[:3]))
    out = gp.zeros((2, 7), "float64")
    assert gp.linalg.multi_dot([gp.from_numpy(x) for x in chain[:3]], out=out) is out
    with pytest.raises(np.linalg.LinAlgError):
        gp.linalg.multi_dot([gp.ones((2, 2)), gp.ones((2, 2, 2)), gp.ones(2)])
    stack = values("float64", (3, 4, 5))
    for name in ("trace", "diagonal", "matrix_transpose"):
        both(name, stack)
        both(name, stack[0, 0])
    both("trace", stack, offset=-2)
    both("diagonal", stack, offset=1)
    both("outer", stack[0, 0], stack[0, 1])
    both("outer", stack[0], stack[0, 1])
    both("vecdot", stack, stack[:, :1], axis=1)
    both("vecdot", stack, stack[:, :3], axis=-1)
    both("tensordot", stack, stack, axes=([0, 1], [0, 1]))
    both("matmul", stack, stack[0].T)
    both("tensorsolve", values("float64", (24, 24)).reshape(2, 3, 4, 24), values("float64", (2, 3, 4)))
    both("tensorsolve", values("float64", (24, 24)).reshape(24, 2, 12), values("float64", (24,)), axes=(0,))
    both("tensorsolve", np.ones((2, 3)), np.ones(2))
    both("tensorinv", values("float64", (6, 6)).reshape(2, 3, 6))
    both("tensorinv", values("float64", (6, 6)).reshape(6, 3, 2), 1)
    both("tensorinv", np.ones((2, 2)), 0)
    both("vector_norm", stack, axis=(0, 2))
    both("vector_norm", stack, axis=1, keepdims=True, ord=np.inf)


def test_integers_and_small_floats() -> None:
    for name in ("int8", "uint64", "bool"):
        a = values(name, (3, 3)) + np.eye(3, dtype=name)
        both("svdvals", a)
        both("qr", a, "r") if name == "int8" else None
        both("det", a)
    both("solve", values("float32", (3, 3)), values("float64", (3, 1)))
    both("solve", values("float32", (3, 3)), values("complex64", (3, 1)))
    both("solve", values("complex64", (3, 3)), np.ones((3, 1), np.int32))
    for name in ("float16", "bfloat16", "float8_e5m2"):
        x = gp.ones((2, 2), name)
        for function in (
            "inv",
            "det",
            "cholesky",
            "qr",
            "eigh",
            "eig",
            "svd",
            "pinv",
            "slogdet",
            "cond",
            "matrix_rank",
        ):
            with pytest.raises(TypeError, match="unsupported in linalg"):
                getattr(gp.linalg, function)(x)
        with pytest.raises(TypeError, match="unsupported in linalg"):
            gp.linalg.solve(x, gp.ones((2, 2)))
    both("inv", np.ones((2, 2), np.float16))


ONE = ("inv", "det", "slogdet", "cholesky", "qr", "eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "pinv")


@pytest.mark.parametrize("function", ONE)
def test_shapes_that_are_refused(function: str) -> None:
    for shape in ((), (3,), (2, 3), (4, 3, 2)):
        if shape[-2:] in ((2, 3), (3, 2)) and function in ("qr", "svd", "svdvals", "pinv"):
            continue
        both(function, values("float64", shape))
    assert type(getattr(gp.linalg, function)([[1.0]])) is type(getattr(gp.linalg, function)(gp.ones((1, 1))))
    with pytest.raises(TypeError, match="from_numpy"):
        getattr(gp.linalg, function)(np.ones((1, 1)))


@pytest.mark.parametrize("function", ONE)
def test_empty_matrices(function: str) -> None:
    for shape in ((0, 0), (3, 0, 0), (0, 2, 2)):
        both(function, np.zeros(shape))


def test_shapes_of_equations() -> None:
    a = values("float64", (3, 2, 2))
    for shape in ((), (2,), (3,), (2, 4), (3, 2), (3, 2, 1), (4, 2, 1), (1, 2, 3), (0, 2, 2), (2, 0)):
        both("solve", a, values("float64", shape))
        both("solve", a[0], values("float64", shape))
    both("solve", np.ones((0, 0)), np.ones((0, 2)))
    both("solve", np.ones((2, 3)), np.ones(2))


def test_singular_matrices(device: str) -> None:
    for shape in ((2, 2), (3, 2, 2)):
        x = gp.ones(shape)
        for call in (lambda x: gp.linalg.inv(x), lambda x: gp.linalg.solve(x, gp.ones((2, 1)))):
            with pytest.raises(np.linalg.LinAlgError):
                call(x)
        assert gp.linalg.det(x).to_numpy().max() == 0
        sign, log = gp.linalg.slogdet(x)
        assert not sign.to_numpy().any()
        assert np.isneginf(log.to_numpy()).all()
    # The device works on.
    assert gp.linalg.inv(gp.eye(2)).tolist() == np.eye(2).tolist()


def test_a_singular_matrix_is_found_at_the_call_on_any_stream() -> None:
    with gp.Stream():
        x = gp.ones((2, 2))
        with pytest.raises(np.linalg.LinAlgError):
            gp.linalg.inv(x)


def test_layouts() -> None:
    x = values("float64", (2, 6, 6))
    a = gp.from_numpy(x)
    for ours, theirs in ((a[0].T, x[0].T), (a[:, ::2, ::-2], x[:, ::2, ::-2]), (a[1:, 1:4, 1:4], x[1:, 1:4, 1:4])):
        same(gp.linalg.inv(ours), np.linalg.inv(theirs))
        same(gp.linalg.svdvals(ours), np.linalg.svdvals(theirs))
        same(gp.linalg.solve(ours, ours[..., 0] if theirs.ndim == 2 else ours), np.linalg.solve(
            theirs, theirs[..., 0] if theirs.ndim == 2 else theirs))  # fmt: skip
    spread = a[0]._broadcast_to((3, 6, 6))
    same(gp.linalg.det(spread), np.linalg.det(np.broadcast_to(x[0], (3, 6, 6))))
    before = a.to_numpy()
    gp.linalg.qr(a)
    gp.linalg.inv(a)
    np.testing.assert_array_equal(a.to_numpy(), before)


@settings(derandomize=True, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(TYPES), st.integers(0, 20), st.booleans())
def test_random_matrices(m: int, n: int, name: str, seed: int, turned: bool) -> None:
    x = values(name, (n, m) if turned else (m, n), seed)
    a, x = (gp.from_numpy(x).T, x.T) if turned else (gp.from_numpy(x), x)
    q, r = gp.linalg.qr(a)
    close(q.to_numpy() @ r.to_numpy(), x)
    u, s, vh = gp.linalg.svd(a, full_matrices=False)
    close((u.to_numpy() * s.to_numpy()) @ vh.to_numpy(), x)
    inverse = gp.linalg.pinv(a).to_numpy()
    np.testing.assert_allclose(
        x @ inverse @ x, x, rtol=0, atol=5e-3 if name[-2:] in ("32", "64") and "8" not in name else 1e-8
    )
    b = values(name, (m,), seed + 1)
    same(gp.linalg.lstsq(a, gp.from_numpy(b))[2], np.linalg.lstsq(x, b)[2])


def test_work_of_a_graph() -> None:
    x = gp.asarray([[2.0, 0.0], [0.0, 4.0]])
    graph = gp.CudaGraph()
    with graph.capture():
        y = gp.linalg.inv(x)
    graph.replay()
    graph.synchronize()
    assert y.tolist() == [[0.5, 0.0], [0.0, 0.25]]
