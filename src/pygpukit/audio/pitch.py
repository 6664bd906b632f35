"""Pitch: YIN and its probabilistic form, peaks of spectra, tuning."""

from __future__ import annotations

import warnings
from math import ceil, floor, log2
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, framed, frames_first, positive, samples, tiny
from pygpukit.audio.convert import fft_frequencies, hz_to_octs
from pygpukit.audio.operators import gp
from pygpukit.audio.pitch_states import most_likely_pitches
from pygpukit.audio.spectrum import spectrogram
from pygpukit.errors import ParameterError

__all__ = ["autocorrelate", "estimate_tuning", "piptrack", "pitch_tuning", "pyin", "yin"]


def _smooth_length(least: int) -> int:
    """The smallest length of at least this many elements whose prime factors are at most 5."""
    n = least
    while True:
        rest = n
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1:
            return n
        n += 1


def autocorrelate(y: Any, *, max_size: int | None = None, axis: int = -1) -> GPUArray:
    """Autocorrelation along an axis, by Fourier transforms.

    Parameters
    ----------
    y : GPUArray
        Samples.
    max_size : int, optional
        Lags of the result; all by default.
    axis : int, optional
        The last by default.

    Examples
    --------
    >>> autocorrelate(gp.asarray([1.0, 2.0, 3.0])).round(9).tolist()
    [14.0, 8.0, 3.0]
    """
    y = samples(y)
    n = y.shape[axis]
    size = n if max_size is None else min(at_least(max_size, 1, "max_size"), n)
    padded = _smooth_length(2 * n - 1)
    spectrum = gp.abs(gp.fft.rfft(gp.moveaxis(y, axis, -1), padded))
    return gp.moveaxis(gp.fft.irfft(spectrum * spectrum, padded)[..., :size], -1, axis)


def _neighbours(x: GPUArray) -> tuple[GPUArray, GPUArray, GPUArray]:
    return x[..., 1:-1], x[..., :-2], x[..., 2:]


def _with_ends(inner: GPUArray, first: GPUArray, last: GPUArray) -> GPUArray:
    return gp.concatenate([first, inner, last], axis=-1)


def parabolic_shifts(x: GPUArray) -> GPUArray:
    """Return where the extreme of a parabola through three neighbours of the last axis lies; 0 at the ends."""
    here, before, after = _neighbours(x)
    a, b = after + before - 2 * here, (after - before) / 2
    inside = gp.abs(b) < gp.abs(a)
    shift = gp.where(inside, -b / gp.where(inside, a, gp.ones_like(a)), gp.zeros_like(a))
    zero = gp.zeros_like(x[..., :1])
    return _with_ends(shift, zero, zero)


