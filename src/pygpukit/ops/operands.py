"""What functions take in place of an array: numbers, and lists of numbers and arrays, as NumPy does."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import Device, GPUArray

__all__ = ["as_array", "as_arrays", "axis_of", "common_device"]

_HOST = (bool, int, float, complex, np.generic, list, tuple, range)


def common_device(values: Iterable[Any]) -> Device | None:
    """Return the device of the first array among values; None for the current one."""
    return next((x.device for x in values if isinstance(x, GPUArray)), None)


def axis_of(axis: Any, ndim: int) -> int:
    """Return one axis counted from the first.

    Raises
    ------
    numpy.exceptions.AxisError
        If the array has no such axis; both a ValueError and an IndexError.
    TypeError
        If it is no integer, or a truth value: ``gp.sum(x, True)`` would be over axis 1.
    """
    if isinstance(axis, bool):
        raise TypeError(f"axis is {axis}; give the number of an axis")
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(index, ndim)
    return index % ndim


def as_array(x: Any, what: str, device: Device | None = None) -> GPUArray:
    """Return an array as it is, and a number or a list as an array on a device, the current one by default.

    What a list holds is written in the program, so its copy is no surprise. A NumPy array may be large: its copy has to
    be asked for.

    Raises
    ------
    TypeError
        If it is a NumPy array, or nothing that an array is made of.
    """
    # What `fuse` traces only looks like these, and must be refused: it takes over where that fails.
    if type(x) is GPUArray:
        return x
    if issubclass(type(x), _HOST):
        # The module that joins arrays in lists stands on the operators.
        from pygpukit.ops.shape.making import asarray

        return asarray(x, device=device)
    hint = "pygpukit.from_numpy()" if isinstance(x, np.ndarray) else "pygpukit.asarray()"
    raise TypeError(f"{what} takes GPUArrays, numbers and lists, not {type(x).__name__}; convert it with {hint}")


def as_arrays(what: str, *values: Any) -> tuple[GPUArray, ...]:
    """Return several, on the device of the first array among them."""
    for x in values:
        if type(x) is not GPUArray:
            break
    else:
        return values
    device = common_device(values)
    return tuple(as_array(x, what, device) for x in values)
