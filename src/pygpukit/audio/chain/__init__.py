"""Chains of effects: over arrays, over streams with the same bits, and in real time with a deadline."""

from __future__ import annotations

from pygpukit.audio.chain.chain import Chain, ChainStream
from pygpukit.audio.chain.effects import (
    Compressor,
    Convolve,
    Effect,
    Equalizer,
    Gate,
    Highpass,
    Limiter,
    SpectralGate,
)

__all__ = [
    "Chain", "ChainStream", "Compressor", "Convolve", "Effect", "Equalizer", "Gate", "Highpass", "Limiter",
    "SpectralGate",
]  # fmt: skip
