"""Matrix products on the tensor cores of SM 90a: tiles by shape, all with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.array.creation import empty
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm import skinny
from pygpukit.ops.gemm.boxes import ARCHITECTURE, Operands, operands, refuses_types
from pygpukit.ops.gemm.epilogue import PLAIN, device_name, scale_arguments, suffix
from pygpukit.ops.gemm.epilogue import refuses as epilogue_refuses
from pygpukit.ops.launch import (
    Argument,
    Compose,
    KernelLaunch,
    Launch,
    Struct,
    Unit,
    Workspace,
    blocks_for,
    i32,
    i64,
    nd,
    read,
    tensor_map,
    write,
)
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import ceil_div, minimum
from pygpukit.ops.source import instance

_FILE = "gemm/wgmma_sm90.cu"
_RASTER = 8
"""Tiles along m that are walked before the next along n: then what runs at a time shares rows and columns in the L2."""

_WHOLE = 100
"""SMs from which on blocks form clusters: smaller lanes may be cut where clusters do not fit."""


_ROUNDED_FROM = 256
"""Rows and columns from which on operands of tf32 are rounded in memory, not in every tile."""

KINDS = ("bfloat16", "float16", "float32", "float8_e4m3fn", "int8")
"""Element types of the operands: float32 as tf32, float8 with ``precision="fp8"``, int8 with ``precision="int32"``."""

_WIDEST = {"float8_e4m3fn": 192}
"""Largest n of a tile where sums are kept twice."""


class Tile(NamedTuple):
    """A tile of the result.

    Attributes
    ----------
    m, n
        Its sides.
    stages
        Tiles of k under way.
    cluster
        Blocks that share their part of b.
    cycles
        Estimate for 128 bytes of k: the larger of the multiplication and of the copies from the L2 at 46 bytes a cycle.
    """

    m: int
    n: int
    stages: int
    cluster: int
    cycles: int

    @property
    def groups(self) -> int:
        """Warp groups that multiply."""
        return 2 if self.m >= 128 else 1

    def takes(self, b_mn: bool) -> bool:
        """Can the blocks of a cluster share b? Boxes of 64 columns cannot be cut."""
        return not b_mn or self.n % (64 * self.cluster) == 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory: stages, pieces of the result, and barriers."""
        return self.stages * ((self.m + self.n) * 128 + 24) + self.groups * 2 * 64 * 128


TILES = (
    Tile(128, 256, 4, 2, 1024),
    Tile(128, 256, 4, 1, 1068),
    Tile(128, 192, 4, 2, 768),
    Tile(128, 192, 4, 1, 890),
    Tile(128, 128, 6, 2, 534),
    Tile(128, 128, 6, 1, 712),
    Tile(128, 64, 8, 2, 445),
    Tile(128, 64, 8, 1, 534),
    Tile(64, 128, 8, 2, 356),
    Tile(64, 128, 8, 1, 534),
    Tile(64, 64, 12, 2, 267),
    Tile(64, 64, 12, 1, 356),
)
"""Tiles to choose from; where two are as good the first is taken."""

_forced: Tile | None = None


def force(tile: Tile | None) -> None:
    """Take this tile for every product from now on; None chooses by shape again. For tests and tuning."""
    global _forced
    _forced = tile
    _native.clear_plans()


def accepts(p: Problem) -> str | None:
    """Return why the kernel cannot run a problem; None if it can."""
    reason = refuses_types(p, KINDS)
    if reason is not None:
        return reason
    found = operands(p)
    if isinstance(found, str):
        return found
    return p.missing(_unit_of(p, found, _tile(found, p.sm_count)))


def launch(p: Problem) -> Launch:
    """Return the launch of a problem that `accepts` took."""
    found = operands(p)
    assert isinstance(found, Operands)
    return Launch((_step(p, found),))


def accepts_rounded(p: Problem) -> str | None:
    """Return why operands are not rounded to tf32 before they are multiplied; None if they are."""
    reason = refuses_types(p, ("float32",))
    if reason is not None:
        return reason
    found = operands(p)
    if isinstance(found, str):
        return found
    if found.m < _ROUNDED_FROM or found.n < _ROUNDED_FROM:
        return f"has under {_ROUNDED_FROM} rows or columns: a pass over the operands would take longer"
    return p.missing(_unit_of(p, found, _tile(found, p.sm_count), True)) or p.missing(_round_unit())


