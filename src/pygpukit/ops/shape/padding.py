"""Padding: elements around an array, by rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty, zeros
from pygpukit.dtypes import dtype as dtype_of
from pygpukit.dtypes import to_numpy_dtype
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import assign, need
from pygpukit.ops.shape.moves import window
from pygpukit.ops.shape.ranges import linspace
from pygpukit.ops.sort.quantiles import median

_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": FUNCTIONS["max"],
    "minimum": FUNCTIONS["min"],
    "mean": FUNCTIONS["mean"],
    "median": median,
}

_KEYWORDS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",),
    "edge": (),
    "empty": (),
    "linear_ramp": ("end_values",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
    "wrap": (),
} | dict.fromkeys(_STATISTICS, ("stat_length",))

Pairs = list[tuple[int, int]]


def _pairs(values: Any, axes: int, what: str) -> list[tuple[Any, Any]]:
    """Return a value before and one after each axis: of a number, a pair, or a pair per axis."""
    try:
        found = np.broadcast_to(np.asarray(values), (axes, 2))
    except ValueError:
        raise ValueError(f"pad(): {what}={values!r} cannot be broadcast to {axes} axes with two sides each") from None
    return [(low, high) for low, high in found.tolist()]


def _widths(pad_width: Any, ndim: int) -> Pairs:
    if isinstance(pad_width, dict):
        found = [(0, 0)] * ndim
        for axis, value in pad_width.items():
            found[operator.index(axis)] = _pairs(value, 1, "pad_width")[0]
    else:
        array = np.asarray(pad_width)
        if array.dtype.kind not in "iu":
            raise TypeError("pad(): `pad_width` must be of integral type, not " + str(array.dtype))
        found = _pairs(array, ndim, "pad_width")
    if any(n < 0 for pair in found for n in pair):
        raise ValueError(f"pad(): index can't contain negative values, and pad_width is {pad_width!r}")
    return [(operator.index(low), operator.index(high)) for low, high in found]


@export
def pad(array: GPUArray, pad_width: Any, mode: str = "constant", **kwargs: Any) -> GPUArray:
    """An array with elements around it.

    Parameters
    ----------
    array : GPUArray
    pad_width : int, sequence or dict
        How many elements before and after each axis: a number, a pair, a pair per axis, or these by axis.
    mode : str, optional
        ``"constant"``, ``"edge"``, ``"reflect"``, ``"symmetric"``, ``"wrap"``, ``"linear_ramp"``, ``"maximum"``,
        ``"minimum"``, ``"mean"``, ``"median"`` or ``"empty"``.
    constant_values, end_values : number or sequence, optional
        For ``"constant"`` and ``"linear_ramp"``; 0 by default.
    reflect_type : {'even', 'odd'}, optional
        For ``"reflect"`` and ``"symmetric"``.
    stat_length : int or sequence, optional
        How many elements at each edge the statistics are of; all by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.pad(gp.asarray([1, 2, 3]), (2, 1), mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2]
    """
    x = need(array, "pad()")
    widths = _widths(pad_width, x.ndim)
    if callable(mode):
        raise TypeError("pad(): mode must be the name of a rule; a function would run for every row on the host")
    if mode not in _KEYWORDS:
        raise ValueError(f"pad(): mode {mode!r} is not supported; use one of {', '.join(_KEYWORDS)}")
    wrong = sorted(set(kwargs) - set(_KEYWORDS[mode]))
    if wrong:
        raise ValueError(f"pad(): unsupported keyword arguments for mode {mode!r}: {', '.join(wrong)}")
    if mode == "constant":
        return _constant(x, widths, kwargs.get("constant_values", 0))
    odd = kwargs.get("reflect_type", "even") != "even"
    if kwargs.get("reflect_type", "even") not in ("even", "odd"):
        raise ValueError(f"pad(): reflect_type must be 'even' or 'odd', not {kwargs['reflect_type']!r}")
    if mode != "empty" and not x.size:
        for axis, (n, pair) in enumerate(zip(x.shape, widths, strict=True)):
            if not n and any(pair):
                raise ValueError(f"pad(): can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
    if mode in ("edge", "wrap", "reflect", "symmetric") and not odd:
        return _windowed(x, widths, mode)
    out = _around(x, widths)
    if mode == "empty" or not out.size:
        return out
    if mode == "linear_ramp":
        _ramps(out, x, widths, _pairs(kwargs.get("end_values", 0), x.ndim, "end_values"))
    elif mode in _STATISTICS:
        _statistics(out, x, widths, mode, kwargs.get("stat_length"))
    else:
        _mirrored(out, x, widths, mode)
    return out


def _shape(x: GPUArray, widths: Pairs) -> list[int]:
    return [n + low + high for n, (low, high) in zip(x.shape, widths, strict=True)]


def _inner(out: GPUArray, x: GPUArray, widths: Pairs) -> GPUArray:
    for axis, (low, _) in enumerate(widths):
        out = out._slice(axis, low, x.shape[axis], 1)
    return out


def _around(x: GPUArray, widths: Pairs) -> GPUArray:
    """Return an array of the padded shape with ``x`` inside, and nothing set around it."""
    out = empty(_shape(x, widths), x.dtype, device=x.device)
    assign(_inner(out, x, widths), x)
    return out


def _merged(x: GPUArray, widths: Pairs, mode: str) -> tuple[list[int], Pairs, list[int]]:
    """Return lengths and widths with as few axes as the layout allows, and the axes that begin them."""
    shape: list[int] = []
    pairs: Pairs = []
    first: list[int] = []
    scales = mode in ("wrap", "constant")
    for axis, (n, pair) in enumerate(zip(x.shape, widths, strict=True)):
        whole = not any(pair) and x.is_contiguous
        if shape and whole and (scales or not any(pairs[-1])):
            shape[-1] *= n
            pairs[-1] = (pairs[-1][0] * n, pairs[-1][1] * n)
        else:
            shape.append(n)
            pairs.append(pair)
            first.append(axis)
    return shape, pairs, first


def _call(x: GPUArray, values: GPUArray | None, widths: Pairs, mode: str, shape: Sequence[int]) -> GPUArray:
    out = empty(_shape(x, widths), x.dtype, device=x.device)
    rest = [0] * (8 - x.ndim)
    window(x, values, mode, *(low for low, _ in widths), *rest, *(high for _, high in widths), *rest, out=out)
    return out.reshape(shape)


def _windowed(x: GPUArray, widths: Pairs, mode: str) -> GPUArray:
    shape = _shape(x, widths)
    if not math.prod(shape) or not x.ndim:
        return x.copy() if not x.ndim else empty(shape, x.dtype, device=x.device)
    lengths, pairs, _ = _merged(x, widths, mode)
    return _call(x.reshape(lengths), None, pairs, mode, shape)


def _constant(x: GPUArray, widths: Pairs, values: Any) -> GPUArray:
    shape = _shape(x, widths)
    if isinstance(values, GPUArray):
        sides = values.astype(x.dtype, copy=False)._broadcast_to((x.ndim, 2))
    else:
        host = np.broadcast_to(np.asarray(_pairs(values, x.ndim, "constant_values")).reshape(x.ndim, 2), (x.ndim, 2))
        with np.errstate(all="ignore"):
            kept = host.astype(to_numpy_dtype(x.dtype))
        if x.size == 0 or not x.ndim:
            sides = from_numpy(kept, device=x.device)
        elif not kept.view(np.uint8).any():
            sides = zeros((x.ndim, 2), x.dtype, device=x.device)
        else:
            sides = from_numpy(kept, device=x.device)
    if not x.ndim:
        return x.copy()
    if not x.size:
        out = empty(shape, x.dtype, device=x.device)
        _fill_sides(out, sides, widths)
        return out
    lengths, pairs, first = _merged(x, widths, "constant")
    chosen = sides if len(first) == x.ndim else _rows_of(sides, first)
    return _call(x.reshape(lengths), chosen.contiguous(), pairs, "constant", shape)


def _rows_of(sides: GPUArray, rows: Sequence[int]) -> GPUArray:
    if list(rows) == list(range(len(rows))):
        return sides._slice(0, 0, len(rows), 1)
    out = empty((len(rows), 2), sides.dtype, device=sides.device)
    for i, row in enumerate(rows):
        assign(out._select(0, i), sides._select(0, row))
    return out


def _sides(out: GPUArray, widths: Pairs) -> Iterator[tuple[int, int, GPUArray]]:
    """Return axis, side and a view of what is to be set, in NumPy's order; later parts lie over earlier ones."""
    for axis, (low, high) in enumerate(widths):
        part = out
        for later in range(axis + 1, out.ndim):
            before, after = widths[later]
            part = part._slice(later, before, out.shape[later] - before - after, 1)
        for side, (start, count) in enumerate(((0, low), (out.shape[axis] - high, high))):
            if count:
                yield axis, side, part._slice(axis, start, count, 1)


