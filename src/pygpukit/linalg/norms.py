"""Norms of vectors and matrices, those by singular values included."""

from __future__ import annotations

import operator
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.linalg.arrays import require
from pygpukit.linalg.spectra import svdvals
from pygpukit.ops.reduce import derived
from pygpukit.ops.reduce import rows as r
from pygpukit.ops.reduce.layout import axes_of, axis_of

__all__ = ["matrix_norm", "norm", "vector_norm"]

BY_SINGULAR_VALUES = {2: "max", -2: "min", "nuc": "sum"}
"""Orders of matrices, and what they take of the singular values."""


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> GPUArray:
    """Norm of vectors or matrices.

    Parameters
    ----------
    x : GPUArray
        Integers and bool are computed in float64.
    ord : int, float or str, optional
        As in `pygpukit.norm`; of matrices also 2 and -2, the largest and smallest singular value, and ``"nuc"``, their
        sum.
    axis : int or tuple of two ints, optional
        Of the vectors, or of the matrices.
    keepdims : bool, optional
        Keep the axes with one element.

    Examples
    --------
    >>> gp.linalg.norm(gp.asarray([[3.0, 0.0], [0.0, 4.0]]), 2).item()
    4.0
    """
    x = require("norm", x)
    if axis is None:
        if ord is not None and x.ndim > 2:
            raise ValueError(f"norm(): of an array of {x.ndim} dimensions with an order name one axis or two")
    elif not isinstance(axis, tuple):
        try:
            axis = operator.index(axis)
        except TypeError:
            raise TypeError(f"norm(): axis must be None, an integer or a tuple of integers, not {axis!r}") from None
    return derived.norm(x, ord, axis, keepdims)  # type: ignore[no-any-return]


def by_singular_values(x: GPUArray, ord: Any, first: int, second: int, keepdims: bool) -> GPUArray:
    """Return the norms of orders 2, -2 and "nuc" of the matrices along two axes counted from the front."""
    kept = [i for i in range(x.ndim) if i not in (first, second)]
    name = BY_SINGULAR_VALUES[ord]
    initial = {"initial": 0} if name == "max" and x.size == 0 else {}
    made = r.FUNCTIONS[name](svdvals(x._permute([*kept, first, second])), -1, **initial)
    shape = [1 if i in (first, second) else n for i, n in enumerate(x.shape) if keepdims or i not in (first, second)]
    return made.reshape(shape)  # type: ignore[no-any-return]


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> GPUArray:
    """Norm of the matrices along the last two axes.

    Examples
    --------
    >>> gp.linalg.matrix_norm(gp.asarray([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    """
    return norm(x, ord, (-2, -1), keepdims)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> GPUArray:
    """Norm over one axis, over several read as one, or of all elements.

    Examples
    --------
    >>> gp.linalg.vector_norm(gp.ones((2, 8))).item()
    4.0
    """
    x = require("vector_norm", x)
    shape = [int(n) for n in x.shape]
    if axis is None:
        made = norm(x.reshape(x.size), ord, 0)
    elif isinstance(axis, tuple):
        chosen = [axis_of(a, x.ndim) for a in axis]
        rest = [i for i in range(x.ndim) if i not in chosen]
        kept = [shape[i] for i in rest]
        count = 1
        for i in chosen:
            count *= shape[i]
        made = norm(x._permute([*chosen, *rest]).reshape(count, *kept), ord, 0)
    else:
        made = norm(x, ord, axis)
    if not keepdims:
        return made
    return made.reshape([1 if i in axes_of(axis, x.ndim) else n for i, n in enumerate(shape)])
