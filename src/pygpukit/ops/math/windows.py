"""NumPy's window functions. Their few numbers are computed on the host, so they are the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.ops.registry import export


@export
def bartlett(M: Any) -> GPUArray:
    """A triangle with zeros at both ends, of `M` points.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.bartlett(5).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return from_numpy(np.bartlett(M))


@export
def blackman(M: Any) -> GPUArray:
    """The Blackman window of `M` points: three terms of a cosine series.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.blackman(3).round(6).tolist()
    [-0.0, 1.0, -0.0]
    """
    return from_numpy(np.blackman(M))


@export
def hamming(M: Any) -> GPUArray:
    """The Hamming window of `M` points: ``0.54 - 0.46 cos``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.hamming(3).round(6).tolist()
    [0.08, 1.0, 0.08]
    """
    return from_numpy(np.hamming(M))


@export
def hanning(M: Any) -> GPUArray:
    """The Hann window of `M` points: ``0.5 - 0.5 cos``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.hanning(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return from_numpy(np.hanning(M))


@export
def kaiser(M: Any, beta: float) -> GPUArray:
    """The Kaiser window of `M` points; the larger `beta`, the narrower.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.kaiser(3, 0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    return from_numpy(np.kaiser(M, beta))
