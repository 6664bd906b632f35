"""Attention on tensor cores: which kernels a call takes, their sources, and their launches."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.attention.arguments import CODES
from pygpukit.ops.attention.reference import default_scale
from pygpukit.ops.launch import (
    Argument,
    Integer,
    KernelLaunch,
    Launch,
    Product,
    Struct,
    Unit,
    Workspace,
    blocks_for,
    i32,
    i64,
    read,
    update,
    write,
)
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import ceil_div, hint, maximum, minimum
from pygpukit.ops.source import instance

DIMS = (64, 96, 128, 192, 256)
"""Sizes of a head that kernels exist for; others are filled with zeros."""

PLAIN, CAPPED, MASKED = "PLAIN", "CAPPED", "MASKED"
"""Scores alone, with a softcap, and with a mask and perhaps a softcap."""

FEW_ROWS = 64
"""Rows (queries times heads that share a head of keys) up to which the keys of a sequence are split over blocks."""

TYPES = ("bfloat16", "float16")
"""Element types of tensor cores."""

_DECODE_THREADS = 128
_PARTIAL_BYTES = 256 << 20
_SECTION_BYTES = 32 << 20
"""Keys and values that stay in the L2 cache beside all else."""


_forced_blocks: int | None = None
_forced_order: bool | None = None


def force(blocks: int | None, by_heads: bool | None = None) -> None:
    """Launch so many blocks per SM for few queries, in an order of chunks; None chooses again. For tests and tuning."""
    global _forced_blocks, _forced_order
    _forced_blocks, _forced_order = blocks, by_heads
    _native.clear_plans()


def chunk_of(dim: int) -> int:
    """Return how many keys a chunk has, for a size of a head."""
    return 128 if dim <= 128 else 64


def instance_of(dim: int) -> int:
    """Return the kernels' size of a head that has ``dim`` elements."""
    return next(n for n in DIMS if n >= dim)


def _name(kind: DataType, stored: DataType, dim: int, paged: bool, form: str) -> str:
    layout = [] if not paged else ["paged"] if stored is kind else [f"paged_{stored.tag}"]
    return "_".join([kind.tag, f"d{dim}", *layout, *([] if form == PLAIN else [form.lower()])])


def _flags(paged: bool, form: str) -> str:
    return f"{str(paged).lower()}, {form}"


def _warps(dim: int) -> int:
    """Warps of a prefill block: with heads of more than 128 elements the rows of fewer fit into shared memory."""
    return 8 if dim <= 128 else 4


@cache
def prefill_unit(kind: DataType, stored: DataType, dim: int, paged: bool, form: str) -> Unit:
    """Return the source of the kernel for many queries, with keys and values of ``kind`` or of codes."""
    entry = f"pgk_attention_prefill_{_name(kind, stored, dim, paged, form)}"
    sizes = f"{dim}, {chunk_of(dim)}, {_warps(dim)}, {_slices(dim)}"
    line = f"PGK_ATTENTION_PREFILL({entry}, {kind.tag}, {stored.tag}, {sizes}, {_flags(paged, form)})"
    return instance("attention/prefill.cu", [line], (entry,))


@cache
def decode_unit(kind: DataType, stored: DataType, dim: int, paged: bool, form: str, tiles: int) -> Unit:
    """Return the source of the kernel for few queries, of ``16 * tiles`` rows."""
    entry = f"pgk_attention_decode{16 * tiles}_{_name(kind, stored, dim, paged, form)}"
    sizes = f"{dim}, {chunk_of(dim)}, {tiles}"
    line = f"PGK_ATTENTION_DECODE({entry}, {kind.tag}, {stored.tag}, {sizes}, {_flags(paged, form)})"
    return instance("attention/decode.cu", [line], (entry,))


def _slices(dim: int) -> int:
    return 1 if dim <= 128 else 2


def dense_units(types: Sequence[str]) -> Iterator[Unit]:
    """Return what a bundle holds for `pygpukit.sdpa`: heads of 64 and 128 elements."""
    return _units(types, False)


def paged_units(types: Sequence[str]) -> Iterator[Unit]:
    """Return what a bundle holds for `pygpukit.sdpa_paged`."""
    return _units(types, True)


