"""Functions of samples, many of them in place, and the detection of speech by energy and zero crossings."""

from __future__ import annotations

import dataclasses
from math import pi
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio import effects, pitch, spectral
from pygpukit.audio.arrays import at_least, fix_length, framed, positive
from pygpukit.audio.filtering import cascade_of, run_cascade
from pygpukit.audio.operators import gp
from pygpukit.audio.published.buffers import AudioBuffer, samples_of
from pygpukit.ops.audio.filtering import follow

__all__ = [
    "VAD", "SpeechSegment", "autocorrelation", "compute_short_term_energy", "deemphasis", "detect_pitch_yin",
    "detect_pitch_yin_frames", "highpass_filter", "noise_gate", "pitch_shift", "preemphasis", "remove_dc",
    "spectral_gate", "time_stretch", "zero_crossing_rate",
]  # fmt: skip


def _replaced(audio: Any, data: GPUArray, made: GPUArray) -> Any:
    data[...] = made
    return audio


def preemphasis(audio: Any, alpha: float = 0.97) -> Any:
    """Subtract ``alpha`` times the sample before, in place; the first sample stays. Returns its argument.

    Examples
    --------
    >>> preemphasis(gp.asarray([1.0, 2.0], "float32"), alpha=0.5).tolist()
    [1.0, 1.5]
    """
    data = samples_of(audio, 1)
    return _replaced(audio, data, effects.preemphasis(data, coef=alpha, zi=[0.0]))


def deemphasis(audio: Any, alpha: float = 0.97) -> Any:
    """Add ``alpha`` times the result before, in place: the inverse of `preemphasis`. Returns its argument.

    Examples
    --------
    >>> deemphasis(gp.asarray([1.0, 1.5], "float32"), alpha=0.5).tolist()
    [1.0, 2.0]
    """
    data = samples_of(audio, 1)
    return _replaced(audio, data, effects.deemphasis(data, coef=alpha, zi=[0.0]))


def remove_dc(audio: Any) -> Any:
    """Subtract the mean, in place. Returns its argument.

    Examples
    --------
    >>> remove_dc(gp.asarray([1.0, 3.0], "float32")).tolist()
    [-1.0, 1.0]
    """
    data = samples_of(audio, 1)
    return _replaced(audio, data, data - gp.mean(data))


def highpass_filter(audio: Any, cutoff_hz: float = 20.0, sample_rate: int | None = None) -> Any:
    """Filter with one pole, in place: ``y[t] = a (y[t - 1] + x[t] - x[t - 1])``. Returns its argument.

    Parameters
    ----------
    audio : AudioBuffer or GPUArray
        Samples.
    cutoff_hz : float, optional
        Frequency at which half the power is left.
    sample_rate : int, optional
        That of the buffer, else 16000.

    Examples
    --------
    >>> highpass_filter(gp.ones(4000, "float32"), cutoff_hz=100.0)[-1].item() < 1e-6
    True
    """
    data = samples_of(audio, 1)
    rate = sample_rate or (audio.sample_rate if isinstance(audio, AudioBuffer) else 16000)
    a = 1.0 / (1.0 + 2 * pi * positive(cutoff_hz, "cutoff_hz") / positive(rate, "sample_rate"))
    return _replaced(audio, data, run_cascade(cascade_of([[a, -a, -a]]), data)[0])


def noise_gate(audio: Any, threshold: float = 0.01) -> Any:
    """Make samples of a smaller magnitude 0, in place. Returns its argument.

    Examples
    --------
    >>> noise_gate(gp.asarray([0.5, 0.001], "float32")).tolist()
    [0.5, 0.0]
    """
    data = samples_of(audio, 1)
    return _replaced(audio, data, gp.where(gp.abs(data) < threshold, gp.zeros_like(data), data))