def launch_rounded(p: Problem) -> Launch:
    """Return the launch of a problem that `accepts_rounded` took: a pass over each operand, and the product."""
    found = operands(p)
    assert isinstance(found, Operands)
    work, steps, sides = Workspace(), [], []
    for side in (found.a, found.b):
        width = ceil_div(side.k, 4)
        rounded = work.buffer(side.tensor.dtype, side.count, side.lines, width * 4)
        blocks = blocks_for(side.count * side.lines * width, 4 * 256, "matmul()")
        arguments: tuple[Argument, ...] = (
            write(rounded), read(side.tensor), i64(side.count), i64(side.lines), i64(side.k), i64(side.ld),
            i64(side.step),
        )  # fmt: skip
        steps.append(KernelLaunch(_round_unit(), _round_unit().entries[0], (blocks,), (256,), arguments))
        step = 0 if side.count == 1 else side.lines * width * 4
        sides.append(side._replace(tensor=rounded, ld=width * 4, step=step))
    return Launch((*steps, _step(p, found._replace(a=sides[0], b=sides[1]), rounded=True)), tuple(work.pieces))


def _step(p: Problem, found: Operands, rounded: bool = False) -> KernelLaunch:
    tile = _tile(found, p.sm_count)
    unit = _unit_of(p, found, tile, rounded)
    m, n, k, z = found.m, found.n, found.k, found.z
    box = found.out_box(p)
    a = found.a.map(tile.m, "read")
    # What the step before writes is not read ahead of its end.
    b = found.b.map(tile.n // tile.cluster, "read" if rounded else "constant")
    if box is None:
        # Not looked at.
        to = a
    else:
        view = p.out.view((z, m, n), (box[1], box[0], 1))
        to = tensor_map(view, (1, 64, 128 // p.out.dtype.itemsize), access="write", swizzle="128B")
    flags = tuple(map(int, (found.a.step != 0, found.b.step != 0, box is not None)))
    sizes = Struct(tuple(map(i32, (m, n, k, z, _RASTER // tile.cluster, *flags))))
    empty = (0,) * len(found.batch)
    strides = [found.out.batch, empty if found.residual is None else found.residual.batch]
    tiles = ceil_div(m, tile.m * tile.cluster) * ceil_div(n, tile.n) * z
    blocks = minimum(tiles, p.sm_count // tile.cluster) * tile.cluster
    arguments = (
        a, b, to, write(p.out), sizes, nd(found.batch, strides),
        i64(found.out.row), i64(found.out.column), *found.end(p), *scale_arguments(p),
    )  # fmt: skip
    return KernelLaunch(
        unit, unit.entries[0], (blocks,), (128 * (1 + tile.groups),), arguments, shared=tile.shared,
        cluster=(tile.cluster, 1, 1) if tile.cluster > 1 else (0, 0, 0), programmatic=not rounded,
    )  # fmt: skip


def _tile(x: Operands, sms: Any) -> Tile:
    return _forced or choose(x, sms)


def choose(x: Operands, sms: Any) -> Tile:
    """Return the tile with the least estimated time: waves of blocks, times cycles of one."""
    whole = sms >= _WHOLE
    widest = _WIDEST.get(x.a.tensor.dtype.name, 256)
    allowed = [t for t in TILES if t.n <= widest and t.takes(x.b.mn) and (t.cluster == 1 or (whole and x.m > t.m))]
    best, least = allowed[0], _cycles(x, allowed[0], sms)
    for tile in allowed[1:]:
        cycles = _cycles(x, tile, sms)
        if cycles < least:
            best, least = tile, cycles
    return best


def _cycles(x: Operands, tile: Tile, sms: Any) -> Any:
    tiles = ceil_div(x.m, tile.m * tile.cluster) * ceil_div(x.n, tile.n) * x.z
    return ceil_div(tiles, sms // tile.cluster) * tile.cycles


def _unit_of(p: Problem, x: Operands, tile: Tile, rounded: bool = False) -> Unit:
    return unit(p["a"].dtype, p.out.dtype, tile, x.a.mn, x.b.mn, device_name(p), rounded)


@cache
def _round_unit() -> Unit:
    return instance("gemm/round_tf32.cu", [], ("pgk_matmul_round_tf32",))


@cache
def unit(
    kind: DataType, to: DataType, tile: Tile, a_mn: bool, b_mn: bool, end: str = PLAIN, rounded: bool = False
) -> Unit:
    """Return the source of a tile's kernel.

    Parameters
    ----------
    kind, to : DataType
        Of the operands and the result.
    tile : Tile
    a_mn, b_mn : bool
        Rows of a, columns of b are contiguous.
    end : str
        What is done with the sums.
    rounded : bool
        float32 is rounded to tf32 already.
    """
    tags = kind.tag if to is kind else f"{kind.tag}_to_{to.tag}"
    tags += "_rounded" if rounded else ""
    sides = f"{'tn'[not a_mn]}{'tn'[b_mn]}"
    entry = f"pgk_matmul_wgmma_{tags}_{tile.m}x{tile.n}x{tile.stages}_c{tile.cluster}_{sides}{suffix(end)}"
    flags = ", ".join("true" if flag else "false" for flag in (a_mn, b_mn, rounded))
    what = f"{kind.tag}, {to.tag}, {end}, {tile.m}, {tile.n}, {tile.stages}, {tile.cluster}, {flags}"
    return instance(_FILE, [f"PGK_WGMMA_MATMUL({entry}, {what})"], (entry,), ARCHITECTURE)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        if kind.name in skinny.KINDS:
            for tile in TILES:
                yield from (unit(kind, kind, tile, False, b_mn) for b_mn in (False, True) if tile.takes(b_mn))
        elif kind.name in KINDS:
            to = dtype({"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(kind.name, kind.name))
            for tile in TILES:
                if tile.n <= 128:
                    yield unit(kind, to, tile, False, False)


def _rounded_units(types: Sequence[str]) -> Iterator[Unit]:
    if "float32" in types:
        kind = dtype("float32")
        yield _round_unit()
        yield from (unit(kind, kind, tile, False, False, rounded=True) for tile in TILES[:6:2])


def _refuses_copy(p: Problem) -> str | None:
    if p.arch != ARCHITECTURE:
        return f"exists for sm_{ARCHITECTURE}, not for sm_{p.arch}" if p.arch else "needs a GPU or the emulator"
    reason = refuses_types(p, ("float8_e4m3fn",))
    if reason is not None:
        return reason
    if any(n == 0 for n in (*p.out.shape, p["a"].shape[-1])):
        return "there is nothing to multiply"
    # Where the kernel itself is missing, copies would come back here.
    return epilogue_refuses(p) or (None if isinstance(operands(p), str) else "the lines of a and b lie along k already")


def _copy_first(p: Problem) -> Compose:
    """The same product of operands whose lines lie along k, at multiples of 16 bytes."""
    line = 16 // p["a"].dtype.itemsize

    def lines(x: Any) -> Any:
        k = x.shape[-1]
        made = empty((*x.shape[:-1], -(-k // line) * line), x.dtype)[..., :k]
        _native.apply("copy", (x,), made)
        return made

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.ops.gemm.rows import matmul

        a, b, precision, bias, activation, residual, use_tf32, scale_a, scale_b = given
        turned = lines(b.mT).mT if b.ndim > 1 else lines(b)
        matmul(lines(a), turned, precision=precision, bias=bias, activation=activation, residual=residual,
               use_tf32=use_tf32, scale_a=scale_a, scale_b=scale_b, out=results[0])  # fmt: skip

    return run


FEW_ROWS = (
    Variant(
        "wgmma, few rows, k in parts",
        "run_to_run",
        skinny.accepts_split,
        launch=skinny.launch_split,
        architectures=ARCHITECTURE,
    ),
    Variant(
        "wgmma, few rows",
        "batch_invariant",
        skinny.accepts,
        launch=skinny.launch,
        architectures=ARCHITECTURE,
        units=skinny.units,
    ),
)
"""Faster than cuBLASLt, with the same bits, in order of preference."""

LARGE = (
    Variant(
        "wgmma of operands rounded first", "batch_invariant", accepts_rounded, launch=launch_rounded,
        architectures=ARCHITECTURE, units=_rounded_units,
    ),
    Variant("wgmma", "batch_invariant", accepts, launch=launch, architectures=ARCHITECTURE, units=_units),
    Variant("wgmma after copies with lines along k", "batch_invariant", _refuses_copy, compose=_copy_first),
)  # fmt: skip

VARIANTS = (*FEW_ROWS, *LARGE)
"""In order of preference."""
