"""Limits of data types as the standard has them: Python numbers, which take the type of the array beside them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pygpukit as gp

__all__ = ["finfo", "iinfo"]


@dataclasses.dataclass(frozen=True, slots=True)
class FloatLimits:
    """What `finfo` gives."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: gp.DataType


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerLimits:
    """What `iinfo` gives."""

    bits: int
    max: int
    min: int
    dtype: gp.DataType


def _type_of(x: Any) -> gp.DataType:
    return x.dtype if isinstance(x, gp.GPUArray) else gp.dtype(x)


def finfo(type: Any, /) -> FloatLimits:
    """Limits of a float type, or of the parts of a complex one.

    Parameters
    ----------
    type : DataType or GPUArray

    Returns
    -------
    FloatLimits
        ``bits``, ``eps``, ``max``, ``min``, ``smallest_normal``, ``dtype``.

    Examples
    --------
    >>> finfo(gp.complex64).dtype, finfo(gp.float64).max
    (pygpukit.float32, 1.7976931348623157e+308)
    """
    kind = _type_of(type)
    if kind.kind not in "fc":
        raise gp.DTypeError(f"finfo() takes a float or complex type, not {kind.name}; use iinfo() for integers")
    found = gp.finfo(kind)
    return FloatLimits(
        bits=int(found.bits),
        eps=float(found.eps),
        max=float(found.max),
        min=float(found.min),
        smallest_normal=float(found.smallest_normal),
        dtype=gp.dtype(found.dtype),
    )


def iinfo(type: Any, /) -> IntegerLimits:
    """Limits of an integer type.

    Parameters
    ----------
    type : DataType or GPUArray

    Returns
    -------
    IntegerLimits
        ``bits``, ``max``, ``min``, ``dtype``.

    Examples
    --------
    >>> iinfo(gp.int8).min
    -128
    """
    kind = _type_of(type)
    if kind.kind not in "iu":
        raise gp.DTypeError(f"iinfo() takes an integer type, not {kind.name}; use finfo() for floats")
    found = gp.iinfo(kind)
    return IntegerLimits(int(found.bits), int(found.max), int(found.min), kind)
