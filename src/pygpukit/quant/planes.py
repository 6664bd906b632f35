"""Planes: the order in which a quantised weight lies in memory, made for the tensor cores, and the way back.

Rows are cut into tiles of 16 and chunks of 64 values; ``kernels/quant/decode.cuh`` draws the order. Packing is a
permutation of bits with padding, so `unpack` gives back what `pack` was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pygpukit.dtypes import to_numpy_dtype
from pygpukit.quant.formats import CHUNK, CODES, SUPER, TILE, Rule

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Parts(NamedTuple):
    """A quantised weight of n rows and k columns, in the order of a matrix.

    Attributes
    ----------
    codes
        Codes as they are stored, uint8 of shape (n, k): 0 .. 15 for four bits, int8 with 128 added.
    scales
        (n, groups, fields); (tiles, groups) where the 16 rows of a tile share theirs; one group for a whole row.
    extra
        Zero points, uint8 of shape (n, groups); d (and dmin) of super-blocks, float16 of shape (n, k / 256, fields).
    """

    codes: Array
    scales: Array
    extra: Array | None = None


def _rows(x: Array, multiple: int = TILE) -> Array:
    """Pad the first axis with zeros to a multiple."""
    missing = -len(x) % multiple
    return np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]) if missing else x


def _columns(x: Array, multiple: int) -> Array:
    """Pad the second axis with zeros to a multiple."""
    missing = -x.shape[1] % multiple
    return np.concatenate([x, np.zeros((len(x), missing, *x.shape[2:]), x.dtype)], axis=1) if missing else x


def pack(rule: Rule, parts: Parts) -> dict[str, Array]:
    """Return the planes of a weight: ``codes``, ``scales`` and, where the rule has them, ``high`` and ``extra``."""
    code = CODES[rule.code]
    codes = _columns(_rows(parts.codes), CHUNK)
    if rule.group == 0 and rule.kind in ("scale", "zero") and codes.shape[1] > parts.codes.shape[1]:
        # What a scale makes of the padding is zero, not a number that may overflow.
        zero = code.offset if rule.kind == "scale" or parts.extra is None else _rows(parts.extra)
        codes[:, parts.codes.shape[1] :] = zero
    tiles, chunks = len(codes) // TILE, codes.shape[1] // CHUNK
    # Axes: tile, h, g, chunk, s, half, t, e.
    fields = codes.reshape(tiles, 2, 8, chunks, 4, 2, 4, 2)
    planes: dict[str, Array] = {}
    if code.low == 8:
        split = fields.reshape(tiles, 2, 8, chunks, 2, 2, 2, 4, 2)
        order = split.transpose(0, 3, 4, 2, 7, 5, 6, 8, 1)
        planes["codes"] = np.ascontiguousarray(order).reshape(tiles, chunks, 1024)
    else:
        low = fields & 15
        order = (low[:, 0] | low[:, 1] << 4).transpose(0, 2, 1, 5, 3, 6, 4)
        planes["codes"] = np.ascontiguousarray(order).reshape(tiles, chunks, 512)
    if code.high:
        planes["high"] = _pack_high(fields >> 4, code.high)
    if parts.scales.ndim == 2:
        planes["scales"] = np.ascontiguousarray(parts.scales)
    else:
        planes["scales"] = _pack_groups(rule, parts.scales)
    if parts.extra is not None:
        if rule.kind == "zero":
            planes["extra"] = _pack_groups(rule, parts.extra[..., None])
        else:
            blocks = _rows(parts.extra).reshape(tiles, 2, 8, *parts.extra.shape[1:])
            planes["extra"] = np.ascontiguousarray(blocks.transpose(0, 3, 2, 1, 4))
    return planes


def _pack_groups(rule: Rule, values: Array) -> Array:
    rows = _columns(_rows(values), rule.subs)
    tiles = len(rows) // TILE
    # tile, h, g, record, sub, field -> tile, record, g, sub, h, field
    order = rows.reshape(tiles, 2, 8, -1, rule.subs, rows.shape[2]).transpose(0, 3, 2, 4, 1, 5)
    return np.ascontiguousarray(order)


def _unpack_groups(rule: Rule, plane: Array, groups: int) -> Array:
    tiles, fields = len(plane), plane.shape[-1]
    rows = plane.transpose(0, 4, 2, 1, 3, 5).reshape(tiles * TILE, -1, fields)
    return rows[:, :groups]


def _pack_high(bits: Array, count: int) -> Array:
    tiles, chunks = len(bits), bits.shape[3]
    words = np.zeros((tiles, 8, chunks, 4, count), np.uint32)
    for (h, s, half, e), word, shift in _high_places(count):
        words[..., word] |= bits[:, h, :, :, s, half, :, e].astype(np.uint32) << np.uint32(shift)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 3, 4)).view(np.uint8).reshape(tiles, chunks, 128 * count)


def _high_places(count: int) -> list[tuple[tuple[int, int, int, int], int, int]]:
    """Place of each of a lane's 32 codes of a chunk: its axes, its word, and the first of its bits."""
    found = []
    for h, s, half, e in np.ndindex(2, 4, 2, 2):
        p = 2 * half + h
        word, bit = (0, 4 * s + p) if count == 1 else (s // 2, 8 * (s % 2) + 2 * p)
        found.append(((h, s, half, e), word, bit + 16 * e))
    return found


def unpack(rule: Rule, planes: Mapping[str, Array], n: int, k: int) -> Parts:
    """Return the parts of the rows that planes hold; planes may be a range of tiles."""
    code = CODES[rule.code]
    plane = planes["codes"]
    tiles, chunks = plane.shape[:2]
    codes = np.empty((tiles, 2, 8, chunks, 4, 2, 4, 2), np.uint8)
    if code.low == 8:
        split = plane.reshape(tiles, chunks, 2, 8, 4, 2, 2, 2, 2).transpose(0, 8, 3, 1, 2, 5, 6, 4, 7)
        codes.reshape(tiles, 2, 8, chunks, 2, 2, 2, 4, 2)[...] = split
    else:
        nibbles = plane.reshape(tiles, chunks, 8, 4, 4, 2, 2).transpose(0, 2, 1, 4, 6, 3, 5)
        np.bitwise_and(nibbles, 15, out=codes[:, 0])
        np.right_shift(nibbles, 4, out=codes[:, 1])
    if code.high:
        words = planes["high"].view(np.uint32).reshape(tiles, chunks, 8, 4, code.high).transpose(0, 2, 1, 3, 4)
        for (h, s, half, e), word, shift in _high_places(code.high):
            bits = words[..., word] >> np.uint32(shift) & np.uint32((1 << code.high) - 1)
            codes[:, h, :, :, s, half, :, e] |= bits.astype(np.uint8) << 4
    matrix = codes.reshape(tiles * TILE, chunks * CHUNK)[:n, :k]
    scales = planes["scales"]
    groups = 1 if rule.group == 0 else -(-k // rule.group)
    if scales.ndim > 2:
        scales = _unpack_groups(rule, scales, groups)[:n]
    extra = planes.get("extra")
    if extra is not None:
        if rule.kind == "zero":
            extra = _unpack_groups(rule, extra, groups)[:n, :, 0]
        else:
            extra = extra.transpose(0, 3, 2, 1, 4).reshape(tiles * TILE, -1, extra.shape[-1])[:n]
    return Parts(matrix, scales, extra)


def shapes(rule: Rule, n: int, k: int, owners: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return shape and NumPy type of every plane of a weight; ``owners`` is 1 where a tile shares its scales."""
    code = CODES[rule.code]
    tiles, chunks = -(-n // TILE), -(-k // CHUNK)
    records = rule.records(k)
    byte = np.dtype(np.uint8)
    scale = (tiles, records) if owners == 1 else (tiles, records, 8, rule.subs, 2, rule.fields)
    found: dict[str, tuple[tuple[int, ...], Any]] = {
        "codes": ((tiles, chunks, 128 * code.low), byte),
        "scales": (scale, to_numpy_dtype(rule.scale_type)),
    }
    if code.high:
        found["high"] = ((tiles, chunks, 128 * code.high), byte)
    if rule.kind == "zero":
        found["extra"] = ((tiles, records, 8, rule.subs, 2, 1), byte)
    elif rule.kind in ("super", "superscale"):
        found["extra"] = ((tiles, k // SUPER, 8, 2, rule.fields), np.dtype(np.float16))
    return found
