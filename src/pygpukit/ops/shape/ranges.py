"""Ranges: made on the device, with the numbers that NumPy computes."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, Device, GPUArray
from pygpukit.array.bridge import asarray, from_numpy
from pygpukit.array.creation import full
from pygpukit.dtypes import DTypeLike, to_numpy_dtype
from pygpukit.dtypes import dtype as dtype_of
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.operands import axis_of
from pygpukit.ops.promotion import Input, promote
from pygpukit.ops.registry import export
from pygpukit.ops.shape.arrays import assign, common_device
from pygpukit.ops.shape.spaced import FLOOR, LAST, SMALL, positions, spaced

_INT64, _FAR = dtype_of("int64"), 2**62
_ZERO_STEP = "arange(): the step is 0, which never leads to the end; give another step"
_NUMBERS = bool | int | float | complex | np.generic


def _number(value: Any, what: str) -> Any:
    if not isinstance(value, _NUMBERS):
        hint = "; read it with item()" if isinstance(value, GPUArray) else ""
        raise TypeError(f"{what} takes numbers, not {type(value).__name__}{hint}")
    return value


def _length(start: Any, stop: Any, step: Any) -> int:
    """Return how many steps lead from one number to another, as NumPy counts them."""
    try:
        delta = stop - start
        steps = delta / step
    except ZeroDivisionError:
        raise ZeroDivisionError(_ZERO_STEP) from None
    if isinstance(steps, complex | np.complexfloating):
        return max(0, min(math.ceil(float(steps.real)), math.ceil(float(steps.imag))))
    if isinstance(steps, np.generic) and not np.isfinite(steps) and step == 0:
        raise ZeroDivisionError(_ZERO_STEP)
    if math.isnan(steps):
        raise ValueError("arange(): cannot compute the length from a NaN")
    if math.isinf(steps) or abs(steps) > 2**62:
        raise ValueError(f"arange(): maximum allowed size exceeded, {steps:.4g} elements from {start} to {stop}")
    if steps == 0 and delta != 0:
        return int(math.copysign(1.0, steps) > 0)
    count: int = math.ceil(steps)
    return max(0, count)


@export
def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None, *, device: Device | None = None
) -> GPUArray:
    """Evenly spaced numbers by step, up to but not including the end.

    Parameters
    ----------
    start, stop : number
        ``arange(stop)`` begins at 0.
    step : number, optional
    dtype : DataType, optional
        NumPy's type for the numbers by default: int64 or float64.
    device : Device, optional
        The current one by default.

    Raises
    ------
    ZeroDivisionError
        If the step is 0.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.arange(3).tolist(), gp.arange(5, step=2).tolist()
    ([0, 1, 2], [0, 2, 4])
    """
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    first, end, each = _number(start, "arange()"), _number(stop, "arange()"), _number(step, "arange()")
    if dtype is None and type(first) is type(end) is type(each) is int and -_FAR < first < _FAR and -_FAR < end < _FAR:
        n = max(0, -((first - end) // each)) if each else _length(first, end, each)
        return spaced(n, first, each if n > 1 else 0, _INT64, device)
    if dtype is None:
        if any(isinstance(v, int) and not -(2**63) <= v < 2**64 for v in (first, end, each)):
            raise ValueError(f"arange(): a number has more than 64 bits, which no integer type holds: {first}, {end}")
        kind = dtype_of(np.result_type(*(np.asarray(v).dtype for v in (first, end, each))))
    else:
        kind = dtype_of(dtype)
    n = _length(first, end, each)
    if kind.kind in "bc":
        host: Any = np.arange
        return from_numpy(host(first, end, each, to_numpy_dtype(kind)), device=device)
    pair = np.zeros(2, to_numpy_dtype(kind))
    pair[0] = first
    if n > 1:
        pair[1] = first + each
    if kind.kind in "iu":
        begin, delta = (_wrapped(v) for v in (int(pair[0]), int(pair[1]) - int(pair[0])))
        return spaced(n, begin, delta, kind, device)
    wide = pair.astype(np.float64 if kind.name == "float64" else np.float32)
    return spaced(n, float(wide[0]), float(wide[1] - wide[0]), kind, device)


def _wrapped(value: int) -> int:
    """Return an integer as 64 bits hold it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _count(num: Any, what: str) -> int:
    n = operator.index(num)
    if n < 0:
        raise ValueError(f"{what}: the number of samples must not be negative, and it is {n}")
    return n


def _refuse_type(endpoint: Any, what: str) -> None:
    if isinstance(endpoint, str | DataType | np.dtype | type):
        raise TypeError(f"{what}: endpoint is {endpoint!r}, an element type; give it as dtype=")


