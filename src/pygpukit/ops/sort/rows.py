"""The operators of sorting and searching, by module."""

from __future__ import annotations

from pygpukit.ops.sort import counts, order, quantiles, search, sets, top

__all__ = ["counts", "order", "quantiles", "search", "sets", "top"]
