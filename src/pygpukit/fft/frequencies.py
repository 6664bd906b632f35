"""Frequencies of the points of transforms, and their order with zero in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.fft.functions import normalise_axis
from pygpukit.ops.operands import as_array

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


def fftfreq(n: int, d: float = 1.0, *, device: Device | None = None) -> GPUArray:
    """Frequencies of the points of `fft`, in cycles per unit of the sample spacing ``d``; float64.

    Examples
    --------
    >>> gp.fft.fftfreq(4, 0.25).tolist()
    [0.0, 1.0, -2.0, -1.0]
    """
    return from_numpy(np.fft.fftfreq(n, d), device=device)


def rfftfreq(n: int, d: float = 1.0, *, device: Device | None = None) -> GPUArray:
    """Frequencies of the points of `rfft`.

    Examples
    --------
    >>> gp.fft.rfftfreq(4, 0.25).tolist()
    [0.0, 1.0, 2.0]
    """
    return from_numpy(np.fft.rfftfreq(n, d), device=device)


def _rolled(x: GPUArray, axes: int | Sequence[int] | None, forward: bool) -> GPUArray:
    """A copy with the axes cut in two, and the parts exchanged."""
    x = as_array(x, "fftshift()" if forward else "ifftshift()")
    if axes is None:
        axes = range(x.ndim)
    named = [normalise_axis(a, x.ndim) for a in ((axes,) if isinstance(axes, int) else axes)]
    # Elements of the first part: an axis named again is moved again.
    starts = {a: 0 for a in named}
    for a in named:
        size = x.shape[a]
        starts[a] = (starts[a] + (size - size // 2 if forward else size // 2)) % max(size, 1)
    out = empty(x.shape, x.dtype, device=x.device)
    for parts in product((False, True), repeat=len(starts)):
        source, target = x, out
        for (a, cut), second in zip(starts.items(), parts, strict=True):
            size = x.shape[a]
            first, count, to = (cut, size - cut, 0) if second else (0, cut, size - cut)
            source, target = source._slice(a, first, count, 1), target._slice(a, to, count, 1)
        if source.size:
            _native.apply("copy", (source,), target)
    return out


def fftshift(x: GPUArray, axes: int | Sequence[int] | None = None) -> GPUArray:
    """Move the zero frequency from the start to the middle of axes, all by default.

    Examples
    --------
    >>> gp.fft.fftshift(gp.fft.fftfreq(4, 0.25)).tolist()
    [-2.0, -1.0, 0.0, 1.0]
    """
    return _rolled(x, axes, True)


def ifftshift(x: Any, axes: int | Sequence[int] | None = None) -> GPUArray:
    """Inverse of `fftshift`.

    Examples
    --------
    >>> gp.fft.ifftshift(gp.asarray([-2.0, -1.0, 0.0, 1.0])).tolist()
    [0.0, 1.0, -2.0, -1.0]
    """
    return _rolled(x, axes, False)
