"""What sorting gives, as NumPy computes it: stable, NaN last in ascending order and first in descending order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy._core.multiarray import count_nonzero

from pygpukit.dtypes import dtype

Array: TypeAlias = np.ndarray[Any, Any]
# Some of these sort by their bits in NumPy.
_SMALL = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})


def comparable(x: Array) -> Array:
    """Return an array whose order NumPy knows: small floats as float32, which holds them all."""
    if x.dtype.isbuiltin == 1:
        return x
    wide: Array = x.astype(np.float32) if dtype(x.dtype).name in _SMALL else x
    return wide


def argsort(x: Array, axis: int | None = -1, descending: bool = False) -> Array:
    """Return the positions that sort ``x``; equal elements stay in their order."""
    y = comparable(x)
    if axis is None:
        y, axis = y.reshape(-1), 0
    if not descending:
        return np.argsort(y, axis, kind="stable").astype(np.int64, copy=False)
    n = y.shape[axis]
    order: Array = np.flip(n - 1 - np.argsort(np.flip(y, axis), axis, kind="stable"), axis)
    return order.astype(np.int64, copy=False)


def sort(x: Array, axis: int | None = -1, descending: bool = False) -> Array:
    """Return the elements of ``x`` in order."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    write = None if descending else sorter(x.dtype)
    if write is None:
        return np.take_along_axis(x, argsort(x, axis, descending), axis)
    made = np.empty_like(x)
    if x.size:
        write(x, axis, made)
    return made


def sorter(kind: np.dtype[Any]) -> Callable[[Array, int, Array], None] | None:
    """Return what writes the elements of an array of a type in order; None where NumPy does not sort the type."""
    if kind.isbuiltin != 1:
        return None
    return _sort_integers if kind.kind in "biu" else _sort_floats if kind.kind == "f" else _sort_complex


def _sort_integers(x: Array, axis: int, out: Array) -> None:
    out[...] = x
    out.sort(axis)


def _sort_complex(x: Array, axis: int, out: Array) -> None:
    out[...] = x
    out.sort(axis, kind="stable")


def _sort_floats(x: Array, axis: int, out: Array) -> None:
    # Not stable is faster. Of equal floats only zeros and NaNs can be told apart: those stay in order.
    if count_nonzero(x) >= x.size - 1:
        out[...] = x
        out.sort(axis)
        last = out[-1] if out.ndim == 1 else out.take(-1, axis)
        if last == last if out.ndim == 1 else (last == last).all():
            return
    _sort_complex(x, axis, out)


def topk(x: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """Return the k largest or smallest elements, in order, and their positions; of equal ones the first."""
    index = argsort(x, axis, largest)
    index = np.take(index, range(k), axis)
    return np.take_along_axis(x, index, axis), index
