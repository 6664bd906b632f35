"""The functions of mathematics made of other operators, by module."""

from __future__ import annotations

from pygpukit.ops.math import calls, comparisons, elementwise, numeric, polynomials, statistics, types, windows

__all__ = ["calls", "comparisons", "elementwise", "numeric", "polynomials", "statistics", "types", "windows"]
