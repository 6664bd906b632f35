"""Making arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.bridge import asarray
from pygpukit.dtypes import DTypeLike, dtype, float32, float64, int64, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError

__all__ = [
    "Shape",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""An int or a sequence of ints."""

_Scalar: TypeAlias = bool | int | float | complex


_MOST = 2**63 - 1


def dimensions(shape: Shape) -> list[int]:
    """A shape as a list of ints, with an error that names what is not one."""
    if type(shape) is int and -_MOST <= shape <= _MOST:
        return [shape]
    if isinstance(shape, tuple | list):
        for dim in shape:
            if type(dim) is not int or not -_MOST <= dim <= _MOST:
                break
        else:
            return list(shape)
    if isinstance(shape, str | bytes):
        raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}")
    try:
        found = [operator.index(shape)]  # type: ignore[arg-type]
    except TypeError:
        try:
            found = [operator.index(dim) for dim in shape]  # type: ignore[union-attr]
        except TypeError:
            raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}") from None
    for dim in found:
        if not -_MOST <= dim <= _MOST:
            given = dim if dim.bit_length() < 256 else f"a number of {dim.bit_length()} bits"
            raise ShapeError(f"maximum allowed dimension exceeded: {given}; a size is at most 2**63 - 1")
    return found


def fill(self: GPUArray, value: _Scalar | np.generic[Any]) -> GPUArray:
    """Set every element to a number, in place, and return the array.

    An integer array drops the fraction of a float; NaN, infinities and numbers it cannot hold are refused. A float
    array takes NaN and infinities, and refuses finite numbers that would become one.
    """
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, bool | int | float | complex):
        raise TypeError(f"fill() takes a number, not {type(value).__name__}")
    if isinstance(number, complex) and self.dtype.kind != "c":
        raise DTypeError(f"an array of {self.dtype.name} cannot hold {number!r}; take its real part first")
    if self.dtype.kind in "iu" and isinstance(number, int | float):
        if isinstance(number, float):
            if not math.isfinite(number):
                refusal = ValueError if math.isnan(number) else OverflowError
                raise refusal(
                    f"an array of {self.dtype.name} cannot hold {number}; use a float type or replace it first"
                )
            # As in NumPy, the fraction is dropped and the rest must fit.
            number = int(number)
        limits = np.iinfo(to_numpy_dtype(self.dtype))
        if not limits.min <= number <= limits.max:
            raise OverflowError(f"Python integer {number} is out of bounds for {self.dtype.name}")
    elif self.dtype.kind == "b":
        number = bool(number)
    elif isinstance(number, int):
        bits = number.bit_length()
        try:
            number = float(number)
        except OverflowError:
            raise OverflowError(f"Python integer of {bits} bits is out of bounds for {self.dtype.name}") from None
    if not _native.fill(self, number):
        _native.apply("copy", (number,), self)
    return self


def empty(shape: Shape, dtype: DTypeLike | None = None, order: str = "C", *, device: Device | None = None) -> GPUArray:
    """An array whose elements are not set.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : DataType, str or numpy.dtype, optional
        float32 by default, which GPUs compute in; NumPy's default is float64.
    order : {'C', 'F'}, optional
        Which index changes fastest in memory: the last or the first.
    device : Device, optional
        The current one by default.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> empty((2, 3)).shape
    (2, 3)
    """
    kind = float32 if dtype is None else _dtype(dtype)
    if order == "C":
        return _native.empty(dimensions(shape), kind, device)
    if order != "F":
        raise ValueError(f"order must be 'C' or 'F', not {order!r}")
    return _native.empty(dimensions(shape)[::-1], kind, device).T


# The parameter of every function here is named `dtype`, as in NumPy, which hides the function of that name.
_dtype = dtype


