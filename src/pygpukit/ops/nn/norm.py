"""Layer norm and RMS norm, also of a sum with a residual that is written beside the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Number, Unit, constant, i64, read, write
from pygpukit.ops.nn import reference
from pygpukit.ops.nn.layout import (
    VECTOR,
    Shape,
    accumulator,
    float_input,
    float_types,
    form_of,
    is_vectorised,
    rms_shape_of,
    rows_of,
    shape_of,
    shapes,
)
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

_CASTS = ("after", "before")


def _infer(p: Problem) -> list[Result]:
    x, gamma = float_input(p, "x"), p["gamma"]
    if x.ndim == 0:
        raise ShapeError(f"{p.name}: x has no axes; it takes rows of n elements")
    n = x.shape[-1]
    for name in ("gamma", "beta"):
        w = p.arrays.get(name)
        if w is None:
            continue
        if w.ndim != 1 or w.shape[0] != n:
            shape = tuple(hint(s) for s in w.shape)
            raise ShapeError(f"{p.name}: {name} has shape {shape}; rows of {hint(n)} elements need ({hint(n)},)")
        if w.dtype is not x.dtype and w.dtype.name != "float32":
            raise DTypeError(f"{p.name}: {name} is {w.dtype.name}; use {x.dtype.name} as x, or float32")
        if w.dtype is not gamma.dtype:
            raise DTypeError(f"{p.name}: {name} is {w.dtype.name}, but gamma {gamma.dtype.name}: use one type")
    residual = p.arrays.get("residual")
    if residual is not None:
        if residual.ndim != x.ndim or any(a != b for a, b in zip(x.shape, residual.shape, strict=True)):
            shapes_ = f"{tuple(map(hint, x.shape))} and {tuple(map(hint, residual.shape))}"
            raise ShapeError(f"{p.name}: x and residual have shapes {shapes_}; they must be equal")
        if residual.dtype is not x.dtype:
            raise DTypeError(f"{p.name}: residual is {residual.dtype.name}; use {x.dtype.name} as x")
    if p.options.get("cast", "after") not in _CASTS:
        raise ValueError(f"{p.name}: cast is {p.options['cast']!r}; use 'after' or 'before'")
    results = [Result(x.shape, x.dtype)] * (1 if residual is None else 2)
    for got in p.requested:
        if got is not x.dtype:
            raise DTypeError(
                f"{p.name} of {x.dtype.name} cannot be written to {got.name}; use an out of {x.dtype.name}"
            )
    return results


def _accepts(p: Problem) -> str | None:
    for name in ("x", "residual"):
        tensor = p.arrays.get(name)
        if tensor is not None and rows_of(tensor) is None:
            return f"the rows of '{name}' are not evenly spaced"
    for name in ("gamma", "beta"):
        tensor = p.arrays.get(name)
        if tensor is not None and not tensor.is_contiguous():
            return f"'{name}' is not contiguous"
    return None if all(t.is_contiguous() for t in p.outputs) else "an out is not contiguous"


def _launch(p: Problem) -> Launch:
    x, gamma, n = p["x"], p["gamma"], p["x"].shape[-1]
    residual, beta = p.arrays.get("residual"), p.arrays.get("beta")
    places = [(t, rows_of(t)) for t in (x, residual) if t is not None]
    aligned = [(t, found[1]) for t, found in places if found is not None]
    aligned += [(t, n) for t in (*p.outputs, gamma, beta) if t is not None]
    vec = is_vectorised(n, aligned)
    rows, strides = places[0][1][0], [found[1] for _, found in places]  # type: ignore[index]
    shape = (shape_of if p.name == "layernorm" else rms_shape_of)(n, x.dtype, vec)
    unit = norm_unit(p.name, x.dtype, gamma.dtype, shape)
    cached = shape.cached(n, x.dtype)
    none = i64(0)
    wide = dtype("float64" if x.dtype.itemsize == 8 else "float32")
    arguments: tuple[Argument, ...] = (
        write(p.outputs[0]), write(p.outputs[1]) if residual is not None else none,
        read(x), none if residual is None else read(residual),
        constant(gamma), none if beta is None else constant(beta),
        *map(i64, (rows, n, strides[0], strides[-1])), Number("eps", wide), i64(form_of(p)), i64(cached),
    )  # fmt: skip
    blocks = shape.blocks(rows, p.name)
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (shape.block,), arguments, shared=cached * VECTOR),))


@cache
def norm_unit(name: str, x: DataType, weights: DataType, shape: Shape) -> Unit:
    """Return the source for one element type, one of the weights, and one class of row lengths."""
    kinds = (name == "layernorm", name == "rmsnorm_residual")
    entry = f"pgk_{name}_{x.tag}_{weights.tag}_{shape.name}"
    flags = ", ".join("true" if kind else "false" for kind in kinds)
    line = f"PGK_NORM({entry}, {x.tag}, {weights.tag}, {accumulator(x)}, {shape.arguments}, {flags})"
    return instance("nn/norm.cu", [line], (entry,))


def _units(name: str) -> Callable[[Sequence[str]], Iterator[Unit]]:
    rms = name != "layernorm"
    return lambda types: (norm_unit(name, x, x, shape) for x in float_types(types) for shape in shapes(rms))


def _host(p: Problem) -> Callable[..., None]:
    names, function = [q.name for q in _PARAMETERS[p.name]], getattr(reference, p.name)
    choices = {name: p.options[name] for name in ("plus_one", "cast") if name in p.options}
    count = len(names) - len(choices)

    def run(*values: Any) -> None:
        made = function(*values[:count], **choices)
        for out, value in zip(values[count:], made if isinstance(made, tuple) else (made,), strict=True):
            np.copyto(out, value)

    return run


def _compose(p: Problem) -> Callable[..., None]:
    function, names = _FUNCTIONS[p.name], [q.name for q in _PARAMETERS[p.name]]

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        dense = [x.contiguous() if hasattr(x, "contiguous") else x for x in given]
        made = function(**dict(zip(names, dense, strict=True)))
        for out, value in zip(results, made if isinstance(made, tuple) else (made,), strict=True):
            out[...] = value

    return run


_X = Parameter("x", doc="Rows along the last axis.")
_GAMMA = Parameter("gamma", doc="A weight per element of a row, of x's type or float32.")
_EPS = Parameter("eps", "number", 1e-5, doc="Added to the mean square.")
_FORM = (
    Parameter("plus_one", "choice", False, keyword_only=True, doc="The weights are 1 + gamma, as Gemma stores them."),
    Parameter(
        "cast",
        "choice",
        "after",
        keyword_only=True,
        doc="'before': the normalised row is rounded to x's type before it meets the weights, as in Llama; 'after': "
        "one rounding at the end.",
    ),
)
_PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "layernorm": (_X, _GAMMA, Parameter("beta", "optional", None, doc="Added at the end."), _EPS),
    "rmsnorm": (_X, _GAMMA, _EPS, *_FORM),
    "rmsnorm_residual": (_X, Parameter("residual", doc="Added to x."), _GAMMA, _EPS, *_FORM),
}
_ROWS, _ROW = ("bfloat16", (16384, 8192)), ("bfloat16", (8192,))
_LARGE = {
    "layernorm": Case({"x": _ROWS, "gamma": _ROW, "beta": _ROW}),
    "rmsnorm": Case({"x": _ROWS, "gamma": _ROW}),
    "rmsnorm_residual": Case({"x": _ROWS, "residual": _ROWS, "gamma": _ROW}),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_TOLERANCE = {"float32": 4e-6, "float64": 1e-14, "bfloat16": 2**-7, "float16": 2**-10}


def _operator(name: str, doc: str, cases: tuple[Case, ...]) -> Callable[..., Any]:
    made = register(
        Operator(
            name=name,
            parameters=_PARAMETERS[name],
            infer=_infer,
            reference=getattr(reference, name),
            variants=(
                Variant("rows in registers", "batch_invariant", _accepts, launch=_launch, units=_units(name)),
                Variant("NumPy", "run_to_run", lambda p: None, host=_host),
                Variant("contiguous copies", "batch_invariant", lambda p: None, compose=_compose),
            ),
            doc=doc,
            tolerance=_TOLERANCE,
            cases=cases,
            timed=(_LARGE[name],),
            flops=lambda p: 6 * hint(p["x"].size),
            in_place=True,
        )
    )
    _FUNCTIONS[name] = made
    return made


def _case(kind: str, shape: tuple[int, ...], names: str = "", weights: str = "", **options: Any) -> Case:
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {"x": (kind, shape)}
    arrays |= {name: (kind, shape) for name in names.split()}
    arrays["gamma"] = (weights or kind, shape[-1:])
    # Of all element types one is enough for tests of many batches.
    rows = dict.fromkeys(("x", *names.split()), 0) if kind == "bfloat16" else {}
    return Case(arrays, options, rows)


def _with_beta(case: Case) -> Case:
    arrays: Mapping[str, tuple[str, tuple[int, ...]]] = {**case.arrays, "beta": case.arrays["gamma"]}
    return Case(arrays, case.options, case.rows)


layernorm = _operator(
    "layernorm",
    """Layer norm of rows: ``(x - mean) / sqrt(variance + eps) * gamma + beta``.

