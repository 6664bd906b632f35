"""How kernels see a gather or scatter: few axes, elements as wide as alignment allows, index arrays of one type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.launch import Argument, Struct, i64, read
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import SizeLike

MAX_INDICES = 8
INDEX_NAMES = tuple(f"i{k}" for k in range(MAX_INDICES))

Strides = tuple[Any, ...]
"""Of one axis: of each array that takes part."""


def index_type(kinds: Sequence[DataType]) -> DataType:
    """Return the type that kernels read indices of these types in: int32 where all fit it, else int64."""
    small = all(kind.itemsize < 4 or kind.name == "int32" for kind in kinds)
    return dtype("int32" if small else "int64")


def of_one_type(indices: Sequence[GPUArray]) -> list[GPUArray]:
    """Return index arrays in one type that kernels read."""
    first = indices[0].dtype
    if first.name in ("int64", "int32") and all(index.dtype is first for index in indices):
        return list(indices)
    kind = index_type([index.dtype for index in indices])
    return [index.astype(kind, copy=False) for index in indices]


def given_indices(p: Problem) -> list[Tensor]:
    """Return the index arrays of a problem."""
    return [tensor for name in INDEX_NAMES if (tensor := p.arrays.get(name)) is not None]


def pointers(indices: Sequence[Tensor]) -> list[Argument]:
    """Return eight addresses; those beyond the last index array repeat the first."""
    return [read(indices[k] if k < len(indices) else indices[0]) for k in range(MAX_INDICES)]


def instance_of(count: int) -> int:
    """Return for how many index arrays the kernel that runs with ``count`` was made."""
    return next(k for k in (1, 2, MAX_INDICES) if count <= k)


def axes_struct(lengths: Sequence[SizeLike], *rows: Sequence[SizeLike]) -> Struct:
    """Return ``Axes``: lengths of the indexed axes and rows of strides along them."""
    padded = [(*row, *(0,) * (MAX_INDICES - len(row))) for row in (lengths, *rows)]
    return Struct(tuple(i64(value) for row in padded for value in row))


def collapse(shape: Sequence[Any], strides: Sequence[Strides]) -> tuple[list[Any], list[Strides]]:
    """Return axes without those of one element, neighbours joined where they are one in all arrays; one axis at least.

    Examples
    --------
    >>> collapse((2, 3, 4), [(12, 0), (4, 0), (1, 0)])
    ([24], [(1, 0)])
    """
    sizes: list[Any] = []
    rows: list[Strides] = []
    for size, row in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if rows and all(_joins(above, size, below) for above, below in zip(rows[-1], row, strict=True)):
            sizes[-1], rows[-1] = sizes[-1] * size, row
        else:
            sizes.append(size)
            rows.append(row)
    return (sizes, rows) if sizes else ([1], [(0,) * len(strides[0]) if strides else ()])


def _joins(above: Any, size: Any, below: Any) -> bool:
    if below is above and isinstance(below, int) and below == 0:
        return True
    return bool(above == size * below)


def code_of(size: int, tensors: Sequence[Tensor]) -> int:
    """Return the code of elements of ``size`` bytes for kernels (``of_size`` of places.cuh)."""
    return 17 if size == 16 and not all(tensor.is_aligned(16) for tensor in tensors) else size


def widen(
    sizes: list[Any], rows: list[Strides], along: Sequence[Strides], tensors: Sequence[Tensor]
) -> tuple[int, list[Any], list[Strides], list[Strides]]:
    """Return the bytes that move at once, and the axes counted in those.

    Parameters
    ----------
    sizes, rows
        Axes, and of each the strides of the arrays that move, then of the index arrays.
    along
        Strides of the arrays that move along the indexed axes.
    tensors
        The arrays that move.
    """
    count, item = len(tensors), tensors[0].dtype.itemsize
    last = rows[-1]
    if any(step != 1 for step in last[:count]) or any(step != 0 for step in last[count:]):
        return item, sizes, rows, list(along)
    for wide in (16, 8, 4, 2):
        factor = wide // item
        if factor < 2 or sizes[-1] % factor != 0:
            continue
        if any(s % factor != 0 for row in (*(r[:count] for r in rows[:-1]), *along) for s in row):
            continue
        if all(tensor.is_aligned(wide) for tensor in tensors):
            moved = [(*(s // factor for s in row[:count]), *row[count:]) for row in rows[:-1]]
            steps = [tuple(s // factor for s in row) for row in along]
            return wide, [*sizes[:-1], sizes[-1] // factor], [*moved, last], steps
    return item, sizes, rows, list(along)
