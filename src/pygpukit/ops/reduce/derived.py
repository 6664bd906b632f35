"""Functions made of reductions and elementwise operators: without NaN, weighted, norms."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.dtypes import dtype as as_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.operands import as_array, common_device
from pygpukit.ops.promotion import promote
from pygpukit.ops.reduce.compositions import into
from pygpukit.ops.reduce.layout import axes_of, axis_of
from pygpukit.ops.reduce.table import real_type


def _reductions() -> dict[str, Callable[..., Any]]:
    from pygpukit.ops.reduce.rows import FUNCTIONS as REDUCTIONS

    return REDUCTIONS


def streamed(function: Callable[..., GPUArray]) -> Callable[..., Any]:
    """Give a function the keywords ``out`` and ``stream``, and refuse what is no array."""

    @wraps(function)
    def run(x: Any, *args: Any, out: GPUArray | None = None, stream: Stream | None = None, **kwargs: Any) -> Any:
        if not isinstance(x, GPUArray):
            x = as_array(x, f"{function.__name__}()")
        if out is not None and not isinstance(out, GPUArray):
            raise TypeError(f"{function.__name__}(): out must be a GPUArray, not {type(out).__name__}")
        with stream if stream is not None else contextlib.nullcontext():
            return into(function(x, *args, **kwargs), out)

    return run


def _numbers(x: GPUArray, where: Any) -> Any:
    """Which elements take part: those that are numbers, and that ``where`` names. None for all."""
    if x.dtype.kind not in "fc":
        return where
    there = e.logical_not(e.isnan(x))
    return there if where is None else e.logical_and(there, where)


@streamed
def nansum(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, *, initial: Any = None,
           where: Any = None) -> Any:  # fmt: skip
    """Sum of the elements that are not NaN; 0 of none.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nansum(gp.asarray([1.0, float("nan"), 2.0])).item()
    3.0
    """
    return _reductions()["sum"](x, axis, dtype, keepdims, initial=initial, where=_numbers(x, where))


@streamed
def nanprod(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, *, initial: Any = None,
            where: Any = None) -> Any:  # fmt: skip
    """Product of the elements that are not NaN; 1 of none.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanprod(gp.asarray([3.0, float("nan"), 2.0])).item()
    6.0
    """
    return _reductions()["prod"](x, axis, dtype, keepdims, initial=initial, where=_numbers(x, where))


@streamed
def nanmean(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Mean of the elements that are not NaN; NaN of none.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanmean(gp.asarray([1.0, float("nan"), 2.0])).item()
    1.5
    """
    return _reductions()["mean"](x, axis, dtype, keepdims, where=_numbers(x, where))


@streamed
def nanvar(x: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, *,
           correction: float | None = None, where: Any = None) -> Any:  # fmt: skip
    """Variance of the elements that are not NaN; NaN where ``ddof`` or fewer are.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanvar(gp.asarray([1.0, float("nan"), 3.0])).item()
    1.0
    """
    return _reductions()["var"](x, axis, dtype, ddof, keepdims, correction=correction, where=_numbers(x, where))


@streamed
def nanstd(x: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, *,
           correction: float | None = None, where: Any = None) -> Any:  # fmt: skip
    """Standard deviation of the elements that are not NaN: the root of `nanvar`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanstd(gp.asarray([1.0, float("nan"), 3.0])).item()
    1.0
    """
    return _reductions()["std"](x, axis, dtype, ddof, keepdims, correction=correction, where=_numbers(x, where))


