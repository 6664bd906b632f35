"""The operators that move elements to other places: windows beyond the edges, rows by index, triangles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.ops.launch import (
    MAX_DIMENSIONS,
    Argument,
    KernelLaunch,
    Launch,
    Struct,
    Unit,
    blocks_for,
    i64,
    read,
    write,
)
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.shape.join import TYPES
from pygpukit.ops.source import instance

MODES = ("wrap", "edge", "reflect", "symmetric", "constant")
"""How a window goes on beyond the edges; "roll" is "wrap" in the size of the array."""

_BEFORE = tuple(f"before{i}" for i in range(MAX_DIMENSIONS))
_AFTER = tuple(f"after{i}" for i in range(MAX_DIMENSIONS))
_TAGS = (*TYPES.values(), "p64", "p128")


@cache
def unit(kernel: str, tag: str, mode: str = "") -> Unit:
    """Return the source of a kernel for elements that a type of units.cuh moves."""
    name = "_".join(filter(None, ("pgk", kernel, mode, tag)))
    arguments = ", ".join(filter(None, (name, tag, mode.upper())))
    return instance(f"shape/{kernel}.cu", (f"PGK_{kernel.upper()}({arguments})",), (name,))


def tag_of(*tensors: Tensor) -> str:
    """Return the type that moves elements of arrays: complex numbers may lie at multiples of their parts only."""
    kind = tensors[0].dtype
    if kind.kind == "c" and not all(t.is_aligned(kind.itemsize) for t in tensors):
        return f"p{8 * kind.itemsize}"
    return TYPES[kind.itemsize]


def _launched(made: Unit, arguments: tuple[Argument, ...], total: Any, what: str) -> Launch:
    return Launch((KernelLaunch(made, made.entries[0], (blocks_for(total, 1024, what),), (256,), arguments),))


def _contiguous_out(p: Problem) -> str | None:
    return None if p.out.is_contiguous() else "the result is not contiguous"


def _window_infer(p: Problem) -> list[Result]:
    x = p["x"]
    shape = tuple(n + p.integers[b] + p.integers[a] for n, b, a in zip(x.shape, _BEFORE, _AFTER, strict=False))
    return [Result(shape, x.dtype)]


def _window_launch(p: Problem) -> Launch:
    x, value, mode = p["x"], p.arrays["value"], p.options["mode"]

    def row(values: Sequence[Any]) -> list[Any]:
        return [*values, *[0] * (MAX_DIMENSIONS - len(values))]

    befores = [p.integers[name] for name in _BEFORE[: x.ndim]]
    members = [x.ndim, *row(p.out.shape), *row(x.shape), *row(x.strides), *row(befores)]
    made = unit("window", tag_of(p.out, x), "wrap" if mode == "roll" else mode)
    arguments: tuple[Argument, ...] = (
        write(p.out), read(x), read(x if value is None else value), i64(p.out.size), Struct(tuple(map(i64, members)))
    )  # fmt: skip
    return _launched(made, arguments, p.out.size, "pad")


def _window_host(p: Problem) -> Any:
    return _native.host_window(p.options["mode"])


def _window_units(types: Sequence[str]) -> Iterator[Unit]:
    for mode, tag in itertools.product(MODES, _TAGS):
        yield unit("window", tag, mode)


window = register(
    Operator(
        name="shape_window",
        parameters=(
            Parameter("x"),
            Parameter("value", "optional", None, doc="Constants outside, by axis and side."),
            Parameter("mode", "choice", "roll"),
            *(Parameter(name, "number", 0) for name in (*_BEFORE, *_AFTER)),
        ),
        infer=_window_infer,
        reference=lambda x, value, mode, *pairs: x,
        variants=(
            Variant("a thread per element", "batch_invariant", _contiguous_out, launch=_window_launch,
                    units=_window_units),
            Variant("the core", "batch_invariant", _contiguous_out, host=_window_host),
        ),
        doc="A window into an array that goes on beyond its edges.",
        public=False,
    )
)  # fmt: skip


def _rows_accepts(p: Problem) -> str | None:
    together = all(t.is_contiguous() for t in (p.out, *p.inputs.values()))
    return None if together else "an array is not contiguous"


def _rows_launch(p: Problem) -> Launch:
    x, index, out = p["x"], p["index"], p.out
    made = unit("rows", tag_of(out, x))
    arguments: tuple[Argument, ...] = (
        write(out), read(x), read(index), *map(i64, (out.size, x.shape[1], index.shape[0], x.shape[2]))
    )  # fmt: skip
    return _launched(made, arguments, out.size, "repeat")


def _rows_host(p: Problem) -> Callable[..., None]:
    def run(x: Any, index: Any, out: Any) -> None:
        np.take(x, index, 1, out, "clip")

    return run


def _rows_units(types: Sequence[str]) -> Iterator[Unit]:
    for tag in _TAGS:
        yield unit("rows", tag)


rows_at = register(
    Operator(
        name="shape_rows",
        parameters=(Parameter("x"), Parameter("index")),
        infer=lambda p: [Result((p["x"].shape[0], p["index"].shape[0], p["x"].shape[2]), p["x"].dtype)],
        reference=lambda x, index: np.take(x, index, 1),
        variants=(
            Variant("a thread per element", "batch_invariant", _rows_accepts, launch=_rows_launch, units=_rows_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_rows_host),
        ),
        doc="Parts of a contiguous [outer, n, inner] along its second axis, by int64 places that are there.",
        public=False,
    )
)


def _triangle_launch(p: Problem) -> Launch:
    x, out = p["x"], p.out
    made = unit("triangle", tag_of(out, x))
    sizes = (out.size, out.shape[1], out.shape[2], p.integers["k"], int(p.options["upper"]), *x.strides)
    return _launched(made, (write(out), read(x), *map(i64, sizes)), out.size, "a triangle")


def _triangle_host(p: Problem) -> Callable[..., None]:
    cut = np.triu if p.options["upper"] else np.tril

    def run(x: Any, k: int, out: Any) -> None:
        out[...] = cut(x, k)

    return run


def _triangle_units(types: Sequence[str]) -> Iterator[Unit]:
    for tag in _TAGS:
        yield unit("triangle", tag)


triangle = register(
    Operator(
        name="shape_triangle",
        parameters=(Parameter("x"), Parameter("upper", "choice"), Parameter("k", "number", 0)),
        infer=lambda p: [Result(p["x"].shape, p["x"].dtype)],
        reference=lambda x, upper, k=0: (np.triu if upper else np.tril)(x, k),
        variants=(
            Variant("a thread per element", "batch_invariant", _contiguous_out, launch=_triangle_launch,
                    units=_triangle_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_triangle_host),
        ),
        doc="The triangles of [batch, n, m] below or above a diagonal; zeros elsewhere.",
        public=False,
    )
)  # fmt: skip
