"""Loudness as ITU-R BS.1770 and EBU R 128 define it: filtered on the device, gated on the host."""

from __future__ import annotations

from math import pi, tan
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import framed, positive, samples
from pygpukit.audio.filtering import sosfilt
from pygpukit.audio.operators import gp
from pygpukit.audio.resampling import resample
from pygpukit.errors import ParameterError

__all__ = ["k_weighting", "loudness", "loudness_range", "true_peak"]

_CHANNELS = {1: (1.0,), 2: (1.0, 1.0), 3: (1.0, 1.0, 1.0), 4: (1.0, 1.0, 1.41, 1.41), 5: (1.0, 1.0, 1.0, 1.41, 1.41),
             6: (1.0, 1.0, 1.0, 0.0, 1.41, 1.41)}  # fmt: skip


def k_weighting(sr: float) -> Any:
    """Second-order sections of the K-weighting at a rate: a shelf and a high pass, float64 (2, 6).

    Examples
    --------
    >>> k_weighting(48000)[0, :3].round(8).tolist()
    [1.53512486, -2.69169619, 1.19839281]
    """
    sr = positive(sr, "sr")
    k, q = tan(pi * 1681.974450955533 / sr), 0.7071752369554196
    high = 10.0 ** (3.999843853973347 / 20)
    middle = high**0.4996667741545416
    a0 = 1 + k / q + k * k
    shelf = [(high + middle * k / q + k * k) / a0, 2 * (k * k - high) / a0, (high - middle * k / q + k * k) / a0,
             1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0]  # fmt: skip
    k, q = tan(pi * 38.13547087602444 / sr), 0.5003270373238773
    a0 = 1 + k / q + k * k
    return np.array([shelf, [1.0, -2.0, 1.0, 1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0]])


def _energies(y: GPUArray, sr: float, seconds: float, weights: Any) -> Any:
    """Weighted mean squares of blocks that begin each 100 ms, on the host: (..., blocks)."""
    channels = 1 if y.ndim == 1 else y.shape[-2]
    factors = _CHANNELS.get(channels) if weights is None else tuple(weights)
    if factors is None or len(factors) != channels:
        raise ParameterError(f"{channels} channels; give weights, one for each")
    size, hop = round(seconds * sr), round(0.1 * sr)
    if y.shape[-1] < size:
        raise ParameterError(f"{y.shape[-1]} samples are too few for a block of {seconds} s at {sr} Hz")
    weighted = sosfilt(k_weighting(sr), y.astype("float64"))
    means = gp.mean(framed(weighted * weighted, size, hop), axis=-1).to_numpy()
    means = means[None] if y.ndim == 1 else means
    return sum(w * means[..., i, :] for i, w in enumerate(factors))


def _lufs(energy: Any) -> Any:
    with np.errstate(divide="ignore"):
        return -0.691 + 10 * np.log10(energy)


def loudness(y: Any, *, sr: float, mode: str = "integrated", weights: Any = None) -> Any:
    """Loudness in LUFS, as a NumPy array.

    Parameters
    ----------
    y : GPUArray
        (n,), or (..., channels, n) with up to six channels: left, right, centre, low frequencies, left and right
        surround (of four: no centre; of five: no low frequencies).
    sr : float
        Samples per second.
    mode : str, optional
        ``"integrated"``, gated, of the whole sound; ``"momentary"`` of blocks of 400 ms, ``"short"`` of 3 s, one each
        100 ms.
    weights : optional
        Of the channels, in place of the standard's.

    Returns
    -------
    numpy.ndarray
        Without the axes of channels and time; with one of blocks where mode is not integrated. Silence is -inf.

    Raises
    ------
    ParameterError
        If the sound is shorter than a block, or its channels have no weights.

    Examples
    --------
    >>> y = gp.sin(gp.arange(48000, dtype="float64") * (2 * gp.pi * 997 / 48000))
    >>> float(loudness(y, sr=48000).round(2))
    -3.01
    """
    y, sr = samples(y), positive(sr, "sr")
    if mode not in ("integrated", "momentary", "short"):
        raise ParameterError(f"mode is '{mode}'; use integrated, momentary or short")
    energy = _energies(y, sr, 3.0 if mode == "short" else 0.4, weights)
    return _lufs(energy) if mode != "integrated" else np.apply_along_axis(_integrated, -1, energy)


def _integrated(energy: Any) -> float:
    loud = energy[_lufs(energy) >= -70.0]
    if not loud.size:
        return float("-inf")
    kept = loud[_lufs(loud) >= _lufs(loud.mean()) - 10.0]
    return float(_lufs(kept.mean()))


def loudness_range(y: Any, *, sr: float, weights: Any = None) -> Any:
    """Loudness range in LU (EBU Tech 3342), as a NumPy array; parameters as of `loudness`.

    Examples
    --------
    >>> y = gp.sin(gp.arange(8 * 8000, dtype="float64"))
    >>> float(loudness_range(y, sr=8000).round(1))
    0.0
    """
    y, sr = samples(y), positive(sr, "sr")

    def one(energy: Any) -> float:
        loud = energy[_lufs(energy) >= -70.0]
        if not loud.size:
            return 0.0
        levels = _lufs(loud[_lufs(loud) >= _lufs(loud.mean()) - 20.0])
        return float(np.percentile(levels, 95) - np.percentile(levels, 10))

    return np.apply_along_axis(one, -1, _energies(y, sr, 3.0, weights))


def true_peak(y: Any) -> GPUArray:
    """Largest magnitude between samples too, by four times the rate, in decibels: (...,) without the axis of time.

    Examples
    --------
    >>> true_peak(gp.asarray([0.0, 0.5, 0.0])).round(1).item()
    -6.0
    """
    y = samples(y)
    four = resample(y, orig_sr=1, target_sr=4)
    top = gp.maximum(gp.max(gp.abs(four), axis=-1), gp.max(gp.abs(y), axis=-1))
    return 20 * gp.log10(gp.maximum(top, 1e-10))
