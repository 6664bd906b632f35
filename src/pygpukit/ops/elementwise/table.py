"""The operator table: one row per elementwise operator, its CUDA expression beside its NumPy reference.

The kernels, the CPU device, the tests and the benchmark all walk ``TABLE``. A row's expression is C++ over ``a``,
``b``, ``c`` of the compute type; its reference takes NumPy arrays of the same type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

Reference = Callable[..., Any]
Weight = Literal["light", "function", "heavy"]
Rule = Literal["promote", "where", "cast"]

_NO_KINDS: Mapping[str, str] = MappingProxyType({})


class Row(NamedTuple):
    """One elementwise operator.

    Attributes
    ----------
    name
        Public name, also part of the kernel's symbol.
    arity
        Number of inputs, 1 to 3.
    expr
        C++ expression of the result over ``a``, ``b``, ``c``.
    numpy
        Reference over NumPy arrays of the compute type.
    rule
        A NumPy ufunc whose loops decide the types, or ``"promote"`` (result and inputs have the promoted type),
        ``"where"`` (the same, without the condition), ``"cast"`` (the output type is free).
    kinds
        Kinds (``b i u f c``) of the common type the operator is defined for.
    flops
        Arithmetic operations per element, for the roofline; a function counts as its usual instruction count.
    doc
        One sentence of documentation.
    weight
        ``"light"`` arithmetic; a ``"function"`` of the math library, which complex64 evaluates in double; ``"heavy"``,
        the same with a long expression, of which a thread evaluates fewer to keep kernels small.
    exprs
        Expressions that replace ``expr`` for a kind of the common type.
    public
        Exported from the package; the others are parts of functions that are.
    by_format
        The result depends on the format of the common type, which the expression may name ``COMMON``, and the reference
        takes small floats as they are.
    """

    name: str
    arity: int
    expr: str
    numpy: Reference
    rule: np.ufunc | Rule
    kinds: str
    flops: int
    doc: str
    weight: Weight = "light"
    exprs: Mapping[str, str] = _NO_KINDS
    public: bool = True
    by_format: bool = False

    def expression(self, kind: str) -> str:
        """Return the C++ expression for a common type of ``kind``."""
        return self.exprs.get(kind, self.expr)


def _power(a: Any, b: Any) -> Any:
    # NumPy raises for integers to negative powers; the truncated reciprocal is what a kernel can give.
    if np.result_type(a, b).kind != "i":
        return np.power(a, b)
    result = np.power(a, np.maximum(b, 0))
    unit = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, unit, result)


def _reciprocal(a: Any) -> Any:
    if np.asarray(a).dtype.kind in "iu":
        return np.where(np.abs(a) == 1, a, 0)
    return np.reciprocal(a)


def _sigmoid(a: Any) -> Any:
    return 1 / (1 + np.exp(-a))


def _gelu(a: Any) -> Any:
    dtype = np.asarray(a).dtype.type
    return a * _sigmoid(a * (a * a * dtype(0.07135481627260025) + dtype(1.5957691216057308)))


def _gelu_erf(a: Any) -> Any:
    # The argument is rounded as the kernel's is: erfc would magnify any difference.
    dtype = np.asarray(a).dtype.type
    return a * dtype(0.5) * _ERFC(a * dtype(-math.sqrt(0.5))).astype(dtype)


def _relu2(a: Any) -> Any:
    r = _relu(a)
    return r * r


def _gated(activation: Reference) -> Reference:
    """An activation of the first operand, rounded to the operands' type, times the second."""

    def apply(a: Any, b: Any) -> Any:
        wide = np.float64 if np.asarray(a).dtype == np.float64 else np.float32
        rounded = np.asarray(activation(np.asarray(a, wide))).astype(np.asarray(a).dtype)
        return rounded.astype(wide) * np.asarray(b, wide)

    return apply


def _rsqrt(a: Any) -> Any:
    # Rounding 1 / sqrt twice would cost float32 an ulp the kernel does not lose.
    wide = np.asarray(a, np.float64) if np.asarray(a).dtype == np.float32 else a
    return 1 / np.sqrt(wide)


def _log1p(a: Any) -> Any:
    a = np.asarray(a)
    if a.dtype.kind != "c":
        return np.log1p(a)
    # NumPy takes the logarithm of |1 + a|, which keeps few digits of a small a.
    x, y = a.real, a.imag
    r = np.hypot(x + 1, y)
    out = np.empty_like(a)
    out.real = np.where((r > 0.5) & (r < 2), np.log1p(x * (x + 2) + y * y) / 2, np.log(r))
    out.imag = np.arctan2(y, x + 1)
    return out


