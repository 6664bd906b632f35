"""Launches of the sorting kernels: a network for short rows, radix passes for long ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Unit,
    Workspace,
    blocks_for,
    i32,
    i64,
    read,
    update,
    write,
)
from pygpukit.ops.problem import Tensor
from pygpukit.ops.size import SizeLike, ceil_div, hint, maximum, minimum
from pygpukit.ops.sort.keys import key_map, word
from pygpukit.ops.source import instance

SHORT = 4096
"""Elements of the longest row that the network sorts."""

ROW_COUNT = 1 << 30
"""Elements of a row that one launch of a radix pass covers at most: counts have 30 bits."""

_EACH = 8
_DIGITS = 256
_THREADS = 384
_ITEMS = {"u32": 20, "u64": 14}
_FIRST, _LAST, _MORE_TILES = 1, 2, 4
_WORDS = ("u32", "u64")


@cache
def network_unit(key: str) -> Unit:
    """Return the source of the network for keys of one type: values, positions, and the first k."""
    kernels = {f"pgk_sort_rows_{key}": "SORT_ROWS", f"pgk_argsort_rows_{key}": "ARGSORT_ROWS",
               f"pgk_top_rows_{key}": "TOP_ROWS"}  # fmt: skip
    lines = [f"PGK_{macro}({entry}, {key})" for entry, macro in kernels.items()]
    return instance("sort/network.cu", lines, tuple(kernels))


@cache
def radix_unit(key: str) -> Unit:
    """Return the source of the radix sort for keys of one type: values, and positions."""
    entries = tuple(f"pgk_{name}_{key}" for name in ("digit_counts", "sort_pass", "argsort_pass", "sort_bases"))
    lines = [
        f"PGK_DIGIT_COUNTS({entries[0]}, {key})",
        f"PGK_SORT_PASS({entries[1]}, {key}, false)",
        f"PGK_SORT_PASS({entries[2]}, {key}, true)",
        f"PGK_SORT_BASES({entries[3]})",
    ]
    return instance("sort/radix.cu", lines, entries)


@cache
def gather_unit() -> Unit:
    """Return the source of the kernel that moves the first elements of rows, and of zeros."""
    return instance("sort/gather.cu", (), ("pgk_sort_top", "pgk_sort_clear"))


def clear(a: Tensor, words_a: SizeLike, b: Tensor | None = None, words_b: SizeLike = 0) -> KernelLaunch:
    """Return the launch that zeroes one or two buffers, counted in 32-bit words."""
    unit = gather_unit()
    blocks = blocks_for(words_a + words_b, 1024, "a buffer")
    arguments = (write(a), read(a) if b is None else write(b), i64(words_a), i64(words_b))
    return KernelLaunch(unit, unit.entries[1], (blocks,), (256,), arguments)


def units() -> Iterator[Unit]:
    """Return the sources for all element types."""
    for key in _WORDS:
        yield network_unit(key)
        yield radix_unit(key)
    yield gather_unit()


def width_of(n: SizeLike) -> int:
    """Return the power of two from 8 to `SHORT` that a row is padded to."""
    width = _EACH
    while width < SHORT and n > width:
        width *= 2
    return width


def _network(width: int, rows: SizeLike, value: int, result: int) -> tuple[Any, int, int]:
    """Return grid, threads and shared memory for compared values and results of so many bytes."""
    threads = 512 if width > 2048 else 256
    blocks = blocks_for(rows, threads * _EACH // width, f"a sort of {hint(rows)} rows")
    exchange = threads * _EACH * value if width > 32 * _EACH else 0
    return blocks, threads, max(exchange, threads * _EACH * 33 // 32 * result)


def network(out: Tensor, x: Tensor, rows: SizeLike, n: SizeLike, *, positions: bool, descending: bool) -> Launch:
    """Return the launch that sorts rows of at most `SHORT` elements, or writes the positions that do."""
    key, size = word(x.dtype), x.dtype.itemsize
    width = width_of(n)
    wide = key == "u64"
    value = (12 if wide else 8) if positions else (8 if wide else 4)
    blocks, threads, shared = _network(width, rows, value, 4 if positions else value)
    unit = network_unit(key)
    arguments = (write(out), read(x), i64(rows), i64(n), i32(width), i32(size),
                 key_map(x.dtype, descending=descending, ties=positions))  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[positions], (blocks,), (threads,), arguments, shared),))


def radix(
    out: Tensor,
    x: Tensor,
    rows: SizeLike,
    n: SizeLike,
    *,
    positions: bool,
    descending: bool,
    skip: int = 0,
    work: Workspace | None = None,
) -> Launch:
    """Return the launches that sort rows of any length, or write the positions that do.

    The lowest ``skip`` bytes of a key do not count: keys that differ in them only stay in their order. With ``work``
    the workspace is collected there.
    """
    key, passes = word(x.dtype), x.dtype.itemsize
    unit, work = radix_unit(key), Workspace() if work is None else work
    order = key_map(x.dtype, descending=descending, ties=positions)
    tile = _THREADS * _ITEMS[key]
    tiles, limit = ceil_div(n, tile), max(1, (ROW_COUNT - 1) // tile)
    parts: list[tuple[int, Any]] = []
    first = 0
    while tiles - first > limit:
        parts.append((first, limit))
        first += limit
    parts.append((first, tiles - first))
    words = rows * parts[0][1] * _DIGITS
    looks = [work.buffer(dtype("uint32"), words) for _ in range(2)]
    counts = work.buffer(dtype("uint64"), rows, passes, _DIGITS)
    handed = [work.buffer(dtype("uint64"), rows, _DIGITS) for _ in range(2)] if len(parts) > 1 else [counts, counts]
    counter = work.counters(dtype("uint32"), 1)
    keys = [work.buffer(x.dtype, rows * n) for _ in range(min(passes - skip - 1, 2 if positions else 1))]
    indices = [work.buffer(dtype("uint32"), rows * n) for _ in range(min(passes - skip - 1, 2))] if positions else []

    count_words = rows * passes * _DIGITS * 2
    chunk = 4096 * maximum(1, minimum(16, ceil_div(rows * n, 4096 * 1024)))
    chunks = ceil_div(n, chunk)
    what = f"a sort of {hint(rows)} rows of {hint(n)}"
    launches = [
        clear(counts, count_words, looks[0], words),
        KernelLaunch(unit, unit.entries[0], (blocks_for(rows * chunks, 1, what),), (256,),
                     (update(counts), read(x), i64(n), i64(chunks), i64(chunk), i32(passes), order)),
        KernelLaunch(unit, unit.entries[3], (rows * passes,), (256,), (update(counts),)),
    ]  # fmt: skip
    source, source_index, turn = x, x, 0
    for p in range(skip, passes):
        last = p == passes - 1
        if positions:
            target = source if last else keys[p % 2]
            target_index = out if last else indices[p % 2]
        else:
            target = out if (passes - 1 - p) % 2 == 0 else keys[0]
            target_index = target
        for i, (first, count) in enumerate(parts):
            more = i < len(parts) - 1
            flags = _FIRST * (p == skip) | _LAST * last | _MORE_TILES * more
            bases, stride, offset = (counts, passes * _DIGITS, p * _DIGITS) if i == 0 else (handed[i % 2], _DIGITS, 0)
            ends = last and not more
            # What an instance does not touch is named as something it reads.
            arguments: tuple[Argument, ...] = (
                read(target) if target is source else write(target),
                read(x) if target_index is target else write(target_index),
                read(source), read(source_index), update(looks[turn]),
                read(looks[turn]) if ends else write(looks[1 - turn]), update(counter),
                write(handed[1 - i % 2]) if more else read(bases), read(bases),
                *map(i64, (n, count, first, 0 if ends else words, stride, offset)),
                *map(i32, (passes, 8 * p, flags)), order,
            )  # fmt: skip
            entry = unit.entries[2 if positions else 1]
            launches.append(KernelLaunch(unit, entry, (blocks_for(rows * count, 1, what),), (_THREADS,), arguments))
            turn = 1 - turn
        source, source_index = target, target_index
    return Launch(tuple(launches), tuple(work.pieces))


def top(values: Tensor, index: Tensor, x: Tensor, rows: SizeLike, n: SizeLike, k: SizeLike, *, largest: bool) -> Launch:
    """Return the launches that find the first k of each row: k of each chunk of `SHORT`, and so on among those."""
    key, size = word(x.dtype), x.dtype.itemsize
    unit, work, launches = network_unit(key), Workspace(), []
    order = key_map(x.dtype, descending=largest, ties=True)
    source, source_index, length, raw = x, x, n, True
    while True:
        width = width_of(length)
        chunks = 1 if length <= SHORT else ceil_div(length, SHORT)
        keys = work.buffer(dtype("uint64" if key == "u64" else "uint32"), rows * chunks * k)
        found = work.buffer(dtype("uint32"), rows * chunks * k)
        blocks, threads, shared = _network(width, rows * chunks, 12 if key == "u64" else 8, 0)
        arguments: tuple[Argument, ...] = (
                     write(keys), write(found), read(source), read(source_index), *map(i64, (rows, length, chunks, k)),
                     *map(i32, (width, size if raw else key_bytes(x.dtype), int(raw))), order)  # fmt: skip
        launches.append(KernelLaunch(unit, unit.entries[2], (blocks,), (threads,), arguments, shared))
        source, source_index, raw = keys, found, False
        if length <= SHORT:
            break
        length = chunks * k
    moves = gather_unit()
    launches.append(
        KernelLaunch(moves, moves.entries[0], (blocks_for(rows * k, 1024, "topk"),), (256,),
                     (write(values), write(index), read(x), read(source_index), *map(i64, (rows * k, k, n)), i32(size)))
    )  # fmt: skip
    return Launch(tuple(launches), tuple(work.pieces))


def key_bytes(kind: DataType) -> int:
    """Return the bytes of a key of elements of this type."""
    return 8 if word(kind) == "u64" else 4
