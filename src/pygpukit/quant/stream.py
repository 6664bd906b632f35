"""Products of a few rows on SM 90a at the memory's speed: warps stream the weight through shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.boxes import ARCHITECTURE, SHARED_LIMIT
from pygpukit.ops.launch import KernelLaunch, Launch, Unit, i32, i64, read, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import ceil_div, maximum, minimum
from pygpukit.ops.source import instance
from pygpukit.quant import launches
from pygpukit.quant.formats import CHUNK, CODES, Rule, rule_of
from pygpukit.quant.launches import piece_bytes

MOST = 16
"""Rows of x: the columns of two mma."""

_WARPS = 18
"""Most warps of a block."""

_STAGES = 16
_LEAST_STAGES = 2
_MOST_TILES = 36
"""Tiles per SM up to which codes of 8 bits are streamed: with more the kernel without rings was faster on an H200."""

_MOST_OF_X = 64 << 10
"""Bytes of x that a block keeps; of more the pieces that a warp needs come with those of the weight."""

_ENOUGH = 96 << 10
"""Bytes under way that cover the memory's latency: with no more, the next product's blocks have room beside these."""


class Ring(NamedTuple):
    """How a block streams: most warps, most pieces under way for each, chunks of a piece."""

    warps: int
    stages: int
    span: int


class _Plan(NamedTuple):
    """Sizes of a launch: chunks of a piece, warps, pieces under way, bytes of x and of a piece, and where x lies."""

    span: int
    warps: Any
    stages: Any
    x: Any
    piece: Any
    beside: bool


_forced: Ring | None = None


def force(ring: Ring | None) -> None:
    """Stream by this ring from now on; None chooses by the rule again. For tests and tuning."""
    global _forced
    _forced = ring
    _native.clear_plans()


def rings(rule: Rule) -> tuple[Ring, ...]:
    """Return the rings for a rule, the one with the longest pieces first: 4 KB of codes, or 2."""
    return tuple(Ring(_WARPS, _STAGES, kilobytes * 8 // CODES[rule.code].low) for kilobytes in (4, 2))


@cache
def unit(rule: Rule, x: DataType, columns: int, span: int, beside: bool, end: str = epilogue.PLAIN) -> Unit:
    """Return the source of the product of up to 8 ``columns`` rows, which lie `beside` the pieces or not."""
    place = "_beside" if beside else ""
    entry = f"pgk_quant_stream_{rule.name}_{x.tag}_{8 * columns}x{span}{place}{epilogue.suffix(end)}"
    text, scale = launches.rule_text(rule)
    # Short pieces of plain rules leave registers for a block of the next product, too.
    plain = rule.kind in ("scale", "zero") and CODES[rule.code].high == 0
    blocks = 2 if plain and columns == 1 and span == rings(rule)[-1].span else 1
    numbers = f"{columns}, {span}, {str(beside).lower()}, {32 * _WARPS}, {blocks}"
    lines = [
        f"using rule_{rule.name} = {text};",
        f"PGK_QUANT_STREAM({entry}, rule_{rule.name}, {scale}, {x.tag}, {end}, {numbers})",
    ]
    return instance("quant/stream_sm90.cu", lines, (entry,), ARCHITECTURE)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for x in launches.small(types):
        for rule in launches.default_rules():
            long, short = (ring.span for ring in rings(rule))
            yield from (unit(rule, x, 1, span, False) for span in (long, short))
            yield unit(rule, x, 1, short, True)
            yield unit(rule, x, 2, short, False)


def _plan(p: Problem) -> _Plan | None:
    """The sizes of a launch; None where shared memory is too small."""
    found = launches.rows_of(p["x"])
    assert found is not None
    m, rule = found[0], rule_of(p.options["rule"])
    tiles, chunks = p["codes"].shape[:2]
    all_of_x = m * (chunks * (CHUNK * 2) + 16)
    blocks = minimum(tiles, p.sm_count)
    # Every warp takes the same number of tiles, or one less.
    each = ceil_div(tiles, blocks)
    whole, apart = (False,) if all_of_x <= _MOST_OF_X else (), (True,) if _can_be_cut(p) else ()
    for beside in (*whole, *apart, False):
        # Where every warp has one tile, short pieces were faster.
        order = rings(rule) if each > _WARPS else rings(rule)[::-1]
        for ring in (_forced,) if _forced else order:
            warps = ceil_div(each, ceil_div(each, ring.warps))
            x = 0 if beside else all_of_x
            piece = piece_bytes(rule, ring.span) + 8 + (m * (ring.span * (CHUNK * 2) + 16) if beside else 0)
            room = (SHARED_LIMIT - x) // warps // piece
            if room < _LEAST_STAGES:
                continue
            most = ring.stages
            if not (_forced or beside):
                most = maximum(minimum(_ENOUGH // piece // warps, most), _LEAST_STAGES)
            return _Plan(ring.span, warps, minimum(room, most), x, piece, beside)
    return None


def _can_be_cut(p: Problem) -> bool:
    """Can bulk copies bring pieces of the rows of x?"""
    return _aligned(p) and p.integers["k"] % CHUNK == 0


def _aligned(p: Problem) -> bool:
    found = launches.rows_of(p["x"])
    assert found is not None
    return p["x"].is_aligned(16) and found[1] % 8 == 0


def _unit_of(p: Problem, plan: _Plan) -> Unit:
    found = launches.rows_of(p["x"])
    assert found is not None
    columns = 1 if found[0] <= 8 else 2
    return unit(rule_of(p.options["rule"]), p["x"].dtype, columns, plan.span, plan.beside, epilogue.device_name(p))


def _accepts(p: Problem) -> str | None:
    reason = launches.accepts_rows(p, MOST)
    if reason is not None:
        return reason
    found = launches.rows_of(p["x"])
    if found is None or launches.rows_of(p.out) is None:
        return "rows of x or of the result do not lie at equal distances"
    if not launches.ends(p):
        return "bias or residual does not lie in rows"
    if found[0] == 0:
        return "there is nothing to multiply"
    if not launches.planes_aligned(p):
        return "a plane of the weight does not lie at a multiple of 16 bytes"
    if CODES[rule_of(p.options["rule"]).code].low == 8 and ceil_div(p["codes"].shape[0], p.sm_count) > _MOST_TILES:
        return f"codes of 8 bits are streamed for up to {_MOST_TILES} tiles per SM"
    plan = _plan(p)
    return "x does not fit shared memory" if plan is None else p.missing(_unit_of(p, plan))


def _launch(p: Problem) -> Launch:
    x, n, k = p["x"], p.integers["n"], p.integers["k"]
    found, out = launches.rows_of(x), launches.rows_of(p.out)
    assert found is not None
    assert out is not None
    m, ld = found
    plan, blocks = _plan(p), minimum(p["codes"].shape[0], p.sm_count)
    assert plan is not None
    arguments = (
        write(p.out), read(x), *launches.planes(p), *map(i64, (m, n, k, out[1])), launches.pairs(p), i64(ld),
        i32(int(_aligned(p))), *launches.counts(p), *launches.end_of(p), i32(plan.stages),
    )  # fmt: skip
    made, shared = _unit_of(p, plan), plan.x + plan.warps * plan.stages * plan.piece
    block = (32 * plan.warps,)
    step = KernelLaunch(made, made.entries[0], (blocks,), block, arguments, shared=shared, programmatic=True)
    return Launch((step,))


VARIANT = Variant(
    "decoded fragments, streamed", "batch_invariant", _accepts, launch=_launch, architectures=ARCHITECTURE, units=_units
)
