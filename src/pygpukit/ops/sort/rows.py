"""The operators of sorting and searching, by module."""

from __future__ import annotations

from pygpukit.ops.sort import order, quantiles, search, sets

__all__ = ["order", "quantiles", "search", "sets"]
