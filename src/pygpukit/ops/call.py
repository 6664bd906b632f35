"""One kernel launch as data: what a planner returns and the runtime submits."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pygpukit.dtypes import DataType

Argument: TypeAlias = str | int | bytes
"""A buffer's name (its address is passed), a signed 64-bit integer, or a struct passed by value."""

MAX_DIMENSIONS = 8
MAX_GRID = 2**31 - 1


class KernelCall(NamedTuple):
    """A kernel with its launch shape and arguments in order.

    Attributes
    ----------
    source, entry
        CUDA source and the name of its kernel.
    grid, block
        Launch dimensions; the grid is one-dimensional.
    arguments
        In the kernel's order.
    """

    source: str
    entry: str
    grid: int
    block: int
    arguments: tuple[Argument, ...]


class Scratch(NamedTuple):
    """A temporary buffer that calls name among their arguments."""

    name: str
    dtype: DataType
    size: int


def pack_nd(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> bytes:
    """Return the bytes of ``Nd<K>``: the shape and, per operand (output first), its element strides.

    Raises
    ------
    ValueError
        If there are more than eight dimensions or a stride list has another length.
    """
    if len(shape) > MAX_DIMENSIONS or any(len(s) != len(shape) for s in strides):
        lengths = ", ".join(str(len(s)) for s in strides)
        raise ValueError(
            f"cannot pack {len(shape)} dimensions with stride lists of {lengths}: at most {MAX_DIMENSIONS} dimensions, "
            "and one stride for each; collapse axes first"
        )
    rows = [tuple(row) + (0,) * (MAX_DIMENSIONS - len(row)) for row in (shape, *strides)]
    return struct.pack(f"<ii{MAX_DIMENSIONS * len(rows)}q", len(shape), 0, *(value for row in rows for value in row))
