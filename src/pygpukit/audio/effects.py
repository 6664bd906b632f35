"""Effects on samples: stretching, shifting, separating, trimming, emphasis."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio import decompose
from pygpukit.audio.arrays import at_least, constant, fix_length, number, positive, samples
from pygpukit.audio.filtering import cascade_of, run_cascade
from pygpukit.audio.operators import gp
from pygpukit.audio.resampling import resample
from pygpukit.audio.spectral import rms
from pygpukit.audio.spectrum import amplitude_to_db, istft, phase_vocoder, stft
from pygpukit.errors import ParameterError

__all__ = [
    "deemphasis", "harmonic", "hpss", "percussive", "pitch_shift", "preemphasis", "remix", "split", "time_stretch",
    "trim",
]  # fmt: skip


def time_stretch(y: Any, *, rate: float, **kwargs: Any) -> GPUArray:
    """Play faster (rate above 1) or slower at the same pitch, by a phase vocoder.

    Parameters
    ----------
    y : GPUArray
        Samples.
    rate : float
        Speed.
    **kwargs
        As of `stft`.

    Returns
    -------
    GPUArray
        ``round(n / rate)`` samples.

    Raises
    ------
    ParameterError
        If rate is not above 0.

    Examples
    --------
    >>> time_stretch(gp.ones(4096, "float32"), rate=2.0).shape
    (2048,)
    """
    y, rate = samples(y), positive(rate, "rate")
    D = phase_vocoder(stft(y, **kwargs), rate=rate)
    options = {k: v for k, v in kwargs.items() if k != "pad_mode"}
    return istft(D, length=round(y.shape[-1] / rate), **options)


def pitch_shift(
    y: Any, *, sr: float, n_steps: float, bins_per_octave: int = 12, res_type: str = "soxr_hq", scale: bool = False,
    **kwargs: Any,
) -> GPUArray:  # fmt: skip
    """Raise the pitch by steps, or lower it, at the same length: a stretch and a change of rate.

    Parameters
    ----------
    y, sr
        Samples and their rate.
    n_steps : float
        Steps, parts of them too.
    bins_per_octave : int, optional
        Steps of an octave.
    res_type, scale
        As of `resample`.
    **kwargs
        As of `stft`.

    Examples
    --------
    >>> pitch_shift(gp.ones(4096, "float32"), sr=22050, n_steps=4).shape
    (4096,)
    """
    y = samples(y)
    rate = 2.0 ** (-number(n_steps, "n_steps") / at_least(bins_per_octave, 1, "bins_per_octave"))
    stretched, slower = time_stretch(y, rate=rate, **kwargs), positive(sr, "sr") / rate
    return fix_length(resample(stretched, orig_sr=slower, target_sr=sr, res_type=res_type, scale=scale), y.shape[-1])


def hpss(
    y: Any, *, kernel_size: Any = 31, power: float = 2.0, mask: bool = False, margin: Any = 1.0, n_fft: int = 2048,
    hop_length: int | None = None, win_length: int | None = None, window: Any = "hann", center: bool = True,
    pad_mode: str = "constant",
) -> tuple[GPUArray, GPUArray]:  # fmt: skip
    """Separate samples into harmonic and percussive parts; parameters as of `decompose.hpss` and `stft`.

    Examples
    --------
    >>> h, p = hpss(gp.ones(2048, "float32"), n_fft=256)
    >>> h.shape, p.shape
    ((2048,), (2048,))
    """
    y = samples(y)
    options: dict[str, Any] = {
        "n_fft": n_fft, "hop_length": hop_length, "win_length": win_length, "window": window, "center": center
    }  # fmt: skip
    D = stft(y, pad_mode=pad_mode, **options)
    parts = decompose.hpss(D, kernel_size=kernel_size, power=power, mask=mask, margin=margin)
    if mask:
        parts = (D * parts[0], D * parts[1])
    h, p = (istft(part, length=y.shape[-1], **options) for part in parts)
    return h, p


def harmonic(y: Any, **kwargs: Any) -> GPUArray:
    """Harmonic part of samples; parameters as of `hpss`.

    Examples
    --------
    >>> harmonic(gp.ones(2048, "float32"), n_fft=256).shape
    (2048,)
    """
    return hpss(y, **kwargs)[0]


def percussive(y: Any, **kwargs: Any) -> GPUArray:
    """Percussive part of samples; parameters as of `hpss`.

    Examples
    --------
    >>> percussive(gp.ones(2048, "float32"), n_fft=256).shape
    (2048,)
    """
    return hpss(y, **kwargs)[1]


def _loud_frames(y: GPUArray, frame_length: int, hop_length: int, top_db: float, ref: Any, aggregate: Any) -> Any:
    """Which frames are loud, on the host."""
    level = rms(y=y, frame_length=frame_length, hop_length=hop_length)[..., 0, :]
    level = level.reshape((-1, level.shape[-1])) if level.ndim > 1 else level[None]
    # One limit for all channels: they are cut together.
    flat = level.reshape((-1,))
    db = amplitude_to_db(flat, ref=ref, top_db=None).reshape(level.shape).to_numpy()
    return aggregate(db, axis=0) > -number(top_db, "top_db")


def trim(
    y: Any, *, top_db: float = 60, ref: Any = np.max, frame_length: int = 2048, hop_length: int = 512,
    aggregate: Any = np.max,
) -> tuple[GPUArray, Any]:  # fmt: skip
    """Leave out silence at both ends.

    Parameters
    ----------
    y : GPUArray
        Samples; all leading axes are cut together.
    top_db : float, optional
        What lies further below ``ref`` is silence.
    ref : float or callable, optional
        0 dB; the loudest frame by default.
    frame_length, hop_length : int, optional
        As of `rms`.
    aggregate : callable, optional
        A NumPy function that makes one level of those of all channels.

    Returns
    -------
    tuple
        A view of the samples, and where it begins and ends as a NumPy array: the call waits for the device.

    Examples
    --------
    >>> y = gp.concatenate([gp.zeros(4096), gp.ones(4096), gp.zeros(4096)])
    >>> trim(y)[1].tolist()
    [3584, 9216]
    """
    y = samples(y)
    loud = np.flatnonzero(_loud_frames(y, frame_length, hop_length, top_db, ref, aggregate))
    start, end = (int(loud[0]) * hop_length, min(y.shape[-1], int(loud[-1] + 1) * hop_length)) if loud.size else (0, 0)
    return y[..., start:end], np.array([start, end])


def split(
    y: Any, *, top_db: float = 60, ref: Any = np.max, frame_length: int = 2048, hop_length: int = 512,
    aggregate: Any = np.max,
) -> Any:  # fmt: skip
    """Where samples are not silent: a NumPy array of (parts, 2), begin and end; parameters as of `trim`.

    Examples
    --------
    >>> y = gp.concatenate([gp.zeros(4096), gp.ones(4096), gp.zeros(4096)])
    >>> split(y).tolist()
    [[3584, 9216]]
    """
    y = samples(y)
    loud = _loud_frames(y, frame_length, hop_length, top_db, ref, aggregate)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], loud.astype(np.int8), [0]])))
    return np.minimum(edges * hop_length, y.shape[-1]).reshape(-1, 2)


def _spans(intervals: Any) -> Any:
    """Return intervals as int64 (n, 2) on the host."""
    rule = "intervals are pairs (start, end) of samples, 0 <= start <= end, and at least one"
    try:
        spans = np.asarray(intervals.to_numpy() if isinstance(intervals, GPUArray) else [tuple(x) for x in intervals])
    except (TypeError, ValueError):
        raise ParameterError(f"intervals is {intervals!r}; {rule}") from None
    if spans.ndim != 2 or spans.shape[1] != 2 or spans.dtype.kind not in "iu":
        raise ParameterError(f"intervals is {intervals!r}; {rule}")
    wrong = (spans[:, 0] < 0) | (spans[:, 1] < spans[:, 0])
    if wrong.any():
        raise ParameterError(f"an interval is {tuple(spans[wrong][0].tolist())}; {rule}")
    return spans


def remix(y: Any, intervals: Any, *, align_zeros: bool = True) -> GPUArray:
    """Join intervals of samples, (start, end) each, in their order.

    With ``align_zeros`` ends are moved to the nearest zero crossing of the mean of all channels, on the host.

    Raises
    ------
    ParameterError
        If there is no interval, or one is not a pair of samples in order.

    Examples
    --------
    >>> remix(gp.asarray([1.0, 2.0, 3.0, 4.0]), [(2, 4), (0, 1)], align_zeros=False).tolist()
    [3.0, 4.0, 1.0]
    """
    y = samples(y)
    spans = _spans(intervals)
    if align_zeros:
        mono = y.to_numpy().reshape(-1, y.shape[-1]).mean(0)
        mono = np.where(np.abs(mono) <= 1e-10, 0, mono)
        zeros = np.flatnonzero(np.r_[True, np.signbit(mono[1:]) != np.signbit(mono[:-1])])
        zeros = np.append(zeros, len(mono))
        spans = zeros[np.abs(spans[..., None] - zeros).argmin(-1)]
    return gp.concatenate([y[..., a:b] for a, b in spans], axis=-1)


def preemphasis(y: Any, *, coef: float = 0.97, zi: Any = None, return_zf: bool = False) -> Any:
    """Raise high frequencies: ``y[t] - coef * y[t - 1]``.

    Parameters
    ----------
    y : GPUArray
        Samples.
    coef : float, optional
        0 to 1.
    zi : array, optional
        What the first sample gets added, (..., 1); by default ``2 y[0] - y[1]``, which continues a line.
    return_zf : bool, optional
        Return what the next sample would get, too.

    Examples
    --------
    >>> preemphasis(gp.asarray([1.0, 2.0, 3.0]), coef=0.5).tolist()
    [1.0, 1.5, 2.0]
    """
    y, coef = samples(y), number(coef, "coef")
    if zi is None:
        if y.shape[-1] < 2:
            raise ParameterError("one sample has no slope to begin with: give zi")
        zi = 2 * y[..., :1] - y[..., 1:2]
    elif not isinstance(zi, GPUArray):
        zi = constant(np.atleast_1d(zi), y)
    first = y[..., :1] + zi.astype(y.dtype)
    out = gp.concatenate([first, y[..., 1:] - coef * y[..., :-1]], axis=-1)
    return (out, -coef * y[..., -1:]) if return_zf else out


def deemphasis(y: Any, *, coef: float = 0.97, zi: Any = None, return_zf: bool = False) -> Any:
    """Inverse of `preemphasis`, with the same parameters.

    Examples
    --------
    >>> deemphasis(preemphasis(gp.asarray([1.0, 2.0, 3.0]))).round(9).tolist()
    [1.0, 2.0, 3.0]
    """
    y, coef, initial = samples(y), number(coef, "coef"), None
    if zi is None and y.shape[-1] < 2:
        raise ParameterError("one sample has no slope to begin with: give zi")
    if zi is not None:
        initial = zi.astype("float64") if isinstance(zi, GPUArray) else constant(np.atleast_1d(zi), y, "float64")
        initial = gp.broadcast_to(initial, (*y.shape[:-1], 1)).contiguous()
    out, end, _ = run_cascade(cascade_of([[1.0, 0.0, -coef]]), y, initial)
    if zi is None:
        start = ((2 - coef) * y[..., :1] - y[..., 1:2]) / (3 - coef)
        out = out - start * constant(coef ** np.arange(y.shape[-1]), y)
    return (out, end) if return_zf else out
