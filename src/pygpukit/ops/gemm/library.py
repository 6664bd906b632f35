"""Matrix products by cuBLASLt: which it takes, and what is done around it.

Without a workspace no algorithm splits a sum, and on sm_90 the results for 16-bit types measured the same bits as our
own kernels', where lines are multiples of 16 bytes; for others the library has kernels that add in another order.
With a workspace, or for types where the order is not known, its variants promise less and run where less is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.layout import Matrices, Stored, one_stride, result_stack, stacks, stored
from pygpukit.ops.gemm.types import arithmetic
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Product,
    Unit,
    Workspace,
    blocks_for,
    i64,
    nd,
    read,
    write,
)
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import ceil_div, hint, product
from pygpukit.ops.source import instance

WORKSPACE = 32 << 20
"""Bytes of workspace where sums may be split: what makes the fastest algorithms available on Hopper."""

_SIXTEEN_BITS = ("bfloat16", "float16")
_FINISH = "gemm/finish.cu"
_THREADS = 256
_PER_THREAD = 8


def asked(p: Problem) -> str:
    """Return the level of determinism that a problem's variant must promise."""
    return p.determinism


class Layout(NamedTuple):
    """A problem as the library takes it: stacks of matrices at equal distances."""

    batch: tuple[Any, ...]
    out: Matrices
    a: Matrices
    stored: tuple[Stored, Stored, Stored]
    strides: tuple[Any, Any, Any]


def layout(p: Problem) -> Layout | None:
    """Return the layout of a problem; None where rows or matrices do not lie at equal distances."""
    batch, out, a, b = stacks(p)
    lying = (stored(a), stored(b), stored(out))
    strides = (one_stride(batch, a.batch), one_stride(batch, b.batch), one_stride(batch, out.batch))
    first, second, third = lying
    if first is None or second is None or third is None or third.transposed or any(s is None for s in strides):
        return None
    return Layout(batch, out, a, (first, second, third), strides)


def _present(p: Problem) -> str | None:
    from pygpukit.core import cublaslt

    if p.kind != "cuda":
        return "cuBLASLt needs a GPU"
    if any(n == 0 for n in (*p.out.shape, p["a"].shape[-1])):
        return "there is nothing to multiply"
    return cublaslt.missing()


def _same(p: Problem) -> DataType | None:
    """The type of both operands, where that is what is multiplied."""
    kind = p["a"].dtype
    return kind if p["b"].dtype is kind is arithmetic(p).operands else None


def _takes(p: Problem) -> str | None:
    """Products of 16-bit types, whose order of sums is known on sm_90 alone."""
    kind, out = _same(p), p.out.dtype
    if p.kind != "cuda":
        return "cuBLASLt needs a GPU"
    if kind is None or kind.name not in _SIXTEEN_BITS or (out is not kind and out.name != "float32"):
        names = p["a"].dtype.name, p["b"].dtype.name
        return (
            f"multiplies bfloat16 or float16 into the same type or float32, not {' and '.join(names)} into {out.name}"
        )
    if p.compute_capability != 90:
        return f"the order of its sums is not known on sm_{p.arch}"
    return _present(p)


def _no_epilogue(p: Problem) -> str | None:
    return "bias, activation and residual are added by our own kernels" if epilogue.has_epilogue(p) else None


def _lies(p: Problem) -> str | None:
    return None if layout(p) is not None else "rows or matrices of an operand do not lie at equal distances"


_UNALIGNED = "for lines that are no multiples of 16 bytes the library adds in an order of its own"


def _whole(p: Problem) -> str | None:
    """Products whose n and k are whole vectors."""
    n, k = p["b"].shape[-1] if p["b"].ndim > 1 else 1, p["a"].shape[-1]
    return _UNALIGNED if n % _PER_THREAD != 0 or k % _PER_THREAD != 0 else None


def _aligned(p: Problem, with_out: bool) -> str | None:
    """Products all of whose lines are vectors: of other ones the order is another."""
    batch, out, a, b = stacks(p)
    for tensor, matrices in [(p["a"], a), (p["b"], b)] + [(p.out, out)] * with_out:
        per, lying, step = 16 // tensor.dtype.itemsize, stored(matrices), one_stride(batch, matrices.batch)
        if not tensor.is_aligned(16) or (lying is not None and lying.ld % per != 0):
            return _UNALIGNED
        if step is not None and step % per != 0:
            return _UNALIGNED
    return _whole(p)


