"""Operators on frames and spectra: overlap-add, sums over bands, sliding medians."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.audio import reference
from pygpukit.ops.audio.layout import copies_first, dense, on_numpy, real_input, real_types, same_type
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, constant, i64, read, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint, product
from pygpukit.ops.source import instance

__all__ = ["bands", "median", "overlap_add"]

_SHARED = 96 << 10
_MEDIAN_ROWS = {1: 256, 32: 32}
"""Outputs along the axis of a block of medians, by its columns."""


def _float_bytes(kind: DataType, value: float) -> bytes:
    return np.array(value, np.float64 if kind.itemsize == 8 else np.float32).tobytes()


def _infer_overlap(p: Problem) -> list[Result]:
    x = real_input(p, "x", 2)
    window, n, frames = same_type(p, "window", x.dtype), x.shape[-1], x.shape[-2]
    if window.ndim != 1 or window.shape[0] != n:
        raise ShapeError(f"{p.name}: frames of {hint(n)} samples need a window of {hint(n)}, not {window}")
    hop, start, end = (int(p.options[name]) for name in ("hop", "start", "end"))
    if hop < 1 or start < 0 or end < 0:
        raise ShapeError(f"{p.name}: hop {hop}, start {start}, end {end}; hop is at least 1, the others at least 0")
    length = (frames - 1) * hop + n - start - end
    if frames == 0 or length <= 0:
        length = 0
    return [Result((*x.shape[:-2], length), x.dtype)]


@cache
def overlap_unit(kind: DataType) -> Unit:
    """Return the source of overlap-add for a type."""
    entry = f"pgk_audio_overlap_add_{kind.tag}"
    return instance("audio/overlap_add.cu", [f"PGK_OVERLAP_ADD({entry}, {kind.tag})"], (entry,))


def _launch_overlap(p: Problem) -> Launch:
    x, out = p["x"], p.out
    unit, rows, length = overlap_unit(x.dtype), product(x.shape[:-2]), out.shape[-1]
    least = np.finfo(np.float64 if x.dtype.itemsize == 8 else np.float32).tiny
    sizes = (rows, x.shape[-2], x.shape[-1], int(p.options["hop"]), int(p.options["start"]), length)
    arguments: tuple[Argument, ...] = (
        write(out),
        read(x),
        constant(p["window"]),
        *map(i64, sizes),
        _float_bytes(x.dtype, float(least)),
    )
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(rows * length, 256, p.name),), (256,), arguments),))


overlap_add = register(
    Operator(
        name="audio_overlap_add",
        parameters=(
            Parameter("x", doc="Frames: (..., frames, n)."),
            Parameter("window", doc="n factors."),
            Parameter("hop", "choice", keyword_only=True, doc="Samples from frame to frame."),
            Parameter("start", "choice", 0, keyword_only=True, doc="Samples left out at the front."),
            Parameter("end", "choice", 0, keyword_only=True, doc="Samples left out at the end."),
        ),
        infer=_infer_overlap,
        reference=reference.overlap_add,
        variants=(
            Variant("a thread per sample", "batch_invariant", dense, launch=_launch_overlap,
                    units=lambda types: (overlap_unit(kind) for kind in real_types(types))),
            on_numpy(reference.overlap_add, lambda p: {k: int(p.options[k]) for k in ("hop", "start", "end")}),
            copies_first(),
        ),
        doc="Windowed frames added where they overlap, over the sum of the squared window where that is not zero.",
        tolerance={"float32": 2e-6, "float64": 1e-14},
        flops=lambda p: 4 * hint(p["x"].size),
        public=False,
    )
)  # fmt: skip


def _infer_bands(p: Problem) -> list[Result]:
    x, power = p["x"], p.options["power"]
    kinds = {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}
    if x.dtype.name not in kinds:
        raise DTypeError(f"{p.name}: 'x' is {x.dtype.name}; it takes {', '.join(kinds)}: convert with astype")
    if power not in (0, 1, 2) or (power == 0 and x.dtype.kind == "c"):
        raise ValueError(f"{p.name}: power {power} of {x.dtype.name}; it is 1 or 2, or 0 of real numbers")
    weights, places = same_type(p, "weights", dtype(kinds[x.dtype.name])), same_type(p, "places", dtype("int64"))
    if x.ndim < 1 or weights.ndim != 1 or places.ndim != 2 or places.shape[0] != 3:
        raise ShapeError(f"{p.name}: weights {weights} and places {places}; they are (n,) and (3, bands)")
    return [Result((*x.shape[:-1], places.shape[1]), weights.dtype)]


@cache
def bands_unit(kind: DataType, power: int, held: bool = True) -> Unit:
    """Return the source of sums over bands for a type of spectra and a power; ``held``: in shared memory."""
    entry = f"pgk_audio_bands_{kind.tag}_{power}{'' if held else '_direct'}"
    real = "f64" if kind.name in ("float64", "complex128") else "f32"
    flags = [str(flag).lower() for flag in (kind.kind == "c", held)]
    return instance("audio/bands.cu", [f"PGK_BANDS({entry}, {real}, {flags[0]}, {power}, {flags[1]})"], (entry,))


def _shared_bytes(p: Problem) -> Any:
    return p["x"].shape[-1] * p.out.dtype.itemsize


def _accepts_held(p: Problem) -> str | None:
    return f"a spectrum is over {_SHARED} bytes" if _shared_bytes(p) > _SHARED else dense(p)


def _launch_bands(held: bool) -> Callable[[Problem], Launch]:
    def launch(p: Problem) -> Launch:
        x, bins = p["x"], p["x"].shape[-1]
        unit, rows = bands_unit(x.dtype, int(p.options["power"]), held), product(x.shape[:-1])
        arguments: tuple[Argument, ...] = (
            write(p.out), read(x), constant(p["weights"]), constant(p["places"]), i64(bins), i64(p.out.shape[-1])
        )  # fmt: skip
        blocks, shared = blocks_for(rows, 1, p.name), _shared_bytes(p) if held else 0
        return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (128,), arguments, shared),))

    return launch


def _units_bands(held: bool) -> Callable[[Sequence[str]], Iterator[Unit]]:
    def units(types: Sequence[str]) -> Iterator[Unit]:
        for name in types:
            if name in ("float32", "float64", "complex64", "complex128"):
                for power in (0, 1, 2) if name.startswith("f") else (1, 2):
                    yield bands_unit(dtype(name), power, held)

    return units


bands = register(
    Operator(
        name="audio_bands",
        parameters=(
            Parameter("x", doc="Spectra along the last axis."),
            Parameter("weights", doc="Those of all bands, one after the other."),
            Parameter("places", doc="int64 (3, bands): first bin, first weight and number of bins of each band."),
            Parameter("power", "choice", 0, keyword_only=True, doc="1 or 2: of magnitudes, or their squares."),
        ),
        infer=_infer_bands,
        reference=reference.bands,
        variants=(
            Variant("a warp per band", "batch_invariant", _accepts_held, launch=_launch_bands(True),
                    units=_units_bands(True)),
            Variant("a warp per band, spectra in global memory", "batch_invariant", dense, launch=_launch_bands(False),
                    units=_units_bands(False)),
            on_numpy(reference.bands, lambda p: {"power": int(p.options["power"])}),
            copies_first(),
        ),
        doc="Weighted sums of spectra over bands of neighbouring bins.",
        tolerance={"float32": 4e-6, "float64": 1e-14},
        flops=lambda p: 4 * hint(p["x"].size),
        public=False,
    )
)  # fmt: skip


def _infer_median(p: Problem) -> list[Result]:
    x, size, axis = real_input(p, "x"), int(p.options["size"]), int(p.options["axis"])
    if size < 1:
        raise ShapeError(f"{p.name}: a median over {size} elements; use at least 1")
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{p.name}: axis {axis} of an array of {x.ndim} dimensions")
    return [Result(x.shape, x.dtype)]


@cache
def median_unit(kind: DataType, columns: int, held: bool) -> Unit:
    """Return the source of sliding medians for a type; of 1 column or 32 side by side; ``held``: in shared memory."""
    entry = f"pgk_audio_median_{kind.tag}_{columns}{'' if held else '_direct'}"
    flags = f"{_MEDIAN_ROWS[columns]}, {columns}, {str(held).lower()}"
    return instance("audio/median.cu", [f"PGK_MEDIAN({entry}, {kind.tag}, {flags})"], (entry,))


def _median_columns(p: Problem) -> int:
    """Columns of a block: neighbours in memory are read together."""
    x = p["x"]
    return 1 if product(x.shape[int(p.options["axis"]) % x.ndim + 1 :]) == 1 else 32


def _median_bytes(p: Problem) -> int:
    columns = _median_columns(p)
    return (_MEDIAN_ROWS[columns] + int(p.options["size"]) - 1) * columns * p["x"].dtype.itemsize


def _accepts_median(p: Problem) -> str | None:
    return f"the elements under a block are over {_SHARED} bytes" if _median_bytes(p) > _SHARED else dense(p)


def _launch_median(held: bool) -> Callable[[Problem], Launch]:
    def launch(p: Problem) -> Launch:
        x, columns = p["x"], _median_columns(p)
        unit, axis = median_unit(x.dtype, columns, held), int(p.options["axis"]) % x.ndim
        outer, n, inner = product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])
        blocks = blocks_for(outer * -(-n // _MEDIAN_ROWS[columns]) * -(-inner // columns), 1, p.name)
        arguments: tuple[Argument, ...] = (write(p.out), read(x), i64(n), i64(inner), i64(int(p.options["size"])))
        shared = _median_bytes(p) if held else 0
        return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (256,), arguments, shared),))

    return launch


def _units_median(held: bool) -> Callable[[Sequence[str]], Iterator[Unit]]:
    return lambda types: (median_unit(kind, columns, held) for kind in real_types(types) for columns in _MEDIAN_ROWS)


median = register(
    Operator(
        name="audio_median",
        parameters=(
            Parameter("x"),
            Parameter("size", "choice", keyword_only=True, doc="Elements of a window."),
            Parameter("axis", "choice", -1, keyword_only=True, doc="Along which windows lie."),
        ),
        infer=_infer_median,
        reference=reference.median,
        variants=(
            Variant("bits by counting", "batch_invariant", _accepts_median, launch=_launch_median(True),
                    units=_units_median(True)),
            Variant("bits by counting, elements in global memory", "batch_invariant", dense,
                    launch=_launch_median(False), units=_units_median(False)),
            on_numpy(reference.median, lambda p: {k: int(p.options[k]) for k in ("size", "axis")}),
            copies_first(),
        ),
        doc="Sliding median along an axis, the ends mirrored.",
        public=False,
    )
)  # fmt: skip
