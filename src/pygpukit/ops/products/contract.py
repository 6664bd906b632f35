"""Contractions and products made of views, `matmul` and sums: tensordot, kron, trace."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

from numpy.exceptions import AxisError

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.products.dot import NO_STREAM, require, require_both
from pygpukit.ops.reduce import rows as r

__all__ = ["FUNCTIONS", "diagonal_of", "kron", "tensordot", "trace"]


def _axes(axes: Any) -> list[int]:
    try:
        return [operator.index(axes)]
    except TypeError:
        return [operator.index(axis) for axis in axes]


def tensordot(a: Any, b: Any, axes: Any = 2, *, stream: Any = None) -> Any:
    """Product summed over pairs of axes: the result has the other axes of ``a``, then those of ``b``.

    Parameters
    ----------
    a, b : GPUArray
        Operands.
    axes : int or pair of sequences of int, optional
        That many of the last axes of ``a`` and the first of ``b``; or the axes of each.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.tensordot(gp.ones((2, 3, 4)), gp.ones((4, 3)), axes=([1, 2], [1, 0])).tolist()
    [12.0, 12.0]
    """
    a, b = require_both("tensordot", a, b)
    if isinstance(axes, str) or (hasattr(axes, "__len__") and len(axes) != 2):
        raise ValueError(f"tensordot(): axes are an int or a pair, not {axes!r}")
    if hasattr(axes, "__len__"):
        left, right = _axes(axes[0]), _axes(axes[1])
    else:
        count = operator.index(axes)
        left, right = list(range(-count, 0)), list(range(count))
    if len(left) != len(right):
        raise ShapeError(f"tensordot(): {len(left)} axes of the first and {len(right)} of the second")
    for i, j in zip(left, right, strict=True):
        for x, axis in ((a, i), (b, j)):
            if not -x.ndim <= axis < x.ndim:
                raise IndexError(f"tensordot(): axis {axis} is out of range for an array of {x.ndim} dimensions")
        if a.shape[i] != b.shape[j]:
            raise ShapeError(f"tensordot(): axis {i} of shape {a.shape} and {j} of shape {b.shape} differ in size")
    left, right = [i % a.ndim for i in left], [j % b.ndim for j in right]
    if len(set(left)) != len(left) or len(set(right)) != len(right):
        raise ShapeError(f"tensordot(): axes {left} and {right} name an axis twice")
    with stream or NO_STREAM:
        rows = [i for i in range(a.ndim) if i not in left]
        columns = [i for i in range(b.ndim) if i not in right]
        shape = [a.shape[i] for i in rows] + [b.shape[i] for i in columns]
        k = prod([a.shape[i] for i in left])
        m = prod([a.shape[i] for i in rows])
        n = prod([b.shape[i] for i in columns])
        made = matmul(a._permute([*rows, *left]).reshape(m, k), b._permute([*right, *columns]).reshape(k, n))
        return made.reshape(shape)


def kron(a: Any, b: Any, *, stream: Any = None) -> Any:
    """Kronecker product: blocks of ``b``, each multiplied by an element of ``a``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.kron(gp.asarray([1, 10]), gp.asarray([1, 2])).tolist()
    [1, 2, 10, 20]
    """
    a, b = require_both("kron", a, b)
    with stream or NO_STREAM:
        ndim = max(a.ndim, b.ndim)
        left = (1,) * (ndim - a.ndim) + tuple(a.shape)
        right = (1,) * (ndim - b.ndim) + tuple(b.shape)
        shape = [x * y for x, y in zip(left, right, strict=True)]
        # An axis of one element takes no second one: an array has at most eight.
        rows, blocks = [], []
        for x, y in zip(left, right, strict=True):
            rows += [x] if x == 1 or y == 1 else [x, 1]
            blocks += [y] if x == 1 or y == 1 else [1, y]
        return e.mul(a.reshape(rows), b.reshape(blocks)).reshape(shape)


def diagonal_of(x: GPUArray, offset: int, axis1: int, axis2: int) -> GPUArray:
    """Return the diagonals of two axes as a new last axis; a view.

    Raises
    ------
    ValueError
        If there are no two axes, or they are the same.
    """
    if x.ndim < 2:
        raise ShapeError(f"a diagonal needs an array of at least two dimensions, not of {x.ndim}")
    axes = [operator.index(axis1), operator.index(axis2)]
    for name, axis in zip(("axis1", "axis2"), axes, strict=True):
        if not -x.ndim <= axis < x.ndim:
            raise AxisError(axis, x.ndim, name)
    if axes[0] % x.ndim == axes[1] % x.ndim:
        raise ShapeError(f"axis1 and axis2 are both {axes[0] % x.ndim}; a diagonal needs two axes")
    return x._diagonal(axes[0], axes[1], operator.index(offset))


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None, *,
          stream: Any = None) -> Any:  # fmt: skip
    """Sum of the diagonals of two axes.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.trace(gp.asarray([[1, 2], [3, 4]])).item()
    5
    """
    a = require("trace", a)
    return r.sum(diagonal_of(a, offset, axis1, axis2), -1, dtype=dtype, out=out, stream=stream)


FUNCTIONS = (tensordot, kron, trace)
"""The public functions of this module."""
