"""Gathers: elements of an array by index arrays; `take` and `take_along_axis`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.index.layout import (
    INDEX_NAMES,
    MAX_INDICES,
    Strides,
    axes_struct,
    code_of,
    collapse,
    given_indices,
    instance_of,
    pointers,
    widen,
)
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i32, i64, nd, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.source import instance

MODES = ("raise", "wrap", "clip")
_FLAT, _PER_BLOCK = 2048, 1024


@cache
def flat_unit() -> Unit:
    """Return the source of the gather of vectors."""
    return instance("index/gather.cu", ["PGK_GATHER_FLAT(pgk_gather_flat)"], ("pgk_gather_flat",))


@cache
def nd_unit(count: int) -> Unit:
    """Return the source of gathers through up to so many index arrays."""
    entry = f"pgk_gather_nd_k{count}"
    return instance("index/gather.cu", [f"PGK_GATHER_ND({entry}, {count})"], (entry,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield flat_unit()
    for count in (1, 2, MAX_INDICES):
        yield nd_unit(count)


def gather_launch(
    out: Tensor, x: Tensor, indices: Sequence[Tensor], axes: Sequence[tuple[Any, Strides]], lengths: Sequence[Any],
    steps: Sequence[Any], mode: int,
) -> Launch:  # fmt: skip
    """Return the launch of a gather.

    Parameters
    ----------
    axes
        Size of each axis of the result, and the strides along it of out, x and the index arrays.
    lengths, steps
        Lengths of the indexed axes, and strides of x along them.
    """
    axes = axes or [(1, (0,) * (2 + len(indices)))]
    sizes, rows = collapse([size for size, _ in axes], [row for _, row in axes])
    wide = int(indices[0].dtype.itemsize == 8)
    total = out.size
    if len(indices) == 1 and len(sizes) == 1:
        to, of_x, at = rows[0]
        if (at == 1 and to == 1 and of_x == 0) or sizes[0] == 1:
            unit, code = flat_unit(), code_of(x.dtype.itemsize, (out, x))
            arguments: tuple[Argument, ...] = (
                write(out), read(x), read(indices[0]), *map(i64, (total, lengths[0], steps[0])),
                *map(i32, (code, wide, mode)),
            )  # fmt: skip
            blocks = blocks_for(total, _FLAT, "an index")
            return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (256,), arguments),))
    size, sizes, rows, along = widen(sizes, rows, [(step,) for step in steps], (out, x))
    count = instance_of(len(indices))
    padding = (0,) * (count - len(indices))
    unit = nd_unit(count)
    columns = list(zip(*((*row, *padding) for row in rows), strict=True))
    total = sizes[0]
    for one in sizes[1:]:
        total = total * one
    arguments = (write(out), read(x), *pointers(indices), i64(total), nd(sizes, columns),
                 axes_struct(lengths, [step for (step,) in along]),
                 *map(i32, (len(indices), code_of(size, (out, x)), wide, mode)))  # fmt: skip
    blocks = blocks_for(total, _PER_BLOCK, "an index")
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (256,), arguments),))


INDICES = (
    Parameter("i0"),
    Parameter("before", "choice", 0, doc="Axes before the indexed ones."),
    Parameter("mode", "choice", 0, doc="Position in `MODES`."),
    *(Parameter(name, "optional", None) for name in INDEX_NAMES[1:]),
)


def result_shape(p: Problem) -> tuple[Any, ...]:
    """Return the shape of what index arrays name: the axes before, theirs, the axes behind."""
    x, before, indices = p["x"], p.options["before"], given_indices(p)
    return (*x.shape[:before], *indices[0].shape, *x.shape[before + len(indices) :])


def _infer(p: Problem) -> list[Result]:
    kind = p["x"].dtype
    if p.requested and p.requested[0] is not kind:
        raise DTypeError(
            f"elements of {kind.name} are not gathered into {p.requested[0].name}; use an out of {kind.name}"
        )
    return [Result(p["index"].shape if "index" in p.arrays else result_shape(p), kind)]


def _launch(p: Problem) -> Launch:
    x, before, indices = p["x"], p.options["before"], given_indices(p)
    k, inner = len(indices), indices[0].ndim
    of_x = (*x.strides[:before], *(0,) * inner, *x.strides[before + k :])
    behind = (0,) * (x.ndim - before - k)
    of_indices = [((0,) * before + index.strides + behind) for index in indices]
    axes = [(n, tuple(row)) for n, *row in zip(p.out.shape, p.out.strides, of_x, *of_indices, strict=True)]
    indexed = slice(before, before + k)
    return gather_launch(p.out, x, indices, axes, x.shape[indexed], x.strides[indexed], p.options["mode"])


def _host(p: Problem) -> Callable[..., None]:
    head, mode = (slice(None),) * p.options["before"], p.options["mode"]
    k = len(given_indices(p))

    def several(x: Any, i0: Any, *rest: Any) -> None:
        rest[-1][...] = x[(*head, i0, *rest[: k - 1])]

    def one(x: Any, i0: Any, i1: Any, i2: Any, i3: Any, i4: Any, i5: Any, i6: Any, i7: Any, out: Any) -> None:
        out[...] = x[i0]

    def taken(x: Any, i0: Any, *rest: Any) -> None:
        rest[-1][...] = np.take(x, i0, len(head), mode="wrap" if mode == 1 else "clip")

    if mode:
        return taken
    return one if k == 1 and not head else several


gather = register(
    Operator(
        name="index_gather",
        parameters=(Parameter("x"), *INDICES),
        infer=_infer,
        reference=lambda x, i0, before=0, mode=0: np.take(x, i0, before),
        variants=(
            Variant("a thread per element", "batch_invariant", lambda p: None, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
        ),
        doc="Elements by index arrays of one shape and type, int32 or int64, for neighbouring axes of ``x``.",
        public=False,
    )
)


def _along_launch(p: Problem) -> Launch:
    x, index, axis = p["x"], p["index"], p.options["axis"]
    strides = [0 if d == axis else step for d, step in enumerate(x.strides)]
    axes = list(zip(index.shape, zip(p.out.strides, strides, index.strides, strict=True), strict=True))
    return gather_launch(p.out, x, [index], axes, [x.shape[axis]], [x.strides[axis]], 0)


def _along_host(p: Problem) -> Callable[..., None]:
    axis = p.options["axis"]

    def run(x: Any, index: Any, out: Any) -> None:
        out[...] = np.take_along_axis(x, index, axis)

    return run


take_along = register(
    Operator(
        name="index_take_along",
        parameters=(Parameter("x"), Parameter("index"), Parameter("axis", "choice")),
        infer=_infer,
        reference=np.take_along_axis,
        variants=(
            Variant("a thread per element", "batch_invariant", lambda p: None, launch=_along_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_along_host),
        ),
        doc="Elements along an axis by positions, whose other axes have the shape of ``x``.",
        public=False,
    )
)


def gathered(x: GPUArray, indices: Sequence[GPUArray], before: int = 0, mode: int = 0) -> GPUArray:
    """Return elements by index arrays of one shape and type for the axes of ``x`` from ``before`` on."""
    result: GPUArray = gather(x, indices[0], before, mode, *indices[1:])
    return result


def int64_of(index: GPUArray) -> GPUArray:
    """Return indices as int64."""
    return index.astype(dtype("int64"), copy=False)