def _yin_frames(y: GPUArray, frame_length: int, hop_length: int, center: bool, pad_mode: str, low: int, high: int
                ) -> GPUArray:  # fmt: skip
    """The normalised difference function: (..., frames, periods from low to high)."""
    if center:
        y = gp.pad(y, [(0, 0)] * (y.ndim - 1) + [(frame_length // 2, frame_length // 2)], mode=pad_mode)
    frames = framed(y, frame_length, hop_length)
    # A window with zeros behind pads each frame where it is: nothing is copied but the end of the samples.
    size = _smooth_length(2 * frame_length - 1)
    window = np.zeros(size)
    window[:frame_length] = 1.0
    padded = gp.pad(y, [(0, 0)] * (y.ndim - 1) + [(0, size - frame_length)])
    spectrum = gp.fft.transform(padded, size, real=True, window=constant(window, y), hop=hop_length)
    power = spectrum.real * spectrum.real + spectrum.imag * spectrum.imag
    lags = gp.fft.irfft(power, size)[..., : high + 1]
    squares = gp.cumsum(frames[..., :high] * frames[..., :high], axis=-1)
    squares = gp.concatenate([gp.zeros_like(squares[..., :1]), squares[..., 1:]], axis=-1)
    difference = 2 * (lags[..., :1] - lags[..., 1:]) - squares
    mean = gp.cumsum(difference, axis=-1) / constant(np.arange(1, high + 1), y)
    return difference[..., low - 1 :] / (mean[..., low - 1 :] + tiny(y))


def _periods(fmin: Any, fmax: Any, sr: float, frame_length: int) -> tuple[int, int]:
    if fmin is None or fmax is None:
        raise ParameterError("fmin and fmax are needed")
    if not positive(fmin, "fmin") < positive(fmax, "fmax"):
        raise ParameterError(f"fmin {fmin} is above 0 and under fmax {fmax}")
    if fmax > positive(sr, "sr") / 2:
        raise ParameterError(f"fmax {fmax} is over half the rate, {sr / 2}")
    if sr / fmin >= frame_length - 1:
        raise ParameterError(
            f"fmin {fmin} at {sr} Hz has periods of {sr / fmin:.0f} samples, too long for frames of {frame_length}: "
            f"use a frame_length over {ceil(sr / fmin) + 1}"
        )
    return floor(sr / fmax), min(ceil(sr / fmin), frame_length - 1)


def _troughs(x: GPUArray) -> GPUArray:
    here, before, after = _neighbours(x)
    return _with_ends((here < before) & (here <= after), x[..., :1] < x[..., 1:2], x[..., -1:] < x[..., -2:-1])


def yin(
    y: Any, *, fmin: float, fmax: float, sr: float = 22050, frame_length: int = 2048,
    hop_length: int | None = None, trough_threshold: float = 0.1, center: bool = True, pad_mode: str = "constant",
) -> GPUArray:  # fmt: skip
    """Fundamental frequency of each frame by YIN, in Hz: (..., frames).

    Parameters
    ----------
    y : GPUArray
        Samples.
    fmin, fmax : float
        Lowest and highest frequency.
    sr : float, optional
        Samples per second.
    frame_length, hop_length, center, pad_mode
        As ``n_fft`` and the others of `stft`.
    trough_threshold : float, optional
        The first trough under this is taken, else the lowest.

    Raises
    ------
    ParameterError
        If a frame does not hold a period of fmin, or fmax is over half the rate.

    Examples
    --------
    >>> y = gp.sin(gp.arange(4096, dtype="float64") * (2 * gp.pi * 441 / 22050))
    >>> yin(y, fmin=200, fmax=1000, center=False)[0].round(0).item()
    441.0
    """
    y = samples(y)
    frame_length = at_least(frame_length, 4, "frame_length")
    hop = frame_length // 4 if hop_length is None else at_least(hop_length, 1, "hop_length")
    low, high = _periods(fmin, fmax, sr, frame_length)
    frames = _yin_frames(y, frame_length, hop, center, pad_mode, low, high)
    return _frequencies(frames, low, sr, trough_threshold)[0]


def _frequencies(frames: GPUArray, low: int, sr: float, threshold: float) -> tuple[GPUArray, GPUArray]:
    """Return the frequency of each frame, and whether a trough is under the threshold."""
    good = _troughs(frames) & (frames < threshold)
    first, voiced = gp.argmax(good.astype("int8"), axis=-1), gp.any(good, axis=-1)
    found = gp.where(voiced, first, gp.argmin(frames, axis=-1))[..., None]
    shift = gp.take_along_axis(parabolic_shifts(frames), found, axis=-1)
    return (sr / (found.astype(frames.dtype) + low + shift))[..., 0], voiced


def voiced_pitch(
    y: GPUArray, *, fmin: float, fmax: float, sr: float, frame_length: int, hop_length: int, trough_threshold: float
) -> GPUArray:
    """`yin` of frames that are not centred, 0 where no trough is under the threshold."""
    frame_length = at_least(frame_length, 4, "frame_length")
    low, high = _periods(fmin, fmax, sr, frame_length)
    frames = _yin_frames(y, frame_length, at_least(hop_length, 1, "hop_length"), False, "constant", low, high)
    f0, voiced = _frequencies(frames, low, sr, trough_threshold)
    return gp.where(voiced, f0, gp.zeros_like(f0))


def pyin(
    y: Any, *, fmin: float, fmax: float, sr: float = 22050, frame_length: int = 2048,
    hop_length: int | None = None, n_thresholds: int = 100, beta_parameters: tuple[float, float] = (2, 18),
    boltzmann_parameter: float = 2, resolution: float = 0.1, max_transition_rate: float = 35.92,
    switch_prob: float = 0.01, no_trough_prob: float = 0.01, fill_na: float | None = np.nan, center: bool = True,
    pad_mode: str = "constant",
) -> tuple[GPUArray, GPUArray, GPUArray]:  # fmt: skip
    """Fundamental frequency by probabilistic YIN: candidates of many thresholds, and the likeliest path through them.

    The difference function is computed on the device, the path on the host.

    Parameters
    ----------
    y, fmin, fmax, sr, frame_length, hop_length, center, pad_mode
        As of `yin`.
    n_thresholds, beta_parameters, boltzmann_parameter
        Thresholds, their distribution, and how much an earlier trough is preferred.
    resolution : float, optional
        Semitones per state.
    max_transition_rate : float, optional
        Octaves per second.
    switch_prob, no_trough_prob : float, optional
        Probabilities that voicing changes, and that the lowest trough counts though it is under no threshold.
    fill_na : float, optional
        Frequency of frames without voice; None for the best guess.

    Returns
    -------
    tuple
        Frequencies, which frames have voice, and the probability of it; each (..., frames).

    Raises
    ------
    ParameterError
        As of `yin`.

    Examples
    --------
    >>> y = gp.sin(gp.arange(4096, dtype="float64") * (2 * gp.pi * 441 / 22050))
    >>> f0, voiced, probability = pyin(y, fmin=200, fmax=1000)
    >>> f0[4].round(0).item(), voiced[4].item()
    (441.0, True)
    """
    y = samples(y)
    frame_length = at_least(frame_length, 4, "frame_length")
    hop = frame_length // 4 if hop_length is None else at_least(hop_length, 1, "hop_length")
    low, high = _periods(fmin, fmax, sr, frame_length)
    if not 0 < resolution < 1:
        raise ParameterError(f"resolution is {resolution}; it is between 0 and 1 semitones")
    frames = _yin_frames(y, frame_length, hop, center, pad_mode, low, high)
    shifts = parabolic_shifts(frames).to_numpy()
    per_semitone = ceil(1.0 / resolution)
    bins = floor(12 * per_semitone * log2(fmax / fmin)) + 1
    reach = round(max_transition_rate * 12 * hop / sr) * per_semitone + 1
    host = frames.to_numpy()
    rows, columns = host.reshape(-1, *host.shape[-2:]), shifts.reshape(-1, *host.shape[-2:])
    made = [
        most_likely_pitches(
            a, b, sr=sr, low=low, fmin=fmin, bins=bins, per_semitone=per_semitone, reach=reach,
            thresholds=at_least(n_thresholds, 1, "n_thresholds"), beta=beta_parameters, boltzmann=boltzmann_parameter,
            switch=switch_prob, no_trough=no_trough_prob,
        )
        for a, b in zip(rows, columns, strict=True)
    ]  # fmt: skip
    states, probability = (np.stack(x).reshape(host.shape[:-1]) for x in zip(*made, strict=True))
    voiced = states < bins
    f0 = fmin * 2 ** (np.arange(bins) / (12 * per_semitone))[states % bins]
    if fill_na is not None:
        f0 = np.where(voiced, f0, fill_na)
    return constant(f0, y, "float64"), constant(voiced, y, "bool"), constant(probability, y)


def piptrack(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int | None = 2048, hop_length: int | None = None,
    fmin: float = 150.0, fmax: float = 4000.0, threshold: float = 0.1, win_length: int | None = None,
    window: Any = "hann", center: bool = True, pad_mode: str = "constant", ref: Any = None,
) -> tuple[GPUArray, GPUArray]:  # fmt: skip
    """Frequencies and magnitudes of a spectrum's peaks, by parabolas through three bins: 0 where there is no peak.

    Parameters
    ----------
    y, sr, S, n_fft, hop_length, win_length, window, center, pad_mode
        As of `spectral_centroid`.
    fmin, fmax : float, optional
        Where peaks are looked for.
    threshold : float, optional
        A peak is over this times ``ref``.
    ref : float or callable, optional
        A number is the limit itself; a function is applied to each frame (``axis=-2``). The largest by default.

    Returns
    -------
    tuple
        Two arrays of (..., bins, frames).

    Examples
    --------
    >>> pitches, magnitudes = piptrack(S=gp.asarray([[0.0], [1.0], [0.0]]), sr=800, fmin=0)
    >>> pitches.tolist()
    [[0.0], [200.0], [0.0]]
    """
    S, n = spectrogram(y, S, n_fft, hop_length, 1, win_length, window, center, pad_mode)
    frequencies = fft_frequencies(sr=sr, n_fft=n)
    inside = (max(fmin, 0) <= frequencies) & (frequencies < min(fmax, sr / 2))
    turned = frames_first(S).contiguous()
    if ref is None or callable(ref):
        limit = threshold * (gp.max(turned, axis=-1) if ref is None else ref(S, axis=-2))[..., None]
    else:
        limit = abs(ref)
    if not inside.any():
        return gp.zeros_like(S), gp.zeros_like(S)
    # Only the bins in which peaks are looked for, and their neighbours.
    bins, wanted = turned.shape[-1], np.flatnonzero(inside)
    begin, end = max(int(wanted[0]) - 1, 0), min(int(wanted[-1]) + 2, bins)
    turned, inside = turned[..., begin:end], inside[begin:end]
    loud = turned * (turned > limit).astype(turned.dtype)
    here, before, after = _neighbours(loud)
    none = gp.zeros_like(loud[..., :1]) > 0
    peaks = _with_ends((here > before) & (here >= after), none, loud[..., -1:] > loud[..., -2:-1])
    peaks = peaks & constant(inside, S, "bool")
    shift = parabolic_shifts(turned)
    slopes = _with_ends((turned[..., 2:] - turned[..., :-2]) / 2, turned[..., 1:2] - turned[..., :1],
                        turned[..., -1:] - turned[..., -2:-1])  # fmt: skip
    zero = gp.zeros_like(turned)
    pitches = gp.where(peaks, (constant(np.arange(begin, end), S) + shift) * (float(sr) / n), zero)
    width = [(0, 0)] * (turned.ndim - 1) + [(begin, bins - end)]
    heights = gp.where(peaks, turned + 0.5 * slopes * shift, zero)
    return frames_first(gp.pad(pitches, width)), frames_first(gp.pad(heights, width))


def pitch_tuning(frequencies: Any, *, resolution: float = 0.01, bins_per_octave: int = 12) -> float:
    """Deviation of frequencies from A440 in fractions of a bin, on the host: the fullest bin of their histogram.

    Examples
    --------
    >>> round(pitch_tuning([440.0 * 2 ** (0.25 / 12)] * 3), 2)
    0.25
    """
    values = np.atleast_1d(frequencies.to_numpy() if isinstance(frequencies, GPUArray) else frequencies)
    values = values[values > 0]
    if not np.any(values):
        warnings.warn("there is no frequency to estimate the tuning from", UserWarning, stacklevel=2)
        return 0.0
    residual = np.mod(bins_per_octave * hz_to_octs(values), 1.0)
    residual[residual >= 0.5] -= 1.0
    counts, edges = np.histogram(residual, np.linspace(-0.5, 0.5, ceil(1.0 / resolution) + 1))
    return float(edges[np.argmax(counts)])


def estimate_tuning(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int | None = 2048, resolution: float = 0.01,
    bins_per_octave: int = 12, **kwargs: Any,
) -> float:  # fmt: skip
    """Tuning of a sound: `pitch_tuning` of the peaks that `piptrack` finds and that are not quieter than their median.

    Peaks are found on the device, the histogram is made on the host.

    Examples
    --------
    >>> y = gp.sin(gp.arange(8192, dtype="float64") * (2 * gp.pi * 445 / 22050))
    >>> round(estimate_tuning(y=y), 1)
    0.2
    """
    pitches, sizes = (x.to_numpy() for x in piptrack(y=y, sr=sr, S=S, n_fft=n_fft, **kwargs))
    found = pitches > 0
    least = np.median(sizes[found]) if found.any() else 0.0
    return pitch_tuning(pitches[(sizes >= least) & found], resolution=resolution, bins_per_octave=bins_per_octave)
