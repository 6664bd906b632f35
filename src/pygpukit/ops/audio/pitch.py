"""Operators of probabilistic YIN: what each frame says about its pitch, and the likeliest path through all frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from pygpukit.array.bridge import from_numpy
from pygpukit.core.device import device
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.audio import pitch_reference as reference
from pygpukit.ops.audio.layout import copies_first, dense, on_numpy, real_input, real_types, same_type
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, Workspace, blocks_for, constant, i64, read, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.source import instance

__all__ = ["candidates", "path"]

_SHARED = 200 << 10
_CANDIDATES = ("bins", "low", "sr", "fmin", "scale", "boltzmann", "no_trough")
_PATH = ("first", "keep", "change")
_INTEGERS = ("bins", "low", "first")


def _options(names: tuple[str, ...]) -> Callable[[Problem], dict[str, Any]]:
    return lambda p: {k: int(p.options[k]) if k in _INTEGERS else float(p.options[k]) for k in names}


def _f64(value: Any) -> bytes:
    return np.float64(value).tobytes()


def _on_host(function: Callable[..., Any], names: tuple[str, ...], count: int) -> Variant:
    """Return the variant that copies the arrays to the host and the results back: it waits for the device."""

    def compose(p: Problem) -> Callable[..., None]:
        options = _options(names)(p)

        def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
            made = function(*(x.to_numpy() for x in given[:count]), **options)
            for out, value in zip(results, made if isinstance(made, tuple) else (made,), strict=True):
                with device(out.device):
                    out[...] = from_numpy(value)

        return run

    return Variant("on the host", "batch_invariant", dense, compose=compose)


def _infer_candidates(p: Problem) -> list[Result]:
    x, wide = real_input(p, "frames"), dtype("float64")
    shifts = same_type(p, "shifts", x.dtype)
    edges, weights = same_type(p, "edges", wide), same_type(p, "weights", wide)
    if x.ndim != 2 or shifts.shape != x.shape or edges.ndim != 1 or weights.ndim != 1:
        raise ShapeError(f"{p.name}: frames {x} and shifts {shifts} have 2 axes, edges {edges} and weights {weights} 1")
    if edges.shape[0] != weights.shape[0] + 1 or int(p.options["bins"]) < 1 or x.shape[1] < 2:
        raise ShapeError(f"{p.name}: {edges} have one more than {weights}; bins are at least 1, periods at least 2")
    return [Result((x.shape[0], int(p.options["bins"])), wide), Result((x.shape[0],), wide)]


@cache
def candidates_unit(kind: DataType) -> Unit:
    """Return the source of candidates for a type of frames."""
    entry = f"pgk_audio_pitch_candidates_{kind.tag}"
    return instance("audio/pitch.cu", [f"PGK_PITCH_CANDIDATES({entry}, {kind.tag})"], (entry,))


def _threads(p: Problem) -> Any:
    return -(-p["weights"].shape[0] // 32) * 32


def _candidate_bytes(p: Problem) -> Any:
    return 16 + (p["frames"].shape[1] // 2 + 1) * (8 + 8 * (_threads(p) // 32))


def _accepts_candidates(p: Problem) -> str | None:
    if p["weights"].shape[0] > 1024:
        return "there are over 1024 thresholds"
    return f"the troughs of a frame need over {_SHARED} bytes" if _candidate_bytes(p) > _SHARED else dense(p)


def _launch_candidates(p: Problem) -> Launch:
    x, o, threads = p["frames"], p.options, _threads(p)
    unit, (logs, voiced) = candidates_unit(x.dtype), p.outputs
    arguments: tuple[Argument, ...] = (
        write(logs), write(voiced), read(x), read(p["shifts"]), constant(p["edges"]), constant(p["weights"]),
        i64(x.shape[1]), i64(int(o["bins"])), i64(p["weights"].shape[0]), i64(int(o["low"])),
        *(_f64(o[name]) for name in _CANDIDATES[2:]),
    )  # fmt: skip
    blocks, shared = blocks_for(x.shape[0], 1, p.name), _candidate_bytes(p)
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (threads,), arguments, shared),))


candidates = register(
    Operator(
        name="audio_pitch_candidates",
        parameters=(
            Parameter("frames", doc="(rows, periods): normalised differences."),
            Parameter("shifts", doc="(rows, periods): where the troughs lie between the periods."),
            Parameter("edges", doc="float64: thresholds, ascending, and one before them."),
            Parameter("weights", doc="float64: probabilities of the thresholds."),
            Parameter("bins", "choice", keyword_only=True, doc="Pitches."),
            Parameter("low", "choice", keyword_only=True, doc="The first period."),
            Parameter("sr", "choice", keyword_only=True, doc="Samples per second."),
            Parameter("fmin", "choice", keyword_only=True, doc="Frequency of the first pitch."),
            Parameter("scale", "choice", keyword_only=True, doc="Pitches of an octave."),
            Parameter("boltzmann", "choice", keyword_only=True, doc="How much an earlier trough is preferred."),
            Parameter("no_trough", "choice", keyword_only=True, doc="Probability of the lowest trough under none."),
        ),
        infer=_infer_candidates,
        reference=reference.candidates,
        variants=(
            Variant("a block per frame", "batch_invariant", _accepts_candidates, launch=_launch_candidates,
                    units=lambda types: (candidates_unit(kind) for kind in real_types(types))),
            on_numpy(reference.candidates, _options(_CANDIDATES)),
            _on_host(reference.candidates, _CANDIDATES, 4),
            copies_first(),
        ),
        doc="Logarithms of the probabilities of pitches, and the probability of a voice.",
        tolerance={"float64": 1e-9},
        public=False,
    )
)  # fmt: skip


def _infer_path(p: Problem) -> list[Result]:
    wide = dtype("float64")
    logs, voiced = same_type(p, "logs", wide), same_type(p, "voiced", wide)
    steps, leave = same_type(p, "steps", wide), same_type(p, "leave", wide)
    if logs.ndim != 3 or voiced.ndim != 2 or steps.ndim != 1 or leave.ndim != 1:
        raise ShapeError(f"{p.name}: logs {logs}, voiced {voiced}, steps {steps}, leave {leave} have 3, 2, 1, 1 axes")
    if voiced.shape != logs.shape[:2] or leave.shape[0] != logs.shape[2] or logs.shape[1] < 1 or steps.shape[0] < 1:
        raise ShapeError(f"{p.name}: logs {logs}, voiced {voiced} and leave {leave} are of the same frames and pitches")
    return [Result(logs.shape[:2], dtype("int64"))]


@cache
def path_unit() -> Unit:
    """Return the source of the likeliest path."""
    entry = "pgk_audio_pitch_path_f64"
    return instance("audio/pitch.cu", [f"PGK_PITCH_PATH({entry})"], (entry,))


def _path_bytes(p: Problem) -> Any:
    bins, reach = p["logs"].shape[2], p["steps"].shape[0]
    return ((bins + reach + 2) * 4 + reach) * 8


def _accepts_path(p: Problem) -> str | None:
    if p["logs"].shape[2] > 2048:
        return "there are over 2048 pitches"
    return f"the values of a frame need over {_SHARED} bytes" if _path_bytes(p) > _SHARED else dense(p)


def _launch_path(p: Problem) -> Launch:
    logs, o, unit, work = p["logs"], p.options, path_unit(), Workspace()
    items, frames, bins = logs.shape
    back = work.buffer(dtype("int32"), items, frames, 2, bins)
    arguments: tuple[Argument, ...] = (
        write(p.out), write(back), read(logs), read(p["voiced"]), constant(p["steps"]), constant(p["leave"]),
        i64(frames), i64(bins), i64(p["steps"].shape[0]), i64(int(o["first"])), _f64(o["keep"]), _f64(o["change"]),
    )  # fmt: skip
    threads = -(-bins // 64) * 32
    launch = KernelLaunch(unit, unit.entries[0], (blocks_for(items, 1, p.name),), (threads,), arguments, _path_bytes(p))
    return Launch((launch,), tuple(work.pieces))


path = register(
    Operator(
        name="audio_pitch_path",
        parameters=(
            Parameter("logs", doc="float64 (items, frames, pitches): logarithms of probabilities."),
            Parameter("voiced", doc="float64 (items, frames): probabilities of a voice."),
            Parameter("steps", doc="float64 (reach,): logarithms of moving by pitches."),
            Parameter("leave", doc="float64 (pitches,): logarithms of what the steps from a pitch add up to."),
            Parameter("first", "choice", keyword_only=True, doc="The first step is by this less half the reach."),
            Parameter("keep", "choice", keyword_only=True, doc="Logarithm of keeping the voicing."),
            Parameter("change", "choice", keyword_only=True, doc="Logarithm of changing it."),
        ),
        infer=_infer_path,
        reference=reference.path,
        variants=(
            Variant("a block per item", "batch_invariant", _accepts_path, launch=_launch_path,
                    units=lambda types: [path_unit()] if "float64" in types else []),
            on_numpy(reference.path, _options(_PATH)),
            _on_host(reference.path, _PATH, 4),
            copies_first(),
        ),
        doc="States of the likeliest path through pitches with voice, and the same without.",
        public=False,
    )
)  # fmt: skip
