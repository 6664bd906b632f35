"""Elementwise kernels on layouts that are not dense: rows, broadcast rows, and transposed copies through tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp

DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with gp.device(request.param):
        yield request.param


def numbers(shape: tuple[int, ...], kind: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(gp.to_numpy_dtype(kind))


def copied(x: np.ndarray[Any, Any], view: Any) -> None:
    got = view(gp.from_numpy(x)).copy()
    assert got.is_contiguous
    assert got.to_numpy().tobytes() == np.ascontiguousarray(view(x)).tobytes(), (x.shape, x.dtype)


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "float64", "complex128"])
def test_transposed_copies(device: str, kind: str) -> None:
    for shape in ((33, 70), (8, 8), (7, 50), (65, 129), (3, 40, 36)):
        copied(numbers(shape, kind), lambda x: x.T)
    x = numbers((3, 20, 5, 18), kind)
    for axes in ((0, 3, 2, 1), (3, 1, 2, 0), (2, 0, 3, 1), (1, 3, 0, 2)):
        copied(x, lambda x, axes=axes: x.transpose(axes))
    copied(numbers((40, 50), kind), lambda x: x.T[::-1, 3:])
    copied(numbers((40, 50), kind), lambda x: x[:, ::2].T)
    copied(numbers((40, 50), kind), lambda x: x[1:, 1:].T[:, ::-1])


def test_transposed_casts_and_targets(device: str) -> None:
    x = numbers((40, 50), "float32")
    ours = gp.from_numpy(x)
    for kind in ("float16", "int64", "bool", "uint8"):
        np.testing.assert_array_equal(ours.T.astype(kind).to_numpy(), x.T.astype(kind))
    wide, host = gp.zeros((50, 100)), np.zeros((50, 100), np.float32)
    wide[:, 3:43] = ours.T
    host[:, 3:43] = x.T
    np.testing.assert_array_equal(wide.to_numpy(), host)
    other = gp.zeros((40, 50))
    other.T[...] = ours.T[::-1]
    np.testing.assert_array_equal(other.to_numpy().T, x.T[::-1])


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64"])
def test_rows_and_broadcast_operands(device: str, kind: str) -> None:
    for shape in ((5, 64), (3, 7), (2, 3, 16), (4, 1100), (3, 17, 8), (1100, 4)):
        x = numbers(shape, kind)
        ours = gp.from_numpy(x)
        for y in (x[..., :1], x[:1], x[..., :1, :]):
            mine = gp.from_numpy(np.ascontiguousarray(y))
            np.testing.assert_array_equal(gp.add(ours, mine).to_numpy(), x + y)
            np.testing.assert_array_equal(gp.maximum(mine, ours).to_numpy(), np.maximum(y, x))
        for cut in (np.s_[..., 1:], np.s_[..., 4:], np.s_[..., ::2], np.s_[..., ::-1], np.s_[1:]):
            np.testing.assert_array_equal(gp.add(ours[cut], ours[cut]).to_numpy(), x[cut] + x[cut])
        flags = gp.from_numpy(np.arange(shape[-1]) % 3 == 0)
        got = gp.where(flags, ours, 1).to_numpy()
        np.testing.assert_array_equal(got, np.where(np.arange(shape[-1]) % 3 == 0, x, x.dtype.type(1)))
    wide = gp.zeros((6, 64), kind)
    wide[::2, 16:48] = gp.from_numpy(numbers((3, 32), kind))
    host = np.zeros((6, 64), gp.to_numpy_dtype(kind))
    host[::2, 16:48] = numbers((3, 32), kind)
    np.testing.assert_array_equal(wide.to_numpy(), host)
    x = numbers((5, 64), "float32")
    np.testing.assert_allclose(gp.exp(gp.from_numpy(x)[:, 32:] / 50).to_numpy(), np.exp(x[:, 32:] / 50), rtol=1e-6)


@pytest.mark.parametrize("kind", ["bfloat16", "float32", "float64"])
def test_halves_of_joined_rows_and_a_bias_have_the_bits_of_separate_arrays(device: str, kind: str) -> None:
    for rows, n in ((1, 64), (3, 40), (5, 37), (2, 1100), (700, 8)):
        joined = gp.from_numpy((numbers((rows, 2 * n), kind) - np.float32(50)).astype(gp.to_numpy_dtype(kind)))
        gate, up = joined[:, :n].copy(), joined[:, n:].copy()
        assert gp.swiglu(joined).to_numpy().tobytes() == gp.swiglu(gate, up).to_numpy().tobytes(), (rows, n)
        bias = gp.from_numpy(numbers((n,), kind))
        wanted = gate.to_numpy() + bias.to_numpy()
        assert gp.add(joined[:, :n], bias).to_numpy().tobytes() == wanted.tobytes(), (rows, n)
        assert gp.bias_add_inplace(gate, bias).to_numpy().tobytes() == wanted.tobytes(), (rows, n)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_the_gelu_of_every_small_float_is_within_its_bound(device: str, kind: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(gp.to_numpy_dtype(kind))
    got = gp.gelu(gp.from_numpy(x), approximate=False).to_numpy().astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    assert np.isnan(got[np.isnan(wide) | (wide == -np.inf)]).all()
    assert np.isinf(got[wide == np.inf]).all()
    on = np.isfinite(wide)
    exact = np.array([v * 0.5 * math.erfc(-v * math.sqrt(0.5)) for v in wide[on].tolist()])
    digits, least = (8, 2.0**-118) if kind == "bfloat16" else (11, 2.0**-14)
    unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), least))) - digits + 1)
    error = np.abs(got[on] - exact)
    assert (error[np.abs(exact) > least] <= 0.52 * unit[np.abs(exact) > least]).all()
    assert (error <= np.maximum(0.52 * unit, least if kind == "bfloat16" else 0)).all()


@pytest.mark.nvrtc
@given(data=st.data())
@settings(max_examples=25, derandomize=True)
def test_any_view_is_copied(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 4))
    x = numbers(tuple(data.draw(st.lists(st.integers(1, 20), min_size=ndim, max_size=ndim))), "int16")
    axes = data.draw(st.permutations(range(ndim)))
    cuts = tuple(
        slice(data.draw(st.integers(0, 2)), None, data.draw(st.sampled_from([1, 1, 2, -1]))) for _ in range(ndim)
    )
    with gp.device("emulated"):
        copied(x, lambda x: x.transpose(axes)[cuts])
