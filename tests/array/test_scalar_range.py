"""Python numbers written into arrays of every type: those that fit are rounded as in NumPy, the others are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.units import ALL_TYPES

NUMBERS: list[Any] = [
    True, 0, 1, -1, 127, 128, -128, -129, 255, 256, 448, 449, 464, 465, 480, 57344, 61439, 61440, 65504, 65519, 65520,
    2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**63 - 1, 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**10, -(10**40),
    2**200, 10**400, 0.0, -0.0, 0.5, -2.5, 126.9, 255.9, 1e-30, 464.0, 464.1, 65519.9, 65520.0, 61439.9, -61440.0, 1e10,
    -1e10, 3.4028235e38, 3.4028236e38, 3.39e38, 3.396177e38, 3.396178e38, 1e300, -1e300, math.inf, -math.inf, math.nan,
]  # fmt: skip
COMPLEX: list[Any] = [0j, 1.5 - 2.5j, complex(1e300, 0), complex(0, -1e300), complex(math.inf, math.nan)]


def filled(x: gp.GPUArray, value: Any) -> gp.GPUArray:
    return x.fill(value)


def assigned(x: gp.GPUArray, value: Any) -> gp.GPUArray:
    x[...] = value
    return x


def assigned_with_a_step(x: gp.GPUArray, value: Any) -> gp.GPUArray:
    x[::2] = value
    return x[::2]


def assigned_one(x: gp.GPUArray, value: Any) -> gp.GPUArray:
    x[1] = value
    return x[1:2]


def made(x: gp.GPUArray, value: Any) -> gp.GPUArray:
    return gp.full(3, value, x.dtype)


def made_like(x: gp.GPUArray, value: Any) -> gp.GPUArray:
    return gp.full_like(x, value)


def expected(value: Any, name: str) -> Any:
    """The element NumPy rounds to, or the error of docs/differences.md."""
    kind = gp.to_numpy_dtype(name)
    if kind.kind == "b":
        return bool(value)
    if kind.kind in "iu":
        if isinstance(value, float) and not math.isfinite(value):
            return ValueError if math.isnan(value) else OverflowError
        limits = np.iinfo(kind)
        return int(value) if limits.min <= int(value) <= limits.max else OverflowError
    try:
        wide = np.complex128(value) if kind.kind == "c" else np.float64(value)
    except OverflowError:
        return OverflowError
    with np.errstate(all="ignore"):
        rounded = wide.astype(kind)
    # A complex number is finite where both parts are; each is held or refused by itself.
    for before, after in ((wide.real, rounded.real), (wide.imag, rounded.imag)):
        if np.isfinite(before) and not np.isfinite(np.float64(after)):
            return OverflowError
    return rounded


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize("write", [filled, assigned, assigned_with_a_step, assigned_one, made, made_like])
def test_numbers_fit_or_are_refused(name: str, write: Callable[[gp.GPUArray, Any], gp.GPUArray]) -> None:
    for value in NUMBERS + (COMPLEX if gp.dtype(name).kind == "c" else []):
        want = expected(value, name)
        x = gp.ones(4, name)
        if isinstance(want, type):
            with pytest.raises(want, match=name):
                write(x, value)
            assert x.tolist() == [1, 1, 1, 1], f"{value} was written in part"
        else:
            got = write(x, value).to_numpy()
            same = (got == want) | ((got != got) & (want != want))
            assert same.all(), f"{value}: got {got}, want {want}"


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float32", "complex64"])
def test_the_error_names_the_number_and_the_type(name: str) -> None:
    with pytest.raises(OverflowError, match=rf"1e\+?300.*{name}.*wider"):
        gp.full(2, 1e300, dtype=name)
    with pytest.raises(OverflowError, match=rf"{10**39}|1e\+?39"):
        gp.zeros(0, name).fill(10**39)


def test_operators_round_a_scalar_to_infinity_as_numpy_does() -> None:
    assert (gp.ones(1, "float16") * 1e10).tolist() == [math.inf]
    assert (gp.ones(1, "float32") * 1e300).tolist() == [math.inf]