def _units(types: Sequence[str], paged: bool) -> Iterator[Unit]:
    for name in types:
        if name in TYPES:
            kind = dtype(name)
            for stored, dim in itertools.product((kind, *_codes(types, paged)), (64, 128)):
                yield prefill_unit(kind, stored, dim, paged, PLAIN)
                for tiles in (1, 2):
                    yield decode_unit(kind, stored, dim, paged, PLAIN, tiles)


def _codes(types: Sequence[str], paged: bool) -> list[DataType]:
    """The types of codes that a bundle of types has."""
    return [dtype(name) for name in CODES if paged and name in types]


def _bits(x: float) -> Integer:
    return i32(struct.unpack("<i", struct.pack("<f", x))[0])


class Call(NamedTuple):
    """A call of either operator, as its kernels see it.

    Attributes
    ----------
    seqs, tokens, queries, keys, start
        Sequences, rows of q in all, most queries and keys of a sequence, position of the first query.
    heads, group
        Heads of keys, and heads of queries per head of keys.
    q, out, k, v
        Element strides: of a sequence (of k and v: a page), a head, a token.
    v_offset
        Elements from the first key to the first value, where they are one array.
    pages, page_tokens, table_row
        Of a paged cache.
    length_step
        0: one length for all; 1: one per sequence; -1: none.
    paged
        Are keys in pages?
    """

    seqs: Any
    tokens: Any
    queries: Any
    keys: Any
    start: Any
    heads: Any
    group: Any
    q: tuple[Any, ...]
    out: tuple[Any, ...]
    k: tuple[Any, ...]
    v: tuple[Any, ...]
    v_offset: Any = 0
    pages: Any = 0
    page_tokens: Any = 1
    table_row: Any = 0
    length_step: int = -1
    paged: bool = False


def dense_call(p: Problem) -> Call:
    """Return a call of `pygpukit.sdpa`."""
    q, k, v = p["q"], p["k"], p["v"]
    lengths = p.arrays["lengths"]

    def strides(x: Tensor) -> tuple[Any, ...]:
        return (x.strides[0] if x.ndim == 4 else 0, x.strides[-3], x.strides[-2])

    seqs = q.shape[0] if q.ndim == 4 else 1
    step = -1 if lengths is None else int(seqs != 1 and lengths.shape[0] != 1)
    start = k.shape[-2] - q.shape[-2] if p.options["start"] is None else p.integers["start"]
    return Call(
        seqs, seqs * q.shape[-2], q.shape[-2], k.shape[-2], start, k.shape[-3], q.shape[-3] // k.shape[-3],
        strides(q), strides(p.out), strides(k), strides(v), length_step=step,
    )  # fmt: skip


def paged_call(p: Problem) -> Call:
    """Return a call of `pygpukit.sdpa_paged`."""
    q, cache_, table, out = p["q"], p["cache"], p["page_table"], p.out
    page, part, step, head, _ = cache_.strides
    of_cache = (page, head, step)
    limit = p.options["max_queries"]
    return Call(
        p["lengths"].shape[0], q.shape[0], limit or q.shape[0], table.shape[1] * cache_.shape[2], 0, cache_.shape[3],
        q.shape[1] // cache_.shape[3], (0, q.strides[1], q.strides[0]), (0, out.strides[1], out.strides[0]), of_cache,
        of_cache, part, cache_.shape[0], cache_.shape[2], table.strides[0], 1, True,
    )  # fmt: skip


def accepts(p: Problem) -> str | None:
    """Return why tensor cores cannot take a call; None if they can."""
    q = p["q"]
    if q.dtype.name not in TYPES:
        return f"{q.dtype.name} is not multiplied on tensor cores"
    if q.shape[-1] > DIMS[-1]:
        return f"heads of more than {DIMS[-1]} elements"
    arrays = [q, p.out, *(t for name in ("k", "v", "cache") if (t := p.arrays.get(name)) is not None)]
    for t in arrays:
        if t.shape[-1] % 8 != 0 or t.strides[-1] != 1 or not t.is_aligned(8 * t.dtype.itemsize):
            return "rows are no multiple of 16 bytes, not aligned to that, or their elements do not lie side by side"
        if any(n != 1 and s % 8 != 0 for n, s in zip(t.shape[:-1], t.strides[:-1], strict=True)):
            return "rows are not at distances of 16 bytes"
    return index_layout(p)


