"""Filter banks: mel, chroma, and the lengths and wavelets of constant-Q transforms. They are made on the host."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from pygpukit.audio.arrays import at_least, number, positive
from pygpukit.audio.convert import fft_frequencies, hz_to_octs, mel_frequencies
from pygpukit.audio.operators import gp
from pygpukit.audio.windows import get_window, window_values
from pygpukit.errors import ParameterError

__all__ = [
    "chroma", "chroma_values", "cq_to_chroma", "get_window", "mel", "mel_values", "mel_weights", "packed_bands",
    "relative_bandwidth", "wavelet", "wavelet_lengths", "window_bandwidth",
]  # fmt: skip


def _rows_normalized(values: Any, norm: Any, axis: int) -> Any:
    """`librosa.util.normalize` of host values."""
    size = np.abs(values)
    if norm is None:
        return values
    if norm == np.inf:
        length = size.max(axis=axis, keepdims=True)
    elif norm > 0:
        length = (size**norm).sum(axis=axis, keepdims=True) ** (1.0 / norm)
    else:
        raise ParameterError(f"norm is {norm!r}; it is a number above 0, infinity or None")
    return values / np.where(length < np.finfo(size.dtype).tiny, 1.0, length)


@lru_cache(maxsize=32)
def mel_values(sr: float, n_fft: int, n_mels: int, fmin: float, fmax: float, htk: bool, norm: Any) -> Any:
    """Return mel filters as float32 (n_mels, bins) on the host."""
    if n_mels < 1 or sr <= 0 or fmin < 0 or not fmax > fmin:
        raise ParameterError(
            f"mel filters: n_mels {n_mels} at least 1, sr {sr} above 0, fmin {fmin} from 0 and fmax {fmax} above it"
        )
    bins = fft_frequencies(sr=sr, n_fft=n_fft)
    edges = mel_frequencies(n_mels + 2, fmin=fmin, fmax=fmax, htk=htk)
    width, ramps = np.diff(edges), np.subtract.outer(edges, bins)
    weights = np.maximum(0, np.minimum(-ramps[:-2] / width[:-1, None], ramps[2:] / width[1:, None]))
    weights = weights.astype(np.float32)
    if norm == "slaney":
        # In float32 as stored, one product in float64 each.
        weights *= (2.0 / (edges[2 : n_mels + 2] - edges[:n_mels]))[:, None]
    elif isinstance(norm, str):
        raise ParameterError(f"norm is '{norm}'; it is 'slaney', a number, or None")
    else:
        weights = _rows_normalized(weights, norm, -1).astype(np.float32)
    weights.flags.writeable = False
    return weights


def mel_weights(sr: Any, n_fft: int, n_mels: Any, fmin: Any, fmax: Any, htk: bool, norm: Any) -> Any:
    """Check the parameters of mel filters, and return `mel_values`; half the rate is the highest frequency.

    Raises
    ------
    ParameterError
        If one is none.
    """
    rate = positive(sr, "sr")
    top = rate / 2 if fmax is None else number(fmax, "fmax")
    return mel_values(rate, n_fft, at_least(n_mels, 1, "n_mels"), number(fmin, "fmin"), top, htk, norm)


def mel(
    *, sr: float, n_fft: int, n_mels: int = 128, fmin: float = 0.0, fmax: float | None = None, htk: bool = False,
    norm: Any = "slaney",
) -> Any:  # fmt: skip
    """Mel filters: triangles evenly spaced in mels.

    Parameters
    ----------
    sr : float
        Samples per second.
    n_fft : int
        Samples of a frame.
    n_mels : int, optional
        Filters.
    fmin, fmax : float, optional
        Ends of the lowest and the highest; ``sr / 2`` by default.
    htk : bool, optional
        HTK's formula in place of Slaney's scale.
    norm : optional
        ``"slaney"`` for equal areas, None, or the order of a norm.

    Returns
    -------
    GPUArray
        float32 (n_mels, 1 + n_fft // 2).

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> mel(sr=16000, n_fft=400, n_mels=80).shape
    (80, 201)
    """
    return gp.from_numpy(mel_weights(sr, at_least(n_fft, 2, "n_fft"), n_mels, fmin, fmax, htk, norm) + np.float32(0))


def packed_bands(weights: Any) -> tuple[Any, Any]:
    """Return the weights between the first and the last that is not 0 of each row, and where they are."""
    packed, places, offset = [], [], 0
    for row in weights:
        used = np.flatnonzero(row)
        start, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        packed.append(row[start:end])
        places.append((start, offset, end - start))
        offset += end - start
    values = np.concatenate(packed) if offset else np.zeros(1, weights.dtype)
    return values, np.ascontiguousarray(np.array(places, np.int64).T)


@lru_cache(maxsize=16)
def chroma_values(sr: float, n_fft: int, n_chroma: int, tuning: float, ctroct: float, octwidth: float | None,
                  norm: Any, base_c: bool) -> Any:  # fmt: skip
    """Return chroma filters as float32 (n_chroma, bins) on the host."""
    weights = np.zeros((n_chroma, n_fft))
    frequencies = np.linspace(0, sr, n_fft, endpoint=False)[1:]
    bins = n_chroma * hz_to_octs(frequencies, tuning=tuning, bins_per_octave=n_chroma)
    # 0 Hz is one and a half octaves below bin 1.
    bins = np.concatenate(([bins[0] - 1.5 * n_chroma], bins))
    width = np.concatenate((np.maximum(bins[1:] - bins[:-1], 1.0), [1]))
    distance = np.subtract.outer(bins, np.arange(0, n_chroma, dtype="d")).T
    half = np.round(float(n_chroma) / 2)
    distance = np.remainder(distance + half + 10 * n_chroma, n_chroma) - half
    weights = np.exp(-0.5 * (2 * distance / np.tile(width, (n_chroma, 1))) ** 2)
    weights = _rows_normalized(weights, norm, 0)
    if octwidth is not None:
        weights *= np.tile(np.exp(-0.5 * (((bins / n_chroma - ctroct) / octwidth) ** 2)), (n_chroma, 1))
    if base_c:
        weights = np.roll(weights, -3 * (n_chroma // 12), axis=0)
    return np.ascontiguousarray(weights[:, : int(1 + n_fft / 2)], dtype=np.float32)


def chroma(
    *, sr: float, n_fft: int, n_chroma: int = 12, tuning: float = 0.0, ctroct: float = 5.0,
    octwidth: float | None = 2, norm: Any = 2, base_c: bool = True,
) -> Any:  # fmt: skip
    """Chroma filters: Gaussian bumps around the octaves of each pitch class.

    Parameters
    ----------
    sr, n_fft
        As of `mel`.
    n_chroma : int, optional
        Classes.
    tuning : float, optional
        Deviation from A440 in fractions of a class.
    ctroct, octwidth : float, optional
        Octave in which weights are largest, and how far they reach; None for equal weights.
    norm : optional
        Order of the norm that the columns have.
    base_c : bool, optional
        Begin with C, else with A.

    Returns
    -------
    GPUArray
        float32 (n_chroma, 1 + n_fft // 2).

    Examples
    --------
    >>> chroma(sr=22050, n_fft=2048).shape
    (12, 1025)
    """
    return gp.from_numpy(chroma_values(float(sr), int(n_fft), int(n_chroma), float(tuning), ctroct, octwidth, norm,
                                       base_c))  # fmt: skip


def cq_to_chroma(
    n_input: int, *, bins_per_octave: int = 12, n_chroma: int = 12, fmin: float | None = None, window: Any = None,
    base_c: bool = True,
) -> Any:  # fmt: skip
    """Host matrix that folds the bins of a constant-Q transform into pitch classes.

    Raises
    ------
    ParameterError
        If bins_per_octave is no multiple of n_chroma.

    Examples
    --------
    >>> cq_to_chroma(24).shape
    (12, 24)
    """
    merge = float(bins_per_octave) / n_chroma
    if np.mod(merge, 1) != 0:
        raise ParameterError(f"bins_per_octave {bins_per_octave} is no multiple of n_chroma {n_chroma}")
    fold = np.roll(np.repeat(np.eye(n_chroma), int(merge), axis=1), -int(merge // 2), axis=1)
    octaves = int(np.ceil(float(n_input) / bins_per_octave))
    fold = np.tile(fold, octaves)[:, :n_input]
    low = 32.70319566257483 if fmin is None else fmin
    midi = np.mod(12 * (np.log2(low) - np.log2(440.0)) + 69, 12)
    roll = midi if base_c else midi - 9
    fold = np.roll(fold, int(np.round(roll * (n_chroma / 12.0))), axis=0).astype(np.float32)
    if window is not None:
        kernel = np.atleast_2d(window)
        fold = np.apply_along_axis(np.convolve, 1, fold, kernel[0], mode="same") if kernel.size > 1 else fold * kernel
    return fold


def window_bandwidth(window: Any, n: int = 1000) -> float:
    """Equivalent noise bandwidth of a window in bins.

    Examples
    --------
    >>> round(window_bandwidth("hann"), 3)
    1.5
    """
    if window in ("hann", "hanning"):
        # What librosa has in its table.
        return 1.50018310546875
    w = window_values(window, n)
    return float(n * np.sum(w**2) / np.sum(np.abs(w)) ** 2)


def relative_bandwidth(frequencies: Any) -> Any:
    """Relative bandwidths of centre frequencies, from their neighbours'.

    Raises
    ------
    ParameterError
        If there is only one.

    Examples
    --------
    >>> relative_bandwidth(np.array([1.0, 2.0, 4.0])).tolist()
    [0.6, 0.6, 0.6]
    """
    if len(frequencies) <= 1:
        raise ParameterError(f"{len(frequencies)} frequency; at least two are needed for their bandwidths")
    logf = np.log2(frequencies)
    bpo = np.empty(len(frequencies))
    bpo[0], bpo[-1] = 1 / (logf[1] - logf[0]), 1 / (logf[-1] - logf[-2])
    bpo[1:-1] = 2 / (logf[2:] - logf[:-2])
    return (2.0 ** (2 / bpo) - 1) / (2.0 ** (2 / bpo) + 1)


def wavelet_lengths(
    *, freqs: Any, sr: float, window: Any = "hann", filter_scale: float = 1, gamma: float | None = 0,
    alpha: Any = None,
) -> tuple[Any, float]:  # fmt: skip
    """Lengths in samples of the wavelets of centre frequencies, and the highest frequency they reach.

    Raises
    ------
    ParameterError
        If a frequency is not above 0, or they do not ascend.

    Examples
    --------
    >>> wavelet_lengths(freqs=[100.0, 200.0], sr=22050, alpha=0.06)[0].tolist()
    [3675.0, 1837.5]
    """
    freqs = np.asarray(freqs, np.float64)
    if filter_scale <= 0 or (gamma is not None and gamma < 0):
        raise ParameterError(f"filter_scale {filter_scale} is above 0, gamma {gamma} at least 0")
    if np.any(freqs <= 0) or np.any(np.diff(freqs) < 0):
        raise ParameterError("frequencies are above 0 and ascend")
    alpha = relative_bandwidth(freqs) if alpha is None else np.asarray(alpha)
    gamma_ = alpha * 24.7 / 0.108 if gamma is None else gamma
    q = float(filter_scale) / alpha
    cutoff = float(np.max(freqs * (1 + 0.5 * window_bandwidth(window) / q) + 0.5 * gamma_))
    return q * sr / (freqs + gamma_ / alpha), cutoff


def wavelet(
    *, freqs: Any, sr: float, window: Any = "hann", filter_scale: float = 1, pad_fft: bool = True, norm: Any = 1,
    gamma: float = 0, alpha: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Wavelets of centre frequencies, complex64 on the host, and their lengths.

    Examples
    --------
    >>> wavelet(freqs=np.array([4000.0, 8000.0]), sr=22050)[0].shape
    (2, 16)
    """
    lengths, _ = wavelet_lengths(freqs=freqs, sr=sr, window=window, filter_scale=filter_scale, gamma=gamma, alpha=alpha)
    made = []
    for length, frequency in zip(lengths, freqs, strict=True):
        t = np.arange(-length // 2, length // 2, dtype=float)
        signal = np.exp(1j * (t * 2 * np.pi * frequency / sr))
        signal *= window_values(window, len(signal))
        made.append(_rows_normalized(signal, norm, -1))
    longest = max(lengths)
    size = int(2.0 ** np.ceil(np.log2(longest))) if pad_fft else int(np.ceil(longest))
    out = np.zeros((len(made), size), np.complex64)
    for row, signal in zip(out, made, strict=True):
        left = (size - len(signal)) // 2
        row[left : left + len(signal)] = signal
    return out, lengths
