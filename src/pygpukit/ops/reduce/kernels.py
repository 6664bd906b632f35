"""Launches of reductions: which kernel runs a form, and the sources it is compiled from."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, Workspace, blocks_for, i64, nd, read, write
from pygpukit.ops.problem import Tensor
from pygpukit.ops.reduce.layout import Form, power_of_two
from pygpukit.ops.reduce.table import Row
from pygpukit.ops.size import ceil_div, hint
from pygpukit.ops.source import instance

SLOTS = 32
VECTORS_PER_CHUNK = 1024
VECTOR_BYTES = 16

_FILE = "reduce/reduce.cu"
_ROW_THREADS = 128
_FOLD_THREADS = 1024
_MOST_PARTS = 16
# Partial results that one block folds, and how many others leave to a second fold.
_ONE_FOLD = 4096
_SPAN = 2048
_NARROW = 32
# Fewer neighbouring results than this leave most lanes of a warp without one.
_FEWEST_COLUMNS = 12
# Blocks that keep the memory of a large GPU busy; with fewer of them tiles are made narrower.
_ENOUGH_BLOCKS = 264


def vector(x: DataType) -> int:
    """Return how many elements a thread loads at once."""
    return VECTOR_BYTES // x.itemsize


def chunk(x: DataType) -> int:
    """Return how many elements are reduced to one partial result; part of the definition of the result's bits."""
    return VECTORS_PER_CHUNK * vector(x)


def columns(x: DataType) -> int:
    """Return how many neighbouring results a thread of the kernel for columns has."""
    return 4 if x.itemsize <= 4 else vector(x)


def entries(row: Row, x: DataType, wide: DataType, to: DataType) -> tuple[str, str, str]:
    """Return the names of the kernels for rows, columns and partial results."""
    own = row.result(x)
    tags = [x.tag]
    if to is not own or wide is not row.accumulator(x, own):
        tags += ["to", to.tag] + ([] if wide is row.accumulator(x, to) else ["by", wide.tag])
    name = "_".join([f"pgk_{row.name}", *tags])
    return name, f"{name}_cols", f"{name}_fold"


@cache
def unit(name: str, x: DataType, wide: DataType, to: DataType) -> Unit:
    """Return the source of a row of the table for elements ``x`` computed in ``wide`` and results ``to``."""
    from pygpukit.ops.reduce.table import TABLE

    row = TABLE[name]
    names = entries(row, x, wide, to)
    made = ", ".join([*names, x.tag, to.tag, str(row.state(wide)), f"pgk::{row.kernel}<pgk::{x.tag}, pgk::{wide.tag}>"])
    return instance(_FILE, [f"PGK_REDUCE({made})"], names)


def units(row: Row, types: Sequence[str]) -> Iterator[Unit]:
    """Return the sources a bundle holds."""
    for kind in map(dtype, types):
        if kind.kind in row.kinds and kind.kind in row.kernel_kinds:
            to = row.result(kind)
            yield unit(row.name, kind, row.accumulator(kind, to), to)


def launches(row: Row, x: Tensor, out: Tensor, wide: DataType, form: Form, correction: float = 0.0) -> Launch:
    """Return the launches that reduce a form into a contiguous ``out``.

    More than a `chunk` of elements is reduced to partial results, and those by a second launch, very many by two.
    """
    source = unit(row.name, x.dtype, wide, out.dtype)
    first = partial(_first, source, x, out, form)
    return folded(row, source, x.dtype, out, wide, (form.n, form.results), first, correction)


First: TypeAlias = Callable[[Tensor, Any, int, bytes], KernelLaunch]
"""The launch that makes partial results, for where they go, chunks of a result, bytes of a state, the last argument."""


def folded(row: Row, source: Unit, x: DataType, out: Tensor, wide: DataType, sizes: tuple[Any, Any], first: First,
           correction: float = 0.0) -> Launch:  # fmt: skip
    """Return the launches of a reduction of ``sizes`` (elements of a result, results) that begins with ``first``."""
    n, results = sizes
    work = Workspace()
    single = bool(n <= chunk(x))
    chunks: Any = 1 if single else ceil_div(n, chunk(x))
    state = row.state(wide)
    # Without partial results the kernel ignores the argument.
    partial = out if single else work.buffer(dtype("uint8"), results * chunks * state)
    last = struct.pack("<d", correction)
    steps = [first(partial, chunks, state, last)]
    while not single:
        single = bool(chunks <= _ONE_FOLD)
        span: Any = chunks if single else _SPAN
        spans: Any = 1 if single else ceil_div(chunks, _SPAN)
        following = out if single else work.buffer(dtype("uint8"), results * spans * state)
        per_block = 32 if chunks <= 32 else 1
        blocks = blocks_for(results * spans, per_block, f"{row.name} with {hint(results)} results")
        # Without a partial result of its own the kernel ignores the argument.
        arguments: tuple[Argument, ...] = (
            write(out), write(following), read(partial), *map(i64, (n, results, chunks, span)), last,
        )  # fmt: skip
        steps.append(KernelLaunch(source, source.entries[2], (blocks,), (_FOLD_THREADS,), arguments, programmatic=True))
        partial, chunks = following, spans
    return Launch(tuple(steps), tuple(work.pieces))


def _first(source: Unit, x: Tensor, out: Tensor, form: Form, partial: Tensor, chunks: Any, state: int,
           correction: bytes) -> KernelLaunch:  # fmt: skip
    what = f"a reduction to {hint(form.results)} results of {hint(form.n)} elements"
    slots = ceil_div(form.n, vector(x.dtype))
    strides = (form.inner, *form.strides)
    outer = form.kept
    # Both kernels give the same bits; columns read whole cache lines where neighbours are other results.
    by_columns = bool(
        form.kept and form.strides[1] != 1 and form.kept[-1][1] == 1 and form.kept[-1][0] >= _FEWEST_COLUMNS
    )
    sizes: tuple[Any, ...]
    if by_columns:
        outer, inner = form.kept[:-1], form.kept[-1][0]
        others = chunks
        for size, _ in outer:
            others = others * size
        width = columns(x.dtype) * _NARROW
        if width > _NARROW and others * ceil_div(inner, width) < _ENOUGH_BLOCKS:
            width = _NARROW
        tiles = ceil_div(inner, width)
        parts = power_of_two(slots, _MOST_PARTS)
        grid = blocks_for(others * tiles, 1, what)
        shared = parts // 2 * (_NARROW * columns(x.dtype) * state)
        threads, sizes, entry = parts * 32, (inner, chunks, tiles, width), source.entries[1]
    else:
        lanes = power_of_two(slots, SLOTS)
        grid = blocks_for(form.results * chunks * lanes, _ROW_THREADS, what)
        shared, threads, sizes, entry = 0, _ROW_THREADS, (form.results, chunks, lanes), source.entries[0]
    kept = nd([size for size, _ in outer], [[stride for _, stride in outer]])
    arguments: tuple[Argument, ...] = (
        write(out), write(partial), read(x), kept, *map(i64, (form.n, *strides, *sizes)), correction,
    )  # fmt: skip
    return KernelLaunch(source, entry, (grid,), (threads,), arguments, shared=shared)
