"""Mel spectrograms, cepstra, discrete cosine transforms, and differences in time."""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import (
    at_least,
    constant,
    fix_length,
    frames_first,
    magnitudes,
    not_negative,
    number,
    real_array,
)
from pygpukit.audio.filters import mel_weights, packed_bands
from pygpukit.audio.operators import gp
from pygpukit.audio.spectrum import power_to_db, stft
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.spectra import bands

__all__ = ["dct", "delta", "mel_bands", "melspectrogram", "mfcc", "stack_memory"]


def mel_bands(S: GPUArray, weights: Any, power: int) -> GPUArray:
    """Apply filters of a host matrix to frames-first spectra: (..., frames, bins) to (..., frames, filters)."""
    values, places = packed_bands(weights)
    return bands(S, constant(values, S), constant(places, S, "int64"), power=power)


def melspectrogram(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_fft: int = 2048, hop_length: int | None = 512,
    win_length: int | None = None, window: Any = "hann", center: bool = True, pad_mode: str = "constant",
    power: float = 2.0, n_mels: int = 128, fmin: float = 0.0, fmax: float | None = None, htk: bool = False,
    norm: Any = "slaney",
) -> GPUArray:  # fmt: skip
    """Mel spectrogram of samples or of a spectrogram.

    Of samples the magnitudes are taken and summed in one kernel over the transform.

    Parameters
    ----------
    y : GPUArray, optional
        Samples.
    sr : float, optional
        Samples per second.
    S : GPUArray, optional
        In place of ``y``: a spectrogram to which filters are applied as it is.
    n_fft, hop_length, win_length, window, center, pad_mode
        As of `stft`.
    power : float, optional
        Of the magnitudes of ``y``: 1 for energy, 2 for power.
    n_mels, fmin, fmax, htk, norm
        As of `filters.mel`.

    Returns
    -------
    GPUArray
        (..., n_mels, frames).

    Raises
    ------
    ParameterError
        If neither ``y`` nor ``S`` is given, or a parameter is not what it is said to be.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.melspectrogram(y=gp.ones(1024, "float32"), sr=8000, n_fft=256, n_mels=20).shape
    (20, 3)
    """
    if S is None:
        if y is None:
            raise ParameterError("give samples y or a spectrogram S")
        power = number(power, "power")
        D = stft(y, n_fft=n_fft, hop_length=hop_length, win_length=win_length, window=window, center=center,
                 pad_mode=pad_mode)  # fmt: skip
        spectra = D if power in (1, 2) else gp.abs(D) ** power
        fused = int(power) if power in (1, 2) else 0
    else:
        spectra, fused = magnitudes(S), 0
        n_fft = 2 * (spectra.shape[-2] - 1) if n_fft // 2 + 1 != spectra.shape[-2] else n_fft
    weights = mel_weights(sr, int(n_fft), n_mels, fmin, fmax, htk, norm)
    return frames_first(mel_bands(frames_first(spectra), weights, fused))


