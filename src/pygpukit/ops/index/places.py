"""NumPy's functions that take and put elements: take, put, compress, place, choose, select and their kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import asarray, from_numpy
from pygpukit.array.creation import empty
from pygpukit.array.indexing import elements_for, spread
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.index.gather import MODES, gather, take_along
from pygpukit.ops.index.keys import checked, refuse_shared
from pygpukit.ops.index.layout import of_one_type
from pygpukit.ops.index.masks import assign_where, bits_of, count_of, flatnonzero, put_where, taken_where, vector_of
from pygpukit.ops.index.scatter import scattered
from pygpukit.ops.operands import as_array, axis_of, common_device
from pygpukit.ops.promotion import Weak, promote
from pygpukit.ops.registry import as_method, export
from pygpukit.ops.shape.arrays import check_cast
from pygpukit.ops.shape.ranges import arange

_NUMBERS: dict[type, Weak] = {bool: "bool", int: "int", float: "float", complex: "complex"}


def _need(x: Any, what: str) -> GPUArray:
    """Return an array that is read, made of a number or a list where it is none."""
    return x if isinstance(x, GPUArray) else as_array(x, f"{what}()")


def _target(x: Any, what: str) -> GPUArray:
    """Return an array that is written to."""
    if isinstance(x, GPUArray):
        return x
    raise TypeError(f"{what}() writes to a GPUArray, and this is {type(x).__name__}; convert it with asarray first")


def _mode(mode: Any, what: str) -> int:
    if mode not in MODES:
        raise ValueError(f"{what}(): mode must be one of 'raise', 'wrap' or 'clip', not {mode!r}")
    return MODES.index(mode)


def index_of(indices: Any, like: GPUArray, length: int, axis: int, mode: int, what: str) -> GPUArray:
    """Return indices as an array on the device, of a type that kernels read; those of the host are checked.

    Raises
    ------
    TypeError
        If they are not integers.
    IndexError
        If one from the host is out of range.
    """
    if isinstance(indices, GPUArray):
        kind = indices.dtype
        if kind.name in ("int64", "int32"):
            return indices
        if kind.kind not in "biu":
            raise DTypeError(f"{what}() takes indices of integers, not {kind.name}; use astype('int64')")
        return of_one_type([indices])[0]
    host = np.asarray(indices)
    if host.size == 0 and not isinstance(indices, np.ndarray):
        host = host.astype(np.intp)
    if host.dtype.kind not in "biu":
        raise DTypeError(f"{what}() takes indices of integers, not {host.dtype}")
    if mode and length:
        host = np.remainder(host.astype(np.int64), length) if mode == 1 else np.clip(host, 0, length - 1)
    return checked(host, length, axis, like.device)


@export
def take(
    a: GPUArray, indices: Any, axis: int | None = None, out: GPUArray | None = None, mode: str = "raise"
) -> GPUArray:
    """Elements along an axis by position.

    Parameters
    ----------
    a : GPUArray
    indices : GPUArray, array_like or int
        Integers of any shape.
    axis : int, optional
        None takes from the elements in row-major order.
    out : GPUArray, optional
        Where the result is written.
    mode : str, optional
        ``"raise"`` counts negative ones from the end; of others out of range, those of the host raise `IndexError`, and
        those of a GPUArray give 0. ``"wrap"`` takes them modulo the length, ``"clip"`` the nearest that exists.

    Returns
    -------
    GPUArray
        The shape of ``indices`` in place of the axis.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.take(gp.asarray([5, 6, 7]), gp.asarray([2, -1])).tolist()
    [7, 7]
    """
    how = 0 if mode == "raise" else _mode(mode, "take")
    if axis is None:
        x, at = a if a.__class__ is GPUArray and a.ndim == 1 else _need(a, "take").reshape(-1), 0
    else:
        x = _need(a, "take")
        at = axis_of(axis, x.ndim)
    length = x.shape[at]
    index = index_of(indices, x, length, at, how, "take")
    if length == 0 and index.size:
        raise IndexError("take(): no elements can be taken from an empty axis")
    result: GPUArray = gather(x, index, at, how) if out is None else gather(x, index, at, how, out=out)
    return result


def _along(x: GPUArray, indices: Any, axis: int | None, what: str) -> tuple[GPUArray, GPUArray, int]:
    """Return array, index array and axis of the functions along an axis, broadcast but for that axis."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = axis_of(axis, x.ndim)
    index = indices if isinstance(indices, GPUArray) else np.asarray(indices)
    if index.dtype.kind not in "iu":
        raise IndexError(f"{what}(): indices must be an array of integers, not of {index.dtype}")
    if index.ndim != x.ndim:
        raise ShapeError(f"{what}(): indices of {index.ndim} dimensions for an array of {x.ndim}; give as many")
    if isinstance(index, np.ndarray):
        index = checked(index, x.shape[at], at, x.device)
    index = of_one_type([index])[0]
    if x.shape[at] == 0 and index.size:
        raise IndexError(f"index is out of bounds for axis {at} with size 0")
    try:
        shape = np.broadcast_shapes(*((*s[:at], 1, *s[at + 1 :]) for s in (tuple(x.shape), tuple(index.shape))))
    except ValueError:
        raise IndexError(
            f"shape mismatch: {what}() of an array of shape {tuple(x.shape)} by indices of shape {tuple(index.shape)} "
            f"along axis {at}"
        ) from None
    wanted = [(*shape[:at], s.shape[at], *shape[at + 1 :]) for s in (x, index)]
    x, index = (
        one if tuple(one.shape) == shape else one._broadcast_to(shape)
        for one, shape in zip((x, index), wanted, strict=True)
    )
    return x, index, at


