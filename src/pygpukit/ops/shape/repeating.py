"""Elements repeated, rolled, inserted and deleted."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import dimensions, empty, zeros
from pygpukit.errors import ShapeError
from pygpukit.ops.operands import axis_of
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.reduce.scan import cumulative_sum
from pygpukit.ops.registry import as_method, export
from pygpukit.ops.shape.arrays import array_of, assign, axes_of, need
from pygpukit.ops.shape.joining import joined
from pygpukit.ops.shape.moves import rows_at, window
from pygpukit.ops.shape.spaced import positions
from pygpukit.ops.shape.wide import widest
from pygpukit.ops.sort.search import searchsorted


def taken(x: GPUArray, index: GPUArray, axis: int) -> GPUArray:
    """Return parts of ``x`` along an axis by a vector of int64 places that are there."""
    shape = x.shape
    out = empty((*shape[:axis], index.size, *shape[axis + 1 :]), x.dtype, device=x.device)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if not out.size:
        return out
    source = x.contiguous().reshape(outer, shape[axis], inner)
    target = out.reshape(outer, index.size, inner)
    kind = widest(source, [inner])
    if kind is not None:
        source, target = source._reinterpret(kind), target._reinterpret(kind)
    rows_at(source, index.contiguous(), out=target)
    return out


@export
def repeat(a: GPUArray, repeats: Any, axis: int | None = None) -> GPUArray:
    """Each element several times.

    Waits for the device only where the counts are a GPUArray, to read their sum.

    Parameters
    ----------
    a : GPUArray
    repeats : int, sequence of int or GPUArray
        How often: one number, or one for each element along the axis.
    axis : int, optional
        None flattens the array first.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.repeat(gp.asarray([1, 2]), 2).tolist(), gp.repeat(gp.asarray([1, 2]), [1, 3]).tolist()
    ([1, 1, 2, 2], [1, 2, 2, 2])
    """
    x = need(a, "repeat()")
    if axis is None:
        x, place = x.reshape(-1), 0
    else:
        place = axis_of(axis, max(x.ndim, 1))
        x = x if x.ndim else x.reshape(1)
    n = x.shape[place]
    if isinstance(repeats, GPUArray):
        return _by_counts(x, repeats, place)
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iub" and counts.size:
        raise TypeError(f"repeat(): counts must be integers, not {counts.dtype}")
    if counts.ndim > 1:
        raise ValueError(f"repeat(): counts must be a number or a vector, not of {counts.ndim} dimensions")
    if counts.size and counts.min() < 0:
        raise ValueError(f"repeat(): counts must not be negative, and one is {counts.min()}")
    if counts.size == 1:
        each = int(counts.reshape(()))
        shape = [*x.shape[: place + 1], each, *x.shape[place + 1 :]]
        out = empty([*x.shape[:place], n * each, *x.shape[place + 1 :]], x.dtype, device=x.device)
        if len(shape) <= 8:
            assign(out.reshape(shape), x._expand(place + 1))
            return out
    if counts.size not in (1, n):
        raise ValueError(f"repeat(): {counts.size} counts for an axis of {n} elements; give one, or one for each")
    index = np.repeat(np.arange(n), counts)
    return taken(x, from_numpy(index, device=x.device), place)


as_method(repeat)


def _by_counts(x: GPUArray, repeats: GPUArray, axis: int) -> GPUArray:
    n = x.shape[axis]
    array_of(repeats, x.device, "repeat()")
    if repeats.dtype.kind not in "iub":
        raise TypeError(f"repeat(): counts must be integers, not {repeats.dtype.name}")
    if repeats.ndim > 1 or repeats.size not in (1, n):
        raise ValueError(f"repeat(): counts of shape {tuple(repeats.shape)} for an axis of {n} elements")
    counts = repeats.astype("int64").reshape(-1)._broadcast_to((n,))
    if not n:
        return x.copy()
    ends = cumulative_sum(counts)
    found = empty(2, "int64", device=x.device)
    assign(found._select(0, 0), FUNCTIONS["min"](counts))
    assign(found._select(0, 1), ends._select(0, n - 1))
    smallest, total = found.tolist()
    if smallest < 0:
        raise ValueError(f"repeat(): counts must not be negative, and one is {smallest}")
    return taken(x, searchsorted(ends, positions(total, x.device), "right"), axis)


@export
def tile(A: GPUArray, reps: int | Sequence[int]) -> GPUArray:
    """An array repeated as a whole along each axis.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.tile(gp.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = need(A, "tile()")
    counts = _integers(reps, "tile()")
    if any(n < 0 for n in counts):
        raise ValueError(f"tile(): counts must not be negative: {tuple(counts)}")
    ndim = max(x.ndim, len(counts))
    counts = [1] * (ndim - len(counts)) + counts
    shape = [1] * (ndim - x.ndim) + list(x.shape)
    out = empty([n * c for n, c in zip(shape, counts, strict=True)], x.dtype, device=x.device)
    if not out.size:
        return out
    # Pairs of count and length, without those of one element: views have eight axes.
    source, target = x, out
    pairs: list[tuple[int, int]] = [(c, n) for n, c in zip(shape, counts, strict=True) if n * c > 1]
    parts = [(c, n) for c, n in pairs]
    lengths = [m for c, n in parts for m in ((c, n) if c > 1 and n > 1 else (max(c, n),))]
    if len(lengths) > 8:
        return _tiled_in_steps(x, counts)
    ones = [m for c, n in parts for m in ((1, n) if c > 1 and n > 1 else (1,) if c > 1 else (n,))]
    view = source.reshape(ones)
    assign(target.reshape(lengths), view)
    return out


def _tiled_in_steps(x: GPUArray, counts: Sequence[int]) -> GPUArray:
    """Tile one axis after the other, the last first, where a view would need too many axes."""
    x = x.reshape([1] * (len(counts) - x.ndim) + list(x.shape))
    for axis, count in reversed(list(enumerate(counts))):
        if count != 1:
            x = joined([x] * count, axis, None, None, "same_kind", "tile()")
    return x


@export
def resize(a: GPUArray, new_shape: Any) -> GPUArray:
    """The flattened elements in a new shape, repeated as often as it needs.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.resize(gp.asarray([1, 2, 3]), (2, 2)).tolist()
    [[1, 2], [3, 1]]
    """
    x = need(a, "resize()").reshape(-1)
    shape = dimensions(new_shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"resize(): all elements of new_shape must be non-negative, not {tuple(shape)}")
    count = math.prod(shape)
    if not count or not x.size:
        return zeros(shape, x.dtype, device=x.device)
    out = empty(count, x.dtype, device=x.device)
    times, rest = divmod(count, x.size)
    if times:
        assign(out._slice(0, 0, times * x.size, 1).reshape(times, x.size), x)
    if rest:
        assign(out._slice(0, times * x.size, rest, 1), x._slice(0, 0, rest, 1))
    return out.reshape(shape)


@export
def roll(a: GPUArray, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> GPUArray:
    """The elements moved along axes; those that leave at the end come back at the beginning.

    Without an axis the flattened elements move.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.roll(gp.arange(4), 1).tolist()
    [3, 0, 1, 2]
    """
    x = need(a, "roll()")
    if axis is None and x.ndim == 1:
        return _rolled(x, [sum(_integers(shift, "roll()"))])
    if axis is None:
        return _rolled(x.reshape(-1), [sum(_integers(shift, "roll()"))]).reshape(x.shape)
    axes = axes_of(axis, x.ndim, repeated=True)
    moves = _integers(shift, "roll()")
    if len(moves) != len(axes) and 1 not in (len(moves), len(axes)):
        raise ValueError(f"roll(): {len(moves)} shifts for {len(axes)} axes; give one for each, or one for all")
    shifts = [0] * x.ndim
    count = max(len(moves), len(axes)) if moves and axes else 0
    for i in range(count):
        shifts[axes[i % len(axes)]] += moves[i % len(moves)]
    return _rolled(x, shifts)


def _integers(values: Any, what: str) -> list[int]:
    if isinstance(values, GPUArray):
        raise TypeError(f"{what} takes integers, not a GPUArray; read them with tolist()")
    return [operator.index(v) for v in (values if hasattr(values, "__len__") else (values,))]


def _rolled(x: GPUArray, shifts: Sequence[int]) -> GPUArray:
    out = _native.empty(list(x.shape), x.dtype, x.device)
    if not x.size:
        return out
    # Axes behind the last that moves are one; a move of whole rows of them is a move of that axis.
    shape: list[int] = []
    moves: list[int] = []
    for n, shift in zip(x.shape, shifts, strict=True):
        move = shift % n
        if shape and not move and (x.is_contiguous or shape[-1] == 1 or n == 1):
            moves[-1] *= n
            shape[-1] *= n
        else:
            shape.append(n)
            moves.append(move)
    if not any(moves):
        return x.copy()
    source, target = (x, out) if len(shape) == x.ndim else (x.reshape(shape), out.reshape(shape))
    kind = widest(source, [shape[-1], moves[-1]]) if source.is_contiguous else None
    if kind is not None:
        ratio = kind.itemsize // x.itemsize
        moves[-1] //= ratio
        source, target = source._reinterpret(kind), target._reinterpret(kind)
    befores = [*moves, *[0] * (8 - len(moves))]
    window(source, None, "roll", *befores, *(-m for m in befores), out=target)
    return out


def _places(obj: Any, n: int, axis: int, what: str) -> np.ndarray[Any, Any]:
    """Return the indices of an axis that a slice, integers or a mask name, as they are."""
    if isinstance(obj, slice):
        return np.arange(*obj.indices(n))
    index = np.asarray(obj.tolist(), dtype=None if obj.size else np.int64) if isinstance(obj, GPUArray) else None
    found = np.asarray(obj) if index is None else index
    if found.dtype == np.bool_:
        if found.shape != (n,):
            raise ValueError(f"{what}: a mask of shape {found.shape} for an axis of {n} elements")
        return np.flatnonzero(found)
    if found.dtype.kind not in "iu":
        if found.size:
            raise IndexError(f"{what}: indices must be integers, a slice or a mask, not {found.dtype}")
        found = found.astype(np.int64)
    return found


def _in_range(places: np.ndarray[Any, Any], length: int, n: int, axis: int) -> np.ndarray[Any, Any]:
    wrong = places[(places < -n) | (places >= length)]
    if wrong.size:
        raise IndexError(f"index {int(wrong[0])} is out of bounds for axis {axis} with size {n}")
    return np.where(places < 0, places + n, places)


def _flat_or(x: GPUArray, axis: int | None) -> tuple[GPUArray, int]:
    if axis is None:
        return x.reshape(-1), 0
    return x, axis_of(axis, x.ndim)


_PIECES = 64
"""Parts of an array that are joined one by one; more are gathered by an index."""


@export
def delete(arr: GPUArray, obj: Any, axis: int | None = None) -> GPUArray:
    """An array without some parts along an axis; without an axis the flattened elements.

    Parameters
    ----------
    arr : GPUArray
    obj : int, slice, sequence of int or bool, or GPUArray
        Which parts; the function waits to read a GPUArray.
    axis : int, optional

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.delete(gp.arange(5), [0, -1]).tolist()
    [1, 2, 3]
    """
    x, place = _flat_or(need(arr, "delete()"), axis)
    n = x.shape[place]
    gone = np.unique(_in_range(_places(obj, n, place, "delete()").reshape(-1), n, n, place))
    if not gone.size:
        return x.copy()
    if gone.size <= _PIECES:
        starts, stops = [0, *(gone + 1).tolist()], [*gone.tolist(), n]
        parts = [x._slice(place, a, b - a, 1) for a, b in zip(starts, stops, strict=True) if b > a]
        return joined(parts or [x._slice(place, 0, 0, 1)], place, None, None, "same_kind", "delete()")
    kept = np.ones(n, np.bool_)
    kept[gone] = False
    return taken(x, from_numpy(np.flatnonzero(kept), device=x.device), place)


@export
def insert(arr: GPUArray, obj: Any, values: Any, axis: int | None = None) -> GPUArray:
    """An array with values before some places along an axis; without an axis the flattened elements.

    Parameters
    ----------
    arr : GPUArray
    obj : int, slice, sequence of int or bool, or GPUArray
        Before which places of ``arr``; the function waits to read a GPUArray.
    values : GPUArray, number or sequence
        What is inserted; it is converted to the type of ``arr``.
    axis : int, optional

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.insert(gp.asarray([1, 2]), 1, 9).tolist(), gp.insert(gp.asarray([1, 2]), [0, 2], [7, 8]).tolist()
    ([1, 9, 2], [7, 1, 2, 8])
    """
    x, place = _flat_or(need(arr, "insert()"), axis)
    n = x.shape[place]
    found = _places(obj, n, place, "insert()")
    if found.ndim > 1:
        raise ValueError(f"insert(): indices must be a number or a vector, not of {found.ndim} dimensions")
    alone = found.ndim == 0
    value = array_of(values, x.device, "insert()")
    if value.ndim > x.ndim:
        raise ShapeError(f"insert(): values have {value.ndim} dimensions, and the array {x.ndim}")
    before = _in_range(np.atleast_1d(found), n + 1, n, place)
    while value.ndim < x.ndim:
        value = value._expand(0)
    if alone:
        # One place takes all the values: their first axis lies along it.
        value = value._permute([*range(1, place + 1), 0, *range(place + 1, x.ndim)]) if x.ndim else value
    count = value.shape[place] if alone or before.size == 1 else before.size
    if not count:
        return x.copy()
    before = np.repeat(before, count) if before.size == 1 else before
    order = np.argsort(before, kind="stable")
    shape = [count if i == place else m for i, m in enumerate(x.shape)]
    new = value.astype(x.dtype, copy=False)._broadcast_to(shape)
    if count <= _PIECES or bool(np.all(before == before[0])):
        parts, done = [], 0
        groups = np.flatnonzero(np.diff(before[order], prepend=-1))
        for first, stop in zip(groups, [*groups[1:], count], strict=True):
            at = int(before[order[first]])
            parts.append(x._slice(place, done, at - done, 1))
            chosen = order[first:stop].tolist()
            whole = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
            parts += (
                [new._slice(place, chosen[0], len(chosen), 1)]
                if whole
                else [new._slice(place, i, 1, 1) for i in chosen]
            )
            done = at
        parts.append(x._slice(place, done, n - done, 1))
        return joined(parts, place, None, None, "same_kind", "insert()")
    index = np.empty(n + count, np.int64)
    to = before[order] + np.arange(count)
    old = np.ones(n + count, np.bool_)
    old[to] = False
    index[old] = np.arange(n)
    index[to] = n + order
    both = joined([x, new], place, None, None, "same_kind", "insert()")
    return taken(both, from_numpy(index, device=x.device), place)
