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
_ENOUGH = 96 << 10
"""Bytes under way that cover the memory's latency: with no more, the next product's blocks have room beside these."""


class Ring(NamedTuple):
    """How a block streams: most warps, most pieces under way for each, chunks of a piece."""

    warps: int
    stages: int
    span: int


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
def unit(rule: Rule, x: DataType, columns: int, span: int, end: str = epilogue.PLAIN) -> Unit:
    """Return the source of the product of up to 8 ``columns`` rows with pieces of ``span`` chunks and an epilogue."""
    entry = f"pgk_quant_stream_{rule.name}_{x.tag}_{8 * columns}x{span}{epilogue.suffix(end)}"
    text, scale = launches.rule_text(rule)
    lines = [
        f"using rule_{rule.name} = {text};",
        f"PGK_QUANT_STREAM({entry}, rule_{rule.name}, {scale}, {x.tag}, {end}, {columns}, {span}, {32 * _WARPS})",
    ]
    return instance("quant/stream_sm90.cu", lines, (entry,), ARCHITECTURE)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for x in launches.small(types):
        for rule in launches.default_rules():
            yield from (unit(rule, x, columns, ring.span) for ring in rings(rule) for columns in (1, 2))


def _ring(rule: Rule, rows: Any) -> Ring | None:
    """The ring beside so many bytes of x; None where x leaves no room."""
    for ring in (_forced,) if _forced else rings(rule):
        if (SHARED_LIMIT - rows) // ring.warps // _piece(rule, ring) >= _LEAST_STAGES:
            return ring
    return None


def _piece(rule: Rule, ring: Ring) -> int:
    """Bytes of a piece and its barrier."""
    return piece_bytes(rule, ring.span) + 8


def _columns(m: Any) -> int:
    return 1 if m <= 8 else 2


def _line(p: Problem) -> Any:
    """Bytes of a row of x in shared memory."""
    return p["codes"].shape[1] * (CHUNK * 2) + 16


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
    rule = rule_of(p.options["rule"])
    ring = _ring(rule, found[0] * _line(p))
    if ring is None:
        return "x does not fit shared memory"
    return p.missing(unit(rule, p["x"].dtype, _columns(found[0]), ring.span, epilogue.device_name(p)))


def _launch(p: Problem) -> Launch:
    x, n, k = p["x"], p.integers["n"], p.integers["k"]
    found, out = launches.rows_of(x), launches.rows_of(p.out)
    assert found is not None
    assert out is not None
    m, ld = found
    rule, tiles = rule_of(p.options["rule"]), p["codes"].shape[0]
    rows = m * _line(p)
    ring = _ring(rule, rows)
    assert ring is not None
    made = unit(rule, x.dtype, _columns(m), ring.span, epilogue.device_name(p))
    blocks = minimum(tiles, p.sm_count)
    # Every warp takes the same number of tiles, or one less.
    each = ceil_div(tiles, blocks)
    warps = ceil_div(each, ceil_div(each, ring.warps))
    piece = _piece(rule, ring)
    most = ring.stages if _forced else maximum(minimum(_ENOUGH // piece // warps, ring.stages), _LEAST_STAGES)
    stages = minimum((SHARED_LIMIT - rows) // warps // piece, most)
    aligned = x.is_aligned(16) and ld % 8 == 0
    arguments = (
        write(p.out), read(x), *launches.planes(p), *map(i64, (m, n, k, out[1])), launches.pairs(p), i64(ld),
        i32(int(aligned)), *launches.counts(p), *launches.end_of(p), i32(stages),
    )  # fmt: skip
    shared = rows + warps * stages * piece
    step = KernelLaunch(made, made.entries[0], (blocks,), (32 * warps,), arguments, shared=shared, programmatic=True)
    return Launch((step,))


VARIANT = Variant(
    "decoded fragments, streamed", "batch_invariant", _accepts, launch=_launch, architectures=ARCHITECTURE, units=_units
)
