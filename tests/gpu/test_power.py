"""pow on zeros, infinities, NaN, negative bases and whole exponents, for float and complex types."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import op_cases
import pytest

import pygpukit as gp

PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -4.0, 99.0, 101.0, 1e200, 1e-200, np.inf, -np.inf, np.nan]


def parts_agree(got: op_cases.Array, want: op_cases.Array, scale: op_cases.Array, relative: float) -> op_cases.Array:
    """Where real numbers are the same special value, or close."""
    with np.errstate(all="ignore"):
        close = np.abs(got - want) <= relative * scale
    return close | (got == want) | (np.isnan(got) & np.isnan(want))


def assert_agree(got: op_cases.Array, want: op_cases.Array, a: op_cases.Array, b: op_cases.Array) -> None:
    with np.errstate(all="ignore"):
        # The general formula loses digits in proportion to b log(a), which is at most some hundreds here.
        relative = 1000 * float(np.finfo(got.dtype).eps)
        scale = np.abs(want)
    same = parts_agree(got.real, want.real, scale, relative) & parts_agree(got.imag, want.imag, scale, relative)
    bad = np.flatnonzero(~same)
    shown = [f"{a[i]} ** {b[i]}: got {got[i]}, want {want[i]}" for i in bad[:8]]
    assert not shown, f"{bad.size} of {same.size}:\n" + "\n".join(shown)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_powers_of_special_values(name: str, device: gp.Device) -> None:
    kind = gp.to_numpy_dtype(name)
    with np.errstate(all="ignore"):
        grid = np.array([complex(x, y) for x, y in itertools.product(PARTS, repeat=2)]).astype(kind)
        a, b = (x.ravel() for x in np.meshgrid(grid, grid, indexing="ij"))
        # complex64 is evaluated in double: NumPy's own float loop loses digits of subnormal results.
        want = np.power(a.astype(np.complex128), b.astype(np.complex128)).astype(kind)
    got = gp.pow(gp.from_numpy(a), gp.from_numpy(b)).to_numpy()
    assert got.dtype == kind
    assert_agree(got, want, a, b)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_real_powers_of_special_values(name: str, device: gp.Device) -> None:
    kind = gp.to_numpy_dtype(name)
    with np.errstate(all="ignore"):
        grid = np.array(PARTS).astype(kind)
        a, b = (x.ravel() for x in np.meshgrid(grid, grid, indexing="ij"))
        wide = np.float64 if name == "float64" else np.float32
        want = np.power(a.astype(wide), b.astype(wide)).astype(kind).astype(np.float64)
    got = gp.pow(gp.from_numpy(a), gp.from_numpy(b)).to_numpy().astype(np.float64)
    same = parts_agree(got, want, np.abs(want), 4 * float(ml_dtypes.finfo(kind).eps))
    same &= (np.signbit(got) == np.signbit(want)) | np.isnan(want)
    shown = [f"{a[i]} ** {b[i]}: got {got[i]}, want {want[i]}" for i in np.flatnonzero(~same)[:8]]
    assert not shown, "\n".join(shown)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_zero_to_a_complex_power(name: str, device: gp.Device) -> None:
    z = gp.asarray([0j, 2 + 0j], name)
    assert (z ** (1 + 1j)).tolist()[0] == 0
    assert (z**0).tolist() == [1, 1]
    assert np.isnan((z**-1).to_numpy()).tolist() == [True, False]
