"""The functions of shapes, by module."""

from __future__ import annotations

from pygpukit.ops.shape import splitting, views

__all__ = ["splitting", "views"]
