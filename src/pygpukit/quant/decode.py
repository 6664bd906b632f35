"""What codes stand for, by NumPy: the reference of every kernel of the family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pygpukit.quant.formats import CODES, TILE, Rule
from pygpukit.quant.planes import Array, Parts, unpack

BLOCK = 1 << 20
"""Values that are decoded at a time where a whole weight is not wanted."""


def decode(rule: Rule, parts: Parts) -> Array:
    """Return the numbers of a weight in float32: each product exact or rounded once, as the kernels compute them."""
    n, k = parts.codes.shape
    code = CODES[rule.code]
    if rule.code == "e4m3":
        values: Array = parts.codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    else:
        values = parts.codes.astype(np.float32)
    group = rule.group or k
    groups = -(-k // group)

    def spread(x: Array) -> Array:
        """One number per row and group, for every column."""
        return x[:, :1] if groups == 1 else np.repeat(x, group, axis=1)[:, :k]

    if rule.kind in ("super", "superscale"):
        d = np.repeat(parts.extra.astype(np.float32), 256 // group, axis=1)  # type: ignore[union-attr]
        scales = d * parts.scales.astype(np.float32)
    elif parts.scales.ndim == 2:
        scales = np.repeat(parts.scales, TILE, axis=0)[:n, :, None].astype(np.float32)
    else:
        scales = parts.scales.astype(np.float32)
    if rule.kind == "zero":
        values -= spread(parts.extra.astype(np.float32))  # type: ignore[union-attr]
    elif rule.kind in ("scale", "superscale") and code.offset:
        values -= np.float32(code.offset)
    with np.errstate(over="ignore", under="ignore"):
        values *= spread(scales[..., 0])
        if rule.kind == "minimum":
            values += spread(scales[..., 1])
        elif rule.kind == "super":
            values -= spread(scales[..., 1])
    return values


def decode_rows(rule: Rule, parts: Parts, start: int, stop: int) -> Array:
    """Return the numbers of some rows in float32."""
    first = start // TILE * TILE
    scales = parts.scales[first // TILE : -(-stop // TILE)] if parts.scales.ndim == 2 else parts.scales[first:stop]
    extra = None if parts.extra is None else parts.extra[first:stop]
    return decode(rule, Parts(parts.codes[first:stop], scales, extra))[start - first :]


def tiles_of(planes: Mapping[str, Array], first: int, last: int) -> dict[str, Array]:
    """Return a range of tiles of planes."""
    return {name: plane[first:last] for name, plane in planes.items()}


def blocks(rule: Rule, planes: Mapping[str, Array], n: int, k: int) -> Iterator[tuple[int, int, Array]]:
    """Yield ranges of rows and their numbers in float32, about `BLOCK` numbers at a time."""
    step = max(1, BLOCK // (TILE * k))
    for tile in range(0, -(-n // TILE), step):
        first, last = tile * TILE, min(n, (tile + step) * TILE)
        yield first, last, decode(rule, unpack(rule, tiles_of(planes, tile, tile + step), last - first, k))


def dequantize(rule: Rule, planes: Mapping[str, Array], n: int, k: int, to: Any) -> Array:
    """Return a weight as a matrix of one type, every number rounded once from float32."""
    out = np.empty((n, k), to)
    with np.errstate(over="ignore"):
        for first, last, values in blocks(rule, planes, n, k):
            out[first:last] = values.astype(to, copy=False)
    return out


def rows(rule: Rule, planes: Mapping[str, Array], ids: Array, n: int, k: int, to: Any) -> Array:
    """Return some rows of a weight as numbers of one type.

    Raises
    ------
    IndexError
        If an id is none of a row.
    """
    if ids.size and not 0 <= ids.min() <= ids.max() < n:
        bad = ids[(ids < 0) | (ids >= n)].flat[0]
        raise IndexError(f"rows(): id {bad} in a weight of {n} rows")
    tiles, at = np.unique(ids.reshape(-1) // TILE, return_inverse=True)
    some = {name: plane[tiles] for name, plane in planes.items()}
    values = decode(rule, unpack(rule, some, len(tiles) * TILE, k))
    with np.errstate(over="ignore"):
        found: Array = values[at * TILE + ids.reshape(-1) % TILE].astype(to, copy=False)
    return found.reshape(*ids.shape, k)


def product(rule: Rule, planes: Mapping[str, Array], n: int, x: Array) -> Array:
    """Return ``x @ w.T`` in float32 with numbers of w rounded to the type of x, block by block."""
    m, k = x.shape
    wide = x.astype(np.float32, copy=False)
    out = np.empty((m, n), np.float32)
    with np.errstate(all="ignore"):
        for first, last, values in blocks(rule, planes, n, k):
            rounded = values.astype(x.dtype, copy=False).astype(np.float32, copy=False)
            np.matmul(wide, rounded.T, out[:, first:last])
    return out
