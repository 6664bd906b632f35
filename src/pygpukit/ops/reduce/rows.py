"""Sum over axes: types, kernel launches, and the composition for layouts without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, Workspace, blocks_for, i64, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, export, register
from pygpukit.ops.size import SizeLike, ceil_div, hint, product
from pygpukit.ops.source import instance

CHUNK = 4096
"""Elements of the summed axis per partial result; part of the definition of the result's bits."""

_FILE = "reduce/sum.cu"
_ROWS_PER_BLOCK = 8
_COLUMNS_PER_BLOCK = 32
_THREADS = 256
_ACCUMULATOR = {"f": "float32", "i": "int64", "b": "int64", "u": "uint64"}


def sum_type(x: DataType) -> DataType:
    """Return the type of a sum: the widest integer of the kind for integers and bool, else ``x``."""
    return dtype(_ACCUMULATOR[x.kind]) if x.kind in "biu" else x


def accumulator(x: DataType) -> DataType:
    """Return the type sums of ``x`` are accumulated in."""
    if x.kind == "f":
        return dtype("float64" if x.itemsize == 8 else "float32")
    return sum_type(x)


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes named by ``axis``, ascending.

    Raises
    ------
    ShapeError
        If one is out of range or named twice.
    """
    given = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    found = []
    for a in given:
        if not -ndim <= a < ndim:
            raise ShapeError(f"axis {a} is out of range for an array of {ndim} dimensions")
        found.append(a % ndim)
    if len(set(found)) != len(found):
        raise ShapeError(f"axis {axis} names an axis twice")
    return tuple(sorted(found))


def _infer(p: Problem) -> list[Result]:
    x, wanted = p["x"], p.options["dtype"]
    axes = axes_of(p.options["axis"], x.ndim)
    own = sum_type(x.dtype)
    kind = dtype(wanted) if wanted is not None else p.requested[0] if p.requested else own
    if not can_cast(own, kind):
        raise DTypeError(f"the sum of {x.dtype.name} is {own.name}, which cannot be written to {kind.name}")
    if p.requested and not can_cast(kind, p.requested[0]):
        target = p.requested[0].name
        raise DTypeError(
            f"sum() with dtype {kind.name} cannot be written to out of {target}; use an out of {kind.name}"
        )
    keep = p.options["keepdims"]
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
    return [Result(shape, p.requested[0] if p.requested else kind)]


def collapse(shape: Sequence[Any], strides: Sequence[Any], axes: Sequence[int]
             ) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]] | None:  # fmt: skip
    """Return sizes and strides of ``[outer, n, inner]`` for a sum over neighbouring ``axes``, or None.

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


def _layout(p: Problem) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]] | None:
    x = p["x"]
    axes = axes_of(p.options["axis"], x.ndim)
    if not axes:
        # A sum over no axes is a cast: every element is a row of its own.
        return collapse((*x.shape, 1), (*x.strides, 1), (x.ndim,))
    return collapse(x.shape, x.strides, axes)


def _accepts(p: Problem) -> str | None:
    if _layout(p) is None:
        return "the summed axes are not one axis in memory"
    if not p.out.is_contiguous():
        return "out is not contiguous"
    x, out, wide = p["x"].dtype, p.out.dtype, accumulator(p["x"].dtype)
    return None if out is wide else p.missing(sum_unit(x, wide, out))


def _launch(p: Problem) -> Launch:
    layout = _layout(p)
    assert layout is not None
    return stages(p["x"], p.out, *layout)


def stages(x: Tensor, out: Tensor, sizes: tuple[Any, Any, Any], strides: tuple[Any, Any, Any]) -> Launch:
    """Return the launches that sum the middle axis of ``[outer, n, inner]`` into a contiguous ``[outer, inner]``.

    An axis of more than `CHUNK` elements is summed to partial sums, and those again.
    """
    outer, n, inner = sizes
    partial_type = accumulator(x.dtype)
    work, launches, source = Workspace(), [], x
    while True:
        last = bool(n <= CHUNK)
        chunks = 1 if last else ceil_div(n, CHUNK)
        target = out if last else work.buffer(partial_type, outer, chunks, inner)
        launches.append(_stage(target, source, (outer, n, inner, chunks), strides, partial_type))
        if last:
            return Launch(tuple(launches), tuple(work.pieces))
        source, n, strides = target, chunks, (chunks * inner, inner, 1)


