"""Making arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import DTypeLike, dtype, float32, to_numpy_dtype
from pygpukit.errors import DTypeError

__all__ = [
    "Shape",
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""An int or a sequence of ints."""

_Scalar: TypeAlias = bool | int | float | complex


def dimensions(shape: Shape) -> list[int]:
    """A shape as a list of ints, with an error that names what is not one."""
    if isinstance(shape, tuple | list) and all(type(dim) is int for dim in shape):
        return list(shape)
    if isinstance(shape, str | bytes):
        raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}")
    try:
        return [operator.index(shape)]  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return [operator.index(dim) for dim in shape]  # type: ignore[union-attr]
    except TypeError:
        raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}") from None


def fill(self: GPUArray, value: _Scalar) -> GPUArray:
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


def empty(shape: Shape, dtype: DTypeLike = float32, *, device: Device | None = None) -> GPUArray:
    """An array whose elements are not set.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : DataType, str or numpy.dtype
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
    return _native.empty(dimensions(shape), _dtype(dtype), device)


# The parameter of every function here is named `dtype`, as in NumPy, which hides the function of that name.
_dtype = dtype


def full(shape: Shape, value: _Scalar, dtype: DTypeLike | None = None, *, device: Device | None = None) -> GPUArray:
    """An array of one number.

    Parameters
    ----------
    shape : int or sequence of int
    value : number
    dtype : DataType, str or numpy.dtype, optional
        NumPy's type for `value` by default.
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
    return fill(empty(shape, np.asarray(value).dtype if dtype is None else dtype, device=device), value)


def zeros(shape: Shape, dtype: DTypeLike = float32, *, device: Device | None = None) -> GPUArray:
    """An array of zeros; see `empty` for the parameters.

    Examples
    --------
    >>> zeros(2, "int8").tolist()
    [0, 0]
    """
    return fill(empty(shape, dtype, device=device), 0)


def ones(shape: Shape, dtype: DTypeLike = float32, *, device: Device | None = None) -> GPUArray:
    """An array of ones; see `empty` for the parameters.

    Examples
    --------
    >>> ones(2, "float16").tolist()
    [1.0, 1.0]
    """
    return fill(empty(shape, dtype, device=device), 1)


def empty_like(x: GPUArray, dtype: DTypeLike | None = None) -> GPUArray:
    """An array with the shape, type and device of another, not set.

    Examples
    --------
    >>> empty_like(zeros((2, 2), "int8")).dtype
    pygpukit.int8
    """
    return empty(x.shape, x.dtype if dtype is None else dtype, device=x.device)


def zeros_like(x: GPUArray, dtype: DTypeLike | None = None) -> GPUArray:
    """Zeros with the shape, type and device of another array.

    Examples
    --------
    >>> zeros_like(ones(2)).tolist()
    [0.0, 0.0]
    """
    return fill(empty_like(x, dtype), 0)


def ones_like(x: GPUArray, dtype: DTypeLike | None = None) -> GPUArray:
    """Ones with the shape, type and device of another array.

    Examples
    --------
    >>> ones_like(zeros(2)).tolist()
    [1.0, 1.0]
    """
    return fill(empty_like(x, dtype), 1)


def full_like(x: GPUArray, value: _Scalar, dtype: DTypeLike | None = None) -> GPUArray:
    """One number with the shape, type and device of another array.

    Examples
    --------
    >>> full_like(zeros(2), 3).tolist()
    [3.0, 3.0]
    """
    return fill(empty_like(x, dtype), value)


def _made_on_host(a: np.ndarray[Any, Any], dtype: DTypeLike | None, device: Device | None) -> GPUArray:
    return from_numpy(a if dtype is None else a.astype(to_numpy_dtype(dtype)), device=device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DTypeLike | None = None,
    *,
    device: Device | None = None,
) -> GPUArray:
    """Evenly spaced numbers by step, as NumPy computes them; made on the host and copied.

    Examples
    --------
    >>> arange(3).tolist()
    [0, 1, 2]
    >>> arange(5, step=2).tolist()
    [0, 2, 4]
    """
    host = np.arange(start, step=step) if stop is None else np.arange(start, stop, step)
    return _made_on_host(host, dtype, device)


def linspace(
    start: float, stop: float, num: int = 50, dtype: DTypeLike | None = None, *, device: Device | None = None
) -> GPUArray:
    """Evenly spaced numbers by count, as NumPy computes them; made on the host and copied.

    Examples
    --------
    >>> linspace(0, 1, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    return _made_on_host(np.linspace(start, stop, num), dtype, device)


def eye(n: int, m: int | None = None, dtype: DTypeLike = float32, *, device: Device | None = None) -> GPUArray:
    """Ones on the diagonal; made on the host and copied.

    Examples
    --------
    >>> eye(2, dtype="int8").tolist()
    [[1, 0], [0, 1]]
    """
    return _made_on_host(np.eye(n, m), dtype, device)
