"""Per-channel energy normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, not_negative, positive, real_array
from pygpukit.audio.filtering import one_pole
from pygpukit.audio.onset import sliding_maximum
from pygpukit.audio.operators import gp
from pygpukit.errors import ParameterError

__all__ = ["pcen"]


def pcen(
    S: Any, *, sr: float = 22050, hop_length: int = 512, gain: float = 0.98, bias: float = 2, power: float = 0.5,
    time_constant: float = 0.400, eps: float = 1e-6, b: float | None = None, max_size: int = 1, ref: Any = None,
    axis: int = -1, max_axis: int | None = None, zi: Any = None, return_zf: bool = False,
) -> Any:  # fmt: skip
    """Per-channel energy normalisation: each bin over its own running mean, compressed.

    Parameters
    ----------
    S : GPUArray
        Magnitudes or powers.
    sr, hop_length
        Samples per second, and from frame to frame.
    gain, bias, power, eps : float, optional
        ``(S / (eps + M)**gain + bias)**power - bias**power`` with the running mean M.
    time_constant : float, optional
        Seconds of the running mean.
    b : float, optional
        In place of it: the weight of a new frame.
    max_size : int, optional
        The mean is of the largest of this many neighbouring bins.
    ref : GPUArray, optional
        What the mean is of, in place of ``S``.
    axis, max_axis : int, optional
        Of time, and of bins.
    zi : array, optional
        State of the running mean before the first frame; by default that after many frames of 1.
    return_zf : bool, optional
        Return the state at the end too.

    Raises
    ------
    ParameterError
        If a number is negative, or b is not from 0 to 1.

    Examples
    --------
    >>> pcen(gp.ones((2, 3), "float64"), b=0.5).round(3)[0].tolist()
    [0.318, 0.318, 0.318]
    """
    S = gp.abs(S) if isinstance(S, GPUArray) and S.dtype.kind == "c" else real_array(S, "S")
    power, gain, bias = not_negative(power, "power"), not_negative(gain, "gain"), not_negative(bias, "bias")
    eps, time_constant = positive(eps, "eps"), positive(time_constant, "time_constant")
    if b is None:
        frames = time_constant * sr / float(hop_length)
        b = (np.sqrt(1 + 4 * frames**2) - 1) / (2 * frames**2)
    if not 0 <= b <= 1:
        raise ParameterError(f"b is {b}; it is from 0 to 1")
    if ref is None:
        ref = S
        if at_least(max_size, 1, "max_size") > 1:
            if S.ndim < 2 or (max_axis is None and S.ndim != 2):
                raise ParameterError(f"of {S.ndim} axes max_axis has to be said")
            bins = (1 - axis) % 2 if max_axis is None else max_axis
            ref = gp.moveaxis(sliding_maximum(gp.moveaxis(S, bins, -2), max_size), -2, bins)
    moved = gp.moveaxis(ref, axis, -1)
    state = np.full(1, 1.0 - b) if zi is None else zi
    state = state.astype("float64") if isinstance(state, GPUArray) else constant(state, S, "float64")
    initial = gp.broadcast_to(state, (*moved.shape[:-1], 1)).contiguous()
    smooth, end = one_pole(moved, float(b), initial)
    smooth = gp.exp(-gain * (float(np.log(eps)) + gp.log1p(gp.moveaxis(smooth, -1, axis) / eps)))
    if power == 0:
        out = gp.log1p(S * smooth)
    elif bias == 0:
        out = gp.exp(power * (gp.log(S) + gp.log(smooth)))
    else:
        out = float(bias**power) * gp.expm1(power * gp.log1p(S * smooth / bias))
    return (out, end) if return_zf else out
