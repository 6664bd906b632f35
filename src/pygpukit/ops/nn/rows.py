"""Softmax: types and launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i64, read, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.reduce.rows import axes_of, collapse
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

_THREADS = 256


def _infer(p: Problem) -> list[Result]:
    x = p["x"]
    if x.dtype.kind != "f":
        raise DTypeError(f"softmax is not defined for {x.dtype.name}; it takes float: convert with astype")
    axes_of(p.options["axis"], x.ndim)
    if p.requested and p.requested[0] is not x.dtype:
        target = p.requested[0].name
        raise DTypeError(f"softmax of {x.dtype.name} cannot be written to {target}; use an out of {x.dtype.name}")
    return [Result(x.shape, x.dtype)]


def _layout(p: Problem) -> Any:
    x = p["x"]
    return collapse(x.shape, x.strides, axes_of(p.options["axis"], x.ndim))


def _accepts(p: Problem) -> str | None:
    if _layout(p) is None:
        return "the axes beside the one of the softmax are not one axis in memory"
    return None if p.out.is_contiguous() else "out is not contiguous"


def _launch(p: Problem) -> Launch:
    (outer, n, inner), strides = _layout(p)
    blocks = blocks_for(outer * inner, 1, f"softmax of {hint(outer * inner)} rows")
    unit = softmax_unit(p["x"].dtype)
    arguments: tuple[Argument, ...] = (write(p.out), read(p["x"]), *map(i64, (n, inner, *strides)))
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


@cache
def softmax_unit(x: DataType) -> Unit:
    """Return the source for one element type."""
    entry = f"pgk_softmax_{x.tag}"
    return instance(
        "nn/softmax.cu", [f"PGK_SOFTMAX({entry}, {x.tag}, {'f64' if x.itemsize == 8 else 'f32'})"], (entry,)
    )


def _units(types: Sequence[str]) -> Iterator[Unit]:
    return (softmax_unit(kind) for kind in map(dtype, types) if kind.kind == "f")


def _compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, axis = given
        results[0][...] = softmax(x.contiguous(), axis)

    return run


def _host(p: Problem) -> Callable[..., None]:
    axis = p.options["axis"]

    def run(x: Any, out: Any) -> None:
        np.copyto(out, _reference(x, axis))

    return run


def _reference(x: Any, axis: int = -1) -> Any:
    from pygpukit.ops.nn import reference

    return reference.softmax(x, axis)


softmax = register(
    Operator(
        name="softmax",
        parameters=(Parameter("x"), Parameter("axis", "choice", -1, doc="The axis whose elements sum to 1.")),
        infer=_infer,
        reference=_reference,
        variants=(
            Variant("a block per row", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host),
            Variant("a contiguous copy, then a block per row", "batch_invariant", lambda p: None, compose=_compose),
        ),
        doc="""Softmax over one axis: ``exp(x - max(x)) / sum(exp(x - max(x)))``.

float16, bfloat16 and float8 are computed in float32 and rounded once. The bits of a row depend on the row alone.

Examples
--------
>>> import pygpukit as gp
>>> gp.softmax(gp.zeros((2, 4)))[0].tolist()
[0.25, 0.25, 0.25, 0.25]
""",
        tolerance={"float32": 2e-6, "float64": 1e-14, "bfloat16": 2**-7, "float16": 2**-10},
        cases=(
            Case({"x": ("float32", (3, 1000))}),
            Case({"x": ("float32", (2, 33, 5))}, {"axis": 1}),
            Case({"x": ("bfloat16", (7, 257))}),
            Case({"x": ("float64", (4, 1))}, {"axis": 0}),
        ),
        flops=lambda p: 14 * hint(p["x"].size),
    )
)
