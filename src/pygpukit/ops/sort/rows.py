"""The operators of sorting and searching, by module."""

from __future__ import annotations

from pygpukit.ops.sort import counts, grids, order, quantiles, search, sets, top

__all__ = ["counts", "grids", "order", "quantiles", "search", "sets", "top"]
