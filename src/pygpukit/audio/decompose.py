"""Decomposition of spectrograms: harmonic and percussive parts by median filters."""

from __future__ import annotations

from numbers import Real
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, magnitudes, number, tiny
from pygpukit.audio.operators import gp
from pygpukit.audio.spectrum import magphase
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.spectra import median

__all__ = ["hpss", "softmask"]


def softmask(X: Any, X_ref: Any, *, power: float = 1, split_zeros: bool = False) -> GPUArray:
    """Part of each element in a sum of powers: ``X**p / (X**p + X_ref**p)``.

    Where both are 0 it is 0, or 1/2 with ``split_zeros``. An infinite power gives booleans, ``X > X_ref``.

    Raises
    ------
    ParameterError
        If the shapes differ, or power is not above 0.

    Examples
    --------
    >>> softmask(gp.asarray([1.0, 0.0]), gp.asarray([3.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    if X.shape != X_ref.shape:
        raise ParameterError(f"X has shape {X.shape} and X_ref {X_ref.shape}; they are equal")
    if not isinstance(power, Real) or not power > 0:
        raise ParameterError(f"power is {power!r}; it is above 0")
    if power == float("inf"):
        return X_ref < X
    Z = gp.maximum(X, X_ref)
    empty = tiny(X) > Z
    Z = gp.where(empty, gp.ones_like(Z), Z)
    a, b = X / Z, X_ref / Z
    a, b = (a * a, b * b) if power == 2 else (a**power, b**power)
    return gp.where(empty, gp.full(X.shape, 0.5 if split_zeros else 0.0, X.dtype, device=X.device), a / (a + b))


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, value)


def hpss(
    S: Any, *, kernel_size: Any = 31, power: float = 2.0, mask: bool = False, margin: Any = 1.0
) -> tuple[GPUArray, GPUArray]:
    """Separate a spectrogram into harmonic and percussive parts.

    Medians over frames keep what lasts, medians over bins what is broad; each part is what the other is not.

    Parameters
    ----------
    S : GPUArray
        Magnitudes or complex, (..., bins, frames).
    kernel_size : int or tuple, optional
        Frames, and bins, of the medians.
    power : float, optional
        Of the masks.
    mask : bool, optional
        Return the masks.
    margin : float or tuple, optional
        How many times the other part a part must be; above 1 there is a rest.

    Returns
    -------
    tuple
        Two arrays like ``S``.

    Raises
    ------
    ParameterError
        If a margin is under 1.

    Examples
    --------
    >>> h, p = hpss(gp.ones((9, 9)), kernel_size=3)
    >>> h[0, 0].item(), p[0, 0].item()
    (0.5, 0.5)
    """
    phase = None
    if isinstance(S, GPUArray) and S.dtype.kind == "c":
        S, phase = magphase(S)
    S = magnitudes(S)
    across, along = (at_least(k, 1, "kernel_size") for k in _pair(kernel_size))
    first, second = (number(m, "margin", "it is at least 1") for m in _pair(margin))
    if not (first >= 1 and second >= 1):
        raise ParameterError(f"margin is {margin}; it is at least 1")
    harmonic, percussive = median(S, size=across, axis=-1), median(S, size=along, axis=-2)
    split = first == 1 and second == 1
    masks = (softmask(harmonic, percussive * first, power=power, split_zeros=split),
             softmask(percussive, harmonic * second, power=power, split_zeros=split))  # fmt: skip
    if mask:
        return masks
    parts = [S * m.astype(S.dtype) for m in masks]
    return (parts[0], parts[1]) if phase is None else (parts[0] * phase, parts[1] * phase)