@export
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | None = None,
) -> Any:
    """Evenly spaced numbers by count.

    Parameters
    ----------
    start, stop : number or GPUArray
        From where to where; arrays broadcast, and the numbers lie along a new axis.
    num : int, optional
        How many.
    endpoint : bool, optional
        Is ``stop`` the last of them?
    retstep : bool, optional
        Return the step too.
    dtype : DataType, optional
        NumPy's type for the limits by default. They are computed in that, and rounded down to integers.
    axis : int, optional
        Of the result, for limits that are arrays.
    device : Device, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.linspace(0, 1, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    _refuse_type(endpoint, "linspace()")
    n = _count(num, "linspace()")
    device = device or common_device((start, stop))
    start, stop = (asarray(v, device=device) if isinstance(v, list | tuple) else v for v in (start, stop))
    if isinstance(start, GPUArray) or isinstance(stop, GPUArray):
        values, step = _between_arrays(start, stop, n, bool(endpoint), dtype, axis)
        return (values, step) if retstep else values
    axis_of(axis, 1)
    computed = np.result_type(_number(start, "linspace()"), _number(stop, "linspace()"), 0.0)
    begin, end = (np.asarray(v).astype(computed) for v in (start, stop))
    kind = dtype_of(computed) if dtype is None else dtype_of(dtype)
    div = n - 1 if endpoint else n
    with np.errstate(all="ignore"):
        delta = np.subtract(end, begin, dtype=computed)
        step = computed.type(delta / div) if div > 0 else computed.type(np.nan)
    if computed.kind == "c" or computed.itemsize not in (4, 8) or kind.kind in "bc":
        host = np.linspace(begin, end, n, bool(endpoint), dtype=to_numpy_dtype(kind))
        return (from_numpy(host, device=device), step) if retstep else from_numpy(host, device=device)
    flags = FLOOR if kind.kind in "iu" else 0
    last = 0.0
    by, span = float(step) if div > 0 else float(delta), 0.0
    if div > 0 and step == 0:
        flags |= SMALL
        by, span = float(div), float(delta)
    if endpoint and n > 1:
        flags |= LAST
        last = float(end)
    compute = "f32" if computed.itemsize == 4 else "f64"
    values = spaced(n, float(begin), by, kind, device, compute=compute, span=span, last=last, flags=flags)
    return (values, step) if retstep else values


def _kind_of(limit: Any) -> Input:
    if isinstance(limit, GPUArray):
        return limit.dtype
    if isinstance(_number(limit, "linspace()"), np.generic):
        return dtype_of(limit.dtype)
    return "complex" if isinstance(limit, complex) else "float"


def _between_arrays(start: Any, stop: Any, n: int, endpoint: bool, dtype: Any, axis: int) -> tuple[GPUArray, Any]:
    device = common_device((start, stop))
    # As beside arrays everywhere, a Python number has the type of the other limit.
    computed = promote((*(_kind_of(v) for v in (start, stop)), "float"))
    begin, end = (
        v.astype(computed, copy=False) if isinstance(v, GPUArray) else full((), v, computed, device=device)
        for v in (start, stop)
    )
    delta = e.sub(end, begin)
    div = n - 1 if endpoint else n
    step = e.div(delta, div) if div > 0 else full((), math.nan, device=device)
    place = axis_of(axis, delta.ndim + 1)
    i = positions(n, device).astype(computed).reshape([n, *[1] * delta.ndim])
    # A step too small for the type is 0: then the span is multiplied.
    small = e.mul(e.div(i, div), delta) if div > 0 else e.mul(i, delta)
    y = e.add(e.where(e.equal(step, 0), small, e.mul(i, step)) if div > 0 else small, begin)
    if endpoint and n > 1:
        assign(y._select(0, n - 1), end)
    kind = computed if dtype is None else dtype_of(dtype)
    y = (e.floor(y) if kind.kind in "iu" else y).astype(kind, copy=False)
    return y._permute([*range(1, place + 1), 0, *range(place + 1, y.ndim)]), step


@export
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | None = None,
) -> GPUArray:
    """Numbers whose logarithms are evenly spaced, from ``base ** start`` to ``base ** stop``; see `linspace`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    _refuse_type(endpoint, "logspace()")
    exponents = linspace(start, stop, num, endpoint, axis=axis, device=device)
    power: GPUArray = e.pow(base, exponents)
    return power if dtype is None else power.astype(dtype, copy=False)


@export
def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | None = None,
) -> GPUArray:
    """Numbers with equal ratios between neighbours, from one number to another.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.geomspace(1, 8, 4).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    _refuse_type(endpoint, "geomspace()")
    n = _count(num, "geomspace()")
    begin, end = (np.asarray(_number(v, "geomspace()")) for v in (start, stop))
    if begin == 0 or end == 0:
        raise ValueError("geomspace(): the sequence cannot include zero; start further from it")
    axis_of(axis, 1)
    wanted = [] if dtype is None else [np.zeros((), to_numpy_dtype(dtype))]
    computed = np.result_type(start, stop, 0.0, *wanted)
    kind = dtype_of(computed) if dtype is None else dtype_of(dtype)
    if computed.kind == "c":
        return from_numpy(np.geomspace(begin, end, n, bool(endpoint)).astype(to_numpy_dtype(kind)), device=device)
    sign = -1.0 if begin < 0 else 1.0
    # Between numbers of different signs there are no real ones with equal ratios.
    low, high = (math.log10(v) if v > 0 else math.nan for v in (sign * float(begin), sign * float(end)))
    values = logspace(low, high, n, endpoint, 10.0, device=device)
    if n > 0:
        values._slice(0, 0, 1, 1).fill(sign * float(begin))
        if n > 1 and endpoint:
            values._slice(0, n - 1, 1, 1).fill(sign * float(end))
    result = e.mul(values, sign) if sign < 0 else values
    return result.astype(kind, copy=False)
