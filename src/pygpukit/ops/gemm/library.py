"""Matrix products by cuBLASLt, without a workspace and so without split sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.layout import one_stride, stacks, stored
from pygpukit.ops.gemm.types import arithmetic
from pygpukit.ops.launch import Launch, Product
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import product

_SIXTEEN_BITS = ("bfloat16", "float16")


def _takes(p: Problem) -> str | None:
    from pygpukit.core import cublaslt

    a, b, out = p["a"].dtype, p["b"].dtype, p.out.dtype
    if p.kind != "cuda":
        return "cuBLASLt needs a GPU"
    if arithmetic(p).how != "plain" or a is not b or out is not a or a.name not in _SIXTEEN_BITS:
        return f"multiplies bfloat16 or float16 into the same type, not {a.name} and {b.name} into {out.name}"
    if epilogue.has_epilogue(p):
        return "bias, activation and residual are added by our own kernels"
    if any(n == 0 for n in (*p.out.shape, p["a"].shape[-1])):
        return "there is nothing to multiply"
    return cublaslt.missing()


def _layout(p: Problem) -> Any:
    batch, *operands = stacks(p)
    out, a, b = operands
    lying = [stored(x) for x in (a, b, out)]
    strides = [one_stride(batch, x.batch) for x in (a, b, out)]
    if any(s is None for s in lying) or any(s is None for s in strides) or lying[2].transposed:  # type: ignore[union-attr]
        return None
    return batch, out, a, lying, strides


def _accepts(p: Problem) -> str | None:
    reason = _takes(p)
    if reason is None and _layout(p) is None:
        return "rows or matrices of an operand do not lie at equal distances"
    return reason


def _launch(p: Problem) -> Launch:
    batch, out, a, lying, strides = _layout(p)
    sizes = (out.rows, out.columns, a.columns, product(batch))
    ld = tuple(s.ld for s in lying)
    turned = (lying[0].transposed, lying[1].transposed)
    return Launch((Product(p.out, p["a"], p["b"], sizes, ld, tuple(strides), turned),))


def _compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.ops.gemm.rows import matmul

        a, b = (x.contiguous() for x in given[:2])
        batch = results[0].shape[: max(a.ndim, b.ndim, 2) - 2]
        if batch:
            # Operands that a batch repeats are written out: their matrices then lie at equal distances.
            a, b = (x._broadcast_to([*batch, *x.shape[-2:]]).contiguous() if x.ndim > 1 else x for x in (a, b))
        _native.apply("copy", (matmul(a, b),), results[0])

    return run


VARIANTS = (
    Variant("cuBLASLt", "batch_invariant", _accepts, launch=_launch),
    Variant("copies around cuBLASLt", "batch_invariant", _takes, compose=_compose),
)
