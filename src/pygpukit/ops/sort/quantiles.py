"""median, quantile and percentile, and the same without NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i32, i64, read, write
from pygpukit.ops.operands import as_array, axis_of
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.promotion import promote
from pygpukit.ops.registry import Operator, Parameter, Variant, export, register
from pygpukit.ops.size import product
from pygpukit.ops.sort.gather import assign, contiguous
from pygpukit.ops.sort.keys import key_map
from pygpukit.ops.sort.order import sort
from pygpukit.ops.sort.reference import comparable
from pygpukit.ops.source import instance

# Rules of the kernels: elements as they are, and values between two.
_PICK = {"lower": 0, "higher": 1, "nearest": 2}
_BETWEEN = {"linear": 0, "midpoint": 1, "median": 2}


@cache
def quantile_unit() -> Unit:
    """Return the source of the kernels over sorted rows."""
    between = {f"pgk_quantile_{tag}": f"PGK_QUANTILE_BETWEEN(pgk_quantile_{tag}, {tag})" for tag in ("f32", "f64")}
    return instance("sort/quantile.cu", list(between.values()), ("pgk_quantile_pick", *between))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield quantile_unit()


def _infer(p: Problem) -> list[Result]:
    x, q = p["x"], p["q"]
    return [Result((q.size, *x.shape[:-1]), x.dtype)]


def _launch(p: Problem) -> Launch:
    x, q, rule, unit = p["x"], p["q"], p.options["rule"], quantile_unit()
    rows = product(x.shape[:-1])
    total = q.size * rows
    sizes = (*map(i64, (rows, x.shape[-1], total)),)
    skip, order = i32(bool(p.options["skip"])), key_map(x.dtype, ties=True)
    if rule in _PICK:
        entry = unit.entries[0]
        rest: tuple[Argument, ...] = (i32(_PICK[rule]), skip, i32(x.dtype.itemsize), order)
    else:
        entry = f"pgk_quantile_{x.dtype.tag}"
        rest = (i32(_BETWEEN[rule]), skip, order)
    arguments: tuple[Argument, ...] = (write(p.out), read(x), read(q), *sizes, *rest)
    return Launch((KernelLaunch(unit, entry, (blocks_for(total, 256, "quantile"),), (256,), arguments),))


def _reference(x: Any, q: Any, rule: str = "linear", skip: bool = False) -> Any:
    rows = x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])
    n = rows.shape[1]
    wide = comparable(rows)
    nan = np.isnan(wide) if wide.dtype.kind == "f" else np.zeros(rows.shape, bool)
    numbers = n - nan.sum(1)
    count = np.where((numbers == n) | skip, numbers, 0)
    r = np.arange(rows.shape[0])
    with np.errstate(all="ignore"):
        v = (count - 1) * q[:, None]
        lost = (count == 0) | np.isnan(v)
        v = np.where(lost, 0, np.clip(v, 0, np.maximum(count - 1, 0)))
        if rule in _PICK:
            at = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}[rule](v).astype(np.int64)
            made = rows[r, np.where(lost, n - 1, at)]
        elif n == 0:
            made = np.full(v.shape, np.nan, x.dtype)
        else:
            at = np.floor(v).astype(np.int64)
            a, b = rows[r, at], rows[r, np.minimum(at + 1, np.maximum(count - 1, 0))]
            t = v - at
            if rule == "median":
                made = np.where(t == 0, a, (a + b) / x.dtype.type(2))
            else:
                t = np.where(t == 0, 0.0, 0.5) if rule == "midpoint" else t
                low, high = t.astype(x.dtype), (1 - t).astype(x.dtype)
                made = np.where(low < 0.5, a + (b - a) * low, b - (b - a) * high)
            made = np.where(lost, x.dtype.type(np.nan), made)
    return made.reshape(q.size, *x.shape[:-1])


def _host(p: Problem) -> Callable[..., None]:
    rule, skip = p.options["rule"], bool(p.options["skip"])

    def run(x: Any, q: Any, out: Any) -> None:
        out[...] = _reference(x, q, rule, skip)

    return run


_of_rows = register(
    Operator(
        name="sort_quantile",
        parameters=(Parameter("x"), Parameter("q"), Parameter("rule", "choice"), Parameter("skip", "choice")),
        infer=_infer,
        reference=_reference,
        variants=(
            Variant("a thread per result", "batch_invariant", contiguous, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
        ),
        doc="Quantiles of sorted rows: a float64 vector of them, by a rule.",
        public=False,
    )
)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    found = [axis_of(one, ndim) for one in given]
    if len(set(found)) != len(found):
        raise ShapeError(f"axis {axis} names an axis twice")
    return tuple(sorted(found))


def _rows(x: GPUArray, axes: tuple[int, ...]) -> GPUArray:
    """Return the elements with the axes as one, the last; a copy unless they are there in one piece."""
    kept = [i for i in range(x.ndim) if i not in axes]
    turned = x._permute([*kept, *axes])
    n = int(np.prod([x.shape[i] for i in axes]))
    return turned.contiguous().reshape([x.shape[i] for i in kept] + [n])


def _compute(
    x: Any, q: GPUArray, axis: Any, rule: str, skip: bool, keepdims: bool, kind: DataType, out: GPUArray | None
) -> GPUArray:
    """Return the quantiles of rows along axes, the quantiles' axes first; ``kind`` is the type of the result."""
    axes = _axes(axis, x.ndim)
    rows = sort(_rows(x, axes))
    if rule in _BETWEEN:
        rows = rows.astype("float64" if kind.name == "float64" else "float32", copy=False)
    shape = [(1 if keepdims else 0) if i in axes else n for i, n in enumerate(x.shape)]
    final = (*q.shape, *(n for i, n in enumerate(shape) if keepdims or i not in axes))
    if rows.size == 0 and int(np.prod(final)) and rule in _PICK:
        raise IndexError("a quantile of no elements")
    made: GPUArray = _of_rows(rows, q.contiguous().reshape(-1), rule, skip).reshape(final).astype(kind, copy=False)
    if out is None:
        return made
    if tuple(out.shape) != tuple(final):
        raise ShapeError(f"the result has shape {tuple(final)}, but out has {tuple(out.shape)}")
    assign(out, made)
    return out


