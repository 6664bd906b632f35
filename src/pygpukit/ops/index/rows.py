"""The operators of indexing, and the keys of arrays that they serve."""

from __future__ import annotations

from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array import indexing
from pygpukit.dtypes import dtype
from pygpukit.ops.index import at, copying, masks, places, positions
from pygpukit.ops.index.gather import gather, gathered
from pygpukit.ops.index.keys import Masked, Places, parse, refuse_shared
from pygpukit.ops.index.scatter import scattered

__all__ = ["at", "copying", "getitem", "masks", "places", "positions", "setitem"]


_BOOL = dtype("bool")
_READ = (dtype("int64"), dtype("int32"))
"""Types of index arrays that kernels read."""


def getitem(x: GPUArray, key: Any) -> GPUArray:
    """Return the elements that a key with index arrays or masks names, as a copy."""
    if type(key) is GPUArray:
        if key.dtype in _READ:
            if x.ndim and x.shape[0]:
                result: GPUArray = gather(x, key)
                return result
        elif key.dtype is _BOOL and key.shape == x.shape and x.ndim:
            return masks.selected(Masked(x, 0, key, None))
    found = parse(x, key)
    if isinstance(found, GPUArray):
        return found
    if isinstance(found, Masked):
        return masks.selected(found)
    if found.indices:
        return gathered(found.view, found.indices, found.before)
    # True adds an axis of one element, False one of none.
    view = found.view._expand(found.before)
    return view._slice(found.before, 0, found.block[0], 1).copy()


def setitem(x: GPUArray, key: Any, value: Any) -> None:
    """Write a number or an array that broadcasts to the elements that a key with index arrays or masks names."""
    refuse_shared(x)
    found: GPUArray | Places | Masked
    if type(key) is GPUArray and key.dtype in _READ and x.ndim and x.shape[0]:
        found = Places(x, 0, [key], key.shape)
    else:
        found = parse(x, key)
    if isinstance(found, GPUArray):
        _assign(found, value)
        return
    if isinstance(found, Masked):
        masks.assign(found, value)
        return
    source = indexing.spread(indexing.elements_for(x, value), found.shape)
    if source.size == 0:
        return
    if found.indices:
        scattered(found.view, source, found.indices, found.before)
    else:
        _assign(found.view._expand(found.before), source)


def _assign(view: GPUArray, value: Any) -> None:
    indexing.setitem(view, ..., value)


indexing.install(getitem, setitem)
