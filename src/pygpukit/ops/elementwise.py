"""The elementwise operators as functions: one built-in function per row of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops import dispatch
from pygpukit.ops.table import TABLE

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_or",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clamp",
    "clip",
    "conj",
    "conjugate",
    "copysign",
    "cos",
    "cosh",
    "div",
    "divide",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "gelu",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "lerp",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "multiply",
    "neg",
    "negative",
    "not_equal",
    "pow",
    "power",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "right_shift",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
    "where",
]

Operator: TypeAlias = Callable[..., GPUArray]

# Parameter names that say more than x, y, z.
_PARAMETERS = {
    "atan2": ("y", "x"),
    "clamp": ("x", "low", "high"),
    "copysign": ("x", "sign"),
    "left_shift": ("x", "bits"),
    "lerp": ("start", "end", "weight"),
    "pow": ("base", "exponent"),
    "right_shift": ("x", "bits"),
    "where": ("condition", "x", "y"),
}

_DOC = """{summary}

    Parameters
    ----------
    {operands} : GPUArray or number
        At least one array; they broadcast, and numbers take the arrays' type where it can hold them.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray
        On the device of the operands.

    Notes
    -----
    Determinism on a GPU: ``{determinism}``; {meaning}.
"""

_MEANINGS = {
    "not_guaranteed": "the bits may differ from run to run",
    "run_to_run": "the bits are the same in every run with the same shapes",
    "batch_invariant": "the bits are the same in every run and whatever the shape around an element",
}


def _operator(name: str) -> Operator:
    row = TABLE[name]
    operands = _PARAMETERS.get(name, ("x", "y", "z")[: row.arity])
    meaning = _MEANINGS[row.determinism]
    doc = _DOC.format(
        summary=row.doc, operands=", ".join(operands), determinism=row.determinism, meaning=meaning
    ).replace("\n    ", "\n")
    return _native.operator(name, row.arity, f"{', '.join(operands)}, /, *, out=None, stream=None", doc)


dispatch.install()

add = _operator("add")
sub = _operator("sub")
mul = _operator("mul")
div = _operator("div")
floor_divide = _operator("floor_divide")
mod = _operator("mod")
pow = _operator("pow")
neg = _operator("neg")
abs = _operator("abs")
sign = _operator("sign")
reciprocal = _operator("reciprocal")
square = _operator("square")
lerp = _operator("lerp")
maximum = _operator("maximum")
minimum = _operator("minimum")
fmax = _operator("fmax")
fmin = _operator("fmin")
clamp = _operator("clamp")
where = _operator("where")
relu = _operator("relu")
copysign = _operator("copysign")
exp = _operator("exp")
exp2 = _operator("exp2")
expm1 = _operator("expm1")
log = _operator("log")
log2 = _operator("log2")
log10 = _operator("log10")
log1p = _operator("log1p")
sqrt = _operator("sqrt")
rsqrt = _operator("rsqrt")
cbrt = _operator("cbrt")
hypot = _operator("hypot")
sin = _operator("sin")
cos = _operator("cos")
tan = _operator("tan")
asin = _operator("asin")
acos = _operator("acos")
atan = _operator("atan")
atan2 = _operator("atan2")
sinh = _operator("sinh")
cosh = _operator("cosh")
tanh = _operator("tanh")
asinh = _operator("asinh")
acosh = _operator("acosh")
atanh = _operator("atanh")
erf = _operator("erf")
sigmoid = _operator("sigmoid")
silu = _operator("silu")
gelu = _operator("gelu")
floor = _operator("floor")
ceil = _operator("ceil")
trunc = _operator("trunc")
round = _operator("round")
equal = _operator("equal")
not_equal = _operator("not_equal")
less = _operator("less")
less_equal = _operator("less_equal")
greater = _operator("greater")
greater_equal = _operator("greater_equal")
logical_and = _operator("logical_and")
logical_or = _operator("logical_or")
logical_xor = _operator("logical_xor")
logical_not = _operator("logical_not")
isnan = _operator("isnan")
isinf = _operator("isinf")
isfinite = _operator("isfinite")
bitwise_and = _operator("bitwise_and")
bitwise_or = _operator("bitwise_or")
bitwise_xor = _operator("bitwise_xor")
invert = _operator("invert")
left_shift = _operator("left_shift")
right_shift = _operator("right_shift")
real = _operator("real")
imag = _operator("imag")
conj = _operator("conj")

# NumPy's names for the same operators.
subtract = sub
multiply = mul
divide = div
true_divide = div
remainder = mod
power = pow
negative = neg
absolute = abs
clip = clamp
arcsin = asin
arccos = acos
arctan = atan
arctan2 = atan2
arcsinh = asinh
arccosh = acosh
arctanh = atanh
rint = round
conjugate = conj
bitwise_invert = invert

_operator("copy")
