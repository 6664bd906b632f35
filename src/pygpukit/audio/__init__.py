"""Audio on the device: files, transforms, features, effects, with the names and defaults of librosa 0.11.

>>> import pygpukit as gp
>>> import pygpukit.audio as A
>>> y = gp.sin(gp.arange(22050, dtype="float32") * 0.1)
>>> A.melspectrogram(y=y, sr=22050).shape
(128, 44)
"""

from __future__ import annotations

from pygpukit.audio import feature, filters
from pygpukit.audio.convert import *  # noqa: F403
from pygpukit.audio.convert import __all__ as _convert
from pygpukit.audio.files import load, save
from pygpukit.audio.mel import dct, delta, melspectrogram, mfcc, stack_memory
from pygpukit.audio.resampling import resample, to_mono
from pygpukit.audio.spectrum import (
    amplitude_to_db,
    db_to_amplitude,
    db_to_power,
    griffinlim,
    istft,
    magphase,
    phase_vocoder,
    power_to_db,
    stft,
)
from pygpukit.audio.windows import get_window

__all__ = [
    *_convert,
    "amplitude_to_db",
    "db_to_amplitude",
    "db_to_power",
    "dct",
    "delta",
    "feature",
    "filters",
    "get_window",
    "griffinlim",
    "istft",
    "load",
    "magphase",
    "melspectrogram",
    "mfcc",
    "phase_vocoder",
    "power_to_db",
    "resample",
    "save",
    "stack_memory",
    "stft",
    "to_mono",
]
