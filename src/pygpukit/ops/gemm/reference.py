"""NumPy's matrix product in every precision, and the functions the CPU device runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.types import Arithmetic, accumulator, arithmetic, chosen, wide_type
from pygpukit.ops.problem import Problem


def round_to_tf32(x: Any) -> Any:
    """Return float32 numbers rounded to 10 bits of mantissa, ties away from zero, as ``cvt.rna.tf32`` does."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).view(np.float32)


def product(a: Any, b: Any, how: Arithmetic) -> Any:
    """Return the product before it is rounded, in the type it is summed in."""
    with np.errstate(all="ignore"):
        if how.how == "int32":
            # Every partial sum of products of int8 is exact in float64.
            exact: Any = np.matmul(a.astype(np.float64), b.astype(np.float64))
            return np.asarray(exact).astype(np.int64).astype(np.int32)
        small = to_numpy_dtype(how.operands)
        a, b = a.astype(small, copy=False), b.astype(small, copy=False)
        if how.how == "tf32":
            a, b = round_to_tf32(a), round_to_tf32(b)
        wide = to_numpy_dtype(accumulator(how.operands)) if how.operands.kind == "f" else small
        return np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))


def reference(
    a: Any, b: Any, precision: Any = None, bias: Any = None, activation: Any = None, residual: Any = None,
    use_tf32: Any = None, scale_a: Any = None, scale_b: Any = None, *, out: DataType | None = None,
) -> Any:  # fmt: skip
    """Return the product as NumPy computes it: small floats multiplied and summed in float32, and rounded once."""
    how = chosen(dtype(a.dtype), dtype(b.dtype), precision, use_tf32)
    with np.errstate(all="ignore"):
        total = epilogue.scaled(product(a, b, how), a, b, scale_a, scale_b)
        total = epilogue.reference(total, bias, activation, residual)
        return np.asarray(total).astype(to_numpy_dtype(how.result if out is None else out), copy=False)


def host(p: Problem) -> Callable[..., None]:
    """Return the function the CPU device runs: over operands, bias, residual and the result."""
    a, b, out = p["a"].dtype, p["b"].dtype, p.out.dtype
    how = arithmetic(p)
    if how.how == "plain" and a is b is out is how.operands and wide_type(a, b) is a and not epilogue.has_epilogue(p):
        # NumPy's own loop, which writes the result; it is called without the optional arrays.
        return np.matmul
    return partial(_round_once, p.options["precision"], p.options["activation"], p.options["use_tf32"], out)


def rows_refuse(p: Problem) -> str | None:
    """Return why a product cannot be computed row by row in an order of its own; None if it can."""
    a, b = p["a"], p["b"]
    if p.determinism != "batch_invariant":
        return f"NumPy may be faster, and {p.determinism} is asked"
    how = arithmetic(p)
    is_float32 = how.how == "plain" and all(t.name == "float32" for t in (a.dtype, b.dtype, p.out.dtype, how.operands))
    if not is_float32 or a.ndim != 2 or b.ndim != 2:
        return "not a product of two float32 matrices"
    activated = epilogue.activation_of(p.options["activation"]) != "none"
    if activated or p.arrays["residual"] is not None or epilogue.has_scales(p):
        return "has an activation, a residual or scales"
    if a.shape[1] != 1 and (a.strides[1] != 1 or b.strides[0] != 1):
        return "the elements along k do not lie side by side, as in x @ w.T"
    if (a.shape[0] != 1 and a.strides[0] < a.shape[1]) or (b.shape[1] != 1 and b.strides[1] < b.shape[0]):
        return "lines along k are turned around or share elements"
    return None if p.out.is_contiguous() else "out is not contiguous"


def rows_host(p: Problem) -> Callable[..., None]:
    """Return the function that does: a row's bits are the same whatever the other rows are."""

    def run(a: Any, b: Any, bias: Any, *rest: Any) -> None:
        out = rest[-1]
        _native.linear_rows(a, b.T, out)
        if bias is not None:
            np.add(out, bias, out)

    return run


def _round_once(
    precision: Any, activation: Any, use_tf32: Any, kind: DataType, a: Any, b: Any, bias: Any, residual: Any,
    scale_a: Any, scale_b: Any, out: Any,
) -> None:  # fmt: skip
    made = reference(a, b, precision, bias, activation, residual, use_tf32, scale_a, scale_b, out=kind)
    np.copyto(out, made, casting="unsafe")
