"""The functions of shapes, by module."""

from __future__ import annotations

from pygpukit.ops.shape import (
    join,
    joining,
    making,
    moves,
    padding,
    ranges,
    repeating,
    spaced,
    splitting,
    triangles,
    views,
    windows,
)

__all__ = [
    "join", "joining", "making", "moves", "padding", "ranges", "repeating", "spaced", "splitting", "triangles", "views",
    "windows",
]  # fmt: skip
