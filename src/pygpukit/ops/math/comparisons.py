"""Questions about elements and arrays: infinite, real, close, equal."""

from __future__ import annotations

import builtins
import cmath
import math
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import full, zeros
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.math.arguments import need, operand, refuse, streamed
from pygpukit.ops.math.types import finfo
from pygpukit.ops.operands import as_arrays, common_device
from pygpukit.ops.problem import broadcast
from pygpukit.ops.registry import export, functions


@streamed
def isposinf(x: Any, out: GPUArray | None = None) -> GPUArray:
    """Which elements are positive infinity.

    Examples
    --------
    >>> isposinf(gp.asarray([1.0, gp.inf, -gp.inf])).tolist()
    [False, True, False]
    """
    x = refuse(need(x, "isposinf"), "biuf", "isposinf")
    return e.isinf(x, out=out) if x.dtype.kind != "f" else e.equal(x, math.inf, out=out)


@streamed
def isneginf(x: Any, out: GPUArray | None = None) -> GPUArray:
    """Which elements are negative infinity.

    Examples
    --------
    >>> isneginf(gp.asarray([1.0, gp.inf, -gp.inf])).tolist()
    [False, False, True]
    """
    x = refuse(need(x, "isneginf"), "biuf", "isneginf")
    return e.isinf(x, out=out) if x.dtype.kind != "f" else e.equal(x, -math.inf, out=out)


def isrealobj(x: Any) -> bool:
    """Whether the element type is not complex.

    Examples
    --------
    >>> isrealobj(gp.ones(2)), isrealobj(gp.ones(2, "complex64"))
    (True, False)
    """
    return not iscomplexobj(x)


def iscomplexobj(x: Any) -> bool:
    """Whether the element type is complex, whatever the elements are.

    Examples
    --------
    >>> iscomplexobj(gp.ones(2, "complex64"))
    True
    """
    return x.dtype.kind == "c" if isinstance(x, GPUArray) else bool(np.iscomplexobj(x))


def isscalar(element: Any) -> bool:
    """Whether this is a number or a text, as NumPy says it: an array without axes is none.

    Examples
    --------
    >>> isscalar(3.1), isscalar(gp.zeros(()))
    (True, False)
    """
    return bool(np.isscalar(element))


@streamed
def iscomplex(x: Any) -> GPUArray:
    """Which elements have an imaginary part that is not 0.

    Examples
    --------
    >>> iscomplex(gp.asarray([1 + 1j, 1 + 0j])).tolist()
    [True, False]
    """
    x = need(x, "iscomplex")
    if x.dtype.kind != "c":
        return zeros(x.shape, "bool", device=x.device)
    return e.not_equal(e.imag(x), 0)


@streamed
def isreal(x: Any) -> GPUArray:
    """Which elements have no imaginary part, or one that is 0.

    Examples
    --------
    >>> isreal(gp.asarray([1 + 1j, 1 + 0j])).tolist()
    [False, True]
    """
    x = need(x, "isreal")
    if x.dtype.kind != "c":
        return e.logical_not(zeros(x.shape, "bool", device=x.device))
    return e.equal(e.imag(x), 0)


@streamed
def real_if_close(x: Any, tol: float = 100) -> GPUArray:
    """The real parts where all imaginary parts are close to 0, else the array itself. Waits for the device: the type of
    the result depends on the data.

    Parameters
    ----------
    x : GPUArray
        The elements.
    tol : float
        Largest imaginary part: times the type's epsilon where above 1, else as it is.

    Examples
    --------
    >>> real_if_close(gp.asarray([2.0 + 1e-15j, 1.0])).dtype
    pygpukit.float64
    """
    x = need(x, "real_if_close")
    if x.dtype.kind != "c":
        return x  # type: ignore[no-any-return]
    limit = tol * float(finfo(x.dtype).eps) if tol > 1 else tol
    is_close = functions()["all"](e.less(e.abs(e.imag(x)), limit))
    result: GPUArray = e.real(x) if bool(is_close) else x
    return result


