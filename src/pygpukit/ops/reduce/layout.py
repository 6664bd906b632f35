"""Axes of reductions, and the form in which kernels see an array: axes that stay, and up to two that are reduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pygpukit.errors import ShapeError
from pygpukit.ops import operands
from pygpukit.ops.problem import Tensor
from pygpukit.ops.size import minimum, product

LONGEST_INNER = 2**31 - 2**15
"""Elements the second of two reduced axes may have: kernels count them in 32 bits."""


def axis_of(axis: Any, ndim: int) -> int:
    """Return one axis counted from the first; an array of no dimensions has an axis of one element.

    Raises
    ------
    numpy.exceptions.AxisError
        If it is out of range.
    TypeError
        If it is no integer.
    """
    return operands.axis_of(axis, ndim) if ndim or axis not in (0, -1) else operands.axis_of(axis, 1)


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes named by ``axis``, ascending.

    Raises
    ------
    numpy.exceptions.AxisError
        If one is out of range.
    ShapeError
        If one is named twice.

    Examples
    --------
    >>> axes_of((-1, 0), 3)
    (0, 2)
    """
    if axis is None:
        return tuple(range(ndim))
    found = [axis_of(a, ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    if len(set(found)) != len(found):
        raise ShapeError(f"axis {axis} names an axis twice")
    return tuple(sorted(found)) if ndim else ()


def collapse(shape: Sequence[Any], strides: Sequence[Any], axes: Sequence[int]
             ) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]] | None:  # fmt: skip
    """Return sizes and strides of ``[outer, n, inner]`` for neighbouring ``axes`` as n, or None.

    None means that an array of this layout has no such form and needs a contiguous copy with the axes side by side.

    Examples
    --------
    >>> collapse((2, 3, 4), (12, 4, 1), (1,))
    ((2, 3, 4), (12, 4, 1))
    """
    ordered = sorted(axes)
    if not ordered or ordered != list(range(ordered[0], ordered[-1] + 1)):
        return None
    first, stop = ordered[0], ordered[-1] + 1
    groups = [_merge(shape[a:b], strides[a:b]) for a, b in ((0, first), (first, stop), (stop, len(shape)))]
    outer, middle, inner = groups
    if outer is None or middle is None or inner is None:
        return None
    return (outer[0], middle[0], inner[0]), (outer[1], middle[1], inner[1])


def _merge(shape: Sequence[Any], strides: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return size and stride of axes that are one, or None. Of axes that are one element, only that is asked."""
    if len(shape) == 1:
        return shape[0], strides[0]
    kept = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if not kept:
        return product(shape), 1
    for (_, above), (size, stride) in pairwise(kept):
        if above != size * stride:
            return (0, 1) if any(n == 0 for n in shape) else None
    return product(size for size, _ in kept), kept[-1][1]


class Form(NamedTuple):
    """An array as kernels reduce it.

    Attributes
    ----------
    kept
        Size and stride of the axes that stay, as few as their strides allow, the innermost last.
    results, n
        Number of results, and of elements of each.
    inner
        Elements of the second reduced axis; 0 where there is one only.
    strides
        Of the two reduced axes; of one, it is the second.
    """

    kept: tuple[tuple[Any, Any], ...]
    results: Any
    n: Any
    inner: Any
    strides: tuple[Any, Any]


def form(x: Tensor, axes: Sequence[int]) -> Form | None:
    """Return the form of an array for reduced ``axes``, or None if they are more than two in memory."""
    stay = [i for i in range(x.ndim) if i not in axes]
    results, n = (product(x.shape[i] for i in chosen) for chosen in (stay, axes))
    if x.size == 0:
        # Nothing is read: results of no elements, or none at all.
        return Form(((results, 0),), results, n, 0, (0, 1))
    kept, reduced = (joined((x.shape[i], x.strides[i]) for i in chosen) for chosen in (stay, axes))
    if not reduced:
        return Form(kept, results, n, 0, (0, 1))
    if len(reduced) == 1:
        return Form(kept, results, n, 0, (0, reduced[0][1]))
    if len(reduced) > 2 or reduced[1][0] > LONGEST_INNER:
        return None
    return Form(kept, results, n, reduced[1][0], (reduced[0][1], reduced[1][1]))


def joined(axes: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...]:
    """Return sizes and strides of axes, neighbours joined that are one in memory, without those of one element.

    Examples
    --------
    >>> joined([(2, 12), (3, 4), (4, 1)])
    ((24, 1),)
    """
    axes = tuple(axes)
    if len(axes) == 1:
        return axes
    found: list[tuple[Any, Any]] = []
    for size, stride in axes:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def power_of_two(count: Any, most: int) -> Any:
    """Return the smallest power of two that is at least ``count``, up to ``most``, without asking for the size.

    Examples
    --------
    >>> [power_of_two(n, 16) for n in (0, 1, 2, 3, 9, 100)]
    [1, 1, 2, 4, 16, 16]
    """
    result: Any = 1
    step = 1
    while step < most:
        result = result + step * minimum(1, count // (step + 1))
        step *= 2
    return result
