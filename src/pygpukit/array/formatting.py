"""Printing arrays: the data, shortened, with type and device."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray

_EDGE = 3
_WHOLE = 1000


def _edges(x: GPUArray, axis: int) -> np.ndarray[Any, Any]:
    """The elements at the edges of this axis and those after it."""
    if axis == x.ndim:
        return x.to_numpy()
    length = x.shape[axis]
    if length <= 2 * _EDGE + 1:
        return _edges(x, axis + 1)
    # Every axis keeps one element more than is printed, so that NumPy itself writes the dots.
    head = x._slice(axis, 0, _EDGE + 1, 1)
    tail = x._slice(axis, length - _EDGE, _EDGE, 1)
    return np.concatenate([_edges(head, axis + 1), _edges(tail, axis + 1)], axis=axis)


def _data(x: GPUArray, prefix: str, separator: str) -> str:
    shortened = x.size > _WHOLE
    host = _edges(x, 0) if shortened else x.to_numpy()
    if host.dtype.kind == "V" or host.dtype.name.startswith(("bfloat", "float8")):
        host = host.astype(np.float32)
    threshold = 0 if shortened else _WHOLE
    return np.array2string(host, separator=separator, prefix=prefix, threshold=threshold, edgeitems=_EDGE)


def describe(self: GPUArray) -> str:
    """``repr``: data, shape when the data does not show it, type and device."""
    prefix = "GPUArray("
    d = self.device
    place = d.kind if d.kind == "cpu" else f"{d.kind}:{d.index}"
    shape = f", shape={tuple(self.shape)}" if self.size > _WHOLE or self.size == 0 else ""
    data = "[]" if self.size == 0 else _data(self, prefix, ", ")
    return f"{prefix}{data}{shape}, dtype={self.dtype.name}, device='{place}')"


def text(self: GPUArray) -> str:
    """``str``: the data alone."""
    return "[]" if self.size == 0 else _data(self, "", " ")