def _accepts(p: Problem) -> str | None:
    return _takes(p) or _no_epilogue(p) or _lies(p) or _aligned(p, True)


def _step(p: Problem, found: Layout, out: Tensor, workspace: Tensor | None = None) -> Product:
    """The library's step, into the result or into a dense stack of workspace."""
    sizes = (found.out.rows, found.out.columns, found.a.columns, product(found.batch))
    a, b, to = (s.ld for s in found.stored)
    strides = found.strides
    if out is not p.out:
        to = out.shape[-1]
        strides = (strides[0], strides[1], out.shape[-2] * to)
    turned = (found.stored[0].transposed, found.stored[1].transposed)
    tf32 = arithmetic(p).how == "tf32"
    return Product(out, p["a"], p["b"], sizes, (a, b, to), strides, turned, tf32, workspace)


def _launch(p: Problem) -> Launch:
    found = layout(p)
    assert found is not None
    return Launch((_step(p, found, p.out),))


def _relaxed(p: Problem) -> str | None:
    how, kind = arithmetic(p), _same(p)
    if p.kind != "cuda":
        return "cuBLASLt needs a GPU"
    if asked(p) == "batch_invariant":
        return "may split sums by the number of rows, and batch_invariant is asked"
    known = kind is not None and kind.name in (*_SIXTEEN_BITS, "float32", "float64") and how.how in ("plain", "tf32")
    if not known or p.out.dtype is not kind:
        return f"does not multiply {p['a'].dtype.name} and {p['b'].dtype.name} into {p.out.dtype.name}"
    return _no_epilogue(p) or _present(p) or _lies(p)


def _launch_relaxed(p: Problem) -> Launch:
    found = layout(p)
    assert found is not None
    work = Workspace()
    room = work.buffer(dtype("uint8"), WORKSPACE)
    return Launch((_step(p, found, p.out, room),), tuple(work.pieces))


def _along_k(p: Problem, how: str, per: int) -> str | None:
    """Products whose operands must have lines along k, at multiples of 16 bytes."""
    if arithmetic(p).how != how:
        return f"multiplies {'int8 to int32' if how == 'int32' else 'float8_e4m3fn'} alone"
    reason = _present(p) or _lies_without_out(p)
    if reason is not None:
        return reason
    batch, out, a, b = stacks(p)
    left, right = stored(a), stored(b)
    assert left is not None
    assert right is not None
    if left.transposed or not right.transposed:
        return "the library wants lines along k: weights as [N, K], passed as w.T"
    distances = (one_stride(batch, a.batch), one_stride(batch, b.batch))
    steps = (a.columns, out.columns, left.ld, right.ld, *distances)
    if any(n % per != 0 for n in steps) or not (p["a"].is_aligned(16) and p["b"].is_aligned(16)):
        return f"the library wants sizes and distances that are multiples of {per}, and addresses of 16 bytes"
    return None


def _accepts_int8(p: Problem) -> str | None:
    return (
        _along_k(p, "int32", 16)
        or _no_epilogue(p)
        or _lies(p)
        or (None if p.out.dtype.name == "int32" else "writes int32")
    )


def _multiplies_float8(p: Problem) -> str | None:
    reason = _along_k(p, "fp8", 16)
    if reason is None and p.compute_capability < 89:
        return f"tensor cores of sm_{p.arch} have no float8: precision='bfloat16' holds it exactly"
    return reason


def _accepts_float8(p: Problem) -> str | None:
    return _multiplies_float8(p) or _no_epilogue(p) or _lies(p)


def _finished_float8(p: Problem) -> str | None:
    if not epilogue.has_epilogue(p):
        return "nothing is done after the product"
    return _multiplies_float8(p) or epilogue.refuses(p) or p.missing(_finish_unit(p))


def _finished(p: Problem) -> str | None:
    if not epilogue.has_epilogue(p):
        return "nothing is added after the product"
    reason = _takes(p) or epilogue.refuses(p) or _lies_without_out(p) or _aligned(p, False)
    return reason or p.missing(_finish_unit(p))


