"""Elementwise functions made of one or a few operators: rounding, limits, parts of numbers, angles."""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty, full
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.math.arguments import as_float, filled, need, operand, refuse, renamed, streamed
from pygpukit.ops.math.types import finfo
from pygpukit.ops.promotion import Input, promote
from pygpukit.ops.registry import as_method, export

# What NumPy's functions take for "not given", where None means "no limit".
_NOT_GIVEN: Any = object()


@streamed
def round(a: Any, decimals: int = 0, out: GPUArray | None = None) -> GPUArray:
    """Round to a number of decimals, ties to even.

    Parameters
    ----------
    a : GPUArray
        Integers stay integers; complex numbers are rounded by their parts.
    decimals : int
        Negative ones round to tens, hundreds and so on.
    out : GPUArray, optional
        Where the result is written.

    Examples
    --------
    >>> round(gp.asarray([1.234, 5.675]), 2).tolist()
    [1.23, 5.68]
    """
    x, decimals = need(a, "round"), operator.index(decimals)
    if decimals == 0 or (decimals > 0 and x.dtype.kind in "biu"):
        return e.round(x, out=out)
    if x.dtype.kind in "biu":
        scale = 10.0**-decimals
        return filled(e.mul(e.round(e.div(x, scale)), scale).astype(x.dtype), out, "round")
    if x.dtype.kind == "c":
        scale = 10.0 ** builtins.abs(decimals)
        if decimals < 0:
            return e.mul(e.round(e.div(x, scale)), scale, out=out)
        return e.div(e.round(e.mul(x, scale)), scale, out=out)
    if decimals < 0:
        scale = 10.0**-decimals
        return e.mul(e.round(e.div(x, scale)), scale, out=out)
    return e.round_scaled(x, 10.0**decimals, out=out)


@streamed
def rint(x: Any, *, out: GPUArray | None = None) -> GPUArray:
    """Nearest integer, ties to even; integers become floats, which `round` leaves as they are.

    Examples
    --------
    >>> rint(gp.asarray([0.5, 1.5, -1.2])).tolist()
    [0.0, 2.0, -1.0]
    """
    return renamed("rint", e.round, as_float(need(x, "rint")), out=out)  # type: ignore[no-any-return]


@streamed
def clip(a: Any, a_min: Any = _NOT_GIVEN, a_max: Any = _NOT_GIVEN, out: GPUArray | None = None, *,
         min: Any = _NOT_GIVEN, max: Any = _NOT_GIVEN) -> GPUArray:  # fmt: skip
    """Limit the elements: ``minimum(maximum(a, min), max)``.

    Parameters
    ----------
    a : GPUArray
        The elements.
    a_min, a_max : GPUArray or number, optional
        Limits that broadcast against `a`; None for no limit.
    out : GPUArray, optional
        Where the result is written.
    min, max : GPUArray or number, optional
        Other names of `a_min` and `a_max`.

    Examples
    --------
    >>> x = gp.asarray([-2.0, 0.5, 3.0])
    >>> clip(x, -1, 1).tolist(), clip(x, None, 1).tolist(), clip(x, min=0).tolist()
    ([-1.0, 0.5, 1.0], [-2.0, 0.5, 1.0], [0.0, 0.5, 3.0])
    """
    if min is not _NOT_GIVEN or max is not _NOT_GIVEN:
        if a_min is not _NOT_GIVEN or a_max is not _NOT_GIVEN:
            raise ValueError("clip(): a_min and min, a_max and max are the same; give one pair")
        a_min, a_max = min, max
    x = a
    low, high = (None if limit is _NOT_GIVEN else limit for limit in (a_min, a_max))
    if not isinstance(x, GPUArray) and not any(isinstance(limit, GPUArray) for limit in (low, high)):
        x = need(x, "clip")
    if isinstance(x, GPUArray) and x.dtype.kind in "iu":
        # As in NumPy, limits beyond what the type holds limit nothing.
        limits = np.iinfo(x.dtype.name)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
    if low is not None and high is not None:
        if isinstance(x, GPUArray) and x.dtype.kind == "b":
            common = promote((x.dtype, _input(low), _input(high)))
            if common.kind == "b":
                return renamed("clip", e.minimum, renamed("clip", e.maximum, x, low), high, out=out)  # type: ignore[no-any-return]
            # There is no clamp of bool: in the type that all three have together.
            x = x.astype(common)
        return renamed("clip", e.clamp, x, low, high, out=out)  # type: ignore[no-any-return]
    if low is None and high is None:
        return filled(x.copy(), out, "clip")
    function, limit = (e.maximum, low) if high is None else (e.minimum, high)
    return renamed("clip", function, x, limit, out=out)  # type: ignore[no-any-return]


