"""Index arrays: positions and coordinates into each other, grids of them, diagonals and triangles."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import asarray, from_numpy
from pygpukit.array.creation import empty, ones
from pygpukit.array.indexing import elements_for
from pygpukit.dtypes import DTypeLike, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.index.masks import flatnonzero, nonzero, places_of_count, vector_of
from pygpukit.ops.index.places import _repeated, _written
from pygpukit.ops.operands import as_array
from pygpukit.ops.registry import export
from pygpukit.ops.shape.ranges import arange

_INDEX = dtype("int64")


def _dimensions(shape: Any) -> tuple[int, ...]:
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(operator.index(n) for n in shape)


def _order(order: str, what: str) -> bool:
    if order not in ("C", "F"):
        raise ValueError(f"{what}(): order must be 'C' or 'F', not {order!r}")
    return order == "F"


def _integers(x: GPUArray, what: str) -> GPUArray:
    if x.dtype.kind not in "iu":
        raise DTypeError(f"{what}() takes integers, not {x.dtype.name}")
    return x.astype(_INDEX, copy=False)


@export
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> GPUArray:
    """Positions in row-major order of coordinates.

    Parameters
    ----------
    multi_index : sequence of GPUArray or array_like, or GPUArray
        An array of integers per axis. Those of the host are checked; those of the device are not.
    dims : tuple of int
        The shape they are positions in.
    mode : str or tuple of str, optional
        ``"raise"``, ``"wrap"`` or ``"clip"``, for all axes or each.
    order : str, optional
        ``"F"`` counts in column-major order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.ravel_multi_index((gp.asarray([0, 1]), gp.asarray([2, 0])), (2, 3)).tolist()
    [2, 3]
    """
    shape = _dimensions(dims)
    columns = _order(order, "ravel_multi_index")
    parts = [multi_index[i] for i in range(len(multi_index))]
    if not any(isinstance(part, GPUArray) for part in parts):
        return asarray(np.ravel_multi_index(tuple(parts), shape, mode, "F" if columns else "C"))
    if len(parts) != len(shape):
        raise ShapeError(f"ravel_multi_index(): {len(parts)} index arrays for {len(shape)} dimensions; give as many")
    modes = (mode,) * len(shape) if isinstance(mode, str) else tuple(mode)
    device = next(part.device for part in parts if isinstance(part, GPUArray))
    total: Any = None
    step = 1
    axes = range(len(shape)) if columns else reversed(range(len(shape)))
    for axis in axes:
        part, length, how = parts[axis], shape[axis], modes[axis]
        if how not in ("raise", "wrap", "clip"):
            raise ValueError(f"ravel_multi_index(): mode must be 'raise', 'wrap' or 'clip', not {how!r}")
        if not isinstance(part, GPUArray):
            host = np.asarray(part)
            if how == "raise" and host.size and (host.min() < 0 or host.max() >= length):
                raise ValueError(f"ravel_multi_index(): invalid entry in coordinates array {axis}")
            part = from_numpy(host, device=device)
        index = _integers(part, "ravel_multi_index")
        if how != "raise":
            index = e.mod(index, length) if how == "wrap" else e.clamp(index, 0, length - 1)
        index = index if step == 1 else e.mul(index, step)
        total = index if total is None else e.add(total, index)
        step *= length
    result: GPUArray = total
    return result


@export
def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[GPUArray, ...]:
    """Coordinates of positions in row-major order, an array per axis.

    Parameters
    ----------
    indices : GPUArray or array_like
        Integers. Those of the host are checked; those of the device are not.
    shape : tuple of int
    order : str, optional
        ``"F"`` for positions in column-major order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.unravel_index(gp.asarray([2, 3]), (2, 3))]
    [[0, 1], [2, 0]]
    """
    dims = _dimensions(shape)
    columns = _order(order, "unravel_index")
    if not isinstance(indices, GPUArray):
        return tuple(asarray(part) for part in np.unravel_index(indices, dims, "F" if columns else "C"))
    rest = _integers(indices, "unravel_index")
    found: list[Any] = [None] * len(dims)
    axes = list(range(len(dims))) if columns else list(reversed(range(len(dims))))
    for axis in axes[:-1]:
        above = e.floor_divide(rest, dims[axis])
        found[axis] = e.sub(rest, e.mul(above, dims[axis]))
        rest = above
    if axes:
        found[axes[-1]] = rest
    return tuple(found)


@export
def ix_(*args: Any) -> tuple[GPUArray, ...]:
    """Index arrays that together name the elements at all combinations of given positions.

    Parameters
    ----------
    *args : GPUArray or array_like
        Vectors of integers or bool; of bool on the device the number is read.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([[0, 1, 2], [3, 4, 5]])
    >>> x[gp.ix_([0, 1], [0, 2])].tolist()
    [[0, 2], [3, 5]]
    """
    made = []
    for i, arg in enumerate(args):
        if isinstance(arg, GPUArray):
            index = arg
        else:
            host = np.asarray(arg)
            index = from_numpy(host.astype(np.intp) if host.size == 0 else host)
        if index.ndim != 1:
            raise ShapeError(f"ix_() takes vectors; argument {i} has {index.ndim} dimensions")
        if index.dtype.kind == "b":
            index = flatnonzero(index)
        made.append(index.reshape([-1 if d == i else 1 for d in range(len(args))]))
    return tuple(made)


@export
def indices(dimensions: Any, dtype: DTypeLike = int, sparse: bool = False) -> Any:
    """The coordinates of a grid.

    Parameters
    ----------
    dimensions : sequence of int
    dtype : DataType, str or numpy.dtype, optional
    sparse : bool, optional
        A tuple of arrays that broadcast to the grid, in place of one array.

    Returns
    -------
    GPUArray, or a tuple of them

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    shape = _dimensions(dimensions)
    rows = [
        arange(n, dtype=dtype).reshape([n if d == i else 1 for i in range(len(shape))]) for d, n in enumerate(shape)
    ]
    if sparse:
        return tuple(rows)
    out = empty((len(shape), *shape), dtype)
    for d, row in enumerate(rows):
        out[d] = row
    return out


