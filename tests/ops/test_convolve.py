"""convolve and correlate against NumPy: modes, lengths around the tile, types, strides, special values, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.ops.products.convolve import TILE
from pygpukit.ops.units import ALL_TYPES

MODES = ("full", "same", "valid")


def values(name: str, n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng([seed, n])
    x = rng.integers(-4, 5, n)
    if name.startswith("complex"):
        return (x + 1j * rng.integers(-4, 5, n)).astype(name)
    return (x > 0 if name == "bool" else x).astype(gp.to_numpy_dtype(name))


def check(a: np.ndarray[Any, Any], v: np.ndarray[Any, Any], modes: tuple[str, ...] = MODES) -> None:
    ours = gp.from_numpy(a), gp.from_numpy(v)
    for name in ("convolve", "correlate"):
        for mode in modes:
            got = getattr(gp, name)(*ours, mode).to_numpy()
            want = getattr(np, name)(a, v, mode)
            context = f"{name} {mode} of {a.dtype} {a.size} and {v.dtype} {v.size}"
            assert (got.dtype, got.shape) == (want.dtype, want.shape), context
            # The values are small integers: every sum of them is exact.
            np.testing.assert_array_equal(got, want, err_msg=context)


def test_lengths(device: str) -> None:
    lengths = (1, 2, 3, 8) if device == "cpu" else (1, 2, 5)
    for n in lengths:
        for m in lengths:
            check(values("float32", n), values("float32", m, 1))
    # Around the outputs of a block and the taps of a pass.
    for n, m in ((TILE - 6, 7), (TILE + 1, 1), (TILE * 2, 3), (300, 252), (300, 253), (10, 600)):
        check(values("float32", n), values("float32", m, 1), MODES if device == "cpu" else ("same",))


def test_types(device: str) -> None:
    names = (
        [name for name in ALL_TYPES if not name.startswith(("bf", "float8"))]
        if device == "cpu"
        else ["bool", "int8", "complex64"]
    )
    for name in names:
        check(values(name, 30), values(name, 9, 1))
        check(values(name, 6), values(name, 9, 1))
    if device == "cpu":
        for a, b in (("int8", "float32"), ("bool", "uint8"), ("float32", "complex64"), ("int64", "float16")):
            check(values(a, 12), values(b, 5))


def test_small_floats_are_summed_in_float32() -> None:
    x = values("bfloat16", 400)
    got = gp.convolve(gp.from_numpy(x), gp.from_numpy(x[:200]), "same").to_numpy()
    want = np.convolve(x.astype(np.float32), x[:200].astype(np.float32), "same").astype(x.dtype)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, want)


@settings(derandomize=True, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["int16", "float64", "complex128"]), st.integers(0, 3))
def test_random_lengths(n: int, m: int, name: str, seed: int) -> None:
    check(values(name, n, seed), values(name, m, seed + 1))


def test_strides(device: str) -> None:
    x = values("float32", 60)
    a = gp.from_numpy(x)
    for first, second in (
        (slice(None, None, -1), slice(5)),
        (slice(None, None, 3), slice(20, 10, -2)),
        (slice(4), slice(50)),
    ):
        for mode in MODES:
            np.testing.assert_array_equal(
                gp.convolve(a[first], a[second], mode).to_numpy(), np.convolve(x[first], x[second], mode)
            )
            np.testing.assert_array_equal(
                gp.correlate(a[first], a[second], mode).to_numpy(), np.correlate(x[first], x[second], mode)
            )
    spread = gp.from_numpy(x[:1])._broadcast_to((9,))
    np.testing.assert_array_equal(gp.convolve(spread, a).to_numpy(), np.convolve(np.full(9, x[0]), x))


def test_special_values_reach_only_their_neighbours(device: str) -> None:
    x, v = values("float32", 20), values("float32", 4, 1)
    for special in (np.inf, np.nan):
        for a, b in ((x.copy(), v.copy()), (v.copy(), x.copy())):
            b[1] = special
            with np.errstate(invalid="ignore"):
                want = np.convolve(a, b)
            np.testing.assert_array_equal(gp.convolve(gp.from_numpy(a), gp.from_numpy(b)).to_numpy(), want)
    assert np.isfinite(gp.convolve(gp.asarray([1.0, 2.0, 3.0]), gp.asarray([1.0, np.inf])).to_numpy()).sum() == 1


def test_refusals() -> None:
    x = gp.ones(3)
    for call in (np.convolve, np.correlate):
        ours = getattr(gp, call.__name__)
        for shapes in (((0,), (2,)), ((2,), (0,)), ((2, 2), (2,)), ((2,), (1, 2))):
            with pytest.raises(ValueError):  # noqa: PT011
                call(*(np.ones(s) for s in shapes))
            with pytest.raises(ValueError, match=call.__name__):
                ours(*(gp.ones(s) for s in shapes))
        with pytest.raises(ValueError, match="mode"):
            ours(x, x, "most")
        assert ours(x, [1.0]).tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(TypeError, match="from_numpy"):
            ours(x, np.ones(1))
    assert gp.convolve(x, gp.asarray(2.0)).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="vectors"):
        gp.correlate(x, gp.asarray(2.0))
