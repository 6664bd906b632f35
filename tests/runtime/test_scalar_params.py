"""Numbers for scalar parameters of kernels: every type takes what it can hold and refuses everything else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

INTEGERS = {f"{sign}{bits}": (sign == "i", bits) for bits in (8, 16, 32, 64) for sign in "iu"}
# Bytes, the largest finite value, and the smallest one that rounds beyond it.
FLOATS = {
    "f16": (2, 65504.0, 65520.0),
    "bf16": (2, 255 * 2.0**120, 511 * 2.0**119),
    "f32": (4, float(np.finfo(np.float32).max), (2 - 2**-24) * 2.0**127),
    "e4m3": (1, 448.0, math.nextafter(464.0, math.inf)),
    "e5m2": (1, 57344.0, 61440.0),
}
COMPLEX = {"c64": 8, "c128": 16}


def call(code: str, size: int, value: Any) -> bytes:
    """The bytes that arrive in a kernel with one parameter of a type."""
    copies = "".join(f"ld.param.u8 %r1, [v+{i}]; st.global.u8 [%rd1+{i}], %r1;\n" for i in range(size))
    ptx = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry take(.param .u64 out, .param .align {min(size, 8)} .b8 v[{size}]) {{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    {copies}ret;
}}"""
    out = gp.zeros(16, dtype="uint8")
    native.load_kernel(ptx.encode(), "take", "take", [("out", "*u8"), ("value", code)])(out, value, grid=1, block=1)
    return bytes(out.to_numpy()[:size])


def refused(code: str, size: int, value: Any) -> None:
    with pytest.raises(gp.KernelLaunchError, match=r"parameter 'value' is .*, which cannot hold "):
        call(code, size, value)


@pytest.mark.parametrize("code", INTEGERS)
def test_integers(code: str) -> None:
    signed, bits = INTEGERS[code]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    for value in (low, high, 0, 1, True):
        assert int.from_bytes(call(code, bits // 8, value), "little", signed=signed) == value
    assert int.from_bytes(call(code, bits // 8, float(2 ** (bits - 2))), "little") == 2 ** (bits - 2)
    assert int.from_bytes(call(code, bits // 8, np.int8(7)), "little") == 7
    beyond = (low - 1, high + 1, 2**127, -(2**127), 2**128, 10**400, 10**5000)
    for value in (*beyond, float(high + 1), 1e300, -1e300, 0.5, math.inf, -math.inf, math.nan, 1j, np.float64(1e40)):
        refused(code, bits // 8, value)


def test_bool() -> None:
    for value in (True, False, 1, 0, 1.0, np.True_):
        assert call("b1", 1, value) == bytes([bool(value)])
    for value in (2, -1, 256, 0.5, 2.0, math.nan, math.inf, 1j, 10**400):
        refused("b1", 1, value)


@pytest.mark.parametrize("code", FLOATS)
def test_floats(code: str) -> None:
    size, largest, beyond = FLOATS[code]
    just_below = math.nextafter(beyond, 0)
    assert call(code, size, just_below) == call(code, size, largest) == call(code, size, np.float64(largest))
    assert call(code, size, -just_below) == call(code, size, -largest)
    for value in (beyond, -beyond, 1e300, -1e300, np.float64(1e300), 2**1000, -(2**1000), 10**400, 1j):
        refused(code, size, value)
    nan = call(code, size, math.nan)
    assert nan != call(code, size, 0.0)
    if code == "e4m3":
        # The format has no infinity.
        refused(code, size, math.inf)
    else:
        assert call(code, size, math.inf) not in (nan, call(code, size, largest))
        assert call(code, size, -math.inf) == call(code, size, np.float64(-math.inf))
    assert call(code, size, 0.25) == call(code, size, np.float32(0.25))


def test_double() -> None:
    for value in (1e300, math.inf, -math.inf, 5e-324, 0.1, 2**60, 2**200, 10**300):
        assert call("f64", 8, value) == np.float64(value).tobytes()
    assert math.isnan(np.frombuffer(call("f64", 8, math.nan))[0])
    for value in (10**400, -(10**400), 10**5000, 1j):
        refused("f64", 8, value)


@pytest.mark.parametrize("code", COMPLEX)
def test_complex(code: str) -> None:
    kind = np.complex64 if code == "c64" else np.complex128
    for value in (1, 2.5, 1 - 2j, complex(math.inf, 1), complex(0, -math.inf)):
        assert call(code, COMPLEX[code], value) == kind(value).tobytes()
    for value in (1e300, complex(1, 1e300), complex(-1e300, 0), 2**1000):
        if code == "c64":
            refused(code, 8, value)
        else:
            assert call(code, 16, value) == kind(value).tobytes()
    refused(code, COMPLEX[code], 10**400)


def test_a_value_below_the_smallest_is_rounded_to_zero() -> None:
    assert call("f32", 4, 1e-300) == bytes(4)
