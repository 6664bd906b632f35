"""Conversions of units: frequencies, mels, notes, frames, samples, seconds, octaves. They compute on the host."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import number as finite
from pygpukit.errors import ParameterError

__all__ = [
    "A4_to_tuning", "A_weighting", "blocks_to_frames", "blocks_to_samples", "blocks_to_time", "cqt_frequencies",
    "fft_frequencies", "frames_to_samples", "frames_to_time", "hz_to_mel", "hz_to_midi", "hz_to_note", "hz_to_octs",
    "mel_frequencies", "mel_to_hz", "midi_to_hz", "midi_to_note", "note_to_hz", "note_to_midi", "octs_to_hz",
    "samples_like", "samples_to_frames", "samples_to_time", "tempo_frequencies", "time_to_frames", "time_to_samples",
    "times_like", "tuning_to_A4",
]  # fmt: skip

_STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_MARKS = {"#": 1, "": 0, "b": -1, "!": -1, "\u266f": 1, "\u266d": -1, "\U0001d12a": 2, "\U0001d12b": -2, "\u266e": 0}
_NOTE = re.compile(
    r"^(?P<note>[A-Ga-g])(?P<marks>[#\u266f\U0001d12ab!\u266d\U0001d12b\u266e]*)"
    r"(?P<octave>[+-]?\d+)?(?P<cents>[+-]\d+)?$"
)


def _host(x: Any) -> Any:
    values = x.to_numpy() if isinstance(x, GPUArray) else np.asanyarray(x)
    if values.dtype.kind not in "biuf":
        raise ParameterError(f"{x!r} is no number, nor an array of numbers")
    return values


def fft_frequencies(*, sr: float = 22050, n_fft: int = 2048) -> Any:
    """Frequencies of the bins of `stft` in Hz.

    Examples
    --------
    >>> fft_frequencies(sr=8, n_fft=4).tolist()
    [0.0, 2.0, 4.0]
    """
    return np.fft.rfftfreq(n=n_fft, d=1.0 / sr)


def cqt_frequencies(n_bins: int, *, fmin: float, bins_per_octave: int = 12, tuning: float = 0.0) -> Any:
    """Frequencies of the bins of `cqt` in Hz.

    Examples
    --------
    >>> cqt_frequencies(3, fmin=100.0, bins_per_octave=1).tolist()
    [100.0, 200.0, 400.0]
    """
    correction = 2.0 ** (float(tuning) / bins_per_octave)
    return correction * fmin * 2.0 ** (np.arange(n_bins, dtype=float) / bins_per_octave)


def hz_to_mel(frequencies: Any, *, htk: bool = False) -> Any:
    """Mels of frequencies: Slaney's scale, linear up to 1 kHz, or HTK's formula.

    Examples
    --------
    >>> float(hz_to_mel(60.0).round(6))
    0.9
    """
    f = np.asarray(_host(frequencies), np.float64)
    if htk:
        return 2595.0 * np.log10(1.0 + f / 700.0)
    step, log_step = 200.0 / 3, np.log(6.4) / 27.0
    return np.where(f >= 1000.0, 15.0 + np.log(np.maximum(f, 1000.0) / 1000.0) / log_step, f / step)


def mel_to_hz(mels: Any, *, htk: bool = False) -> Any:
    """Frequencies of mels, the inverse of `hz_to_mel`.

    Examples
    --------
    >>> float(mel_to_hz(3).round(6))
    200.0
    """
    m = np.asarray(_host(mels), np.float64)
    if htk:
        return 700.0 * (10.0 ** (m / 2595.0) - 1.0)
    step, log_step = 200.0 / 3, np.log(6.4) / 27.0
    return np.where(m >= 15.0, 1000.0 * np.exp(log_step * (m - 15.0)), step * m)


def mel_frequencies(n_mels: int = 128, *, fmin: float = 0.0, fmax: float = 11025.0, htk: bool = False) -> Any:
    """Frequencies evenly spaced in mels.

    Examples
    --------
    >>> mel_frequencies(3, fmin=0, fmax=400).round(6).tolist()
    [0.0, 200.0, 400.0]
    """
    return mel_to_hz(np.linspace(hz_to_mel(fmin, htk=htk), hz_to_mel(fmax, htk=htk), n_mels), htk=htk)


def tempo_frequencies(n_bins: int, *, hop_length: int = 512, sr: float = 22050) -> Any:
    """Tempi of the rows of `tempogram` in beats per minute; the first is infinite.

    Examples
    --------
    >>> tempo_frequencies(3, hop_length=1, sr=1).tolist()
    [inf, 60.0, 30.0]
    """
    found = np.zeros(int(n_bins))
    found[0] = np.inf
    found[1:] = 60.0 * sr / (hop_length * np.arange(1.0, n_bins))
    return found


def hz_to_midi(frequencies: Any) -> Any:
    """MIDI numbers of frequencies.

    Examples
    --------
    >>> float(hz_to_midi(440.0))
    69.0
    """
    return 12 * (np.log2(_host(frequencies)) - np.log2(440.0)) + 69


def midi_to_hz(notes: Any) -> Any:
    """Frequencies of MIDI numbers.

    Examples
    --------
    >>> float(midi_to_hz(69))
    440.0
    """
    return 440.0 * (2.0 ** ((_host(notes) - 69.0) / 12.0))


def note_to_midi(note: Any, *, round_midi: bool = True) -> Any:
    """MIDI number of a note such as ``"C4"``, ``"F#3"`` or ``"Bb2+20"``; of a list, an array.

    Raises
    ------
    ParameterError
        If it is no note.

    Examples
    --------
    >>> note_to_midi("A4")
    69
    """
    if not isinstance(note, str):
        if not np.iterable(note):
            raise ParameterError(f"{note!r} is no note; it is a text like 'C4', 'F#3' or 'Bb2+20', or a list of them")
        return np.array([note_to_midi(n, round_midi=round_midi) for n in note])
    match = _NOTE.match(note)
    if not match:
        raise ParameterError(f"'{note}' is no note; it is like 'C4', 'F#3' or 'Bb2+20'")
    cents = int(match["cents"] or 0) / 100.0
    value = 12 * (int(match["octave"] or 0) + 1) + _STEPS[match["note"].upper()] + cents
    value += sum(_MARKS[m] for m in match["marks"])
    return round(value) if round_midi else value


def midi_to_note(midi: Any, *, octave: bool = True, cents: bool = False) -> Any:
    """Name of a MIDI number with sharps, in ASCII; of an array, a list.

    Raises
    ------
    ParameterError
        If it is no number.

    Examples
    --------
    >>> midi_to_note(61)
    'C#4'
    """
    if np.ndim(midi):
        return [midi_to_note(m, octave=octave, cents=cents) for m in midi]
    if cents and not octave:
        raise ParameterError("cents=True needs octave=True")
    number = round(finite(midi, "midi"))
    name = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")[number % 12]
    if octave:
        name += str(number // 12 - 1)
    return f"{name}{int(100 * np.around(midi - number, 2)):+02d}" if cents else name


def note_to_hz(note: Any, **kwargs: Any) -> Any:
    """Frequency of a note; parameters as of `note_to_midi`.

    Examples
    --------
    >>> float(note_to_hz("A4"))
    440.0
    """
    return midi_to_hz(note_to_midi(note, **kwargs))


def hz_to_note(frequencies: Any, **kwargs: Any) -> Any:
    """Note of a frequency; parameters as of `midi_to_note`.

    Raises
    ------
    ParameterError
        If it is not above 0.

    Examples
    --------
    >>> hz_to_note(440.0)
    'A4'
    """
    values = _host(frequencies)
    if not np.all((values > 0) & np.isfinite(values)):
        wrong = values[~((values > 0) & np.isfinite(values))].ravel()[0]
        raise ParameterError(f"a frequency is {wrong}; those of notes are above 0 and finite: leave the others out")
    return midi_to_note(hz_to_midi(values), **kwargs)


def hz_to_octs(frequencies: Any, *, tuning: float = 0.0, bins_per_octave: int = 12) -> Any:
    """Octaves of frequencies, counted from A0, 27.5 Hz.

    Examples
    --------
    >>> float(hz_to_octs(440.0))
    4.0
    """
    a440 = 440.0 * 2.0 ** (tuning / bins_per_octave)
    return np.log2(_host(frequencies) / (float(a440) / 16))


def octs_to_hz(octs: Any, *, tuning: float = 0.0, bins_per_octave: int = 12) -> Any:
    """Frequencies of octaves, the inverse of `hz_to_octs`.

    Examples
    --------
    >>> float(octs_to_hz(4.0))
    440.0
    """
    a440 = 440.0 * 2.0 ** (tuning / bins_per_octave)
    return (float(a440) / 16) * (2.0 ** _host(octs))


def A4_to_tuning(A4: Any, *, bins_per_octave: int = 12) -> Any:  # noqa: N802
    """Deviation from 440 Hz in fractions of a bin.

    Examples
    --------
    >>> float(A4_to_tuning(440.0))
    0.0
    """
    return bins_per_octave * (np.log2(_host(A4)) - np.log2(440.0))


def tuning_to_A4(tuning: Any, *, bins_per_octave: int = 12) -> Any:  # noqa: N802
    """Frequency of A4 for a tuning, the inverse of `A4_to_tuning`.

    Examples
    --------
    >>> float(tuning_to_A4(0))
    440.0
    """
    return 440.0 * 2.0 ** (_host(tuning) / bins_per_octave)


def A_weighting(frequencies: Any, *, min_db: float | None = -80.0) -> Any:  # noqa: N802
    """A-weighting of frequencies in decibels.

    Examples
    --------
    >>> float(A_weighting(1000.0).round(2))
    0.0
    """
    f = np.asarray(_host(frequencies), np.float64) ** 2.0
    c = np.array([12194.217, 20.598997, 107.65265, 737.86223]) ** 2.0
    with np.errstate(divide="ignore"):
        weights = 2.0 + 20.0 * (np.log10(c[0]) + 2 * np.log10(f) - np.log10(f + c[0]) - np.log10(f + c[1])
                                - 0.5 * np.log10(f + c[2]) - 0.5 * np.log10(f + c[3]))  # fmt: skip
    return weights if min_db is None else np.maximum(min_db, weights)


def frames_to_samples(frames: Any, *, hop_length: int = 512, n_fft: int | None = None) -> Any:
    """Samples at which frames begin; with n_fft, at which their middle lies.

    Examples
    --------
    >>> int(frames_to_samples(3))
    1536
    """
    offset = int(n_fft // 2) if n_fft is not None else 0
    return (_host(frames) * hop_length + offset).astype(int)


def samples_to_frames(samples: Any, *, hop_length: int = 512, n_fft: int | None = None) -> Any:
    """Frames that samples are in, the inverse of `frames_to_samples`.

    Examples
    --------
    >>> int(samples_to_frames(1600))
    3
    """
    offset = int(n_fft // 2) if n_fft is not None else 0
    return np.asarray(np.floor((_host(samples) - offset) // hop_length), dtype=int)


def samples_to_time(samples: Any, *, sr: float = 22050) -> Any:
    """Seconds of samples.

    Examples
    --------
    >>> float(samples_to_time(22050))
    1.0
    """
    return _host(samples) / float(sr)


def time_to_samples(times: Any, *, sr: float = 22050) -> Any:
    """Samples of seconds.

    Examples
    --------
    >>> int(time_to_samples(1.0))
    22050
    """
    return (_host(times) * sr).astype(int)


def frames_to_time(frames: Any, *, sr: float = 22050, hop_length: int = 512, n_fft: int | None = None) -> Any:
    """Seconds of frames.

    Examples
    --------
    >>> float(frames_to_time(10, sr=512))
    10.0
    """
    return samples_to_time(frames_to_samples(frames, hop_length=hop_length, n_fft=n_fft), sr=sr)


def time_to_frames(times: Any, *, sr: float = 22050, hop_length: int = 512, n_fft: int | None = None) -> Any:
    """Frames of seconds.

    Examples
    --------
    >>> int(time_to_frames(10.0, sr=512))
    10
    """
    return samples_to_frames(time_to_samples(times, sr=sr), hop_length=hop_length, n_fft=n_fft)


def blocks_to_frames(blocks: Any, *, block_length: int) -> Any:
    """Frames at which blocks of frames begin.

    Examples
    --------
    >>> int(blocks_to_frames(2, block_length=16))
    32
    """
    return block_length * _host(blocks)


def blocks_to_samples(blocks: Any, *, block_length: int, hop_length: int) -> Any:
    """Samples at which blocks of frames begin.

    Examples
    --------
    >>> int(blocks_to_samples(2, block_length=16, hop_length=4))
    128
    """
    return frames_to_samples(blocks_to_frames(blocks, block_length=block_length), hop_length=hop_length)


def blocks_to_time(blocks: Any, *, block_length: int, hop_length: int, sr: float) -> Any:
    """Seconds at which blocks of frames begin.

    Examples
    --------
    >>> float(blocks_to_time(2, block_length=16, hop_length=4, sr=128))
    1.0
    """
    return samples_to_time(blocks_to_samples(blocks, block_length=block_length, hop_length=hop_length), sr=sr)


def samples_like(X: Any, *, hop_length: int = 512, n_fft: int | None = None, axis: int = -1) -> Any:
    """Samples of the frames of an array; or of a number of frames.

    Examples
    --------
    >>> samples_like(3).tolist()
    [0, 512, 1024]
    """
    count = X.shape[axis] if np.ndim(X) else int(X)
    return frames_to_samples(np.arange(count), hop_length=hop_length, n_fft=n_fft)


def times_like(X: Any, *, sr: float = 22050, hop_length: int = 512, n_fft: int | None = None, axis: int = -1) -> Any:
    """Seconds of the frames of an array; or of a number of frames.

    Examples
    --------
    >>> times_like(3, sr=512).tolist()
    [0.0, 1.0, 2.0]
    """
    return samples_to_time(samples_like(X, hop_length=hop_length, n_fft=n_fft, axis=axis), sr=sr)
