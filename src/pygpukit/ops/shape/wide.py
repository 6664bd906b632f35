"""Arrays seen as fewer, larger elements: where bits only move, the larger the faster."""

from __future__ import annotations

from collections.abc import Iterable

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import dtype

SMALLEST = 1 << 16
"""Bytes from which a larger element is worth the views."""

_KINDS = ((16, dtype("complex128")), (8, dtype("uint64")), (4, dtype("uint32")), (2, dtype("uint16")))


def widest(x: GPUArray, lengths: Iterable[int]) -> DataType | None:
    """Return the type that ``x`` may be seen as where these numbers of elements must stay whole; None for its own.

    ``x`` is contiguous.
    """
    item = x.itemsize
    if x.nbytes < SMALLEST or item == 16:
        return None
    sizes = [n * item for n in lengths]
    for size, kind in _KINDS:
        if size <= item:
            return None
        if x._alignment >= size and all(n % size == 0 for n in sizes):
            return kind
    return None
