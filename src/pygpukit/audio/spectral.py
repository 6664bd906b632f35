"""Features of spectra and samples: centroids, bandwidths, contrast, energy, zero crossings, pitch classes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import (
    at_least,
    constant,
    each_item,
    framed,
    magnitudes,
    normalize,
    number,
    samples,
)
from pygpukit.audio.convert import fft_frequencies
from pygpukit.audio.filters import chroma_values
from pygpukit.audio.operators import gp
from pygpukit.audio.pitch import estimate_tuning
from pygpukit.audio.spectrum import power_to_db, spectrogram
from pygpukit.errors import ParameterError

__all__ = [
    "chroma_stft", "poly_features", "rms", "spectral_bandwidth", "spectral_centroid", "spectral_contrast",
    "spectral_flatness", "spectral_rolloff", "zero_crossing_rate", "zero_crossings",
]  # fmt: skip


def _frequencies(freq: Any, S: GPUArray, sr: float, n_fft: int) -> GPUArray:
    values = constant(fft_frequencies(sr=sr, n_fft=n_fft), S) if freq is None else freq
    values = values if isinstance(values, GPUArray) else constant(values, S)
    if values.ndim == 1:
        if values.shape[0] != S.shape[-2]:
            raise ParameterError(f"freq has {values.shape[0]} values for {S.shape[-2]} bins")
        return values[:, None]
    return values


def spectral_centroid(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    freq: Any = None, win_length: int | None = None, window: Any = "hann", center: bool = True,
    pad_mode: str = "constant",
) -> GPUArray:  # fmt: skip
    """Mean frequency of each frame's magnitudes, in Hz: (..., 1, frames).

    Parameters
    ----------
    y, sr
        Samples and their rate.
    S : GPUArray, optional
        In place of ``y``: magnitudes.
    freq : array, optional
        Frequencies of the bins; those of the transform by default.
    n_fft, hop_length, win_length, window, center, pad_mode
        As of `stft`.

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> spectral_centroid(S=gp.asarray([[0.0], [1.0], [1.0]]), sr=8).tolist()
    [[3.0]]
    """
    S, n = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    return gp.sum(_frequencies(freq, S, sr, n) * normalize(S, 1, -2), axis=-2, keepdims=True)


def spectral_bandwidth(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    win_length: int | None = None, window: Any = "hann", center: bool = True, pad_mode: str = "constant",
    freq: Any = None, centroid: Any = None, norm: bool = True, p: float = 2,
) -> GPUArray:  # fmt: skip
    """Deviation of order p from the centroid: (..., 1, frames); parameters as of `spectral_centroid`.

    Examples
    --------
    >>> spectral_bandwidth(S=gp.asarray([[0.0], [1.0], [1.0]]), sr=8).tolist()
    [[1.0]]
    """
    S, n = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    bins = _frequencies(freq, S, sr, n)
    if centroid is None:
        centroid = gp.sum(bins * normalize(S, 1, -2), axis=-2, keepdims=True)
    deviation = gp.abs(bins - centroid)
    S = normalize(S, 1, -2) if norm else S
    total = gp.sum(S * (deviation * deviation if p == 2 else deviation**p), axis=-2, keepdims=True)
    return gp.sqrt(total) if p == 2 else total ** (1.0 / p)


def spectral_contrast(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    win_length: int | None = None, window: Any = "hann", center: bool = True, pad_mode: str = "constant",
    freq: Any = None, fmin: float = 200.0, n_bands: int = 6, quantile: float = 0.02, linear: bool = False,
) -> GPUArray:  # fmt: skip
    """Difference of peaks and valleys in octave bands: (..., n_bands + 1, frames).

    Parameters
    ----------
    y, sr, S, n_fft, hop_length, win_length, window, center, pad_mode, freq
        As of `spectral_centroid`.
    fmin : float, optional
        End of the lowest band.
    n_bands : int, optional
        Octaves above it.
    quantile : float, optional
        Part of a band's bins that are its peak, and its valley.
    linear : bool, optional
        Differences of magnitudes in place of decibels.

    Raises
    ------
    ParameterError
        If a band lies above half the rate.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.spectral_contrast(S=gp.ones((1025, 3))).shape
    (7, 3)
    """
    S, n = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    bins = fft_frequencies(sr=sr, n_fft=n) if freq is None else np.atleast_1d(freq)
    if bins.shape != (S.shape[-2],):
        raise ParameterError(f"freq has shape {bins.shape} for {S.shape[-2]} bins")
    n_bands = at_least(n_bands, 1, "n_bands")
    if not 0 < quantile < 1 or not fmin > 0:
        raise ParameterError(f"quantile {quantile} is between 0 and 1, fmin {fmin} above 0")
    edges = np.concatenate([[0.0], fmin * 2.0 ** np.arange(0, n_bands + 1)])
    if np.any(edges[:-1] >= 0.5 * sr):
        raise ParameterError(f"a band begins at {edges[-2]} Hz, not under sr / 2: lower fmin, or fewer than {n_bands}")
    peaks, valleys = [], []
    for k, (low, high) in enumerate(pairwise(edges)):
        inside = np.flatnonzero((bins >= low) & (bins <= high))
        if inside.size == 0:
            raise ParameterError(f"no bin lies between {low} and {high} Hz: use a longer n_fft")
        first = inside[0] - (k > 0)
        last = S.shape[-2] if k == n_bands else inside[-1] + 1
        count = int(max(np.rint(quantile * (last - first)), 1))
        ordered = gp.sort(S[..., first : last - (k < n_bands), :], axis=-2)
        valleys.append(gp.mean(ordered[..., :count, :], axis=-2))
        peaks.append(gp.mean(ordered[..., -count:, :], axis=-2))
    peak, valley = gp.stack(peaks, axis=-2), gp.stack(valleys, axis=-2)
    return peak - valley if linear else power_to_db(peak) - power_to_db(valley)


def spectral_flatness(
    *, y: Any = None, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    win_length: int | None = None, window: Any = "hann", center: bool = True, pad_mode: str = "constant",
    amin: float = 1e-10, power: float = 2.0,
) -> GPUArray:  # fmt: skip
    """Geometric mean of each frame over its arithmetic mean: (..., 1, frames); 1 for white noise, 0 for a tone.

    Examples
    --------
    >>> spectral_flatness(S=gp.ones((3, 1))).tolist()
    [[1.0]]
    """
    if not amin > 0:
        raise ParameterError(f"amin is {amin}; it is above 0")
    S, _ = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    S = gp.maximum(S * S if power == 2 else S**power, amin)
    return gp.exp(gp.mean(gp.log(S), axis=-2, keepdims=True)) / gp.mean(S, axis=-2, keepdims=True)


def spectral_rolloff(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    win_length: int | None = None, window: Any = "hann", center: bool = True, pad_mode: str = "constant",
    freq: Any = None, roll_percent: float = 0.85,
) -> GPUArray:  # fmt: skip
    """Frequency under which a part of each frame's energy lies, in Hz: (..., 1, frames).

    Raises
    ------
    ParameterError
        If roll_percent is not between 0 and 1.

    Examples
    --------
    >>> spectral_rolloff(S=gp.ones((5, 1)), sr=8, roll_percent=0.5).tolist()
    [[2.0]]
    """
    rule = "it is between 0 and 1"
    if not 0 < number(roll_percent, "roll_percent", rule) < 1:
        raise ParameterError(f"roll_percent is {roll_percent}; {rule}")
    S, n = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    total = gp.cumsum(S, axis=-2)
    over = total >= roll_percent * total[..., -1:, :]
    return gp.min(gp.where(over, _frequencies(freq, S, sr, n), float("inf")), axis=-2, keepdims=True)


def poly_features(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    win_length: int | None = None, window: Any = "hann", center: bool = True, pad_mode: str = "constant",
    order: int = 1, freq: Any = None,
) -> GPUArray:  # fmt: skip
    """Polynomials over frequency through the magnitudes of frames: coefficients, highest first.

    ``freq`` has one value per bin.

    Examples
    --------
    >>> poly_features(S=gp.ones((5, 1)), sr=8, order=0).round(6).tolist()
    [[1.0]]
    """
    S, n = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    bins = fft_frequencies(sr=sr, n_fft=n) if freq is None else np.asarray(freq, np.float64)
    powers = np.vander(bins, at_least(order, 0, "order") + 1)
    # Columns of like size are solved with small errors, as np.polyfit does it.
    size = np.sqrt((powers * powers).sum(0))
    weights = np.linalg.pinv(powers / size) / size[:, None]
    return gp.matmul(constant(weights, S), S.contiguous())


def rms(
    *, y: Any = None, S: Any = None, frame_length: int = 2048, hop_length: int = 512, center: bool = True,
    pad_mode: str = "constant",
) -> GPUArray:  # fmt: skip
    """Root of the mean square of each frame: (..., 1, frames).

    Parameters
    ----------
    y : GPUArray, optional
        Samples.
    S : GPUArray, optional
        In place of ``y``: magnitudes of frames of ``frame_length``.
    frame_length, hop_length, center, pad_mode
        As ``n_fft`` and the others of `stft`.

    Raises
    ------
    ParameterError
        If neither is given, or S has other bins.

    Examples
    --------
    >>> rms(y=gp.ones(8), frame_length=4, hop_length=4, center=False).tolist()
    [[1.0, 1.0]]
    """
    frame_length = at_least(frame_length, 1, "frame_length")
    hop_length = at_least(hop_length, 1, "hop_length")
    if y is not None:
        y = samples(y)
        if center:
            y = gp.pad(y, [(0, 0)] * (y.ndim - 1) + [(frame_length // 2, frame_length // 2)], mode=pad_mode)
        return gp.sqrt(gp.mean(framed(y * y, frame_length, hop_length), axis=-1))[..., None, :]
    if S is None:
        raise ParameterError("give samples y or a spectrogram S")
    S = magnitudes(S)
    if S.shape[-2] != frame_length // 2 + 1:
        raise ParameterError(f"S has {S.shape[-2]} bins; frames of {frame_length} have {frame_length // 2 + 1}")
    weights = np.ones(S.shape[-2])
    weights[0] = 0.5
    if frame_length % 2 == 0:
        weights[-1] = 0.5
    total = gp.sum(S * S * constant(weights[:, None], S), axis=-2, keepdims=True)
    return gp.sqrt(2 * total / frame_length**2)


def zero_crossings(
    y: Any, *, threshold: float = 1e-10, ref_magnitude: Any = None, pad: bool = True, zero_pos: bool = True,
    axis: int = -1,
) -> GPUArray:  # fmt: skip
    """Where the sign changes from one element to the next, as booleans.

    Parameters
    ----------
    y : GPUArray
        Samples.
    threshold : float, optional
        Elements up to this magnitude count as 0; times ``ref_magnitude``, or what that is of the magnitudes.
    pad : bool, optional
        What the first element is said to be.
    zero_pos : bool, optional
        0 counts as positive; else it is a sign of its own.
    axis : int, optional
        The last by default.

    Examples
    --------
    >>> zero_crossings(gp.asarray([1.0, -1.0, -2.0, 3.0]), pad=False).tolist()
    [False, True, False, True]
    """
    y = samples(y)
    if ref_magnitude is not None:
        threshold = threshold * (ref_magnitude(gp.abs(y)) if callable(ref_magnitude) else ref_magnitude)
    moved = gp.moveaxis(y, axis, -1)
    moved = gp.where(gp.abs(moved) <= threshold, gp.zeros_like(moved), moved)
    sign = gp.signbit(moved) if zero_pos else gp.sign(moved)
    changes = sign[..., 1:] != sign[..., :-1]
    first = gp.full((*changes.shape[:-1], 1), bool(pad), "bool", device=y.device)
    return gp.moveaxis(gp.concatenate([first, changes], axis=-1), -1, axis)


def zero_crossing_rate(
    y: Any, *, frame_length: int = 2048, hop_length: int = 512, center: bool = True, threshold: float = 1e-10,
    zero_pos: bool = True, pad: bool = False,
) -> GPUArray:  # fmt: skip
    """Part of each frame's samples at which the sign changes: (..., 1, frames).

    Examples
    --------
    >>> zero_crossing_rate(gp.asarray([1.0, -1.0, 1.0, -1.0]), frame_length=4, hop_length=4, center=False).tolist()
    [[0.75]]
    """
    y = samples(y)
    frame_length = at_least(frame_length, 1, "frame_length")
    hop_length = at_least(hop_length, 1, "hop_length")
    if center:
        y = gp.pad(y, [(0, 0)] * (y.ndim - 1) + [(frame_length // 2, frame_length // 2)], mode="edge")
    changes = zero_crossings(y, threshold=threshold, zero_pos=zero_pos, pad=False).astype("int32")
    # What changes between a frame's first sample and the one before belongs to neither.
    inside = framed(changes, frame_length, hop_length)[..., 1:]
    total = gp.sum(inside, axis=-1, dtype="int64") + int(pad)
    return (total.astype("float64") / frame_length)[..., None, :]


def chroma_stft(
    *, y: Any = None, sr: float = 22050, S: Any = None, norm: float | None = np.inf, n_fft: int = 2048,
    hop_length: int | None = 512, win_length: int | None = None, window: Any = "hann", center: bool = True,
    pad_mode: str = "constant", tuning: float | None = None, n_chroma: int = 12, ctroct: float = 5.0,
    octwidth: float | None = 2, base_c: bool = True,
) -> GPUArray:  # fmt: skip
    """Energy of pitch classes from a spectrogram: (..., n_chroma, frames).

    Parameters
    ----------
    y, sr, n_fft, hop_length, win_length, window, center, pad_mode
        As of `spectral_centroid`.
    S : GPUArray, optional
        In place of ``y``: powers.
    norm : float, optional
        Order of the norm that each frame is divided by.
    tuning : float, optional
        Deviation from A440 in fractions of a class. By default it is estimated, for each item of a batch, on the host.
    n_chroma, ctroct, octwidth, base_c
        As of `filters.chroma`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.chroma_stft(S=gp.ones((1025, 2)), tuning=0.0).shape
    (12, 2)
    """
    S, n = spectrogram(y, S, n_fft, hop_length, 2, win_length, window, center, pad_mode)

    def one(item: GPUArray) -> GPUArray:
        deviation = estimate_tuning(S=item, sr=sr, bins_per_octave=n_chroma) if tuning is None else tuning
        bank = chroma_values(float(sr), n, n_chroma, float(deviation), ctroct, octwidth, 2, base_c)
        return normalize(gp.matmul(constant(bank, item), item), norm, -2)

    return one(S) if tuning is not None else each_item(S, one, 2)