def _of_math(function: Callable[[float], float]) -> Reference:
    """A function of the standard library on arrays."""
    each = np.frompyfunc(function, 1, 1)
    return lambda a: np.asarray(each(a), dtype=np.float64)


_ERFC = _of_math(math.erfc)


def _scalb(a: Any, b: Any) -> Any:
    n = np.nan_to_num(np.clip(b, -5000, 5000)).astype(np.int32)
    return np.ldexp(a, n)


def _finite_or(a: Any, b: Any, c: Any) -> Any:
    return np.where(np.isnan(a), b, np.where(np.isinf(a), np.where(a > 0, c, -np.asarray(c)), a))


def _exponent(a: Any) -> Any:
    return np.where(np.isfinite(a), np.frexp(a)[1], 0)


def _round_scaled(a: Any, b: Any) -> Any:
    return np.rint(a * b) / b


def _relu(a: Any) -> Any:
    return np.where((a > 0) | (a != a), a, np.zeros_like(a))


def _lerp(a: Any, b: Any, t: Any) -> Any:
    return a + t * (b - a)


def _where(c: Any, x: Any, y: Any) -> Any:
    return np.where(c, x, y)


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _real(a: Any) -> Any:
    return np.real(a)


def _imag(a: Any) -> Any:
    return np.imag(a)


def _same(a: Any) -> Any:
    return a


def _whole(function: Reference) -> Reference:
    """Return ``function`` on floats and the identity on integers, in every NumPy version."""

    def apply(a: Any) -> Any:
        return a if np.asarray(a).dtype.kind in "biu" else function(a)

    return apply


_IDENTITY = MappingProxyType({"b": "a", "i": "a", "u": "a"})
_FLOATS = "f"


def _arithmetic() -> list[Row]:
    return [
        Row("add", 2, "add(a, b)", np.add, np.add, "biufc", 1, "Sum; logical or of booleans.", exprs={"b": "a | b"}),
        Row("sub", 2, "sub(a, b)", np.subtract, np.subtract, "iufc", 1, "Difference."),
        Row(
            "mul", 2, "mul(a, b)", np.multiply, np.multiply, "biufc", 1, "Product; logical and of booleans.",
            exprs={"b": "a & b"},
        ),
        Row("div", 2, "div(a, b)", np.true_divide, np.true_divide, "fc", 8, "True quotient.", "function"),
        Row(
            "floor_divide", 2, "floor_divide(a, b)", np.floor_divide, np.floor_divide, "iuf", 16,
            "Quotient rounded down; an integer divided by zero is 0.", "heavy",
        ),
        Row(
            "mod", 2, "mod(a, b)", np.remainder, np.remainder, "iuf", 16,
            "Remainder with the divisor's sign; an integer modulo zero is 0.", "heavy",
        ),
        Row(
            "fmod", 2, "fmod(a, b)", np.fmod, np.fmod, "iuf", 16,
            "Remainder with the dividend's sign; an integer modulo zero is 0.", "heavy",
        ),
        Row(
            "pow", 2, "pow(a, b)", _power, np.power, "iufc", 32,
            "Power; an integer to a negative power is the truncated reciprocal.", "heavy",
        ),
        Row("neg", 1, "neg(a)", np.negative, np.negative, "iufc", 1, "Negation; unsigned integers wrap."),
        Row("abs", 1, "abs(a)", np.absolute, np.absolute, "biufc", 1, "Magnitude; complex gives its real type."),
        Row("sign", 1, "sign(a)", np.sign, np.sign, "iufc", 2, "Sign; a complex number divided by its magnitude."),
        Row("reciprocal", 1, "reciprocal(a)", _reciprocal, np.reciprocal, "iufc", 6,
            "1 / a; truncated for integers, 0 for integer 0.", "function"),
        Row("square", 1, "mul(a, a)", np.square, np.square, "iufc", 1, "a * a."),
        Row("lerp", 3, "lerp(a, b, c)", _lerp, "promote", _FLOATS, 3, "a + c * (b - a)."),
        Row("gcd", 2, "gcd(a, b)", np.gcd, np.gcd, "iu", 64, "Greatest common divisor.", "heavy"),
        Row("lcm", 2, "lcm(a, b)", np.lcm, np.lcm, "iu", 64, "Least common multiple; wraps.", "heavy"),
    ]  # fmt: skip


