"""Features under librosa's name for their home."""

from __future__ import annotations

from pygpukit.audio.mel import delta, melspectrogram, mfcc, stack_memory

__all__ = ["delta", "melspectrogram", "mfcc", "stack_memory"]
