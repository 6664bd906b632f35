"""NumPy's and the array API's other names of elementwise operators: the same objects."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "abs": ("absolute",),
    "acos": ("arccos",),
    "acosh": ("arccosh",),
    "asin": ("arcsin",),
    "asinh": ("arcsinh",),
    "atan": ("arctan",),
    "atan2": ("arctan2",),
    "atanh": ("arctanh",),
    "conj": ("conjugate",),
    "div": ("divide", "true_divide"),
    "invert": ("bitwise_invert", "bitwise_not"),
    "left_shift": ("bitwise_left_shift",),
    "mod": ("remainder",),
    "mul": ("multiply",),
    "neg": ("negative",),
    "pow": ("power",),
    "right_shift": ("bitwise_right_shift",),
    "sub": ("subtract",),
    "trunc": ("fix",),
})  # fmt: skip
"""By operator."""
