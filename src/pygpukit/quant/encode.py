"""From numbers to codes: how `quantize` chooses scales, by NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from pygpukit.dtypes import to_numpy_dtype
from pygpukit.quant.formats import TILE, Rule
from pygpukit.quant.planes import Array, Parts

E4M3_MAX = 448.0


def encode(rule: Rule, w: Array, shared: str) -> Parts:
    """Return the parts of a weight of shape (n, k), k a multiple of the rule's group.

    Parameters
    ----------
    shared
        ``"tensor"`` for one scale, ``"block"`` for one per 128 rows and group; ``"row"`` for one per row and group.
    """
    n, k = w.shape
    group = rule.group or k
    wide = w.astype(np.float32)
    if rule.code == "e4m3":
        return _encode_e4m3(rule, wide, shared)
    grouped = wide.reshape(n, k // group, group)
    if rule.kind in ("zero", "minimum"):
        return _encode_range(rule, grouped)
    if rule.code == "i8":
        scales = _rounded(np.abs(grouped).max(axis=2) / np.float32(127), rule)
        codes = np.clip(np.rint(grouped * _inverse(scales)), -127, 127) + 128
    else:
        # The number farthest from 0 gets the code that has no counterpart: -8 of -8 .. 7.
        half = 8 if rule.code == "i4" else 16
        at = np.abs(grouped).argmax(axis=2)[..., None]
        farthest = np.take_along_axis(grouped, at, axis=2)[..., 0]
        scales = _rounded(farthest / np.float32(-half), rule)
        codes = np.clip(np.rint(grouped * _inverse(scales)), -half, half - 1) + half
    return Parts(codes.reshape(n, k).astype(np.uint8), scales[..., None])


def _encode_range(rule: Rule, grouped: Array) -> Parts:
    n, _, _ = grouped.shape
    top = 31 if rule.code == "i5" else 15
    low, high = grouped.min(axis=2), grouped.max(axis=2)
    if rule.kind == "minimum":
        scales, minimum = _rounded((high - low) / np.float32(top), rule), _rounded(low, rule)
        codes = np.clip(np.rint((grouped - minimum.astype(np.float32)[..., None]) * _inverse(scales)), 0, top)
        pair = np.stack([scales, minimum], axis=2)
        return Parts(codes.reshape(n, -1).astype(np.uint8), pair)
    # The range has 0 in it, so that 0 stays exactly 0.
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = _rounded((high - low) / np.float32(top), rule)
    zeros = np.clip(np.rint(-low * _inverse(scales)[..., 0]), 0, top)
    codes = np.clip(np.rint(grouped * _inverse(scales)) + zeros[..., None], 0, top)
    return Parts(codes.reshape(n, -1).astype(np.uint8), scales[..., None], zeros.astype(np.uint8))


def _encode_e4m3(rule: Rule, w: Array, shared: str) -> Parts:
    n, k = w.shape
    group = rule.group or k
    starts = range(0, k, group)
    largest = np.stack([np.abs(w[:, i : i + group]).max(axis=1) for i in starts], axis=1)
    if shared == "tensor":
        largest = np.full_like(largest, largest.max())
    elif shared == "block":
        largest = np.concatenate(
            [np.broadcast_to(rows.max(axis=0), rows.shape) for rows in np.split(largest, range(128, n, 128))]
        )
    scales = largest / np.float32(E4M3_MAX)
    spread = np.repeat(_inverse(scales)[..., 0], group, axis=1)[:, :k]
    codes = np.clip(w * spread, -E4M3_MAX, E4M3_MAX).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return Parts(codes, scales[::TILE] if shared != "row" else scales[..., None])


def _rounded(scales: Array, rule: Rule) -> Array:
    with np.errstate(over="ignore"):
        return scales.astype(to_numpy_dtype(rule.scale_type))


def _inverse(scales: Array) -> Array:
    """What numbers are multiplied with to be codes; 0 for a group of zeros or of numbers next to it."""
    wide = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    return np.where(np.isfinite(inverse), inverse, 0)[..., None]
