"""NumPy's Fourier transforms over several axes: one axis after the other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from operator import index
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.errors import ShapeError
from pygpukit.fft.functions import fft, ifft, irfft, normalise_axis, rfft
from pygpukit.ops.operands import as_array

__all__ = ["fft2", "fftn", "ifft2", "ifftn", "irfft2", "irfftn", "rfft2", "rfftn"]

_NO_STREAM = nullcontext()


def _axes(x: GPUArray, s: Sequence[int] | None, axes: Sequence[int] | None, to_real: bool = False
          ) -> list[tuple[int, int]]:  # fmt: skip
    """Return the points and the axis of each transform; -1 points are those of the axis.

    Raises
    ------
    ShapeError
        If there are not as many of both.
    """
    if axes is None:
        axes = range(x.ndim) if s is None else range(-len(s), 0)
    named = [normalise_axis(a, x.ndim) for a in axes]
    if s is None:
        sizes = [x.shape[a] for a in named]
        if to_real and sizes:
            sizes[-1] = 2 * (sizes[-1] - 1)
    else:
        sizes = [index(n) for n in s]
        if len(sizes) != len(named):
            raise ShapeError(f"{len(sizes)} sizes do not fit {len(named)} axes")
        sizes = [x.shape[a] if n == -1 else n for n, a in zip(sizes, named, strict=True)]
    return list(zip(sizes, named, strict=True))


def _each(function: Any, x: GPUArray, pairs: list[tuple[int, int]], norm: str | None, out: Any) -> GPUArray:
    """Transform along axes from the last to the first; only the last result needs ``out``."""
    if not pairs:
        if out is None:
            return x
        out[...] = x
        return out  # type: ignore[no-any-return]
    for i, (n, axis) in reversed(list(enumerate(pairs))):
        x = function(x, n, axis, norm, out if i == 0 else None)
    return x


def fftn(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None,
         out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """Discrete Fourier transform over several axes, all by default.

    Parameters
    ----------
    a : GPUArray
        Real or complex, as of `fft`.
    s : sequence of int, optional
        Points along each axis; -1 for those there are.
    axes : sequence of int, optional
        The last ``len(s)`` by default, or all.
    norm : str, optional
        As of `fft`, for each axis.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> gp.fft.fftn(gp.ones((2, 2))).tolist()
    [[(4+0j), 0j], [0j, 0j]]
    """
    with stream or _NO_STREAM:
        a = as_array(a, "fftn()")
        return _each(fft, a, _axes(a, s, axes), norm, out)


def ifftn(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None,
          out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """Inverse of `fftn`.

    Examples
    --------
    >>> gp.fft.ifftn(gp.ones((2, 2))).tolist()
    [[(1+0j), 0j], [0j, 0j]]
    """
    with stream or _NO_STREAM:
        a = as_array(a, "ifftn()")
        return _each(ifft, a, _axes(a, s, axes), norm, out)


def rfftn(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None,
          out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """Transform of real numbers over several axes: `rfft` along the last of them, `fft` along the others.

    Examples
    --------
    >>> gp.fft.rfftn(gp.ones((2, 4))).shape
    (2, 3)
    """
    with stream or _NO_STREAM:
        a = as_array(a, "rfftn()")
        pairs = _axes(a, s, axes)
        if not pairs:
            raise IndexError("rfftn needs at least one axis")
        n, axis = pairs.pop()
        half = rfft(a, n, axis, norm, None if pairs else out)
        return _each(fft, half, pairs, norm, out) if pairs else half


def irfftn(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None,
           out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """Inverse of `rfftn`. Give ``s`` where the last axis had an odd number of elements.

    Examples
    --------
    >>> gp.fft.irfftn(gp.fft.rfftn(gp.ones((2, 4)))).tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    with stream or _NO_STREAM:
        a = as_array(a, "irfftn()")
        pairs = _axes(a, s, axes, to_real=True)
        if not pairs:
            raise IndexError("irfftn needs at least one axis")
        n, axis = pairs.pop()
        for points, other in pairs:
            a = ifft(a, points, other, norm)
        return irfft(a, n, axis, norm, out)


def fft2(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None,
         out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """`fftn` over the last two axes.

    Examples
    --------
    >>> gp.fft.fft2(gp.ones((3, 2, 2))).shape
    (3, 2, 2)
    """
    return fftn(a, s, axes, norm, out, stream=stream)


def ifft2(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None,
          out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """`ifftn` over the last two axes.

    Examples
    --------
    >>> gp.fft.ifft2(gp.ones((3, 2, 2))).shape
    (3, 2, 2)
    """
    return ifftn(a, s, axes, norm, out, stream=stream)


def rfft2(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None,
          out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """`rfftn` over the last two axes.

    Examples
    --------
    >>> gp.fft.rfft2(gp.ones((2, 4))).shape
    (2, 3)
    """
    return rfftn(a, s, axes, norm, out, stream=stream)


def irfft2(a: GPUArray, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None,
           out: GPUArray | None = None, *, stream: Any = None) -> GPUArray:  # fmt: skip
    """`irfftn` over the last two axes.

    Examples
    --------
    >>> gp.fft.irfft2(gp.ones((2, 3))).shape
    (2, 4)
    """
    return irfftn(a, s, axes, norm, out, stream=stream)