@streamed
def positive(x: Any, *, out: GPUArray | None = None) -> GPUArray:
    """A copy: what ``+x`` is. Booleans are refused.

    Examples
    --------
    >>> positive(gp.asarray([1, -2])).tolist()
    [1, -2]
    """
    x = refuse(need(x, "positive"), "iufc", "positive")
    return x.copy() if out is None else filled(x, out, "positive")


@streamed
def fabs(x: Any, *, out: GPUArray | None = None) -> GPUArray:
    """Magnitude of real numbers as floats.

    Examples
    --------
    >>> fabs(gp.asarray([-1, 2])).tolist()
    [1.0, 2.0]
    """
    x = refuse(need(x, "fabs"), "biuf", "fabs")
    return e.abs(as_float(x), out=out)


@streamed
def rad2deg(x: Any, *, out: GPUArray | None = None) -> GPUArray:
    """Radians to degrees.

    Examples
    --------
    >>> rad2deg(gp.asarray([0.0, gp.pi])).tolist()
    [0.0, 180.0]
    """
    x = refuse(need(x, "rad2deg"), "biuf", "rad2deg")
    return _scaled(x, 180.0 / math.pi, out)


@streamed
def deg2rad(x: Any, *, out: GPUArray | None = None) -> GPUArray:
    """Degrees to radians.

    Examples
    --------
    >>> deg2rad(gp.asarray([0.0, 180.0])).tolist()
    [0.0, 3.141592653589793]
    """
    x = refuse(need(x, "deg2rad"), "biuf", "deg2rad")
    return _scaled(x, math.pi / 180.0, out)


def _scaled(x: GPUArray, factor: float, out: GPUArray | None) -> GPUArray:
    """The product as a float; of narrow types computed in float32, as in NumPy: their own factor has few digits."""
    x = as_float(x)
    if x.itemsize >= 4:
        return e.mul(x, factor, out=out)
    target = empty(x.shape, x.dtype, device=x.device) if out is None else out
    return e.mul(x.astype("float32"), factor, out=target)


@streamed
def float_power(base: Any, exponent: Any, *, out: GPUArray | None = None) -> GPUArray:
    """Power in float64, or complex128: integers to negative powers are fractions.

    Examples
    --------
    >>> float_power(gp.asarray([2, 4]), -1).tolist()
    [0.5, 0.25]
    """
    base, exponent = (operand(x, "float_power") for x in (base, exponent))
    wide = any(isinstance(x, complex) or (isinstance(x, GPUArray) and x.dtype.kind == "c") for x in (base, exponent))
    kind = "complex128" if wide else "float64"
    if not isinstance(base, GPUArray) and not isinstance(exponent, GPUArray):
        base = need(base, "float_power")
    base, exponent = (x.astype(kind, copy=False) if isinstance(x, GPUArray) else x for x in (base, exponent))
    return renamed("float_power", e.pow, base, exponent, out=out)  # type: ignore[no-any-return]


@streamed
def divmod(x: Any, y: Any) -> tuple[GPUArray, GPUArray]:
    """Quotient rounded down, and remainder: ``floor_divide(x, y), mod(x, y)``.

    Examples
    --------
    >>> [part.tolist() for part in divmod(gp.asarray([7, -7]), 3)]
    [[2, -3], [1, 2]]
    """
    return renamed("divmod", e.floor_divide, x, y), e.mod(x, y)


