"""histogram, histogram_bin_edges and bincount."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import zeros
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.launch import KernelLaunch, Launch, Unit, Workspace, blocks_for, i32, i64, read, update, write
from pygpukit.ops.operands import as_array, common_device
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.promotion import promote
from pygpukit.ops.reduce.rows import sum as total_of
from pygpukit.ops.registry import Operator, Parameter, Variant, export, register
from pygpukit.ops.size import ceil_div, maximum, minimum
from pygpukit.ops.sort import plans
from pygpukit.ops.sort.gather import assign, contiguous
from pygpukit.ops.sort.keys import constants, key_map
from pygpukit.ops.sort.order import argsort
from pygpukit.ops.sort.reference import comparable
from pygpukit.ops.sort.search import extent, flat, real_type, searchsorted
from pygpukit.ops.source import instance

SHARED_BINS = 2048
"""Bins whose counts a block keeps in shared memory."""

_PARTS = 2048
_SPLITS = 64


@cache
def count_unit() -> Unit:
    """Return the source of the kernels that count."""
    return instance("sort/count.cu", (), ("pgk_sort_count", "pgk_segment_sums"))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield count_unit()
    yield plans.gather_unit()


def _count_infer(p: Problem) -> list[Result]:
    edges = p.arrays["edges"]
    return [Result((p.integers["bins"] if edges is None else edges.size - 1,), dtype("int64"))]


def _count_launch(p: Problem) -> Launch:
    x, edges, bins, unit = p["x"], p.arrays["edges"], p.out.size, count_unit()
    chunk = 4096 * maximum(1, minimum(16, ceil_div(x.size, 4096 * 1024)))
    shared = bool(bins <= SHARED_BINS)
    memory = (4 * bins if edges is None else 12 * bins + 8) if shared else 0
    # The key of 0, as a signed number.
    zero = constants(x.dtype)[0] if x.dtype.kind == "i" else 0
    zero -= 2**64 if zero == 2**63 else 0
    arguments = (update(p.out), read(x), read(x if edges is None else edges), i64(x.size), i64(bins), i64(chunk),
                 i32(x.dtype.itemsize), i32(edges is not None), i32(shared), i64(zero),
                 key_map(x.dtype, ties=True))  # fmt: skip
    blocks = ceil_div(x.size, chunk)
    launches = (
        plans.clear(p.out, 2 * bins),
        KernelLaunch(unit, unit.entries[0], (blocks_for(blocks, 1, "a count"),), (256,), arguments, memory),
    )
    return Launch(launches)


def _counted(x: Any, edges: Any = None, bins: int = 0) -> Any:
    if edges is None:
        return np.bincount(x.astype(np.int64), minlength=bins)
    y, limits = comparable(x), comparable(edges)
    last = np.count_nonzero(y == limits[-1]) if limits.size > 1 else 0
    places = np.searchsorted(limits, y, "right")
    found = np.bincount(places, minlength=limits.size + 1)[1 : limits.size]
    if found.size:
        found[-1] += last
    return found


def _count_host(p: Problem) -> Callable[..., None]:
    def run(x: Any, edges: Any, bins: Any, out: Any) -> None:
        out[...] = _counted(x, edges, int(bins))

    return run


count = register(
    Operator(
        name="sort_count",
        parameters=(Parameter("x"), Parameter("edges", "optional", None), Parameter("bins", "number", 0)),
        infer=_count_infer,
        reference=_counted,
        variants=(
            Variant("counts of blocks", "batch_invariant", contiguous, launch=_count_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_count_host),
        ),
        doc="How many elements are in each bin: between edges, or of integers from 0 that are in range.",
        public=False,
    )
)


def _sums_launch(p: Problem) -> Launch:
    weight, order, starts = p["weight"], p["order"], p["starts"]
    work, unit, bins = Workspace(), count_unit(), p.out.size
    splits = maximum(1, minimum(_SPLITS, ceil_div(_PARTS, maximum(1, bins))))
    parts = work.buffer(dtype("float64"), bins, splits)
    grid = blocks_for(bins * splits, 1, "weighted counts")
    launches = (
        KernelLaunch(unit, unit.entries[1], (grid,), (256,),
                     (write(parts), read(weight), read(order), read(starts), i64(splits), i32(1))),
        KernelLaunch(unit, unit.entries[1], (bins,), (256,),
                     (write(p.out), read(parts), read(order), read(starts), i64(splits), i32(0))),
    )  # fmt: skip
    return Launch(launches, tuple(work.pieces))


def _summed(weight: Any, order: Any, starts: Any) -> Any:
    bins = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    return np.bincount(bins, weight[order[starts[0] : starts[-1]]], starts.size - 1)


def _sums_host(p: Problem) -> Callable[..., None]:
    def run(weight: Any, order: Any, starts: Any, out: Any) -> None:
        out[...] = _summed(weight, order, starts)

    return run


_segment_sums = register(
    Operator(
        name="sort_segment_sums",
        parameters=(Parameter("weight"), Parameter("order"), Parameter("starts")),
        infer=lambda p: [Result((p["starts"].size - 1,), dtype("float64"))],
        reference=_summed,
        variants=(
            Variant("blocks per segment", "run_to_run", contiguous, launch=_sums_launch, units=_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_sums_host),
        ),
        doc="Sums of float64 elements over stretches of an order, in a fixed order of additions.",
        public=False,
    )
)


def weighted(bins: GPUArray, count: int, weights: GPUArray) -> GPUArray:
    """Return the sums of float64 weights by bin below ``count``; one that is ``count`` is left out."""
    # A radix sort has a pass per byte.
    narrow = next((t for t in ("uint8", "uint16", "int32") if count <= np.iinfo(t).max), "int64")
    bins = bins.astype(narrow, copy=False)
    order = argsort(bins)
    every = from_numpy(np.arange(count + 1, dtype=narrow), device=bins.device)
    starts = searchsorted(bins, every, "left", order)
    made: GPUArray = _segment_sums(weights, order, starts)
    return made


def weights_of(weights: Any, like: GPUArray, what: str, text: str) -> GPUArray:
    """Return a weight for each element of another array, in float64."""
    weights, shape = as_array(weights, f"{what}: weights", like.device), like.shape
    if weights.shape != shape:
        raise ShapeError(f"{what}: {text}")
    if weights.dtype.kind == "c":
        raise DTypeError(f"{what}: weights must be real, not {weights.dtype.name}")
    return flat(weights.astype("float64", copy=False))


@export
def bincount(x: GPUArray, weights: GPUArray | None = None, minlength: int = 0) -> GPUArray:
    """How often each integer from 0 on occurs, or the sums of their weights.

    Waits for the device to read the smallest and the largest.

    Parameters
    ----------
    x : GPUArray
        A vector of integers that are not negative.
    weights : GPUArray, optional
        One per element, summed in float64 in an order that depends on the data alone.
    minlength : int, optional
        Number of bins at least.

    Returns
    -------
    GPUArray
        int64, with weights float64.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.bincount(gp.asarray([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    x = as_array(x, "bincount()", common_device((weights,)))
    if x.ndim != 1:
        raise ShapeError(f"bincount() needs a vector, not an array of {x.ndim} dimensions")
    if x.size and x.dtype.kind not in "biu":
        raise DTypeError(f"bincount() needs integers, not {x.dtype.name}")
    if minlength is None:
        raise TypeError("bincount(): minlength is an int, 0 by default")
    least = operator.index(minlength)
    if least < 0:
        raise ValueError(f"bincount(): minlength must not be negative, and is {least}")
    given = None if weights is None else weights_of(
        weights, x, "bincount()", f"give as many weights as there are elements, {x.size}"
    )  # fmt: skip
    if not x.size:
        return zeros(least, "int64" if given is None else "float64", device=x.device)
    values = x.contiguous()
    values = values.astype("uint8") if values.dtype.kind == "b" else values
    low, high = extent(values).tolist()
    if low < 0:
        raise ValueError(f"bincount() counts integers from 0 on, and the smallest here is {low}")
    bins = max(least, high + 1)
    if given is None:
        counts: GPUArray = count(values, None, bins)
        return counts
    return weighted(values.astype("int64", copy=False), bins, given)


def _bins(bins: Any) -> int | GPUArray | np.ndarray[Any, Any]:
    """Return a number of bins, or limits on the device or the host.

    Raises
    ------
    TypeError, ValueError
        If they are neither; limits on the host must be in order.
    """
    if isinstance(bins, GPUArray):
        limits: Any = bins
    elif isinstance(bins, str):
        raise ValueError(f"a histogram's bins are a number or limits here, not the rule {bins!r}")
    elif np.ndim(bins) == 0:
        try:
            count = operator.index(bins)
        except TypeError:
            raise TypeError(f"a histogram's bins must be an int or an array of limits, not {bins!r}") from None
        if count < 1:
            raise ValueError(f"a histogram needs at least one bin, not {count}")
        return count
    else:
        limits = np.asarray(bins)
        if limits.ndim == 1 and np.any(limits[:-1] > limits[1:]):
            raise ValueError("a histogram's limits must be in ascending order")
    if limits.ndim != 1:
        raise ShapeError(f"a histogram's limits must be a vector, not an array of {limits.ndim} dimensions")
    return limits  # type: ignore[no-any-return]


def _edge_type(kind: DataType) -> DataType:
    return kind if kind.kind == "f" else dtype("float64")


def edges_of(x: GPUArray, bins: Any, span: Any, given: DataType | None = None) -> GPUArray:
    """Return the limits of the bins on the device of ``x``; ``given`` is their type where a range is given."""
    chosen = _bins(bins)
    if isinstance(chosen, GPUArray):
        return chosen
    if not isinstance(chosen, int):
        return from_numpy(chosen, device=x.device)
    kind = _edge_type(x.dtype) if span is None or given is None else given
    if span is not None:
        low, high = (float(limit) for limit in span)
        if low > high:
            raise ValueError(f"range ({low:g}, {high:g}) of a histogram: the second must be larger than the first")
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError(f"range [{low:g}, {high:g}] of a histogram is not finite")
    elif x.size:
        return _edges_of_data(x, chosen, kind)
    else:
        low, high = 0.0, 1.0
    if low == high:
        low, high = low - 0.5, high + 0.5
    on_host = to_numpy_dtype(kind)
    if kind.name not in ("float64", "float32", "float16"):
        return from_numpy(np.linspace(low, high, chosen + 1).astype(on_host), device=x.device)
    return from_numpy(np.linspace(low, high, chosen + 1, dtype=on_host), device=x.device)


def _edges_of_data(x: GPUArray, bins: int, kind: DataType) -> GPUArray:
    """Return limits from the smallest to the largest element, computed on the device as NumPy's ``linspace`` does."""
    values = flat(x)
    ends = extent(values.astype("uint8") if x.dtype.kind == "b" else values).astype(kind, copy=False)
    low, high = ends._select(0, 0), ends._select(0, 1)
    alone = e.equal(low, high)
    low, high = e.where(alone, e.sub(low, 0.5), low), e.where(alone, e.add(high, 0.5), high)
    step = e.div(e.sub(high, low), bins)
    places = from_numpy(np.arange(bins + 1).astype(to_numpy_dtype(kind)), device=x.device)
    edges: GPUArray = e.add(e.mul(places, step), low)
    assign(edges._slice(0, bins, 1, 1), high._expand(0))
    return edges


@export
def histogram_bin_edges(x: GPUArray, bins: Any = 10, range: Any = None, weights: Any = None) -> GPUArray:
    """The limits of the bins that `histogram` uses.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.histogram_bin_edges(gp.asarray([0.0, 1.0, 4.0]), bins=2).tolist()
    [0.0, 2.0, 4.0]
    """
    x = as_array(x, "histogram_bin_edges()")
    real_type((x.dtype,), "histogram_bin_edges()")
    return edges_of(x, bins, range)


@export
def histogram(
    x: GPUArray, bins: Any = 10, range: Any = None, density: bool | None = None, weights: GPUArray | None = None
) -> tuple[GPUArray, GPUArray]:
    """How many elements are in each bin, and the limits of the bins.

    Bins contain their lower limit, the last one its upper limit as well. Elements outside, and NaN, are not counted.
    Nothing waits for the device, so a NaN among data whose range was not given is no error: the limits are NaN, and
    nothing is counted.

    Parameters
    ----------
    x : GPUArray
    bins : int or array of limits, optional
        That limits in a GPUArray are in order is not checked.
    range : pair of numbers, optional
        From where to where the bins go; the smallest and the largest element by default.
    density : bool, optional
        Give the density of the elements: their integral over the bins is 1.
    weights : GPUArray, optional
        What each element counts; sums are in float64, in an order that depends on the data alone.

    Returns
    -------
    tuple of GPUArray
        Counts (int64, float64 for a density, else of the type of the weights) and limits.

    Examples
    --------
    >>> import pygpukit as gp
    >>> counts, edges = gp.histogram(gp.asarray([1.0, 2.0, 4.0]), bins=3)
    >>> counts.tolist(), edges.tolist()
    ([1, 1, 1], [1.0, 2.0, 3.0, 4.0])
    """
    x = as_array(x, "histogram()", common_device((weights,)))
    real_type((x.dtype,), "histogram()")
    given = None if weights is None else weights_of(weights, x, "histogram()", "weights and elements differ in shape")
    edges = edges_of(x, bins, range)
    common = promote((x.dtype, edges.dtype))
    values, limits = flat(x.astype(common, copy=False)), edges.astype(common, copy=False).contiguous()
    counts: GPUArray
    if given is None:
        counts = count(values, limits) if edges.size > 1 else zeros(0, "int64", device=x.device)
    else:
        assert weights is not None
        counts = _weighted_histogram(values, limits, given).astype(weights.dtype, copy=False)
    if density:
        widths = e.sub(edges._slice(0, 1, edges.size - 1, 1), edges._slice(0, 0, edges.size - 1, 1)).astype("float64")
        counts = e.div(e.div(counts, widths), total_of(counts))
    return counts, edges


def _weighted_histogram(values: GPUArray, limits: GPUArray, weights: GPUArray) -> GPUArray:
    bins = limits.size - 1
    if bins < 1 or not values.size:
        return zeros(max(bins, 0), "float64", device=values.device)
    top = limits._select(0, bins)
    places = e.where(e.equal(values, top), bins, searchsorted(limits, values, "right"))
    return weighted(places, bins + 1, weights)._slice(0, 1, bins, 1).copy()