@streamed
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> GPUArray:
    """Which elements are close: ``abs(a - b) <= atol + rtol * abs(b)``, or equal.

    Parameters
    ----------
    a, b : GPUArray or number
        Operands that broadcast; one of them an array.
    rtol, atol : number or GPUArray
        Relative and absolute tolerance.
    equal_nan : bool
        NaN counts as close to NaN.

    Examples
    --------
    >>> isclose(gp.asarray([1.0, gp.inf, 2.0]), gp.asarray([1.0 + 1e-9, gp.inf, 2.1])).tolist()
    [True, True, False]
    """
    a, b = operand(a, "isclose"), operand(b, "isclose")
    if not isinstance(b, GPUArray):
        need(a, "isclose")
        return _close_to_number(a, b if isinstance(b, complex) else float(b), rtol, atol, equal_nan)
    b = b.astype("float64") if b.dtype.kind in "biu" else b
    limit = e.add(e.mul(e.abs(b), rtol), atol)
    near = e.logical_and(e.less_equal(e.abs(e.sub(a, b)), limit), e.isfinite(b))
    close: GPUArray = e.logical_or(e.equal(a, b), near)
    if equal_nan:
        both = e.logical_and(e.isnan(a), e.isnan(b)) if isinstance(a, GPUArray) else a != a and e.isnan(b)
        close = e.logical_or(close, both)
    return close


def _close_to_number(x: GPUArray, number: Any, rtol: Any, atol: Any, equal_nan: bool) -> GPUArray:
    """The same for a number, whose part is known on the host."""
    if cmath.isnan(number):
        return e.isnan(x) if equal_nan else e.equal(x, number)
    if cmath.isinf(number):
        return e.equal(x, number)
    size = builtins.abs(number)
    tolerant = isinstance(rtol, GPUArray) or isinstance(atol, GPUArray)
    limit = e.add(e.mul(rtol, size) if isinstance(rtol, GPUArray) else rtol * size, atol) if tolerant else None
    near = e.less_equal(e.abs(e.sub(x, number)), atol + rtol * size if limit is None else limit)
    return e.logical_or(e.equal(x, number), near)


@streamed
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> GPUArray:
    """Whether all elements are close, as an array without axes: `isclose` says what close is.

    The answer stays on the device until ``bool`` or ``if`` asks for it.

    Examples
    --------
    >>> bool(allclose(gp.asarray([1.0, 2.0]), gp.asarray([1.0, 2.0 + 1e-9])))
    True
    """
    return functions()["all"](isclose(a, b, rtol, atol, equal_nan))  # type: ignore[no-any-return]


@streamed
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> GPUArray:
    """Whether two arrays have the same shape and equal elements, as an array without axes.

    The answer stays on the device until ``bool`` or ``if`` asks for it.

    Parameters
    ----------
    a1, a2 : GPUArray
        The arrays.
    equal_nan : bool
        NaN counts as equal to NaN.

    Examples
    --------
    >>> bool(array_equal(gp.asarray([1, 2]), gp.asarray([1.0, 2.0])))
    True
    """
    if any(x is None or isinstance(x, str | bytes) for x in (a1, a2)):
        # As in NumPy, what is no array equals none.
        return full((), False, "bool", device=common_device((a1, a2)))
    a1, a2 = as_arrays("array_equal()", a1, a2)
    if a1.shape != a2.shape:
        return full((), False, "bool", device=a1.device)
    return _all_equal(a1, a2, equal_nan)


@streamed
def array_equiv(a1: Any, a2: Any) -> GPUArray:
    """Whether two arrays have equal elements once one is broadcast to the other, as an array without axes.

    Examples
    --------
    >>> bool(array_equiv(gp.asarray([[1, 2], [1, 2]]), gp.asarray([1, 2])))
    True
    """
    a1, a2 = as_arrays("array_equiv()", a1, a2)
    if broadcast(a1.shape, a2.shape) is None:
        return full((), False, "bool", device=a1.device)
    return _all_equal(a1, a2, False)


def _all_equal(a: GPUArray, b: GPUArray, equal_nan: bool) -> GPUArray:
    same = e.equal(a, b)
    if equal_nan and a.dtype.kind in "fc" and b.dtype.kind in "fc":
        same = e.logical_or(same, e.logical_and(e.isnan(a), e.isnan(b)))
    return functions()["all"](same)  # type: ignore[no-any-return]


for _function in (
    isposinf, isneginf, isrealobj, iscomplexobj, isscalar, iscomplex, isreal, real_if_close, isclose, allclose,
    array_equal, array_equiv,
):  # fmt: skip
    export(_function)
