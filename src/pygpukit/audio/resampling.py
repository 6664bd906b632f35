"""Resampling by rational ratios with polyphase filters, and mixing down to one channel."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil, gcd, pi
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import constant, fix_length, positive, samples
from pygpukit.audio.operators import gp
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.filtering import resample as resample_operator

__all__ = ["Filter", "ratio_of", "resample", "resampling_filter", "to_mono"]

QUALITIES = {
    "soxr_vhq": (0.913, 175.0), "soxr_hq": (0.913, 125.0), "soxr_mq": (0.913, 100.0), "soxr_lq": (0.8, 100.0),
    "kaiser_best": (0.9475937167399596, None), "kaiser_fast": (0.85, None),
}  # fmt: skip
"""End of the passband in parts of the lower Nyquist frequency, and attenuation in decibels."""

_WIDTHS = {"kaiser_best": (64, 14.769656459379492), "kaiser_fast": (16, 8.555504641634386)}
_MOST_DENOMINATOR = 4096
_MOST_TAPS = 1 << 25


class Filter(NamedTuple):
    """A filter in phases.

    Attributes
    ----------
    up, down
        Ratio of the rates.
    phases
        float64 (up, taps) on the host.
    center
        Tap that belongs to output 0.
    """

    up: int
    down: int
    phases: Any
    center: int

    @property
    def taps(self) -> int:
        """Inputs under the filter."""
        return int(self.phases.shape[1])


def ratio_of(orig_sr: float, target_sr: float) -> tuple[int, int]:
    """Return factor and divisor; of rates that are no integers the nearest with a divisor up to 4096.

    Examples
    --------
    >>> ratio_of(44100, 48000)
    (160, 147)
    """
    a, b = positive(orig_sr, "orig_sr"), positive(target_sr, "target_sr")
    if a == int(a) and b == int(b):
        shared = gcd(int(a), int(b))
        return int(b) // shared, int(a) // shared
    found = Fraction(b / a).limit_denominator(_MOST_DENOMINATOR)
    return max(1, found.numerator), found.denominator


def _kaiser_sinc(half: int, cutoff: float, beta: float) -> Any:
    t = np.arange(-half, half + 1)
    return cutoff * np.sinc(cutoff * t) * np.kaiser(2 * half + 1, beta)


def _checked(half: int, up: int, down: int) -> int:
    if 2 * half + 1 > _MOST_TAPS:
        raise ParameterError(
            f"rates in the ratio {up}:{down} need a filter of {2 * half + 1} taps, and at most {_MOST_TAPS} "
            "are computed: resample in several steps, or to a rate with a simpler ratio"
        )
    return half


@lru_cache(maxsize=32)
def resampling_filter(up: int, down: int, res_type: str) -> Filter:
    """Return the filter of a ratio and a quality.

    Raises
    ------
    ParameterError
        If there is no such quality.
    """
    most = max(up, down)
    if res_type == "polyphase":
        # That of scipy.signal.resample_poly.
        half = _checked(10 * most, up, down)
        h = _kaiser_sinc(half, 1.0 / most, 5.0)
        h /= h.sum()
    elif res_type in _WIDTHS:
        zeros, beta = _WIDTHS[res_type]
        rolloff = QUALITIES[res_type][0]
        half = _checked(int(zeros * most / rolloff), up, down)
        h = _kaiser_sinc(half, rolloff / most, beta)
        h /= h.sum()
    elif res_type in QUALITIES:
        passed, attenuation = QUALITIES[res_type]
        assert attenuation is not None
        # Kaiser's formulas: the transition ends at the lower Nyquist frequency.
        half = _checked(ceil((attenuation - 7.95) / (2 * 2.285 * pi * (1 - passed)) * most), up, down)
        h = _kaiser_sinc(half, (1 + passed) / 2 / most, 0.1102 * (attenuation - 8.7))
        h /= h.sum()
    else:
        raise ParameterError(f"res_type is '{res_type}'; use polyphase, {', '.join(sorted(QUALITIES))}")
    taps = -(-len(h) // up)
    phases = np.zeros((taps, up))
    phases.ravel()[: len(h)] = h * up
    phases = np.ascontiguousarray(phases.T)
    phases.flags.writeable = False
    return Filter(up, down, phases, half)


def resample(
    y: Any, *, orig_sr: float, target_sr: float, res_type: str = "soxr_hq", fix: bool = True, scale: bool = False,
    axis: int = -1,
) -> GPUArray:  # fmt: skip
    """Change the rate of samples.

    Parameters
    ----------
    y : GPUArray
        Samples.
    orig_sr, target_sr : float
        Rates. Where they are no integers, the ratio is the nearest fraction with a divisor up to 4096.
    res_type : str, optional
        ``"soxr_vhq"``, ``"soxr_hq"`` (the default), ``"soxr_mq"``, ``"soxr_lq"``: linear-phase filters with the
        passband and the attenuation of SoX's; ``"kaiser_best"``, ``"kaiser_fast"``; ``"polyphase"``, the filter of
        scipy.signal.resample_poly.
    fix : bool, optional
        Taken for librosa's sake: the length is always the one it fixes, ``ceil(n * target_sr / orig_sr)``.
    scale : bool, optional
        Keep the energy, by a factor of the root of the ratio.
    axis : int, optional
        Of time.

    Returns
    -------
    GPUArray
        Samples at the new rate.

    Raises
    ------
    ParameterError
        If a rate is not above 0, or there is no such quality.

    Examples
    --------
    >>> resample(gp.ones(8, "float32"), orig_sr=2, target_sr=1).shape
    (4,)
    """
    y = samples(y)
    ratio = positive(target_sr, "target_sr") / positive(orig_sr, "orig_sr")
    if orig_sr == target_sr:
        return y
    up, down = ratio_of(orig_sr, target_sr)
    filter_ = resampling_filter(up, down, res_type)
    last = axis in (-1, y.ndim - 1)
    moved = y if last else gp.moveaxis(y, axis, -1)
    n = moved.shape[-1]
    phases = filter_.phases / np.sqrt(ratio) if scale else filter_.phases
    made = resample_operator(moved, constant(phases, y), up=up, down=down, center=filter_.center,
                             length=-(-n * up // down))  # fmt: skip
    made = fix_length(made, ceil(n * ratio))
    return made if last else gp.moveaxis(made, -1, axis)


def to_mono(y: Any) -> GPUArray:
    """Average channels: (..., channels, n) becomes (n,).

    Examples
    --------
    >>> to_mono(gp.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [2.0, 3.0]
    """
    y = samples(y)
    return gp.mean(y, axis=tuple(range(y.ndim - 1))) if y.ndim > 1 else y
