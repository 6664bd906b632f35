"""Matrix products on the tensor cores of sm_80 and newer by ``mma.sync``: tiles, layouts and launches.

Every kernel here sums in the canonical order, one accumulator and steps of 32 bytes of k in ascending order, so tiles,
layouts and alignment decide speed and no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.layout import ACROSS, ALONG_K, ANY, Matrices, layouts, result_stack, stacks
from pygpukit.ops.gemm.types import Arithmetic, arithmetic
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i64, nd, read, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import ceil_div, hint, product
from pygpukit.ops.source import instance

_FILE = "gemm/mma_sm80.cu"
_LINE = 128
"""Bytes of k in a tile."""


class Tile(NamedTuple):
    """Rows and columns of the result per block and per warp, tiles of k in flight, blocks per SM."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    blocks: int = 1

    @property
    def name(self) -> str:
        """As in entries and in explanations."""
        return f"{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    def shared(self, copied: bool) -> int:
        """Bytes of shared memory: the tiles in flight, or the sums of the result."""
        stages = self.stages if copied else 1
        return max(stages * (self.rows + self.columns) * _LINE, self.rows * (self.columns + 8) * 4)


LARGE = Tile(128, 256, 64, 64, 3)
MEDIUM = Tile(128, 128, 64, 64, 3, 2)
SMALL = Tile(64, 64, 32, 32, 4, 2)
ROWS = Tile(16, 32, 16, 16, 8, 4)


def tag_of(how: Arithmetic) -> str | None:
    """Return what ``pgk::Mma`` calls the operands; None where it has no product for them."""
    if how.how in ("tf32", "int32"):
        return "tf32" if how.how == "tf32" else "i8"
    return how.operands.tag if how.how == "plain" and how.operands.name in ("bfloat16", "float16") else None


def _tag(p: Problem) -> str | None:
    """The same, for operands that need no cast."""
    how = arithmetic(p)
    return tag_of(how) if p["a"].dtype is p["b"].dtype is how.operands else None


