"""Scans along one axis: cumulative sums, products and extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, Workspace, blocks_for, i64, nd, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.reduce.derived import streamed
from pygpukit.ops.reduce.layout import axis_of, joined
from pygpukit.ops.reduce.reference import cast_first, result_type, wide_type
from pygpukit.ops.reduce.table import SCANS, Row
from pygpukit.ops.registry import Case, Operator, Variant, register
from pygpukit.ops.size import ceil_div, hint, product
from pygpukit.ops.source import instance

_FILE = "reduce/scan.cu"
_THREADS = 256
_COLUMNS = 32
_WARPS = 8
_SPANS = 32


def chunk(x: DataType) -> int:
    """Return how many elements a block scans; part of the definition of the result's bits."""
    return 128 * 32 * min(4, 16 // x.itemsize)


def entries(row: Row, x: DataType, wide: DataType, to: DataType, *, by_columns: bool) -> tuple[str, str]:
    """Return the names of the kernel that scans and of the one that finds totals."""
    own = row.result(x)
    tags = [x.tag] if to is own and wide is row.accumulator(x, own) else [x.tag, "to", to.tag, "by", wide.tag]
    name = "_".join([f"pgk_{row.name}", *tags, *(["cols"] if by_columns else [])])
    return name, f"{name}_totals"


@cache
def unit(name: str, x: DataType, wide: DataType, to: DataType, *, by_columns: bool) -> Unit:
    """Return the source of a scan of ``x`` computed in ``wide`` and written as ``to``."""
    row = SCANS[name]
    names = entries(row, x, wide, to, by_columns=by_columns)
    struct = f"pgk::{row.kernel}<pgk::{x.tag}, pgk::{wide.tag}>"
    macro = "PGK_SCAN_COLS" if by_columns else "PGK_SCAN_ROWS"
    return instance(_FILE, [f"{macro}({', '.join([*names, x.tag, wide.tag, to.tag, struct])})"], names)


def units(row: Row, types: Sequence[str]) -> Iterator[Unit]:
    """Return the sources a bundle holds."""
    for kind in map(dtype, types):
        to = row.result(kind)
        wide = row.accumulator(kind, to)
        yield unit(row.name, kind, wide, to, by_columns=False)
        yield unit(row.name, kind, wide, to, by_columns=True)
        yield unit(row.name, wide, wide, wide, by_columns=False)


def launches(row: Row, x: Tensor, out: Tensor, wide: DataType, axis: int | None) -> Launch:
    """Return the launches of a scan into a contiguous ``out``.

    Of an axis longer than a `chunk` first the totals of its chunks are found and scanned.
    """
    work = Workspace()
    if axis is None:
        ((n, stride),) = joined(zip(x.shape, x.strides, strict=True)) or ((1, 1),)
        kept: Sequence[tuple[Any, Any]] = ()
        inner: Any = 1
    else:
        n, stride = x.shape[axis], x.strides[axis]
        kept = joined((x.shape[i], x.strides[i]) for i in range(x.ndim) if i != axis)
        inner = product(x.shape[axis + 1 :])
    return Launch(tuple(_steps(work, row, x, out, wide, (n, stride, inner), kept)), tuple(work.pieces))


def _steps(work: Workspace, row: Row, x: Tensor, out: Tensor, wide: DataType, sizes: tuple[Any, Any, Any],
           kept: Sequence[tuple[Any, Any]]) -> list[KernelLaunch]:  # fmt: skip
    n, stride, inner = sizes
    by_columns = bool(inner != 1)
    source = unit(row.name, x.dtype, wide, out.dtype, by_columns=by_columns)
    single = bool(n <= chunk(x.dtype))
    chunks: Any = 1 if single else ceil_div(n, chunk(x.dtype))
    results = product(size for size, _ in kept)
    rows = results
    if by_columns:
        rows = results // inner * ceil_div(inner, _COLUMNS)
    elif n <= chunk(x.dtype) // _SPANS:
        rows = ceil_div(results, _WARPS)
    grid = (blocks_for(rows * chunks, 1, f"a scan of {hint(results)} rows of {hint(n)} elements"),)
    form = nd([size for size, _ in kept], [[step for _, step in kept]])
    last = [i64(v) for v in (n, stride, inner if by_columns else results, chunks)]
    steps = []
    before = out
    if not single:
        totals, before = (work.buffer(wide, results, chunks) for _ in range(2))
        arguments: tuple[Argument, ...] = (write(totals), read(x), form, *last)
        steps.append(KernelLaunch(source, source.entries[1], grid, (_THREADS,), arguments))
        steps += _steps(work, row, totals, before, wide, (chunks, 1, 1), ((results, chunks),))
    use = write(before) if single else read(before)
    whole: tuple[Argument, ...] = (write(out), use, read(x), form, *last)
    steps.append(KernelLaunch(source, source.entries[0], grid, (_THREADS,), whole))
    return steps


class _Scan:
    """What the registry asks of one row."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def axis(self, p: Problem) -> int | None:
        """The scanned axis; None for all elements in row-major order."""
        axis, x = p.options["axis"], p["x"]
        if axis is None:
            return 0 if x.ndim == 1 else None
        found = axis_of(axis, x.ndim)
        return found if x.ndim else None

    def infer(self, p: Problem) -> list[Result]:
        x = p["x"]
        kind = result_type(self.row, x.dtype, p.options.get("dtype"), p.requested[0] if p.requested else None)
        return [Result((x.size,) if self.axis(p) is None else x.shape, kind)]

    def wide(self, p: Problem) -> DataType:
        """The type that is computed in."""
        return wide_type(self.row, p["x"].dtype, p.options.get("dtype"), p.out.dtype)

    def accepts(self, p: Problem) -> str | None:
        x, axis, row = p["x"], self.axis(p), self.row
        if cast_first(row, x.dtype, p.options.get("dtype")) is not None:
            return "the elements are cast to dtype first"
        if not p.out.is_contiguous():
            return "out is not contiguous"
        if axis is None:
            if not x.is_contiguous():
                return "the elements are not one axis in memory"
        elif (
            x.strides[axis] != 1
            and product(x.shape[axis + 1 :]) == 1
            and any(s == 1 for s in x.strides)
            # The stride of an axis of one element says nothing, and a copy would not change it.
            and not x.is_contiguous()
        ):
            return "neighbours in memory are not those of the result"
        wide = self.wide(p)
        if p.out.dtype is row.result(x.dtype) and wide is row.accumulator(x.dtype, p.out.dtype):
            return None
        return p.missing(unit(row.name, x.dtype, wide, p.out.dtype, by_columns=False))

    def launch(self, p: Problem) -> Launch:
        return launches(self.row, p["x"], p.out, self.wide(p), self.axis(p))

    def compose(self, p: Problem) -> Callable[..., None]:
        row, x, wide = self.row, p["x"], self.wide(p)
        if (first := cast_first(row, x.dtype, p.options.get("dtype"))) is not None:
            return partial(_of_cast_elements, _FUNCTIONS[row.name], first, p.options["axis"])
        made = unit(row.name, x.dtype, wide, p.out.dtype, by_columns=False)
        own = p.out.dtype is row.result(x.dtype) and wide is row.accumulator(x.dtype, p.out.dtype)
        cast = None if own or p.missing(made) is None else wide
        return partial(_by_a_copy, _FUNCTIONS[row.name], p.options["axis"], cast, p.options.get("dtype"))

    def host(self, p: Problem) -> Callable[..., None]:
        axis, wide = self.axis(p), to_numpy_dtype(self.wide(p))
        first = cast_first(self.row, p["x"].dtype, p.options.get("dtype"))
        kind = first or p["x"].dtype
        accumulate, direct = self.row.numpy.accumulate, p.out.dtype is self.wide(p) and kind.kind != "b"
        cast = None if first is None else to_numpy_dtype(first)

        def run(x: Any, out: Any) -> None:
            x = x.reshape(-1) if axis is None else x
            x = x if cast is None else x.astype(cast)
            if direct:
                accumulate(x, axis or 0, wide, out)
            else:
                np.copyto(out, accumulate(x.astype(wide, copy=False), axis or 0), casting="unsafe")

        return run

    def reference(self, x: Any, axis: Any = None, dtype: Any = None) -> Any:
        from pygpukit.dtypes import dtype as as_dtype

        x = np.asarray(x)
        kind = as_dtype(x.dtype)
        to = result_type(self.row, kind, dtype, None)
        wide = to_numpy_dtype(wide_type(self.row, kind, dtype, to))
        x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
        return self.row.numpy.accumulate(x.astype(wide), axis).astype(to_numpy_dtype(to), copy=False)


def _of_cast_elements(function: Callable[..., Any], kind: DataType, axis: Any, results: tuple[Any, ...],
                      given: tuple[Any, ...]) -> None:  # fmt: skip
    """Cast the elements to the type of the result, and scan them."""
    function(given[0].astype(kind), axis, kind, out=results[0])


def _by_a_copy(function: Callable[..., Any], axis: Any, cast: DataType | None, kind: Any,
               results: tuple[Any, ...], given: tuple[Any, ...]) -> None:  # fmt: skip
    """Scan a contiguous copy, or a cast one, into a contiguous array and copy that."""
    x = given[0].contiguous() if cast is None else given[0].astype(cast)
    options = {} if kind is None or cast is not None else {"dtype": kind}
    _native.apply("copy", (function(x, axis, **options),), results[0])


def _made(row: Row) -> Callable[..., Any]:
    r = _Scan(row)
    return register(
        Operator(
            name=row.name,
            parameters=row.parameters,
            infer=r.infer,
            reference=r.reference,
            variants=(
                Variant("chunks of tiles", "batch_invariant", r.accepts, launch=r.launch, units=partial(units, row)),
                Variant("NumPy", "run_to_run", lambda p: None, host=r.host),
                Variant("a copy or a cast first", "batch_invariant", lambda p: None, compose=r.compose),
            ),
            doc=row.doc,
            tolerance=row.tolerance,
            cases=(
                Case({"x": ("float32", (3, 131))}, {"axis": -1}),
                *([Case({"x": ("int8", (4, 150, 6))}, {"axis": 1})] if row.name == "cumsum" else []),
            ),
            timed=(Case({"x": ("float32", (16384, 16384))}, {"axis": 1}),),
            flops=lambda p: hint(p["x"].size),
        ),
        method=row.takes("dtype"),
    )


_FUNCTIONS: dict[str, Callable[..., Any]] = {name: _made(row) for name, row in SCANS.items()}


def _cumulative(name: str, x: GPUArray, axis: int | None, kind: Any, include_initial: bool, first: int) -> Any:
    if axis is None:
        if x.ndim > 1:
            raise ValueError(f"cumulative scans of an array of {x.ndim} dimensions need an axis")
        x, axis = x.reshape(-1), 0
    if x.ndim == 0:
        raise ShapeError("cumulative scans need an array of at least one dimension")
    result = _FUNCTIONS[name](x, axis, kind)
    if not include_initial:
        return result
    axis = axis_of(axis, x.ndim)
    whole = empty([n + (i == axis) for i, n in enumerate(x.shape)], result.dtype, device=x.device)
    whole.narrow(axis, 0, 1).fill(first)
    whole.narrow(axis, 1, x.shape[axis])[...] = result
    return whole


@streamed
def cumulative_sum(x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Sums of the elements up to each one, as in the array API; ``include_initial`` puts a 0 before them.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.cumulative_sum(gp.asarray([1, 2, 3]), include_initial=True).tolist()
    [0, 1, 3, 6]
    """
    return _cumulative("cumsum", x, axis, dtype, include_initial, 0)


@streamed
def cumulative_prod(x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Products of the elements up to each one, as in the array API; ``include_initial`` puts a 1 before them.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.cumulative_prod(gp.asarray([2, 3]), include_initial=True).tolist()
    [1, 2, 6]
    """
    return _cumulative("cumprod", x, axis, dtype, include_initial, 1)


def _without_nan(x: GPUArray, value: int) -> GPUArray:
    return e.where(e.isnan(x), value, x) if x.dtype.kind in "fc" else x


@streamed
def nancumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
    """Sums of the elements up to each one, with 0 for NaN.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nancumsum([1.0, float("nan"), 2.0]).tolist()
    [1.0, 1.0, 3.0]
    """
    return _FUNCTIONS["cumsum"](_without_nan(x, 0), axis, dtype)


@streamed
def nancumprod(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
    """Products of the elements up to each one, with 1 for NaN.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nancumprod([2.0, float("nan"), 3.0]).tolist()
    [2.0, 2.0, 6.0]
    """
    return _FUNCTIONS["cumprod"](_without_nan(x, 1), axis, dtype)


FUNCTIONS = (cumulative_sum, cumulative_prod, nancumsum, nancumprod)
"""The public functions of this module."""
