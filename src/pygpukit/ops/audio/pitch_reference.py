"""The pitch operators over NumPy arrays: candidates of a frame, and the likeliest path through pitches and silence."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["candidates", "path"]

_LEAST = np.finfo(np.float64).tiny


def _troughs(frame: Any, edges: Any, weights: Any, boltzmann: float, no_trough: float) -> tuple[Any, Any]:
    """Troughs of a frame and their probabilities."""
    trough = np.zeros(len(frame), bool)
    trough[1:-1] = (frame[1:-1] < frame[:-2]) & (frame[1:-1] <= frame[2:])
    trough[0], trough[-1] = frame[0] < frame[1], frame[-1] < frame[-2]
    places = np.flatnonzero(trough)
    if not places.size:
        return places, np.zeros(0)
    heights = frame[places]
    under = np.less.outer(heights, edges[1:])
    position, count = np.cumsum(under, axis=0) - 1, np.count_nonzero(under, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        prior = (1 - np.exp(-boltzmann)) * np.exp(-boltzmann * position) / (1 - np.exp(-boltzmann * count))
    probability = np.where(under, prior, 0.0) @ weights
    lowest = int(np.argmin(heights))
    probability[lowest] += no_trough * weights[: np.count_nonzero(~under[lowest])].sum()
    return places, probability


def candidates(
    frames: Any, shifts: Any, edges: Any, weights: Any, *, bins: int, low: int, sr: float, fmin: float, scale: float,
    boltzmann: float, no_trough: float,
) -> tuple[Any, Any]:  # fmt: skip
    """Logarithms of the probabilities of pitches, (rows, bins), and those of a voice, of (rows, periods)."""
    observed = np.zeros((len(frames), bins + 1))
    for t, (frame, shift) in enumerate(zip(frames, shifts, strict=True)):
        places, probability = _troughs(frame, edges, weights, boltzmann, no_trough)
        kept = probability != 0
        places, probability = places[kept], probability[kept]
        place = scale * np.log2(sr / (low + places + shift[places].astype(np.float64)) / fmin)
        observed[t, np.clip(np.round(place), 0, bins).astype(int)] = probability
    observed = observed[:, :bins]
    return np.log(observed + _LEAST), np.clip(observed.sum(axis=1), 0, 1)


def _path(logs: Any, voiced: Any, steps: Any, leave: Any, first: int, keep: float, change: float) -> Any:
    frames, pitches = logs.shape
    reach, half = len(steps), len(steps) // 2
    silence = np.log((1 - voiced) / pitches + _LEAST)
    likelihood = np.stack([logs, np.broadcast_to(silence[:, None], logs.shape)], axis=1)
    turns = np.array([[keep, change], [change, keep]])
    far = np.log(_LEAST)
    value = likelihood[0] + np.log(1.0 / (2 * pitches) + _LEAST)
    back = np.zeros((frames, 2, pitches), np.int32)
    borders = np.full((2, half), -np.inf)
    index = np.arange(pitches)
    for t in range(1, frames):
        around = np.concatenate([borders, value - leave, borders], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(around, reach, axis=1)[:, first : first + pitches] + steps
        best = np.argmax(windows, axis=2)
        near = np.take_along_axis(windows, best[..., None], axis=2)[..., 0]
        source = index + best - half + first
        # All other transitions have the probability 0, whose logarithm is that of the least number.
        flat = value.reshape(-1)
        top = int(np.argmax(flat))
        new = np.empty_like(value)
        for to in range(2):
            routes = near + turns[:, to, None]
            which = np.argmax(routes, axis=0)
            reached = routes[which, index]
            origin = source[which, index] + which * pitches
            jump = flat[top] + far > reached
            back[t, to] = np.where(jump, top, origin)
            new[to] = np.where(jump, flat[top] + far, reached)
        value = new + likelihood[t]
    states = np.empty(frames, np.int64)
    states[-1] = np.argmax(value.reshape(-1))
    for t in range(frames - 2, -1, -1):
        states[t] = back[t + 1].reshape(-1)[states[t + 1]]
    return states


def path(logs: Any, voiced: Any, steps: Any, leave: Any, *, first: int, keep: float, change: float) -> Any:
    """States of the likeliest path (Viterbi) of each item: pitches with voice, then the same without."""
    return np.stack([_path(a, b, steps, leave, first, keep, change) for a, b in zip(logs, voiced, strict=True)])
