"""How a reduction without a kernel of its own is composed of other operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.array.creation import empty
from pygpukit.dtypes import dtype as as_dtype
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.reduce.table import Row, accumulator

Axes = tuple[int, ...]


def by_a_copy(function: Callable[..., Any], split: Axes | None, axis: Any, keep: bool, dtype: Any,
              spread: Mapping[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:  # fmt: skip
    """Reduce to a contiguous array and copy that; with ``split`` elements are first laid out with those axes last."""
    array, (out,) = given[0], results
    typed: dict[str, Any] = dict(spread) if dtype is None else {**spread, "dtype": dtype}
    if split is None:
        result = function(array, axis, keepdims=keep, **typed)
    else:
        kept = [i for i in range(array.ndim) if i not in split]
        array = _native.apply("copy", (array._permute([*kept, *split]),))
        result = function(array, tuple(range(len(kept), array.ndim)) if kept else None, **typed)
    _native.apply("copy", (result._reshape(list(out.shape)),), out)


def by_a_cast(row: Row, function: Callable[..., Any], axes: Axes, keep: bool, wide: DataType | None,
              spread: Mapping[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:  # fmt: skip
    """Cast the elements to what is computed in, if it is not the result's own type, and the result to ``out``."""
    array = given[0] if wide is None else given[0].astype(wide, copy=False)
    axis: Any = axes[0] if len(axes) == 1 else None if len(axes) == array.ndim else axes
    (out,) = results
    if row.result(array.dtype) is out.dtype:
        function(array, axis, keepdims=keep, out=out, **spread)
    else:
        _native.apply("copy", (function(array, axis, keepdims=keep, **spread),), out)


def of_cast_elements(row: Row, function: Callable[..., Any], kind: DataType, axes: Axes, keep: bool, initial: Any,
                     results: tuple[Any, ...], given: tuple[Any, ...]) -> None:  # fmt: skip
    """Cast the elements to the type of the result, and reduce them."""
    where = dict(zip((p.name for p in row.parameters), given, strict=True))["where"]
    function(given[0].astype(kind), axes, kind, keep, initial=initial, where=where, out=results[0])


def masked(row: Row, function: Callable[..., Any], axes: Axes, keep: bool, dtype: Any, initial: Any,
           results: tuple[Any, ...], given: tuple[Any, ...]) -> None:  # fmt: skip
    """Put what changes nothing in place of elements that ``where`` leaves out, and join ``initial`` to the result."""
    array, (out,) = given[0], results
    named = dict(zip((p.name for p in row.parameters), given, strict=True))
    if initial is not None and not row.takes("dtype") and array.dtype.kind in "iu":
        initial = int(initial)
    if named["where"] is not None:
        array = e.where(named["where"], array, initial if row.skipped is None else row.skipped)
    if row.empty is None and array.size == 0:
        out.fill(initial)
        return
    typed = {} if dtype is None else {"dtype": dtype}
    if initial is None:
        function(array, axes, keepdims=keep, out=out, **typed)
    else:
        _native.apply(row.joins, (function(array, axes, keepdims=keep, **typed), initial), out)


def by_parts(row: Row, axes: Axes, keep: bool, dtype: Any, ddof: float,
             results: tuple[Any, ...], given: tuple[Any, ...]) -> None:  # fmt: skip
    """Mean, variance or deviation of the elements that ``where`` names, or of complex numbers."""
    from pygpukit.ops.reduce.rows import FUNCTIONS

    x, (out,) = given[0], results
    f, where = FUNCTIONS, dict(zip((p.name for p in row.parameters), given, strict=True))["where"]
    wide = accumulator(x.dtype, row.result(x.dtype) if dtype is None else as_dtype(dtype))
    if x.dtype.kind == "c" and where is None and row.name != "mean":
        parts = [f["var"](part(x), axes, ddof=ddof, keepdims=keep) for part in (e.real, e.imag)]
        total = e.add(*parts)
        _native.apply("sqrt" if row.name == "std" else "copy", (total,), out)
        return
    mask = empty(x.shape, "bool", device=x.device)
    mask.fill(True)
    if where is not None:
        mask = e.logical_and(mask, where)
    count = f["sum"](mask, axes, keepdims=keep)
    if row.name == "mean":
        total = f["sum"](x, axes, dtype=wide, keepdims=keep, where=mask)
        _native.apply("div", (total, count), out)
        return
    x = x.astype(wide, copy=False)
    middle = f["mean"](x, axes, keepdims=True, where=mask)
    apart = e.sub(x, middle)
    square = e.real(e.mul(apart, e.conj(apart))) if wide.kind == "c" else e.square(apart)
    total = f["sum"](square, axes, keepdims=keep, where=mask)
    quotient = e.div(total, e.maximum(e.sub(count, ddof), 0))
    _native.apply("sqrt" if row.name == "std" else "copy", (quotient,), out)


def into(result: GPUArray, out: GPUArray | None) -> GPUArray:
    """Return ``result``, or ``out`` filled with it."""
    if out is None:
        return result
    if out.shape != result.shape:
        from pygpukit.errors import ShapeError

        raise ShapeError(f"the result has shape {result.shape}, but out has {out.shape}")
    _native.apply("copy", (result,), out)
    return out
