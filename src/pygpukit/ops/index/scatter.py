"""Scatters: elements written to the places that index arrays name, the last of those with one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import dtype
from pygpukit.ops.index.gather import INDICES
from pygpukit.ops.index.layout import (
    MAX_INDICES,
    axes_struct,
    code_of,
    collapse,
    given_indices,
    instance_of,
    pointers,
    widen,
)
from pygpukit.ops.launch import KernelLaunch, Launch, Unit, Workspace, blocks_for, i32, i64, nd, read, update, write
from pygpukit.ops.problem import Problem, Tensor, dense_strides
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import product
from pygpukit.ops.sort.plans import clear
from pygpukit.ops.source import instance

_PER_BLOCK = 1024
_SPARSE = 4
"""A table of all places is used up to so many times as many places as indices; beyond it a hash table."""
_BIG = 2**32 - 1
"""Ordinals from which claims have 64 bits."""


@cache
def scatter_unit(count: int) -> Unit:
    """Return the source of scatters through up to so many index arrays."""
    entries = (f"pgk_scatter_k{count}", f"pgk_claim_k{count}")
    lines = [f"PGK_SCATTER({entries[0]}, {count})", f"PGK_CLAIM({entries[1]}, {count})"]
    return instance("index/scatter.cu", lines, entries)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for count in (1, 2, MAX_INDICES):
        yield scatter_unit(count)


def _is_one_value(value: Tensor, before: int, inner: int) -> bool:
    """Do elements with one place have one value? They do where the value is broadcast along the index arrays."""
    axes = zip(value.shape[before : before + inner], value.strides[before : before + inner], strict=True)
    return all(step == 0 or size == 1 for size, step in axes)


def _launch(p: Problem) -> Launch:
    x, value, before, indices = p["x"], p["value"], p.options["before"], given_indices(p)
    k, inner = len(indices), indices[0].ndim
    count = instance_of(k)
    unit, work = scatter_unit(count), Workspace()
    padding = (0,) * (count - k)
    lengths, steps = x.shape[before : before + k], x.strides[before : before + k]
    keys = dense_strides(lengths)
    wide = int(indices[0].dtype.itemsize == 8)

    def spread(strides: Sequence[Any]) -> tuple[Any, ...]:
        return (*(0,) * before, *strides, *(0,) * (x.ndim - before - k))

    shape = (*x.shape[:before], *indices[0].shape, *x.shape[before + k :])
    of_x = (*x.strides[:before], *(0,) * inner, *x.strides[before + k :])
    ordinals = spread(dense_strides(indices[0].shape))
    columns = (of_x, value.strides, ordinals, *(spread(index.strides) for index in indices))
    axes = [(n, tuple(row)) for n, *row in zip(shape, *columns, strict=True)] or [(1, (0,) * (3 + k))]
    sizes, rows = collapse([n for n, _ in axes], [row for _, row in axes])
    # The key of an element is counted in places, so only the strides of x and value change where elements are widened.
    size, sizes, rows, along = widen(sizes, rows, [(step,) for step in steps], (x, value))
    nd_columns = list(zip(*((*row, *padding) for row in rows), strict=True))
    total = product(sizes)

    space = [(n, tuple(row)) for n, *row in zip(indices[0].shape, *(i.strides for i in indices), strict=True)]
    space_sizes, space_rows = collapse([n for n, _ in space], [row for _, row in space]) if space else ([1], [(0,) * k])
    space_nd = nd(space_sizes, list(zip(*((*row, *padding) for row in space_rows), strict=True)))
    axes_of = axes_struct(lengths, keys, [step for (step,) in along])

    members, places = indices[0].size, product(lengths)
    launches = []
    slots, table, big, direct = 0, indices[0], 0, 1
    if not p.options["mode"] and not _is_one_value(value, before, inner) and members > 1:
        big, direct = int(members >= _BIG), int(places <= _SPARSE * members)
        slots = places if direct else 2 * members
        words = slots * 2 if big else slots
        table = work.buffer(dtype("uint64" if big else "uint32"), slots)
        launches.append(clear(table, words))
        arguments = (update(table), *pointers(indices), i64(slots), i64(members), space_nd, axes_of,
                     *map(i32, (k, wide, big, direct)))  # fmt: skip
        blocks = blocks_for(members, _PER_BLOCK, "an index")
        launches.append(KernelLaunch(unit, unit.entries[1], (blocks,), (256,), arguments))
    written = (write(x), read(value), read(table), *pointers(indices), i64(slots), i64(total), nd(sizes, nd_columns),
               space_nd, axes_of, *map(i32, (k, code_of(size, (x, value)), wide, big, direct)))  # fmt: skip
    blocks = blocks_for(total, _PER_BLOCK, "an index")
    launches.append(KernelLaunch(unit, unit.entries[0], (blocks,), (256,), written))
    return Launch(tuple(launches), tuple(work.pieces))


def _host(p: Problem) -> Callable[..., None]:
    head, k = (slice(None),) * p.options["before"], len(given_indices(p))

    def run(x: Any, value: Any, i0: Any, *rest: Any) -> None:
        x[(*head, i0, *rest[: k - 1])] = value

    return run


scatter = register(
    Operator(
        name="index_scatter",
        parameters=(Parameter("x"), Parameter("value"), *INDICES),
        infer=lambda p: [],
        reference=lambda *arguments: None,
        variants=(
            Variant("the last of each place", "batch_invariant", lambda p: None, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
        ),
        doc="Write ``value`` to the places of index arrays of one shape and type, for neighbouring axes of ``x``; with "
        "a mode of 1 no place is named twice.",
        public=False,
        updates=("x",),
    )
)


def scattered(
    x: GPUArray, value: GPUArray, indices: Sequence[GPUArray], before: int = 0, *, unique: bool = False
) -> None:
    """Write ``value``, of the shape and type of what they name, to the places of index arrays; copy overlap first."""
    if value._shares_memory(x):
        value = value.copy()
    apart = [index.copy() if index._shares_memory(x) else index for index in indices]
    scatter(x, value, apart[0], before, int(unique), *apart[1:])
