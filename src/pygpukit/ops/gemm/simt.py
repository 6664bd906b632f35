"""Matrix products on CUDA cores: every type and layout, each sum one chain of fused multiply-adds in order of k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.layout import result_stack, stacks
from pygpukit.ops.gemm.types import ROW, Arithmetic, accumulator, arithmetic, chosen, matmul_type, wide_type
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i64, nd, read, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.promotion import resolve
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import ceil_div, hint, product
from pygpukit.ops.source import instance

TILE = 64
"""Rows and columns of the output per block."""

_FILE = "gemm/simt.cu"
_THREADS = 256


def matmul_entry(a: DataType, b: DataType, to: DataType, end: str = epilogue.PLAIN) -> str:
    """Return the kernel's name."""
    common, result = resolve(ROW, (a, b))
    tags = [common.tag] if a.tag == b.tag == common.tag else [a.tag, b.tag]
    name = "_".join(["pgk_matmul", *tags, *([] if to.tag == result.tag else ["to", to.tag])])
    return name + epilogue.suffix(end)


@cache
def matmul_unit(
    a: DataType, b: DataType, to: DataType, end: str = epilogue.PLAIN, how: Arithmetic | None = None
) -> Unit:
    """Return the source of the product of ``a`` and ``b`` written as ``to``."""
    how = chosen(a, b) if how is None else how
    partial_type = accumulator(how.operands)
    # Integers are summed unsigned: the sign comes back before a wider type is filled.
    rounded = how.result if how.operands.kind in "iu" else partial_type
    logical = "true" if how.operands.kind == "b" else "false"
    exact = "_exact" if how.how == "int32" else ""
    entry = matmul_entry(a, b, to, end) + exact
    kinds = f"{a.tag}, {b.tag}, {partial_type.tag}, {rounded.tag}, {to.tag}, {logical}, {end}"
    return instance(_FILE, [f"PGK_MATMUL({entry}, {kinds})"], (entry,))


def _unit(p: Problem) -> Unit:
    how = arithmetic(p)
    special = how if how.how == "int32" else None
    return matmul_unit(p["a"].dtype, p["b"].dtype, p.out.dtype, epilogue.device_name(p), special)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        yield matmul_unit(kind, kind, matmul_type(kind, kind))


def _refuses(p: Problem) -> str | None:
    a, b, out = p["a"].dtype, p["b"].dtype, p.out.dtype
    how = arithmetic(p)
    if how.how in ("tf32", "fp8"):
        return f"multiplies exactly, and {how.how} was asked for"
    common = resolve(ROW, (a, b))[0]
    if how.operands is not common and accumulator(how.operands) is not how.operands:
        return f"multiplies {a.name} and {b.name} without rounding them to {how.operands.name}"
    if how.operands.kind == "f" and accumulator(how.operands) is not accumulator(common):
        return f"sums in {accumulator(common).name}, and {how.operands.name} was asked for"
    reason = epilogue.refuses(p)
    if reason is not None:
        return reason
    wide = wide_type(a, b)
    if a is wide and b is wide and out is wide and not epilogue.has_epilogue(p):
        return None
    return p.missing(_unit(p))


def launch(p: Problem) -> Launch:
    """Return the launch for operands of any strides."""
    batch, out, a, b = stacks(p)
    m, n, k = out.rows, out.columns, a.columns
    what = f"matmul of {hint(m)} x {hint(n)}, batch {tuple(hint(x) for x in batch)},"
    blocks = blocks_for(product(batch) * ceil_div(m, TILE) * ceil_div(n, TILE), 1, what)
    unit = _unit(p)
    residual = p.arrays["residual"]
    added = out if residual is None else result_stack(p, residual)
    arguments: tuple[Argument, ...] = (
        write(p.out), read(p["a"]), read(p["b"]),
        *map(i64, (m, n, k, out.row, out.column, a.row, a.column, b.row, b.column)),
        nd(batch, [x.batch for x in (out, a, b, added)]),
        *epilogue.arguments(p),
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


VARIANTS = (Variant("CUDA cores", "batch_invariant", _refuses, launch=launch, units=_units),)
