"""What the functions of this family ask of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.operands import as_array
from pygpukit.ops.reduce.compositions import into

_NUMBERS = (bool, int, float, complex, np.generic)
_FLOAT_OF = {1: "float16", 2: "float32", 4: "float64", 8: "float64"}


def need(x: Any, what: str) -> GPUArray:
    """Return ``x`` if it is an array, else one made of a number or a list."""
    return x if isinstance(x, GPUArray) else as_array(x, f"{what}()")


def operand(x: Any, what: str) -> Any:
    """Return an array or a Python number; a NumPy scalar becomes an array."""
    if isinstance(x, np.generic):
        return from_numpy(x)
    return x if isinstance(x, _NUMBERS) else need(x, what)


def refuse(x: GPUArray, kinds: str, what: str) -> GPUArray:
    """Return ``x``, and raise unless its element type is of one of these kinds."""
    if x.dtype.kind not in kinds:
        raise DTypeError(f"{what} is not defined for {x.dtype.name}: convert with astype")
    return x


def float_type(kind: DataType) -> DataType:
    """The type in which NumPy's functions of real numbers compute: floats of the size of an integer or the next."""
    return dtype(_FLOAT_OF[kind.itemsize]) if kind.kind in "biu" else kind


def as_float(x: GPUArray) -> GPUArray:
    """The array in that type."""
    return x.astype(float_type(x.dtype), copy=False)


def filled(x: GPUArray, out: GPUArray | None, what: str) -> GPUArray:
    """Return ``x``, or ``out`` with its elements."""
    if out is not None and not isinstance(out, GPUArray):
        raise TypeError(f"{what}(): out must be a GPUArray, not {type(out).__name__}")
    return into(x, out)


def streamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the keyword ``stream``, and let it take ``out`` as NumPy's ufuncs do."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    operands = sum(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
    is_ufunc = kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * operands + [inspect.Parameter.KEYWORD_ONLY]
    is_ufunc = is_ufunc and "out" in inspect.signature(function).parameters

    @wraps(function)
    def run(*args: Any, stream: Stream | None = None, **keywords: Any) -> Any:
        if is_ufunc and (keywords or len(args) > operands):
            args = _with_target(function, args, operands, keywords)
        if stream is None:
            return function(*args, **keywords)
        with stream:
            return function(*args, **keywords)

    return run


def _with_target(
    function: Callable[..., Any], args: tuple[Any, ...], operands: int, keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the operands; what stands behind them is ``out``, which may be in a tuple."""
    if len(args) == operands + 1:
        if "out" in keywords:
            raise TypeError(f"{function.__name__}(): out is given twice, behind the operands and by name")
        *rest, keywords["out"] = args
        args = tuple(rest)
    target = keywords.get("out")
    if type(target) is tuple and len(target) == 1:
        keywords["out"] = target[0]
    return args


def renamed(name: str, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call an operator for a function of another name, which its errors are to say."""
    try:
        return function(*args, **keywords)
    except (TypeError, ValueError, OverflowError) as error:
        own, text = function.__name__, str(error)
        if not text.startswith(own):
            raise
        raise type(error)(name + text[len(own) :]) from None
