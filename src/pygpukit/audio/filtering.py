"""Linear filters: recursive ones in blocks of 64 samples, and convolution by blocks of Fourier transforms."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, real_array, samples
from pygpukit.audio.operators import gp
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.filtering import MOST_STATES, recurrence
from pygpukit.ops.audio.reference import BLOCK

__all__ = [
    "Cascade", "block_of", "cascade_of", "convolve_blocks", "fftconvolve", "lfilter", "one_pole", "run_cascade",
    "second_order_sections", "sosfilt",
]  # fmt: skip


class Cascade(NamedTuple):
    """Sections of a recursive filter and what blocks of samples need, all float64 on the host.

    Attributes
    ----------
    sections
        (S, 2 P + 1): b0 ... bP, a1 ... aP.
    powers
        (65, D, D): the state's transition over 0 to 64 samples.
    response
        (64, D): what a state adds to the samples of a block.
    """

    sections: Any
    powers: Any
    response: Any

    @property
    def states(self) -> int:
        """Numbers in the state."""
        return int(self.response.shape[1])


@lru_cache(maxsize=64)
def _cascade(data: bytes, count: int) -> Cascade:
    sections = np.frombuffer(data).reshape(count, -1)
    order = sections.shape[1] // 2
    states = count * order
    powers, response = np.empty((BLOCK + 1, states, states)), np.empty((BLOCK, states))
    state = np.eye(states).reshape(count, order, states)
    for k in range(BLOCK + 1):
        powers[k] = state.reshape(states, states)
        if k == BLOCK:
            break
        v, new = np.zeros(states), np.zeros_like(state)
        for i, c in enumerate(sections):
            u = c[0] * v + state[i, 0]
            for j in range(order):
                above = state[i, j + 1] if j + 1 < order else 0.0
                new[i, j] = c[1 + j] * v - c[1 + order + j] * u + above
            v = u
        response[k], state = v, new
    return Cascade(sections, powers, response)


def cascade_of(sections: Any) -> Cascade:
    """Return sections (S, 2 P + 1) with what blocks of samples need.

    Raises
    ------
    ParameterError
        If their state has too many numbers.
    """
    sections = np.ascontiguousarray(sections, np.float64)
    states = sections.shape[0] * (sections.shape[1] // 2)
    if not 1 <= states <= MOST_STATES:
        raise ParameterError(f"a recursive filter of {states} states in all; from 1 to {MOST_STATES} are computed")
    if not np.isfinite(sections).all():
        raise ParameterError("the filter's coefficients are not finite")
    return _cascade(sections.tobytes(), sections.shape[0])


def second_order_sections(sos: Any) -> Any:
    """Check sections as scipy.signal writes them, (S, 6), and return (S, 5) with a0 divided out.

    Raises
    ------
    ParameterError
        If they are none.
    """
    values = np.atleast_2d(np.asarray(sos.to_numpy() if isinstance(sos, GPUArray) else sos, np.float64))
    if values.ndim != 2 or values.shape[1] != 6 or np.any(values[:, 3] == 0):
        raise ParameterError(f"sos has shape {values.shape}; it is (sections, 6) with b0 b1 b2 a0 a1 a2, a0 not 0")
    return np.ascontiguousarray(values[:, [0, 1, 2, 4, 5]] / values[:, 3:4])


def run_cascade(cascade: Cascade, x: GPUArray, initial: Any = None) -> tuple[GPUArray, GPUArray, GPUArray]:
    """Filter the last axis; returns the result and (..., states) at the end and after the last whole block."""
    lead = x.shape[:-1]
    rows = prod(lead)
    if initial is None:
        initial = gp.zeros((rows, cascade.states), "float64", device=x.device)
    y, end, bound = recurrence(
        x.reshape((rows, x.shape[-1])), *(constant(v, x, "float64") for v in cascade), initial.reshape((rows, -1))
    )
    return y.reshape(x.shape), end.reshape((*lead, cascade.states)), bound.reshape((*lead, cascade.states))


def _state(zi: Any, x: GPUArray, shape: tuple[int, ...], what: str) -> GPUArray:
    state = zi.astype("float64") if isinstance(zi, GPUArray) else constant(zi, x, "float64")
    try:
        return gp.broadcast_to(state, shape)
    except ValueError:
        raise ParameterError(f"{what} has shape {tuple(state.shape)}; {shape} is needed") from None


def sosfilt(sos: Any, x: Any, *, axis: int = -1, zi: Any = None) -> Any:
    """Filter along an axis with second-order sections, as scipy.signal.sosfilt.

    Sums are in float64 on blocks of 64 samples that run in parallel; the result has the type of ``x``.

    Parameters
    ----------
    sos : array
        (sections, 6), as scipy.signal designs them; up to 16 sections.
    x : GPUArray
        Samples.
    axis : int, optional
        The last by default.
    zi : array, optional
        State before the first sample, (sections, ..., 2); with it the state at the end is returned too.

    Returns
    -------
    GPUArray or tuple
        Samples; with ``zi``, and float64 (sections, ..., 2).

    Raises
    ------
    ParameterError
        If the sections or the state have another shape.

    Examples
    --------
    >>> sosfilt([[1.0, 0, 0, 1, -0.5, 0]], gp.asarray([1.0, 0.0, 0.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    x = samples(x, "x")
    cascade = cascade_of(second_order_sections(sos))
    moved = gp.moveaxis(x, axis, -1)
    lead, count = moved.shape[:-1], cascade.states // 2
    initial = None
    if zi is not None:
        state = _state(zi, x, (count, *lead, 2), "zi")
        initial = gp.moveaxis(state, 0, -2).reshape((*lead, 2 * count))
    y, end, _ = run_cascade(cascade, moved, initial)
    y = gp.moveaxis(y, -1, axis)
    return y if zi is None else (y, gp.moveaxis(end.reshape((*lead, count, 2)), -2, 0))


def lfilter(b: Any, a: Any, x: Any, *, axis: int = -1, zi: Any = None) -> Any:
    """Filter along an axis with the coefficients of a rational function, as scipy.signal.lfilter.

    Parameters
    ----------
    b, a : array
        Numerator and denominator, of up to 33 coefficients where ``a`` has more than one.
    x : GPUArray
        Samples.
    axis : int, optional
        The last by default.
    zi : array, optional
        State before the first sample, (..., order); with it the state at the end is returned too.

    Returns
    -------
    GPUArray or tuple
        Samples; with ``zi``, and float64 (..., order).

    Raises
    ------
    ParameterError
        If a[0] is 0, or there are too many coefficients.

    Notes
    -----
    Poles are not split: high orders near the unit circle lose digits, as they do with scipy; use `sosfilt`.

    Examples
    --------
    >>> lfilter([1.0, 1.0], [1.0], gp.asarray([1.0, 2.0, 3.0])).tolist()
    [1.0, 3.0, 5.0]
    """
    x = samples(x, "x")
    b, a = (np.atleast_1d(np.asarray(v.to_numpy() if isinstance(v, GPUArray) else v, np.float64)) for v in (b, a))
    if b.ndim != 1 or a.ndim != 1 or not b.size or not a.size or a[0] == 0:
        raise ParameterError("b and a are lists of coefficients, and a[0] is not 0")
    order = max(len(b), len(a)) - 1
    if order > MOST_STATES and len(a) == 1 and zi is None:
        return _convolved_axis(x, b / a[0], axis)
    section = np.zeros(2 * max(order, 1) + 1)
    section[: len(b)], section[max(order, 1) + 1 : max(order, 1) + len(a)] = b / a[0], a[1:] / a[0]
    cascade = cascade_of(section[None])
    moved = gp.moveaxis(x, axis, -1)
    initial = None
    if zi is not None:
        initial = _state(zi, x, (*moved.shape[:-1], order), "zi")
        initial = initial if order else gp.zeros((*moved.shape[:-1], 1), "float64", device=x.device)
    y, end, _ = run_cascade(cascade, moved, initial)
    y = gp.moveaxis(y, -1, axis)
    return y if zi is None else (y, end[..., :order])


def _convolved_axis(x: GPUArray, b: Any, axis: int) -> GPUArray:
    moved = gp.moveaxis(x, axis, -1)
    made = fftconvolve(moved, constant(b, x))[..., : moved.shape[-1]]
    return gp.moveaxis(made, -1, axis)


def block_of(taps: int) -> tuple[int, int]:
    """Return samples per block and length of the transforms for a response of so many samples."""
    size = 1 << max(6, (2 * taps - 1).bit_length())
    # Shorter transforms than a few thousand points cost more calls than they save.
    size = max(size, 1 << 10)
    return size - taps + 1, size


def convolve_blocks(x: GPUArray, spectrum: GPUArray, taps: int, block: int, size: int) -> GPUArray:
    """Convolve whole blocks: ``x`` (..., taps - 1 + blocks * block) begins with the samples before the first block."""
    blocks = (x.shape[-1] - taps + 1) // block
    window = constant(np.ones(size), x)
    frames = gp.fft.transform(x, size, real=True, window=window, hop=block)[..., :blocks, :]
    made = gp.fft.irfft(frames * spectrum[..., None, :], size)[..., taps - 1 :]
    return made.reshape((*made.shape[:-2], blocks * block))


def fftconvolve(in1: Any, in2: Any, *, mode: str = "full") -> GPUArray:
    """Convolve samples with a response along the last axis, by Fourier transforms of blocks (overlap-save).

    The blocks' length depends on the response alone, so that `ConvolveStream` gives the same bits.

    Parameters
    ----------
    in1 : GPUArray
        Samples.
    in2 : GPUArray
        Response: one for all items (n,), or one for each with leading axes that broadcast.
    mode : str, optional
        ``"full"``; ``"same"``, of the length of ``in1`` and centred; ``"valid"``, where the two overlap entirely.

    Raises
    ------
    ParameterError
        If the types differ, or there is no such mode.

    Examples
    --------
    >>> fftconvolve(gp.asarray([1.0, 2.0, 3.0]), gp.asarray([0.0, 1.0])).round(9).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    x, h = samples(in1, "in1"), real_array(in2, "in2")
    if mode not in ("full", "same", "valid"):
        raise ParameterError(f"mode is '{mode}'; use full, same or valid")
    if h.dtype is not x.dtype:
        raise ParameterError(f"in1 is {x.dtype.name} and in2 {h.dtype.name}; use one type")
    n, taps = x.shape[-1], at_least(h.shape[-1], 1, "samples of in2")
    block, size = block_of(taps)
    blocks = -(-(n + taps - 1) // block)
    padded = gp.pad(x, [(0, 0)] * (x.ndim - 1) + [(taps - 1, blocks * block - n)])
    y = convolve_blocks(padded, gp.fft.rfft(h, size), taps, block, size)
    if mode == "full":
        return y[..., : n + taps - 1]
    if mode == "same":
        return y[..., (taps - 1) // 2 : (taps - 1) // 2 + n]
    low, high = min(n, taps) - 1, max(n, taps)
    return y[..., low:high]


def one_pole(x: GPUArray, b: float, initial: Any) -> tuple[GPUArray, GPUArray]:
    """Run ``y[t] = b x[t] + (1 - b) y[t - 1]`` along the last axis from a state (..., 1)."""
    y, end, _ = run_cascade(cascade_of([[b, 0.0, b - 1.0]]), x, initial)
    return y, end
