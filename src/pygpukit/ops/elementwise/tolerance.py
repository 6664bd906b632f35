"""How far a kernel may be from its NumPy reference, per operator and common type, with the reason.

Tolerances are in units in the last place (ulp) of the result type; 0 means bit-equal, NaN equal to NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from pygpukit.dtypes import DataType
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.table import TABLE


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest distance from the reference.

    Attributes
    ----------
    ulp
        In units in the last place of the result; for complex results, of the larger part.
    reason
        Why the two may differ at all.
    floor
        Absolute difference that is allowed besides.
    """

    ulp: float
    reason: str
    floor: float = 0.0


_EXACT = Tolerance(0, "one correctly rounded operation, or none")
_SMALL_REASON = "computed in float32 on both sides, then rounded: a tie may fall either way"

# float32 and float64: the maximum errors of CUDA's math library plus those NumPy's own loops document or show.
_FUNCTIONS: dict[str, tuple[float, float]] = {
    "exp": (4, 5), "exp2": (4, 5), "expm1": (4, 5), "log": (5, 5), "log2": (4, 5), "log10": (4, 6), "log1p": (4, 5),
    "rsqrt": (2, 3), "cbrt": (4, 6), "hypot": (4, 4), "sin": (4, 6), "cos": (4, 6), "tan": (6, 6), "asin": (6, 6),
    "acos": (6, 6), "atan": (5, 6), "atan2": (6, 6), "sinh": (6, 6), "cosh": (5, 6), "tanh": (5, 6), "asinh": (6, 7),
    "acosh": (6, 7), "atanh": (6, 7), "erf": (4, 4), "sigmoid": (7, 7), "silu": (8, 8), "gelu": (9, 9), "pow": (8, 6),
    "erfc": (8, 8), "logaddexp": (6, 6), "logaddexp2": (6, 6),
    "gelu_erf": (10, 10), "swiglu": (9, 9), "geglu": (10, 10), "geglu_erf": (11, 11),
}  # fmt: skip
_FUNCTION_REASON = "CUDA's and NumPy's function libraries each round within a few ulp"

# Their float32 reciprocal flushes results under 2^-126, multiplied by one or two arguments that tests keep below 2^8.
_FLUSHED = {"sigmoid": 2.0**-118, "silu": 2.0**-118, "gelu": 2.0**-118, "swiglu": 2.0**-110, "geglu": 2.0**-110}

# Their exponential flushes shares under 2^-126 in types of 16 bits and fewer, where float32 takes erfc.
_FLUSHED_SMALL = {"gelu_erf": 2.0**-118, "geglu_erf": 2.0**-110}

# The activation is rounded before it is multiplied: a unit of it is up to two of the product.
_GATED = frozenset({"swiglu", "geglu", "geglu_erf"})

# Their two terms cancel where the result is near 0.
_CANCELLING = frozenset({"logaddexp", "logaddexp2"})

# complex64 and complex128; complex64 functions run in double on both sides.
_COMPLEX: dict[str, tuple[float, float]] = {
    "mul": (4, 4), "square": (4, 4), "div": (4, 4), "reciprocal": (4, 4), "abs": (4, 4), "sign": (4, 4),
    "pow": (2, 256), "tan": (2, 64), "tanh": (2, 64),
}  # fmt: skip
_COMPLEX_FUNCTION = (2.0, 16.0)
_COMPLEX_REASON = "several rounded steps, some of which NumPy fuses"


def tolerance(name: str, common: DataType) -> Tolerance:
    """Return the tolerance of operator ``name`` on inputs of type ``common``.

    Examples
    --------
    >>> from pygpukit.dtypes import dtype
    >>> tolerance("add", dtype("float32")).ulp
    0
    """
    if name not in TABLE:
        raise DTypeError(f"there is no elementwise operator named {name!r}; the table has {', '.join(TABLE)}")
    wide = common.itemsize >= (16 if common.kind == "c" else 8)
    if common.kind == "c":
        default = _COMPLEX_FUNCTION if name in _FUNCTIONS or name == "sqrt" else (0, 0)
        ulp = _COMPLEX.get(name, default)[wide]
        return Tolerance(ulp, _COMPLEX_REASON) if ulp else _EXACT
    if common.kind != "f" or name not in _FUNCTIONS:
        return _EXACT
    floor = 0.0 if wide else _FLUSHED.get(name, 0.0)
    if name in _CANCELLING:
        floor = 2.0**-51 if wide else 2.0**-22
    if common.itemsize < 4:
        return Tolerance(2 if name in _GATED else 1, _SMALL_REASON, _FLUSHED_SMALL.get(name, floor))
    return Tolerance(_FUNCTIONS[name][wide], _FUNCTION_REASON, floor)
