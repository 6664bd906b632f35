"""How elements become unsigned keys whose order is the order of sorting: the constants of `pygpukit/keys.cuh`."""

from __future__ import annotations

import numpy as np

from pygpukit.dtypes import DataType
from pygpukit.ops.launch import Struct, i64

# The bits of infinity; of the largest number in float8_e4m3fn, which has none.
_LARGEST = {
    "float64": 0x7FF0000000000000,
    "float32": 0x7F800000,
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float8_e5m2": 0x7C,
    "float8_e4m3fn": 0x7E,
}


def constants(kind: DataType, *, descending: bool = False, ties: bool = False) -> tuple[int, ...]:
    """Return top, mask, negative, positive, offset, last, minus_zero, zero_step and flip for one element type.

    Parameters
    ----------
    descending : bool, optional
        Reverse the order, that of NaN included.
    ties : bool, optional
        Give elements that compare equal the same key: both zeros, and all NaN.

    Examples
    --------
    >>> from pygpukit.dtypes import int8
    >>> constants(int8)[:4]
    (128, 255, 128, 128)
    """
    bits = 8 * kind.itemsize
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    flip = mask if descending else 0
    if kind.kind != "f":
        turn = top if kind.kind == "i" else 0
        return (top, mask, turn, turn, 0, mask, 0, 0, flip)
    largest = _LARGEST[kind.name]
    offset = top - 1 - largest
    if not ties:
        return (top, mask, mask, top, offset, mask, 0, 0, flip)
    return (top, mask, mask, top, offset, top + largest + 1 - offset, top - 1 - offset, 1, flip)


def key_map(kind: DataType, *, descending: bool = False, ties: bool = False) -> Struct:
    """Return `constants` as the kernels' argument ``KeyMap``."""
    words = np.array(constants(kind, descending=descending, ties=ties), np.uint64).view(np.int64)
    return Struct(tuple(i64(word) for word in words.tolist()))


def word(kind: DataType) -> str:
    """Return the tag of the key's type: ``u64`` for 8-byte elements, else ``u32``."""
    return "u64" if kind.itemsize == 8 else "u32"
