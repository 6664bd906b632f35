"""Python's part of basic indexing: assignment writes through views, and objects that mean an int are asked for it."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import asarray
from pygpukit.array.creation import fill
from pygpukit.errors import ShapeError


def setitem(self: GPUArray, key: Any, value: Any) -> None:
    """Write a number or an array that broadcasts into the elements `key` names."""
    view = self[key]
    if type(value) in (bool, int, float, complex):
        fill(view, value)
        return
    # NumPy scalars are arrays here: some of them are Python numbers too, but carry a type.
    source = asarray(value, device=self.device)
    if source.ndim > view.ndim and all(n == 1 for n in source.shape[: source.ndim - view.ndim]):
        source = source.reshape(source.shape[source.ndim - view.ndim :])
    if source.shape != view.shape:
        try:
            source = source._broadcast_to(view.shape)
        except ShapeError:
            raise ShapeError(
                f"cannot assign an array of shape {tuple(source.shape)} to a selection of shape {tuple(view.shape)}"
            ) from None
    _native.apply("copy", (source,), view)


def integer(item: Any) -> int:
    """The index that an object other than an int means; asked by the native part of indexing."""
    if isinstance(item, bool | np.bool_) or (isinstance(item, np.ndarray) and item.dtype == np.bool_):
        raise IndexError("boolean masks are not supported yet; an array is indexed by ints, slices, Ellipsis and None")
    try:
        return operator.index(item)
    except TypeError:
        raise IndexError(
            f"an array is indexed by ints, slices, Ellipsis and None, not by {type(item).__name__}; "
            "integer arrays and masks are not supported yet"
        ) from None
