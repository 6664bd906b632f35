"""Sum along an axis: types, kernel calls and the NumPy reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.call import MAX_GRID, Argument, KernelCall, Scratch
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.source import read

CHUNK = 4096
"""Elements of the summed axis per partial result; part of the definition of the result's bits."""

_ROWS_PER_BLOCK = 8
_COLUMNS_PER_BLOCK = 32
_THREADS = 256
_ACCUMULATOR = {"f": "float32", "i": "int64", "b": "int64", "u": "uint64"}


class SumPlan(NamedTuple):
    """How to sum the middle axis of ``[outer, n, inner]``.

    Attributes
    ----------
    out
        Type of the result, which is contiguous ``[outer, inner]``.
    scratch
        Temporary buffers the calls name.
    calls
        Kernels in order; the first reads ``"x"``, the last writes ``"out"``.
    """

    out: DataType
    scratch: tuple[Scratch, ...]
    calls: tuple[KernelCall, ...]


def sum_type(x: DataType) -> DataType:
    """Return the type of a sum: the widest integer of the kind for integers and bool, else ``x``."""
    return dtype(_ACCUMULATOR[x.kind]) if x.kind in "biu" else x


def accumulator(x: DataType) -> DataType:
    """Return the type sums of ``x`` are accumulated in."""
    if x.kind == "f":
        return dtype("float64" if x.itemsize == 8 else "float32")
    return sum_type(x)


def sum_plan(sizes: tuple[int, int, int], strides: tuple[int, int, int], x: DataType,
             out: DataType | None = None) -> SumPlan:  # fmt: skip
    """Return the kernel calls that sum the middle axis.

    Parameters
    ----------
    sizes
        ``(outer, n, inner)``; ``n`` may be 0, the others at least 1.
    strides
        Element strides of ``x`` for the three.
    x
        Element type of the input.
    out
        Type of the result, `sum_type` unless given.

    Raises
    ------
    DTypeError
        If the sum cannot be cast to ``out``.
    ShapeError
        If a size is out of range.
    """
    outer, n, inner = sizes
    if outer < 1 or inner < 1 or n < 0:
        raise ShapeError(f"cannot sum [outer, n, inner] = {list(sizes)}: outer and inner must be positive")
    result = sum_type(x) if out is None else out
    if not can_cast(sum_type(x), result):
        raise DTypeError(
            f"the sum of {x.name} is {sum_type(x).name} and cannot be written to {result.name}; "
            f"use an output of {sum_type(x).name}"
        )
    partial = accumulator(x)
    scratch: list[Scratch] = []
    calls: list[KernelCall] = []
    source, kind = "x", x
    while True:
        chunks = max(1, -(-n // CHUNK))
        last = chunks == 1
        target, to = ("out", result) if last else (f"partial{len(scratch)}", partial)
        if not last:
            scratch.append(Scratch(target, partial, outer * chunks * inner))
        calls.append(_call(target, source, (outer, n, inner, chunks), strides, kind, partial, to))
        if last:
            return SumPlan(result, tuple(scratch), tuple(calls))
        source, kind, n, strides = target, partial, chunks, (chunks * inner, inner, 1)


def _call(
    target: str,
    source: str,
    sizes: tuple[int, int, int, int],
    strides: tuple[int, int, int],
    kind: DataType,
    partial: DataType,
    to: DataType,
) -> KernelCall:
    outer, n, inner, chunks = sizes
    # Both kernels give the same bits; columns read whole cache lines when neighbours are other results.
    columns = strides[2] == 1 and strides[1] != 1 and inner >= _COLUMNS_PER_BLOCK // 4
    if columns:
        grid = outer * chunks * -(-inner // _COLUMNS_PER_BLOCK)
    else:
        grid = -(-outer * chunks * inner // _ROWS_PER_BLOCK)
    if grid > MAX_GRID:
        raise ShapeError(
            f"a sum of [outer, n, inner] = {[outer, n, inner]} needs {grid} blocks, over {MAX_GRID}: split it"
        )
    entry = sum_entry(kind, to, columns=columns)
    arguments: tuple[Argument, ...] = (target, source, outer, n, inner, chunks, *strides)
    return KernelCall(sum_source(kind, partial, to), entry, grid, _THREADS, arguments)


def sum_entry(x: DataType, to: DataType, *, columns: bool) -> str:
    """Return the kernel name of one stage."""
    tags = [x.tag] if to.tag == sum_type(x).tag else [x.tag, "to", to.tag]
    return "_".join(["pgk_sum", *tags, *(["cols"] if columns else [])])


@cache
def sum_source(x: DataType, partial: DataType, to: DataType) -> str:
    """Return the source of one stage: both kernels for ``x`` summed in ``partial`` and written as ``to``."""
    types = f"{x.tag}, {partial.tag}, {to.tag}"
    return (
        f"{read('reduce.cu')}PGK_SUM({sum_entry(x, to, columns=False)}, sum_rows, {types})\n"
        f"PGK_SUM({sum_entry(x, to, columns=True)}, sum_cols, {types})\n"
    )


def collapse(shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]
             ) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:  # fmt: skip
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


def _merge(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    kept = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if not kept or prod(shape) == 0:
        return prod(shape), 1
    for (_, above), (size, stride) in pairwise(kept):
        if above != size * stride:
            return None
    return prod(shape), kept[-1][1]


def reference(
    x: npt.NDArray[Any],
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: bool = False,
    out: DataType | None = None,
) -> Any:
    """Return the sum as NumPy computes it, with the accumulator of the kernel, rounded once to the type of the result.

    Parameters
    ----------
    out : DataType, optional
        Type of the result; `sum_type` by default.
    """
    kind = dtype(x.dtype)
    wide = np.sum(x.astype(to_numpy_dtype(accumulator(kind)), copy=False), axis=axis, keepdims=keepdims)
    return np.asarray(wide).astype(to_numpy_dtype(sum_type(kind) if out is None else out), copy=False)
