"""The operator that writes evenly spaced numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, Device, GPUArray
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Number, Unit, blocks_for, i32, i64, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.source import instance

LAST, SMALL, FLOOR = 1, 2, 4
"""Flags of the kernel: the last number is given, the step is too small for its type, round down."""

_COMPUTE = {"i64": "int64", "f32": "float32", "f64": "float64"}


@cache
def range_unit(compute: str, to: str) -> Unit:
    """Return the source for numbers computed in one type and stored in another, by tags."""
    name = f"pgk_range_{compute}" + (f"_to_{to}" if to != compute else "")
    carried = "long long" if compute == "i64" else "double"
    return instance("shape/range.cu", (f"PGK_RANGE({name}, {compute}, {carried}, {to})",), (name,))


def compute_of(kind: DataType) -> str:
    """Return the tag of the type in which NumPy's ``arange`` of this type adds."""
    return "i64" if kind.kind in "iu" else "f64" if kind.name == "float64" else "f32"


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for name in types:
        kind = dtype(name)
        if kind.kind in "iuf":
            for compute in dict.fromkeys((compute_of(kind), "f64")):
                yield range_unit(compute, kind.tag)


def _launch(p: Problem) -> Launch:
    compute = p.options["compute"]
    made = range_unit(compute, p.out.dtype.tag)
    names = ("start", "step", "span", "last")
    numbers: list[Argument] = (
        [i64(p.integers[name]) for name in names]
        if compute == "i64"
        else [Number(name, dtype("float64")) for name in names]
    )
    arguments = (write(p.out), i64(p.out.size), *numbers, i32(p.options["flags"]))
    blocks = blocks_for(p.out.size, 1024, "a range")
    return Launch((KernelLaunch(made, made.entries[0], (blocks,), (256,), arguments),))


def numbers(n: int, start: Any, step: Any, span: Any, last: Any, compute: str, flags: int) -> np.ndarray[Any, Any]:
    """Return the numbers as NumPy computes them, before they are converted."""
    kind = np.dtype(_COMPUTE[compute])
    i = np.arange(n, dtype=kind)
    start, step, span = (kind.type(v) for v in (start, step, span))
    with np.errstate(all="ignore"):
        y: np.ndarray[Any, Any] = (i / step * span if flags & SMALL else i * step) + start
    if flags & LAST and n:
        y[-1] = last
    return np.floor(y) if flags & FLOOR else y


def _host(p: Problem) -> Any:
    compute, flags = p.options["compute"], p.options["flags"]
    made = None if flags & (SMALL | FLOOR) else _native.host_range(p.out.dtype, compute, bool(flags & LAST))
    if made is not None and p.out.is_contiguous():
        return made

    def run(like: Any, n: int, start: Any, step: Any, span: Any, last: Any, out: Any) -> None:
        y = numbers(n, start, step, span, last, compute, flags)
        with np.errstate(all="ignore"):
            out[...] = y.astype(out.dtype)

    return run


_operator = register(
    Operator(
        name="shape_range",
        parameters=(
            Parameter("like"),
            Parameter("dtype", "choice"),
            Parameter("compute", "choice"),
            Parameter("flags", "choice"),
            *(Parameter(name, "number", 0) for name in ("n", "start", "step", "span", "last")),
        ),
        infer=lambda p: [Result((p.integers["n"],), p.options["dtype"])],
        reference=lambda like, dtype, compute, flags, n=0, start=0, step=0, span=0, last=0: numbers(
            n, start, step, span, last, compute, flags
        ).astype(to_numpy_dtype(dtype)),
        variants=(
            Variant("a thread per element", "batch_invariant", lambda p: None, launch=_launch, units=_units),
            Variant("the host", "batch_invariant", lambda p: None, host=_host),
        ),
        doc="Evenly spaced numbers on the device of an array.",
        public=False,
    )
)


def spaced(
    n: int,
    start: Any,
    step: Any,
    kind: DataType,
    device: Device | None = None,
    *,
    compute: str | None = None,
    span: Any = 0,
    last: Any = 0,
    flags: int = 0,
) -> GPUArray:
    """Return ``n`` numbers from ``start`` by ``step`` as elements of a type."""
    like = _native.empty([0], kind, device)
    return _operator(like, kind, compute or compute_of(kind), flags, n, start, step, span, last)  # type: ignore[no-any-return]


def positions(n: int, device: Device | None) -> GPUArray:
    """Return the integers from 0 as int64."""
    return spaced(n, 0, 1, dtype("int64"), device)
