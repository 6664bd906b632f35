"""The FFT extension of the array API standard: the package's transforms."""

from __future__ import annotations

from typing import Any

import pygpukit as gp
from pygpukit.core.device import resolve_device
from pygpukit.fft import (
    fft,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfftn,
    rfft,
    rfftn,
)
from pygpukit.fft import fftfreq as _fftfreq
from pygpukit.fft import rfftfreq as _rfftfreq

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """Frequencies of the elements of `fft`, in cycles per unit of `d`; float64 unless `dtype` is given.

    Examples
    --------
    >>> fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    found = _fftfreq(n, d, device=None if device is None else resolve_device(device))
    return found if dtype is None else found.astype(dtype, copy=False)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> gp.GPUArray:
    """Frequencies of the elements of `rfft`, in cycles per unit of `d`; float64 unless `dtype` is given.

    Examples
    --------
    >>> rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    found = _rfftfreq(n, d, device=None if device is None else resolve_device(device))
    return found if dtype is None else found.astype(dtype, copy=False)
