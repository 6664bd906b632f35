"""Python functions as kernels: numba-cuda makes PTX of them, and the runtime launches it as its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import MissingPackageError
from pygpukit.jit import load_ptx

__all__ = ["PythonKernel"]

# What numba calls the types of elements and of numbers.
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TYPES = ("bool", *_INTEGERS, "float16", "float32", "float64", "complex64", "complex128")


class PythonKernel:
    """One Python function, compiled once per types of its arguments.

    Parameters
    ----------
    function : callable
        Written for ``numba.cuda``.
    fastmath : bool
        Trade exactness for speed.
    """

    def __init__(self, function: Callable[..., Any], fastmath: bool) -> None:
        self._function = function
        self._fastmath = fastmath
        self._lock = threading.Lock()
        self._made: dict[Hashable, _native.Kernel] = {}

    def __call__(self, args: Sequence[Any], **launch: Any) -> None:
        """Launch it; arrays are contiguous, and without a grid there is a thread for each element of the largest."""
        device = _native.current_device()
        key = (device._number, *map(_type_key, args))
        with self._lock:
            kernel = self._made.get(key)
            if kernel is None:
                kernel = self._made[key] = self._compile(args, device)
        flat: list[Any] = []
        for arg in args:
            flat += _array_words(arg) if isinstance(arg, _native.GPUArray) else [arg]
        if launch["grid"] is None:
            block = launch["block"] or 256
            threads = block if isinstance(block, int) else block[0]
            most = max((arg.size for arg in args if isinstance(arg, _native.GPUArray)), default=1)
            launch |= {"grid": max(1, -(-most // threads)), "block": block}
        kernel(*flat, **launch)

    def _compile(self, args: Sequence[Any], device: _native.Device) -> _native.Kernel:
        try:
            from numba import cuda, types
        except ImportError as error:
            raise MissingPackageError(
                f"{self._function.__name__} is a Python function, and only numba-cuda can make a kernel of it: pip "
                "install 'numba-cuda[cu13]'. Or put CUDA C++ source with a __global__ function into its docstring"
            ) from error
        signature = types.void(*(_numba_type(types, arg) for arg in args))
        ptx, _ = cuda.compile_ptx(self._function, signature, cc=device.capability, fastmath=self._fastmath)
        return load_ptx(ptx)


def _type_key(arg: Any) -> Any:
    return (arg.dtype.name, arg.ndim) if isinstance(arg, _native.GPUArray) else type(arg)


def _numba_type(types: Any, arg: Any) -> Any:
    if isinstance(arg, _native.GPUArray):
        if arg.dtype.name not in _TYPES or not arg.is_contiguous:
            raise TypeError(
                f"numba takes contiguous arrays of {', '.join(_TYPES)}, not one of {arg.dtype.name}; cast or copy it"
            )
        element = getattr(types, "boolean" if arg.dtype.name == "bool" else arg.dtype.name)
        return types.Array(element, arg.ndim, "C")
    known = {bool: types.boolean, int: types.int64, float: types.float64}
    if type(arg) not in known:
        raise TypeError(f"a Python kernel takes arrays, buffers, bool, int and float, not {type(arg).__name__}")
    return known[type(arg)]


def _array_words(array: _native.GPUArray) -> list[Any]:
    """An array as numba's kernels take it: two unused pointers, sizes, the data, shape and strides in bytes."""
    return [0, 0, array.size, array.itemsize, array, *array.shape, *array.strides]