@export
def take_along_axis(arr: GPUArray, indices: Any, axis: int | None = -1) -> GPUArray:
    """Elements along an axis by positions of their own for each place on the other axes, as `argsort` gives them.

    Parameters
    ----------
    arr : GPUArray
    indices : GPUArray or array_like
        Integers, of as many dimensions; the other axes broadcast.
    axis : int, optional
        None takes from the elements in row-major order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([[3, 1], [5, 9]])
    >>> gp.take_along_axis(x, gp.argsort(x, axis=1), axis=1).tolist()
    [[1, 3], [5, 9]]
    """
    x, index, at = _along(_need(arr, "take_along_axis"), indices, axis, "take_along_axis")
    result: GPUArray = take_along(x, index, at)
    return result


def _written(a: GPUArray, what: str, write: Callable[[GPUArray], None]) -> None:
    """Let ``write`` change the elements as a vector: a view where strides allow it."""
    refuse_shared(_target(a, what))
    flat = a._reshape([a.size])
    if flat is not None:
        write(flat)
        return
    dense = a.contiguous()
    write(dense.reshape(-1))
    a[...] = dense


def _check_values(a: GPUArray, values: Any, what: str) -> None:
    """Refuse arrays whose elements may change when they are written, as NumPy does where a mask chooses."""
    if isinstance(values, GPUArray):
        check_cast(values.dtype, a.dtype, "safe", f"{what}()")


def _values(a: GPUArray, v: Any) -> GPUArray:
    return vector_of(elements_for(a, v))