def _selection() -> list[Row]:
    return [
        Row("maximum", 2, "maximum(a, b)", np.maximum, np.maximum, "biufc", 1, "Larger value; NaN if either is."),
        Row("minimum", 2, "minimum(a, b)", np.minimum, np.minimum, "biufc", 1, "Smaller value; NaN if either is."),
        Row("fmax", 2, "fmax(a, b)", np.fmax, np.fmax, "biufc", 1, "Larger value; a NaN yields to a number."),
        Row("fmin", 2, "fmin(a, b)", np.fmin, np.fmin, "biufc", 1, "Smaller value; a NaN yields to a number."),
        Row("clamp", 3, "clamp(a, b, c)", _clamp, "promote", "iufc", 2, "minimum(maximum(a, b), c)."),
        Row("where", 3, "a ? b : c", _where, "where", "biufc", 1, "b where the condition a holds, c elsewhere."),
        Row("relu", 1, "relu(a)", _relu, "promote", "iuf", 1, "a where positive, else 0; NaN stays."),
        Row(
            "copysign",
            2,
            "copysign(a, b)",
            np.copysign,
            np.copysign,
            _FLOATS,
            1,
            "Magnitude of a, sign of b (a float16 NaN counts as positive on CUDA).",
        ),
        Row(
            "signbit",
            1,
            "signbit(a)",
            np.signbit,
            np.signbit,
            _FLOATS,
            1,
            "The sign bit is set (not of a float16 NaN on CUDA).",
        ),
        Row(
            "heaviside",
            2,
            "heaviside(a, b)",
            np.heaviside,
            np.heaviside,
            _FLOATS,
            3,
            "0 below zero, 1 above, b at zero; NaN of a stays.",
        ),
        Row(
            "nextafter",
            2,
            "next_after<COMMON>(a, b)",
            np.nextafter,
            np.nextafter,
            _FLOATS,
            4,
            "The next number of the type from a towards b.",
            by_format=True,
        ),
    ]


def _exponential() -> list[Row]:
    return [
        Row("exp", 1, "exp<LOW>(a)", np.exp, np.exp, "fc", 10, "e to the power a.", "function"),
        Row("exp2", 1, "exp2(a)", np.exp2, np.exp2, "fc", 6, "2 to the power a.", "function"),
        Row("expm1", 1, "expm1(a)", np.expm1, np.expm1, "fc", 16, "exp(a) - 1, accurate near 0.", "heavy"),
        Row("log", 1, "log(a)", np.log, np.log, "fc", 16, "Natural logarithm.", "function"),
        Row("log2", 1, "log2(a)", np.log2, np.log2, "fc", 16, "Logarithm to base 2.", "function"),
        Row("log10", 1, "log10(a)", np.log10, np.log10, "fc", 16, "Logarithm to base 10.", "function"),
        Row("log1p", 1, "log1p(a)", _log1p, np.log1p, "fc", 20, "log(1 + a), accurate near 0.", "heavy"),
        Row(
            "logaddexp", 2, "logaddexp(a, b)", np.logaddexp, np.logaddexp, _FLOATS, 32, "log(exp(a) + exp(b)).", "heavy"
        ),
        Row(
            "logaddexp2",
            2,
            "logaddexp2(a, b)",
            np.logaddexp2,
            np.logaddexp2,
            _FLOATS,
            32,
            "log2(2**a + 2**b).",
            "heavy",
        ),
        Row("sqrt", 1, "sqrt(a)", np.sqrt, np.sqrt, "fc", 8, "Square root.", "function"),
        Row("rsqrt", 1, "rsqrt(a)", _rsqrt, np.tanh, _FLOATS, 4, "1 / sqrt(a).", "function"),
        Row("cbrt", 1, "cbrt(a)", np.cbrt, np.cbrt, _FLOATS, 16, "Cube root.", "heavy"),
        Row("hypot", 2, "hypot(a, b)", np.hypot, np.hypot, _FLOATS, 16, "sqrt(a*a + b*b) without overflow.", "heavy"),
    ]


