"""Casts between all element types, bit for bit as NumPy and ml_dtypes do them."""

from __future__ import annotations

import ctypes

import host_kernels
import numpy as np
import op_cases
import pytest

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.units import ALL_TYPES

pytestmark = pytest.mark.skipif(host_kernels.GXX is None, reason="needs g++ to compile kernels for the host")


@pytest.fixture(scope="module")
def casts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All casts in one library."""
    plans = [plan("copy", (dtype(a),), dtype(b)) for a in ALL_TYPES for b in ALL_TYPES]
    return host_kernels.build(
        tmp_path_factory.mktemp("casts"), "casts", [p.source for p in plans], [p.entry for p in plans]
    )


def cast(library: ctypes.CDLL, x: op_cases.Array, to: str) -> op_cases.Array:
    made = plan("copy", (dtype(x.dtype),), dtype(to))
    out = np.zeros(x.size, to_numpy_dtype(dtype(to)))
    host_kernels.run_dense(library, made, [x], out)
    return out


def every_value(name: str) -> op_cases.Array:
    to = to_numpy_dtype(dtype(name))
    return np.arange(2 ** (8 * to.itemsize), dtype=f"u{to.itemsize}").view(to)


def floats(name: str) -> op_cases.Array:
    """Random bit patterns, and values at and beside the rounding boundaries of the small types."""
    to = to_numpy_dtype(dtype(name))
    rng = np.random.default_rng(7)
    random = rng.integers(0, 2 ** (8 * to.itemsize), 50_000, dtype=f"u{to.itemsize}").view(to)
    near = [random]
    for small in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        with np.errstate(all="ignore"):
            grid = np.unique(every_value(small).astype(np.float64))
            grid = grid[np.isfinite(grid)]
            middle = ((grid[1:] + grid[:-1]) / 2).astype(to)
        near += [middle, np.nextafter(middle, to.type(np.inf)), np.nextafter(middle, to.type(-np.inf))]
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 480.0, 61440.0, 65504.0, 65520.0], to)
    return np.concatenate([*near, edges])


def assert_bits(got: op_cases.Array, want: op_cases.Array, context: str, *, payload: bool = True) -> None:
    if want.itemsize <= 2 and payload:
        same = got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}")
    else:
        same = (got == want) | ((got != got) & (want != want))
        same &= np.signbit(got) == np.signbit(want)
    where = np.flatnonzero(~same)[:4]
    assert where.size == 0, f"{context}: got {got[where]}, want {want[where]}"


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_widen_and_cross_exactly(name: str, casts: ctypes.CDLL) -> None:
    x = every_value(name)
    for to in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64"):
        with np.errstate(all="ignore"):
            want = x.astype(to_numpy_dtype(dtype(to)))
            # ml_dtypes drops the payload of a NaN between small types, NumPy keeps it from float32.
            assert_bits(cast(casts, x, to), want, f"{name} to {to}", payload=to != "float16")


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wide_floats_round_as_numpy_does(name: str, to: str, casts: ctypes.CDLL) -> None:
    x = floats(name)
    with np.errstate(all="ignore"):
        assert_bits(cast(casts, x, to), x.astype(to_numpy_dtype(dtype(to))), f"{name} to {to}")


def test_every_cast_of_representable_values(casts: ctypes.CDLL) -> None:
    for name in ALL_TYPES:
        x = op_cases.values(name, 600, 3)
        for to in ALL_TYPES:
            target, y = to_numpy_dtype(dtype(to)), x
            if target.kind in "iu" and x.dtype.kind in "fcV":
                # Out of range is unspecified: keep what every integer type holds.
                y = x[np.abs(x.real.astype(np.float64)) < 100]
                y = np.abs(y).astype(x.dtype) if x.dtype.kind != "c" else np.abs(y.real).astype(x.dtype)
            with np.errstate(all="ignore"):
                real = y.real if y.dtype.kind == "c" and target.kind not in "cb" else y
                want = real.astype(target)
            got = cast(casts, np.ascontiguousarray(y), to)
            if target.kind in "biuc":
                np.testing.assert_array_equal(got, want, f"{name} to {to}")
            else:
                assert_bits(got, want, f"{name} to {to}", payload=False)


def test_large_integers_do_not_pass_through_float(casts: ctypes.CDLL) -> None:
    x = np.array([2**53 - 1, -(2**53) + 1, 2**63 - 1, -(2**63)], np.int64)
    np.testing.assert_array_equal(cast(casts, x, "float64"), x.astype(np.float64))
    np.testing.assert_array_equal(cast(casts, x, "uint64"), x.astype(np.uint64))
    u = np.array([2**64 - 1, 2**63, 2**53 + 1], np.uint64)
    np.testing.assert_array_equal(cast(casts, u, "float64"), u.astype(np.float64))


def test_a_copy_keeps_every_bit(casts: ctypes.CDLL) -> None:
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        x = every_value(name)
        assert cast(casts, x, name).tobytes() == x.tobytes(), name
