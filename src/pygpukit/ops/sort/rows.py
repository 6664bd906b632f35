"""The operators of sorting and searching, by module."""

from __future__ import annotations

from pygpukit.ops.sort import order, search, sets

__all__ = ["order", "search", "sets"]