def _need(x: Any, what: str) -> GPUArray:
    found = as_array(x, what)
    if found.dtype.kind == "c":
        raise DTypeError(f"{what} needs real numbers, not {found.dtype.name}")
    return found


def _median(x: Any, axis: Any, out: GPUArray | None, keepdims: bool, skip: bool, what: str) -> GPUArray:
    x = _need(x, what)
    kind = x.dtype if x.dtype.kind == "f" else dtype("float64")
    half = from_numpy(np.array(0.5), device=x.device)
    return _compute(x, half, axis, "median", skip, keepdims, kind, out)


@export
def median(
    x: GPUArray, axis: Any = None, out: GPUArray | None = None, overwrite_input: bool = False, keepdims: bool = False
) -> GPUArray:
    """The middle element along axes, or the mean of the two in the middle; NaN where there is one.

    Parameters
    ----------
    x : GPUArray
    axis : int or tuple of int, optional
        All axes by default.
    out : GPUArray, optional
    overwrite_input : bool, optional
        Accepted for NumPy's sake.
    keepdims : bool, optional
        Keep the axes with one element.

    Returns
    -------
    GPUArray
        float64 of integers, else of the type of ``x``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.median(gp.asarray([4, 1, 2, 9])).item()
    3.0
    """
    return _median(x, axis, out, keepdims, False, "median()")


@export
def nanmedian(
    x: GPUArray, axis: Any = None, out: GPUArray | None = None, overwrite_input: bool = False, keepdims: bool = False
) -> GPUArray:
    """The median of the elements that are not NaN; see `median`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanmedian(gp.asarray([4.0, 1.0, float("nan")])).item()
    2.5
    """
    return _median(x, axis, out, keepdims, True, "nanmedian()")


