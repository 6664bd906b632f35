"""Arrays cut along an axis, into views."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops.operands import axis_of
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import need

Sections = int | Sequence[int]
"""A number of parts, or the indices at which parts begin."""


def _bounds(n: int, sections: Any, what: str) -> list[tuple[int, int]]:
    """Return start and length of the parts of an axis."""
    if isinstance(sections, GPUArray):
        raise TypeError(f"{what} takes a number of parts or a list of indices; read them with tolist()")
    if hasattr(sections, "__len__"):
        starts = [0, *(operator.index(i) for i in sections)]
        cuts = [slice(a, b).indices(n)[:2] for a, b in zip(starts, [*starts[1:], None], strict=True)]
        return [(start, max(stop - start, 0)) for start, stop in cuts]
    count = int(sections)
    if count <= 0:
        raise ValueError(f"{what}: number sections must be larger than 0, not {count}")
    each, more = divmod(n, count)
    return [(i * each + min(i, more), each + (i < more)) for i in range(count)]


def _parts(x: GPUArray, sections: Any, axis: int, what: str) -> list[GPUArray]:
    return [x._slice(axis, start, count, 1) for start, count in _bounds(x.shape[axis], sections, what)]


@export
def array_split(ary: GPUArray, indices_or_sections: Sections, axis: int = 0) -> list[GPUArray]:
    """Views of the parts of an array along an axis; a number of parts need not divide its length.

    Parameters
    ----------
    ary : GPUArray
    indices_or_sections : int or sequence of int
        A number of parts, or the indices at which they begin.
    axis : int, optional

    Examples
    --------
    >>> import pygpukit as gp
    >>> [part.tolist() for part in gp.array_split(gp.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    x = need(ary, "array_split()")
    return _parts(x, indices_or_sections, axis_of(axis, x.ndim), "array_split()")


def _split(ary: GPUArray, sections: Any, axis: int, what: str) -> list[GPUArray]:
    x = need(ary, what)
    place = axis_of(axis, x.ndim)
    if not hasattr(sections, "__len__") and int(sections) and x.shape[place] % int(sections):
        raise ValueError(
            f"{what}: an axis of {x.shape[place]} elements is not cut into {int(sections)} equal parts; use array_split"
        )
    return _parts(x, sections, place, what)


@export
def split(ary: GPUArray, indices_or_sections: Sections, axis: int = 0) -> list[GPUArray]:
    """Views of equal parts of an array along an axis, or of parts that begin at given indices; see `array_split`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [part.tolist() for part in gp.split(gp.arange(4), 2)]
    [[0, 1], [2, 3]]
    """
    return _split(ary, indices_or_sections, axis, "split()")


def _split_axis(ary: GPUArray, sections: Any, axis: int, what: str) -> list[GPUArray]:
    ary = need(ary, what)
    if ary.ndim <= axis:
        raise ValueError(f"{what} only works on arrays of {axis + 1} or more dimensions, not {ary.ndim}")
    return _split(ary, sections, axis, what)


@export
def hsplit(ary: GPUArray, indices_or_sections: Sections) -> list[GPUArray]:
    """Views of parts along the second axis; of a vector along its only one. See `split`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [part.shape for part in gp.hsplit(gp.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    ary = need(ary, "hsplit()")
    return _split_axis(ary, indices_or_sections, int(ary.ndim > 1), "hsplit()")


@export
def vsplit(ary: GPUArray, indices_or_sections: Sections) -> list[GPUArray]:
    """Views of parts along the first axis; see `split`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [part.shape for part in gp.vsplit(gp.ones((2, 4)), 2)]
    [(1, 4), (1, 4)]
    """
    ary = need(ary, "vsplit()")
    if ary.ndim < 2:
        raise ValueError(f"vsplit() only works on arrays of 2 or more dimensions, not {ary.ndim}")
    return _split(ary, indices_or_sections, 0, "vsplit()")


@export
def dsplit(ary: GPUArray, indices_or_sections: Sections) -> list[GPUArray]:
    """Views of parts along the third axis; see `split`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [part.shape for part in gp.dsplit(gp.ones((1, 2, 4)), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return _split_axis(ary, indices_or_sections, 2, "dsplit()")


@export
def unstack(x: GPUArray, /, *, axis: int = 0) -> tuple[GPUArray, ...]:
    """Views of the elements along an axis, without it.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [row.tolist() for row in gp.unstack(gp.asarray([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    x = need(x, "unstack()")
    if x.ndim == 0:
        raise ValueError("unstack() needs an array of at least one dimension")
    place = axis_of(axis, x.ndim)
    return tuple(x._select(place, i) for i in range(x.shape[place]))