@export
def diag_indices(n: int, ndim: int = 2) -> tuple[GPUArray, ...]:
    """Index arrays of the main diagonal of an array with ``ndim`` axes of ``n`` elements.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return (arange(n),) * ndim


@export
def diag_indices_from(arr: GPUArray) -> tuple[GPUArray, ...]:
    """Index arrays of the main diagonal of an array whose axes are of one length.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.diag_indices_from(gp.zeros((2, 2)))]
    [[0, 1], [0, 1]]
    """
    arr = as_array(arr, "diag_indices_from()")
    if arr.ndim < 2:
        raise ShapeError("diag_indices_from() takes an array of at least 2 dimensions")
    if any(n != arr.shape[0] for n in arr.shape):
        raise ShapeError("diag_indices_from() takes an array whose axes are of one length")
    return (arange(arr.shape[0], device=arr.device),) * arr.ndim


def _triangle(n: int, k: int, m: int | None, *, upper: bool, device: Any = None) -> tuple[GPUArray, ...]:
    columns = n if m is None else m
    # Of row i columns up to i + k are in the lower triangle: their number is known without the device.
    rows = np.arange(n)
    lower = int(np.clip(rows + k + (0 if upper else 1), 0, columns).sum()) if columns else 0
    count = n * columns - lower if upper else lower
    i = arange(n, device=device).reshape(n, 1)
    j = arange(columns, device=device).reshape(1, columns)
    shifted = e.sub(j, k)
    return places_of_count(e.greater_equal(shifted, i) if upper else e.greater_equal(i, shifted), count)


@export
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[GPUArray, ...]:
    """Index arrays of the lower triangle of an (n, m) array, from the diagonal ``k`` down.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _triangle(n, k, m, upper=False)


@export
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[GPUArray, ...]:
    """Index arrays of the upper triangle of an (n, m) array, from the diagonal ``k`` up.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return _triangle(n, k, m, upper=True)


def _matrix(arr: Any, what: str) -> GPUArray:
    x = as_array(arr, f"{what}()")
    if x.ndim != 2:
        raise ShapeError(f"{what}() takes a matrix, not an array of {x.ndim} dimensions")
    return x


@export
def tril_indices_from(arr: GPUArray, k: int = 0) -> tuple[GPUArray, ...]:
    """Index arrays of the lower triangle of a matrix.

    Examples
    --------
    >>> import pygpukit as gp
    >>> len(gp.tril_indices_from(gp.zeros((3, 3)))[0])
    6
    """
    arr = _matrix(arr, "tril_indices_from")
    n, m = arr.shape
    return _triangle(n, k, m, upper=False, device=arr.device)


@export
def triu_indices_from(arr: GPUArray, k: int = 0) -> tuple[GPUArray, ...]:
    """Index arrays of the upper triangle of a matrix.

    Examples
    --------
    >>> import pygpukit as gp
    >>> len(gp.triu_indices_from(gp.zeros((3, 3)))[0])
    6
    """
    arr = _matrix(arr, "triu_indices_from")
    n, m = arr.shape
    return _triangle(n, k, m, upper=True, device=arr.device)


@export
def mask_indices(n: int, mask_func: Callable[..., GPUArray], k: Any = 0) -> tuple[GPUArray, ...]:
    """Index arrays of the elements of an (n, n) array that a function of ones and ``k`` leaves other than zero.

    Waits for the device to read their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.mask_indices(2, lambda m, k: m)]
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    return nonzero(mask_func(ones((n, n), "int64"), k))


@export
def fill_diagonal(a: GPUArray, val: Any, wrap: bool = False) -> None:
    """Write to the main diagonal, in place.

    Parameters
    ----------
    a : GPUArray
        Of two dimensions, or of more that are of one length.
    val : GPUArray, array_like or number
        Repeated along the diagonal.
    wrap : bool, optional
        Of a tall matrix begin anew below the last column.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.zeros((2, 3))
    >>> gp.fill_diagonal(x, 5)
    >>> x.tolist()
    [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    """
    if not isinstance(a, GPUArray):
        raise TypeError(f"fill_diagonal() writes to a GPUArray, not to {type(a).__name__}")
    if a.ndim < 2:
        raise ShapeError("fill_diagonal() takes an array of at least 2 dimensions")
    end: int | None = None
    if a.ndim == 2:
        step = a.shape[1] + 1
        end = None if wrap else a.shape[1] * a.shape[1]
    else:
        if any(n != a.shape[0] for n in a.shape):
            raise ShapeError("fill_diagonal() of more than 2 dimensions takes an array whose axes are of one length")
        step = 1 + sum(a.shape[0] ** d for d in range(1, a.ndim))
    if a.size == 0:
        return
    values = vector_of(elements_for(a, val))

    def write(flat: GPUArray) -> None:
        diagonal = flat[:end:step]
        if values.size == 1:
            diagonal[...] = values.reshape(())
        elif values.size:
            diagonal[...] = _repeated(values, diagonal.size)

    _written(a, "fill_diagonal", write)


__all__: Sequence[str] = ["diag_indices", "fill_diagonal", "indices", "ix_", "ravel_multi_index", "unravel_index"]