def _trigonometric() -> list[Row]:
    return [
        Row("sin", 1, "sin(a)", np.sin, np.sin, "fc", 20, "Sine of radians.", "heavy"),
        Row("cos", 1, "cos(a)", np.cos, np.cos, "fc", 20, "Cosine of radians.", "heavy"),
        Row("tan", 1, "tan(a)", np.tan, np.tan, "fc", 30, "Tangent of radians.", "heavy"),
        Row("asin", 1, "asin(a)", np.arcsin, np.arcsin, "fc", 16, "Inverse sine.", "heavy"),
        Row("acos", 1, "acos(a)", np.arccos, np.arccos, "fc", 16, "Inverse cosine.", "heavy"),
        Row("atan", 1, "atan(a)", np.arctan, np.arctan, "fc", 16, "Inverse tangent.", "heavy"),
        Row("atan2", 2, "atan2(a, b)", np.arctan2, np.arctan2, _FLOATS, 24, "Angle of the point (b, a).", "heavy"),
        Row("sinh", 1, "sinh(a)", np.sinh, np.sinh, "fc", 20, "Hyperbolic sine.", "heavy"),
        Row("cosh", 1, "cosh(a)", np.cosh, np.cosh, "fc", 16, "Hyperbolic cosine.", "heavy"),
        Row("tanh", 1, "tanh<LOW>(a)", np.tanh, np.tanh, "fc", 16, "Hyperbolic tangent.", "function"),
        Row("asinh", 1, "asinh(a)", np.arcsinh, np.arcsinh, "fc", 24, "Inverse hyperbolic sine.", "heavy"),
        Row("acosh", 1, "acosh(a)", np.arccosh, np.arccosh, "fc", 24, "Inverse hyperbolic cosine.", "heavy"),
        Row("atanh", 1, "atanh(a)", np.arctanh, np.arctanh, "fc", 24, "Inverse hyperbolic tangent.", "heavy"),
    ]


def _activation() -> list[Row]:
    return [
        Row("erf", 1, "erf(a)", _of_math(math.erf), np.tanh, _FLOATS, 20, "Error function.", "heavy"),
        Row(
            "erfc",
            1,
            "erfc(a)",
            _of_math(math.erfc),
            np.tanh,
            _FLOATS,
            20,
            "1 - erf(a), accurate for large a.",
            "heavy",
        ),
        Row("sigmoid", 1, "sigmoid<LOW>(a)", _sigmoid, np.tanh, _FLOATS, 14, "1 / (1 + exp(-a)).", "function"),
        Row("silu", 1, "silu<LOW>(a)", lambda a: a * _sigmoid(a), np.tanh, _FLOATS, 15, "a * sigmoid(a).", "function"),
        Row(
            "gelu", 1, "gelu<LOW>(a)", _gelu, np.tanh, _FLOATS, 18, "Gaussian error linear unit, tanh form.", "function"
        ),
        Row("gelu_erf", 1, "gelu_erf<LOW>(a)", _gelu_erf, np.tanh, _FLOATS, 24,
            "Gaussian error linear unit, exact form.", "function", public=False),
        Row("relu2", 1, "relu2(a)", _relu2, "promote", _FLOATS, 2, "relu(a) squared; NaN stays."),
        Row("swiglu", 2, "mul(rounded<COMMON>(silu<LOW>(a)), b)", _gated(lambda a: a * _sigmoid(a)), "promote", _FLOATS,
            16, "silu(a), rounded to the operands' type, times b.", "function", public=False, by_format=True),
        Row("geglu", 2, "mul(rounded<COMMON>(gelu<LOW>(a)), b)", _gated(_gelu), "promote", _FLOATS,
            19, "gelu(a), rounded to the operands' type, times b.", "function", public=False, by_format=True),
        Row("geglu_erf", 2, "mul(rounded<COMMON>(gelu_erf<LOW>(a)), b)", _gated(_gelu_erf), "promote", _FLOATS,
            25, "gelu_erf(a), rounded to the operands' type, times b.", "function", public=False, by_format=True),
    ]  # fmt: skip


def _rounding() -> list[Row]:
    rows = (
        ("floor", np.floor, "Largest integer not above a; integers unchanged."),
        ("ceil", np.ceil, "Smallest integer not below a; integers unchanged."),
        ("trunc", np.trunc, "Integer part; integers unchanged."),
        ("round", np.rint, "Nearest integer, ties to even; integers unchanged."),
    )
    # A complex number is rounded by its parts, and has no floor.
    return [
        Row(name, 1, f"{name}(a)", _whole(function), "promote", "biufc" if name == "round" else "biuf", 1, doc,
            exprs=_IDENTITY)
        for name, function, doc in rows
    ]  # fmt: skip


def _comparison() -> list[Row]:
    rows = (
        ("equal", "equal(a, b)", np.equal, "a == b."),
        ("not_equal", "!equal(a, b)", np.not_equal, "a != b."),
        ("less", "less(a, b)", np.less, "a < b."),
        ("less_equal", "less_equal(a, b)", np.less_equal, "a <= b."),
        ("greater", "less(b, a)", np.greater, "a > b."),
        ("greater_equal", "less_equal(b, a)", np.greater_equal, "a >= b."),
    )
    return [Row(name, 2, expr, function, function, "biufc", 1, doc) for name, expr, function, doc in rows]


