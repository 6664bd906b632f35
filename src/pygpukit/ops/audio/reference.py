"""The audio operators over NumPy arrays: what the CPU device runs and kernels are compared with.

Sums are made of elementwise steps in a fixed order, so that an element's bits depend on neither the batch nor the
number of frames or samples around it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["bands", "follow", "median", "overlap_add", "recurrence", "resample"]

BLOCK = 64
"""Samples per block of a recursive filter."""

_CHUNK = 1 << 18
"""Elements of a temporary array: few enough to stay in cache."""


def overlap_add(x: Any, window: Any, *, hop: int, start: int = 0, end: int = 0) -> Any:
    """Overlap-add of ``(..., frames, n)``, divided by the sum of the squared window."""
    *batch, frames, n = x.shape
    total = (frames - 1) * hop + n if frames else 0
    parts = -(-n // hop)
    sums = np.zeros((*batch, frames + parts, hop), x.dtype)
    squares = np.zeros((frames + parts, hop), x.dtype)
    # The last part of a frame goes to the latest samples: with it first, frames are added in ascending order.
    for j in range(parts - 1, -1, -1):
        width = min(hop, n - j * hop)
        w = window[j * hop : j * hop + width]
        sums[..., j : j + frames, :width] += x[..., j * hop : j * hop + width] * w
        squares[j : j + frames, :width] += w * w
    y = sums.reshape(*batch, -1)[..., start : max(start, total - end)]
    over = squares.reshape(-1)[start : max(start, total - end)]
    return np.divide(y, over, out=y, where=over > np.finfo(x.dtype).tiny)


def _powers(x: Any, power: int) -> Any:
    """Return ``|x|**power``."""
    if power == 0:
        return x
    if power == 1:
        return np.abs(x)
    if x.dtype.kind != "c":
        return np.square(x)
    out = np.square(x.real)
    out += np.square(x.imag)
    return out


def bands(x: Any, weights: Any, places: Any, *, power: int = 0) -> Any:
    """Sums of ``|x|**power`` over bands of the last axis."""
    starts, offsets, counts = places
    used = counts > 0
    # Of all bands in a row: the bins, their weights, and where each band begins.
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    bins = np.repeat(starts, counts) + inside
    factors = weights[np.repeat(offsets, counts) + inside]
    begins = (np.cumsum(counts) - counts)[used]
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros((rows.shape[0], places.shape[1]), weights.dtype)
    step = max(1, _CHUNK // max(1, bins.size))
    for first in range(0, rows.shape[0] if begins.size else 0, step):
        terms = np.take(_powers(rows[first : first + step], power), bins, axis=1)
        terms *= factors
        out[first : first + step, used] = np.add.reduceat(terms, begins, axis=1)
    return out.reshape(*x.shape[:-1], places.shape[1])


def resample(x: Any, filters: Any, *, up: int, down: int, center: int, length: int) -> Any:
    """Resample ``(..., n)`` by ``up / down`` with filters in phases."""
    taps, n = filters.shape[1], x.shape[-1]
    last = ((length - 1) * down + center) // up if length else 0
    padded = np.zeros((*x.shape[:-1], last + taps), x.dtype)
    kept = min(n, last + 1)
    padded[..., taps - 1 : taps - 1 + kept] = x[..., :kept]
    out = np.zeros((*x.shape[:-1], length), x.dtype)
    if length < 64 * up:
        # Few outputs have the same phase: each looks up its own tap.
        inputs, phases = np.divmod(np.arange(length) * down + center, up)
        for k in range(taps):
            out += np.take(padded, inputs + (taps - 1 - k), axis=-1) * filters[phases, k]
        return out
    # Inputs that lie `down` apart meet outputs of one phase: each residue is an array of its own.
    residues = [np.ascontiguousarray(padded[..., r::down]) for r in range(min(down, padded.shape[-1]))]
    step = max(1, _CHUNK // 8 // max(1, x.size // max(1, n)))
    for first in range(up):
        at, phase = divmod(first * down + center, up)
        # Outputs first, first + up, ... have one phase, and inputs `at`, at + down, ...
        count = len(range(first, length, up))
        for j in range(0, count, step):
            width = min(step, count - j)
            sums = np.zeros((*x.shape[:-1], width), x.dtype)
            part = np.empty_like(sums)
            for k in range(taps):
                q, r = divmod(taps - 1 + at - k, down)
                np.multiply(residues[r][..., q + j : q + j + width], filters[phase, k], out=part)
                np.add(sums, part, out=sums)
            out[..., first + j * up : first + (j + width - 1) * up + 1 : up] = sums
    return out


def median(x: Any, *, size: int, axis: int = -1) -> Any:
    """Sliding median with mirrored ends."""
    moved = np.moveaxis(x, axis, -1)
    half = size // 2
    width = [(0, 0)] * (x.ndim - 1) + [(half, size - 1 - half)]
    padded = np.pad(moved, width, "symmetric")
    n = moved.shape[-1]
    rows, found = padded.reshape(-1, padded.shape[-1]), np.empty((moved.size // max(1, n), n), x.dtype)
    step = max(1, 4 * _CHUNK // max(1, n * size))
    for first in range(0, rows.shape[0], step):
        windows = np.lib.stride_tricks.sliding_window_view(rows[first : first + step], size, axis=-1)
        found[first : first + step] = np.partition(windows, half, axis=-1)[..., half]
    return np.moveaxis(found.reshape(moved.shape), -1, axis)


def _cascade(x: Any, sections: Any, order: int) -> tuple[Any, Any]:
    """Run sections over the last axis from zeros; ``x`` (..., n) is replaced by the result."""
    state = np.zeros((len(sections), order + 1, *x.shape[:-1]))
    for k in range(x.shape[-1]):
        v = x[..., k]
        for c, s in zip(sections, state, strict=True):
            u = c[0] * v + s[0]
            for j in range(order):
                s[j] = c[1 + j] * v - c[1 + order + j] * u + s[j + 1]
            v = u
        x[..., k] = v
    return x, np.moveaxis(state[:, :order].reshape(-1, *x.shape[:-1]), 0, -1)


def _advanced(matrix: Any, state: Any) -> Any:
    total = matrix[:, 0] * state[..., 0, None]
    for j in range(1, matrix.shape[1]):
        total = total + matrix[:, j] * state[..., j, None]
    return total


def recurrence(x: Any, sections: Any, powers: Any, response: Any, initial: Any) -> tuple[Any, Any, Any]:
    """Run a cascade over ``(rows, n)``; returns the result, the state at the end and after the last whole block."""
    rows, n = x.shape
    order, blocks, whole = sections.shape[1] // 2, -(-n // BLOCK), n // BLOCK
    padded = np.zeros((rows, blocks * BLOCK))
    padded[:, :n] = x
    y, added = _cascade(padded.reshape(rows, blocks, BLOCK), sections, order)
    if n % BLOCK:
        rest, kept = _cascade(x[:, whole * BLOCK :].astype(np.float64), sections, order)
        y[:, whole, : n % BLOCK], added[:, whole] = rest, kept
    state = initial.astype(np.float64)
    states = np.empty((rows, blocks, initial.shape[1]))
    for b in range(whole):
        states[:, b] = state
        state = _advanced(powers[BLOCK], state) + added[:, b]
    bound = state
    if n % BLOCK:
        states[:, whole] = state
        state = _advanced(powers[n % BLOCK], state) + added[:, whole]
    extra = response[:, 0] * states[..., 0, None]
    for j in range(1, initial.shape[1]):
        extra += response[:, j] * states[..., j, None]
    y += extra
    return y.reshape(rows, -1)[:, :n].astype(x.dtype), state, bound


def follow(x: Any, initial: Any, rise: float, fall: float) -> tuple[Any, Any]:
    """Follow ``(rows, n)`` with one factor upwards and another downwards; returns the levels and the last of them."""
    up, down = 1.0 - float(rise), 1.0 - float(fall)
    out, ends = np.empty_like(x), np.empty(x.shape[0])
    for r in range(x.shape[0]):
        s, levels = float(initial[r]), []
        for v in x[r].tolist():
            s += (up if v > s else down) * (v - s)
            levels.append(s)
        out[r], ends[r] = levels, s
    return out, ends
