"""Arrays of what is given: host data, arrays, and nested lists that contain arrays."""

from __future__ import annotations

from typing import Any

from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array import bridge
from pygpukit.dtypes import DTypeLike
from pygpukit.dtypes import dtype as dtype_of
from pygpukit.errors import ShapeError
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import common_device
from pygpukit.ops.shape.joining import stack


def _has_arrays(a: Any) -> bool:
    return isinstance(a, GPUArray) or (isinstance(a, list | tuple) and any(_has_arrays(x) for x in a))


def _device_of(a: Any) -> Device | None:
    if isinstance(a, list | tuple):
        return next(filter(None, map(_device_of, a)), None)
    return common_device((a,))


def _stacked(a: Any, device: Device | None) -> GPUArray:
    """Return nested lists as one array; what holds no array is read on the host."""
    if not _has_arrays(a):
        return bridge.asarray(a, device=device)
    if isinstance(a, GPUArray):
        return a
    parts = [_stacked(x, device) for x in a]
    shapes = [tuple(x.shape) for x in parts]
    if len(set(shapes)) > 1:
        raise ShapeError(f"a list of arrays is one array where all have the same shape, and these have {shapes}")
    result: GPUArray = stack(parts)
    return result


def _made(a: Any, dtype: DTypeLike | None, order: str | None, copy: bool | None, device: Device | None) -> GPUArray:
    if order not in (None, "C", "F", "A", "K"):
        raise ValueError(f"order must be 'C', 'F', 'A', 'K' or None, not {order!r}")
    if isinstance(a, GPUArray):
        x = bridge.asarray(a, device=device)
        kept = x.dtype if dtype is None else dtype_of(dtype)
        placed = x.is_contiguous if order == "C" else x.flags.f_contiguous if order == "F" else True
        if kept is x.dtype and placed:
            return x.copy("F" if order == "F" else "C") if copy else x
        if copy is False:
            raise ValueError("this array cannot be had without a copy; use copy=None to allow one")
        x = x.astype(kept, copy=False)
        return x if order not in ("C", "F") else x.copy(order) if order == "F" else x.contiguous()
    if copy is False:
        raise ValueError("data of the host is always copied to the device; use copy=None")
    try:
        x = bridge.asarray(a, dtype, device=device)
    except (TypeError, ValueError):
        if not isinstance(a, list | tuple) or not _has_arrays(a):
            raise
        x = _stacked(a, device or _device_of(a))
        x = x if dtype is None else x.astype(dtype, copy=False)
    return x.copy("F") if order == "F" else x


@export
def asarray(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: Device | None = None,
    copy: bool | None = None,
) -> GPUArray:
    """Make an array of anything NumPy understands; a GPUArray of the right type passes unchanged.

    Parameters
    ----------
    a : array_like
        A GPUArray, a NumPy array, a number, or nested lists of them; GPUArrays in lists are joined on the device.
    dtype : DataType, str or numpy.dtype, optional
        Element type; what NumPy would choose by default.
    order : {'C', 'F', 'A', 'K'}, optional
        Which index changes fastest in memory; as it is by default.
    device : Device, optional
        The current one by default.
    copy : bool, optional
        True copies always, False never.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.asarray([1.5, 2.5], dtype="bfloat16").dtype
    pygpukit.bfloat16
    """
    return _made(a, dtype, order, copy, device)


@export
def array(
    object: Any,
    dtype: DTypeLike | None = None,
    *,
    copy: bool | None = True,
    order: str | None = None,
    ndmin: int = 0,
    device: Device | None = None,
) -> GPUArray:
    """Make a new array of anything NumPy understands; see `asarray`.

    Parameters
    ----------
    object : array_like
    dtype : DataType, str or numpy.dtype, optional
    copy : bool, optional
        True copies always, None where it is needed, False never.
    order : {'C', 'F', 'A', 'K'}, optional
    ndmin : int, optional
        At least this many axes; new ones of one element come first.
    device : Device, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.array([1, 2], ndmin=2).tolist()
    [[1, 2]]
    """
    x = _made(object, dtype, order, copy, device)
    while x.ndim < ndmin:
        x = x._expand(0)
    return x


export(asarray, "asanyarray")


@export
def astype(x: GPUArray, dtype: DTypeLike, /, *, copy: bool = True) -> GPUArray:
    """The array converted to another element type: ``x.astype(dtype)``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.astype(gp.asarray([1.5, 2.5]), int).tolist()
    [1, 2]
    """
    if not isinstance(x, GPUArray):
        raise TypeError(f"astype() takes a GPUArray, not {type(x).__name__}; make one with asarray(x, dtype)")
    return x.astype(dtype, copy=copy)


@export
def ascontiguousarray(a: Any, dtype: DTypeLike | None = None, *, device: Device | None = None) -> GPUArray:
    """An array with its elements in row-major order without gaps and at least one axis; copied only where needed.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.ascontiguousarray(gp.ones((2, 3)).T).is_contiguous
    True
    """
    x = _made(a, dtype, "C", None, device)
    return x if x.ndim else x.reshape(1)


@export
def asfortranarray(a: Any, dtype: DTypeLike | None = None, *, device: Device | None = None) -> GPUArray:
    """An array with its elements in column-major order without gaps and at least one axis; copied only where needed.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.asfortranarray(gp.ones((2, 3))).T.is_contiguous
    True
    """
    x = _made(a, dtype, "F", None, device)
    return x if x.ndim else x.reshape(1)


@export
def copy(a: Any, order: str = "C") -> GPUArray:
    """A copy of an array, or an array of host data.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.copy(gp.ones(2)).tolist()
    [1.0, 1.0]
    """
    return a.copy(order) if isinstance(a, GPUArray) else _made(a, None, order, True, None)
