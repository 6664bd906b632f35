"""Element types of GGUF files, and what their blocks of quantised numbers mean.

A block holds 32 or 256 elements of a row: its scale, sometimes an offset, and a few bits per element. `TYPES` says how
long a block is, and `decode` gives its elements in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

__all__ = ["TYPES", "BlockType", "decode"]

# Of NumPy.
Array = Any


class BlockType(NamedTuple):
    """An element type: elements and bytes of one block, and for plain types NumPy's type."""

    name: str
    elements: int
    bytes: int
    dtype: Any = None


# By their numbers in a file.
TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, np.dtype("<f4")),
    1: BlockType("F16", 1, 2, np.dtype("<f2")),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    20: BlockType("IQ4_NL", 32, 18),
    24: BlockType("I8", 1, 1, np.dtype("i1")),
    25: BlockType("I16", 1, 2, np.dtype("<i2")),
    26: BlockType("I32", 1, 4, np.dtype("<i4")),
    27: BlockType("I64", 1, 8, np.dtype("<i8")),
    28: BlockType("F64", 1, 8, np.dtype("<f8")),
    30: BlockType("BF16", 1, 2, np.dtype(ml_dtypes.bfloat16)),
    39: BlockType("MXFP4", 32, 17),
}

_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def decode(kind: BlockType, data: Array) -> Array:
    """Return the elements of whole blocks, one after another, in float32.

    Parameters
    ----------
    kind : BlockType
    data : numpy.ndarray
        Bytes, in one dimension.

    Examples
    --------
    >>> block = np.zeros(34, np.uint8)
    >>> block[:2] = np.array([0.5], "<f2").view(np.uint8)
    >>> block[2:4] = 7, 255
    >>> decode(TYPES[8], block)[:3].tolist()
    [3.5, -0.5, 0.0]
    """
    if kind.dtype is not None:
        return data.view(kind.dtype).astype(np.float32)
    blocks = data.reshape(-1, kind.bytes)
    return _DECODERS[kind.name](blocks).reshape(-1)


def _half(blocks: Array, at: int) -> Array:
    """The float16 at a place of every block, as a column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(codes: Array) -> Array:
    """Low halves of the bytes, then high halves."""
    return np.concatenate((codes & 15, codes >> 4), axis=-1)


def _fifth_bits(blocks: Array, at: int) -> Array:
    """Bits of the 32-bit word at a place of every block, as bits 4 of the elements."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _q4_0(b: Array) -> Array:
    return _half(b, 0) * (_nibbles(b[:, 2:]).astype(np.float32) - 8)


def _q4_1(b: Array) -> Array:
    return _half(b, 0) * _nibbles(b[:, 4:]).astype(np.float32) + _half(b, 2)


def _q5_0(b: Array) -> Array:
    return _half(b, 0) * ((_nibbles(b[:, 6:]) | _fifth_bits(b, 2)).astype(np.float32) - 16)


def _q5_1(b: Array) -> Array:
    return _half(b, 0) * (_nibbles(b[:, 8:]) | _fifth_bits(b, 4)).astype(np.float32) + _half(b, 2)


def _q8_0(b: Array) -> Array:
    return _half(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(b: Array) -> Array:
    scales, d, low = b[:, :16], _half(b, 80), _half(b, 82)
    factor = (d * (scales & 15))[:, :, None]
    offset = (low * (scales >> 4))[:, :, None]
    codes = b[:, 16:80].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return factor * (codes & 3).reshape(-1, 16, 16).astype(np.float32) - offset


def _q3_k(b: Array) -> Array:
    high, packed, d = b[:, :32], b[:, 96:108], _half(b, 108)
    # Sixteen scales of six bits: the low four in eight bytes, the high two in four.
    low = _nibbles(packed[:, :8])
    top = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3
    scales = (low | (top.reshape(-1, 16) << 4)).astype(np.int8) - 32
    codes = (b[:, 32:96].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
    bits = (high.reshape(-1, 1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)) & 1
    values = codes.astype(np.int8) - ((bits ^ 1) << 2).astype(np.int8)
    return (d * scales.astype(np.float32))[:, :, None] * values.reshape(-1, 16, 16).astype(np.float32)


def _k_scales(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight offsets of six bits out of twelve bytes."""
    d, m, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((d & 63, (both & 15) | ((d >> 2) & 48)), axis=1)
    offsets = np.concatenate((m & 63, (both >> 4) | ((m >> 2) & 48)), axis=1)
    return scales, offsets


def _q4_k(b: Array) -> Array:
    scales, offsets = _k_scales(b[:, 4:16])
    codes = _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (_half(b, 0) * scales)[:, :, None] * codes.astype(np.float32) - (_half(b, 2) * offsets)[:, :, None]


def _q5_k(b: Array) -> Array:
    scales, offsets = _k_scales(b[:, 4:16])
    fifth = (b[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    codes = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | (fifth << 4)
    return (_half(b, 0) * scales)[:, :, None] * codes.astype(np.float32) - (_half(b, 2) * offsets)[:, :, None]


def _q6_k(b: Array) -> Array:
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    top = (b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    values = (low | (top << 4)).astype(np.int8) - 32
    factor = _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32)
    return factor[:, :, None] * values.reshape(-1, 16, 16).astype(np.float32)


def _iq4_nl(b: Array) -> Array:
    return _half(b, 0) * _IQ4_NL[_nibbles(b[:, 2:])]


def _mxfp4(b: Array) -> Array:
    # The scale is a power of two by its exponent; the table holds twice the values, so that they are whole.
    return np.ldexp(np.float32(0.5), b[:, :1].astype(np.int32) - 127) * _E2M1[_nibbles(b[:, 1:])]


_DECODERS: dict[str, Callable[[Array], Array]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "MXFP4": _mxfp4,
}  # fmt: skip
