"""The published names of ``pygpukit.ops.audio``: frames first, 16 kHz, over the same kernels."""

from __future__ import annotations

from pygpukit.audio.published.buffers import AudioBuffer, AudioRingBuffer, AudioStream, from_pcm
from pygpukit.audio.published.samples import *  # noqa: F403
from pygpukit.audio.published.samples import __all__ as _samples
from pygpukit.audio.published.spectra import *  # noqa: F403
from pygpukit.audio.published.spectra import __all__ as _spectra

__all__ = [*_samples, *_spectra, "AudioBuffer", "AudioRingBuffer", "AudioStream", "from_pcm"]
