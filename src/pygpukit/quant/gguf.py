"""Blocks of GGUF files: from their bytes to the parts of a weight, and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pygpukit.quant.formats import Format
from pygpukit.quant.planes import Array, Parts


def read_blocks(form: Format, data: Array) -> Parts:
    """Return the parts of rows of blocks, uint8 of shape (n, blocks, bytes)."""
    return _READ[form.name](data)


def write_blocks(form: Format, parts: Parts) -> Array:
    """Return the blocks that parts were read from, uint8 of shape (n, blocks * bytes)."""
    blocks = _WRITE[form.name](parts)
    return blocks.reshape(len(blocks), -1)


def _halves(data: Array) -> Array:
    return np.ascontiguousarray(data).view(np.float16)


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


def _low_high(qs: Array) -> Array:
    """Byte j holds value j and value j + half of them."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _joined(codes: Array) -> Array:
    low, high = np.split(codes & 15, 2, axis=-1)
    joined: Array = low | high << 4
    return joined


def _flat(codes: Array) -> Array:
    return codes.reshape(len(codes), -1)


def _read_32(heads: int, high: bool) -> Callable[[Array], Parts]:
    def read(data: Array) -> Parts:
        at = 2 * heads
        bits = None
        if high:
            bits = np.unpackbits(data[..., at : at + 4], axis=-1, bitorder="little")
            at += 4
        codes = _low_high(data[..., at:])
        return Parts(_flat(codes if bits is None else codes | bits << 4), _halves(data[..., : 2 * heads]))

    return read


def _write_32(heads: int, high: bool) -> Callable[[Parts], Array]:
    def write(parts: Parts) -> Array:
        codes = parts.codes.reshape(len(parts.codes), -1, 32)
        pieces = [_bytes(parts.scales)]
        if high:
            pieces.append(np.packbits(codes >> 4, axis=-1, bitorder="little"))
        return np.concatenate([*pieces, _joined(codes)], axis=-1)

    return write


def _read_q8_0(data: Array) -> Parts:
    return Parts(_flat(data[..., 2:] ^ 0x80), _halves(data[..., :2]))


def _write_q8_0(parts: Parts) -> Array:
    codes = parts.codes.reshape(len(parts.codes), -1, 32)
    return np.concatenate([_bytes(parts.scales), codes ^ 0x80], axis=-1)


def _six_bits(s: Array) -> Array:
    """The eight scales and eight minima of six bits that twelve bytes hold, as (..., 8, 2)."""
    low, mid, top = s[..., :4], s[..., 4:8], s[..., 8:]
    scales = np.concatenate([low & 63, (top & 15) | (low >> 6) << 4], axis=-1)
    minima = np.concatenate([mid & 63, top >> 4 | (mid >> 6) << 4], axis=-1)
    return np.stack([scales, minima], axis=-1)


def _twelve_bytes(pairs: Array) -> Array:
    scales, minima = pairs[..., 0], pairs[..., 1]
    low = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    mid = minima[..., :4] | (minima[..., 4:] >> 4) << 6
    return np.concatenate([low, mid, (scales[..., 4:] & 15) | (minima[..., 4:] & 15) << 4], axis=-1)


def _groups_of_64(qs: Array) -> Array:
    """32 bytes hold 64 values: the low halves, then the high ones."""
    return _low_high(qs.reshape(*qs.shape[:2], 4, 32)).reshape(*qs.shape[:2], 256)


def _read_k(high: bool) -> Callable[[Array], Parts]:
    def read(data: Array) -> Parts:
        n, blocks, _ = data.shape
        codes = _groups_of_64(data[..., 48 if high else 16 :])
        if high:
            # Bit j of byte l is the fifth bit of value l of group j.
            bits = np.unpackbits(data[..., 16:48, None], axis=-1, bitorder="little")
            codes = codes | bits.swapaxes(-1, -2).reshape(n, blocks, 256) << 4
        scales = _six_bits(data[..., 4:16]).reshape(n, blocks * 8, 2)
        return Parts(_flat(codes), scales, _halves(data[..., :4]))

    return read


def _write_k(high: bool) -> Callable[[Parts], Array]:
    def write(parts: Parts) -> Array:
        n, k = parts.codes.shape
        assert parts.extra is not None
        codes = parts.codes.reshape(n, k // 256, 256)
        pieces = [_bytes(parts.extra), _twelve_bytes(parts.scales.reshape(n, k // 256, 8, 2))]
        if high:
            bits = (codes >> 4).reshape(n, k // 256, 8, 32).swapaxes(-1, -2)
            pieces.append(np.packbits(bits, axis=-1, bitorder="little")[..., 0])
        pieces.append(_joined(codes.reshape(n, k // 256, 4, 64)).reshape(n, k // 256, 128))
        return np.concatenate(pieces, axis=-1)

    return write


def _read_q6_k(data: Array) -> Parts:
    n, blocks, _ = data.shape
    low = _low_high(data[..., :128].reshape(n, blocks, 2, 64))
    bits = data[..., 128:192].reshape(n, blocks, 2, 1, 32)
    high = bits >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = low | high.reshape(n, blocks, 2, 128) << 4
    scales = data[..., 192:208].view(np.int8).reshape(n, blocks * 16, 1)
    return Parts(_flat(codes), scales, _halves(data[..., 208:]))


def _write_q6_k(parts: Parts) -> Array:
    n, k = parts.codes.shape
    assert parts.extra is not None
    codes = parts.codes.reshape(n, k // 256, 2, 128)
    high = (codes >> 4).reshape(n, k // 256, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = np.bitwise_or.reduce(high, axis=3)
    low = _joined(codes)
    pieces = [low.reshape(n, -1, 128), packed.reshape(n, -1, 64), _bytes(parts.scales).reshape(n, -1, 16)]
    return np.concatenate([*pieces, _bytes(parts.extra)], axis=-1)


_READ: dict[str, Callable[[Array], Parts]] = {
    "q4_0": _read_32(1, False),
    "q4_1": _read_32(2, False),
    "q5_0": _read_32(1, True),
    "q5_1": _read_32(2, True),
    "q8_0": _read_q8_0,
    "q4_k": _read_k(False),
    "q5_k": _read_k(True),
    "q6_k": _read_q6_k,
}
_WRITE: dict[str, Callable[[Parts], Array]] = {
    "q4_0": _write_32(1, False),
    "q4_1": _write_32(2, False),
    "q5_0": _write_32(1, True),
    "q5_1": _write_32(2, True),
    "q8_0": _write_q8_0,
    "q4_k": _write_k(False),
    "q5_k": _write_k(True),
    "q6_k": _write_q6_k,
}
