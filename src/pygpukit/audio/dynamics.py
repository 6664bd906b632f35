"""Dynamics: compressor, limiter, gate; and reverberation. Each channel is treated by itself, as an item of a batch."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, not_negative, positive, samples
from pygpukit.audio.chain.effects import Compressor, Gate, between
from pygpukit.audio.filtering import fftconvolve
from pygpukit.audio.operators import gp
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.filtering import follow, resample

__all__ = ["compressor", "gate", "limiter", "reverb"]

_SILENT = 1e-10


def _decibels(x: GPUArray) -> GPUArray:
    return 20.0 * gp.log10(gp.maximum(gp.abs(x), _SILENT))


def _followed(x: GPUArray, sr: float, rise: float, fall: float) -> GPUArray:
    """Level that follows with time constants in seconds; 0 for at once."""
    for name, value in (("attack", rise), ("release", fall)):
        not_negative(value, name, "it is a number of seconds, at least 0")
    rows = x.reshape((prod(x.shape[:-1]), x.shape[-1]))
    factors = [float(np.exp(-1.0 / (sr * t))) if t > 0 else 0.0 for t in (rise, fall)]
    start = gp.zeros(rows.shape[:1], "float64", device=x.device)
    return follow(rows, start, *factors)[0].reshape(x.shape)


def _gain(db: GPUArray) -> GPUArray:
    return gp.power(10.0, db * 0.05)


def compressor(
    y: Any, *, sr: float, threshold: float = -20.0, ratio: float = 4.0, attack: float = 0.005, release: float = 0.1,
    knee: float = 6.0, makeup: float = 0.0,
) -> GPUArray:  # fmt: skip
    """Turn loud parts down: above the threshold the level rises by one decibel for each ``ratio`` decibels.

    Parameters
    ----------
    y : GPUArray
        Samples.
    sr : float
        Samples per second.
    threshold : float, optional
        Decibels below full scale.
    ratio : float, optional
        At least 1.
    attack, release : float, optional
        Time constants in seconds with which it turns down, and up again.
    knee : float, optional
        Decibels around the threshold over which the ratio sets in.
    makeup : float, optional
        Decibels added at the end.

    Raises
    ------
    ParameterError
        If a parameter is none of `Compressor`.

    Examples
    --------
    >>> y = compressor(gp.ones(48000, "float64"), sr=48000, threshold=-20, ratio=4)
    >>> (20 * gp.log10(y[-1])).round(6).item()
    -15.0
    """
    y, sr = samples(y), positive(sr, "sr")
    Compressor(threshold, ratio, attack, release, knee, makeup)
    over, slope = _decibels(y) - threshold, 1.0 - 1.0 / ratio
    down = gp.maximum(over, 0.0)
    if knee > 0:
        bent = gp.clip(over + knee / 2, 0.0, knee)
        down = gp.where(over * 2 < knee, bent * bent / (2 * knee), down)
    return y * _gain(makeup - _followed(down * slope, sr, attack, release))


def _window_maximum(x: GPUArray, size: int) -> GPUArray:
    """Maximum of each element and the ``size - 1`` after it; zeros lie behind."""
    n = x.shape[-1]
    x = gp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - 1)])
    width = 1
    while width < size:
        step = min(width, size - width)
        x = gp.maximum(x[..., : x.shape[-1] - step], x[..., step:])
        width += step
    return x[..., :n]


def limiter(y: Any, *, sr: float, ceiling: float = -1.0, lookahead: float = 0.005, release: float = 0.05) -> GPUArray:
    """Keep samples under a ceiling: the gain goes down before a peak comes, and up again after it.

    Parameters
    ----------
    y, sr
        Samples and their rate.
    ceiling : float, optional
        Decibels below full scale that no sample is over.
    lookahead : float, optional
        Seconds over which the gain goes down. The samples are not delayed.
    release : float, optional
        Time constant in seconds with which it goes up.

    Raises
    ------
    ParameterError
        If lookahead is not from 0 to 10, or another number is not finite.

    Examples
    --------
    >>> y = limiter(gp.asarray([0.1] * 50 + [2.0] + [0.1] * 50), sr=1000, ceiling=0.0)
    >>> gp.max(y).item() <= 1.0
    True
    """
    y, sr = samples(y), positive(sr, "sr")
    rule = "it is a number of seconds, from 0 to 10"
    if not_negative(lookahead, "lookahead", rule) >= 10:
        raise ParameterError(f"lookahead is {lookahead}; {rule}")
    between(ceiling, -200, 200, "ceiling")
    top, size = 10.0 ** (ceiling / 20), ceil(lookahead * sr) + 1
    need = gp.maximum(_decibels(y) - ceiling, 0.0)
    # The look-ahead of the first samples begins before them.
    need = gp.pad(need, [(0, 0)] * (y.ndim - 1) + [(size - 1, 0)])
    held = _followed(_window_maximum(need, size), sr, 0.0, release)
    # The mean of what is held over the look-ahead is at least what the sample needs: all windows in it hold that.
    weights = constant(np.full((1, size), 1.0 / size), y)
    smooth = resample(held, weights, up=1, down=1, center=0, length=need.shape[-1])[..., size - 1 :]
    return gp.clip(y * _gain(-smooth), -top, top)


def gate(
    y: Any, *, sr: float, threshold: float = -50.0, attack: float = 0.001, release: float = 0.1,
    range: float = -80.0,
) -> GPUArray:  # fmt: skip
    """Turn down what is quieter than the threshold.

    Parameters
    ----------
    y, sr
        Samples and their rate.
    threshold : float, optional
        Decibels below full scale.
    attack, release : float, optional
        Time constants in seconds with which it opens and closes.
    range : float, optional
        Decibels by which a closed gate turns down, negative.

    Raises
    ------
    ParameterError
        If a parameter is none of `Gate`.

    Examples
    --------
    >>> y = gate(gp.asarray([1e-4] * 4000), sr=1000, range=-40.0)
    >>> (y[-1] / 1e-4).round(4).item()
    0.01
    """
    y, sr = samples(y), positive(sr, "sr")
    Gate(threshold, attack, release, range)
    # A peak meter with 10 ms of release: it does not fall between the waves of a tone.
    level = _followed(gp.abs(y), sr, 0.0, 0.01)
    opened = _followed((_decibels(level) >= threshold).astype(y.dtype), sr, attack, release)
    return y * _gain((1.0 - opened) * range)


def reverb(
    y: Any, *, sr: float, decay: float = 1.5, wet: float = 0.25, predelay: float = 0.02, seed: int = 0
) -> GPUArray:
    """Add reverberation: the convolution with noise that decays.

    Parameters
    ----------
    y, sr
        Samples and their rate.
    decay : float, optional
        Seconds in which it falls by 60 dB.
    wet : float, optional
        Its part of the sum, 0 to 1.
    predelay : float, optional
        Seconds before it begins.
    seed : int, optional
        Of the noise, which is made on the host: the same for every item.

    Returns
    -------
    GPUArray
        As many samples as ``y`` has.

    Raises
    ------
    ParameterError
        If wet is not from 0 to 1, or a number is negative.

    Examples
    --------
    >>> reverb(gp.ones(100, "float32"), sr=8000, decay=0.1).shape
    (100,)
    """
    y, sr, decay = samples(y), positive(sr, "sr"), positive(decay, "decay")
    wet, predelay = not_negative(wet, "wet", "it is from 0 to 1"), not_negative(predelay, "predelay")
    if wet > 1:
        raise ParameterError(f"wet is {wet}; it is from 0 to 1")
    n, before = at_least(ceil(decay * sr), 1, "decay"), round(predelay * sr)
    noise = np.random.Generator(np.random.PCG64(at_least(seed, 0, "seed"))).standard_normal(n)
    noise *= 10.0 ** (-3.0 * np.arange(n) / (decay * sr))
    response = np.concatenate([np.zeros(before), noise / np.sqrt((noise**2).sum())])
    return (1 - wet) * y + wet * fftconvolve(y, constant(response, y))[..., : y.shape[-1]]