@streamed
def modf(x: Any) -> tuple[GPUArray, GPUArray]:
    """Fraction and integer part, both with the sign of the number.

    Examples
    --------
    >>> [part.tolist() for part in modf(gp.asarray([1.5, -2.25]))]
    [[0.5, -0.25], [1.0, -2.0]]
    """
    x = refuse(need(x, "modf"), "biuf", "modf")
    x = as_float(x)
    return e.fraction(x), e.trunc(x)


@streamed
def frexp(x: Any) -> tuple[GPUArray, GPUArray]:
    """Mantissa and exponent: ``x == mantissa * 2**exponent``, the mantissa from 0.5 to 1; the exponent is int32.

    Examples
    --------
    >>> [part.tolist() for part in frexp(gp.asarray([6.0, -0.25]))]
    [[0.75, -0.5], [3, -1]]
    """
    x = refuse(need(x, "frexp"), "biuf", "frexp")
    x = as_float(x)
    return e.mantissa(x), e.exponent(x)


@streamed
def ldexp(x: Any, n: Any, *, out: GPUArray | None = None) -> GPUArray:
    """``x * 2**n`` for integers ``n``, rounded once.

    Examples
    --------
    >>> ldexp(gp.asarray([0.75, -0.5]), gp.asarray([3, -1])).tolist()
    [6.0, -0.25]
    """
    x, n = operand(x, "ldexp"), operand(n, "ldexp")
    if isinstance(n, float | complex) or (isinstance(n, GPUArray) and n.dtype.kind not in "biu"):
        raise DTypeError("ldexp takes integer exponents: convert with astype")
    if not isinstance(x, GPUArray):
        x = from_number(float(x), n, "ldexp")
    refuse(x, "biuf", "ldexp")
    x = as_float(x)
    # Narrow types do not hold every exponent that matters to them.
    kind = x.dtype if x.itemsize >= 4 or x.dtype.name == "float16" else dtype("float32")
    if isinstance(n, GPUArray):
        n = n.astype("int32", copy=False) if n.itemsize < 4 else n
        n = (e.minimum(n, 4096) if n.dtype.kind == "u" else e.clamp(n, -4096, 4096)).astype(kind)
    else:
        n = float(builtins.max(-4096, builtins.min(n, 4096)))
    result = renamed("ldexp", e.scalb, x.astype(kind, copy=False), n)
    return filled(result.astype(x.dtype, copy=False), out, "ldexp")


def from_number(x: float, like: Any, what: str) -> GPUArray:
    """A number as a float64 array without axes, beside an array."""
    return full((), x, "float64", device=need(like, what).device)


@streamed
def spacing(x: Any, *, out: GPUArray | None = None) -> GPUArray:
    """Distance to the next number away from zero, with the sign of the number.

    Examples
    --------
    >>> spacing(gp.asarray([1.0, -1.0])).tolist()
    [2.220446049250313e-16, -2.220446049250313e-16]
    """
    x = refuse(need(x, "spacing"), "biuf", "spacing")
    x = as_float(x)
    if x.dtype.name == "float16":
        # As NumPy has it in this type: upwards, whatever the sign; NaN of infinities.
        return e.add(e.sub(e.nextafter(x, math.inf), x), e.sub(x, x), out=out)
    away = float(finfo(x.dtype).max) if x.dtype.name == "float8_e4m3fn" else math.inf
    return e.sub(e.nextafter(x, e.copysign(away, x)), x, out=out)