def full(
    shape: Shape,
    fill_value: _Scalar | Any,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: Device | None = None,
) -> GPUArray:
    """An array of one number, or of an array that broadcasts.

    Parameters
    ----------
    shape : int or sequence of int
    fill_value : number, GPUArray or nested lists
    dtype : DataType, str or numpy.dtype, optional
        NumPy's type for `fill_value` by default.
    order : {'C', 'F'}, optional
    device : Device, optional
        The current one by default.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> full(2, 7).tolist()
    [7, 7]
    """
    if isinstance(fill_value, bool | int | float | complex | np.generic):
        kind = _plain_type(fill_value) if dtype is None else dtype
        return fill(empty(shape, kind, order, device=device), fill_value)
    source = asarray(fill_value, device=device)
    return _spread(source, empty(shape, source.dtype if dtype is None else dtype, order, device=source.device))


def _plain_type(value: Any) -> DTypeLike:
    """NumPy's type for a number."""
    if type(value) is float:
        return float64
    if type(value) is int and -(2**63) <= value < 2**63:
        return int64
    return np.asarray(value).dtype


def _spread(source: GPUArray, out: GPUArray) -> GPUArray:
    return _native.apply("copy", (source._broadcast_to(out.shape),), out)


def zeros(shape: Shape, dtype: DTypeLike | None = None, order: str = "C", *, device: Device | None = None) -> GPUArray:
    """An array of zeros; see `empty` for the parameters.

    Examples
    --------
    >>> zeros(2, "int8").tolist()
    [0, 0]
    """
    return fill(empty(shape, dtype, order, device=device), 0)


def ones(shape: Shape, dtype: DTypeLike | None = None, order: str = "C", *, device: Device | None = None) -> GPUArray:
    """An array of ones; see `empty` for the parameters.

    Examples
    --------
    >>> ones(2, "float16").tolist()
    [1.0, 1.0]
    """
    return fill(empty(shape, dtype, order, device=device), 1)


def empty_like(
    prototype: Any, dtype: DTypeLike | None = None, *, shape: Shape | None = None, device: Device | None = None
) -> GPUArray:
    """An array with the shape, type and device of another, not set; `dtype`, `shape` and `device` replace them.

    Examples
    --------
    >>> empty_like(zeros((2, 2), "int8")).dtype
    pygpukit.int8
    """
    x = asarray(prototype) if isinstance(prototype, list | tuple | bool | int | float | complex) else prototype
    if not isinstance(x, GPUArray):
        raise TypeError(f"the array to be like must be a GPUArray, not {type(x).__name__}; convert it with asarray")
    return empty(x.shape if shape is None else shape, x.dtype if dtype is None else dtype, device=device or x.device)


def zeros_like(
    a: GPUArray, dtype: DTypeLike | None = None, *, shape: Shape | None = None, device: Device | None = None
) -> GPUArray:
    """Zeros with the shape, type and device of another array; see `empty_like`.

    Examples
    --------
    >>> zeros_like(ones(2)).tolist()
    [0.0, 0.0]
    """
    return fill(empty_like(a, dtype, shape=shape, device=device), 0)


def ones_like(
    a: GPUArray, dtype: DTypeLike | None = None, *, shape: Shape | None = None, device: Device | None = None
) -> GPUArray:
    """Ones with the shape, type and device of another array; see `empty_like`.

    Examples
    --------
    >>> ones_like(zeros(2)).tolist()
    [1.0, 1.0]
    """
    return fill(empty_like(a, dtype, shape=shape, device=device), 1)


def full_like(
    a: GPUArray,
    fill_value: _Scalar | Any,
    dtype: DTypeLike | None = None,
    *,
    shape: Shape | None = None,
    device: Device | None = None,
) -> GPUArray:
    """One number, or an array that broadcasts, with the shape, type and device of another array; see `empty_like`.

    Examples
    --------
    >>> full_like(zeros(2), 3).tolist()
    [3.0, 3.0]
    """
    out = empty_like(a, dtype, shape=shape, device=device)
    if isinstance(fill_value, bool | int | float | complex | np.generic):
        return fill(out, fill_value)
    return _spread(asarray(fill_value, device=out.device), out)
