"""The operators that draw: vectors of a distribution or of integers, from a key and the number of the first block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Number, Unit, blocks_for, i32, i64, read, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.source import instance
from pygpukit.random import reference, rejection

__all__ = ["fill", "integers", "reject"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
_KINDS = tuple(reference.KINDS)
_COUNTER = (
    Parameter("counter", doc="int64, one element: blocks that replays of graphs have used."),
    Parameter("n", "number", doc="Elements."),
    Parameter("key", "number", doc="64 bits."),
    Parameter("offset", "number", doc="The first block of words."),
    Parameter("stream", "number", doc="32 bits of the counter; the lowest says that `counter` is added to `offset`."),
)
_WORDS = tuple(
    Number(name, dtype(kind)) for name, kind in (("key", "uint64"), ("offset", "uint64"), ("stream", "uint32"))
)


def per_block(kind: DataType, wide: bool = False) -> int:
    """Return the elements that a block of four words gives."""
    return 2 if wide or kind.name == "float64" else 4


def _infer(p: Problem) -> list[Result]:
    return [Result((p.integers["n"],), p.options["kind"])]


def _contiguous(p: Problem) -> str | None:
    return None if p.out.is_contiguous() else "out is not contiguous"


def _launch(p: Problem, unit: Unit, entry: str, count: int, arguments: tuple[Number, ...]) -> Launch:
    n, out = p.integers["n"], p.out
    vec = i32(out.is_aligned(min(16, count * out.dtype.itemsize)))
    grid = blocks_for(n, 1024 * count, p.name)
    every: tuple[Argument, ...] = (write(out), read(p["counter"]), i64(n), vec, *_WORDS, *arguments)
    return Launch((KernelLaunch(unit, entry, (grid,), (256,), every),))


@cache
def fill_unit(distribution: str, kind: DataType) -> Unit:
    """Return the source of the kernel for a distribution and an element type."""
    entry, compute = f"pgk_random_{distribution}_{kind.tag}", "f64" if kind.name == "float64" else "f32"
    line = f"PGK_FILL({entry}, {kind.tag}, {compute}, {distribution.capitalize()})"
    return instance("random/fill.cu", [line], (entry,))


def _launch_fill(p: Problem) -> Launch:
    kind = p.options["kind"]
    unit, real = fill_unit(p.options["distribution"], kind), dtype("float64" if kind.name == "float64" else "float32")
    return _launch(p, unit, unit.entries[0], per_block(kind), (Number("a", real), Number("b", real)))


def _host_fill(p: Problem) -> Any:
    return _native.host_fill(p.options["distribution"], p.options["kind"])


def _units_fill(types: Sequence[str]) -> Iterator[Unit]:
    return (fill_unit(distribution, dtype(name)) for name in types if name in FLOATS for distribution in _KINDS)


fill = register(
    Operator(
        name="random_fill",
        parameters=(
            *_COUNTER,
            Parameter("a", "number", 0.0, doc="Added to every number."),
            Parameter("b", "number", 1.0, doc="Factor of every number."),
            Parameter("distribution", "choice", "uniform", doc=f"One of {', '.join(_KINDS)}."),
            Parameter("kind", "choice", dtype("float32"), doc="Element type."),
        ),
        infer=_infer,
        reference=lambda *args: _made(reference.fill, *args),
        variants=(
            Variant(
                "a block of words per thread", "batch_invariant", _contiguous, launch=_launch_fill, units=_units_fill
            ),
            Variant("the core", "batch_invariant", _contiguous, host=_host_fill),
        ),
        doc="A vector of floating-point numbers of a distribution.",
        public=False,
    )
)


@cache
def integers_unit() -> Unit:
    """Return the source of the kernels that draw integers."""
    kinds = (("u8", 32), ("u16", 32), ("u32", 32), ("u64", 32), ("u64", 64))
    entries = tuple(f"pgk_random_integers_{kind}_{bits}" for kind, bits in kinds)
    lines = [f"PGK_INTEGERS({entry}, {kind}, {bits})" for entry, (kind, bits) in zip(entries, kinds, strict=True)]
    return instance("random/integers.cu", lines, entries)


def _launch_integers(p: Problem) -> Launch:
    kind, wide, unit = p.options["kind"], bool(p.options["wide"]), integers_unit()
    entry = unit.entries[4 if wide else kind.itemsize.bit_length() - 1]
    numbers = tuple(Number(name, dtype("uint64")) for name in ("low", "last", "reject"))
    return _launch(p, unit, entry, per_block(kind, wide), numbers)


def _host_integers(p: Problem) -> Any:
    return _native.host_integers(bool(p.options["wide"]))


def _units_integers(types: Sequence[str]) -> Iterator[Unit]:
    yield integers_unit()


integers = register(
    Operator(
        name="random_integers",
        parameters=(
            *_COUNTER,
            Parameter("low", "number", doc="The smallest integer, modulo 2^64."),
            Parameter("last", "number", doc="The largest integer less the smallest."),
            Parameter("reject", "number", doc="2^32, for wide words 2^64, modulo the number of integers."),
            Parameter("wide", "choice", False, doc="Use words of 64 bits: for more than 2^32 integers."),
            Parameter("kind", "choice", dtype("int64"), doc="Element type."),
        ),
        infer=_infer,
        reference=lambda *args: _made(reference.integers, *args),
        variants=(
            Variant(
                "a block of words per thread", "batch_invariant", _contiguous, launch=_launch_integers,
                units=_units_integers,
            ),
            Variant("the core", "batch_invariant", _contiguous, host=_host_integers),
        ),
        doc="A vector of integers of equal probability.",
        public=False,
    )
)  # fmt: skip


_REJECTIONS = {
    "gamma": ("Gamma", "f64"),
    "log_gamma": ("Gamma", "f64"),
    "poisson": ("Poisson", "f64"),
    "binomial": ("Binomial", "f64"),
    "ranges": ("Ranges", "u64"),
}


@cache
def reject_unit(distribution: str, kind: DataType) -> Unit:
    """Return the source of the kernel for a distribution and an element type."""
    name, parameter = _REJECTIONS[distribution]
    entry = f"pgk_random_{name.lower()}_{kind.tag}"
    tag = "u64" if distribution == "ranges" else kind.tag
    return instance("random/reject.cu", [f"PGK_REJECT({entry}, {name}, {tag}, {parameter})"], (entry,))


def _dense(p: Problem) -> str | None:
    together = all(t.is_contiguous() for t in (*p.inputs.values(), p.out))
    return None if together else "an array is not contiguous"


def _launch_reject(p: Problem) -> Launch:
    distribution, n, counter = p.options["distribution"], p.integers["n"], p["counter"]
    unit, x, y = reject_unit(distribution, p.options["kind"]), p.arrays["x"], p.arrays["y"]
    flags = (x is not None) + 2 * (y is not None) + 4 * (distribution == "log_gamma")
    real = dtype("uint64" if distribution == "ranges" else "float64")
    arguments: tuple[Argument, ...] = (
        write(p.out), read(counter), read(counter if x is None else x), read(counter if y is None else y), i64(n),
        i32(flags), *_WORDS, Number("a", real), Number("b", real),
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(n, 256, p.name),), (256,), arguments),))


def _host_reject(p: Problem) -> Callable[..., None]:
    distribution = p.options["distribution"]

    def run(counter: Any, x: Any, y: Any, *numbers: Any) -> None:
        rejection.reject(distribution, counter, x, y, *numbers)

    return run


def _units_reject(types: Sequence[str]) -> Iterator[Unit]:
    for name in types:
        if name in ("float32", "float64"):
            yield reject_unit("gamma", dtype(name))
        if name == "int64":
            yield from (reject_unit(each, dtype(name)) for each in ("poisson", "binomial", "ranges"))


def _reference_reject(
    counter: Any,
    x: Any,
    y: Any,
    n: int,
    key: int,
    offset: int,
    stream: int,
    a: Any,
    b: Any,
    distribution: str,
    kind: Any,
) -> Any:
    out = np.empty(n, to_numpy_dtype(kind))
    rejection.reject(distribution, counter, x, y, n, key, offset, stream, a, b, out)
    return out


reject = register(
    Operator(
        name="random_reject",
        parameters=(
            _COUNTER[0],
            Parameter("x", "optional", None, doc="The first parameter of each element."),
            Parameter("y", "optional", None, doc="The second parameter of each element."),
            *_COUNTER[1:],
            Parameter("a", "number", 0, doc="The first parameter of all elements."),
            Parameter("b", "number", 0, doc="The second parameter of all elements."),
            Parameter("distribution", "choice", "gamma", doc=f"One of {', '.join(_REJECTIONS)}."),
            Parameter("kind", "choice", dtype("float64"), doc="Element type."),
        ),
        infer=_infer,
        reference=_reference_reject,
        variants=(
            Variant("an element per thread", "batch_invariant", _dense, launch=_launch_reject, units=_units_reject),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_reject),
        ),
        doc="A vector of numbers that are drawn until one is accepted, with parameters for all or for each.",
        public=False,
    )
)


def _made(function: Callable[..., None], counter: Any, n: int, *args: Any) -> Any:
    """Return the result of a function that takes the operator's choices first and its result last."""
    *numbers, choice, kind = args
    out = np.empty(n, to_numpy_dtype(kind))
    if function is reference.fill:
        function(choice, dtype(kind).name, counter, n, *numbers, out)
    else:
        function(choice, counter, n, *numbers, out)
    return out