def dct(x: Any, *, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> GPUArray:
    """Discrete cosine transform of type 1, 2 or 3 along an axis, as scipy.fft.dct defines it.

    Parameters
    ----------
    x : GPUArray
        float32 or float64.
    type : int, optional
        1, 2 or 3.
    n : int, optional
        Elements that are transformed: the axis is cut, or continued with zeros.
    axis : int, optional
        The last by default.
    norm : str, optional
        None (``"backward"``) or ``"ortho"``.

    Raises
    ------
    ParameterError
        If type or norm are others.

    Examples
    --------
    >>> dct(gp.asarray([1.0, 1.0]), norm="ortho").round(6).tolist()
    [1.414214, 0.0]
    """
    x = real_array(x, "x")
    if type not in (1, 2, 3) or norm not in (None, "backward", "ortho"):
        raise ParameterError(f"a cosine transform of type {type} and norm {norm!r}; use type 1, 2 or 3 and 'ortho'")
    moved = gp.moveaxis(x if n is None else fix_length(x, at_least(n, 1, "n"), axis), axis, -1)
    size, ortho = moved.shape[-1], norm == "ortho"
    if type == 1:
        made = _dct1(moved, size, ortho)
    else:
        made = _dct2(moved, size, ortho) if type == 2 else _dct3(moved, size, ortho)
    return gp.moveaxis(made, -1, axis)


def _dct1(x: GPUArray, n: int, ortho: bool) -> GPUArray:
    if n < 2:
        raise ParameterError("a cosine transform of type 1 needs at least 2 elements")
    ends, scale = np.ones(n), np.ones(n)
    if ortho:
        ends[[0, -1]], scale[[0, -1]] = np.sqrt(2), np.sqrt(0.5)
        scale *= np.sqrt(0.5 / (n - 1))
    x = x * constant(ends, x)
    mirrored = gp.concatenate([x, gp.flip(x[..., 1:-1], axis=-1)], axis=-1)
    return gp.fft.rfft(mirrored).real * constant(scale, x)


def _twists(n: int) -> Any:
    return np.exp(-0.5j * np.pi * np.arange(n) / n)


def _dct2(x: GPUArray, n: int, ortho: bool) -> GPUArray:
    # Even elements, then odd ones backwards: their transform turned by quarter steps is the result.
    order = np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])
    scale = np.full(n, np.sqrt(0.5 / n) if ortho else 1.0)
    scale[0] *= np.sqrt(0.5) if ortho else 1.0
    kind = "complex64" if x.dtype.name == "float32" else "complex128"
    spectrum = gp.fft.fft(gp.take(x, constant(order, x, "int64"), axis=-1))
    return (spectrum * constant(2 * _twists(n) * scale, x, kind)).real


def _dct3(x: GPUArray, n: int, ortho: bool) -> GPUArray:
    # Type 3 is type 2 turned round: the spectrum that a transform of the reordered elements would have had.
    scale = np.full(n, np.sqrt(2.0 * n) if ortho else 2.0 * n) * 0.5
    scale[0] *= np.sqrt(2.0) if ortho else 1.0
    kind = "complex64" if x.dtype.name == "float32" else "complex128"
    x = x * constant(scale, x)
    mirror = gp.concatenate([gp.zeros_like(x[..., :1]), gp.flip(x[..., 1:], axis=-1)], axis=-1)
    spectrum = (x - 1j * mirror).astype(kind) * constant(np.conj(_twists(n)), x, kind)
    y = gp.fft.ifft(spectrum).real
    order = np.empty(n, np.int64)
    order[np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])] = np.arange(n)
    return gp.take(y, constant(order, x, "int64"), axis=-1)


def mfcc(
    *, y: Any = None, sr: float = 22050, S: Any = None, n_mfcc: int = 20, dct_type: int = 2,
    norm: str | None = "ortho", lifter: float = 0, mel_norm: Any = "slaney", **kwargs: Any,
) -> GPUArray:  # fmt: skip
    """Mel-frequency cepstral coefficients.

    Parameters
    ----------
    y, sr
        Samples and their rate.
    S : GPUArray, optional
        In place of ``y``: a mel spectrogram in decibels.
    n_mfcc : int, optional
        Coefficients.
    dct_type, norm
        As of `dct`.
    lifter : float, optional
        Above 0, coefficient k is multiplied by ``1 + lifter / 2 * sin(pi (k + 1) / lifter)``.
    mel_norm
        Norm of the mel filters; others of their parameters by name, as of `melspectrogram`.

    Returns
    -------
    GPUArray
        (..., n_mfcc, frames).

    Raises
    ------
    ParameterError
        If lifter is negative.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.mfcc(y=gp.ones(1024, "float32"), sr=8000, n_fft=256, n_mels=20, n_mfcc=13).shape
    (13, 3)
    """
    if S is None:
        # Frames lie one after the other, and stay so.
        S = frames_first(power_to_db(frames_first(melspectrogram(y=y, sr=sr, norm=mel_norm, **kwargs))))
    elif kwargs:
        raise ParameterError(f"{', '.join(kwargs)} belong to a spectrogram of y, and S is given")
    S = magnitudes(S)
    M = dct(S, axis=-2, type=dct_type, norm=norm)[..., : at_least(n_mfcc, 1, "n_mfcc"), :]
    if not_negative(lifter, "lifter") == 0:
        return M
    lift = 1 + (lifter / 2) * np.sin(np.pi * np.arange(1, 1 + M.shape[-2]) / lifter)
    return M * constant(lift[:, None], M)


