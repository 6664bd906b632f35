"""Matrix products of at most 64 rows on SM 90a: weights are read once, at the memory's speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm.boxes import ARCHITECTURE, LINE, SHARED_LIMIT, Operands, operands, refuses_types
from pygpukit.ops.gemm.epilogue import PLAIN, device_name, suffix
from pygpukit.ops.launch import KernelLaunch, Launch, Pointer, Struct, Unit, Workspace, i32, i64, nd, update, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.size import ceil_div, minimum
from pygpukit.ops.source import instance

_FILE = "gemm/skinny_sm90.cu"
KINDS = ("bfloat16", "float16")
"""Element types of the operands."""

_MOST = 64
_ROWS = (64, 56, 48, 40, 32, 24, 16)
_BOXES = (64, 32)
"""Heights where columns of b are contiguous: widths of a box."""

_BUNDLED = (64, 48, 32)
_MOST_STAGES = 16
_MOST_PARTS = 8


class Strip(NamedTuple):
    """What a block multiplies at a time.

    Attributes
    ----------
    rows
        Columns of the result: rows of the weights.
    tokens
        Rows of the result it has room for: 8, 16, 32 or 64.
    depth
        Lines of 128 bytes of k in a stage; ``64 - rows`` is at most ``depth * tokens``.
    """

    rows: int
    tokens: int
    depth: int

    @property
    def stages(self) -> int:
        """Stages under way: as many as shared memory holds."""
        return min(_MOST_STAGES, (SHARED_LIMIT - 16) // (self.depth * (self.rows + self.tokens) * 128 + 16))

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * (self.depth * (self.rows + self.tokens) * 128 + 16)


_forced: tuple[int, int] | None = None


def force(rows: int | None, depth: int = 4) -> None:
    """Take strips of so many rows and lines of k from now on; None chooses by shape again. For tests and tuning."""
    global _forced
    _forced = None if rows is None else (rows, depth)
    _native.clear_plans()


def strip(rows: int, tokens: int) -> Strip:
    """Return the strip of a height with its usual depth."""
    return Strip(rows, tokens, next(depth for depth in (4 if tokens <= 16 else 2, 8) if 64 - rows <= depth * tokens))


def accepts(p: Problem) -> str | None:
    """Return why the kernel cannot run a problem; None if it can."""
    reason = refuses_types(p, KINDS)
    if reason is not None:
        return reason
    found = operands(p)
    if isinstance(found, str):
        return found
    if found.m > _MOST:
        return f"has over {_MOST} rows"
    if found.a.mn:
        return "rows of a are not contiguous"
    return p.missing(_unit_of(p, found, _strip(found, p.sm_count)))


def launch(p: Problem) -> Launch:
    """Return the launch of a problem that `accepts` took."""
    found = operands(p)
    assert isinstance(found, Operands)
    return Launch((_step(p, found, _strip(found, p.sm_count), None, ()),))


def accepts_split(p: Problem) -> str | None:
    """Return why k cannot be split, or would not pay; None if it does."""
    if p.determinism == "batch_invariant":
        # Said before the kernel is compiled, which a plan of this level would not run.
        return "splits k, so that bits depend on the number of SMs"
    reason = accepts(p)
    if reason is not None:
        return reason
    found = operands(p)
    assert isinstance(found, Operands)
    one = _split_strip(found)
    if 2 * _tiles(found, one) > p.sm_count:
        return "has strips for more than half of the SMs"
    if found.k * found.b.tensor.dtype.itemsize < 8 * one.depth * LINE:
        return "k is short"
    return p.missing(_unit_of(p, found, one, True))


def launch_split(p: Problem) -> Launch:
    """Return the launch of a problem that `accepts_split` took."""
    found = operands(p)
    assert isinstance(found, Operands)
    one = _split_strip(found)
    tiles = _tiles(found, one)
    stage = one.depth * LINE // found.b.tensor.dtype.itemsize
    part = ceil_div(ceil_div(found.k, stage), minimum(p.sm_count // tiles, _MOST_PARTS)) * stage
    parts = ceil_div(found.k, part)
    work = Workspace()
    partial = work.buffer(dtype("float32"), tiles * parts, one.tokens // 2, 128)
    counters = work.counters(dtype("uint32"), tiles)
    step = _step(p, found, one, (part, parts), (update(partial), update(counters)))
    return Launch((step,), tuple(work.pieces))


def _step(
    p: Problem, x: Operands, one: Strip, split: tuple[Any, Any] | None, more: tuple[Pointer, ...]
) -> KernelLaunch:
    unit = _unit_of(p, x, one, split is not None)
    part, parts = split or (x.k, 1)
    sizes = (x.m, x.n, x.k, x.z, int(x.b.step != 0), int(x.a.step != 0), part, parts)
    empty = (0,) * len(x.batch)
    strides = [x.out.batch, empty if x.residual is None else x.residual.batch]
    arguments = (
        x.b.map(one.rows, "constant"), x.a.map(one.tokens, "read"), write(p.out), Struct(tuple(map(i32, sizes))),
        nd(x.batch, strides), i64(x.out.row), i64(x.out.column), *x.end(p), *more,
    )  # fmt: skip
    blocks = minimum(_tiles(x, one) * parts, p.sm_count)
    shared = one.shared + 16 * (split is not None)
    return KernelLaunch(unit, unit.entries[0], (blocks,), (192,), arguments, shared=shared, programmatic=True)


def _tiles(x: Operands, one: Strip) -> Any:
    return ceil_div(x.n, one.rows) * x.z


def _split_strip(x: Operands) -> Strip:
    return strip(32, _tokens(x))


def _tokens(x: Operands) -> int:
    return next(n for n in (8, 16, 32, 64) if x.m <= n)


def _strip(x: Operands, sms: Any) -> Strip:
    """The strip by which the busiest SM copies the least."""
    tokens = _tokens(x)
    heights = _BOXES if x.b.mn else _ROWS
    if _forced is not None:
        rows, depth = _forced
        return Strip(rows if rows in heights else 64, tokens, depth)
    best, least = heights[0], _lines(x, heights[0], tokens, sms)
    for rows in heights[1:]:
        lines = _lines(x, rows, tokens, sms)
        if lines < least:
            best, least = rows, lines
    return strip(best, tokens)


def _lines(x: Operands, rows: int, tokens: int, sms: Any) -> Any:
    return ceil_div(ceil_div(x.n, rows) * x.z, sms) * (rows + tokens)


def _unit_of(p: Problem, x: Operands, one: Strip, split: bool = False) -> Unit:
    return unit(p["a"].dtype, p.out.dtype, one, x.b.mn, device_name(p), split)


@cache
def unit(kind: DataType, to: DataType, one: Strip, w_mn: bool, end: str = PLAIN, split: bool = False) -> Unit:
    """Return the source of a strip's kernel; ``w_mn``: columns of b are contiguous."""
    tags = kind.tag if to is kind else f"{kind.tag}_to_{to.tag}"
    name = "split" if split else "skinny"
    entry = f"pgk_matmul_{name}_{tags}_{one.rows}x{one.tokens}x{one.depth}_{'tn'[w_mn]}{suffix(end)}"
    flag = "true" if w_mn else "false"
    what = f"{kind.tag}, {to.tag}, {end}, {one.rows}, {one.tokens}, {one.depth}, {one.stages}, {flag}"
    return instance(_FILE, [f"PGK_{name.upper()}_MATMUL({entry}, {what})"], (entry,), ARCHITECTURE)


def units(types: Sequence[str]) -> Iterator[Unit]:
    """Return the sources for bundles: both ways weights lie, and most heights for those of checkpoints."""
    for name in types:
        if name in KINDS:
            kind = dtype(name)
            for tokens in (8, 16, 32, 64):
                yield from (unit(kind, kind, strip(rows, tokens), True) for rows in _BOXES)
                for rows in _BUNDLED:
                    yield unit(kind, kind, strip(rows, tokens), False)