def _repeated(values: GPUArray, count: int) -> GPUArray:
    """Return a vector of so many elements: the values over and over."""
    if values.size >= count:
        return values[:count]
    times = -(-count // values.size)
    return values._broadcast_to((times, values.size)).reshape(-1)[:count]


@export
def put(a: GPUArray, ind: Any, v: Any, mode: str = "raise") -> None:
    """Write values to positions in row-major order, in place; of a position named twice the last value stays.

    Parameters
    ----------
    a : GPUArray
    ind : GPUArray, array_like or int
    v : GPUArray, array_like or number
        Repeated if shorter.
    mode : str, optional
        As in `take`; out of range on the device, nothing is written.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.zeros(4)
    >>> gp.put(x, [0, 3], [5.0, 7.0])
    >>> x.tolist()
    [5.0, 0.0, 0.0, 7.0]
    """
    how = _mode(mode, "put")
    length = _target(a, "put").size
    index = index_of(ind, a, length, 0, how, "put").reshape(-1)
    values = _values(a, v)
    if index.size == 0 or values.size == 0:
        return
    if length == 0:
        raise IndexError("put(): an empty array has no elements to replace")
    if how and isinstance(ind, GPUArray):
        index = e.mod(index, length) if how == 1 else e.clamp(index, 0, length - 1)
    source = spread(values, (index.size,)) if values.size == 1 else _repeated(values, index.size)
    _written(a, "put", lambda flat: scattered(flat, source, [index]))


@export
def put_along_axis(arr: GPUArray, indices: Any, values: Any, axis: int | None = -1) -> None:
    """Write values along an axis to positions of their own for each place on the other axes, in place.

    Parameters
    ----------
    arr : GPUArray
    indices : GPUArray or array_like
        Integers, of as many dimensions; the other axes broadcast.
    values : GPUArray, array_like or number
        Broadcast to the shape of ``indices``.
    axis : int, optional
        None writes to the elements in row-major order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([[3, 1], [5, 9]])
    >>> gp.put_along_axis(x, gp.argmax(x, 1, keepdims=True), 0, 1)
    >>> x.tolist()
    [[0, 1], [5, 0]]
    """
    if axis is None:
        _written(arr, "put_along_axis", lambda flat: put_along_axis(flat, indices, values, 0))
        return
    _, index, at = _along(_target(arr, "put_along_axis"), indices, axis, "put_along_axis")
    shape = tuple(index.shape)
    refuse_shared(arr)
    source = spread(elements_for(arr, values), shape)
    if source.size == 0:
        return
    others = [
        arange(n, dtype=index.dtype, device=arr.device).reshape([n if d == i else 1 for i in range(arr.ndim)])
        for d, n in enumerate(arr.shape)
    ]
    scattered(arr, source, [index if d == at else other._broadcast_to(shape) for d, other in enumerate(others)])


def _condition(condition: Any, like: GPUArray, what: str) -> GPUArray:
    mask = condition if isinstance(condition, GPUArray) else from_numpy(np.asarray(condition), device=like.device)
    if mask.ndim != 1:
        raise ShapeError(f"{what}(): the condition must have one dimension, not {mask.ndim}")
    return mask


@export
def compress(condition: Any, a: GPUArray, axis: int | None = None, out: GPUArray | None = None) -> GPUArray:
    """Slices along an axis for which a condition holds. Waits for the device to read their number.

    Parameters
    ----------
    condition : GPUArray or array_like
        A vector; beyond its end nothing is taken.
    a : GPUArray
    axis : int, optional
        None takes from the elements in row-major order.
    out : GPUArray, optional

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.compress([True, False, True], gp.asarray([5, 6, 7])).tolist()
    [5, 7]
    """
    x = _need(a, "compress").reshape(-1) if axis is None else _need(a, "compress")
    at = 0 if axis is None else axis_of(axis, x.ndim)
    mask, length = _condition(condition, x, "compress"), x.shape[at]
    if mask.size > length:
        beyond = mask[length:]
        if count_of(bits_of(beyond)):
            raise IndexError(f"compress(): the condition holds beyond the {length} elements of axis {at}")
        mask = mask[:length]
    if x.ndim == 1 and mask.size == length and out is None:
        return taken_where(x, mask)
    result: GPUArray = take(x, flatnonzero(mask), at, out)
    return result


@export
def extract(condition: Any, arr: GPUArray) -> GPUArray:
    """Elements in row-major order for which a condition holds. Waits for the device to read their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([[1, 2], [3, 4]])
    >>> gp.extract(x > 2, x).tolist()
    [3, 4]
    """
    arr = _need(arr, "extract")
    mask = condition if isinstance(condition, GPUArray) else from_numpy(np.asarray(condition), device=arr.device)
    result: GPUArray = compress(mask.reshape(-1), arr)
    return result


def _mask(a: GPUArray, mask: Any, what: str) -> GPUArray:
    given = mask if isinstance(mask, GPUArray) else from_numpy(np.asarray(mask), device=a.device)
    if given.size != a.size:
        raise ShapeError(f"{what}(): a mask of {given.size} elements for an array of {a.size}; give as many")
    found: GPUArray = given if given.dtype.name == "bool" else e.not_equal(given, 0)
    return found


@export
def place(arr: GPUArray, mask: Any, vals: Any) -> None:
    """Write values in order to the elements for which a mask holds, in place; repeated if they are too few.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([1, 2, 3, 4])
    >>> gp.place(x, x > 1, [7, 8])
    >>> x.tolist()
    [1, 7, 8, 7]
    """
    given = _mask(_target(arr, "place"), mask, "place").reshape(-1)
    _check_values(arr, vals, "place")
    values = _values(arr, vals)
    if values.size == 0:
        if count_of(bits_of(given)):
            raise ShapeError("place(): there are no values to write where the mask holds")
        return
    if arr.size:
        _written(arr, "place", lambda flat: _put_by(flat, given, values, "place"))


def _put_by(flat: GPUArray, mask: GPUArray, values: GPUArray, how: str) -> None:
    if values.size == 1:
        assign_where(flat, mask, values)
    else:
        put_where(flat, values, bits_of(mask), how)


@export
def putmask(a: GPUArray, mask: Any, values: Any) -> None:
    """Write to the elements for which a mask holds the values at the same positions, in place; repeated if too few.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([1, 2, 3, 4])
    >>> gp.putmask(x, x > 1, [7, 8])
    >>> x.tolist()
    [1, 8, 7, 8]
    """
    given = _mask(_target(a, "putmask"), mask, "putmask").reshape(-1)
    refuse_shared(a)
    _check_values(a, values, "putmask")
    source = elements_for(a, values)
    if source.size == 0 or a.size == 0:
        return
    if source.shape == a.shape or source.size == 1:
        assign_where(a, given.reshape(a.shape), source if source.shape == a.shape else source.reshape(()))
        return
    flat_values = vector_of(source)
    _written(a, "putmask", lambda flat: _put_by(flat, given, flat_values, "putmask"))


@export
def choose(a: Any, choices: Any, out: GPUArray | None = None, mode: str = "raise") -> GPUArray:
    """Elements of several arrays, by the number of the array each comes from.

    Parameters
    ----------
    a : GPUArray
        Integers from 0; out of range gives 0.
    choices : sequence of GPUArray or number, or GPUArray
        Of one array the first axis is the number. They broadcast, together with ``a``.
    out : GPUArray, optional
    mode : str, optional
        As in `take`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.choose(gp.asarray([1, 0]), [gp.asarray([1, 2]), gp.asarray([3, 4])]).tolist()
    [3, 2]
    """
    how = _mode(mode, "choose")
    pick = _need(a, "choose")
    if pick.dtype.kind not in "biu":
        raise DTypeError(f"choose() takes integers, not {pick.dtype.name}")
    parts = [choices[i] for i in range(len(choices))]
    if not parts:
        raise ShapeError("choose() needs at least one array to choose from")
    given = [c if isinstance(c, GPUArray) else asarray(c, device=pick.device) for c in parts]
    shape = np.broadcast_shapes(tuple(pick.shape), *(tuple(c.shape) for c in given))
    kind = promote([c.dtype for c in given])
    table = empty((len(given), *shape), kind, device=pick.device)
    for row, c in enumerate(given):
        table[row] = c
    index = pick.astype(dtype("int64"), copy=False)
    if how:
        index = e.mod(index, len(given)) if how == 1 else e.clamp(index, 0, len(given) - 1)
    found: GPUArray = take_along(table, index._broadcast_to(shape)._expand(0), 0)
    result = found.reshape(shape)
    if out is None:
        return result
    out[...] = spread(result, tuple(out.shape))
    return out


@export
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> GPUArray:
    """Elements of the first of several arrays whose condition holds.

    Parameters
    ----------
    condlist : sequence of GPUArray
        bool.
    choicelist : sequence of GPUArray or number
        As many.
    default : GPUArray or number, optional
        Where no condition holds.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([0, 1, 2, 3])
    >>> gp.select([x < 1, x > 2], [x, x * 10], -1).tolist()
    [0, -1, -1, 30]
    """
    if len(condlist) != len(choicelist):
        raise ShapeError(f"select(): {len(condlist)} conditions for {len(choicelist)} choices; give as many")
    if not len(condlist):
        raise ShapeError("select() needs at least one condition")
    device = common_device((*condlist, *choicelist))
    condlist = [as_array(c, f"select(): condition {i}", device) for i, c in enumerate(condlist)]
    for i, condition in enumerate(condlist):
        if condition.dtype.name != "bool":
            raise DTypeError(f"select(): condition {i} must be an array of bool, not {condition.dtype.name}")
    device = condlist[0].device
    given = [c if type(c) in _NUMBERS else asarray(c, device=device) for c in (*choicelist, default)]
    kind = promote([c.dtype if isinstance(c, GPUArray) else _NUMBERS[type(c)] for c in given])
    arrays = [c for c in (*condlist, *given) if isinstance(c, GPUArray)]
    out = empty(np.broadcast_shapes(*(tuple(c.shape) for c in arrays)), kind, device=device)
    out[...] = given[-1]
    for condition, choice in zip(reversed(condlist), reversed(given[:-1]), strict=True):
        assign_where(out, condition, elements_for(out, choice))
    return out


for _name, _function in (("take", take), ("put", put), ("choose", choose)):
    as_method(_function, _name)


def _compress_method(self: GPUArray, condition: Any, axis: int | None = None, out: GPUArray | None = None) -> GPUArray:
    """Slices along an axis for which a condition holds; see `pygpukit.compress`."""
    result: GPUArray = compress(condition, self, axis, out)
    return result


as_method(_compress_method, "compress")

__all__ = ["choose", "compress", "extract", "place", "put", "put_along_axis", "putmask", "select", "take"]
