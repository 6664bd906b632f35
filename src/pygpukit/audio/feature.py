"""Features under librosa's name for their home."""

from __future__ import annotations

from pygpukit.audio.beat import fourier_tempogram, tempo, tempogram
from pygpukit.audio.chroma import chroma_cens, chroma_cqt, tonnetz
from pygpukit.audio.mel import delta, melspectrogram, mfcc, stack_memory
from pygpukit.audio.spectral import (
    chroma_stft,
    poly_features,
    rms,
    spectral_bandwidth,
    spectral_centroid,
    spectral_contrast,
    spectral_flatness,
    spectral_rolloff,
    zero_crossing_rate,
)

__all__ = [
    "chroma_cens",
    "chroma_cqt",
    "chroma_stft",
    "delta",
    "fourier_tempogram",
    "melspectrogram",
    "mfcc",
    "poly_features",
    "rms",
    "spectral_bandwidth",
    "spectral_centroid",
    "spectral_contrast",
    "spectral_flatness",
    "spectral_rolloff",
    "stack_memory",
    "tempo",
    "tempogram",
    "tonnetz",
    "zero_crossing_rate",
]