def _lies_without_out(p: Problem) -> str | None:
    batch, _, a, b = stacks(p)
    good = stored(a) is not None and stored(b) is not None
    good = good and one_stride(batch, a.batch) is not None and one_stride(batch, b.batch) is not None
    return None if good else "rows or matrices of an operand do not lie at equal distances"


@cache
def finish_unit(to: DataType, end: str) -> Unit:
    """Return the source of the pass that ends a product of float32 sums."""
    entry = f"pgk_matmul_finish_{to.tag}{epilogue.suffix(end)}"
    return instance(_FINISH, [f"PGK_MATMUL_FINISH({entry}, {to.tag}, {end})"], (entry,))


def _finish_units(types: Sequence[str]) -> Iterator[Unit]:
    """Return the passes for a bundle: every activation, into the types whose products the library makes."""
    for name in types:
        if name in _SIXTEEN_BITS:
            for end, _ in epilogue.ACTIVATIONS.values():
                yield finish_unit(dtype(name), end)


def _finish_unit(p: Problem) -> Unit:
    return finish_unit(p.out.dtype, epilogue.device_name(p))


def _launch_finished(p: Problem) -> Launch:
    batch, out, a, b = stacks(p)
    left, right = stored(a), stored(b)
    assert left is not None
    assert right is not None
    count = product(batch)
    work = Workspace()
    # Rows at multiples of 16 bytes, whatever n is.
    width = ceil_div(out.columns, _PER_THREAD) * _PER_THREAD
    sums = work.buffer(dtype("float32"), count, out.rows, width)
    strides = (one_stride(batch, a.batch), one_stride(batch, b.batch), 0)
    found = Layout(batch, out, a, (left, right, Stored(False, width)), strides)
    blocks = blocks_for(
        count * out.rows * (width // _PER_THREAD), _THREADS, f"matmul of {hint(out.rows)} x {hint(out.columns)}"
    )
    residual = p.arrays["residual"]
    added = out if residual is None else result_stack(p, residual)
    arguments: tuple[Argument, ...] = (
        write(p.out), read(sums), *map(i64, (out.rows, out.columns, count, out.row, out.column)),
        nd(batch, [x.batch for x in (out, added)]), *epilogue.arguments(p), *epilogue.scale_arguments(p),
    )  # fmt: skip
    unit = _finish_unit(p)
    finish = KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments)
    return Launch((_step(p, found, sums), finish), tuple(work.pieces))


def _copies(p: Problem) -> str | None:
    return _takes(p) or _no_epilogue(p) or _whole(p)


def _compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.array.creation import empty_like
        from pygpukit.ops.gemm.rows import matmul

        a, b = (x.contiguous() for x in given[:2])
        batch = results[0].shape[: max(a.ndim, b.ndim, 2) - 2]
        if batch:
            # Operands that a batch repeats are written out: their matrices then lie at equal distances.
            a, b = (x._broadcast_to([*batch, *x.shape[-2:]]).contiguous() if x.ndim > 1 else x for x in (a, b))
        _native.apply("copy", (matmul(a, b, out=empty_like(results[0])),), results[0])

    return run


RELAXED = (Variant("cuBLASLt with a workspace", "run_to_run", _relaxed, launch=_launch_relaxed),)
"""Asked before all others."""

DIRECT = (Variant("cuBLASLt", "batch_invariant", _accepts, launch=_launch),)
"""Before our own kernels of the same bits."""

OTHERS = (
    Variant("cuBLASLt, int8", "batch_invariant", _accepts_int8, launch=_launch),
    Variant("cuBLASLt, float8", "run_to_run", _accepts_float8, launch=_launch),
    Variant("cuBLASLt, float8, then a pass", "run_to_run", _finished_float8, launch=_launch_finished),
    Variant("cuBLASLt, then a pass", "batch_invariant", _finished, launch=_launch_finished, units=_finish_units),
    Variant("copies around cuBLASLt", "batch_invariant", _copies, compose=_compose),
)
"""Where none of our kernels made for the GPU at hand takes a call."""
