"""Pitch classes from constant-Q transforms, their smoothed form, and tonal centroids."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, magnitudes, normalize
from pygpukit.audio.constantq import cqt, hybrid_cqt
from pygpukit.audio.filters import cq_to_chroma
from pygpukit.audio.operators import gp
from pygpukit.audio.windows import window_values
from pygpukit.errors import ParameterError

__all__ = ["chroma_cens", "chroma_cqt", "tonnetz"]


def chroma_cqt(
    *, y: Any = None, sr: float = 22050, C: Any = None, hop_length: int = 512, fmin: float | None = None,
    norm: float | None = np.inf, threshold: float | None = 0.0, tuning: float | None = None, n_chroma: int = 12,
    n_octaves: int = 7, window: Any = None, bins_per_octave: int | None = 36, cqt_mode: str = "full",
) -> GPUArray:  # fmt: skip
    """Energy of pitch classes from a constant-Q transform: (..., n_chroma, frames).

    Parameters
    ----------
    y, sr, hop_length, fmin, tuning, bins_per_octave
        As of `cqt`; the tuning is estimated by default.
    C : GPUArray, optional
        In place of ``y``: a constant-Q transform.
    norm : float, optional
        Order of the norm that each frame is divided by.
    threshold : float, optional
        Smaller energies are 0.
    n_chroma, n_octaves : int, optional
        Classes, and octaves of the transform.
    window : array, optional
        Smooths over bins.
    cqt_mode : str, optional
        ``"full"`` for `cqt`, ``"hybrid"`` for `hybrid_cqt`.

    Raises
    ------
    ParameterError
        If bins_per_octave is no multiple of n_chroma, or neither ``y`` nor ``C`` is given.

    Examples
    --------
    >>> chroma_cqt(C=gp.ones((252, 2))).shape
    (12, 2)
    """
    per_octave = n_chroma if bins_per_octave is None else bins_per_octave
    if per_octave % n_chroma:
        raise ParameterError(f"bins_per_octave {per_octave} is no multiple of n_chroma {n_chroma}")
    if C is None:
        if y is None:
            raise ParameterError("give samples y or a constant-Q transform C")
        function = {"full": cqt, "hybrid": hybrid_cqt}.get(cqt_mode)
        if function is None:
            raise ParameterError(f"cqt_mode is '{cqt_mode}'; it is 'full' or 'hybrid'")
        C = function(y, sr=sr, hop_length=hop_length, fmin=fmin, n_bins=n_octaves * per_octave,
                     bins_per_octave=per_octave, tuning=tuning)  # fmt: skip
    C = magnitudes(C, "C")
    fold = cq_to_chroma(C.shape[-2], bins_per_octave=per_octave, n_chroma=n_chroma, fmin=fmin, window=window)
    chroma = gp.matmul(constant(fold, C), C)
    if threshold is not None:
        chroma = gp.where(chroma < threshold, gp.zeros_like(chroma), chroma)
    return normalize(chroma, norm, -2)


def chroma_cens(
    *, y: Any = None, sr: float = 22050, C: Any = None, hop_length: int = 512, fmin: float | None = None,
    tuning: float | None = None, n_chroma: int = 12, n_octaves: int = 7, bins_per_octave: int = 36,
    cqt_mode: str = "full", window: Any = None, norm: float | None = 2, win_len_smooth: int | None = 41,
    smoothing_window: Any = "hann",
) -> GPUArray:  # fmt: skip
    """Pitch classes in steps of loudness, smoothed over frames, for comparing performances.

    Parameters
    ----------
    win_len_smooth : int, optional
        Frames of the smoothing window; None for none.
    smoothing_window
        As of `get_window`.
    y, sr, C, hop_length, fmin, tuning, n_chroma, n_octaves, bins_per_octave, cqt_mode, window, norm
        As of `chroma_cqt`.

    Examples
    --------
    >>> chroma_cens(C=gp.ones((252, 50))).shape
    (12, 50)
    """
    chroma = chroma_cqt(
        y=y, C=C, sr=sr, hop_length=hop_length, fmin=fmin, bins_per_octave=bins_per_octave, tuning=tuning, norm=None,
        n_chroma=n_chroma, n_octaves=n_octaves, cqt_mode=cqt_mode, window=window,
    )  # fmt: skip
    chroma = normalize(chroma, 1, -2)
    steps = gp.zeros_like(chroma)
    for level in (0.4, 0.2, 0.1, 0.05):
        steps = steps + (chroma > level).astype(chroma.dtype) * 0.25
    if win_len_smooth:
        width = at_least(win_len_smooth, 1, "win_len_smooth") + 2
        weights = window_values(smoothing_window, width, fftbins=False)
        weights = weights / weights.sum()
        before = width - 1 - width // 2
        n = steps.shape[-1]
        padded = gp.pad(steps, [(0, 0)] * (steps.ndim - 1) + [(before, width // 2)])
        smooth = padded[..., :n] * float(weights[-1])
        for i in range(1, width):
            smooth = smooth + padded[..., i : i + n] * float(weights[width - 1 - i])
        steps = smooth
    return normalize(steps, norm, -2)


def tonnetz(*, y: Any = None, sr: float = 22050, chroma: Any = None, **kwargs: Any) -> GPUArray:
    """Tonal centroids: fifths, minor thirds and major thirds as points on circles, (..., 6, frames).

    Parameters
    ----------
    y, sr
        Samples and their rate.
    chroma : GPUArray, optional
        In place of ``y``: energies of pitch classes.
    **kwargs
        As of `chroma_cqt`.

    Raises
    ------
    ParameterError
        If neither is given.

    Examples
    --------
    >>> tonnetz(chroma=gp.ones((12, 2))).shape
    (6, 2)
    """
    if chroma is None:
        if y is None:
            raise ParameterError("give samples y or a chroma")
        chroma = chroma_cqt(y=y, sr=sr, **kwargs)
    chroma = magnitudes(chroma, "chroma")
    places = np.linspace(0, 12, num=chroma.shape[-2], endpoint=False)
    turns = np.multiply.outer(np.array([7 / 6, 7 / 6, 3 / 2, 3 / 2, 2 / 3, 2 / 3]), places)
    turns[::2] -= 0.5
    phi = np.array([1, 1, 1, 1, 0.5, 0.5])[:, None] * np.cos(np.pi * turns)
    return gp.matmul(constant(phi, chroma), normalize(chroma, 1, -2))
