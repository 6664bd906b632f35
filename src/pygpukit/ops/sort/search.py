"""searchsorted and digitize, and the runs of equal elements that unique and the set functions are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.launch import KernelLaunch, Launch, Unit, Workspace, blocks_for, i32, i64, read, update, write
from pygpukit.ops.operands import as_array, common_device
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.promotion import promote
from pygpukit.ops.registry import Operator, Parameter, Variant, as_method, export, register
from pygpukit.ops.size import ceil_div, minimum
from pygpukit.ops.sort import plans
from pygpukit.ops.sort.gather import contiguous
from pygpukit.ops.sort.keys import key_map
from pygpukit.ops.sort.reference import comparable
from pygpukit.ops.source import instance

RUN_TILE = 4096
_EXTENT_BLOCKS = 1024


@cache
def search_unit() -> Unit:
    """Return the source of the kernels that search."""
    return instance("sort/search.cu", (), ("pgk_searchsorted", "pgk_sort_runs", "pgk_sort_extent"))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield search_unit()
    yield plans.gather_unit()


def flat(x: GPUArray) -> GPUArray:
    """Return the elements as a contiguous vector."""
    return x.contiguous().reshape(-1)


def array_of(x: Any, like: GPUArray, what: str) -> GPUArray:
    """Return a number or a list as an array on the device of another; arrays as they are."""
    return x if isinstance(x, GPUArray) else as_array(x, what, like.device)


def real_type(kinds: Sequence[DataType], what: str) -> DataType:
    """Return the type elements of several arrays are compared in.

    Raises
    ------
    DTypeError
        If one is complex.
    """
    common = promote(kinds)
    if common.kind == "c":
        raise DTypeError(f"{what} is not defined for {common.name}; use the real and imaginary parts")
    return common


def _search_infer(p: Problem) -> list[Result]:
    return [Result(p["v"].shape, dtype("int64"))]


def _search_launch(p: Problem) -> Launch:
    a, v, sorter = p["a"], p["v"], p.arrays["sorter"]
    arguments = (write(p.out), read(a), read(v), read(a if sorter is None else sorter), i64(a.size), i64(v.size),
                 i32(a.dtype.itemsize), i32(p.options["side"] == "right"), i32(sorter is not None),
                 key_map(a.dtype, ties=True))  # fmt: skip
    unit = search_unit()
    blocks = blocks_for(v.size, 256, "searchsorted")
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (256,), arguments),))


def _search_host(p: Problem) -> Callable[..., None]:
    side = p.options["side"]

    def run(a: Any, v: Any, sorter: Any, out: Any) -> None:
        out[...] = np.searchsorted(comparable(a), comparable(v), side, sorter)

    return run


_search = register(
    Operator(
        name="sort_search",
        parameters=(Parameter("a"), Parameter("v"), Parameter("side", "choice"), Parameter("sorter", "optional", None)),
        infer=_search_infer,
        reference=np.searchsorted,
        variants=(
            Variant("a search per thread", "batch_invariant", contiguous, launch=_search_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_search_host),
        ),
        doc="searchsorted of contiguous arrays of one type.",
        public=False,
    )
)


def _runs_infer(p: Problem) -> list[Result]:
    wide = dtype("int64")
    n = p["x"].size
    return [Result((n,), wide), Result((1,), wide), *([Result((n,), wide)] if p.options["groups"] else [])]


def _runs_launch(p: Problem) -> Launch:
    x, grouped = p["x"], bool(p.options["groups"])
    starts, count, *groups = p.outputs
    work, unit = Workspace(), search_unit()
    tiles = blocks_for(x.size, RUN_TILE, "a search for runs")
    looks = work.buffer(dtype("uint64"), tiles)
    counter = work.counters(dtype("uint32"), 1)
    arguments = (write(starts), write(groups[0]) if grouped else read(x), write(count), read(x), update(looks),
                 update(counter), i64(x.size), i32(x.dtype.itemsize), i32(p.options["mode"]), i32(grouped),
                 key_map(x.dtype, ties=True))  # fmt: skip
    launches = (plans.clear(looks, 2 * tiles), KernelLaunch(unit, unit.entries[1], (tiles,), (256,), arguments))
    return Launch(launches, tuple(work.pieces))


def _runs_host(p: Problem) -> Callable[..., None]:
    mode = p.options["mode"]

    def run(x: Any, starts: Any, count: Any, *groups: Any) -> None:
        y = comparable(x)
        if mode == 2:
            begins = y != 0
        else:
            begins = np.ones(y.shape, bool)
            begins[1:] = y[1:] != y[:-1]
            if mode == 0 and y.dtype.kind == "f":
                begins[1:] &= ~(np.isnan(y[1:]) & np.isnan(y[:-1]))
        found = np.flatnonzero(begins)
        starts[: found.size] = found
        count[0] = found.size
        if groups:
            groups[0][...] = np.cumsum(begins) - 1

    return run


# Modes of `runs`.
NAN_IS_EQUAL, NAN_IS_DISTINCT, FLAGS = 0, 1, 2

runs = register(
    Operator(
        name="sort_runs",
        parameters=(Parameter("x"), Parameter("mode", "choice", 0), Parameter("groups", "choice", False)),
        infer=_runs_infer,
        reference=lambda x, mode=0, groups=False: x,
        variants=(
            Variant("tiles that look back", "batch_invariant", contiguous, launch=_runs_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_runs_host),
        ),
        doc="First positions of the runs of a sorted vector, how many there are, and the run of each element.",
        public=False,
    )
)


def _extent_infer(p: Problem) -> list[Result]:
    return [Result((2,), p["x"].dtype)]


def _extent_launch(p: Problem) -> Launch:
    x, work, unit = p["x"], Workspace(), search_unit()
    counters = work.counters(dtype("uint64"), 3)
    blocks = minimum(ceil_div(x.size, 1024), _EXTENT_BLOCKS)
    arguments = (write(p.out), read(x), update(counters), i64(x.size), i32(x.dtype.itemsize), key_map(x.dtype))
    return Launch((KernelLaunch(unit, unit.entries[2], (blocks,), (256,), arguments),), tuple(work.pieces))


def _extent_host(p: Problem) -> Callable[..., None]:
    def run(x: Any, out: Any) -> None:
        # NaN counts as the largest.
        ordered = comparable(x).reshape(-1)
        out[0] = np.fmin.reduce(ordered)
        out[1] = ordered.max()

    return run


extent = register(
    Operator(
        name="sort_extent",
        parameters=(Parameter("x"),),
        infer=_extent_infer,
        reference=lambda x: np.array([x.min(), x.max()]),
        variants=(
            Variant("keys and counters", "batch_invariant", contiguous, launch=_extent_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_extent_host),
        ),
        doc="The smallest and the largest element; NaN is larger than all numbers.",
        public=False,
    )
)


@export
def searchsorted(a: GPUArray, v: Any, side: str = "left", sorter: GPUArray | None = None) -> GPUArray:
    """Where elements would be inserted into a sorted vector to keep it sorted.

    Parameters
    ----------
    a : GPUArray
        A vector in ascending order, or in any with ``sorter``.
    v : GPUArray or number
    side : str, optional
        ``"left"`` of equal elements, or ``"right"``.
    sorter : GPUArray of integers, optional
        The positions that sort ``a``, all in range: this is not checked.

    Returns
    -------
    GPUArray
        int64, in the shape of ``v``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.searchsorted(gp.asarray([1, 3, 5]), gp.asarray([0, 3, 9])).tolist()
    [0, 1, 3]
    """
    a = as_array(a, "searchsorted()", common_device((v,)))
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted(): side must be 'left' or 'right', not {side!r}")
    if a.ndim != 1:
        raise ShapeError(f"searchsorted() needs a sorted vector, not an array of {a.ndim} dimensions")
    values = array_of(v, a, "searchsorted()")
    if sorter is not None:
        if sorter.dtype.kind not in "iu":
            raise DTypeError(f"searchsorted(): sorter must hold integers, not {sorter.dtype.name}")
        if sorter.shape != a.shape:
            raise ShapeError(f"searchsorted(): sorter has {sorter.size} elements, and a has {a.size}")
        sorter = sorter.astype("int64", copy=False).contiguous()
    common = real_type((a.dtype, values.dtype), "searchsorted()")
    found: GPUArray = _search(
        a.astype(common, copy=False).contiguous(), values.astype(common, copy=False).contiguous(), side, sorter
    )
    return found


def _searchsorted_method(self: GPUArray, v: Any, side: str = "left", sorter: GPUArray | None = None) -> GPUArray:
    """Where elements would be inserted into this sorted vector; see `pygpukit.searchsorted`."""
    found: GPUArray = searchsorted(self, v, side, sorter)
    return found


as_method(_searchsorted_method, "searchsorted")


@export
def digitize(x: Any, bins: GPUArray, right: bool = False) -> GPUArray:
    """The bin of each element: how many of the ascending limits are not above it (with ``right``, below it).

    Parameters
    ----------
    x : GPUArray or number
    bins : GPUArray
        A vector of limits in ascending or descending order. That they are in order is not checked.
    right : bool, optional
        A bin contains its upper limit instead of its lower one.

    Returns
    -------
    GPUArray
        int64, in the shape of ``x``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.digitize(gp.asarray([0.5, 1.0, 7.0]), gp.asarray([0.0, 1.0, 2.0])).tolist()
    [1, 2, 3]
    """
    bins = as_array(bins, "digitize()", common_device((x,)))
    values = array_of(x, bins, "digitize()")
    side = "left" if right else "right"
    ascending: GPUArray = searchsorted(bins, values, side)
    n = bins.size
    if n < 2:
        return ascending
    descending = e.sub(n, searchsorted(bins[::-1], values, side))
    chosen: GPUArray = e.where(e.less(bins._select(0, n - 1), bins._select(0, 0)), descending, ascending)
    return chosen