@cache
def mma_unit(tag: str, to: DataType, tile: Tile, a: str, b: str, end: str) -> Unit:
    """Return the source of one kernel."""
    name = {"tf32": "f32", "i8": "i32"}.get(tag, tag)
    letters = "any" if a == ANY else ("n" if a == ALONG_K else "t") + ("t" if b == ALONG_K else "n")
    kinds = [tag, *([] if to.tag == name else ["to", to.tag]), letters, tile.name]
    entry = "_".join(["pgk_matmul_mma", *kinds]) + epilogue.suffix(end)
    sizes = ", ".join(map(str, tile[:5]))
    line = f"PGK_MATMUL_MMA({entry}, {tag}, {to.tag}, {sizes}, {a}, {b}, {end}, {tile.blocks})"
    return instance(_FILE, [line], (entry,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        if kind.name in ("bfloat16", "float16"):
            for tile in (MEDIUM, SMALL):
                yield mma_unit(kind.tag, kind, tile, ALONG_K, ALONG_K, epilogue.PLAIN)
                yield mma_unit(kind.tag, kind, tile, ALONG_K, ACROSS, epilogue.PLAIN)
            yield mma_unit(kind.tag, kind, SMALL, ANY, ANY, epilogue.PLAIN)
        elif kind.name in ("float32", "int8"):
            tag, to = ("tf32", kind) if kind.name == "float32" else ("i8", dtype("int32"))
            yield mma_unit(tag, to, SMALL, ALONG_K, ALONG_K, epilogue.PLAIN)
            yield mma_unit(tag, to, SMALL, ANY, ANY, epilogue.PLAIN)


def tile_of(p: Problem, batch: Sequence[Any], out: Matrices, a: str) -> Tile:
    """Return the largest tile of which there are enough for all SMs."""
    if out.rows <= ROWS.rows and a == ALONG_K:
        return ROWS
    for tile in (LARGE, MEDIUM):
        tiles = product(batch) * ceil_div(out.rows, tile.rows) * ceil_div(out.columns, tile.columns)
        if tiles >= p.sm_count:
            return tile
    return SMALL


def _refuses(p: Problem) -> str | None:
    how = arithmetic(p)
    if _tag(p) is None:
        kinds = f"{p['a'].dtype.name} and {p['b'].dtype.name}"
        if how.how == "fp8":
            return "mma.sync is not what float8 is multiplied by: precision='bfloat16' holds it exactly"
        return f"multiplies bfloat16, float16, tf32 or int8 to int32, not {kinds} as {how.operands.name}"
    return epilogue.refuses(p)


def _refuses_copied(p: Problem) -> str | None:
    reason = _refuses(p)
    if reason is not None:
        return reason
    kinds = layouts(p)
    for name, lines in zip("ab", kinds, strict=True):
        if lines == ANY:
            sixteen = p[name].dtype.itemsize == 2
            return (
                f"{name} does not lie in {'rows or columns' if sixteen else 'lines along k'} at multiples of 16 bytes"
            )
    return p.missing(_unit(p, kinds))


def _unit(p: Problem, kinds: tuple[str, str]) -> Unit:
    tag = _tag(p)
    assert tag is not None
    batch, out, _, _ = stacks(p)
    tile = SMALL if ANY in kinds else tile_of(p, batch, out, kinds[0])
    return mma_unit(tag, p.out.dtype, tile, *kinds, epilogue.device_name(p))


def _launch_as(p: Problem, kinds: tuple[str, str]) -> Launch:
    batch, out, a, b = stacks(p)
    copied = ANY not in kinds
    tile = tile_of(p, batch, out, kinds[0]) if copied else SMALL
    unit = _unit(p, kinds)
    m, n, k = out.rows, out.columns, a.columns
    what = f"matmul of {hint(m)} x {hint(n)}, batch {tuple(hint(x) for x in batch)},"
    blocks = blocks_for(product(batch) * ceil_div(m, tile.rows) * ceil_div(n, tile.columns), 1, what)
    residual = p.arrays["residual"]
    added = out if residual is None else result_stack(p, residual)
    arguments: tuple[Argument, ...] = (
        write(p.out), read(p["a"]), read(p["b"]),
        *map(i64, (m, n, k, out.row, out.column, a.row, a.column, b.row, b.column)),
        nd(batch, [x.batch for x in (out, a, b, added)]),
        *epilogue.arguments(p),
    )  # fmt: skip
    shared = tile.shared(copied)
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (tile.threads,), arguments, shared),))


def _launch(p: Problem) -> Launch:
    return _launch_as(p, layouts(p))


def _launch_any(p: Problem) -> Launch:
    return _launch_as(p, (ANY, ANY))


def _refuses_any(p: Problem) -> str | None:
    reason = _refuses(p)
    return reason if reason is not None else p.missing(_unit(p, (ANY, ANY)))


def _refuses_turning(p: Problem) -> str | None:
    reason = _refuses(p)
    if reason is not None:
        return reason
    if p["a"].dtype.itemsize == 2:
        return "16-bit operands need no copy"
    per_chunk = 16 // p["a"].dtype.itemsize
    if p["a"].shape[-1] % per_chunk != 0:
        return f"lines of k are no multiple of 16 bytes ({per_chunk} elements) after a copy either"
    # A copy moves an operand once, a kernel reads it per tile of the other: it has to be read often.
    _, out, _, _ = stacks(p)
    return None if out.rows > SMALL.rows else f"a copy does not pay for {SMALL.rows} rows or fewer"


def _turn(p: Problem) -> Callable[..., None]:
    """The same product of operands whose lines lie along k."""
    turned = [lines != ALONG_K for lines in layouts(p)]

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.ops.gemm.rows import matmul

        a, b, precision, bias, activation, residual, use_tf32, *_ = given
        a = a.contiguous().copy() if turned[0] else a
        b = (b.mT.contiguous().mT if b.ndim > 1 else b.copy()) if turned[1] else b
        matmul(a, b, precision=precision, bias=bias, activation=activation, residual=residual, use_tf32=use_tf32,
               out=results[0])  # fmt: skip

    return run


VARIANTS = (
    Variant("mma.sync", "batch_invariant", _refuses_copied, launch=_launch, units=_units),
    Variant("mma.sync after a copy with lines along k", "batch_invariant", _refuses_turning, compose=_turn),
    Variant("mma.sync, element by element", "batch_invariant", _refuses_any, launch=_launch_any),
)
