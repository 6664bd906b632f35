"""Numbers of a call as the words that fused kernels take."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.ops.promotion import Input

# Mantissa bits, exponent bias, and whether there are infinities.
_SMALL = {"float16": (10, 15, True), "bfloat16": (7, 127, True), "float8_e4m3fn": (3, 7, False),
          "float8_e5m2": (2, 15, True)}  # fmt: skip

_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}


def kind_of(value: Any) -> Input | None:
    """Return how promotion sees a number: the kind of a Python one, the type of a NumPy scalar; None for others."""
    if type(value) in _KINDS:
        return _KINDS[type(value)]  # type: ignore[return-value]
    return dtype(value.dtype) if isinstance(value, np.generic) else None


def count(kind: DataType) -> int:
    """Return how many words an element takes."""
    return 2 if kind.itemsize > 8 else 1


def words(value: Any, kind: Input, to: DataType) -> tuple[int, ...]:
    """Return a number as an operand of an elementwise operator has it, in signed 64-bit words.

    Parameters
    ----------
    value
        A Python number, or a NumPy scalar.
    kind
        How promotion sees it.
    to
        The element type it is rounded to; a NumPy scalar has it.

    Raises
    ------
    OverflowError
        If an integer type cannot hold it.

    Examples
    --------
    >>> from pygpukit.dtypes import dtype
    >>> words(1.0, "float", dtype("float32")), words(True, "bool", dtype("int8"))
    ((1065353216,), (1,))
    """
    if not isinstance(kind, str):
        raw = np.asarray(value).tobytes()
        return tuple(int.from_bytes(raw[i : i + 8], "little", signed=len(raw) >= 8) for i in range(0, len(raw), 8))
    if kind == "int" and not -(1 << 127) <= value < 1 << 127:
        raise OverflowError(f"Python integer of {value.bit_length()} bits is too large")
    if to.kind == "b":
        return (int(bool(value)),)
    if to.kind in "iu":
        whole = int(value)
        bits, signed = 8 * to.itemsize, to.kind == "i"
        if not -(1 << bits - 1) * signed <= whole < 1 << bits - signed:
            raise OverflowError(f"Python integer {whole} is out of bounds for {to.name}")
        return (whole - (1 << 64) if whole >= 1 << 63 else whole,)
    if to.kind == "c":
        parts = complex(value)
        if to.itemsize == 8:
            low, high = _single(parts.real), _single(parts.imag)
            return _signed(low | high << 32)
        return (*_double(parts.real), *_double(parts.imag))
    real = float(value)
    if to.itemsize == 8:
        return _double(real)
    if to.itemsize == 4:
        return (_single(real),)
    rounded = np.float32(_rounded(real, *_SMALL[to.name]))
    raw = np.asarray(rounded).astype(to_numpy_dtype(to)).tobytes()
    return (int.from_bytes(raw, "little"),)


def _double(value: float) -> tuple[int, ...]:
    return struct.unpack("<q", struct.pack("<d", value))


def _single(value: float) -> int:
    # Unlike struct's, this conversion rounds to infinity.
    return ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value


def _signed(value: int) -> tuple[int, ...]:
    return (value - (1 << 64) if value >= 1 << 63 else value,)


def _rounded(x: float, mantissa: int, bias: int, infinities: bool) -> float:
    """Return the value nearest to ``x``, ties to even, that a small float type holds."""
    if x == 0.0 or not math.isfinite(x):
        return math.nan if math.isinf(x) and not infinities else x
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    # Powers of two scale exactly, and round() takes ties to even.
    unit = 2.0 ** (exponent - mantissa)
    value = math.copysign(round(abs(x) / unit) * unit, x)
    top = (2.0 - 2.0**-mantissa) * 2.0**bias if infinities else (2.0 - 2.0 * 2.0**-mantissa) * 2.0 ** (bias + 1)
    if abs(value) <= top:
        return value
    return math.copysign(math.inf, x) if infinities else math.nan
