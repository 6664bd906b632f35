"""The audio operators, by the modules that register them."""

from __future__ import annotations

from pygpukit.ops.audio.filtering import follow, recurrence, resample
from pygpukit.ops.audio.spectra import bands, median, overlap_add

__all__ = ["bands", "follow", "median", "overlap_add", "recurrence", "resample"]
