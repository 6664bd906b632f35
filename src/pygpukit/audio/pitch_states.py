"""Probabilistic YIN on the host: candidates of a frame, and the likeliest path through pitches and silence."""

from __future__ import annotations

from math import lgamma
from typing import Any

import numpy as np

from pygpukit.audio.windows import window_values

__all__ = ["beta_cdf", "likeliest_path", "most_likely_pitches"]


def beta_cdf(x: Any, a: float, b: float) -> Any:
    """Distribution function of the beta distribution, by its continued fraction.

    Examples
    --------
    >>> beta_cdf(np.array([0.0, 0.5, 1.0]), 2, 2).round(9).tolist()
    [0.0, 0.5, 1.0]
    """
    x = np.asarray(x, np.float64)
    turned = x > (a + 1) / (a + b + 2)
    p, q, t = np.where(turned, b, a), np.where(turned, a, b), np.where(turned, 1 - x, x)
    with np.errstate(divide="ignore"):
        front = np.exp(p * np.log(t) + q * np.log1p(-t) + lgamma(a + b) - lgamma(a) - lgamma(b)) / p
    # Lentz's method.
    c, d = np.ones_like(t), 1 - (p + q) * t / (p + 1)
    d = 1 / np.where(np.abs(d) < 1e-300, 1e-300, d)
    h = d
    for m in range(1, 300):
        for e in (
            m * (q - m) * t / ((p + 2 * m - 1) * (p + 2 * m)),
            -(p + m) * (p + q + m) * t / ((p + 2 * m) * (p + 2 * m + 1)),
        ):
            d = 1 + e * d
            d = 1 / np.where(np.abs(d) < 1e-300, 1e-300, d)
            c = 1 + e / np.where(np.abs(c) < 1e-300, 1e-300, c)
            h = h * d * c
    value = np.where((t <= 0), 0.0, front * h)
    return np.where(turned, 1 - value, value)


def _candidates(frame: Any, thresholds: Any, weights: Any, boltzmann: float, no_trough: float) -> tuple[Any, Any]:
    """Troughs of a frame and their probabilities."""
    trough = np.zeros(len(frame), bool)
    trough[1:-1] = (frame[1:-1] < frame[:-2]) & (frame[1:-1] <= frame[2:])
    trough[0], trough[-1] = frame[0] < frame[1], frame[-1] < frame[-2]
    places = np.flatnonzero(trough)
    if not places.size:
        return places, np.zeros(0)
    heights = frame[places]
    under = np.less.outer(heights, thresholds[1:])
    position, count = np.cumsum(under, axis=0) - 1, np.count_nonzero(under, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        prior = (1 - np.exp(-boltzmann)) * np.exp(-boltzmann * position) / (1 - np.exp(-boltzmann * count))
    probability = np.where(under, prior, 0.0) @ weights
    lowest = int(np.argmin(heights))
    probability[lowest] += no_trough * weights[: np.count_nonzero(~under[lowest])].sum()
    return places, probability


def likeliest_path(observed: Any, reach: int, switch: float) -> Any:
    """Return the states of the likeliest path (Viterbi) through pitches with voice, then the same without.

    Parameters
    ----------
    observed
        (frames, 2 * pitches) probabilities.
    reach
        Width of the triangle of transitions between pitches, odd.
    switch
        Probability that voicing changes.
    """
    frames, states = observed.shape
    pitches, half = states // 2, reach // 2
    least = np.finfo(np.float64).tiny
    triangle = window_values("triang", reach, fftbins=False)
    padded = np.concatenate([np.zeros(half), np.ones(pitches), np.zeros(half)])
    sums = np.array([(triangle[::-1] * padded[i : i + reach]).sum() for i in range(pitches)])
    with np.errstate(divide="ignore"):
        steps, leave = np.log(triangle), np.log(sums)
        stay_or_switch = np.log(np.array([[1 - switch, switch], [switch, 1 - switch]]))
        likelihood = np.log(observed + least).reshape(frames, 2, pitches)
    far = np.log(least)
    value = likelihood[0] + np.log(1.0 / states + least)
    back = np.zeros((frames, 2, pitches), np.int32)
    borders = np.full((2, half), -np.inf)
    index = np.arange(pitches)
    for t in range(1, frames):
        around = np.concatenate([borders, value - leave, borders], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(around, reach, axis=1) + steps
        best = np.argmax(windows, axis=2)
        near = np.take_along_axis(windows, best[..., None], axis=2)[..., 0]
        source = index + best - half
        # All other transitions have the probability 0, whose logarithm is that of the least number.
        flat = value.reshape(-1)
        top = int(np.argmax(flat))
        new = np.empty_like(value)
        for to in range(2):
            routes = near + stay_or_switch[:, to, None]
            which = np.argmax(routes, axis=0)
            reached = routes[which, index]
            origin = source[which, index] + which * pitches
            jump = flat[top] + far > reached
            back[t, to] = np.where(jump, top, origin)
            new[to] = np.where(jump, flat[top] + far, reached)
        value = new + likelihood[t]
    path = np.empty(frames, np.int64)
    path[-1] = np.argmax(value.reshape(-1))
    for t in range(frames - 2, -1, -1):
        path[t] = back[t + 1].reshape(-1)[path[t + 1]]
    return path


def most_likely_pitches(
    frames: Any, shifts: Any, *, sr: float, low: int, fmin: float, bins: int, per_semitone: int, reach: int,
    thresholds: int, beta: tuple[float, float], boltzmann: float, switch: float, no_trough: float,
) -> tuple[Any, Any]:  # fmt: skip
    """Return states and probabilities of voice of (frames, periods)."""
    edges = np.linspace(0, 1, thresholds + 1)
    weights = np.diff(beta_cdf(edges, *beta))
    observed = np.zeros((len(frames), 2 * bins))
    for t, (frame, shift) in enumerate(zip(frames, shifts, strict=True)):
        places, probability = _candidates(frame, edges, weights, boltzmann, no_trough)
        kept = probability != 0
        places, probability = places[kept], probability[kept]
        place = 12 * per_semitone * np.log2(sr / (low + places + shift[places]) / fmin)
        observed[t, np.clip(np.round(place), 0, bins).astype(int)] = probability
    voiced = np.clip(observed[:, :bins].sum(axis=1), 0, 1)
    observed[:, bins:] = ((1 - voiced) / bins)[:, None]
    return likeliest_path(observed, reach, switch), voiced
