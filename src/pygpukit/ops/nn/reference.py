"""What the operators of neural networks give, as NumPy computes it with the accumulators of the kernels."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def softmax(x: Array, axis: int = -1) -> Any:
    """Return ``exp(x - max) / sum`` over an axis; small floats are computed in float32."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32, copy=False)
    with np.errstate(all="ignore"):
        shifted = np.exp(wide - wide.max(axis, keepdims=True)) if x.size else wide
        return (shifted / shifted.sum(axis, keepdims=True)).astype(x.dtype, copy=False)


def logsoftmax(x: Array, axis: int = -1) -> Any:
    """Return the logarithm of `softmax`, without the underflow of taking it afterwards."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32, copy=False)
    with np.errstate(all="ignore"):
        shifted = wide - wide.max(axis, keepdims=True) if x.size else wide
        return (shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(x.dtype, copy=False)


def _wide(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def _scale(a: Array, eps: float) -> Any:
    """Return one over the root of the mean square of rows."""
    # A row's sum must not depend on the rows beside it: NumPy adds along a contiguous last axis.
    squares = np.add.reduce(np.ascontiguousarray(a * a), axis=-1, keepdims=True)
    return a.dtype.type(1) / np.sqrt(squares / a.dtype.type(a.shape[-1]) + a.dtype.type(eps))


def layernorm(x: Array, gamma: Any, beta: Any = None, eps: float = 1e-5) -> Any:
    """Return ``(x - mean) / sqrt(variance + eps) * gamma + beta`` over the last axis."""
    a = _wide(x)
    with np.errstate(all="ignore"):
        d = a - np.add.reduce(np.ascontiguousarray(a), axis=-1, keepdims=True) / a.dtype.type(max(a.shape[-1], 1))
        y = d * _scale(d, eps) * gamma.astype(a.dtype)
        return (y if beta is None else y + beta.astype(a.dtype)).astype(x.dtype)


def rmsnorm(x: Array, gamma: Any, eps: float = 1e-5, *, plus_one: bool = False, cast: str = "after") -> Any:
    """Return ``x / sqrt(mean(x * x) + eps) * gamma`` over the last axis."""
    a = _wide(x)
    with np.errstate(all="ignore"):
        y = a * _scale(a, eps)
        if cast == "before":
            y = y.astype(x.dtype).astype(a.dtype)
        w = gamma.astype(a.dtype)
        return (y * (a.dtype.type(1) + w if plus_one else w)).astype(x.dtype)


def rmsnorm_residual(
    x: Array, residual: Any, gamma: Any, eps: float = 1e-5, *, plus_one: bool = False, cast: str = "after"
) -> tuple[Any, Any]:
    """Return the norm of ``x + residual``, rounded to its type before, and that sum."""
    with np.errstate(all="ignore"):
        total = (_wide(x) + _wide(residual)).astype(x.dtype)
    return rmsnorm(total, gamma, eps, plus_one=plus_one, cast=cast), total


def rope(x: Array, cos: Array, sin: Array, at: Array, pairs: bool) -> Any:
    """Return heads ``[tokens, heads, dim]`` turned by the tables' angles at positions; negative ones turn nothing."""
    dim = x.shape[-1]
    half = dim // 2 if cos.shape[1] == dim else cos.shape[1]
    a = _wide(x)
    c, s = (t[np.maximum(at, 0), None, :half].astype(a.dtype) for t in (cos, sin))
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if pairs else (slice(half), slice(half, 2 * half))
    out = a.copy()
    turns = (at >= 0)[:, None, None]
    with np.errstate(all="ignore"):
        out[..., first] = np.where(turns, a[..., first] * c - a[..., second] * s, a[..., first])
        out[..., second] = np.where(turns, a[..., second] * c + a[..., first] * s, a[..., second])
        return out.astype(x.dtype)


def embedding(ids: Array, table: Array, scale: float | None = None) -> Any:
    """Return rows of a table, times a factor that is rounded to the table's type."""
    rows = table[ids]
    if scale is None:
        return rows
    wide = _wide(rows)
    return (wide * wide.dtype.type(table.dtype.type(scale))).astype(table.dtype)