def _logical() -> list[Row]:
    return [
        Row("logical_and", 2, "truth(a) && truth(b)", np.logical_and, np.logical_and, "biufc", 1, "Both nonzero."),
        Row("logical_or", 2, "truth(a) || truth(b)", np.logical_or, np.logical_or, "biufc", 1, "Either nonzero."),
        Row("logical_xor", 2, "truth(a) != truth(b)", np.logical_xor, np.logical_xor, "biufc", 1, "Just one nonzero."),
        Row("logical_not", 1, "!truth(a)", np.logical_not, np.logical_not, "biufc", 1, "a is zero."),
        Row("isnan", 1, "isnan(a)", np.isnan, np.isnan, "biufc", 1, "a is not a number."),
        Row("isinf", 1, "isinf(a)", np.isinf, np.isinf, "biufc", 2, "a is infinite."),
        Row("isfinite", 1, "isfinite(a)", np.isfinite, np.isfinite, "biufc", 2, "a is neither infinite nor NaN."),
    ]


def _bitwise() -> list[Row]:
    return [
        Row("bitwise_and", 2, "a & b", np.bitwise_and, np.bitwise_and, "biu", 1, "Bits set in both."),
        Row("bitwise_or", 2, "a | b", np.bitwise_or, np.bitwise_or, "biu", 1, "Bits set in either."),
        Row("bitwise_xor", 2, "a ^ b", np.bitwise_xor, np.bitwise_xor, "biu", 1, "Bits set in just one."),
        Row("invert", 1, "~a", np.invert, np.invert, "biu", 1, "All bits flipped.", exprs={"b": "!a"}),
        Row("left_shift", 2, "left_shift(a, b)", np.left_shift, np.left_shift, "iu", 2,
            "a shifted left by b bits; 0 beyond the width."),
        Row("right_shift", 2, "right_shift(a, b)", np.right_shift, np.right_shift, "iu", 2,
            "a shifted right by b bits, keeping the sign."),
        Row("bitwise_count", 1, "bitwise_count(a)", np.bitwise_count, np.bitwise_count, "iu", 2,
            "Number of bits set in the magnitude."),
    ]  # fmt: skip


def _parts() -> list[Row]:
    return [
        Row("real", 1, "a", _real, np.absolute, "biufc", 0, "Real part.", exprs={"c": "a.re"}),
        Row("imag", 1, "a - a", _imag, np.absolute, "biufc", 0, "Imaginary part.",
            exprs={"b": "0", "i": "0", "u": "0", "f": "0", "c": "a.im"}),
        Row("conj", 1, "a", _conjugate, "promote", "biufc", 1, "Complex conjugate.", exprs={"c": "conj(a)"}),
        Row("copy", 1, "a", _same, "cast", "biufc", 0,
            "The same values in any type; a float outside an integer type's range is unspecified.", public=False),
        Row("mantissa", 1, "mantissa(a)", lambda a: np.frexp(a)[0], "promote", _FLOATS, 4,
            "The first result of frexp.", public=False),
        Row("exponent", 1, "exponent(a)", _exponent, np.frexp, _FLOATS, 4, "The second result of frexp.", public=False),
        Row("fraction", 1, "fraction(a)", lambda a: np.modf(a)[0], "promote", _FLOATS, 3, "The first result of modf.",
            public=False),
        Row("scalb", 2, "scalb(a, b)", _scalb, "promote", _FLOATS, 4, "a * 2**b for whole b.", public=False),
        Row("finite_or", 3, "finite_or(a, b, c)", _finite_or, "promote", _FLOATS, 3,
            "b for NaN, c and -c for infinities, else a.", public=False),
        Row("round_scaled", 2, "round(mul(a, b)) / b", _round_scaled, "promote", _FLOATS, 10,
            "a * b rounded to the nearest integer, divided by b.", public=False),
    ]  # fmt: skip


def _conjugate(a: Any) -> Any:
    return np.conjugate(a) if np.asarray(a).dtype.kind == "c" else a


def _rows() -> list[Row]:
    families = (
        _arithmetic, _selection, _exponential, _trigonometric, _activation, _rounding, _comparison, _logical, _bitwise,
        _parts,
    )  # fmt: skip
    return [row for family in families for row in family()]


TABLE: Mapping[str, Row] = MappingProxyType({row.name: row for row in _rows()})
