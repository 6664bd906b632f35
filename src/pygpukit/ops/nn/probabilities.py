"""Softmax and its logarithm: types and launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType
from pygpukit.errors import DTypeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, i64, read, write
from pygpukit.ops.nn import reference
from pygpukit.ops.nn.layout import VECTOR, Shape, accumulator, float_types, is_vectorised, shape_of, shapes
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.reduce.rows import axes_of, collapse
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance


def _infer(p: Problem) -> list[Result]:
    x = p["x"]
    if x.dtype.kind != "f":
        raise DTypeError(f"{p.name} is not defined for {x.dtype.name}; it takes float: convert with astype")
    axes_of(p.options["axis"], x.ndim)
    if p.requested and p.requested[0] is not x.dtype:
        target = p.requested[0].name
        raise DTypeError(f"{p.name} of {x.dtype.name} cannot be written to {target}; use an out of {x.dtype.name}")
    return [Result(x.shape, x.dtype)]


def _form(p: Problem) -> Any:
    x = p["x"]
    return collapse(x.shape, x.strides, axes_of(p.options["axis"], x.ndim))


def _accepts(p: Problem) -> str | None:
    if _form(p) is None:
        return "the axes beside the one of the softmax are not one axis in memory"
    return None if p.out.is_contiguous() else "out is not contiguous"


def _launch(p: Problem) -> Launch:
    x = p["x"]
    (outer, n, inner), strides = _form(p)
    vec = inner == 1 and (n == 1 or strides[1] == 1) and is_vectorised(n, ((x, strides[0]), (p.out, n)))
    shape = shape_of(n, x.dtype, vec)
    unit = softmax_unit(p.name, x.dtype, shape)
    cached = shape.cached(n, x.dtype)
    arguments: tuple[Argument, ...] = (write(p.out), read(x), *map(i64, (outer * inner, n, inner, *strides, cached)))
    blocks = shape.blocks(outer * inner, p.name)
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (shape.block,), arguments, shared=cached * VECTOR),))


@cache
def softmax_unit(name: str, x: DataType, shape: Shape) -> Unit:
    """Return the source for one element type and one class of row lengths."""
    entry = f"pgk_{name}_{x.tag}_{shape.name}"
    log = "true" if name == "logsoftmax" else "false"
    line = f"PGK_SOFTMAX({entry}, {x.tag}, {accumulator(x)}, {shape.arguments}, {log})"
    return instance("nn/softmax.cu", [line], (entry,))


def _units(name: str) -> Callable[[Sequence[str]], Iterator[Unit]]:
    least = 1 if name == "softmax" else 2
    return lambda types: (softmax_unit(name, x, shape) for x in float_types(types, least) for shape in shapes())


def _host(p: Problem) -> Callable[..., None]:
    axis, function = p.options["axis"], getattr(reference, p.name)

    def run(x: Any, out: Any) -> None:
        np.copyto(out, function(x, axis))

    return run


def _operator(name: str, doc: str, tolerance: Mapping[str, float]) -> Callable[..., Any]:
    def compose(p: Problem) -> Callable[..., None]:
        def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
            x, axis = given
            axes = axes_of(axis, x.ndim)
            if not axes:
                made = softmax_of(x.contiguous().reshape((*x.shape, 1)), -1).reshape(x.shape)
            elif axes == tuple(range(axes[0], axes[-1] + 1)):
                made = softmax_of(x.contiguous(), axis)
            else:
                order = [i for i in range(x.ndim) if i not in axes] + list(axes)
                back = [order.index(i) for i in range(x.ndim)]
                last = tuple(range(x.ndim - len(axes), x.ndim))
                made = softmax_of(x.transpose(order).contiguous(), last).transpose(back)
            results[0][...] = made

        return run

    softmax_of = register(
        Operator(
            name=name,
            parameters=(Parameter("x"), Parameter("axis", "choice", -1, doc="The axis of the rows.")),
            infer=_infer,
            reference=getattr(reference, name),
            variants=(
                Variant("rows in registers", "batch_invariant", _accepts, launch=_launch, units=_units(name)),
                Variant("NumPy", "run_to_run", lambda p: None, host=_host),
                Variant("a contiguous copy", "batch_invariant", lambda p: None, compose=compose),
            ),
            doc=doc,
            tolerance=tolerance,
            cases=(
                Case({"x": ("float32", (3, 1000))}),
                Case({"x": ("float32", (2, 33, 5))}, {"axis": 1}, {"x": 2}),
                Case({"x": ("bfloat16", (7, 257))}, rows={"x": 0}),
                Case({"x": ("bfloat16", (2, 4096))}),
                Case({"x": ("float16", (9, 64))}),
                Case({"x": ("float64", (4, 1))}, {"axis": 0}),
            ),
            timed=(Case({"x": ("bfloat16", (16384, 8192))}),),
            flops=lambda p: 14 * hint(p["x"].size),
            in_place=True,
        )
    )
    return softmax_of


softmax = _operator(
    "softmax",
    """Softmax over one axis: ``exp(x - max(x)) / sum(exp(x - max(x)))``.

float16, bfloat16 and float8 are computed in float32 and rounded once. The bits of a row depend on the row alone.

Examples
--------
>>> import pygpukit as gp
>>> gp.softmax(gp.zeros((2, 4)))[0].tolist()
[0.25, 0.25, 0.25, 0.25]
""",
    {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2**-7, "float16": 2**-10},
)

logsoftmax = _operator(
    "logsoftmax",
    """Logarithm of the softmax over one axis: ``x - max(x) - log(sum(exp(x - max(x))))``.

float16, bfloat16 and float8 are computed in float32 and rounded once. The bits of a row depend on the row alone.

Examples
--------
>>> import pygpukit as gp
>>> f"{gp.logsoftmax(gp.zeros(4))[0].item():.4f}"
'-1.3863'
""",
    {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2**-7, "float16": 2**-10},
)
