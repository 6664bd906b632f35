"""Signals for the audio tests, made with NumPy alone: music-like, speech-like, clicks, noise, silence, clipping."""

from __future__ import annotations

from typing import Any

import numpy as np

SR = 22050


def _noise(n: int, seed: int) -> Any:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(n)


def music() -> Any:
    """Three chords of decaying harmonics, 1.5 s; an odd length."""
    n = 33075
    t = np.arange(n) / SR
    y = np.zeros(n)
    for start, notes in (
        (0.0, (220.0, 277.18, 329.63)),
        (0.5, (246.94, 293.66, 369.99)),
        (1.0, (261.63, 329.63, 392.0)),
    ):
        on = t >= start
        for f in notes:
            for k in range(1, 9):
                phase = 2 * np.pi * f * k * (t - start) + 0.3 * k
                y += on * np.exp(-3 * np.maximum(t - start, 0)) * np.sin(phase) / k**1.3
    return (0.1 * y + 1e-3 * _noise(n, 1)).astype(np.float32)


def speech() -> Any:
    """A gliding pulse train through three resonances, with breath noise and a pause, 1 s."""
    n = 22050
    t = np.arange(n) / SR
    f0 = 120 + 60 * np.sin(2 * np.pi * 0.7 * t)
    phase = np.cumsum(f0) / SR
    y = sum(np.cos(2 * np.pi * k * phase) * np.exp(-((k * f0 - c) ** 2) / (2 * w**2)) * a
            for k in range(1, 25) for c, w, a in ((500, 150, 1.0), (1500, 250, 0.5), (2500, 300, 0.25)))  # fmt: skip
    voiced = (np.sin(2 * np.pi * 2.2 * t) > -0.3).astype(float)
    voiced = np.convolve(voiced, np.ones(200) / 200, "same")
    return (0.15 * y * voiced + 2e-3 * _noise(n, 2)).astype(np.float32)


def clicks() -> Any:
    """Drum-like bursts at 120 beats per minute with softer off-beats, 6 s."""
    n = 6 * SR
    y = 1e-4 * _noise(n, 3)
    for i in range(24):
        start = int(i * 0.25 * SR)
        length = min(2000, n - start)
        burst = np.exp(-np.arange(length) / 300) * _noise(length, 100 + i)
        y[start : start + length] += burst * (0.5 if i % 2 == 0 else 0.1)
    return y.astype(np.float32)


def noise() -> Any:
    """White noise."""
    return (0.2 * _noise(7001, 4)).astype(np.float32)


def silence() -> Any:
    """Zeros."""
    return np.zeros(6000, np.float32)


def clipped() -> Any:
    """The music ten times too loud."""
    return np.clip(music()[:12001] * 10, -1, 1)


def sine() -> Any:
    """440.5 Hz, half a second."""
    return (0.5 * np.sin(2 * np.pi * 440.5 * np.arange(11025) / SR)).astype(np.float32)


def faded() -> Any:
    """The speech without its sudden beginning and end."""
    ramp = np.minimum(1, np.arange(22050) / 500)
    return (speech() * ramp * ramp[::-1]).astype(np.float32)


def trimmed() -> Any:
    """The speech between silences."""
    quiet = 1e-4 * _noise(8000, 9)
    return np.concatenate([quiet, speech(), quiet]).astype(np.float32)


def stereo() -> Any:
    """Two channels."""
    return np.stack([speech()[:9000], noise()[:1].repeat(9000) * 0 + music()[3000:12000]])


SIGNALS = {f.__name__: f for f in (music, speech, clicks, noise, silence, clipped, sine, faded, trimmed, stereo)}