def index_layout(p: Problem) -> str | None:
    """Return why kernels cannot read the lengths, starts and page table of a call; None if they can."""
    for name in ("lengths", "query_starts"):
        one = p.arrays.get(name)
        if one is not None and not one.is_contiguous():
            return f"{name} are not contiguous"
    table = p.arrays.get("page_table")
    if table is not None and table.strides[1] != 1 and table.shape[1] != 1:
        return "rows of page_table are not contiguous"
    return None


def few_queries(p: Problem) -> bool:
    """Does a call of `pygpukit.sdpa_paged` say that no sequence has many queries?"""
    limit = p.options["max_queries"]
    return bool(limit) and bool(limit * (p["q"].shape[1] // p["cache"].shape[3]) <= FEW_ROWS)


def launch_dense(p: Problem) -> Launch:
    """Return the launches of `pygpukit.sdpa`."""
    call = dense_call(p)
    work = Workspace()
    if call.queries * call.group <= FEW_ROWS:
        tiles = 1 if call.queries * call.group <= 16 else 2
        return Launch((decode(p, call, work, tiles),), tuple(work.pieces))
    return Launch((_prefill(p, call),))


def launch_paged(p: Problem) -> Launch:
    """Return the launches of `pygpukit.sdpa_paged`: few queries, and many unless the call says that there are none."""
    call = paged_call(p)
    work = Workspace()
    few = few_queries(p)
    tiles = 1 if not few or call.queries * call.group <= 16 else 2
    launches: list[KernelLaunch | Product] = [decode(p, call, work, tiles)]
    if not few:
        launches.append(_prefill(p, call))
    return Launch(tuple(launches), tuple(work.pieces))


def form_of(p: Problem) -> str:
    """Return which form of the scores a call has: there are kernels for each."""
    return MASKED if p.arrays.get("mask") is not None else CAPPED if p.options["softcap"] else PLAIN


def attention(p: Problem, call: Call, slots: Any = 0, slot_rows: Any = 0, by_heads: bool = False) -> Struct:
    """Return the struct of sizes, strides and options that every kernel takes."""
    q = p["q"]
    dim = q.shape[-1]
    scale = p.options["scale"] or default_scale(int(dim))
    kind, mask = 0, (0, 0, 0, 0)
    given = p.arrays.get("mask")
    if given is not None:
        kind = 1 if given.dtype.name == "bool" else 2 if given.dtype.name == "float32" else 3
        steps = [0 if n == 1 else s for n, s in zip(given.shape, given.strides, strict=True)]
        mask = tuple([0] * (4 - len(steps)) + steps)
    # A plan serves one size of a page, so that kernels shift where they can, instead of dividing.
    tokens = int(call.page_tokens)
    page_shift = tokens.bit_length() - 1 if tokens & (tokens - 1) == 0 else -1
    heads = call.seqs * call.heads
    per_head = maximum(call.keys * dim * q.dtype.itemsize * 2, 1)
    section = maximum(minimum(heads, _SECTION_BYTES // per_head), 1)
    members: list[Any] = [
        call.seqs, call.tokens, call.queries, call.keys, call.start, dim, call.heads, call.group,
        *call.q, *call.out, *call.k, *call.v, call.v_offset, call.pages, call.page_tokens, call.table_row,
        page_shift,
        call.length_step, p.options["window"] or 0, int(p.options.get("causal", True)), kind, *mask, FEW_ROWS, section,
        slots, slot_rows, *scale_strides(p),
    ]  # fmt: skip
    numbers = (
        _bits(scale),
        _bits(scale * math.log2(math.e)),
        _bits(float(p.options["softcap"] or 0)),
        i32(int(by_heads)),
    )
    return Struct((*map(i64, members), *numbers))


def stored_type(p: Problem) -> DataType:
    """Return the type of keys and values as they are stored: that of the queries, or of codes."""
    return p["cache"].dtype if "cache" in p.arrays else p["k"].dtype


def codes(p: Problem) -> str | None:
    """Return that keys and values are codes; None if they are numbers."""
    stored = stored_type(p)
    return None if stored is p["q"].dtype else f"keys and values are codes of {stored.name}"


def scale_strides(p: Problem) -> tuple[Any, ...]:
    """Return the strides of the scales of codes: of a page, from keys to values, of a token, of a head."""
    scales = p.arrays.get("kv_scales")
    if scales is None:
        return (0, 0, 0, 0)
    return tuple(0 if n == 1 else s for n, s in zip(scales.shape, scales.strides, strict=True))


def scales(p: Problem) -> Argument:
    """Return the argument for the scales of codes, null without."""
    given = p.arrays.get("kv_scales")
    return i64(0) if given is None else read(given)


def inputs(p: Problem) -> list[Argument]:
    """Return the arrays a kernel reads: queries, keys, values, lengths, starts, page table, mask."""
    q = p["q"]
    keys = (p["cache"], p["cache"]) if "cache" in p.arrays else (p["k"], p["v"])
    rest = [p.arrays.get(name) for name in ("lengths", "query_starts", "page_table", "mask")]
    # What is not given is never read; any address will do.
    return [read(q), *map(read, keys), *(read(q if x is None else x) for x in rest)]


def _prefill(p: Problem, call: Call) -> KernelLaunch:
    kind, dim = p["q"].dtype, instance_of(int(p["q"].shape[-1]))
    unit = prefill_unit(kind, stored_type(p), dim, call.paged, form_of(p))
    rows, half = 16 * _warps(dim), chunk_of(dim) // 2
    if call.paged:
        tiles = ceil_div(call.tokens * call.group, rows) + minimum(call.seqs, call.tokens)
    else:
        tiles = ceil_div(call.queries * call.group, rows) * call.seqs
    grid = blocks_for(tiles * call.heads * _slices(dim), 1, f"attention of {hint(call.tokens)} tokens")
    arguments = (write(p.out), *inputs(p), scales(p), attention(p, call))
    shared = 2 * dim * (rows + 4 * half)
    return KernelLaunch(unit, unit.entries[0], (grid,), (32 * _warps(dim),), arguments, shared, programmatic=True)


def decode(p: Problem, call: Call, work: Workspace, tiles: int) -> KernelLaunch:
    """Return the launch for sequences with few queries, in tiles of ``16 * tiles`` rows."""
    kind, dim = p["q"].dtype, instance_of(int(p["q"].shape[-1]))
    unit = decode_unit(kind, stored_type(p), dim, call.paged, form_of(p), tiles)
    rows, chunk = 16 * tiles, chunk_of(dim)
    # As the kernel lays it out.
    shared = 2 * (2 * chunk * dim + rows * (dim + chunk)) + 8 * chunk + 80 * rows + 304
    slot_rows = minimum(call.queries * call.group, rows)
    chunks = ceil_div(call.keys, chunk)
    row_tiles = minimum(ceil_div(call.queries * call.group, rows), FEW_ROWS // rows)
    heads = call.heads * row_tiles
    # Pages that sequences share count once: where their chunks exceed the slots, no sequence is split.
    held = call.pages * call.page_tokens // chunk + call.seqs if call.paged else call.seqs * chunks
    items = minimum(call.seqs * chunks, held) * heads
    slots = minimum(items, _PARTIAL_BYTES // ((dim + 2) * 4) // slot_rows)
    partial = work.buffer(dtype("float32"), slots, slot_rows, dim)
    stats = work.buffer(dtype("float32"), slots, slot_rows, 2)
    counters = work.counters(dtype("int32"), call.seqs * (FEW_ROWS // rows) * call.heads)
    # Blocks that fit beside each other on an SM of compute capability 9.0.
    beside = min(_forced_blocks or 4 - tiles, (228 << 10) // (shared + 1024))
    # In pages the keys of a token's heads lie side by side, so that these are worked on at the same time.
    by_heads = not call.paged if _forced_order is None else _forced_order
    items_most = maximum(call.seqs * maximum(chunks, 1) * heads, 1)
    grid = minimum(items_most, p.sm_count * beside)
    arguments = (
        write(p.out), write(partial), write(stats), update(counters), *inputs(p), scales(p),
        attention(p, call, slots, slot_rows, by_heads),
    )  # fmt: skip
    return KernelLaunch(unit, unit.entries[0], (grid,), (_DECODE_THREADS,), arguments, shared, programmatic=True)
