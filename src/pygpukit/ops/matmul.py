"""Matrix product: types, kernel call and the NumPy reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.call import MAX_GRID, Argument, KernelCall, pack_nd
from pygpukit.ops.promotion import can_cast, resolve
from pygpukit.ops.source import read
from pygpukit.ops.table import Row

TILE = 64
"""Rows and columns of the output per block."""

_THREADS = 256
_ROW = Row("matmul", 2, "", np.matmul, np.matmul, "biufc", 2, "Matrix product.")


class Matrices(NamedTuple):
    """Layout of one operand: element strides of a stack of matrices.

    Attributes
    ----------
    row, column
        Strides of the last two axes.
    batch
        Strides of the batch axes, 0 where the operand is broadcast.
    """

    row: int
    column: int
    batch: tuple[int, ...] = ()


def matmul_type(a: DataType, b: DataType) -> DataType:
    """Return the result type of a product.

    Raises
    ------
    DTypeError
        If the types have no common type.
    """
    return resolve(_ROW, (a, b))[1]


def accumulator(common: DataType) -> DataType:
    """Return the type products are summed in; integers wrap, so their sign does not matter."""
    if common.kind == "f":
        return dtype("float64" if common.itemsize == 8 else "float32")
    if common.kind in "iu":
        return dtype("uint64" if common.itemsize == 8 else "uint32")
    return dtype("uint8") if common.kind == "b" else common


def wide_type(a: DataType, b: DataType) -> DataType:
    """Return the type to which operands can be cast first: their product in it is the direct one before rounding."""
    common = resolve(_ROW, (a, b))[0]
    return accumulator(common) if common.kind == "f" else common


def matmul_call(
    sizes: tuple[int, int, int],
    batch: Sequence[int],
    types: tuple[DataType, DataType],
    layouts: tuple[Matrices, Matrices, Matrices],
    out: DataType | None = None,
) -> KernelCall:
    """Return the kernel call of ``out[..., m, n] = a[..., m, k] @ b[..., k, n]``.

    Parameters
    ----------
    sizes
        ``(m, n, k)``; ``k`` may be 0.
    batch
        Shape of the batch axes after broadcasting.
    types
        Element types of ``a`` and ``b``.
    layouts
        Layouts of ``out``, ``a`` and ``b``.
    out
        Type of the output, `matmul_type` unless given; the sum is rounded to it once.

    Raises
    ------
    DTypeError
        If the result cannot be cast to ``out``.
    ShapeError
        If a size is out of range.
    """
    m, n, k = sizes
    if m < 1 or n < 1 or k < 0 or any(size < 1 for size in batch):
        raise ShapeError(f"matmul needs positive sizes, got m, n, k = {m}, {n}, {k} and batch {tuple(batch)}")
    result = matmul_type(*types)
    target = result if out is None else out
    if not can_cast(result, target):
        raise DTypeError(
            f"matmul({types[0].name}, {types[1].name}) gives {result.name}, which cannot be written to {target.name}; "
            f"use an output of {result.name}"
        )
    grid = prod(batch) * -(-m // TILE) * -(-n // TILE)
    if grid > MAX_GRID:
        raise ShapeError(f"matmul of {m} x {n}, batch {tuple(batch)}, needs {grid} blocks, over {MAX_GRID}: split it")
    to, a, b = layouts
    arguments: tuple[Argument, ...] = (
        "out", "a", "b", m, n, k, to.row, to.column, a.row, a.column, b.row, b.column,
        pack_nd(batch, [layout.batch for layout in layouts]),
    )  # fmt: skip
    return KernelCall(matmul_source(*types, target), matmul_entry(*types, target), grid, _THREADS, arguments)


def matmul_entry(a: DataType, b: DataType, to: DataType) -> str:
    """Return the kernel's name."""
    common, result = resolve(_ROW, (a, b))
    tags = [common.tag] if a.tag == b.tag == common.tag else [a.tag, b.tag]
    return "_".join(["pgk_matmul", *tags, *([] if to.tag == result.tag else ["to", to.tag])])


@cache
def matmul_source(a: DataType, b: DataType, to: DataType) -> str:
    """Return the source of the product of ``a`` and ``b`` written as ``to``."""
    common, result = resolve(_ROW, (a, b))
    partial = accumulator(common)
    # Integers are summed unsigned: the sign comes back before a wider type is filled.
    rounded = result if result.kind in "iu" else partial
    logical = "true" if common.kind == "b" else "false"
    kinds = f"{a.tag}, {b.tag}, {partial.tag}, {rounded.tag}, {to.tag}, {logical}"
    return f"{read('matmul.cu')}PGK_MATMUL({matmul_entry(a, b, to)}, {kinds})\n"


def reference(a: npt.NDArray[Any], b: npt.NDArray[Any], out: DataType | None = None) -> Any:
    """Return the product as NumPy computes it, with small floats multiplied and summed in float32."""
    result = matmul_type(dtype(a.dtype), dtype(b.dtype))
    wide = to_numpy_dtype(wide_type(dtype(a.dtype), dtype(b.dtype)))
    with np.errstate(all="ignore"):
        product = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
        return np.asarray(product).astype(to_numpy_dtype(result if out is None else out), copy=False)
