"""Python's operators on arrays: ``x + y``, ``x < y``, ``x @ y`` and the in-place forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import asarray
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.registry import methods

# NumPy arrays are refused by the operators, which say how to convert them; a comparison would else be False.
_OPERANDS = (GPUArray, bool, int, float, complex, np.generic, np.ndarray)

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
    "eq": e.equal,
    "ne": e.not_equal,
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


def _matmul(self: GPUArray, other: Any) -> Any:
    return matmul(self, other) if isinstance(other, GPUArray) else NotImplemented


def _contains(self: GPUArray, value: Any) -> bool:
    if value is None or isinstance(value, str | bytes):
        return False
    if isinstance(value, list | tuple):
        value = asarray(value, device=self.device)
    try:
        return bool(FUNCTIONS["any"](e.equal(self, value)))
    except OverflowError:
        # No element is a number that the type cannot hold.
        return False


def _positive(self: GPUArray) -> GPUArray:
    return self.copy()


def attach() -> None:
    """Put the operators, and what families register as methods, on the native class."""
    for name, function in _BINARY.items():
        setattr(GPUArray, f"__{name}__", _forward(function))
        setattr(GPUArray, f"__r{name}__", _reflected(function))
        setattr(GPUArray, f"__i{name}__", _in_place(function))
    for name, function in _COMPARISON.items():
        setattr(GPUArray, f"__{name}__", _forward(function))
    for name, function in _UNARY.items():
        setattr(GPUArray, f"__{name}__", _single(function))
    extra: dict[str, Any] = {
        "__matmul__": _matmul,
        "__pos__": _positive,
        "__contains__": _contains,
        # Comparison gives arrays, so equality cannot be what identity in sets and dicts means.
        "__hash__": object.__hash__,
    }
    extra |= {name: _method(function) for name, function in methods().items()}
    for name, method in extra.items():
        setattr(GPUArray, name, method)
