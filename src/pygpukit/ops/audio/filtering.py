"""Operators along time: resampling, recursive filters, level followers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.audio import reference
from pygpukit.ops.audio.layout import copies_first, dense, on_numpy, real_input, real_types, same_type
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Number,
    Unit,
    Workspace,
    blocks_for,
    constant,
    i64,
    read,
    write,
)
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint, product
from pygpukit.ops.source import instance

__all__ = ["MOST_STATES", "follow", "recurrence", "resample"]

MOST_STATES = 32
"""Numbers in the state of a recursive filter, of all its sections together."""

_BUNDLED = ((1, 1), (1, 2), (2, 2), (3, 2), (4, 2))


def _infer_resample(p: Problem) -> list[Result]:
    x = real_input(p, "x")
    filters, up, down = same_type(p, "filters", x.dtype), int(p.options["up"]), int(p.options["down"])
    if up < 1 or down < 1 or int(p.options["center"]) < 0 or int(p.options["length"]) < 0:
        raise ShapeError(f"{p.name}: up {up} and down {down} are at least 1, center and length at least 0")
    if filters.ndim != 2 or filters.shape[0] != up:
        raise ShapeError(f"{p.name}: filters {filters}; their shape is (up, taps) with up {up}")
    return [Result((*x.shape[:-1], int(p.options["length"])), x.dtype)]


@cache
def resample_unit(kind: DataType) -> Unit:
    """Return the source of resampling for a type."""
    entry = f"pgk_audio_resample_{kind.tag}"
    return instance("audio/resample.cu", [f"PGK_RESAMPLE({entry}, {kind.tag})"], (entry,))


def _launch_resample(p: Problem) -> Launch:
    x, filters, length = p["x"], p["filters"], int(p.options["length"])
    unit, rows = resample_unit(x.dtype), product(x.shape[:-1])
    up, down, center = (int(p.options[k]) for k in ("up", "down", "center"))
    sizes = (rows, x.shape[-1], length, up, down, filters.shape[1], center)
    arguments: tuple[Argument, ...] = (write(p.out), read(x), constant(filters), *map(i64, sizes))
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(rows * length, 256, p.name),), (256,), arguments),))


def _rows_host(p: Problem) -> Callable[..., None]:
    """Resample float32 in the core; the sums of an output have one order, whatever the other outputs are."""
    down, center, length = (int(p.options[k]) for k in ("down", "center", "length"))

    def run(x: Any, filters: Any, out: Any) -> None:
        rows = prod(x.shape[:-1])
        flat = np.ascontiguousarray(x).reshape(rows, x.shape[-1])
        made = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        _native.resample_rows(flat, np.ascontiguousarray(filters), made.reshape(rows, length), down, center)
        if made is not out:
            np.copyto(out, made)

    return run


resample = register(
    Operator(
        name="audio_resample",
        parameters=(
            Parameter("x", doc="Samples along the last axis."),
            Parameter("filters", doc="(up, taps): phase q has taps q, q + up, ... of the filter."),
            Parameter("up", "choice", keyword_only=True, doc="Factor of the rate."),
            Parameter("down", "choice", keyword_only=True, doc="Divisor of the rate."),
            Parameter("center", "choice", keyword_only=True, doc="Tap of the filter that belongs to output 0."),
            Parameter("length", "choice", keyword_only=True, doc="Outputs."),
        ),
        infer=_infer_resample,
        reference=reference.resample,
        variants=(
            Variant("a thread per sample", "batch_invariant", dense, launch=_launch_resample,
                    units=lambda types: (resample_unit(kind) for kind in real_types(types))),
            Variant("sums of 16 parts in the core", "batch_invariant",
                    lambda p: None if p["x"].dtype.name == "float32" else "it is not float32", host=_rows_host),
            on_numpy(reference.resample,
                     lambda p: {k: int(p.options[k]) for k in ("up", "down", "center", "length")}),
            copies_first(),
        ),
        doc="Resampling by a rational ratio; zeros lie before and after the samples.",
        tolerance={"float32": 4e-6, "float64": 1e-14},
        flops=lambda p: 2 * hint(p.out.size) * hint(p["filters"].shape[1]),
        public=False,
    )
)  # fmt: skip


def _infer_recurrence(p: Problem) -> list[Result]:
    x, wide = real_input(p, "x"), dtype("float64")
    sections, initial = same_type(p, "sections", wide), same_type(p, "initial", wide)
    powers, response = same_type(p, "powers", wide), same_type(p, "response", wide)
    if x.ndim != 2 or sections.ndim != 2 or initial.ndim != 2:
        raise ShapeError(f"{p.name}: x {x}, sections {sections} and initial {initial} are matrices")
    states = int(sections.shape[0]) * (int(sections.shape[1]) // 2)
    if not 1 <= states <= MOST_STATES or sections.shape[1] % 2 == 0:
        raise ShapeError(f"{p.name}: sections {sections}; (S, 2 P + 1) with S P from 1 to {MOST_STATES}")
    if initial.shape[0] != x.shape[0] or initial.shape[1] != states:
        raise ShapeError(f"{p.name}: initial {initial}; its shape is ({hint(x.shape[0])}, {states})")
    block = reference.BLOCK
    if powers.size != (block + 1) * states * states or response.size != block * states:
        raise ShapeError(f"{p.name}: powers {powers} and response {response} are not those of {states} states")
    return [Result(x.shape, x.dtype), Result(initial.shape, wide), Result(initial.shape, wide)]


@cache
def recurrence_unit(kind: DataType, sections: int, order: int) -> Unit:
    """Return the source of a cascade of so many sections of an order."""
    entry = f"pgk_audio_recurrence_{kind.tag}_{sections}_{order}"
    entries = (f"{entry}_zero_state", f"{entry}_scan", f"{entry}_finish")
    return instance(
        "audio/recurrence.cu", [f"PGK_RECURRENCE({', '.join(entries)}, {kind.tag}, {sections}, {order})"], entries
    )


def _launch_recurrence(p: Problem) -> Launch:
    x, sections, initial = p["x"], p["sections"], p["initial"]
    count, order = int(sections.shape[0]), int(sections.shape[1]) // 2
    unit, work, wide = recurrence_unit(x.dtype, count, order), Workspace(), dtype("float64")
    (rows, n), states = x.shape, count * order
    blocks = -(-n // reference.BLOCK)
    y = work.buffer(wide, rows, blocks, reference.BLOCK)
    held = work.buffer(wide, rows, blocks + 1, states)
    sizes = tuple(map(i64, (rows, n, blocks)))
    out, ends, bounds = p.outputs
    zero, scan, finish = unit.entries
    return Launch(
        (
            KernelLaunch(unit, zero, (blocks_for(rows * blocks, 64, p.name),), (64,),
                         (write(y), write(held), read(x), constant(sections), *sizes)),
            KernelLaunch(unit, scan, (blocks_for(rows, 1, p.name),), (32,),
                         (write(held), write(ends), write(bounds), constant(p["powers"]), read(initial), *sizes[1:])),
            KernelLaunch(unit, finish, (blocks_for(rows * n, 256, p.name),), (256,),
                         (write(out), read(y), read(held), constant(p["response"]), *sizes)),
        ),
        tuple(work.pieces),
    )  # fmt: skip


def _units_recurrence(types: Sequence[str]) -> Iterator[Unit]:
    for kind in real_types(types):
        for sections, order in _BUNDLED:
            yield recurrence_unit(kind, sections, order)


recurrence = register(
    Operator(
        name="audio_recurrence",
        parameters=(
            Parameter("x", doc="(rows, n)."),
            Parameter("sections", doc="float64 (S, 2 P + 1): b0 ... bP, a1 ... aP of each."),
            Parameter("powers", doc="float64 (65, S P, S P): the state's transition over 0 to 64 samples."),
            Parameter("response", doc="float64 (64, S P): what a state adds to the samples of a block."),
            Parameter("initial", doc="float64 (rows, S P): the state before the first sample."),
        ),
        infer=_infer_recurrence,
        reference=reference.recurrence,
        variants=(
            Variant("blocks of 64 samples", "batch_invariant", dense, launch=_launch_recurrence,
                    units=_units_recurrence),
            on_numpy(reference.recurrence, lambda p: {}),
            copies_first(),
        ),
        doc="A cascade of recursive filters; also the state at the end, and after the last whole block of 64 samples.",
        tolerance={"float32": 1e-6, "float64": 1e-12},
        flops=lambda p: 8 * hint(p["x"].size) * hint(p["sections"].shape[0]),
        public=False,
    )
)  # fmt: skip


def _infer_follow(p: Problem) -> list[Result]:
    x, initial = real_input(p, "x"), same_type(p, "initial", dtype("float64"))
    if x.ndim != 2 or initial.ndim != 1 or initial.shape[0] != x.shape[0]:
        raise ShapeError(f"{p.name}: x {x} and initial {initial}; their shapes are (rows, n) and (rows,)")
    return [Result(x.shape, x.dtype), Result(initial.shape, dtype("float64"))]


@cache
def follow_unit(kind: DataType) -> Unit:
    """Return the source of level followers for a type."""
    entry = f"pgk_audio_follow_{kind.tag}"
    return instance("audio/follow.cu", [f"PGK_FOLLOW({entry}, {kind.tag})"], (entry,))


def _launch_follow(p: Problem) -> Launch:
    x, unit, wide = p["x"], follow_unit(p["x"].dtype), dtype("float64")
    out, ends = p.outputs
    rows, n = x.shape
    arguments: tuple[Any, ...] = (
        write(out), write(ends), read(x), read(p["initial"]), i64(rows), i64(n), Number("rise", wide),
        Number("fall", wide),
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(rows, 32, p.name),), (32,), arguments),))


follow = register(
    Operator(
        name="audio_follow",
        parameters=(
            Parameter("x", doc="(rows, n)."),
            Parameter("initial", doc="float64 (rows,): the level before the first sample."),
            Parameter("rise", "number", doc="What is kept of the level from sample to sample where it rises."),
            Parameter("fall", "number", doc="The same where it falls."),
        ),
        infer=_infer_follow,
        reference=reference.follow,
        variants=(
            Variant("a thread per row", "batch_invariant", dense, launch=_launch_follow,
                    units=lambda types: (follow_unit(kind) for kind in real_types(types))),
            on_numpy(reference.follow, lambda p: {}),
            copies_first(),
        ),
        doc="A level that follows rows with one factor upwards and another downwards; also the last level.",
        tolerance={"float32": 1e-6, "float64": 1e-14},
        public=False,
    )
)  # fmt: skip
