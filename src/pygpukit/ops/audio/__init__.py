"""Operators of audio, and the published import path of functions that stand on them.

>>> from pygpukit.ops.audio import log_mel_spectrogram
>>> log_mel_spectrogram(gp.zeros(1600, "float32")).shape
(11, 80)
"""

from __future__ import annotations

from typing import Any

NAMES = (
    "AudioBuffer", "AudioRingBuffer", "AudioStream", "SpeechSegment", "VAD", "apply_mel_filterbank",
    "autocorrelation", "chroma_cqt", "chroma_stft", "compute_short_term_energy", "cqt", "cqt_magnitude",
    "create_mel_filterbank", "deemphasis", "delta", "detect_pitch_yin", "detect_pitch_yin_frames", "from_pcm",
    "griffin_lim", "harmonic", "highpass_filter", "hpss", "istft", "log_mel", "log_mel_spectrogram",
    "magnitude_spectrum", "mel_spectrogram", "mfcc", "noise_gate", "percussive", "pitch_shift", "power_spectrum",
    "preemphasis", "remove_dc", "spectral_bandwidth", "spectral_centroid", "spectral_contrast", "spectral_flatness",
    "spectral_gate", "spectral_rolloff", "stft", "time_stretch", "to_decibels", "zero_crossing_rate",
)  # fmt: skip
"""What ``from pygpukit.ops.audio import ...`` finds beside the operators."""


def __getattr__(name: str) -> Any:
    # They stand on the functions of `pygpukit.audio`, which stand on the operators here.
    if name in NAMES:
        from pygpukit.audio import published

        return getattr(published, name)
    raise AttributeError(f"module 'pygpukit.ops.audio' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *NAMES])