def _fill_sides(out: GPUArray, sides: GPUArray, widths: Pairs) -> None:
    for axis, (low, high) in enumerate(widths):
        for side, (start, count) in enumerate(((0, low), (out.shape[axis] - high, high))):
            part = out._slice(axis, start, count, 1)
            assign(part, sides._select(0, axis)._select(0, side)._broadcast_to(part.shape))


def _edge(out: GPUArray, widths: Pairs, axis: int, side: int, count: int = 1) -> GPUArray:
    """Return a view of the elements at an edge of what is set along an axis."""
    low, high = widths[axis]
    part = out
    for later in range(axis + 1, out.ndim):
        before, after = widths[later]
        part = part._slice(later, before, out.shape[later] - before - after, 1)
    start = low if side == 0 else out.shape[axis] - high - count
    return part._slice(axis, start, count, 1)


def _ramps(out: GPUArray, x: GPUArray, widths: Pairs, ends: Sequence[tuple[Any, Any]]) -> None:
    for axis, side, target in _sides(out, widths):
        edge = _edge(out, widths, axis, side)._select(axis, 0)
        ramp = linspace(ends[axis][side], edge, target.shape[axis], endpoint=False, dtype=x.dtype, axis=axis)
        assign(target, ramp if side == 0 else ramp._slice(axis, ramp.shape[axis] - 1, ramp.shape[axis], -1))


