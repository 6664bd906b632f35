"""Basic indexing: ints, slices, Ellipsis and None give views; assignment writes through them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import asarray
from pygpukit.array.creation import fill
from pygpukit.errors import ShapeError


def getitem(self: GPUArray, key: Any) -> GPUArray:
    """A view of the elements `key` names."""
    keys = _expand(self, key if isinstance(key, tuple) else (key,))
    # `axis` counts in the view, `own` in the array itself, as messages do.
    view, axis, own = self, 0, 0
    new: list[int] = []
    for item in keys:
        if item is None:
            new.append(axis + len(new))
            continue
        if isinstance(item, slice):
            start, stop, step = item.indices(self.shape[own])
            count = len(range(start, stop, step))
            view = view._slice(axis, start if count else 0, count, step)
            axis += 1
        else:
            view = view._select(axis, _index(item, own, self.shape[own]))
        own += 1
    # New axes come last: there is a limit to their number, and integers have removed some by now.
    for place in new:
        view = view._expand(place)
    return view


def setitem(self: GPUArray, key: Any, value: Any) -> None:
    """Write a number or an array that broadcasts into the elements `key` names."""
    view = getitem(self, key)
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


def _index(item: Any, axis: int, length: int) -> int:
    try:
        index = operator.index(item)
    except TypeError:
        what = "a boolean mask" if _is_mask(item) else type(item).__name__
        raise IndexError(
            f"an array is indexed by ints, slices, Ellipsis and None, not by {what}; "
            "integer arrays and masks are not supported yet"
        ) from None
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range for axis {axis} of length {length}")
    return index + length if index < 0 else index


def _is_mask(item: Any) -> bool:
    return isinstance(item, bool | np.bool_) or (isinstance(item, np.ndarray) and item.dtype == np.bool_)


def _expand(self: GPUArray, keys: tuple[Any, ...]) -> list[Any]:
    """Replace Ellipsis, and the axes not named, by full slices."""
    if any(_is_mask(k) for k in keys):
        raise IndexError("boolean masks are not supported yet; an array is indexed by ints, slices, Ellipsis and None")
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    named = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if len(dots) > 1:
        raise IndexError("an index can have only one Ellipsis")
    if named > self.ndim:
        raise IndexError(f"too many indices: the array has {self.ndim} dimensions, but {named} were indexed")
    rest = [slice(None)] * (self.ndim - named)
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *rest, *keys[at + 1 :]]
