"""Matrix products on CUDA cores: every type and layout, each sum one chain of fused multiply-adds in order of k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.layout import ACROSS, ALONG_K, ANY, layouts, result_stack, stacks
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
_TILES = "gemm/simt_tiles.cu"
_ROWS = "gemm/simt_rows.cu"
_ROWS_TILE, _ROWS_THREADS, _ROWS_SHARED = (16, 32), 64, 8 * (16 + 32) * 128
_SIDES = {"float32": 128, "float64": 64}
"""Rows and columns of the output per block of the kernel for large shapes."""

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
    return _launch_unit(p, _unit(p), (TILE, TILE))


def _launch_unit(p: Problem, unit: Unit, tile: tuple[int, int], threads: int = _THREADS, shared: int = 0) -> Launch:
    """The launch of a kernel whose blocks compute tiles of so many rows and columns."""
    batch, out, a, b = stacks(p)
    m, n, k = out.rows, out.columns, a.columns
    what = f"matmul of {hint(m)} x {hint(n)}, batch {tuple(hint(x) for x in batch)},"
    blocks = blocks_for(product(batch) * ceil_div(m, tile[0]) * ceil_div(n, tile[1]), 1, what)
    residual = p.arrays["residual"]
    added = out if residual is None else result_stack(p, residual)
    arguments: tuple[Argument, ...] = (
        write(p.out), read(p["a"]), read(p["b"]),
        *map(i64, (m, n, k, out.row, out.column, a.row, a.column, b.row, b.column)),
        nd(batch, [x.batch for x in (out, a, b, added)]),
        *epilogue.arguments(p),
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (threads,), arguments, shared),))


@cache
def tiles_unit(kind: DataType, to: DataType, a: str, b: str, end: str) -> Unit:
    """Return the source of one kernel for large shapes."""
    letters = ("n" if a == ALONG_K else "t") + ("t" if b == ALONG_K else "n")
    tags = [kind.tag, *([] if to is kind else ["to", to.tag]), letters]
    entry = "_".join(["pgk_matmul_tiles", *tags]) + epilogue.suffix(end)
    line = f"PGK_MATMUL_TILES({entry}, {kind.tag}, {to.tag}, {_SIDES[kind.name]}, {a}, {b}, {end})"
    return instance(_TILES, [line], (entry,))


def _tiles_units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        if kind.name in _SIDES:
            for b in (ALONG_K, ACROSS):
                yield tiles_unit(kind, kind, ALONG_K, b, epilogue.PLAIN)


def _tiles_unit(p: Problem) -> Unit:
    return tiles_unit(p["a"].dtype, p.out.dtype, *layouts(p, both=True), epilogue.device_name(p))


def _tiles_refuse(p: Problem) -> str | None:
    kind, how = p["a"].dtype, arithmetic(p)
    if kind.name not in _SIDES or not (p["b"].dtype is kind is how.operands) or how.how != "plain":
        return f"multiplies float32 or float64, not {kind.name} and {p['b'].dtype.name} as {how.operands.name}"
    batch, out, _, _ = stacks(p)
    side = _SIDES[kind.name]
    if 2 * out.rows <= side or 2 * out.columns <= side:
        return f"half of a tile of {side} would be empty"
    if 2 * product(batch) * ceil_div(out.rows, side) * ceil_div(out.columns, side) < p.sm_count:
        return f"tiles of {side} are fewer than half of the SMs"
    for name, lines in zip("ab", layouts(p, both=True), strict=True):
        if lines == ANY:
            return f"{name} does not lie in rows or columns at multiples of 16 bytes"
    return epilogue.refuses(p) or p.missing(_tiles_unit(p))


def _launch_tiles(p: Problem) -> Launch:
    side = _SIDES[p["a"].dtype.name]
    return _launch_unit(p, _tiles_unit(p), (side, side))


@cache
def rows_unit(to: DataType, b: str, end: str) -> Unit:
    """Return the source of one kernel for few rows of float32."""
    tags = [*([] if to.tag == "f32" else ["to", to.tag]), "nt" if b == ALONG_K else "nn"]
    entry = "_".join(["pgk_matmul_rows_f32", *tags]) + epilogue.suffix(end)
    return instance(_ROWS, [f"PGK_MATMUL_ROWS({entry}, {to.tag}, {b}, {end})"], (entry,))


def _rows_units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        if kind.name == "float32":
            for b in (ALONG_K, ACROSS):
                yield rows_unit(kind, b, epilogue.PLAIN)


def _rows_unit(p: Problem) -> Unit:
    return rows_unit(p.out.dtype, layouts(p, both=True)[1], epilogue.device_name(p))


def _rows_refuse(p: Problem) -> str | None:
    kind, how = p["a"].dtype, arithmetic(p)
    if kind.name != "float32" or not (p["b"].dtype is kind is how.operands) or how.how != "plain":
        return f"multiplies float32, not {kind.name} and {p['b'].dtype.name} as {how.operands.name}"
    if stacks(p)[1].rows > _ROWS_TILE[0]:
        return f"is for {_ROWS_TILE[0]} rows at most"
    a, b = layouts(p, both=True)
    if a != ALONG_K or b == ANY:
        return "rows of a, or rows and columns of b, do not lie at multiples of 16 bytes"
    return epilogue.refuses(p) or p.missing(_rows_unit(p))


def _launch_rows(p: Problem) -> Launch:
    return _launch_unit(p, _rows_unit(p), _ROWS_TILE, _ROWS_THREADS, _ROWS_SHARED)


VARIANTS = (
    Variant("CUDA cores, few rows", "batch_invariant", _rows_refuse, launch=_launch_rows, units=_rows_units),
    Variant("CUDA cores, large tiles", "batch_invariant", _tiles_refuse, launch=_launch_tiles, units=_tiles_units),
    Variant("CUDA cores", "batch_invariant", _refuses, launch=launch, units=_units),
)
