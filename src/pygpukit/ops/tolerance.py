"""How far a kernel may be from its NumPy reference, per operator and result type, with the reason.

Tolerances are in units in the last place (ulp) of the result type; 0 means bit-equal, NaN equal to NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from pygpukit.dtypes import DataType
from pygpukit.errors import DTypeError
from pygpukit.ops.table import TABLE


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest distance from the reference.

    Attributes
    ----------
    ulp
        In units in the last place of the result; for complex results, of the larger part.
    reason
        Why the two may differ at all.
    """

    ulp: float
    reason: str


_EXACT = Tolerance(0, "one correctly rounded operation, or none")
_SMALL = Tolerance(1, "computed in float32 on both sides, then rounded: a tie may fall either way")

# Maximum errors of CUDA's math library plus those NumPy's own loops document or show.
_FUNCTIONS: dict[str, tuple[float, float]] = {
    "exp": (4, 3), "exp2": (4, 3), "expm1": (4, 3), "log": (5, 3), "log2": (4, 3), "log10": (4, 3), "log1p": (4, 3),
    "rsqrt": (2, 3), "cbrt": (3, 3), "hypot": (4, 4), "sin": (4, 4), "cos": (4, 4), "tan": (6, 5), "asin": (5, 4),
    "acos": (5, 4), "atan": (5, 4), "atan2": (6, 5), "sinh": (6, 4), "cosh": (5, 4), "tanh": (5, 4), "asinh": (6, 5),
    "acosh": (6, 5), "atanh": (6, 5), "erf": (4, 3), "sigmoid": (6, 5), "silu": (8, 6), "gelu": (10, 8), "pow": (10, 6),
    "lerp": (2, 2),
}  # fmt: skip
_FUNCTION_REASON = "CUDA's and NumPy's function libraries each round within a few ulp"

_COMPLEX: dict[str, tuple[float, float]] = {
    "div": (4, 4), "reciprocal": (4, 4), "abs": (4, 4), "sign": (4, 4), "lerp": (4, 4), "pow": (64, 4096),
    "expm1": (8, 16), "log1p": (8, 4096), "tan": (16, 64), "tanh": (16, 64),
}  # fmt: skip
_COMPLEX_DEFAULT = (8.0, 16.0)
_COMPLEX_REASON = "several rounded steps; complex64 functions run in double here and in float in NumPy"


def tolerance(name: str, out: DataType) -> Tolerance:
    """Return the tolerance of operator ``name`` with a result of type ``out``.

    Examples
    --------
    >>> from pygpukit.dtypes import dtype
    >>> tolerance("add", dtype("float32")).ulp
    0
    """
    row = TABLE.get(name)
    if row is None:
        raise DTypeError(f"there is no elementwise operator named {name!r}")
    if out.kind in "biu":
        return _EXACT
    if out.kind == "c" or (name == "abs" and out.kind == "f"):
        narrow, wide = _COMPLEX.get(name, _COMPLEX_DEFAULT if name in _FUNCTIONS or name == "sqrt" else (0.0, 0.0))
        ulp = narrow if out.itemsize < 16 else wide
        return Tolerance(ulp, _COMPLEX_REASON) if ulp else _EXACT
    if name not in _FUNCTIONS:
        return _EXACT
    if out.itemsize < 4:
        return _SMALL
    narrow, wide = _FUNCTIONS[name]
    return Tolerance(narrow if out.itemsize == 4 else wide, _FUNCTION_REASON)
