"""What functions of shapes take: arrays, and beside them numbers and lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, Device, GPUArray
from pygpukit.dtypes import DTypeLike, dtype
from pygpukit.errors import DeviceError, DTypeError
from pygpukit.ops.operands import as_array, common_device
from pygpukit.ops.promotion import Input, promote

__all__ = ["array_of", "assign", "axes_of", "common_device", "common_type", "need"]


def need(x: Any, what: str) -> GPUArray:
    """Return an array, made of a number or a list where it is none."""
    return x if isinstance(x, GPUArray) else as_array(x, what)


def axes_of(axes: Any, ndim: int, *, repeated: bool = False) -> tuple[int, ...]:
    """Return an axis or several, each counted from the first."""
    try:
        found: tuple[int, ...] = normalize_axis_tuple(axes, ndim, allow_duplicate=repeated)
    except OverflowError:
        raise np.exceptions.AxisError(f"an axis of {axes} is out of bounds for array of dimension {ndim}") from None
    return found


def array_of(x: Any, device: Device | None, what: str) -> GPUArray:
    """Return an array as it is, and numbers and lists of them as an array on a device.

    Raises
    ------
    TypeError
        If it is a NumPy array, which is not copied silently.
    """
    if isinstance(x, GPUArray):
        if device is not None and x.device._number != device._number:
            raise DeviceError(f"{what}: the arrays live on different devices; copy one over first")
        return x
    return as_array(x, what, device)


def common_type(arrays: Iterable[GPUArray], wanted: DTypeLike | None, casting: str, what: str) -> DataType:
    """Return the element type of joined arrays: NumPy's common type, or the one asked for where casting allows it.

    Raises
    ------
    DTypeError
        If an element type may not be cast to the wanted one.
    """
    kinds = [x.dtype for x in arrays]
    if wanted is None:
        return kinds[0] if len(set(kinds)) == 1 else promote(kinds)
    target = dtype(wanted)
    for kind in kinds:
        check_cast(kind, target, casting, what)
    return target


def check_cast(kind: DataType, target: DataType, casting: str, what: str) -> None:
    """Refuse a cast that a rule does not allow; small floats count as float16 does."""
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe", "same_value"):
        raise ValueError(f"casting must be one of 'no', 'equiv', 'safe', 'same_kind', or 'unsafe', not {casting!r}")
    if casting == "unsafe" or kind is target:
        return
    if casting in ("no", "equiv") or not _castable(kind, target, casting):
        raise DTypeError(f"{what}: cannot cast from {kind.name} to {target.name} according to the rule {casting!r}")


def _castable(kind: Input, target: DataType, casting: Any) -> bool:
    from pygpukit.ops.promotion import _numpy

    return bool(np.can_cast(_numpy(kind), _numpy(target), casting))


def assign(target: GPUArray, value: GPUArray) -> None:
    """Write an array that broadcasts into another, converting its elements."""
    if target.size:
        _native.apply("copy", (value if value.shape == target.shape else value._broadcast_to(target.shape),), target)
