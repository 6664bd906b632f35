"""Elements by position: what sorting moves once the order is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import dtype
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, blocks_for, i32, i64, read, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.sort import plans


def axis_last(x: GPUArray, axis: int) -> GPUArray:
    """Return a view of ``x`` with this axis last."""
    return x if axis == x.ndim - 1 else x._permute([*(i for i in range(x.ndim) if i != axis), axis])


def assign(target: GPUArray, value: GPUArray) -> None:
    """Write elements of the same shape to ``target``."""
    _native.apply("copy", (value,), target)


def contiguous(p: Problem) -> str | None:
    """Return None if all arrays of a problem are contiguous, else what is said of it."""
    together = all(t.is_contiguous() for t in (*p.inputs.values(), *p.outputs))
    return None if together else "an array is not contiguous"


def _take_infer(p: Problem) -> list[Result]:
    return [Result(p["index"].shape, p["x"].dtype)]


def _take_launch(p: Problem) -> Launch:
    x, index = p["x"], p["index"]
    total, n = index.size, x.shape[-1]
    m = total if x.ndim == 1 else index.shape[-1]
    unit = plans.gather_unit()
    arguments: tuple[Argument, ...] = (
        write(p.out),
        read(x),
        read(index),
        *map(i64, (total, m, n)),
        i32(x.dtype.itemsize),
    )
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(total, 1024, "take"),), (256,), arguments),))


def _taken(x: Any, index: Any) -> Any:
    return x[index] if x.ndim == 1 else np.take_along_axis(x, index, -1)


def _take_host(p: Problem) -> Callable[..., None]:
    def run(x: Any, index: Any, out: Any) -> None:
        out[...] = _taken(x, index)

    return run


def _take_compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        assign(results[0], take_last(given[0].contiguous(), given[1].contiguous()))

    return run


take_last = register(
    Operator(
        name="sort_take",
        parameters=(Parameter("x"), Parameter("index")),
        infer=_take_infer,
        reference=_taken,
        variants=(
            Variant("a thread per element", "batch_invariant", contiguous, launch=_take_launch),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_take_host),
            Variant("copies first", "batch_invariant", lambda p: None, compose=_take_compose),
        ),
        doc="Elements along the last axis by positions that are valid; a vector by positions of any shape.",
        public=False,
    )
)


def _put_launch(p: Problem) -> Launch:
    unit = plans.gather_unit()
    n = p["index"].size
    arguments = (write(p.out), read(p["index"]), read(p["value"]), i64(n))
    return Launch((KernelLaunch(unit, unit.entries[1], (blocks_for(n, 1024, "put"),), (256,), arguments),))


def _put_host(p: Problem) -> Callable[..., None]:
    def run(index: Any, value: Any, out: Any) -> None:
        out[index] = value

    return run


put = register(
    Operator(
        name="sort_put",
        parameters=(Parameter("index"), Parameter("value")),
        infer=lambda p: [Result(p["index"].shape, dtype("int64"))],
        reference=lambda index, value: value[np.argsort(index)],
        variants=(
            Variant("a thread per element", "batch_invariant", contiguous, launch=_put_launch),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_put_host),
        ),
        doc="int64 elements at the places of a permutation.",
        public=False,
    )
)
