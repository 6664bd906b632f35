"""Functions with the standard's own signatures; those that make arrays take float64 where no type is given."""

from __future__ import annotations

from typing import Any

import pygpukit as gp
from pygpukit.core.device import resolve_device

__all__ = [
    "arange",
    "asarray",
    "astype",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

DEFAULT_REAL = gp.float64


def _device(device: Any) -> Any:
    # None is left as it is: the package's own functions ask for the current device faster.
    return None if device is None else resolve_device(device)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> gp.GPUArray:
    """Make an array of numbers, nested sequences of them, or another library's array.

    Parameters
    ----------
    obj : array_like
        A Python number, nested sequences, an array of NumPy, or an object with ``__dlpack__``.
    dtype : DataType, optional
        By default the type of `obj`: float64, int64 or complex128 for Python's numbers.
    device : Device, optional
        The device of `obj` by default, else the current one.
    copy : bool, optional
        True always copies, False never; by default only where it is needed.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> asarray([1.5, 2]).dtype
    pygpukit.float64
    """
    target = _device(device)
    if isinstance(obj, gp.GPUArray) and target is not None and target != obj.device:
        if copy is False:
            raise ValueError(f"copy=False, but the array is on {obj.device!r} and must be copied to {target!r}")
        moved = obj if dtype is None else obj.astype(dtype, copy=False)
        return moved.to_device(target)
    return gp.asarray(obj, dtype, device=target, copy=copy)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> gp.GPUArray:
    """Make an array of an object with ``__dlpack__``; it shares the memory unless `copy` or `device` demands a copy.

    Parameters
    ----------
    x : object with ``__dlpack__``
    device : Device, optional
        Where the result is to be; where `x` is by default.
    copy : bool, optional
        True always copies, False never.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> from_dlpack(asarray([1, 2])).tolist()
    [1, 2]
    """
    return gp.from_dlpack(x, device=_device(device), copy=copy)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> gp.GPUArray:
    """Evenly spaced numbers by step: int64, or float64 where a float is given, unless `dtype` is.

    Examples
    --------
    >>> arange(1, 4).tolist()
    [1, 2, 3]
    """
    return gp.arange(start, stop, step, dtype, device=_device(device))


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> gp.GPUArray:
    """Evenly spaced numbers by count: float64 or complex128 unless `dtype` is given.

    Examples
    --------
    >>> linspace(0, 1, 4, endpoint=False).tolist()
    [0.0, 0.25, 0.5, 0.75]
    """
    return gp.linspace(start, stop, num, dtype=dtype, endpoint=endpoint, device=_device(device))


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """Ones on the `k`-th diagonal, zeros elsewhere.

    Examples
    --------
    >>> eye(2, k=1).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return gp.eye(n_rows, n_cols, k, DEFAULT_REAL if dtype is None else dtype, device=_device(device))


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """An array whose elements are not set.

    Examples
    --------
    >>> empty((2, 3)).dtype
    pygpukit.float64
    """
    return gp.empty(shape, DEFAULT_REAL if dtype is None else dtype, device=_device(device))


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """An array of ones.

    Examples
    --------
    >>> ones(2).tolist()
    [1.0, 1.0]
    """
    return gp.ones(shape, DEFAULT_REAL if dtype is None else dtype, device=_device(device))


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """An array of zeros.

    Examples
    --------
    >>> zeros(2).tolist()
    [0.0, 0.0]
    """
    return gp.zeros(shape, DEFAULT_REAL if dtype is None else dtype, device=_device(device))


def full(shape: Any, fill_value: complex, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """An array of one number, of the number's type unless `dtype` is given.

    Examples
    --------
    >>> full(2, 3.0).tolist()
    [3.0, 3.0]
    """
    return gp.full(shape, fill_value, dtype, device=_device(device))


def empty_like(x: gp.GPUArray, /, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """An array of the shape, type and device of `x`, not set.

    Examples
    --------
    >>> empty_like(zeros((2, 2))).shape
    (2, 2)
    """
    return gp.empty(
        x.shape, x.dtype if dtype is None else dtype, device=x.device if device is None else _device(device)
    )


def ones_like(x: gp.GPUArray, /, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """Ones of the shape, type and device of `x`.

    Examples
    --------
    >>> ones_like(zeros(2)).tolist()
    [1.0, 1.0]
    """
    return empty_like(x, dtype=dtype, device=device).fill(1)


def zeros_like(x: gp.GPUArray, /, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """Zeros of the shape, type and device of `x`.

    Examples
    --------
    >>> zeros_like(ones(2)).tolist()
    [0.0, 0.0]
    """
    return empty_like(x, dtype=dtype, device=device).fill(0)


def full_like(x: gp.GPUArray, /, fill_value: complex, *, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """One number, of the shape, type and device of `x`.

    Examples
    --------
    >>> full_like(zeros(2), 3).tolist()
    [3.0, 3.0]
    """
    return empty_like(x, dtype=dtype, device=device).fill(fill_value)


def astype(x: gp.GPUArray, dtype: Any, /, *, copy: bool = True, device: Any = None) -> gp.GPUArray:
    """Convert an array to another type.

    Parameters
    ----------
    x : GPUArray
    dtype : DataType
    copy : bool
        False gives `x` itself where its type and device are already as asked.
    device : Device, optional
        Where the result is to be; where `x` is by default.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> astype(gp.ones(2), gp.int8).tolist()
    [1, 1]
    """
    converted = x.astype(dtype, copy=copy)
    return converted if device is None else asarray(converted, device=device)


def expand_dims(x: gp.GPUArray, /, axis: int = 0) -> gp.GPUArray:
    """A view with a new axis of length 1 at `axis`.

    Examples
    --------
    >>> expand_dims(gp.ones(3)).shape
    (1, 3)
    """
    return gp.expand_dims(x, axis)
