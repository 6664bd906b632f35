"""Operands of a matrix product as stacks of matrices, and how these lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pygpukit.ops.problem import Problem, Tensor, broadcast
from pygpukit.ops.size import maximum

ALONG_K, ACROSS, ANY = "ALONG_K", "ACROSS", "ANY"
"""What is contiguous in the lines of an operand, rows of a and columns of b: values of ``pgk::Lines``."""


class Matrices(NamedTuple):
    """One operand as a stack of matrices.

    Attributes
    ----------
    rows, columns
        Sizes of the last two axes.
    row, column
        Their element strides.
    batch
        Strides of the batch axes, 0 where the operand is broadcast.
    """

    rows: Any
    columns: Any
    row: Any
    column: Any
    batch: tuple[Any, ...] = ()


class Stored(NamedTuple):
    """How the matrices of a stack are stored.

    Attributes
    ----------
    transposed
        The stored matrix is the transpose of the operand.
    ld
        Elements from one stored row to the next.
    """

    transposed: bool
    ld: Any


def stacks(p: Problem) -> tuple[tuple[Any, ...], Matrices, Matrices, Matrices]:
    """Return the batch's shape, and out, a and b as stacks of matrices; vectors are matrices of one row or column."""
    a, b = p["a"], p["b"]
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    assert batch is not None
    m, row = (a.shape[-2], a.strides[-2]) if a.ndim > 1 else (1, 0)
    n, column = (b.shape[-1], b.strides[-1]) if b.ndim > 1 else (1, 0)
    k = a.shape[-1]
    left = Matrices(m, k, row, a.strides[-1], _spread(a, len(batch)))
    right = Matrices(k, n, b.strides[-2] if b.ndim > 1 else b.strides[0], column, _spread(b, len(batch)))
    return batch, result_stack(p, p.out), left, right


def result_stack(p: Problem, x: Tensor) -> Matrices:
    """Return an array of the result's shape as a stack of matrices."""
    a, b = p["a"], p["b"]
    m, n = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    strides = list(x.strides)
    column = strides.pop() if b.ndim > 1 else 0
    row = strides.pop() if a.ndim > 1 else 0
    return Matrices(m, n, row, column, tuple(strides))


def _spread(x: Tensor, ndim: int) -> tuple[Any, ...]:
    """Strides of the batch axes of an operand: 0 where it is broadcast."""
    own = x.ndim - 2 if x.ndim > 2 else 0
    strides = [0 if size == 1 else stride for size, stride in zip(x.shape[:own], x.strides[:own], strict=True)]
    return (0,) * (ndim - own) + tuple(strides)


def stored(x: Matrices) -> Stored | None:
    """Return how a stack is stored; None where neither rows nor columns are contiguous."""
    if (x.column == 1 or x.columns == 1) and (x.row >= x.columns or x.rows == 1):
        return Stored(False, maximum(x.row, x.columns))
    if (x.row == 1 or x.rows == 1) and (x.column >= x.rows or x.columns == 1):
        return Stored(True, maximum(x.column, x.rows))
    return None


def one_stride(batch: Sequence[Any], strides: Sequence[Any]) -> Any:
    """Return the elements between the matrices of a stack of one or more axes; None where these differ."""
    kept = [(size, stride) for size, stride in zip(batch, strides, strict=True) if size != 1]
    for (_, above), (size, stride) in pairwise(kept):
        if above != size * stride:
            return None
    return kept[-1][1] if kept else 0


def lines_of(x: Tensor, along: Any, across: Any, lines: Any, depth: Any, batch: Sequence[Any], both: bool) -> str:
    """Return how the lines of an operand lie: rows of a, or columns of b.

    Parameters
    ----------
    x
        The operand.
    along, across
        Element strides along k and from line to line.
    lines, depth
        Their number and length.
    batch
        Strides from matrix to matrix.
    both
        Lines may lie across k.
    """
    per_chunk = 16 // x.dtype.itemsize
    if not x.is_aligned(16) or any(stride % per_chunk != 0 for stride in batch):
        return ANY
    if along == 1 and (lines == 1 or across % per_chunk == 0):
        return ALONG_K
    if both and across == 1 and (depth == 1 or along % per_chunk == 0):
        return ACROSS
    return ANY


def layouts(p: Problem, both: bool | None = None) -> tuple[str, str]:
    """Return how the lines of a and b lie; those of types that have not 16 bits may not lie across k by default."""
    _, _, a, b = stacks(p)
    both = p["a"].dtype.itemsize == 2 if both is None else both
    return (
        lines_of(p["a"], a.column, a.row, a.rows, a.columns, a.batch, both),
        lines_of(p["b"], b.row, b.column, b.columns, b.rows, b.batch, both),
    )