def _given(q: Any, x: GPUArray, scale: float, what: str) -> tuple[GPUArray, DataType | None, bool]:
    """Return the quantiles as a float64 array, their type unless it is weak, and whether they are integers."""
    if isinstance(q, GPUArray):
        if q.dtype.kind not in "biuf":
            raise DTypeError(f"{what} needs real quantiles, not {q.dtype.name}")
        wide = q.astype("float64", copy=False)
        return (wide if scale == 1 else wide / scale), (q.dtype if q.dtype.kind == "f" else dtype("float64")), False
    host = np.asarray(q)
    if host.dtype.kind not in "biuf":
        raise DTypeError(f"{what} needs numbers for q, not {host.dtype}")
    weak = type(q) in (int, float)
    if scale != 1:
        host = np.true_divide(host, scale)
    if not np.all((host >= 0) & (host <= 1)):
        raise ValueError(f"{what}: q must be in the range [0, {scale:g}]")
    whole = host.dtype.kind in "iu"
    own = None if weak else dtype("float64") if host.dtype.kind != "f" else dtype(host.dtype)
    return from_numpy(host.astype(np.float64), device=x.device), own, whole


def _quantile(
    x: Any, q: Any, axis: Any, out: GPUArray | None, method: str, keepdims: bool, skip: bool, scale: float, what: str
) -> GPUArray:
    x = _need(x, what)
    if method not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise ValueError(f"{what}: method {method!r} is not linear, lower, higher, midpoint or nearest")
    places, own, whole = _given(q, x, scale, what)
    if places.ndim > 2:
        raise ShapeError(f"{what}: q must be a number or a vector")
    if method in _PICK or (whole and method == "linear"):
        return _compute(x, places, axis, method if method in _PICK else "lower", skip, keepdims, x.dtype, out)
    if x.dtype.kind == "b":
        raise DTypeError(f"{what} does not interpolate bool; use method='nearest' or astype")
    weak = x.dtype if x.dtype.kind == "f" else dtype("float64")
    kind = weak if own is None else promote((x.dtype, own))
    return _compute(x, places, axis, method, skip, keepdims, kind, out)


@export
def quantile(
    x: GPUArray, q: Any, axis: Any = None, out: GPUArray | None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False,
) -> GPUArray:  # fmt: skip
    """Quantiles along axes: a value that a share ``q`` of the elements is below; NaN where there is one.

    Parameters
    ----------
    x : GPUArray
    q : number, sequence, NumPy array or GPUArray
        From 0 to 1. That is not checked of a GPUArray, whose elements may still be computed.
    axis : int or tuple of int, optional
        All axes by default.
    out : GPUArray, optional
    overwrite_input : bool, optional
        Accepted for NumPy's sake.
    method : str, optional
        ``"linear"`` between two elements, ``"midpoint"``, ``"lower"``, ``"higher"`` or ``"nearest"``.
    keepdims : bool, optional
        Keep the axes with one element.

    Returns
    -------
    GPUArray
        The axes of ``q`` come first.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.quantile(gp.asarray([1.0, 2.0, 4.0]), [0.25, 0.5]).tolist()
    [1.5, 2.0]
    """
    return _quantile(x, q, axis, out, method, keepdims, False, 1, "quantile()")


@export
def nanquantile(
    x: GPUArray, q: Any, axis: Any = None, out: GPUArray | None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False,
) -> GPUArray:  # fmt: skip
    """Quantiles of the elements that are not NaN; see `quantile`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanquantile(gp.asarray([1.0, float("nan"), 3.0]), 0.5).item()
    2.0
    """
    return _quantile(x, q, axis, out, method, keepdims, True, 1, "nanquantile()")


@export
def percentile(
    x: GPUArray, q: Any, axis: Any = None, out: GPUArray | None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False,
) -> GPUArray:  # fmt: skip
    """Percentiles along axes: `quantile` with ``q`` from 0 to 100.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.percentile(gp.asarray([1.0, 2.0, 4.0]), 50).item()
    2.0
    """
    return _quantile(x, q, axis, out, method, keepdims, False, 100, "percentile()")


@export
def nanpercentile(
    x: GPUArray, q: Any, axis: Any = None, out: GPUArray | None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False,
) -> GPUArray:  # fmt: skip
    """Percentiles of the elements that are not NaN; see `percentile`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.nanpercentile(gp.asarray([1.0, float("nan"), 3.0]), 50).item()
    2.0
    """
    return _quantile(x, q, axis, out, method, keepdims, True, 100, "nanpercentile()")
