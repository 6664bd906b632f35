"""What probabilistic YIN takes as known: distributions of thresholds, and how pitches follow each other."""

from __future__ import annotations

from math import lgamma
from typing import Any

import numpy as np

from pygpukit.audio.windows import window_values

__all__ = ["beta_cdf", "moves"]


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


def moves(pitches: int, reach: int) -> tuple[Any, Any, int]:
    """Return how likely pitches follow each other: a triangle around each pitch, cut at both ends.

    Returns
    -------
    tuple
        Logarithms of the triangle, those of its sum of each pitch, and which element of a triangle that begins half its
        width below a pitch is the first. As in librosa, a triangle of even width leans to one side.
    """
    half, lean, even = reach // 2, pitches % 2, reach % 2 == 0
    triangle = window_values("triang", reach, fftbins=False)
    padded = np.concatenate([np.zeros(half), np.ones(pitches), np.zeros(half)])
    start = int(even and not lean)
    sums = np.array([(triangle[::-1] * padded[i + start : i + start + reach]).sum() for i in range(pitches)])
    return np.log(triangle), np.log(sums), int(even and lean)