Sums are in float32 (float64 of float64) in an order that the row's length fixes, and the result is rounded once. The
variance is that of the differences to the mean. A row's bits depend on the row alone.

Examples
--------
>>> import pygpukit as gp
>>> gp.layernorm(gp.asarray([[1.0, 3.0]]), gp.ones(2, "float64"), eps=0.0).tolist()
[[-1.0, 1.0]]
""",
    (
        _with_beta(_case("float32", (3, 1000))),
        _case("bfloat16", (2, 5, 64)),
        _with_beta(_case("float16", (4, 37), weights="float32")),
        _case("float64", (2, 9), eps=1e-3),
    ),
)

rmsnorm = _operator(
    "rmsnorm",
    """Root-mean-square norm of rows: ``x / sqrt(mean(x * x) + eps) * gamma``.

Sums are in float32 (float64 of float64) in an order that the row's length fixes. A row's bits depend on the row alone.
Gemma's form is ``plus_one=True``, that of Llama and its kin in 16 bits ``cast="before"``.

Examples
--------
>>> import pygpukit as gp
>>> gp.rmsnorm(gp.asarray([[3.0, 3.0, 3.0]]), gp.ones(3, "float64"), eps=0.0).tolist()
[[1.0, 1.0, 1.0]]
""",
    (
        _case("float32", (3, 1000)),
        _case("bfloat16", (3, 4096), cast="before"),
        _case("float16", (5, 33), plus_one=True),
        _case("bfloat16", (2, 3, 128), weights="float32"),
        _case("float64", (3, 8), eps=1e-3),
    ),
)

rmsnorm_residual = _operator(
    "rmsnorm_residual",
    """The RMS norm of ``x + residual``, and that sum: ``(normed, sum)``.

The sum is rounded to its type before it is squared: the bits are those of `add` and `rmsnorm` one after the other. With
``out=(x, residual)`` both are updated in place.

Examples
--------
>>> import pygpukit as gp
>>> x, residual = gp.asarray([[1.0, 2.0]]), gp.asarray([[2.0, 1.0]])
>>> normed, residual = gp.rmsnorm_residual(x, residual, gp.ones(2, "float64"), eps=0.0)
>>> normed.tolist(), residual.tolist()
([[1.0, 1.0]], [[3.0, 3.0]])
""",
    (
        _case("float32", (3, 1000), "residual"),
        _case("bfloat16", (3, 1536), "residual", cast="before"),
        _case("float16", (5, 33), "residual", plus_one=True),
    ),
)