def _extreme(name: str, x: GPUArray, axis: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    function = _reductions()[name]
    if x.dtype.kind not in "fc":
        return function(x, axis, keepdims, initial=initial, where=where)
    none = e.isnan(x)
    result = function(_without_nan(x, none, name), axis, keepdims, initial=initial, where=where)
    if initial is not None:
        return result
    return e.where(_reductions()["all"](none, axis, keepdims), math.nan, result)


def _without_nan(x: GPUArray, none: GPUArray, name: str) -> Any:
    # What is below (or above) every other element: the largest finite number where a type has no infinity.
    bound = 448.0 if x.dtype.name == "float8_e4m3fn" else math.inf
    return e.where(none, -bound if name.endswith("max") else bound, x)


@streamed
def nanmax(x: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """Largest element that is not NaN; NaN where all are.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanmax(gp.asarray([1.0, float("nan"), 2.0])).item()
    2.0
    """
    return _extreme("max", x, axis, keepdims, initial, where)


@streamed
def nanmin(x: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """Smallest element that is not NaN; NaN where all are.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanmin(gp.asarray([1.0, float("nan"), 2.0])).item()
    1.0
    """
    return _extreme("min", x, axis, keepdims, initial, where)


@streamed
def nanargmax(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Index of the first largest element that is not NaN; 0 where all are, for which NumPy raises `ValueError`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanargmax(gp.asarray([1.0, float("nan"), 2.0])).item()
    2
    """
    values = _without_nan(x, e.isnan(x), "max") if x.dtype.kind in "fc" else x
    return _reductions()["argmax"](values, axis, keepdims)


@streamed
def nanargmin(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Index of the first smallest element that is not NaN; 0 where all are, for which NumPy raises `ValueError`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanargmin(gp.asarray([3.0, float("nan"), 2.0])).item()
    2
    """
    values = _without_nan(x, e.isnan(x), "min") if x.dtype.kind in "fc" else x
    return _reductions()["argmin"](values, axis, keepdims)


@streamed
def ptp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Largest minus smallest element.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.ptp(gp.asarray([[1.0, 4.0], [2.0, 7.0]]), axis=1).tolist()
    [3.0, 5.0]
    """
    f = _reductions()
    return e.sub(f["max"](x, axis, keepdims), f["min"](x, axis, keepdims))


def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False, *,
            out: Any = None, stream: Any = None) -> Any:  # fmt: skip
    """Mean of the elements, each counted by its weight: ``sum(x * weights) / sum(weights)``.

    Weights have the shape of ``x``, or that of its axes named by ``axis``. With ``returned`` the sum of the weights
    comes too. Where they sum to 0 the result is NaN or infinite; NumPy raises `ZeroDivisionError`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.average(gp.asarray([1.0, 4.0]), weights=gp.asarray([2.0, 1.0])).item()
    2.0
    """
    if not isinstance(x, GPUArray):
        x = as_array(x, "average()", common_device((weights,)))
    if weights is not None:
        weights = as_array(weights, "average(): weights", x.device)
    with stream if stream is not None else contextlib.nullcontext():
        total = None if weights is None else _weights(x, axis, weights)
        result = _average(x, axis, total, keepdims, out=out)
        if not returned:
            return result
        f, axes = _reductions(), axes_of(axis, x.ndim)
        if total is None:
            count = math.prod(x.shape[i] for i in axes)
            return result, e.add(e.mul(e.isnan(result), 0), count).astype(result.dtype)
        ones = total if total.shape == x.shape else e.add(total, e.mul(e.isnan(x), False))
        return result, f["sum"](ones, axes, keepdims=keepdims).astype(result.dtype)


def _weights(x: GPUArray, axis: Any, weights: GPUArray) -> GPUArray:
    """Weights that broadcast against ``x``."""
    if weights.shape == x.shape:
        return weights
    if axis is None:
        raise TypeError("average(): weights of another shape than the array need an axis")
    axes = tuple(axis_of(a, x.ndim) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    if weights.shape != tuple(x.shape[i] for i in axes):
        raise ShapeError(f"average(): weights of shape {weights.shape} are not those of axis {axis} of {x.shape}")
    turned = weights.transpose(sorted(range(len(axes)), key=axes.__getitem__))
    return turned.reshape([n if i in axes else 1 for i, n in enumerate(x.shape)])


@streamed
def _average(x: Any, axis: Any, weights: Any, keepdims: bool) -> Any:
    f = _reductions()
    if weights is None:
        return f["mean"](x, axis, keepdims=keepdims)
    # As in NumPy, an array of integers is averaged in float64 at least, whatever its weights.
    kind = promote((x.dtype, weights.dtype, *((as_dtype("float64"),) if x.dtype.kind in "biu" else ())))
    x, weights = (a.astype(kind, copy=False) for a in (x, weights))
    full = weights if weights.shape == x.shape else e.add(weights, e.mul(e.isnan(x), False))
    return e.div(f["sum"](e.mul(x, weights), axis, keepdims=keepdims), f["sum"](full, axis, keepdims=keepdims))


@streamed
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norm of vectors or matrices.

    ``ord`` of vectors: None or 2 (root of the sum of squares), 1, 0 (number of nonzero elements), inf, -inf, or any
    number p for ``sum(abs(x) ** p) ** (1 / p)``. Of matrices (two axes): None or "fro", 1, -1, inf, -inf, and by
    singular values 2, -2 and "nuc".

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.norm(gp.asarray([3.0, 4.0])).item()
    5.0
    """
    f = _reductions()
    if x.dtype.kind in "biu":
        x = x.astype("float64")
    if axis is None and (ord is None or (ord == 2 and x.ndim == 1) or (ord in ("f", "fro") and x.ndim == 2)):
        return f["root_square_sum"](x, None, keepdims)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    if len(axes) == 2:
        return _matrix_norm(x, ord, [axis_of(a, x.ndim) for a in axes], keepdims)
    if len(axes) != 1:
        raise ValueError(f"norm() takes one axis or two, not {len(axes)}")
    if ord is None or ord == 2:
        return f["root_square_sum"](x, axes, keepdims)
    if isinstance(ord, str):
        raise ValueError(f"norm(): {ord!r} is no order of vectors")
    if ord == 1:
        return f["abs_sum"](x, axes, keepdims)
    if ord == 0:
        return f["count_nonzero"](x, axes, keepdims).astype(real_type(x.dtype))
    size = e.abs(x)
    if math.isinf(ord):
        # Of no elements it is 0; then there is nothing to read.
        initial = {"initial": 0} if ord > 0 and x.size == 0 else {}
        return f["max" if ord > 0 else "min"](size, axes, keepdims, **initial)
    return e.pow(f["sum"](e.pow(size, float(ord)), axes, keepdims=keepdims), 1.0 / ord)


def _matrix_norm(x: GPUArray, ord: Any, axes: list[int], keepdims: bool) -> Any:
    f = _reductions()
    if ord is None or ord in ("f", "fro"):
        return f["root_square_sum"](x, tuple(axes), keepdims)
    orders = {1: (0, "max"), -1: (0, "min"), math.inf: (1, "max"), -math.inf: (1, "min")}
    if axes[0] == axes[1]:
        raise ShapeError(f"norm(): axes {axes} name an axis twice")
    if ord in (2, -2, "nuc"):
        from pygpukit.linalg.norms import by_singular_values

        return by_singular_values(x, ord, axes[0], axes[1], keepdims)
    if ord not in orders:
        raise ValueError(f"norm(): {ord!r} is no order of matrices; use None, 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    which, name = orders[ord]
    sums = f["abs_sum"](x, axes[which], True)
    result = f[name](sums, axes[1 - which], True, **({"initial": 0} if name == "max" and sums.size == 0 else {}))
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return result.reshape(shape)


@streamed
def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """``log(sum(exp(x)))`` without overflow.

    Examples
    --------
    >>> import pygpukit as gp
    >>> round(gp.logsumexp(gp.asarray([1000.0, 1000.0])).item(), 3)
    1000.693
    """
    f = _reductions()
    if x.dtype.kind not in "fiub":
        raise DTypeError(f"logsumexp is not defined for {x.dtype.name}: convert with astype")
    if x.dtype.kind != "f":
        x = x.astype("float64")
    largest = f["max"](x, axis, True)
    largest = e.where(e.isfinite(largest), largest, 0)
    total = e.add(e.log(f["sum"](e.exp(e.sub(x, largest)), axis, keepdims=True)), largest)
    axes = axes_of(axis, x.ndim)
    return total.reshape([1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes])


FUNCTIONS = (
    nansum, nanprod, nanmean, nanvar, nanstd, nanmax, nanmin, nanargmax, nanargmin, ptp, average, norm, logsumexp,
)  # fmt: skip
"""The public functions of this module."""
