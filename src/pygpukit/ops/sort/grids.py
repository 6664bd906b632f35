"""histogramdd and histogram2d: counts over bins of several values per element."""

from __future__ import annotations

import math
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.operands import as_arrays
from pygpukit.ops.promotion import promote
from pygpukit.ops.reduce.rows import sum as total_of
from pygpukit.ops.registry import export
from pygpukit.ops.sort.counts import count, edges_of, weighted, weights_of
from pygpukit.ops.sort.search import flat, real_type, searchsorted


def _columns(sample: Any) -> list[GPUArray]:
    if isinstance(sample, GPUArray):
        if sample.ndim == 1:
            return [sample]
        if sample.ndim != 2:
            raise ShapeError(f"histogramdd() needs elements as rows, not an array of {sample.ndim} dimensions")
        return [sample._select(1, i) for i in range(sample.shape[1])]
    sample = [sample] if isinstance(sample, list) and all(isinstance(x, int | float) for x in sample) else sample
    columns = list(as_arrays("histogramdd()", *sample))
    if not columns:
        raise ValueError("histogramdd() needs a vector for each axis, and the sequence is empty")
    if any(c.ndim != 1 or c.size != columns[0].size for c in columns):
        raise ShapeError(f"histogramdd() needs vectors of one length, not {[tuple(c.shape) for c in columns]}")
    return columns


def _places(values: GPUArray, edges: GPUArray) -> GPUArray:
    """Return the bin of each element, from 1; 0 below all bins and one more than there are above them, and of NaN."""
    common = promote((values.dtype, edges.dtype))
    values, limits = flat(values.astype(common, copy=False)), edges.astype(common, copy=False).contiguous()
    bins = limits.size - 1
    found: GPUArray = e.where(e.equal(values, limits._select(0, bins)), bins, searchsorted(limits, values, "right"))
    return found


@export
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: GPUArray | None = None
) -> tuple[GPUArray, tuple[GPUArray, ...]]:
    """How many elements are in each bin of a grid, and the limits of the bins along each axis; see `histogram`.

    Parameters
    ----------
    sample : GPUArray or sequence of GPUArray
        A row per element, or a vector per axis.
    bins : int, or sequence of ints and arrays of limits, optional
        For all axes, or for each.
    range : sequence of pairs of numbers, optional
        From where to where the bins of each axis go; None for an axis means the smallest and the largest element.
    density : bool, optional
        Give the density of the elements.
    weights : GPUArray, optional
        What each element counts.

    Returns
    -------
    tuple
        Counts as float64, and a tuple of limits.

    Examples
    --------
    >>> import pygpukit as gp
    >>> counts, edges = gp.histogramdd(gp.asarray([[0.0, 0.0], [1.0, 3.0], [2.0, 4.0]]), bins=2)
    >>> counts.tolist(), edges[1].tolist()
    ([[1.0, 0.0], [0.0, 2.0]], [0.0, 2.0, 4.0])
    """
    columns = _columns(sample)
    axes = len(columns)
    if not axes:
        raise ValueError("histogramdd() needs at least one coordinate of the elements")
    per_axis = list(bins) if not isinstance(bins, int | str) and hasattr(bins, "__len__") else [bins] * axes
    if len(per_axis) != axes:
        raise ValueError(f"histogramdd() got bins for {len(per_axis)} axes, and the sample has {axes}")
    spans = [None] * axes if range is None else list(range)
    if len(spans) != axes:
        raise ValueError(f"histogramdd() got a range for {len(spans)} axes, and the sample has {axes}")
    for column in columns:
        real_type((column.dtype,), "histogramdd()")
    edges = [edges_of(c, b, s, dtype("float64")) for c, b, s in zip(columns, per_axis, spans, strict=True)]
    sizes = [limits.size + 1 for limits in edges]
    index: GPUArray | None = None
    for column, limits, size in zip(columns, edges, sizes, strict=True):
        places = _places(column, limits)
        index = places if index is None else e.add(e.mul(index, size), places)
    assert index is not None
    cells = math.prod(sizes)
    if weights is None:
        counts = count(index, None, cells).astype("float64")
    else:
        text = "weights and elements differ in number"
        counts = weighted(index, cells, weights_of(weights, columns[0], "histogramdd()", text))
    counts = counts.reshape(sizes)
    for axis, size in enumerate(sizes):
        counts = counts._slice(axis, 1, size - 2, 1)
    counts = counts.copy()
    if density:
        whole = total_of(counts)
        for axis, limits in enumerate(edges):
            n = limits.size - 1
            widths = e.sub(limits._slice(0, 1, n, 1), limits._slice(0, 0, n, 1)).astype("float64")
            counts = e.div(counts, widths.reshape([n if i == axis else 1 for i, _ in enumerate(sizes)]))
        counts = e.div(counts, whole)
    return counts, tuple(edges)


@export
def histogram2d(
    x: GPUArray,
    y: GPUArray,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: GPUArray | None = None,
) -> tuple[GPUArray, GPUArray, GPUArray]:
    """How many pairs of elements are in each bin of a grid, and the limits along both axes; see `histogramdd`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([0.0, 1.0, 2.0])
    >>> gp.histogram2d(x, x, bins=2)[0].tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    alone = isinstance(bins, GPUArray) or (hasattr(bins, "__len__") and len(bins) not in (1, 2))
    counts, (xedges, yedges) = histogramdd((x, y), [bins, bins] if alone else bins, range, density, weights)
    return counts, xedges, yedges
