"""Polynomials as vectors of coefficients, the highest power first."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import zeros
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.operands import as_array, as_arrays
from pygpukit.ops.products.convolve import convolve
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.registry import export
from pygpukit.ops.shape.joining import concatenate
from pygpukit.ops.shape.ranges import arange
from pygpukit.ops.shape.triangles import vander


def _vector(p: Any, what: str) -> GPUArray:
    x = as_array(p, what)
    return x if x.ndim else x.reshape(1)


@export
def poly(seq_of_zeros: Any) -> GPUArray:
    """Coefficients of the polynomial with these roots, or of a matrix' characteristic one. Computed on the host.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.poly([1.0, 2.0]).tolist()
    [1.0, -3.0, 2.0]
    """
    x = as_array(seq_of_zeros, "poly()")
    return from_numpy(np.asarray(np.poly(x.to_numpy())), device=x.device)


@export
def roots(p: Any) -> GPUArray:
    """Roots of a polynomial. Computed on the host: their number depends on the coefficients.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.roots([1.0, -3.0, 2.0]).tolist()
    [2.0, 1.0]
    """
    x = as_array(p, "roots()")
    return from_numpy(np.roots(x.to_numpy()), device=x.device)


def _aligned(a1: Any, a2: Any, what: str) -> tuple[GPUArray, GPUArray]:
    first, second = (_vector(x, what) for x in as_arrays(what, a1, a2))
    short, long = (first, second) if first.size < second.size else (second, first)
    if short.size < long.size:
        padded: GPUArray = concatenate([zeros(long.size - short.size, short.dtype, device=short.device), short])
        return (padded, long) if short is first else (long, padded)
    return first, second


@export
def polyadd(a1: Any, a2: Any) -> GPUArray:
    """Sum of two polynomials.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.polyadd([1, 2], [9, 5, 4]).tolist()
    [9, 6, 6]
    """
    return e.add(*_aligned(a1, a2, "polyadd()"))


@export
def polysub(a1: Any, a2: Any) -> GPUArray:
    """Difference of two polynomials.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.polysub([2, 10, -2], [3, 10, -4]).tolist()
    [-1, 0, 2]
    """
    return e.sub(*_aligned(a1, a2, "polysub()"))


@export
def polymul(a1: Any, a2: Any) -> GPUArray:
    """Product of two polynomials; zeros before the highest power stay, which NumPy drops.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.polymul([1, 2, 3], [9, 5, 1]).tolist()
    [9, 23, 38, 17, 3]
    """
    first, second = (_vector(x, "polymul()") for x in as_arrays("polymul()", a1, a2))
    product: GPUArray = convolve(first, second)
    return product


@export
def polyder(p: Any, m: int = 1) -> GPUArray:
    """Derivative of a polynomial, the `m`-th.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.polyder([1, 1, 1, 1]).tolist()
    [3, 2, 1]
    """
    x, times = _vector(p, "polyder()"), operator.index(m)
    if times < 0:
        raise ValueError(f"polyder(): the order of the derivative must not be negative, but is {m}")
    for _ in range(times):
        x = e.mul(x._slice(0, 0, max(x.size - 1, 0), 1), arange(max(x.size - 1, 0), 0, -1, device=x.device))
    return x


@export
def polyint(p: Any, m: int = 1, k: Any = None) -> GPUArray:
    """Antiderivative of a polynomial, the `m`-th, with the constants `k`, zeros by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.polyint([3.0, 2.0, 1.0]).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    times = operator.index(m)
    if times < 0:
        raise ValueError(f"polyint(): the order of the antiderivative must not be negative, but is {m}")
    x = _vector(p, "polyint()")
    constants = zeros(times, "float64", device=x.device) if k is None else _vector(k, "polyint()")
    if constants.size == 1 and times > 1:
        constants = constants._broadcast_to([times])
    if constants.ndim != 1 or constants.size < times:
        raise ValueError(f"polyint(): k must be one constant or {times}, not {constants.size}")
    for i in range(times):
        quotient = e.div(x, arange(x.size, 0, -1, device=x.device))
        x = concatenate([quotient, constants._slice(0, i, 1, 1)])
    return x


@export
def polyfit(x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None,
            cov: bool | str = False) -> Any:  # fmt: skip
    """Polynomial of a degree that fits points with the least squares.

    Parameters
    ----------
    x, y : GPUArray
        Coordinates of the points; columns of `y` are fitted each for itself.
    deg : int
        The degree.
    rcond : float, optional
        Singular values below this part of the largest count as 0; ``len(x)`` roundings by default.
    full : bool, optional
        Return residuals, rank, singular values and `rcond` too.
    w : GPUArray, optional
        Weight of each point.
    cov : bool or str, optional
        Return the covariance of the coefficients too; ``"unscaled"`` where weights are reciprocal deviations.

    Returns
    -------
    GPUArray, or a tuple that begins with it

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).round(6).tolist()
    [2.0, 1.0]
    """
    from pygpukit import linalg

    order = operator.index(deg) + 1
    if order < 1:
        raise ValueError(f"polyfit(): the degree must not be negative, but is {deg}")
    a, b = (e.add(v, 0.0) for v in as_arrays("polyfit()", x, y))
    if a.ndim != 1:
        raise TypeError(f"polyfit(): x must be a vector, not an array of {a.ndim} dimensions")
    if a.size == 0:
        raise TypeError("polyfit(): x has no elements")
    if b.ndim not in (1, 2):
        raise TypeError(f"polyfit(): y must be a vector or a matrix, not an array of {b.ndim} dimensions")
    if b.shape[0] != a.size:
        raise TypeError(f"polyfit(): x has {a.size} elements, and y {b.shape[0]}")
    if rcond is None:
        rcond = a.size * float(np.finfo(a.dtype.name).eps)
    left, right = vander(a, order), b
    if w is not None:
        weight = e.add(as_array(w, "polyfit(): w", a.device), 0.0)
        if weight.ndim != 1 or weight.size != a.size:
            raise TypeError(f"polyfit(): w must be a vector of {a.size} weights")
        left = e.mul(left, weight._expand(1))
        right = e.mul(right, weight if right.ndim == 1 else weight._expand(1))
    scale = e.sqrt(FUNCTIONS["sum"](e.mul(left, left), 0))
    left = e.div(left, scale)
    found, residuals, rank, values = linalg.lstsq(left, right, rcond)
    found = e.div(found, scale if found.ndim == 1 else scale._expand(1))
    if full:
        return found, residuals, rank, values, rcond
    if not cov:
        return found
    base = e.div(linalg.inv(left.T @ left), e.mul(scale._expand(1), scale._expand(0)))
    if cov == "unscaled":
        factor: Any = 1.0
    elif a.size <= order:
        raise ShapeError(f"polyfit(): {a.size} points are too few for the covariance of {order} coefficients")
    else:
        factor = e.div(residuals, a.size - order)
    return found, e.mul(base if b.ndim == 1 else base._expand(2), factor)
