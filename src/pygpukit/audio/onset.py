"""Onsets: how much louder each frame is than the one before, and the peaks of that."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, magnitudes, real_array
from pygpukit.audio.convert import frames_to_samples, frames_to_time
from pygpukit.audio.mel import melspectrogram
from pygpukit.audio.operators import gp
from pygpukit.audio.spectrum import power_to_db
from pygpukit.errors import ParameterError

__all__ = ["onset_backtrack", "onset_detect", "onset_strength", "onset_strength_multi", "peak_pick"]


def sliding_maximum(S: GPUArray, size: int) -> GPUArray:
    """Maximum over ``size`` neighbouring bins, the ends mirrored."""
    before, after = size // 2, size - 1 - size // 2
    padded = gp.pad(S, [(0, 0)] * (S.ndim - 2) + [(before, after), (0, 0)], mode="symmetric")
    n = S.shape[-2]
    largest = padded[..., :n, :]
    for i in range(1, size):
        largest = gp.maximum(largest, padded[..., i : i + n, :])
    return largest


def onset_strength(
    *, y: Any = None, sr: float = 22050, S: Any = None, lag: int = 1, max_size: int = 1, ref: Any = None,
    detrend: bool = False, center: bool = True, feature: Any = None, aggregate: Any = None, **kwargs: Any,
) -> GPUArray:  # fmt: skip
    """Onset strength: the mean over bins of what each frame has more than the frame before, (..., frames).

    Parameters
    ----------
    y, sr
        Samples and their rate.
    S : GPUArray, optional
        In place of ``y``: a spectrogram in decibels.
    lag : int, optional
        Frames between the two that are compared.
    max_size : int, optional
        The earlier frame is taken as the largest of this many neighbouring bins.
    ref : GPUArray, optional
        What is compared with, in place of the spectrogram itself.
    detrend : bool, optional
        Take away slow changes.
    center : bool, optional
        Frames are centred.
    feature : callable, optional
        What makes the spectrogram of ``y``; `melspectrogram` by default, which gets ``**kwargs`` too.
    aggregate : callable, optional
        What makes one number of all bins, such as ``gp.median``; ``gp.mean`` by default.

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> onset_strength(S=gp.asarray([[0.0, 1.0, 3.0]]), center=False).tolist()
    [0.0, 1.0, 2.0]
    """
    if aggregate is False:
        raise ParameterError("aggregate is False; one curve needs a function, such as gp.mean")
    return onset_strength_multi(
        y=y, sr=sr, S=S, lag=lag, max_size=max_size, ref=ref, detrend=detrend, center=center, feature=feature,
        aggregate=aggregate, channels=None, **kwargs,
    )[..., 0, :]  # fmt: skip


def onset_strength_multi(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int = 512, lag: int = 1,
    max_size: int = 1, ref: Any = None, detrend: bool = False, center: bool = True, feature: Any = None,
    aggregate: Any = None, channels: Any = None, **kwargs: Any,
) -> GPUArray:  # fmt: skip
    """Onset strength in several channels of bins: (..., channels, frames).

    Parameters
    ----------
    channels : list, optional
        Slices of bins, or the bins at which channels end and begin; all bins together by default.
    y, sr, S, n_fft, hop_length, lag, max_size, ref, detrend, center, feature, aggregate
        As of `onset_strength`; with ``aggregate=False`` each bin is a channel.

    Examples
    --------
    >>> onset_strength_multi(S=gp.ones((4, 3)), channels=[0, 2, 4]).shape
    (2, 3)
    """
    lag, max_size = at_least(lag, 1, "lag"), at_least(max_size, 1, "max_size")
    hop_length = at_least(hop_length, 1, "hop_length")
    if S is None:
        if y is None:
            raise ParameterError("give samples y or a spectrogram S")
        if feature is None:
            feature = melspectrogram
            kwargs.setdefault("fmax", 0.5 * sr)
        S = power_to_db(gp.abs(feature(y=y, sr=sr, n_fft=n_fft, hop_length=hop_length, **kwargs)))
    S = magnitudes(gp.atleast_2d(S))
    if ref is None:
        ref = S if max_size == 1 else sliding_maximum(S, max_size)
    elif ref.shape != S.shape:
        raise ParameterError(f"ref has shape {ref.shape} and the spectrogram {S.shape}; they are equal")
    envelope = gp.maximum(S[..., lag:] - ref[..., :-lag], 0.0)
    if aggregate is not False:
        mean = gp.mean if aggregate is None else getattr(gp, getattr(aggregate, "__name__", ""), aggregate)
        parts: list[Any] = [slice(None)] if channels is None else list(channels)
        if parts and not isinstance(parts[0], slice):
            parts = [slice(int(a), int(b)) for a, b in pairwise(parts)]
        envelope = gp.stack([mean(envelope[..., part, :], axis=-2) for part in parts], axis=-2)
    before = lag + (n_fft // (2 * hop_length) if center else 0)
    envelope = gp.pad(envelope, [(0, 0)] * (envelope.ndim - 1) + [(before, 0)])
    if detrend:
        from pygpukit.audio.filtering import lfilter

        envelope = lfilter([1.0, -1.0], [1.0, -0.99], envelope)
    return envelope[..., : S.shape[-1]] if center else envelope


def peak_pick(
    x: Any, *, pre_max: float, post_max: float, pre_avg: float, post_avg: float, delta: float, wait: float
) -> Any:
    """Peaks of a curve, on the host: largest among neighbours, over their mean by ``delta``, ``wait`` apart.

    Returns
    -------
    numpy.ndarray
        Places of the peaks.

    Raises
    ------
    ParameterError
        If the curve has more than one axis, or a number is negative.

    Examples
    --------
    >>> peak_pick([0.0, 2.0, 0.0], pre_max=1, post_max=1, pre_avg=1, post_avg=1, delta=0.5, wait=1).tolist()
    [1]
    """
    host = x.to_numpy() if isinstance(x, GPUArray) else np.asarray(x)
    if host.ndim != 1:
        raise ParameterError(f"a curve of shape {host.shape}; events are found in one at a time")
    if min(pre_max, pre_avg, delta, wait) < 0 or min(post_max, post_avg) <= 0:
        raise ParameterError("pre_max, pre_avg, delta and wait are at least 0, post_max and post_avg above 0")
    back, ahead, mean_back, mean_ahead, pause = (ceil(v) for v in (pre_max, post_max, pre_avg, post_avg, wait))
    peaks, n = [], 0
    while n < len(host):
        top = host[max(0, n - back) : n + ahead].max()
        if host[n] >= top and host[n] >= host[max(0, n - mean_back) : n + mean_ahead].mean() + delta:
            peaks.append(n)
            n += pause
        n += 1
    return np.array(peaks, np.int64)


def onset_backtrack(events: Any, energy: Any) -> Any:
    """Move events back to the local minimum of the energy before, on the host.

    Examples
    --------
    >>> onset_backtrack([3], [2.0, 1.0, 3.0, 5.0]).tolist()
    [1]
    """
    host = energy.to_numpy() if isinstance(energy, GPUArray) else np.asarray(energy)
    minima = np.flatnonzero((host[1:-1] <= host[:-2]) & (host[1:-1] < host[2:])) + 1
    minima = np.unique(np.append(minima, 0))
    return minima[np.searchsorted(minima, np.asarray(events), side="right") - 1]


def in_units(frames: Any, units: str, sr: float, hop_length: int) -> Any:
    """Return frames as frames, samples or seconds."""
    if units == "frames":
        return frames
    if units == "samples":
        return frames_to_samples(frames, hop_length=hop_length)
    if units == "time":
        return frames_to_time(frames, hop_length=hop_length, sr=sr)
    raise ParameterError(f"units is '{units}'; use frames, samples or time")


def onset_detect(
    *, y: Any = None, sr: float = 22050, onset_envelope: Any = None, hop_length: int = 512, backtrack: bool = False,
    energy: Any = None, units: str = "frames", normalize: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Onsets of a sound: the peaks of its onset strength. Peaks are found on the host, so the call waits.

    Parameters
    ----------
    y, sr, hop_length
        Samples, their rate, and samples from frame to frame.
    onset_envelope : GPUArray, optional
        In place of ``y``: an onset strength.
    backtrack : bool, optional
        Move onsets back to the minimum of the energy before.
    energy : GPUArray, optional
        The energy; the onset strength by default.
    units : str, optional
        ``"frames"``, ``"samples"`` or ``"time"``.
    normalize : bool, optional
        Scale the strength to 0 ... 1.
    **kwargs
        As of `peak_pick`.

    Returns
    -------
    numpy.ndarray
        Onsets.

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> onset_detect(onset_envelope=gp.asarray([0.0] * 10 + [1.0] + [0.0] * 10)).tolist()
    [10]
    """
    if onset_envelope is None:
        if y is None:
            raise ParameterError("give samples y or an onset_envelope")
        onset_envelope = onset_strength(y=y, sr=sr, hop_length=hop_length)
    envelope = real_array(onset_envelope, "onset_envelope").to_numpy()
    in_units(np.zeros(1), units, sr, hop_length)
    if envelope.ndim != 1:
        raise ParameterError(f"an onset strength of shape {envelope.shape}; onsets are found in one sound at a time")
    if normalize:
        envelope = envelope - envelope.min()
        envelope /= envelope.max() + np.finfo(envelope.dtype).tiny
    if not envelope.any() or not np.isfinite(envelope).all():
        return in_units(np.array([], np.int64), units, sr, hop_length)
    defaults = {
        "pre_max": 0.03 * sr // hop_length, "post_max": 1.0, "pre_avg": 0.1 * sr // hop_length,
        "post_avg": 0.1 * sr // hop_length + 1, "wait": 0.03 * sr // hop_length, "delta": 0.07,
    }  # fmt: skip
    onsets = peak_pick(envelope, **(defaults | kwargs))
    if backtrack:
        onsets = onset_backtrack(onsets, envelope if energy is None else energy)
    return in_units(onsets, units, sr, hop_length)
