"""Pictures of sounds: spectrograms, pitch, onsets and chroma over time, by matplotlib."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import positive, samples
from pygpukit.audio.beat import beat_track
from pygpukit.audio.convert import frames_to_time, mel_frequencies
from pygpukit.audio.mel import melspectrogram
from pygpukit.audio.onset import onset_detect, onset_strength
from pygpukit.audio.operators import gp
from pygpukit.audio.pitch import pyin
from pygpukit.audio.resampling import to_mono
from pygpukit.audio.spectral import chroma_stft
from pygpukit.audio.spectrum import amplitude_to_db, power_to_db, stft
from pygpukit.errors import MissingPackageError, ParameterError

__all__ = ["KINDS", "save_plot"]

N_FFT, HOP = 2048, 512
_MOST_COLUMNS = 4096
"""Frames of a picture, which has fewer pixels across."""
_NOTES = ("C", "", "D", "", "E", "F", "", "G", "", "A", "", "B")


def _hop(y: GPUArray) -> int:
    """Samples from frame to frame: longer for long sounds, a power of two times the usual."""
    hop = HOP
    while y.shape[-1] // hop > _MOST_COLUMNS:
        hop *= 2
    return hop


def _image(axes: Any, values: GPUArray, seconds: float, colours: str = "magma", **options: Any) -> Any:
    return axes.imshow(values.to_numpy(), origin="lower", aspect="auto", cmap=colours, interpolation="nearest",
                       extent=(0, seconds, *options.pop("edges", (0, values.shape[0]))), **options)  # fmt: skip


def _scale(axes: Any, image: Any, label: str) -> None:
    axes.figure.colorbar(image, ax=axes, label=label, pad=0.01)


def _spectrogram(axes: Any, y: GPUArray, sr: float) -> None:
    decibels = amplitude_to_db(stft(y, n_fft=N_FFT, hop_length=_hop(y)), ref=gp.max)
    image = _image(axes, decibels, y.shape[-1] / sr, edges=(0, sr / 2), vmin=-80, vmax=0)
    axes.set(ylabel="Hz", title="Spectrogram")
    _scale(axes, image, "dB")


def _mel(axes: Any, y: GPUArray, sr: float) -> None:
    decibels = power_to_db(melspectrogram(y=y, sr=sr, n_fft=N_FFT, hop_length=_hop(y)), ref=gp.max)
    image = _image(axes, decibels, y.shape[-1] / sr, vmin=-80, vmax=0)
    places = mel_frequencies(decibels.shape[0] + 2, fmax=sr / 2)[1:-1]
    marks = [f for f in (256, 512, 1024, 2048, 4096, 8192, 16384) if places[0] < f < places[-1]]
    axes.set(ylabel="Hz", title="Mel spectrogram")
    axes.set_yticks(np.interp(marks, places, np.arange(len(places)) + 0.5), [str(f) for f in marks])
    _scale(axes, image, "dB")


def _pitch(axes: Any, y: GPUArray, sr: float) -> None:
    low, high = 65.0, min(2093.0, sr / 4)
    # Two periods of the lowest pitch fit into a frame.
    frame = max(N_FFT, 1 << int(np.ceil(np.log2(2 * sr / low))))
    hop = max(_hop(y), frame // 4)
    f0, _, probability = pyin(y, fmin=low, fmax=high, sr=sr, frame_length=frame, hop_length=hop)
    times = frames_to_time(np.arange(f0.shape[-1]), sr=sr, hop_length=hop)
    axes.plot(times, f0.to_numpy(), color="tab:orange", linewidth=2)
    axes.set(yscale="log", ylim=(low, high), xlim=(0, y.shape[-1] / sr), ylabel="Hz", title="Pitch")
    marks = [f for f in (65, 110, 220, 440, 880, 1760) if low <= f <= high]
    axes.set_yticks(marks, [str(f) for f in marks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    other = axes.twinx()
    other.fill_between(times, probability.to_numpy(), color="tab:blue", alpha=0.2, linewidth=0)
    other.set(ylim=(0, 1), ylabel="voice")


def _onsets(axes: Any, y: GPUArray, sr: float) -> None:
    strength = onset_strength(y=y, sr=sr, hop_length=HOP)
    times = frames_to_time(np.arange(strength.shape[-1]), sr=sr, hop_length=HOP)
    places = onset_detect(onset_envelope=strength, sr=sr, hop_length=HOP, units="time")
    tempo, beats = beat_track(onset_envelope=strength, sr=sr, hop_length=HOP, units="time")
    axes.plot(times, strength.to_numpy(), color="tab:blue", linewidth=1, label="strength")
    top = float(strength.to_numpy().max(initial=1e-9))
    axes.vlines(places, 0, top, color="tab:orange", linewidth=1, label=f"{len(places)} onsets")
    axes.plot(beats, np.full(len(beats), -0.06 * top), "^", color="tab:green", markersize=5,
              label=f"beats, {float(np.ravel(tempo)[0]):.0f} bpm")  # fmt: skip
    axes.set(xlim=(0, y.shape[-1] / sr), ylabel="strength", title="Onsets and beats")
    axes.legend(loc="upper right", fontsize=8)


def _chroma(axes: Any, y: GPUArray, sr: float) -> None:
    image = _image(axes, chroma_stft(y=y, sr=sr, n_fft=N_FFT, hop_length=_hop(y)), y.shape[-1] / sr, "viridis",
                   vmin=0, vmax=1)  # fmt: skip
    axes.set(ylabel="note", title="Chroma")
    axes.set_yticks(np.arange(12) + 0.5, _NOTES)
    _scale(axes, image, "part of the loudest")


_DRAWN: dict[str, Callable[[Any, GPUArray, float], None]] = {
    "spectrogram": _spectrogram, "mel": _mel, "pitch": _pitch, "onsets": _onsets, "chroma": _chroma,
}  # fmt: skip

KINDS = tuple(_DRAWN)
"""What `save_plot` draws."""


def save_plot(path: Any, y: Any, *, sr: float = 22050, kinds: str | Sequence[str] = "mel", title: str = "") -> None:
    """Draw a sound over time to a file, whose ending is its format (png, svg, pdf).

    Parameters
    ----------
    path : str or PathLike
        The picture.
    y : GPUArray
        Samples; channels are averaged.
    sr : float, optional
        Samples per second.
    kinds : str or sequence of str, optional
        ``"spectrogram"``, ``"mel"``, ``"pitch"``, ``"onsets"`` (with beats) or ``"chroma"``; several are drawn one
        above the other.
    title : str, optional
        Text above the picture.

    Raises
    ------
    ParameterError
        If there is no such kind, the format is not known, or there are too few samples.
    MissingPackageError
        If matplotlib is missing: ``pip install 'pygpukit[plot]'``.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.png")
    >>> save_plot(path, gp.ones(4096, "float32"), kinds=["mel", "chroma"])  # doctest: +SKIP
    """
    chosen = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [k for k in chosen if k not in _DRAWN]
    if unknown or not chosen:
        raise ParameterError(f"kinds is {kinds!r}; use {', '.join(KINDS)}")
    name = Path(os.fspath(path)).name
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(f"matplotlib draws {name} ({error}): run pip install 'pygpukit[plot]'") from None
    y, rate = to_mono(samples(y)), positive(sr, "sr")
    if y.shape[-1] < N_FFT:
        raise ParameterError(f"{y.shape[-1]} samples are too few for a picture; it needs at least {N_FFT}")
    figure = Figure(figsize=(9, 0.4 + 2.7 * len(chosen)), layout="constrained", dpi=100)
    known = figure.canvas.get_supported_filetypes()
    if Path(name).suffix.lstrip(".").lower() not in known:
        raise ParameterError(f"{name}: a picture ends in one of {', '.join(sorted(known))}")
    if title:
        figure.suptitle(title)
    panels = figure.subplots(len(chosen), sharex=True, squeeze=False)[:, 0]
    for kind, axes in zip(chosen, panels, strict=True):
        _DRAWN[kind](axes, y, rate)
    panels[-1].set_xlabel("seconds")
    figure.savefig(os.fspath(path))
