"""Triangles and diagonals of matrices, and grids of coordinates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.creation import empty, full, zeros
from pygpukit.dtypes import DTypeLike, dtype
from pygpukit.ops.promotion import promote
from pygpukit.ops.reduce.scan import cumulative_prod
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import array_of, assign, common_device, need
from pygpukit.ops.shape.moves import triangle
from pygpukit.ops.shape.views import broadcast_to, diagonal

_FAR = 1 << 60


def _offset(k: Any) -> int:
    """Return the number of a diagonal; the far ones are all alike."""
    return max(-_FAR, min(operator.index(k), _FAR))


def _cut(m: Any, k: int, upper: bool, what: str) -> GPUArray:
    x = need(m, what)
    if x.ndim == 0:
        raise ValueError(f"{what} needs an array of at least one dimension")
    if x.ndim == 1:
        # As NumPy: a vector stands for a matrix of equal rows.
        x = x._broadcast_to((x.size, x.size))
    shape = x.shape
    if not x.size:
        return x.copy()
    batch = x._reshape([math.prod(shape[:-2]), *shape[-2:]])
    if batch is None:
        batch = x.copy().reshape(-1, *shape[-2:])
    result: GPUArray = triangle(batch, upper, _offset(k))
    return result.reshape(shape)


@export
def tril(m: GPUArray, k: int = 0) -> GPUArray:
    """The elements of matrices on and below a diagonal, zeros above it.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.tril(gp.asarray([[1, 2], [3, 4]])).tolist()
    [[1, 0], [3, 4]]
    """
    return _cut(m, k, False, "tril()")


@export
def triu(m: GPUArray, k: int = 0) -> GPUArray:
    """The elements of matrices on and above a diagonal, zeros below it.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.triu(gp.asarray([[1, 2], [3, 4]])).tolist()
    [[1, 2], [0, 4]]
    """
    return _cut(m, k, True, "triu()")


@export
def tri(
    N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None, *, device: Device | None = None
) -> GPUArray:
    """Ones on and below a diagonal of a matrix of N rows, zeros above it; float32 by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.tri(2, 3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    shape = [max(operator.index(n), 0) for n in (N, N if M is None else M)]
    if 0 in shape:
        return zeros(shape, dtype or "float32", device=device)
    one = full((), 1, dtype or "float32", device=device)
    return _cut(one._broadcast_to(shape), k, False, "tri()")


@export
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: Device | None = None,
) -> GPUArray:
    """Ones on a diagonal of a matrix, zeros elsewhere; float32 by default.

    Parameters
    ----------
    N, M : int
        Rows and columns; square by default.
    k : int, optional
        Which diagonal: 0 the main one, positive above it, negative below.
    dtype : DataType, optional
    order : {'C', 'F'}, optional
    device : Device, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.eye(2, dtype="int8").tolist()
    [[1, 0], [0, 1]]
    """
    columns = N if M is None else M
    if order == "F":
        return eye(columns, N, -operator.index(k), dtype, device=device).T
    out = zeros((N, columns), dtype or "float32", device=device)
    line = out._diagonal(0, 1, _offset(k))
    if line.size:
        line.fill(1)
    return out


@export
def identity(n: int, dtype: DTypeLike | None = None, *, device: Device | None = None) -> GPUArray:
    """The identity matrix; float32 by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.identity(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return eye(n, dtype=dtype, device=device)


@export
def diag(v: GPUArray, k: int = 0) -> GPUArray:
    """A matrix with a vector on one diagonal; of a matrix that diagonal, as a read-only view.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.diag(gp.asarray([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x = need(v, "diag()")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag() takes a vector or a matrix, not an array of {x.ndim} dimensions")
    n = x.size + abs(operator.index(k))
    out = zeros((n, n), x.dtype, device=x.device)
    assign(out._diagonal(0, 1, k), x)
    return out


@export
def diagflat(v: Any, k: int = 0) -> GPUArray:
    """A matrix with the flattened elements on one diagonal.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.diagflat(gp.asarray([[1], [2]])).tolist()
    [[1, 0], [0, 2]]
    """
    return diag(array_of(v, None, "diagflat()").reshape(-1), k)


@export
def vander(x: GPUArray, N: int | None = None, increasing: bool = False) -> GPUArray:
    """Powers of the elements of a vector, in columns: the highest first, or last with ``increasing``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.vander(gp.asarray([2, 3]), 3).tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    v = need(x, "vander()")
    if v.ndim != 1:
        raise ValueError(f"vander(): x must be a vector, not of {v.ndim} dimensions")
    columns = v.size if N is None else operator.index(N)
    kind = promote((v.dtype, dtype("int64")))
    out = empty((v.size, columns), kind, device=v.device)
    powers = out if increasing else out._slice(1, max(columns - 1, 0), columns, -1)
    if columns > 0:
        powers._slice(1, 0, 1, 1).fill(1)
    if columns > 1:
        factors = v.astype(kind, copy=False)._expand(1)._broadcast_to((v.size, columns - 1))
        assign(powers._slice(1, 1, columns - 1, 1), cumulative_prod(factors, axis=1))
    return out


@export
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[GPUArray, ...]:
    """Coordinates of a grid from vectors of coordinates, an array per axis.

    Parameters
    ----------
    *xi : GPUArray
    copy : bool, optional
        False gives views instead, which are read-only where they repeat elements.
    sparse : bool, optional
        Leave the axes along which coordinates do not change at one element.
    indexing : {'xy', 'ij'}, optional
        ``"xy"`` exchanges the first two axes.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [x.tolist() for x in gp.meshgrid(gp.asarray([1, 2]), gp.asarray([3, 4]))]
    [[[1, 2], [1, 2]], [[3, 3], [4, 4]]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid(): indexing must be 'xy' or 'ij', not {indexing!r}")
    device = common_device(xi)
    given = [array_of(x, device, "meshgrid()").reshape(-1) for x in xi]
    ndim = len(given)
    places = list(range(ndim))
    if indexing == "xy" and ndim > 1:
        places[:2] = [1, 0]
    shape = [0] * ndim
    for x, place in zip(given, places, strict=True):
        shape[place] = x.size
    found = [
        x.reshape([x.size if i == place else 1 for i in range(ndim)]) for x, place in zip(given, places, strict=True)
    ]
    if not sparse:
        found = [broadcast_to(x, shape) for x in found]
    return tuple(x.copy() if copy else x for x in found)


@export
def fromfunction(
    function: Callable[..., Any],
    shape: Any,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
    **kwargs: Any,
) -> Any:
    """What a function gives for the coordinates of all elements, one array per axis; float32 by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.fromfunction(lambda i, j: i + j, (2, 2), dtype="int32").tolist()
    [[0, 1], [1, 2]]
    """
    from pygpukit.array.creation import dimensions
    from pygpukit.ops.shape.ranges import arange

    lengths = dimensions(shape)
    axes = [arange(n, dtype=dtype or "float32", device=device) for n in lengths]
    return function(*meshgrid(*axes, indexing="ij"), **kwargs)