@streamed
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> GPUArray:
    """Replace NaN and infinities by numbers.

    Parameters
    ----------
    x : GPUArray
        The elements; of complex numbers the parts are replaced.
    copy : bool
        Write a new array; else `x` itself.
    nan : number
        In place of NaN.
    posinf, neginf : number, optional
        In place of the infinities: the largest and the lowest number of the type by default.

    Examples
    --------
    >>> nan_to_num(gp.asarray([gp.nan, gp.inf, 1.0]), posinf=9.0).tolist()
    [0.0, 9.0, 1.0]
    """
    x = need(x, "nan_to_num")
    out = None if copy else x
    if x.dtype.kind in "biu":
        return x.copy() if copy else x  # type: ignore[no-any-return]
    if x.dtype.kind == "c":
        # The parts are neighbours in memory, and so the elements of a vector of twice the length.
        result = x.copy()
        nan_to_num(result.reshape(-1).view(part_type(x)), False, nan, posinf, neginf)
        return result if out is None else filled(result, out, "nan_to_num")
    limits = finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    if builtins.all(isinstance(v, int | float) for v in (low, high)) and low == -high:
        return e.finite_or(x, nan, high, out=out)
    above, below = e.equal(x, math.inf), e.equal(x, -math.inf)
    result = e.where(below, low, e.where(above, high, e.where(e.isnan(x), nan, x)))
    return filled(result.astype(x.dtype, copy=False), out, "nan_to_num")


def part_type(x: GPUArray) -> str:
    """The name of the type of a complex array's parts."""
    return "float32" if x.dtype.name == "complex64" else "float64"


@streamed
def angle(z: Any, deg: bool = False) -> GPUArray:
    """Angle of complex numbers, from -pi to pi; of a real number 0 or pi.

    Examples
    --------
    >>> angle(gp.asarray([1j, -1.0]), deg=True).tolist()
    [90.0, 180.0]
    """
    z = refuse(need(z, "angle"), "biufc", "angle")
    result: GPUArray = e.atan2(e.imag(z), e.real(z)) if z.dtype.kind == "c" else e.atan2(0, z)
    return e.mul(result, 180.0 / math.pi) if deg else result


@streamed
def sinc(x: Any) -> GPUArray:
    """``sin(pi * x) / (pi * x)``, and 1 at 0.

    Examples
    --------
    >>> sinc(gp.asarray([0.0, 0.5])).tolist()
    [1.0, 0.6366197723675814]
    """
    x = need(x, "sinc")
    y = e.mul(x.astype("float64") if x.dtype.kind in "biu" else x, math.pi)
    return e.where(e.equal(y, 0), 1, e.div(e.sin(y), y))


@streamed
def softplus(x: Any) -> GPUArray:
    """``log(1 + exp(x))``, without overflow.

    Examples
    --------
    >>> softplus(gp.asarray([0.0, 1000.0])).tolist()
    [0.6931471805599453, 1000.0]
    """
    return renamed("softplus", e.logaddexp, need(x, "softplus"), 0)  # type: ignore[no-any-return]


@streamed
def mish(x: Any) -> GPUArray:
    """``x * tanh(softplus(x))``.

    Examples
    --------
    >>> mish(gp.asarray([0.0, 20.0])).tolist()
    [0.0, 20.0]
    """
    return e.mul(x, e.tanh(renamed("mish", e.logaddexp, need(x, "mish"), 0)))


for _function in (
    round, rint, clip, positive, fabs, rad2deg, deg2rad, float_power, divmod, modf, frexp, ldexp, spacing, nan_to_num,
    angle, sinc, softplus, mish,
):  # fmt: skip
    export(_function)
export(round, "around")
export(rad2deg, "degrees")
export(deg2rad, "radians")
as_method(round)
as_method(e.conj)
as_method(e.conj, "conjugate")


def _input(limit: Any) -> Input:
    """Return a limit as promotion sees it; a list as the array it becomes."""
    if isinstance(limit, GPUArray):
        return limit.dtype
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex")):
        if type(limit) is kind:
            return name  # type: ignore[return-value]
    return dtype(np.asarray(limit).dtype)


def _clip_method(self: GPUArray, min: Any = None, max: Any = None, out: GPUArray | None = None, **keywords: Any) -> Any:
    """The elements, limited."""
    return clip(self, min, max, out, **keywords)


as_method(_clip_method, "clip")
