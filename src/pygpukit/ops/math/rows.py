"""The functions of mathematics made of other operators, by module."""

from __future__ import annotations

from pygpukit.ops.math import comparisons, elementwise, numeric, types

__all__ = ["comparisons", "elementwise", "numeric", "types"]
