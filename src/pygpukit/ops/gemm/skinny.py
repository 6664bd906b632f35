"""Matrix products of at most 64 rows on SM 90a: weights are read once, at the memory's speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm.boxes import ARCHITECTURE, SHARED_LIMIT, Operands, operands, refuses_types
from pygpukit.ops.gemm.epilogue import PLAIN, device_name, suffix
from pygpukit.ops.launch import KernelLaunch, Launch, Struct, Unit, i32, i64, nd, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.size import ceil_div, minimum
from pygpukit.ops.source import instance

_FILE = "gemm/skinny_sm90.cu"
KINDS = ("bfloat16", "float16")
"""Element types of the operands."""

_MOST = 64
_ROWS = (64, 56, 48, 40, 32, 24, 16)
_BUNDLED = (64, 48, 32)
_MOST_STAGES = 16


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
        return min(_MOST_STAGES, SHARED_LIMIT // (self.depth * (self.rows + self.tokens) * 128 + 16))

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
    one = _strip(found, p.sm_count)
    unit = _unit_of(p, found, one)
    flags = (int(found.b.step != 0), int(found.a.step != 0))
    sizes = Struct(tuple(map(i32, (found.m, found.n, found.k, found.z, *flags))))
    empty = (0,) * len(found.batch)
    strides = [found.out.batch, empty if found.residual is None else found.residual.batch]
    blocks = minimum(ceil_div(found.n, one.rows) * found.z, p.sm_count)
    arguments = (
        found.b.map(one.rows, "constant"), found.a.map(one.tokens, "read"), write(p.out), sizes,
        nd(found.batch, strides), i64(found.out.row), i64(found.out.column), *found.end(p),
    )  # fmt: skip
    step = KernelLaunch(unit, unit.entries[0], (blocks,), (192,), arguments, shared=one.shared, programmatic=True)
    return Launch((step,))


def _strip(x: Operands, sms: Any) -> Strip:
    """The strip by which the busiest SM copies the least."""
    tokens = next(n for n in (8, 16, 32, 64) if x.m <= n)
    if _forced is not None:
        return Strip(64 if x.b.mn else _forced[0], tokens, _forced[1])
    if x.b.mn:
        return strip(64, tokens)
    best, least = _ROWS[0], _lines(x, _ROWS[0], tokens, sms)
    for rows in _ROWS[1:]:
        lines = _lines(x, rows, tokens, sms)
        if lines < least:
            best, least = rows, lines
    return strip(best, tokens)


def _lines(x: Operands, rows: int, tokens: int, sms: Any) -> Any:
    return ceil_div(ceil_div(x.n, rows) * x.z, sms) * (rows + tokens)


def _unit_of(p: Problem, x: Operands, one: Strip) -> Unit:
    return unit(p["a"].dtype, p.out.dtype, one, x.b.mn, device_name(p))


@cache
def unit(kind: DataType, to: DataType, one: Strip, w_mn: bool, end: str = PLAIN) -> Unit:
    """Return the source of a strip's kernel; ``w_mn``: columns of b are contiguous."""
    tags = kind.tag if to is kind else f"{kind.tag}_to_{to.tag}"
    entry = f"pgk_matmul_skinny_{tags}_{one.rows}x{one.tokens}x{one.depth}_{'tn'[w_mn]}{suffix(end)}"
    flag = "true" if w_mn else "false"
    what = f"{kind.tag}, {to.tag}, {end}, {one.rows}, {one.tokens}, {one.depth}, {one.stages}, {flag}"
    return instance(_FILE, [f"PGK_SKINNY_MATMUL({entry}, {what})"], (entry,), ARCHITECTURE)


def units(types: Sequence[str]) -> Iterator[Unit]:
    """Return the sources for bundles: both ways weights lie, and most heights for those of checkpoints."""
    for name in types:
        if name in KINDS:
            kind = dtype(name)
            for tokens in (8, 16, 32, 64):
                yield unit(kind, kind, strip(64, tokens), True)
                for rows in _BUNDLED:
                    yield unit(kind, kind, strip(rows, tokens), False)