def spectral_gate(audio: Any, threshold: float = 0.01, attack_samples: int = 64, release_samples: int = 256) -> Any:
    """Turn down frames whose mean square is under a threshold, by its ratio to it, in place. Returns its argument.

    Parameters
    ----------
    audio : AudioBuffer or GPUArray
        Samples.
    threshold : float, optional
        Mean square.
    attack_samples : int, optional
        Samples of a frame. The gain rises at once with a frame.
    release_samples : int, optional
        Samples in which the gain falls to 1 / e.

    Examples
    --------
    >>> spectral_gate(gp.full(128, 0.5, "float32"))[0].item()
    0.5
    """
    data = samples_of(audio, 1)
    size, n = at_least(attack_samples, 1, "attack_samples"), data.shape[0]
    energy = compute_short_term_energy(fix_length(data, -(-n // size) * size), size)
    gain = gp.repeat(gp.minimum(energy / positive(threshold, "threshold"), 1.0), size)[:n]
    fall = float(np.exp(-1.0 / at_least(release_samples, 1, "release_samples")))
    start = gp.zeros(1, "float64", device=data.device) + gain[:1].astype("float64")
    return _replaced(audio, data, data * follow(gain[None].contiguous(), start, 0.0, fall)[0][0])


def compute_short_term_energy(audio: Any, frame_size: int = 256) -> GPUArray:
    """Mean squares of frames that do not overlap.

    Examples
    --------
    >>> compute_short_term_energy(gp.ones(8, "float32"), frame_size=4).tolist()
    [1.0, 1.0]
    """
    data, size = samples_of(audio), at_least(frame_size, 1, "frame_size")
    whole = data[: data.shape[0] // size * size].reshape((-1, size))
    return gp.mean(whole * whole, axis=-1)


def zero_crossing_rate(audio: Any, frame_size: int = 512, hop_size: int = 256) -> GPUArray:
    """Zero crossings of each frame over its samples: [frames].

    Examples
    --------
    >>> zero_crossing_rate(gp.asarray([1.0, -1.0, 1.0, -1.0], "float32"), 4, 4).tolist()
    [0.75]
    """
    made = spectral.zero_crossing_rate(samples_of(audio), frame_length=frame_size, hop_length=hop_size, center=False)
    return made[0].astype("float32")


def autocorrelation(audio: Any, max_lag: int) -> GPUArray:
    """Autocorrelation at the lags under ``max_lag``.

    Examples
    --------
    >>> autocorrelation(gp.asarray([1.0, 2.0], "float32"), 3).round(5).tolist()
    [5.0, 2.0, 0.0]
    """
    lags = at_least(max_lag, 1, "max_lag")
    return fix_length(pitch.autocorrelate(samples_of(audio), max_size=lags), lags)


def detect_pitch_yin_frames(
    audio: Any, sample_rate: int = 16000, frame_size: int = 1024, hop_size: int = 256, f_min: float = 50.0,
    f_max: float = 500.0, threshold: float = 0.1,
) -> GPUArray:  # fmt: skip
    """Pitch of each frame in Hz by YIN, 0 where no trough is under the threshold: [frames].

    Examples
    --------
    >>> y = gp.sin(gp.arange(2048, dtype="float64") * (2 * gp.pi * 200 / 16000)).astype("float32")
    >>> abs(detect_pitch_yin_frames(y)[0].item() - 200) < 1
    True
    """
    return pitch.voiced_pitch(samples_of(audio), fmin=f_min, fmax=f_max, sr=sample_rate, frame_length=frame_size,
                              hop_length=hop_size, trough_threshold=threshold)  # fmt: skip


def detect_pitch_yin(
    audio: Any, sample_rate: int = 16000, f_min: float = 50.0, f_max: float = 500.0, threshold: float = 0.1
) -> float:
    """Pitch of all samples as one frame, in Hz; 0.0 without one. Waits for the device.

    Examples
    --------
    >>> y = gp.sin(gp.arange(1024, dtype="float64") * (2 * gp.pi * 200 / 16000)).astype("float32")
    >>> abs(detect_pitch_yin(y) - 200) < 1
    True
    """
    data = samples_of(audio, 4)
    return float(detect_pitch_yin_frames(data, sample_rate, data.shape[0], 1, f_min, f_max, threshold)[0])


def time_stretch(audio: Any, rate: float, n_fft: int = 2048, hop_length: int = 512) -> GPUArray:
    """Play faster or slower at the same pitch, as `pygpukit.audio.time_stretch`.

    Examples
    --------
    >>> time_stretch(gp.ones(4096, "float32"), 2.0).shape
    (2048,)
    """
    return effects.time_stretch(samples_of(audio), rate=rate, n_fft=n_fft, hop_length=hop_length)


def pitch_shift(audio: Any, sample_rate: int, n_steps: float, n_fft: int = 2048, hop_length: int = 512) -> GPUArray:
    """Raise or lower the pitch at the same length, as `pygpukit.audio.pitch_shift`.

    Examples
    --------
    >>> pitch_shift(gp.ones(4096, "float32"), 16000, 7).shape
    (4096,)
    """
    return effects.pitch_shift(samples_of(audio), sr=sample_rate, n_steps=n_steps, n_fft=n_fft, hop_length=hop_length)


@dataclasses.dataclass(frozen=True)
class SpeechSegment:
    """A part of a recording that contains speech.

    Attributes
    ----------
    start_sample, end_sample
        Where it begins and ends.
    start_time, end_time
        The same in seconds.
    """

    start_sample: int
    end_sample: int
    start_time: float
    end_time: float


class VAD:
    """Detection of speech: frames that are loud, and whose zero-crossing rate is that of a voice.

    Parameters
    ----------
    sample_rate : int, optional
        Samples per second.
    frame_ms, hop_ms : float, optional
        Milliseconds of a frame, and from frame to frame.
    energy_threshold : float, optional
        Root mean square of speech; by default three times the tenth percentile of all frames, at least 0.01.
    hangover_ms : float, optional
        Milliseconds for which speech goes on after its last frame.
    zcr_low, zcr_high : float, optional
        Zero crossings per sample.

    Examples
    --------
    >>> t = gp.arange(16000, dtype="float32") / 16000
    >>> y = gp.sin(2 * gp.pi * 600 * t) * (t > 0.5)
    >>> [(s.start_time, s.end_time) for s in VAD().detect(y)]
    [(0.49, 1.0)]
    """

    def __init__(
        self, sample_rate: int = 16000, frame_ms: float = 20.0, hop_ms: float = 10.0,
        energy_threshold: float | None = None, hangover_ms: float = 100.0, zcr_low: float = 0.02,
        zcr_high: float = 0.25,
    ) -> None:  # fmt: skip
        self._sample_rate = at_least(sample_rate, 1, "sample_rate")
        self._frame_size = at_least(int(frame_ms * sample_rate / 1000), 2, "samples of a frame")
        self._hop_size = at_least(int(hop_ms * sample_rate / 1000), 1, "samples from frame to frame")
        self._energy_threshold = energy_threshold
        self._hangover = int(hangover_ms / hop_ms)
        self._zcr = (zcr_low, zcr_high)

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return self._sample_rate

    @property
    def frame_size(self) -> int:
        """Samples of a frame."""
        return self._frame_size

    @property
    def hop_size(self) -> int:
        """Samples from frame to frame."""
        return self._hop_size

    def get_frame_features(self, audio: Any) -> tuple[GPUArray, GPUArray]:
        """Return the root mean square and the zero-crossing rate of each frame."""
        data = samples_of(audio)
        energy = gp.sqrt(gp.mean(framed(data * data, self._frame_size, self._hop_size), axis=-1))
        return energy, zero_crossing_rate(data, self._frame_size, self._hop_size)

    def detect(self, audio: Any) -> list[SpeechSegment]:
        """Return the segments with speech, in order. What is decided by frame is decided on the host."""
        data = samples_of(audio)
        if data.shape[0] < self._frame_size:
            return []
        energy, crossings = (x.to_numpy() for x in self.get_frame_features(data))
        threshold = self._energy_threshold
        if threshold is None:
            threshold = max(3.0 * float(np.percentile(energy, 10)), 0.01)
        speech = (energy > threshold) & (crossings >= self._zcr[0]) & (crossings <= self._zcr[1])
        # Frames since the last one with speech.
        frames = np.arange(len(speech))
        last = np.maximum.accumulate(np.where(speech, frames, -len(speech) - self._hangover - 1))
        edges = np.flatnonzero(np.diff(np.r_[0, (frames - last <= self._hangover).astype(int), 0])).reshape(-1, 2)
        return [self._segment(int(a), int(b), data.shape[0]) for a, b in edges]

    def _segment(self, first: int, end: int, n: int) -> SpeechSegment:
        a, b = first * self._hop_size, min(end * self._hop_size + self._frame_size, n)
        return SpeechSegment(a, b, a / self._sample_rate, b / self._sample_rate)

    def __repr__(self) -> str:
        return (
            f"VAD(sample_rate={self._sample_rate}, frame_size={self._frame_size}, hop_size={self._hop_size}, "
            f"hangover_frames={self._hangover})"
        )
