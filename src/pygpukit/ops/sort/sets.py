"""unique in all its forms, and the set functions. The lengths of results depend on data: each reads a count or two."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty, full, zeros
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.index.masks import flatnonzero
from pygpukit.ops.operands import as_array, as_arrays
from pygpukit.ops.promotion import promote
from pygpukit.ops.registry import export
from pygpukit.ops.sort.gather import assign, put, take_last
from pygpukit.ops.sort.order import argsort, sort
from pygpukit.ops.sort.search import (
    FLAGS,
    NAN_IS_DISTINCT,
    NAN_IS_EQUAL,
    flat,
    real_type,
    runs,
    searchsorted,
)


class UniqueAllResult(NamedTuple):
    """What `unique_all` gives."""

    values: GPUArray
    indices: GPUArray
    inverse_indices: GPUArray
    counts: GPUArray


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` gives."""

    values: GPUArray
    counts: GPUArray


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` gives."""

    values: GPUArray
    inverse_indices: GPUArray


class _Unique(NamedTuple):
    values: GPUArray
    indices: GPUArray | None
    inverse: GPUArray | None
    counts: GPUArray | None


def _need(x: Any, what: str) -> GPUArray:
    return x if isinstance(x, GPUArray) else as_array(x, what)


def joined(*parts: GPUArray) -> GPUArray:
    """Return vectors as one, in their common type."""
    kind = promote([part.dtype for part in parts])
    out = empty(int(np.sum([part.size for part in parts])), kind, device=parts[0].device)
    at = 0
    for part in parts:
        if part.size:
            assign(out._slice(0, at, part.size, 1), part)
        at += part.size
    return out


def _head(x: GPUArray, count: int) -> GPUArray:
    return x._slice(0, 0, count, 1)


def _complex_flags(x: GPUArray, equal_nan: bool) -> GPUArray:
    """Return where sorted complex numbers differ from the one before."""
    flags = full(x.size, True, "bool", device=x.device)
    if x.size > 1:
        low, high = x._slice(0, 0, x.size - 1, 1), x._slice(0, 1, x.size - 1, 1)
        differ = e.not_equal(high, low)
        if equal_nan:
            differ = e.logical_and(differ, e.logical_not(e.logical_and(e.isnan(low), e.isnan(high))))
        assign(flags._slice(0, 1, x.size - 1, 1), differ)
    return flags


def _unique(x: GPUArray, *, index: bool, inverse: bool, counts: bool, equal_nan: bool) -> _Unique:
    rows, n = flat(x), x.size
    device, wide = x.device, dtype("int64")
    if n == 0:
        none = empty(0, wide, device=device)
        return _Unique(rows.copy(), none, none.reshape(x.shape), none)
    order = argsort(rows) if index or inverse or rows.dtype.kind == "c" else None
    ordered = sort(rows) if order is None else take_last(rows, order)
    if rows.dtype.kind == "c":
        found = runs(_complex_flags(ordered, equal_nan), FLAGS, inverse)
    else:
        found = runs(ordered, NAN_IS_EQUAL if equal_nan else NAN_IS_DISTINCT, inverse)
    m = int(found[1])
    starts = _head(found[0], m).copy()
    lengths = None
    if counts:
        ends = empty(m, wide, device=device)
        assign(_head(ends, m - 1), starts._slice(0, 1, m - 1, 1))
        ends._slice(0, m - 1, 1, 1).fill(n)
        lengths = e.sub(ends, starts)
    return _Unique(
        take_last(ordered, starts),
        take_last(order, starts) if index and order is not None else None,
        put(order, found[2]).reshape(x.shape) if inverse and order is not None else None,
        lengths,
    )


@export
def unique(
    x: GPUArray,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """The different elements in ascending order.

    Waits for the device to read how many there are.

    Parameters
    ----------
    x : GPUArray
    return_index : bool, optional
        Return the first position of each.
    return_inverse : bool, optional
        Return the positions in the result that make up ``x``, in its shape.
    return_counts : bool, optional
        Return how often each occurs.
    axis : None
        Rows are not compared: None, or the axis of a vector.
    equal_nan : bool, optional
        All NaN are one.

    Returns
    -------
    GPUArray, or a tuple of them

    Examples
    --------
    >>> import pygpukit as gp
    >>> values, counts = gp.unique(gp.asarray([3, 1, 3]), return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    x = _need(x, "unique()")
    if axis is not None and x.ndim != 1:
        raise ShapeError(f"unique() along axis {axis} of {x.ndim} dimensions: rows are not compared; use axis=None")
    found = _unique(x, index=return_index, inverse=return_inverse, counts=return_counts, equal_nan=equal_nan)
    wanted = zip((return_index, return_inverse, return_counts), found[1:], strict=True)
    chosen = tuple(value for asked, value in wanted if asked)
    return (found.values, *chosen) if chosen else found.values


@export
def unique_all(x: GPUArray) -> UniqueAllResult:
    """The different elements, first positions, inverse and counts; each NaN is different. Waits for their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.unique_all(gp.asarray([3, 1, 3])).indices.tolist()
    [1, 0]
    """
    found = _unique(_need(x, "unique_all()"), index=True, inverse=True, counts=True, equal_nan=False)
    return UniqueAllResult(*found)  # type: ignore[arg-type]


@export
def unique_counts(x: GPUArray) -> UniqueCountsResult:
    """The different elements and how often each occurs; each NaN is different. Waits for their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.unique_counts(gp.asarray([3, 1, 3])).counts.tolist()
    [1, 2]
    """
    found = _unique(_need(x, "unique_counts()"), index=False, inverse=False, counts=True, equal_nan=False)
    return UniqueCountsResult(found.values, found.counts)  # type: ignore[arg-type]


@export
def unique_inverse(x: GPUArray) -> UniqueInverseResult:
    """The different elements and the positions among them that make up ``x``. Waits for their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.unique_inverse(gp.asarray([3, 1, 3])).inverse_indices.tolist()
    [1, 0, 1]
    """
    found = _unique(_need(x, "unique_inverse()"), index=False, inverse=True, counts=False, equal_nan=False)
    return UniqueInverseResult(found.values, found.inverse)  # type: ignore[arg-type]


@export
def unique_values(x: GPUArray) -> GPUArray:
    """The different elements; each NaN is different. Waits for their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.unique_values(gp.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    return _unique(_need(x, "unique_values()"), index=False, inverse=False, counts=False, equal_nan=False).values


def _common(a: GPUArray, b: GPUArray, what: str) -> DataType:
    return real_type((a.dtype, b.dtype), what)


@export
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: str | None = None
) -> GPUArray:
    """Which elements occur in another array; a NaN occurs nowhere.

    Parameters
    ----------
    element, test_elements : GPUArray or number
    assume_unique : bool, optional
        Accepted for NumPy's sake.
    invert : bool, optional
        Which do not.
    kind : str, optional
        Accepted for NumPy's sake: the elements are always searched in the sorted others.

    Returns
    -------
    GPUArray
        bool, in the shape of ``element``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.isin(gp.asarray([1, 2, 3]), gp.asarray([3, 1])).tolist()
    [True, False, True]
    """
    if kind not in (None, "sort", "table"):
        raise ValueError(f"isin(): kind must be None, 'sort' or 'table', not {kind!r}")
    x, others = as_arrays("isin()", element, test_elements)
    if not others.size:
        return full(x.shape, invert, "bool", device=x.device)
    common = _common(x, others, "isin()")
    x = x.astype(common, copy=False)
    ordered = sort(flat(others.astype(common, copy=False)))
    place = e.minimum(searchsorted(ordered, x), ordered.size - 1)
    found: GPUArray = (e.not_equal if invert else e.equal)(take_last(ordered, place), x)
    return found


@export
def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False, *, kind: str | None = None) -> GPUArray:
    """Which elements of one array occur in another, as a vector; see `isin`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.in1d(gp.asarray([[1, 2]]), gp.asarray([2])).tolist()
    [False, True]
    """
    found: GPUArray = isin(ar1, ar2, assume_unique, invert, kind=kind)
    return found.reshape(-1)


@export
def intersect1d(ar1: GPUArray, ar2: GPUArray, assume_unique: bool = False, return_indices: bool = False) -> Any:
    """The elements that two arrays have in common, in ascending order. Waits for their number.

    Parameters
    ----------
    ar1, ar2 : GPUArray
    assume_unique : bool, optional
        Accepted for NumPy's sake.
    return_indices : bool, optional
        Return the first positions in both as well.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.intersect1d(gp.asarray([1, 3, 4]), gp.asarray([4, 3])).tolist()
    [3, 4]
    """
    ar1, ar2 = as_arrays("intersect1d()", ar1, ar2)
    common = _common(ar1, ar2, "intersect1d()")
    a, b = (
        _unique(x.astype(common, copy=False), index=True, inverse=False, counts=False, equal_nan=True)
        for x in (ar1, ar2)
    )
    if not a.values.size or not b.values.size:
        none = empty(0, dtype("int64"), device=ar1.device)
        empty_values = empty(0, common, device=ar1.device)
        return (empty_values, none, none) if return_indices else empty_values
    place = e.minimum(searchsorted(b.values, a.values), b.values.size - 1)
    both = flatnonzero(e.equal(take_last(b.values, place), a.values))
    values = take_last(a.values, both)
    if not return_indices:
        return values
    assert a.indices is not None
    assert b.indices is not None
    return values, take_last(a.indices, both), take_last(b.indices, take_last(place, both))


@export
def union1d(ar1: GPUArray, ar2: GPUArray) -> GPUArray:
    """The elements of two arrays, each once, in ascending order. Waits for their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.union1d(gp.asarray([1, 3]), gp.asarray([2, 3])).tolist()
    [1, 2, 3]
    """
    both = joined(*map(flat, as_arrays("union1d()", ar1, ar2)))
    return _unique(both, index=False, inverse=False, counts=False, equal_nan=True).values


@export
def setdiff1d(ar1: GPUArray, ar2: GPUArray, assume_unique: bool = False) -> GPUArray:
    """The elements of one array that another does not have. Waits for their number.

    Parameters
    ----------
    ar1, ar2 : GPUArray
    assume_unique : bool, optional
        The elements of ``ar1`` are different: they stay in their order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.setdiff1d(gp.asarray([3, 1, 2]), gp.asarray([2])).tolist()
    [1, 3]
    """
    ar1, ar2 = as_arrays("setdiff1d()", ar1, ar2)
    values = flat(ar1) if assume_unique else unique(ar1)
    return take_last(values, flatnonzero(isin(values, ar2, invert=True)))


@export
def setxor1d(ar1: GPUArray, ar2: GPUArray, assume_unique: bool = False) -> GPUArray:
    """The elements that only one of two arrays has, in ascending order. Waits for their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.setxor1d(gp.asarray([1, 2]), gp.asarray([2, 3])).tolist()
    [1, 3]
    """
    both = joined(*map(unique, as_arrays("setxor1d()", ar1, ar2)))
    found = _unique(both, index=False, inverse=False, counts=True, equal_nan=False)
    if not both.size:
        return zeros(0, both.dtype, device=both.device)
    assert found.counts is not None
    return take_last(found.values, flatnonzero(_native.apply("equal", (found.counts, 1))))
