"""Questions about element types: promotion, casts, limits and kinds, as NumPy and the array API answer them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import DTypeLike, dtype, to_numpy_dtype
from pygpukit.ops import promotion
from pygpukit.ops.promotion import Input, promote
from pygpukit.ops.registry import export

__all__ = ["can_cast", "finfo", "iinfo", "isdtype", "issubdtype", "promote_types", "result_type"]

_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}  # fmt: skip
_PYTHON = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))


def _type_of(x: Any) -> DataType:
    """The element type of an array, or the one that is named."""
    if isinstance(x, GPUArray):
        return x.dtype
    return dtype(x.dtype if isinstance(x, np.ndarray | np.generic) else x)


def input_of(x: Any) -> Input:
    """How promotion sees an operand or a dtype: a Python number has a kind only."""
    if isinstance(x, np.generic):
        return dtype(x.dtype)
    for kind, name in _PYTHON:
        if isinstance(x, kind):
            return name  # type: ignore[return-value]
    return _type_of(x)


def result_type(*arrays_and_dtypes: Any) -> DataType:
    """The type that these operands have in common; Python numbers adapt to the others.

    Parameters
    ----------
    *arrays_and_dtypes : GPUArray, number or dtype
        At least one.

    Returns
    -------
    DataType

    Examples
    --------
    >>> result_type("float32", 2.0), result_type(np.int16, "bfloat16")
    (pygpukit.float32, pygpukit.float32)
    """
    if not arrays_and_dtypes:
        raise ValueError("result_type() takes at least one array or dtype")
    return promote([input_of(x) for x in arrays_and_dtypes])


def promote_types(type1: DTypeLike, type2: DTypeLike) -> DataType:
    """The smallest type that holds both types' values; DTypeError where there is none.

    Examples
    --------
    >>> promote_types("int32", "float32")
    pygpukit.float64
    """
    return promote([dtype(type1), dtype(type2)])


def can_cast(from_: Any, to: DTypeLike, casting: str = "safe") -> bool:
    """Whether elements of one type may become another's under a rule.

    Parameters
    ----------
    from_ : GPUArray or dtype
        The source.
    to : dtype
        The target.
    casting : str
        "no", "equiv", "safe" (no value is lost), "same_kind" (precision may be lost: the rule of ``out=``) or "unsafe".

    Examples
    --------
    >>> can_cast("int32", "float32"), can_cast("int32", "float32", "same_kind")
    (False, True)
    """
    if isinstance(from_, bool | int | float | complex) and not isinstance(from_, np.generic):
        raise TypeError("can_cast() takes arrays and dtypes, not Python numbers: result_type() adapts those")
    source, target = _type_of(from_), dtype(to)
    if casting == "same_kind":
        return promotion.can_cast(source, target)
    return bool(np.can_cast(to_numpy_dtype(source), to_numpy_dtype(target), casting))  # type: ignore[arg-type]


def finfo(dtype: Any) -> Any:
    """Limits of a floating-point type: ``bits``, ``eps``, ``max``, ``min``, ``smallest_normal``, ``dtype`` and others.

    Parameters
    ----------
    dtype : GPUArray or dtype
        A float or complex type; bfloat16 and float8 too.

    Examples
    --------
    >>> float(finfo("bfloat16").eps), finfo("float32").bits
    (0.0078125, 32)
    """
    found = to_numpy_dtype(_type_of(dtype))
    return np.finfo(found) if found.kind in "fc" or found.kind in "biu" else ml_dtypes.finfo(found)  # type: ignore[no-untyped-call]


def iinfo(dtype: Any) -> Any:
    """Limits of an integer type: ``bits``, ``max``, ``min``, ``dtype``.

    Parameters
    ----------
    dtype : GPUArray or dtype
        An integer type.

    Examples
    --------
    >>> iinfo("uint8").max
    255
    """
    return np.iinfo(to_numpy_dtype(_type_of(dtype)))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a type is of a kind.

    Parameters
    ----------
    dtype : dtype
        The type.
    kind : str, dtype or tuple of them
        "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating" or "numeric", or a
        type; of a tuple any.

    Examples
    --------
    >>> isdtype("bfloat16", "real floating"), isdtype("int8", ("bool", "real floating"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    found = _type_of(dtype)
    if isinstance(kind, str):
        if kind in _KINDS:
            return found.kind in _KINDS[kind]
        raise ValueError(f"isdtype(): {kind!r} is no kind; use {', '.join(map(repr, _KINDS))} or a dtype")
    return found is _type_of(kind)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a type is the second or below it in NumPy's hierarchy; bfloat16 and float8 are ``np.floating``.

    Parameters
    ----------
    arg1, arg2 : dtype or class
        Types, or NumPy's classes of types such as ``np.integer``.

    Examples
    --------
    >>> issubdtype("bfloat16", np.floating), issubdtype("int32", np.floating)
    (True, False)
    """

    def scalar(x: Any) -> Any:
        if isinstance(x, type) and issubclass(x, np.generic):
            return x
        return to_numpy_dtype(_type_of(x)).type

    first, second = scalar(arg1), scalar(arg2)
    small = first in (scalar("bfloat16"), scalar("float8_e4m3fn"), scalar("float8_e5m2"))
    return first is second or issubclass(np.float16 if small and second is not np.float16 else first, second)


for _function in (can_cast, finfo, iinfo, isdtype, issubdtype, promote_types, result_type):
    export(_function)
