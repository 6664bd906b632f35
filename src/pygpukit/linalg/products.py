"""Products under linalg's names: with the last two axes as matrices, chains and powers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from numpy.linalg import LinAlgError

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.errors import ShapeError
from pygpukit.linalg.arrays import require, require_both, swap
from pygpukit.linalg.solving import inv
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.operands import as_arrays
from pygpukit.ops.products import contract
from pygpukit.ops.products import dot as d
from pygpukit.ops.reduce.compositions import into
from pygpukit.ops.registry import functions
from pygpukit.ops.shape.triangles import eye

__all__ = [
    "cross",
    "diagonal",
    "matrix_power",
    "matrix_transpose",
    "multi_dot",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
]


def matrix_transpose(x: Any, /) -> GPUArray:
    """The last two axes exchanged; a view.

    Examples
    --------
    >>> gp.linalg.matrix_transpose(gp.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    x = require("matrix_transpose", x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose() takes arrays of at least two dimensions, not of {x.ndim}")
    return swap(x)


def diagonal(x: Any, /, *, offset: int = 0) -> GPUArray:
    """The diagonals of matrices as the last axis; a view.

    Examples
    --------
    >>> gp.linalg.diagonal(gp.asarray([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    x = require("diagonal", x)
    return contract.diagonal_of(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> GPUArray:
    """Sums of the diagonals of matrices.

    Examples
    --------
    >>> gp.linalg.trace(gp.ones((5, 3, 3))).tolist()
    [3.0, 3.0, 3.0, 3.0, 3.0]
    """
    return contract.trace(x, offset, -2, -1, dtype)  # type: ignore[no-any-return]


def outer(x1: Any, x2: Any, /) -> GPUArray:
    """Products of every element of one vector with every element of another.

    Examples
    --------
    >>> gp.linalg.outer(gp.asarray([1, 2]), gp.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    x1, x2 = require_both("outer", x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"outer() takes vectors, not arrays of {x1.ndim} and {x2.ndim} dimensions")
    return d.outer(x1, x2)  # type: ignore[no-any-return]


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> GPUArray:
    """`pygpukit.tensordot`.

    Examples
    --------
    >>> gp.linalg.tensordot(gp.ones((2, 3)), gp.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    return contract.tensordot(x1, x2, axes)  # type: ignore[no-any-return]


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> GPUArray:
    """`pygpukit.vecdot`.

    Examples
    --------
    >>> gp.linalg.vecdot(gp.ones((2, 3)), gp.ones(3)).tolist()
    [3.0, 3.0]
    """
    return d.vecdot(x1, x2, axis=axis)  # type: ignore[no-any-return]


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> GPUArray:
    """Vector products of vectors of three elements."""
    x1, x2 = require_both("cross", x1, x2)
    for x in (x1, x2):
        if x.shape[axis] != 3:
            raise ShapeError(f"cross() takes vectors of three elements, not of {x.shape[axis]}")
    return functions()["cross"](x1, x2, axis=axis)  # type: ignore[no-any-return]


def matrix_power(a: Any, n: Any) -> GPUArray:
    """Powers of square matrices by repeated squaring; negative ones are those of the inverses.

    Examples
    --------
    >>> gp.linalg.matrix_power(gp.asarray([[1, 1], [0, 1]]), 5).tolist()
    [[1, 5], [0, 1]]
    """
    a = require("matrix_power", a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise LinAlgError(f"matrix_power() takes square matrices, not an array of shape {a.shape}")
    try:
        count = operator.index(n)
    except TypeError:
        raise TypeError(f"exponent must be an integer, not {n!r}") from None
    if count == 0:
        return eye(a.shape[-1], dtype=a.dtype, device=a.device)._broadcast_to(a.shape).copy()
    if count < 0:
        a, count = inv(a), -count
    if count <= 3:
        power = a
        for _ in range(count - 1):
            power = matmul(power, a)
        return power  # type: ignore[no-any-return]
    square = result = None
    while count > 0:
        square = a if square is None else matmul(square, square)
        count, bit = divmod(count, 2)
        if bit:
            result = square if result is None else matmul(result, square)
    return result  # type: ignore[return-value]


def multi_dot(arrays: Sequence[Any], *, out: Any = None) -> GPUArray:
    """Product of two or more matrices, in the order that needs the fewest multiplications.

    The first and the last may be vectors.

    Examples
    --------
    >>> gp.linalg.multi_dot([gp.ones((2, 3)), gp.ones((3, 4)), gp.ones(4)]).tolist()
    [12.0, 12.0]
    """
    if len(arrays) < 2:
        raise ValueError(f"multi_dot() takes at least two arrays, not {len(arrays)}")
    arrays = list(as_arrays("multi_dot()", *arrays))
    if len(arrays) == 2:
        return d.dot(arrays[0], arrays[1], out)  # type: ignore[no-any-return]
    chain = list(arrays)
    shape: list[int] = []
    if chain[0].ndim == 1:
        chain[0] = chain[0]._expand(0)
    else:
        shape += chain[0].shape[:1]
    if chain[-1].ndim == 1:
        chain[-1] = chain[-1]._expand(1)
    else:
        shape += chain[-1].shape[1:]
    for x in chain:
        if x.ndim != 2:
            raise LinAlgError(f"{x.ndim}-dimensional array given. Array must be two-dimensional")
    for x, y in pairwise(chain):
        if x.shape[1] != y.shape[0]:
            raise ShapeError(f"multi_dot(): matrices of shapes {x.shape} and {y.shape} stand side by side")
    split = _order([chain[0].shape[0], *(x.shape[1] for x in chain)])

    def run(first: int, last: int) -> Any:
        if first == last:
            return chain[first]
        middle = split[first, last]
        return matmul(run(first, middle), run(middle + 1, last))

    return into(run(0, len(chain) - 1).reshape(shape), out)


def _order(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split each part of a chain of matrices: ``sizes[i]`` by ``sizes[i + 1]``."""
    n = len(sizes) - 1
    cost = {(i, i): 0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            costs = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
            split[i, j] = min(costs, key=costs.__getitem__)
            cost[i, j] = costs[split[i, j]]
    return split
