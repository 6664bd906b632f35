"""Views in other shapes: nothing here moves elements, except where a shape has no view and the docstring says so."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import Shape, dimensions
from pygpukit.ops.gemm.rows import transpose
from pygpukit.ops.operands import axis_of
from pygpukit.ops.registry import as_method, export
from pygpukit.ops.shape.arrays import array_of, axes_of, common_device, need


@export
def reshape(a: GPUArray, /, shape: Shape, order: str = "C", *, copy: bool | None = None) -> GPUArray:
    """The elements in a new shape: a view where strides allow it, else a copy.

    Parameters
    ----------
    a : GPUArray
    shape : int or sequence of int
        One dimension may be -1.
    order : {'C', 'F', 'A'}, optional
        Which index changes fastest: the last, the first, or the first only where memory is laid out that way.
    copy : bool, optional
        True copies always, False never.

    Raises
    ------
    ValueError
        If the sizes do not fit, or the shape needs a copy and ``copy`` is False.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.reshape(gp.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return need(a, "reshape()").reshape(shape, order=order, copy=copy)


@export
def ravel(a: GPUArray, order: str = "C") -> GPUArray:
    """The elements as a vector: a view where strides allow it, else a copy.

    ``order`` is ``"C"``, ``"F"``, ``"A"``, or ``"K"`` for the order in memory.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.ravel(gp.asarray([[1, 2], [3, 4]]), "F").tolist()
    [1, 3, 2, 4]
    """
    x = need(a, "ravel()")
    if order == "K":
        steps = [abs(s) for s in x.strides]
        x = x._permute(sorted(range(x.ndim), key=lambda i: -steps[i])) if x.ndim > 1 else x
        order = "C"
    return x.reshape(-1, order=order)


@as_method
def flatten(a: GPUArray, order: str = "C") -> GPUArray:
    """The elements as a vector, always a copy; see `ravel`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.ones((2, 2)).flatten().shape
    (4,)
    """
    flat: GPUArray = ravel(a, order)
    return flat.copy() if a._shares_memory(flat) else flat


as_method(ravel)


@export
def squeeze(a: GPUArray, axis: int | Sequence[int] | None = None) -> GPUArray:
    """A view without axes of one element: all of them, or those named.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.squeeze(gp.ones((1, 3, 1))).shape
    (3,)
    """
    x = need(a, "squeeze()")
    shape = x.shape
    if axis is None:
        named = [i for i, n in enumerate(shape) if n == 1]
    else:
        named = sorted(axes_of(axis, x.ndim))
        for i in named:
            if shape[i] != 1:
                raise ValueError(f"squeeze() drops axes of one element, and axis {i} of shape {tuple(shape)} has more")
    for i in reversed(named):
        x = x._select(i, 0)
    return x


as_method(squeeze)


@export
def expand_dims(a: GPUArray, axis: int | Sequence[int]) -> GPUArray:
    """A view with new axes of one element; ``axis`` counts in the result.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.expand_dims(gp.ones(3), (0, -1)).shape
    (1, 3, 1)
    """
    x = need(a, "expand_dims()")
    more = len(axis) if isinstance(axis, tuple | list) else 1
    for i in sorted(axes_of(axis, x.ndim + more)):
        x = x._expand(i)
    return x


def _exchange(x: GPUArray, first: int, second: int) -> GPUArray:
    axes = list(range(x.ndim))
    axes[first], axes[second] = second, first
    return x._permute(axes)


@export
def swapaxes(a: GPUArray, axis1: int, axis2: int) -> GPUArray:
    """A view with two axes exchanged.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.swapaxes(gp.ones((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    x = need(a, "swapaxes()")
    return _exchange(x, axis_of(axis1, x.ndim), axis_of(axis2, x.ndim))


as_method(swapaxes)


@export
def moveaxis(a: GPUArray, source: int | Sequence[int], destination: int | Sequence[int]) -> GPUArray:
    """A view with some axes moved to other places; the others keep their order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.moveaxis(gp.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = need(a, "moveaxis()")
    from_, to = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    if len(from_) != len(to):
        raise ValueError(f"moveaxis() got {len(from_)} axes to move and {len(to)} places; give one place per axis")
    order = [i for i in range(x.ndim) if i not in from_]
    for place, axis in sorted(zip(to, from_, strict=True)):
        order.insert(place, axis)
    return x._permute(order)


@export
def rollaxis(a: GPUArray, axis: int, start: int = 0) -> GPUArray:
    """A view with one axis moved in front of another; `moveaxis` says it more clearly.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.rollaxis(gp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    x = need(a, "rollaxis()")
    n = x.ndim
    moved, place = axis_of(axis, n), operator.index(start)
    if not -n <= place <= n:
        raise np.exceptions.AxisError(f"'start' arg requires {-n} <= start < {n + 1}, but {place} was passed in")
    place += n if place < 0 else 0
    order = [i for i in range(n) if i != moved]
    order.insert(place - (place > moved), moved)
    return x._permute(order)


@export
def matrix_transpose(x: GPUArray, /) -> GPUArray:
    """A view with the last two axes exchanged; of arrays ``x.mT``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.matrix_transpose(gp.ones((2, 3, 4))).shape
    (2, 4, 3)
    """
    x = need(x, "matrix_transpose()")
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose() needs at least two axes, and the array has {x.ndim}")
    return _exchange(x, x.ndim - 1, x.ndim - 2)


export(transpose, "permute_dims")


@export
def broadcast_to(array: GPUArray, shape: Shape) -> GPUArray:
    """A read-only view in a larger shape, with the same elements along new and stretched axes.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.broadcast_to(gp.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    view = array_of(array, None, "broadcast_to()")._broadcast_to(dimensions(shape))
    view.setflags(write=False)
    return view


@export
def broadcast_shapes(*shapes: Shape) -> tuple[int, ...]:
    """The shape that shapes broadcast to.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.broadcast_shapes((3, 1), 4)
    (3, 4)
    """
    return np.broadcast_shapes(*shapes)


@export
def broadcast_arrays(*arrays: Any) -> tuple[GPUArray, ...]:
    """Arrays as views in the shape they broadcast to; stretched ones are read-only.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [x.shape for x in gp.broadcast_arrays(gp.ones(3), gp.ones((2, 1)))]
    [(2, 3), (2, 3)]
    """
    device = common_device(arrays)
    given = [array_of(x, device, "broadcast_arrays()") for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in given))
    return tuple(x if x.shape == shape else broadcast_to(x, shape) for x in given)


def _at_least(arrays: tuple[Any, ...], ndim: int, what: str) -> Any:
    device = common_device(arrays)
    found = []
    for one in arrays:
        x = array_of(one, device, what)
        if x.ndim == 0:
            x = x._reshape([1])  # type: ignore[assignment]
        if ndim >= 2 and x.ndim == 1:
            x = x._expand(0)
        if ndim == 3 and x.ndim == 2:
            x = x._expand(2)
        found.append(x)
    return found[0] if len(found) == 1 else tuple(found)


@export
def atleast_1d(*arys: Any) -> Any:
    """Arrays as views of at least one axis; a number becomes an array.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.atleast_1d(3.0).shape
    (1,)
    """
    return _at_least(arys, 1, "atleast_1d()")


@export
def atleast_2d(*arys: Any) -> Any:
    """Arrays as views of at least two axes; a vector becomes a row.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.atleast_2d(gp.ones(3)).shape
    (1, 3)
    """
    return _at_least(arys, 2, "atleast_2d()")


@export
def atleast_3d(*arys: Any) -> Any:
    """Arrays as views of at least three axes; a vector becomes ``(1, n, 1)`` and a matrix ``(n, m, 1)``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.atleast_3d(gp.ones(3)).shape
    (1, 3, 1)
    """
    return _at_least(arys, 3, "atleast_3d()")


@export
def diagonal(a: GPUArray, offset: int = 0, axis1: int = 0, axis2: int = 1) -> GPUArray:
    """The elements whose indices along two axes differ by ``offset``, as the last axis of a read-only view.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.diagonal(gp.arange(6).reshape(2, 3), 1).tolist()
    [1, 5]
    """
    x = need(a, "diagonal()")
    if x.ndim < 2:
        raise ValueError(f"diagonal() needs an array of at least two dimensions, not {x.ndim}")
    first, second = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    if first == second:
        raise ValueError(f"diagonal(): axis1 and axis2 are both axis {first}; they cannot be the same")
    n = 1 << 62
    view = x._diagonal(first, second, max(-n, min(operator.index(offset), n)))
    view.setflags(write=False)
    return view


as_method(diagonal)


def _reverse(x: GPUArray, axes: Iterable[int]) -> GPUArray:
    for i in axes:
        n = x.shape[i]
        x = x._slice(i, max(n - 1, 0), n, -1)
    return x


@export
def flip(m: GPUArray, axis: int | Sequence[int] | None = None) -> GPUArray:
    """A view with the order along some axes reversed; along all by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.flip(gp.asarray([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    x = need(m, "flip()")
    return _reverse(x, range(x.ndim) if axis is None else axes_of(axis, x.ndim))


def _flip_axis(m: GPUArray, axis: int, what: str) -> GPUArray:
    m = need(m, what)
    if m.ndim <= axis:
        raise ValueError(f"{what} needs an array of at least {axis + 1} dimensions, not {m.ndim}")
    return _reverse(m, [axis])


@export
def flipud(m: GPUArray) -> GPUArray:
    """A view with the rows in reverse order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.flipud(gp.asarray([[1, 2], [3, 4]])).tolist()
    [[3, 4], [1, 2]]
    """
    return _flip_axis(m, 0, "flipud()")


@export
def fliplr(m: GPUArray) -> GPUArray:
    """A view with the columns in reverse order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.fliplr(gp.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    return _flip_axis(m, 1, "fliplr()")


@export
def rot90(m: GPUArray, k: int = 1, axes: Sequence[int] = (0, 1)) -> GPUArray:
    """A view turned ``k`` times by 90 degrees, from the first of two axes towards the second.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.rot90(gp.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    x = need(m, "rot90()")
    if len(axes) != 2:
        raise ValueError(f"rot90() turns in two axes, not in {tuple(axes)}")
    if any(not -x.ndim <= operator.index(a) < x.ndim for a in axes):
        raise ValueError(f"rot90(): axes {tuple(axes)} are out of range for an array of {x.ndim} dimensions")
    first, second = (operator.index(a) % x.ndim for a in axes)
    if first == second:
        raise ValueError(f"rot90(): the axes {tuple(axes)} must be different")
    turns = operator.index(k) % 4
    if turns == 0:
        return x[...]
    if turns == 2:
        return _reverse(x, (first, second))
    if turns == 1:
        return _exchange(_reverse(x, [second]), first, second)
    return _reverse(_exchange(x, first, second), [second])


@export
def trim_zeros(filt: GPUArray, trim: str = "fb", axis: int | Sequence[int] | None = None) -> GPUArray:
    """A view without the zeros at the front (``"f"``), the back (``"b"``), or both. Waits to read where they end.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.trim_zeros(gp.asarray([0, 0, 1, 2, 0])).tolist()
    [1, 2]
    """
    from pygpukit.ops.shape.trimming import limits

    x = need(filt, "trim_zeros()")
    sides = trim.lower()
    if sides not in ("fb", "bf", "f", "b"):
        raise ValueError(f"trim_zeros(): trim must be 'f', 'b' or 'fb', not {trim!r}")
    named = range(x.ndim) if axis is None else axes_of(axis, x.ndim)
    if not x.ndim or not len(named):
        return x
    for i, (first, last) in zip(named, limits(x, list(named)), strict=True):
        start = first if "f" in sides else 0
        stop = last + 1 if "b" in sides or last < first else x.shape[i]
        x = x._slice(i, start, stop - start, 1)
    return x


@export
def ndim(a: Any) -> int:
    """Number of axes of an array, a number or nested lists.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.ndim(gp.ones((2, 3)))
    2
    """
    return a.ndim if isinstance(a, GPUArray) else np.ndim(a)


@export
def shape(a: Any) -> tuple[int, ...]:
    """Length of each axis of an array, a number or nested lists.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.shape(gp.ones((2, 3)))
    (2, 3)
    """
    return a.shape if isinstance(a, GPUArray) else np.shape(a)


@export
def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """Number of elements, of an array or along axes.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.size(gp.ones((2, 3))), gp.size(gp.ones((2, 3)), 1)
    (6, 3)
    """
    lengths = shape(a)
    if axis is None:
        return math.prod(lengths)
    return math.prod(lengths[i] for i in axes_of(axis, len(lengths)))


@export
def may_share_memory(a: Any, b: Any, /, max_work: int = 0) -> bool:
    """Whether the ranges of memory of two arrays overlap; interleaved slices of one array do.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.ones(4)
    >>> gp.may_share_memory(x, x[1:]), gp.may_share_memory(x[:2], x[2:])
    (True, False)
    """
    return isinstance(a, GPUArray) and isinstance(b, GPUArray) and a._shares_memory(b)
