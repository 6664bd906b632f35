"""Audio on the device: files, transforms, features, effects, with the names and defaults of librosa 0.11.

>>> import pygpukit as gp
>>> import pygpukit.audio as A
>>> y = gp.sin(gp.arange(22050, dtype="float32") * 0.1)
>>> A.melspectrogram(y=y, sr=22050).shape
(128, 44)
"""

from __future__ import annotations

from pygpukit.audio import beat, decompose, effects, feature, filters, onset
from pygpukit.audio.beam import beamform
from pygpukit.audio.beat import *  # noqa: F403
from pygpukit.audio.beat import __all__ as _beat
from pygpukit.audio.chain import *  # noqa: F403
from pygpukit.audio.chain import __all__ as _chain
from pygpukit.audio.chroma import *  # noqa: F403
from pygpukit.audio.chroma import __all__ as _chroma
from pygpukit.audio.constantq import *  # noqa: F403
from pygpukit.audio.constantq import __all__ as _constantq
from pygpukit.audio.convert import *  # noqa: F403
from pygpukit.audio.convert import __all__ as _convert
from pygpukit.audio.dynamics import *  # noqa: F403
from pygpukit.audio.dynamics import __all__ as _dynamics
from pygpukit.audio.effects import *  # noqa: F403
from pygpukit.audio.effects import __all__ as _effects
from pygpukit.audio.energy import pcen
from pygpukit.audio.files import load, save
from pygpukit.audio.filtering import fftconvolve, lfilter, sosfilt
from pygpukit.audio.loudness import loudness, loudness_range, true_peak
from pygpukit.audio.mel import dct, delta, melspectrogram, mfcc, stack_memory
from pygpukit.audio.onset import *  # noqa: F403
from pygpukit.audio.onset import __all__ as _onset
from pygpukit.audio.pictures import save_plot
from pygpukit.audio.pitch import *  # noqa: F403
from pygpukit.audio.pitch import __all__ as _pitch
from pygpukit.audio.resampling import resample, to_mono
from pygpukit.audio.spectral import *  # noqa: F403
from pygpukit.audio.spectral import __all__ as _spectral
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
from pygpukit.audio.streams import *  # noqa: F403
from pygpukit.audio.streams import __all__ as _streams
from pygpukit.audio.windows import get_window
from pygpukit.fft import fft, irfft, rfft

__all__ = [
    *_beat,
    *_chain,
    *_chroma,
    *_constantq,
    *_convert,
    *_dynamics,
    *_effects,
    *_onset,
    *_pitch,
    *_spectral,
    *_streams,
    "amplitude_to_db",
    "beamform",
    "beat",
    "db_to_amplitude",
    "db_to_power",
    "dct",
    "decompose",
    "delta",
    "effects",
    "feature",
    "fft",
    "fftconvolve",
    "filters",
    "get_window",
    "griffinlim",
    "irfft",
    "istft",
    "lfilter",
    "load",
    "loudness",
    "loudness_range",
    "magphase",
    "melspectrogram",
    "mfcc",
    "onset",
    "pcen",
    "phase_vocoder",
    "power_to_db",
    "resample",
    "rfft",
    "save",
    "save_plot",
    "sosfilt",
    "stack_memory",
    "stft",
    "to_mono",
    "true_peak",
]
