"""Fourier transforms with NumPy's names and meaning, on kernels of our own.

Examples
--------
>>> import pygpukit as gp
>>> gp.fft.rfft(gp.asarray([1.0, 0.0, 0.0, 0.0])).tolist()
[(1+0j), (1+0j), (1+0j)]
"""

from pygpukit.fft.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from pygpukit.fft.functions import fft, hfft, ifft, ihfft, irfft, rfft, transform
from pygpukit.fft.many_axes import fft2, fftn, ifft2, ifftn, irfft2, irfftn, rfft2, rfftn

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "transform",
]
