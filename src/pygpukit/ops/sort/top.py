"""topk: the largest or smallest elements of each row, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Launch
from pygpukit.ops.operands import axis_of
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.ops.sort import plans, reference
from pygpukit.ops.sort.gather import assign, axis_last, take_last
from pygpukit.ops.sort.order import argsort, layout_refusal, rows_of, units_of

_TOP = 1024


def _infer_topk(p: Problem) -> list[Result]:
    x, k = p["x"], p.integers["k"]
    given = p.options["k"]
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"topk(): k must be an int, not {given!r}")
    if x.dtype.kind == "c":
        raise DTypeError(f"topk() is not defined for {x.dtype.name}: use argsort")
    axis = axis_of(p.options["axis"], x.ndim)
    if k < 0 or k > x.shape[axis]:
        raise ShapeError(f"topk() of {given} elements of an axis of {hint(x.shape[axis])}")
    shape = tuple(k if i == axis else n for i, n in enumerate(x.shape))
    if p.requested and p.requested != (x.dtype, dtype("int64")):
        raise DTypeError(f"topk() writes to a pair of {x.dtype.name} and int64, not to {[d.name for d in p.requested]}")
    return [Result(shape, x.dtype), Result(shape, dtype("int64"))]


def _accepts_topk(p: Problem) -> str | None:
    found = layout_refusal(p)
    if found is None and p["x"].shape[-1] > plans.SHORT and p.integers["k"] > _TOP:
        return f"k is over {_TOP}"
    return found


def _launch_topk(p: Problem) -> Launch:
    rows, n = rows_of(p)
    values, index = p.outputs
    return plans.top(values, index, p["x"], rows, n, p.integers["k"], largest=bool(p.options["largest"]))


def _host_topk(p: Problem) -> Callable[..., None]:
    axis, largest = p.options["axis"], bool(p.options["largest"])

    def run(x: Any, k: Any, values: Any, index: Any) -> None:
        values[...], index[...] = reference.topk(x, int(k), axis, largest)

    return run


def _compose_topk(p: Problem) -> Callable[..., None]:
    axis, largest, ndim = p.options["axis"], bool(p.options["largest"]), p["x"].ndim
    at = axis_of(axis, ndim)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, k = axis_last(given[0], at).contiguous(), int(given[1])
        if k <= _TOP:
            made = topk(x, k, largest=largest)
        else:
            index = argsort(x, descending=largest)._slice(ndim - 1, 0, k, 1).contiguous()
            made = (take_last(x, index), index)
        for out, value in zip(results, made, strict=True):
            assign(axis_last(out, at), value)

    return run


topk = register(
    Operator(
        name="topk",
        parameters=(
            Parameter("x"),
            Parameter("k", "number", doc="How many elements of each row."),
            Parameter("axis", "choice", -1, doc="The axis they are chosen along."),
            Parameter("largest", "choice", True, doc="The largest, or the smallest."),
            Parameter("sorted", "choice", True, doc="Accepted for PyTorch's sake: they always come in order."),
        ),
        infer=_infer_topk,
        reference=lambda x, k, axis=-1, largest=True, sorted=True: reference.topk(x, k, axis, largest),
        variants=(
            Variant(
                "the first of chunks, then of those",
                "batch_invariant",
                _accepts_topk,
                launch=_launch_topk,
                units=units_of,
            ),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_topk),
            Variant("rows in a copy, or a full sort", "batch_invariant", lambda p: None, compose=_compose_topk),
        ),
        doc="""The k largest or smallest elements along an axis in order, and their positions.

Of equal elements the first ones are chosen; NaN is larger than all numbers.

Examples
--------
>>> import pygpukit as gp
>>> values, index = gp.topk(gp.asarray([1, 5, 3, 5]), 3)
>>> values.tolist(), index.tolist()
([5, 5, 3], [1, 3, 2])
""",
        cases=(
            Case({"x": ("float32", (3, 300))}, {"k": 7}),
            Case({"x": ("int16", (5, 20, 2))}, {"k": 4, "axis": 1, "largest": False}),
        ),
        timed=(Case({"x": ("float32", (8, 152_064))}, {"k": 50}),),
    )
)
