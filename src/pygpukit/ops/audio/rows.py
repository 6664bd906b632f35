"""The audio operators, by the modules that register them."""

from __future__ import annotations

from pygpukit.ops.audio.filtering import follow, recurrence, resample
from pygpukit.ops.audio.pitch import candidates as pitch_candidates
from pygpukit.ops.audio.pitch import path as pitch_path
from pygpukit.ops.audio.spectra import bands, median, overlap_add

__all__ = ["bands", "follow", "median", "overlap_add", "pitch_candidates", "pitch_path", "recurrence", "resample"]
