"""Rhythm: tempograms, tempo, beats, pulses. Periodicity is computed on the device, paths and decisions on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, framed, frames_first, normalize, positive, real_array, tiny
from pygpukit.audio.convert import tempo_frequencies, time_to_frames
from pygpukit.audio.onset import in_units, onset_strength
from pygpukit.audio.operators import gp
from pygpukit.audio.pitch import autocorrelate
from pygpukit.audio.spectrum import istft, stft
from pygpukit.audio.windows import window_values
from pygpukit.errors import ParameterError

__all__ = ["beat_track", "fourier_tempo_frequencies", "fourier_tempogram", "plp", "tempo", "tempogram"]


def _envelope(y: Any, sr: float, onset_envelope: Any, hop_length: int, **kwargs: Any) -> GPUArray:
    if onset_envelope is None:
        if y is None:
            raise ParameterError("give samples y or an onset_envelope")
        return onset_strength(y=y, sr=sr, hop_length=hop_length, **kwargs)
    return real_array(onset_envelope, "onset_envelope")


def tempogram(
    *, y: Any = None, sr: float = 22050, onset_envelope: Any = None, hop_length: int = 512, win_length: int = 384,
    center: bool = True, window: Any = "hann", norm: float | None = np.inf,
) -> GPUArray:  # fmt: skip
    """Local autocorrelation of the onset strength: (..., win_length, frames).

    Parameters
    ----------
    y, sr, hop_length
        Samples, their rate, and samples from frame to frame.
    onset_envelope : GPUArray, optional
        In place of ``y``: an onset strength.
    win_length : int, optional
        Frames of the window.
    center : bool, optional
        Frame t is centred at t.
    window
        As of `stft`.
    norm : float, optional
        Order of the norm that each frame is divided by.

    Examples
    --------
    >>> tempogram(onset_envelope=gp.ones(100), win_length=16).shape
    (16, 100)
    """
    win_length = at_least(win_length, 1, "win_length")
    envelope = _envelope(y, sr, onset_envelope, hop_length)
    n = envelope.shape[-1]
    if center:
        half = win_length // 2
        # A ramp from 0 to the first value, and from the last to 0.
        rise = constant(np.linspace(0, 1, half, endpoint=False), envelope)
        parts = [envelope[..., :1] * rise, envelope, envelope[..., -1:] * gp.flip(rise, axis=0)]
        envelope = gp.concatenate(parts, axis=-1)
    frames = framed(envelope, win_length, 1)
    frames = (frames[..., :n, :] if center else frames) * constant(window_values(window, win_length), envelope)
    return normalize(frames_first(autocorrelate(frames)), norm, -2)


def fourier_tempo_frequencies(*, sr: float = 22050, hop_length: int = 512, win_length: int = 384) -> Any:
    """Tempi of the rows of `fourier_tempogram` in beats per minute, on the host.

    Examples
    --------
    >>> fourier_tempo_frequencies(sr=4, hop_length=1, win_length=4).tolist()
    [0.0, 60.0, 120.0]
    """
    return np.fft.rfftfreq(win_length, hop_length / (sr * 60.0))


def fourier_tempogram(
    *, y: Any = None, sr: float = 22050, onset_envelope: Any = None, hop_length: int = 512, win_length: int = 384,
    center: bool = True, window: Any = "hann",
) -> GPUArray:  # fmt: skip
    """Short-time Fourier transform of the onset strength, a frame at each of its frames; parameters as of `tempogram`.

    Examples
    --------
    >>> fourier_tempogram(onset_envelope=gp.ones(100), win_length=16).shape
    (9, 101)
    """
    envelope = _envelope(y, sr, onset_envelope, hop_length)
    return stft(envelope, n_fft=win_length, hop_length=1, center=center, window=window)


def tempo(
    *, y: Any = None, sr: float = 22050, onset_envelope: Any = None, tg: Any = None, hop_length: int = 512,
    start_bpm: float = 120, std_bpm: float = 1.0, ac_size: float = 8.0, max_tempo: float | None = 320.0,
    aggregate: Any = np.mean, prior: Any = None,
) -> Any:  # fmt: skip
    """Tempo in beats per minute, as a NumPy array: (..., 1), or a tempo per frame with ``aggregate=None``.

    Parameters
    ----------
    y, sr, onset_envelope, hop_length
        As of `tempogram`.
    tg : GPUArray, optional
        In place of them: a tempogram.
    start_bpm, std_bpm : float, optional
        Middle, and deviation in octaves, of a log-normal prior.
    ac_size : float, optional
        Seconds of the tempogram's window.
    max_tempo : float, optional
        Highest tempo.
    aggregate : callable, optional
        What makes one tempogram of all frames.
    prior : optional
        In place of the log-normal one: an object with ``logpdf``.

    Raises
    ------
    ParameterError
        If start_bpm is not above 0.

    Examples
    --------
    >>> beats = gp.asarray(([1.0] + [0.0] * 21) * 12)
    >>> tempo(onset_envelope=beats).round(1).tolist()
    [117.5]
    """
    if not start_bpm > 0:
        raise ParameterError(f"start_bpm is {start_bpm}; it is above 0")
    if tg is None:
        length = int(time_to_frames(ac_size, sr=sr, hop_length=hop_length))
        tg = tempogram(y=y, sr=sr, onset_envelope=onset_envelope, hop_length=hop_length, win_length=length)
    if aggregate is not None:
        tg = getattr(gp, getattr(aggregate, "__name__", ""), aggregate)(tg, axis=-1, keepdims=True)
    bpm = tempo_frequencies(tg.shape[-2], hop_length=hop_length, sr=sr)
    with np.errstate(invalid="ignore"):
        likely = -0.5 * ((np.log2(bpm) - np.log2(start_bpm)) / std_bpm) ** 2 if prior is None else prior.logpdf(bpm)
    if max_tempo is not None:
        likely[: int(np.argmax(bpm < max_tempo))] = -np.inf
    best = np.argmax(np.log1p(1e6 * tg.to_numpy().astype(np.float64)) + likely[:, None], axis=-2)
    return np.take(bpm, best)


def _local_score(envelope: Any, period: float) -> Any:
    window = np.exp(-0.5 * (np.arange(-period, period + 1) * 32.0 / period) ** 2)
    n, half = len(envelope), len(window) // 2
    # As in librosa the first frame adds nothing to the score of others.
    rest = envelope.astype(np.float64)
    rest[0] = 0.0
    return np.convolve(rest, window)[half : half + n]


def _links(score: Any, period: float, tightness: float) -> tuple[Any, Any]:
    """For each frame the best beat before it, and the score of beats up to it."""
    n, limit = len(score), 0.01 * score.max()
    back, total = np.full(n, -1, np.int64), np.zeros(n)
    near, far = int(np.round(period / 2)), int(2 * period)
    penalty = tightness * (np.log(np.arange(near, far + 1)) - np.log(period)) ** 2
    first = True
    for i in range(n):
        best, place = -np.inf, -1
        if i >= near:
            before = total[max(0, i - far) : i - near + 1][::-1]
            scores = before - penalty[: len(before)]
            k = int(np.argmax(scores))
            best, place = scores[k], i - near - k
        total[i] = score[i] + (best if place >= 0 else 0.0)
        if first and score[i] < limit:
            back[i] = -1
        else:
            back[i], first = place, False
    return back, total


def _beats(envelope: Any, bpm: float, rate: float, tightness: float, trim: bool) -> Any:
    if not bpm > 0 or not tightness > 0:
        raise ParameterError(f"bpm is {bpm} and tightness {tightness}; they are above 0")
    period = float(np.round(rate * 60.0 / bpm))
    if period < 2:
        raise ParameterError(f"a beat at {bpm} bpm is shorter than two frames: use a shorter hop_length")
    scaled = envelope / (envelope.std(ddof=1) + np.finfo(envelope.dtype).tiny)
    score = _local_score(scaled, period)
    back, total = _links(score, period, tightness)
    top = np.zeros(len(total), bool)
    top[1:-1] = (total[1:-1] > total[:-2]) & (total[1:-1] >= total[2:])
    top[-1] = total[-1] > total[-2]
    limit = 0.5 * np.median(total[top]) if top.any() else 0.0
    last = np.flatnonzero(top & (total >= limit))
    n, beats = int(last[-1]) if last.size else len(total) - 1, np.zeros(len(total), bool)
    while n >= 0:
        beats[n] = True
        n = back[n]
    smooth = np.convolve(score[beats], np.hanning(5))[2 : len(score) + 2]
    least = 0.5 * (smooth**2).mean() ** 0.5 if trim else 0.0
    strong = np.flatnonzero(score > least)
    if strong.size:
        beats[: strong[0]] = False
        beats[strong[-1] + 1 :] = False
    return np.flatnonzero(beats)


def beat_track(
    *, y: Any = None, sr: float = 22050, onset_envelope: Any = None, hop_length: int = 512, start_bpm: float = 120.0,
    tightness: float = 100, trim: bool = True, bpm: float | None = None, prior: Any = None, units: str = "frames",
) -> tuple[Any, Any]:  # fmt: skip
    """Beats of a sound: the path through onsets that is strongest and most even. The path is found on the host.

    Parameters
    ----------
    y, sr, onset_envelope, hop_length
        As of `tempogram`; one sound at a time.
    start_bpm, prior
        As of `tempo`.
    tightness : float, optional
        How even beats are.
    trim : bool, optional
        Leave out weak beats at the ends.
    bpm : float, optional
        The tempo, where it is known.
    units : str, optional
        ``"frames"``, ``"samples"`` or ``"time"``.

    Returns
    -------
    tuple
        The tempo, and beats as a NumPy array.

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> found, beats = beat_track(onset_envelope=gp.asarray(([1.0] + [0.0] * 21) * 12), bpm=117.5)
    >>> beats.tolist()[:3]
    [22, 44, 66]
    """
    options = {} if onset_envelope is not None else {"aggregate": np.median}
    envelope = _envelope(y, sr, onset_envelope, hop_length, **options)
    if envelope.ndim != 1:
        raise ParameterError(f"an onset strength of shape {envelope.shape}; beats are found in one sound at a time")
    host = envelope.to_numpy()
    if not host.any():
        return 0.0, in_units(np.array([], np.int64), units, sr, hop_length)
    if bpm is not None:
        bpm = positive(np.ravel(bpm)[0].item(), "bpm")
    else:
        bpm = tempo(onset_envelope=envelope, sr=sr, hop_length=hop_length, start_bpm=start_bpm, prior=prior)
    found = _beats(host, float(np.asarray(bpm).reshape(-1)[0]), float(sr) / hop_length, float(tightness), trim)
    return bpm, in_units(found, units, sr, hop_length)


def plp(
    *, y: Any = None, sr: float = 22050, onset_envelope: Any = None, hop_length: int = 512, win_length: int = 384,
    tempo_min: float | None = 30, tempo_max: float | None = 300, prior: Any = None,
) -> GPUArray:  # fmt: skip
    """Predominant local pulse: the waves of the strongest local tempi added up, (..., frames).

    Parameters
    ----------
    y, sr, onset_envelope, hop_length, win_length
        As of `tempogram`.
    tempo_min, tempo_max : float, optional
        Beats per minute.
    prior : optional
        An object with ``logpdf`` of tempi.

    Raises
    ------
    ParameterError
        If tempo_max is not above tempo_min.

    Examples
    --------
    >>> plp(onset_envelope=gp.asarray(([1.0] + [0.0] * 21) * 20)).shape
    (440,)
    """
    options = {} if onset_envelope is not None else {"aggregate": np.median}
    envelope = _envelope(y, sr, onset_envelope, hop_length, **options)
    if tempo_min is not None and tempo_max is not None and tempo_max <= tempo_min:
        raise ParameterError(f"tempo_max {tempo_max} is above tempo_min {tempo_min}")
    grams = fourier_tempogram(onset_envelope=envelope, sr=sr, hop_length=hop_length, win_length=win_length)
    tempi = fourier_tempo_frequencies(sr=sr, hop_length=hop_length, win_length=win_length)
    kept = np.ones(len(tempi))
    if tempo_min is not None:
        kept[tempi < tempo_min] = 0
    if tempo_max is not None:
        kept[tempi > tempo_max] = 0
    grams = grams * constant(kept[:, None], envelope)
    sizes = gp.log1p(1e6 * gp.abs(grams))
    if prior is not None:
        sizes = sizes + constant(prior.logpdf(tempi)[:, None], envelope)
    grams = gp.where(sizes < gp.max(sizes, axis=-2, keepdims=True), gp.zeros_like(grams), grams)
    grams = grams / (tiny(envelope) ** 0.5 + gp.abs(gp.max(grams, axis=-2, keepdims=True)))
    pulse = istft(grams, hop_length=1, n_fft=win_length, length=envelope.shape[-1])
    return normalize(gp.maximum(pulse, 0.0), np.inf, -1)
