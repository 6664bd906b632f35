"""Products of many rows on the tensor cores of SM 90a: decoded fragments of the weight out of registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.boxes import SHARED_LIMIT
from pygpukit.ops.launch import KernelLaunch, Launch, Unit, blocks_for, i32, i64, tensor_map, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import Variant
from pygpukit.ops.size import ceil_div, hint, minimum
from pygpukit.ops.source import instance
from pygpukit.quant import launches
from pygpukit.quant.formats import CHUNK, CODES, Rule, rule_of

ARCHITECTURE = "90a"

MOST = 2048
"""Rows of x up to which decoding inside of the product is faster than decoding the weight first and multiplying it."""


_MOST_PIECES = 6


class Shape(NamedTuple):
    """A block: warp groups of 64 rows of w, rows of x, pieces of x under way, and cycles of a chunk by estimate."""

    groups: int
    tokens: int
    stages: int
    cycles: int

    def ring(self, rule: Rule) -> int:
        """Pieces of w under way for each warp: what x leaves room for."""
        room = SHARED_LIMIT - self.stages * (self.tokens * 128 + 16)
        return min(_MOST_PIECES, room // (4 * self.groups) // (launches.piece_bytes(rule, span_of(rule)) + 8))

    def shared(self, rule: Rule) -> int:
        """Bytes of shared memory."""
        piece = launches.piece_bytes(rule, span_of(rule)) + 8
        return self.stages * (self.tokens * 128 + 16) + 4 * self.groups * self.ring(rule) * piece


# A chunk is four instructions of tokens / 2 cycles per group, or the time to decode it.
SHAPES = (
    Shape(2, 256, 4, 1024),
    Shape(3, 128, 6, 800),
    Shape(2, 128, 6, 540),
    Shape(1, 128, 8, 330),
    Shape(1, 64, 8, 290),
)

_forced: Shape | None = None


def force(shape: Shape | None) -> None:
    """Take this shape for every product from now on; None chooses by size again. For tests and tuning."""
    global _forced
    _forced = shape
    _native.clear_plans()


def span_of(rule: Rule) -> int:
    """Return the chunks of a piece: 2 KB of codes."""
    return 4 if CODES[rule.code].low == 4 else 2


@cache
def unit(rule: Rule, x: DataType, shape: Shape, end: str = epilogue.PLAIN) -> Unit:
    """Return the source of the product with blocks of a shape and an epilogue."""
    entry = f"pgk_quant_wgmma_{rule.name}_{x.tag}_{shape.groups}x{shape.tokens}{epilogue.suffix(end)}"
    text, scale = launches.rule_text(rule)
    numbers = f"{shape.groups}, {shape.tokens}, {shape.stages}, {span_of(rule)}"
    lines = [
        f"using rule_{rule.name} = {text};",
        f"PGK_QUANT_WGMMA({entry}, rule_{rule.name}, {scale}, {x.tag}, {end}, {numbers})",
    ]
    return instance("quant/wgmma_sm90.cu", lines, (entry,), ARCHITECTURE)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    return (unit(rule, x, s) for x in launches.small(types) for rule in launches.default_rules() for s in SHAPES)


def _accepts(p: Problem) -> str | None:
    reason = launches.accepts_linear(p, MOST)
    if reason is not None:
        return reason
    found = launches.rows_of(p["x"])
    assert found is not None
    m, ld = found
    if m == 0:
        return "there is nothing to multiply"
    if not p["x"].is_aligned(16) or ld % 8 != 0:
        return "rows of x do not lie at multiples of 16 bytes"
    if not launches.planes_aligned(p):
        return "a plane of the weight does not lie at a multiple of 16 bytes"
    return p.missing(unit(rule_of(p.options["rule"]), p["x"].dtype, SHAPES[0], epilogue.device_name(p)))


def _launch(p: Problem) -> Launch:
    x, n, k = p["x"], p.integers["n"], p.integers["k"]
    found, out = launches.rows_of(x), launches.rows_of(p.out)
    assert found is not None
    assert out is not None
    m, ld = found
    tiles = p["codes"].shape[0]
    shape = _forced or choose(tiles, m, p.sm_count)
    rule = rule_of(p.options["rule"])
    made = unit(rule, x.dtype, shape, epilogue.device_name(p))
    rows = tensor_map(x.view((1, m, k), (m * ld, ld, 1)), (1, shape.tokens, CHUNK), swizzle="128B")
    what = f"product with a weight of {hint(n)} rows"
    blocks = minimum(blocks_for(tiles, 4 * shape.groups, what) * ceil_div(m, shape.tokens), p.sm_count)
    arguments = (
        rows, write(p.out), *launches.planes(p), *map(i64, (m, n, out[1])), launches.pairs(p), *launches.counts(p),
        *launches.end_of(p), i32(shape.ring(rule)),
    )  # fmt: skip
    block = (128 * (1 + shape.groups),)
    shared = shape.shared(rule)
    return Launch((KernelLaunch(made, made.entries[0], (blocks,), block, arguments, shared=shared, programmatic=True),))


def choose(tiles: Any, m: Any, sms: Any) -> Shape:
    """Return the shape with the least estimated time: waves of blocks, times cycles of one."""
    best, least = SHAPES[0], _cycles(SHAPES[0], tiles, m, sms)
    for shape in SHAPES[1:]:
        cycles = _cycles(shape, tiles, m, sms)
        if cycles < least:
            best, least = shape, cycles
    return best


def _cycles(shape: Shape, tiles: Any, m: Any, sms: Any) -> Any:
    return ceil_div(ceil_div(tiles, 4 * shape.groups) * ceil_div(m, shape.tokens), sms) * shape.cycles


VARIANT = Variant(
    "decoded fragments, wgmma", "batch_invariant", _accepts, launch=_launch, architectures=ARCHITECTURE, units=_units
)