def _stage(target: Tensor, source: Tensor, sizes: tuple[Any, Any, Any, SizeLike], strides: tuple[Any, Any, Any],
           partial_type: DataType) -> KernelLaunch:  # fmt: skip
    outer, n, inner, chunks = sizes
    # Both kernels give the same bits; columns read whole cache lines when neighbours are other results.
    columns = bool(strides[2] == 1 and strides[1] != 1 and inner >= _COLUMNS_PER_BLOCK // 4)
    what = f"a sum of [outer, n, inner] = {[hint(x) for x in (outer, n, inner)]}"
    if columns:
        blocks = blocks_for(outer * chunks * ceil_div(inner, _COLUMNS_PER_BLOCK), 1, what)
    else:
        blocks = blocks_for(outer * chunks * inner, _ROWS_PER_BLOCK, what)
    unit = sum_unit(source.dtype, partial_type, target.dtype)
    entry = sum_entry(source.dtype, target.dtype, columns=columns)
    arguments: tuple[Argument, ...] = (write(target), read(source), *map(i64, (outer, n, inner, chunks, *strides)))
    return KernelLaunch(unit, entry, (blocks,), (_THREADS,), arguments)


def sum_entry(x: DataType, to: DataType, *, columns: bool) -> str:
    """Return the kernel name of one stage."""
    tags = [x.tag] if to.tag == sum_type(x).tag else [x.tag, "to", to.tag]
    return "_".join(["pgk_sum", *tags, *(["cols"] if columns else [])])


@cache
def sum_unit(x: DataType, partial_type: DataType, to: DataType) -> Unit:
    """Return the source of one stage: both kernels for ``x`` summed in ``partial_type`` and written as ``to``."""
    types = f"{x.tag}, {partial_type.tag}, {to.tag}"
    entries = tuple(sum_entry(x, to, columns=columns) for columns in (False, True))
    lines = [f"PGK_SUM({e}, {k}, {types})" for e, k in zip(entries, ("sum_rows", "sum_cols"), strict=True)]
    return instance(_FILE, lines, entries)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        wide, result = accumulator(kind), sum_type(kind)
        # A long axis needs three stages: to partial sums, among them, and to the result.
        for source, to in ((kind, result), (kind, wide), (wide, wide), (wide, result)):
            yield sum_unit(source, wide, to)


def _compose(p: Problem) -> Callable[..., None]:
    """Sum what has no kernel of its own: a copy with the axes side by side, or a cast of the accumulator's sum."""
    x = p["x"]
    axes = axes_of(p.options["axis"], x.ndim)
    keep, wide, split = p.options["keepdims"], accumulator(x.dtype), _layout(p) is None

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        (out,), array = results, given[0]
        if split:
            # The same elements, the summed axes last.
            kept = [i for i in range(array.ndim) if i not in axes]
            array = _native.apply("copy", (array._permute([*kept, *axes]),))
            total = sum(array, axis=tuple(range(len(kept), array.ndim)), dtype=out.dtype)
            _native.apply("copy", (total._reshape(list(out.shape)),), out)
            return
        direct = out.dtype is not wide and p.missing(sum_unit(x.dtype, wide, out.dtype)) is None
        total = sum(array, axis=axes, dtype=out.dtype if direct else wide, keepdims=keep)
        _native.apply("copy", (total,), out)

    return run


def _host(p: Problem) -> Callable[..., None]:
    axes, keep = axes_of(p.options["axis"], p["x"].ndim), p.options["keepdims"]
    kind, out = p["x"].dtype, p.out.dtype
    if out is accumulator(kind) or (kind.kind in "biu" and out is sum_type(kind)):
        # NumPy's own loop writes the result: nothing is converted.
        return partial(_add_reduce, axes, to_numpy_dtype(accumulator(kind)), keep)
    return partial(_round_once, axes, out, keep)


def _add_reduce(axes: tuple[int, ...], kind: Any, keep: bool, x: Any, out: Any) -> None:
    np.add.reduce(x, axes, kind, out, keep)  # type: ignore[call-overload]


def _round_once(axes: tuple[int, ...], kind: DataType, keep: bool, x: Any, out: Any) -> None:
    from pygpukit.ops.reduce import reference

    np.copyto(out, reference.sum(x, axes, kind, keep), casting="unsafe")


def _reference(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    from pygpukit.dtypes import dtype as as_dtype
    from pygpukit.ops.reduce import reference

    return reference.sum(x, axis, None if dtype is None else as_dtype(dtype), keepdims)


def _flops(p: Problem) -> int:
    return hint(p["x"].size)


sum = register(
    Operator(
        name="sum",
        parameters=(
            Parameter("x"),
            Parameter("axis", "choice", None, doc="Axis or axes to sum over; all by default."),
            Parameter("dtype", "choice", None, doc="Type of the result; as in NumPy by default."),
            Parameter("keepdims", "choice", False, doc="Keep the summed axes with one element."),
        ),
        infer=_infer,
        reference=_reference,
        variants=(
            Variant("chunks of 4096", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host),
            Variant("copy or cast, then chunks", "batch_invariant", lambda p: None, compose=_compose),
        ),
        doc="""Sum of the elements over some or all axes.

Small floats are summed in float32, float64 in float64, integers in 64 bits, and rounded once to the type of the
result. The order is fixed by the length of the summed axes alone: the bits depend neither on the run nor on the number
of SMs.

Examples
--------
>>> import pygpukit as gp
>>> gp.sum(gp.ones((2, 3)), axis=0).tolist()
[2.0, 2.0, 2.0]
""",
        tolerance={"float32": 1e-6, "bfloat16": 2**-7},
        cases=(
            Case({"x": ("float32", (5, 131, 7))}, {"axis": 1}),
            Case({"x": ("bfloat16", (3, 9001))}, {"axis": -1, "keepdims": True}),
            Case({"x": ("int8", (4, 5, 6))}, {"axis": (0, 2)}),
        ),
        flops=_flops,
    ),
    method=True,
)


@export
def sum_axis(x: Any, axis: int, keepdims: bool = False, *, out: Any = None, stream: Any = None) -> Any:
    """Sum over one axis; `sum` with the axis required.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.sum_axis(gp.ones((2, 3)), 1).tolist()
    [3.0, 3.0]
    """
    return sum(x, axis, keepdims=keepdims, out=out, stream=stream)
