"""Python's operators on arrays: ``x + y``, ``x < y``, ``x @ y`` and the in-place forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import full
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops import numpy_protocols
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.math import elementwise as m
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.registry import methods

# NumPy arrays and lists are refused by the operators, which say how to convert them: nothing is copied silently.
_OPERANDS = (GPUArray, bool, int, float, complex, np.generic, np.ndarray, list, tuple)

_BINARY = {
    "add": e.add,
    "sub": e.sub,
    "mul": e.mul,
    "truediv": e.div,
    "floordiv": e.floor_divide,
    "mod": e.mod,
    "pow": e.pow,
    "and": e.bitwise_and,
    "or": e.bitwise_or,
    "xor": e.bitwise_xor,
    "lshift": e.left_shift,
    "rshift": e.right_shift,
}
_COMPARISON = {
    "lt": e.less,
    "le": e.less_equal,
    "gt": e.greater,
    "ge": e.greater_equal,
}
_UNARY = {"neg": e.neg, "abs": e.abs, "invert": e.invert}


def _forward(function: Callable[..., Any]) -> Any:
    def method(self: GPUArray, other: Any) -> Any:
        return function(self, other) if isinstance(other, _OPERANDS) else NotImplemented

    return method


def _reflected(function: Callable[..., Any]) -> Any:
    def method(self: GPUArray, other: Any) -> Any:
        return function(other, self) if isinstance(other, _OPERANDS) else NotImplemented

    return method


def _equality(function: Callable[..., Any], unlike: bool) -> Any:
    def method(self: GPUArray, other: Any) -> Any:
        if isinstance(other, _OPERANDS):
            return function(self, other)
        # As in NumPy no element equals what is no number. Other classes may define what equality means.
        kind: Any = type(other)
        if kind.__module__ == "builtins" or kind.__eq__ is object.__eq__:
            return full(self.shape, unlike, "bool", device=self.device)
        return NotImplemented

    return method


def _in_place(function: Callable[..., Any]) -> Any:
    def method(self: GPUArray, other: Any) -> Any:
        return function(self, other, out=self) if isinstance(other, _OPERANDS) else NotImplemented

    return method


def _single(function: Callable[..., Any]) -> Any:
    def method(self: GPUArray) -> Any:
        return function(self)

    return method


def _method(function: Any) -> Any:
    """A method that calls a built-in function, which does not bind by itself."""

    def method(self: GPUArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method


_MATRICES = (GPUArray, np.ndarray, list, tuple)


def _matmul(self: GPUArray, other: Any) -> Any:
    return matmul(self, other) if isinstance(other, _MATRICES) else NotImplemented


def _reflected_matmul(self: GPUArray, other: Any) -> Any:
    return matmul(other, self) if isinstance(other, _MATRICES) else NotImplemented


def _in_place_matmul(self: GPUArray, other: Any) -> Any:
    if not isinstance(other, _MATRICES):
        return NotImplemented
    result = matmul(self, other)
    if result.shape != self.shape:
        raise ShapeError(f"x @= y: the product has shape {result.shape}, but x has {self.shape}")
    if not can_cast(result.dtype, self.dtype):
        raise DTypeError(
            f"x @= y: the product is {result.dtype.name}, which x of {self.dtype.name} cannot hold: write x = x @ y"
        )
    return _native.apply("copy", (result,), self)


def _divmod(self: GPUArray, other: Any) -> Any:
    return m.divmod(self, other) if isinstance(other, _OPERANDS) else NotImplemented


def _reflected_divmod(self: GPUArray, other: Any) -> Any:
    return m.divmod(other, self) if isinstance(other, _OPERANDS) else NotImplemented


def _contains(self: GPUArray, value: Any) -> bool:
    try:
        found = self == value
    except OverflowError:
        # No element is a number that the type cannot hold.
        return False
    return bool(FUNCTIONS["any"](found)) if isinstance(found, GPUArray) else bool(found)


def _positive(self: GPUArray) -> GPUArray:
    return m.positive(self)  # type: ignore[no-any-return]


def _round(self: GPUArray, ndigits: int | None = None) -> Any:
    """What Python's ``round`` gives: an int of an array without axes, else the rounded array."""
    if self.ndim == 0 and ndigits is None:
        return round(self.item())
    return m.round(self, 0 if ndigits is None else ndigits)


def _whole(function: Callable[[Any], int]) -> Any:
    def method(self: GPUArray) -> int:
        if self.ndim:
            raise TypeError(
                f"math.{function.__name__}() takes one number, not an array of shape {self.shape}; "
                f"use pygpukit.{function.__name__}()"
            )
        return function(self.item())

    return method


def attach() -> None:
    """Put the operators, and what families register as methods, on the native class."""
    extra: dict[str, Any] = {
        "__eq__": _equality(e.equal, False),
        "__ne__": _equality(e.not_equal, True),
        "__matmul__": _matmul,
        "__rmatmul__": _reflected_matmul,
        "__imatmul__": _in_place_matmul,
        "__divmod__": _divmod,
        "__rdivmod__": _reflected_divmod,
        "__pos__": _positive,
        "__contains__": _contains,
        "__array_ufunc__": numpy_protocols.array_ufunc,
        "__array_function__": numpy_protocols.array_function,
        "__array_namespace__": numpy_protocols.array_namespace,
        "__round__": _round,
        "__trunc__": _whole(math.trunc),
        "__floor__": _whole(math.floor),
        "__ceil__": _whole(math.ceil),
        # Comparison gives arrays, so equality cannot be what identity in sets and dicts means.
        "__hash__": object.__hash__,
    }
    extra |= {name: _method(function) for name, function in methods().items()}
    for name, function in _BINARY.items():
        extra |= {
            f"__{name}__": _forward(function),
            f"__r{name}__": _reflected(function),
            f"__i{name}__": _in_place(function),
        }
    extra |= {f"__{name}__": _forward(function) for name, function in _COMPARISON.items()}
    extra |= {f"__{name}__": _single(function) for name, function in _UNARY.items()}
    for name, method in extra.items():
        if method.__name__ == "method":
            method.__name__, method.__qualname__ = name, f"GPUArray.{name}"
        setattr(GPUArray, name, method)
