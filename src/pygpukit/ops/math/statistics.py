"""Covariance and correlation, made of means and a product."""

from __future__ import annotations

import operator
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import zeros
from pygpukit.dtypes import DTypeLike
from pygpukit.dtypes import dtype as as_dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.math.types import result_type
from pygpukit.ops.operands import as_array, common_device
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.registry import export
from pygpukit.ops.shape.joining import concatenate
from pygpukit.ops.shape.views import diagonal


def _table(x: Any, what: str, rowvar: bool) -> GPUArray:
    """Variables as rows; a vector is one variable."""
    if x.ndim > 2:
        raise ShapeError(f"{what} takes vectors and matrices, not an array of {x.ndim} dimensions")
    if x.ndim < 2:
        return x.reshape(1, -1)  # type: ignore[no-any-return]
    return x if rowvar else x.T  # type: ignore[no-any-return]


def _weights(w: Any, count: int, name: str, kinds: str, like: GPUArray) -> GPUArray:
    given = as_array(w, f"cov(): {name}", like.device)
    if given.dtype.kind not in kinds:
        raise TypeError(f"cov(): {name} must be {'integers' if kinds == 'biu' else 'numbers'}, not {given.dtype.name}")
    if given.ndim != 1:
        raise RuntimeError(f"cov(): {name} must be a vector, not an array of {given.ndim} dimensions")
    if given.size != count:
        raise RuntimeError(f"cov(): {given.size} {name} for {count} observations; give as many")
    return given.astype("float64", copy=False)


@export
def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
        aweights: Any = None, *, dtype: DTypeLike | None = None) -> GPUArray:  # fmt: skip
    """Covariance of variables.

    Parameters
    ----------
    m : GPUArray
        A variable per row, or per column if not ``rowvar``; a vector is one variable.
    y : GPUArray, optional
        More variables.
    rowvar : bool, optional
        Rows are variables.
    bias : bool, optional
        Divide by the number of observations instead of one less.
    ddof : int, optional
        What is subtracted from the number of observations, in place of ``bias``.
    fweights, aweights : GPUArray, optional
        How often each observation counts, and how much. That none is negative is not checked.
    dtype : DataType, optional
        Of the result; at least float64 by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.cov(gp.asarray([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if ddof is not None and ddof != int(ddof):
        raise ValueError(f"cov(): ddof must be an integer, not {ddof!r}")
    device = common_device((m, y))
    first = as_array(m, "cov()", device)
    second = None if y is None else as_array(y, "cov()", device)
    parts = [first] if second is None else [first, second]
    kind = result_type(*(p.dtype for p in parts), "float64") if dtype is None else as_dtype(dtype)
    tables = [_table(p.astype(kind, copy=False), "cov()", rowvar) for p in parts]
    x: GPUArray = tables[0] if second is None else concatenate(tables, 0)
    if x.shape[0] == 0:
        return zeros((0, 0), kind, device=x.device)
    count, less = x.shape[1], (int(not bias) if ddof is None else operator.index(int(ddof)))
    weight: Any = None
    if fweights is not None:
        weight = _weights(fweights, count, "fweights", "biu", x)
    if aweights is not None:
        scale = _weights(aweights, count, "aweights", "biuf", x)
        weight = scale if weight is None else e.mul(weight, scale)
    total = FUNCTIONS["sum"]
    if weight is None:
        centred = e.sub(x, FUNCTIONS["mean"](x, 1, keepdims=True))
        divisor: Any = float(max(count - less, 0))
    else:
        whole = total(weight)
        centred = e.sub(x, e.div(total(e.mul(x, weight), 1, keepdims=True), whole))
        divisor = whole
        if less:
            lost = less if aweights is None else e.div(total(e.mul(weight, scale)), whole) * less
            divisor = e.maximum(e.sub(whole, lost), 0.0)
    weighted = (centred if weight is None else e.mul(centred, weight)).T
    product = matmul(centred, e.conj(weighted) if kind.kind == "c" else weighted)
    # NumPy multiplies by the quotient; a quotient of numbers is computed as an array's is.
    by = e.div(1.0, divisor) if isinstance(divisor, GPUArray) else (1.0 / divisor if divisor else float("inf"))
    result = e.mul(product, by).astype(kind, copy=False)
    return result.reshape(()) if x.shape[0] == 1 else result


@export
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: DTypeLike | None = None) -> GPUArray:
    """Correlation coefficients of variables: `cov` divided by the standard deviations, from -1 to 1.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.corrcoef(gp.asarray([[0.0, 1.0, 2.0], [4.0, 2.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return e.div(c, c)
    deviation = e.sqrt(diagonal(c).real)
    c = e.div(e.div(c, deviation._expand(1)), deviation._expand(0))
    if c.dtype.kind == "c":
        for part in (c.real, c.imag):
            e.clamp(part, -1.0, 1.0, out=part)
        return c
    return e.clamp(c, -1.0, 1.0)