def _statistics(out: GPUArray, x: GPUArray, widths: Pairs, mode: str, lengths: Any) -> None:
    counts: Any = [(None, None)] * x.ndim if lengths is None else _pairs(lengths, x.ndim, "stat_length")
    for pair in counts:
        if any(n is not None and n < 0 for n in pair):
            raise ValueError("pad(): index can't contain negative values, and stat_length has some")
    if mode in ("maximum", "minimum") and any(0 in pair for pair in counts):
        raise ValueError("pad(): stat_length of 0 yields no value for padding")
    whole: dict[int, GPUArray] = {}
    for axis, side, target in _sides(out, widths):
        n = x.shape[axis]
        wanted = counts[axis][side]
        count = n if wanted is None else min(int(wanted), n)
        found = whole.get(axis) if count == n else None
        if found is None:
            found = _STATISTICS[mode](_edge(out, widths, axis, side, count), axis, keepdims=True)
            if x.dtype.kind in "iu" and found.dtype.kind == "f":
                found = e.round(found)
            if count == n:
                whole[axis] = found
        assign(target, found.astype(out.dtype, copy=False)._broadcast_to(target.shape))


def _mirrored(out: GPUArray, x: GPUArray, widths: Pairs, mode: str) -> None:
    """Odd mirrors: twice the edge less the elements behind it, as often as the width needs."""
    skip = int(mode == "reflect")
    for axis, (low, high) in enumerate(widths):
        part = out
        for later in range(axis + 1, out.ndim):
            before, after = widths[later]
            part = part._slice(later, before, out.shape[later] - before - after, 1)
        start, stop = low, out.shape[axis] - high
        if x.shape[axis] == 1 and skip:
            # Nothing lies behind the edge.
            for begin, count, at in ((0, low, start), (stop, high, stop - 1)):
                line = part._slice(axis, begin, count, 1)
                assign(line, part._slice(axis, at, 1, 1)._broadcast_to(line.shape))
            continue
        n = x.shape[axis] - skip
        while start > 0 or stop < out.shape[axis]:
            # Whole copies of the array only, so that the next mirror begins at one of its edges.
            period = (stop - start - skip) // n * n
            ahead, behind = min(start, period), min(out.shape[axis] - stop, period)
            if ahead:
                mirror = part._slice(axis, start + skip + ahead - 1, ahead, -1)
                assign(part._slice(axis, start - ahead, ahead, 1), _odd(part._slice(axis, start, 1, 1), mirror))
            if behind:
                mirror = part._slice(axis, stop - 1 - skip, behind, -1)
                assign(part._slice(axis, stop, behind, 1), _odd(part._slice(axis, stop - 1, 1, 1), mirror))
            start, stop = start - ahead, stop + behind


def _odd(edge: GPUArray, mirror: GPUArray) -> GPUArray:
    found: GPUArray = e.sub(e.mul(edge, 2), mirror)
    return found.astype(dtype_of(edge.dtype), copy=False)
