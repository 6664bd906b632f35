"""Python's part of indexing: assignment writes through views; index arrays and masks are operators of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import asarray
from pygpukit.array.creation import fill, full
from pygpukit.errors import ShapeError

_get: Callable[[GPUArray, Any], GPUArray]
_set: Callable[[GPUArray, Any, Any], None]


def install(get: Callable[[GPUArray, Any], GPUArray], put: Callable[[GPUArray, Any, Any], None]) -> None:
    """Set what reads and writes the elements of keys that name no view; operators are a layer above arrays."""
    global _get, _set
    _get, _set = get, put


def getitem(self: GPUArray, key: Any) -> GPUArray:
    """Return the elements of a key that is not of ints, slices, Ellipsis and None; asked by the native part."""
    return _get(self, key)


def setitem(self: GPUArray, key: Any, value: Any) -> None:
    """Write a number or an array that broadcasts into the elements `key` names."""
    view = self._basic(key)
    if view is None:
        _set(self, key, value)
        return
    if type(value) in (bool, int, float, complex):
        fill(view, value)
        return
    _native.apply("copy", (spread(asarray(value, device=self.device), tuple(view.shape)),), view)


def elements_for(self: GPUArray, value: Any) -> GPUArray:
    """Return what is assigned to elements of an array as an array of its type."""
    if type(value) in (bool, int, float, complex):
        return full((), value, self.dtype, device=self.device)
    # NumPy scalars are arrays here: some of them are Python numbers too, but carry a type.
    return asarray(value, device=self.device).astype(self.dtype, copy=False)


def spread(source: GPUArray, shape: tuple[int, ...]) -> GPUArray:
    """Return an array broadcast to the shape of a selection.

    Raises
    ------
    ShapeError
        If it does not broadcast to it.
    """
    if source.ndim > len(shape) and all(n == 1 for n in source.shape[: source.ndim - len(shape)]):
        source = source.reshape(source.shape[source.ndim - len(shape) :])
    if source.shape != shape:
        try:
            source = source._broadcast_to(shape)
        except ShapeError:
            raise ShapeError(
                f"cannot assign an array of shape {tuple(source.shape)} to a selection of shape {shape}"
            ) from None
    return source