def _fit(width: int, at: Any, order: int, polyorder: int) -> Any:
    """Weights of ``width`` neighbours that give a derivative of the polynomial through them, at each of some places."""
    x = np.arange(width, dtype=np.float64)
    rows = []
    for place in np.atleast_1d(at):
        powers = (x - place)[:, None] ** np.arange(polyorder + 1)
        rows.append(np.linalg.pinv(powers)[order] * factorial(order))
    return np.array(rows)


def delta(
    data: Any, *, width: int = 9, order: int = 1, axis: int = -1, mode: str = "interp", polyorder: int | None = None
) -> GPUArray:
    """Local estimates of a derivative along an axis: Savitzky-Golay filters.

    Parameters
    ----------
    data : GPUArray
        Features.
    width : int, optional
        Neighbours, an odd number from 3.
    order : int, optional
        1 for the first derivative, 2 for the second.
    axis : int, optional
        The last by default.
    mode : str, optional
        ``"interp"`` fits polynomials at the ends; ``"nearest"``, ``"mirror"``, ``"constant"`` and ``"wrap"`` continue
        the data.
    polyorder : int, optional
        Order of the polynomials; that of the derivative by default.

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> delta(gp.asarray([0.0, 1.0, 4.0, 9.0, 16.0]), width=3).round(6).tolist()
    [2.0, 2.0, 4.0, 6.0, 6.0]
    """
    x = real_array(data, "data")
    n = x.shape[axis]
    if width < 3 or width % 2 != 1:
        raise ParameterError(f"width is {width}; it is odd and at least 3")
    order = at_least(order, 1, "order")
    degree = order if polyorder is None else at_least(polyorder, order, "polyorder")
    if degree >= width:
        raise ParameterError(f"polynomials of order {degree} need a width over {degree}, not {width}")
    if mode == "interp" and width > n:
        raise ParameterError(f"width {width} is over the {n} elements there are; use another mode")
    moved, half = gp.moveaxis(x, axis, -1), width // 2
    modes = {"nearest": "edge", "mirror": "reflect", "constant": "constant", "wrap": "wrap"}
    if mode != "interp" and mode not in modes:
        raise ParameterError(f"mode is '{mode}'; use interp, {', '.join(modes)}")
    if mode != "interp":
        moved = gp.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(half, half)], mode=modes[mode])
    weights = _fit(width, half, order, degree)[0]
    count = moved.shape[-1] - width + 1
    total = moved[..., :count] * float(weights[0])
    for j in range(1, width):
        total = total + moved[..., j : j + count] * float(weights[j])
    if mode == "interp":
        ends = [_ends(moved[..., :width], _fit(width, np.arange(half), order, degree)),
                _ends(moved[..., n - width :], _fit(width, np.arange(half + 1, width), order, degree))]  # fmt: skip
        total = gp.concatenate([ends[0], total, ends[1]], axis=-1)
    return gp.moveaxis(total.astype(x.dtype), -1, axis)


def _ends(x: GPUArray, weights: Any) -> GPUArray:
    return gp.sum(x[..., None, :] * constant(weights, x), axis=-1)


def stack_memory(data: Any, *, n_steps: int = 2, delay: int = 1) -> GPUArray:
    """Put earlier frames (with a negative delay later ones) under each frame; zeros before the first.

    Raises
    ------
    ParameterError
        If n_steps is under 1 or delay 0.

    Examples
    --------
    >>> stack_memory(gp.asarray([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]
    """
    x = gp.atleast_2d(real_array(data, "data"))
    n_steps = at_least(n_steps, 1, "n_steps")
    if delay == 0:
        raise ParameterError("delay is 0; it is another whole number")
    t, reach = x.shape[-1], (n_steps - 1) * abs(delay)
    padded = gp.pad(x, [(0, 0)] * (x.ndim - 1) + [(reach, 0) if delay > 0 else (0, reach)])
    starts = [reach - i * delay if delay > 0 else -i * delay for i in range(n_steps)]
    return gp.concatenate([padded[..., s : s + t] for s in starts], axis=-2)
