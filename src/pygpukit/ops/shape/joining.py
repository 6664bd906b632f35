"""Arrays joined along axes: each element is read and written once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.dtypes import DTypeLike
from pygpukit.errors import ShapeError
from pygpukit.ops.operands import axis_of
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import array_of, assign, check_cast, common_device, common_type, need
from pygpukit.ops.shape.join import MOST, join


def _given(arrays: Any, what: str) -> list[GPUArray]:
    """Return a sequence of arrays, or the rows of one, on one device."""
    if isinstance(arrays, GPUArray):
        if arrays.ndim == 0:
            raise TypeError(f"{what} takes a sequence of arrays, not an array without dimensions")
        if arrays.shape[0] == 0:
            raise ValueError(f"{what} needs at least one array")
        return [arrays._select(0, i) for i in range(arrays.shape[0])]
    if isinstance(arrays, str | bytes) or not isinstance(arrays, Iterable):
        raise TypeError(f"{what} takes a sequence of arrays, not {type(arrays).__name__}")
    given = list(arrays)
    device = common_device(given)
    if not given:
        raise ValueError(f"{what} needs at least one array")
    return [array_of(x, device, what) for x in given]


def _write(out: GPUArray, parts: Sequence[GPUArray], axis: int) -> None:
    """Write arrays side by side along an axis of ``out``, neighbours of its type in one launch."""
    kind = out.dtype
    if 1 < len(parts) <= MOST and all(x.dtype is kind and x.is_contiguous for x in parts):
        _write_dense(out, parts, axis)
        return
    place, run = 0, 0
    while run < len(parts):
        stop = run
        while stop < min(len(parts), run + MOST) and parts[stop].dtype is kind and parts[stop].is_contiguous:
            stop += 1
        chosen = parts[run : max(stop, run + 1)]
        length = sum(x.shape[axis] for x in chosen)
        target = out._slice(axis, place, length, 1)
        if len(chosen) > 1:
            _write_dense(target, chosen, axis)
        else:
            assign(target, chosen[0])
        place += length
        run += len(chosen)


def _write_dense(out: GPUArray, parts: Sequence[GPUArray], axis: int) -> None:
    shape = out.shape
    outer = math.prod(shape[:axis])
    if not out.size:
        return
    each = out.size // outer
    rows = out._reshape([outer, each])
    parts = [x for x in parts if x.size]
    if len(parts) > 1 and rows is not None and rows.strides[1] == rows.itemsize:
        join(*[x._reshape([outer, x.size // outer]) for x in parts], out=rows)
        return
    place = 0
    for x in parts:
        assign(out._slice(axis, place, x.shape[axis], 1), x)
        place += x.shape[axis]


def _joined_rows(parts: Sequence[Any], equal: bool) -> GPUArray | None:
    """Contiguous arrays of one type joined along their first axis, as a vector; None for anything else.

    Behind that axis they agree, with ``equal`` in all of their shape.
    """
    first = parts[0]
    if type(first) is not GPUArray:
        return None
    kind, tail, rows = first.dtype, first.shape[not equal :], []
    for x in parts:
        if type(x) is not GPUArray or x.dtype is not kind or not x.size or not x.is_contiguous:
            return None
        shape = x.shape
        if shape[not equal :] != tail or not (equal or shape):
            return None
        rows.append(x._reshape([1, x.size]))
    return join(*rows)._select(0, 0)  # type: ignore[no-any-return]


def _check(parts: Sequence[GPUArray], axis: int, what: str) -> None:
    first = parts[0]
    for i, x in enumerate(parts):
        if x.ndim != first.ndim:
            raise ShapeError(f"{what}: array 0 has {first.ndim} dimensions and array {i} has {x.ndim}; they must agree")
        for d, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if a != b and d != axis:
                raise ShapeError(
                    f"{what}: all axes except axis {axis} must match, and along axis {d} array 0 has {a} elements and "
                    f"array {i} has {b}"
                )


def joined(
    parts: Sequence[GPUArray], axis: int, out: GPUArray | None, dtype: DTypeLike | None, casting: str, what: str
) -> GPUArray:
    """Return arrays joined along an existing axis, which is counted from the first."""
    _check(parts, axis, what)
    shape = list(parts[0].shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    if out is None:
        out = empty(shape, common_type(parts, dtype, casting, what), device=parts[0].device)
        _write(out, parts, axis)
        return out
    if dtype is not None:
        raise TypeError(f"{what}: give out or dtype, not both")
    if not isinstance(out, GPUArray):
        raise TypeError(f"{what}: out must be a GPUArray, not {type(out).__name__}")
    array_of(out, parts[0].device, what)
    if list(out.shape) != shape:
        raise ShapeError(f"{what}: out has shape {tuple(out.shape)}, and the result {tuple(shape)}")
    for x in parts:
        check_cast(x.dtype, out.dtype, casting, what)
    if any(out._shares_memory(x) for x in parts):
        result = empty(shape, out.dtype, device=out.device)
        _write(result, parts, axis)
        assign(out, result)
    else:
        _write(out, parts, axis)
    return out


@export
def concatenate(
    arrays: Any,
    /,
    axis: int | None = 0,
    out: GPUArray | None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: str = "same_kind",
) -> GPUArray:
    """Arrays joined along an existing axis.

    Parameters
    ----------
    arrays : sequence of GPUArray
        Equal in shape except along ``axis``. Numbers and lists may stand beside arrays.
    axis : int, optional
        None flattens the arrays first.
    out : GPUArray, optional
        Where the result is written.
    dtype : DataType, optional
        Element type of the result; the common type by default.
    casting : str, optional
        Which conversions to ``dtype`` or the type of ``out`` are allowed.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.concatenate([gp.asarray([1, 2]), gp.asarray([3])]).tolist()
    [1, 2, 3]
    """
    if out is None and dtype is None and axis == 0 and type(arrays) in (list, tuple) and 1 < len(arrays) <= MOST:
        made = _joined_rows(arrays, False)
        if made is not None:
            tail = arrays[0].shape[1:]
            return made if not tail else made.reshape(-1, *tail)
    parts = _given(arrays, "concatenate()")
    if axis is None:
        return joined([x.reshape(-1) for x in parts], 0, out, dtype, casting, "concatenate()")
    if parts[0].ndim == 0:
        raise ValueError("concatenate() needs arrays of at least one dimension; use stack or axis=None")
    return joined(parts, axis_of(axis, parts[0].ndim), out, dtype, casting, "concatenate()")


export(concatenate, "concat")


@export
def stack(
    arrays: Any,
    axis: int = 0,
    out: GPUArray | None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: str = "same_kind",
) -> GPUArray:
    """Arrays of one shape joined along a new axis; see `concatenate`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.stack([gp.asarray([1, 2]), gp.asarray([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    if out is None and dtype is None and axis == 0 and type(arrays) in (list, tuple) and 1 < len(arrays) <= MOST:
        made = _joined_rows(arrays, True)
        if made is not None:
            whole = made._reshape([len(arrays), *arrays[0].shape])
            assert whole is not None
            return whole
    parts = _given(arrays, "stack()")
    shapes = {x.shape for x in parts}
    if len(shapes) != 1:
        raise ShapeError(f"stack(): all input arrays must have the same shape, not {sorted(shapes)}")
    place = axis_of(axis, parts[0].ndim + 1)
    return joined([x._expand(place) for x in parts], place, out, dtype, casting, "stack()")


def _rows(x: GPUArray) -> GPUArray:
    return x if x.ndim > 1 else x._expand(0) if x.ndim else x._expand(0)._expand(0)


@export
def vstack(tup: Any, *, dtype: DTypeLike | None = None, casting: str = "same_kind") -> GPUArray:
    """Arrays joined along the first axis; vectors become rows.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.vstack([gp.asarray([1, 2]), gp.asarray([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    return joined([_rows(x) for x in _given(tup, "vstack()")], 0, None, dtype, casting, "vstack()")


@export
def hstack(tup: Any, *, dtype: DTypeLike | None = None, casting: str = "same_kind") -> GPUArray:
    """Arrays joined along the second axis; vectors along their only one.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.hstack([gp.asarray([1, 2]), gp.asarray([3])]).tolist()
    [1, 2, 3]
    """
    parts = [x if x.ndim else x._expand(0) for x in _given(tup, "hstack()")]
    return joined(parts, 0 if parts[0].ndim == 1 else 1, None, dtype, casting, "hstack()")


@export
def dstack(tup: Any) -> GPUArray:
    """Arrays joined along the third axis; vectors become ``(1, n, 1)`` and matrices ``(n, m, 1)``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.dstack([gp.asarray([1, 2]), gp.asarray([3, 4])]).tolist()
    [[[1, 3], [2, 4]]]
    """
    rows = [_rows(x) for x in _given(tup, "dstack()")]
    return joined([x._expand(2) if x.ndim == 2 else x for x in rows], 2, None, None, "same_kind", "dstack()")


@export
def column_stack(tup: Any) -> GPUArray:
    """Vectors as columns of a matrix; matrices are joined as they are.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.column_stack([gp.asarray([1, 2]), gp.asarray([3, 4])]).tolist()
    [[1, 3], [2, 4]]
    """
    parts = [_rows(x).T if x.ndim < 2 else x for x in _given(tup, "column_stack()")]
    return joined(parts, 1, None, None, "same_kind", "column_stack()")


@export
def append(arr: GPUArray, values: Any, axis: int | None = None) -> GPUArray:
    """An array with others behind it along an axis; without an axis both are flattened.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.append(gp.asarray([1, 2]), 3).tolist()
    [1, 2, 3]
    """
    x = need(arr, "append()")
    result: GPUArray = concatenate([x, array_of(values, x.device, "append()")], axis)
    return result


def _depth(arrays: Any, path: str = "arrays") -> int:
    """Return how deep lists of arrays are nested; equally deep everywhere."""
    if isinstance(arrays, tuple):
        raise TypeError(f"block(): {path} is a tuple; only lists can be used to arrange blocks")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError(f"block(): {path} is an empty list; lists cannot be empty")
    depths = {_depth(x, f"{path}[{i}]") for i, x in enumerate(arrays)}
    if len(depths) > 1:
        raise ValueError(f"block(): list depths are mismatched in {path}: {sorted(depths)}")
    return 1 + depths.pop()


def _leaves(arrays: Any) -> list[Any]:
    return [leaf for x in arrays for leaf in _leaves(x)] if isinstance(arrays, list) else [arrays]


def _arrange(
    arrays: Any, parts: Iterable[GPUArray], axis: int, ndim: int
) -> tuple[list[int], list[tuple[list[int], GPUArray]]]:
    """Return the shape of nested lists, and where each array begins in it."""
    if not isinstance(arrays, list):
        x = next(iter(parts))
        while x.ndim < ndim:
            x = x._expand(0)
        return list(x.shape), [([0] * ndim, x)]
    shape: list[int] = []
    placed: list[tuple[list[int], GPUArray]] = []
    for one in arrays:
        found, inside = _arrange(one, parts, axis + 1, ndim)
        if shape and [n for i, n in enumerate(found) if i != axis] != [n for i, n in enumerate(shape) if i != axis]:
            raise ShapeError(f"block(): shapes {tuple(shape)} and {tuple(found)} do not match along axis {axis}")
        start = shape[axis] if shape else 0
        for place, x in inside:
            place[axis] += start
            placed.append((place, x))
        shape = shape or [*found[:axis], 0, *found[axis + 1 :]]
        shape[axis] += found[axis]
    return shape, placed


@export
def block(arrays: Any) -> GPUArray:
    """Nested lists of arrays as one array: the innermost lists are joined along the last axis, those around them along
    the axis before it, and so on.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.block([[gp.ones((1, 1)), gp.zeros((1, 2))], [gp.zeros((1, 3))]]).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    depth = _depth(arrays)
    parts = _given(_leaves(arrays), "block()")
    ndim = max(depth, *(x.ndim for x in parts))
    shape, placed = _arrange(arrays, iter(parts), ndim - depth, ndim)
    out = empty(shape, common_type(parts, None, "same_kind", "block()"), device=parts[0].device)
    if depth == 1:
        _write(out, [x for _, x in placed], ndim - 1)
        return out
    for place, x in placed:
        target = out
        for axis, start in enumerate(place):
            target = target._slice(axis, start, x.shape[axis], 1)
        assign(target, x)
    return out
