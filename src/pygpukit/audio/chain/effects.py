"""The effects of a chain: parameters, checks, and what host and device need to compute them.

Each effect works on blocks of float32 samples in place. What `Effect.values` returns moves linearly over a block when
it changes; everything else of an effect is fixed while a chain runs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, cos, isfinite, pi, sin
from typing import Any, ClassVar

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import positive, whole_number
from pygpukit.audio.windows import padded_window
from pygpukit.errors import ParameterError

__all__ = [
    "Compressor", "Convolve", "Effect", "Equalizer", "Gate", "Highpass", "Limiter", "Plan", "SpectralGate", "between",
    "factor", "linear",
]  # fmt: skip

_MOST_TAPS = 1 << 21


def between(value: Any, low: float, high: float, what: str) -> float:
    """Return a number of a range.

    Raises
    ------
    ParameterError
        If it is none, or outside of it; NaN is.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ParameterError(f"{what} is {value!r}; it is a number from {low:g} to {high:g}") from None
    if not low <= number <= high:
        raise ParameterError(f"{what} is {value!r}; it is a number from {low:g} to {high:g}")
    return number


def linear(decibels: float) -> float:
    """Return the amplitude of a level in decibels."""
    return float(10.0 ** (decibels / 20.0))


def factor(seconds: float, rate: float) -> float:
    """Return what is kept of a level from sample to sample with a time constant; 0 for at once."""
    return float(np.exp(-1.0 / (rate * seconds))) if seconds > 0 else 0.0


@dataclass(frozen=True)
class Plan:
    """What an effect needs in a chain of a rate, a number of channels and a length of blocks.

    Attributes
    ----------
    function
        Name of the function of ``kernels/audio/chain.cuh``.
    sizes
        Its compile-time integers.
    tables
        float32 constants, in one row.
    wide, narrow
        Numbers of float64 and of float32 that it keeps from block to block; zeros at first.
    scratch
        float32 numbers that it needs during a block.
    """

    function: str
    sizes: tuple[int, ...] = ()
    tables: Any = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    wide: int = 0
    narrow: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class Effect:
    """What all effects share."""

    _fixed: ClassVar[tuple[str, ...]] = ()

    def values(self, rate: float) -> tuple[float, ...]:
        """Return the numbers that may change while a chain runs."""
        del rate
        return ()

    def latency(self, rate: float) -> int:
        """Return by how many samples the result lies behind."""
        del rate
        return 0

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """Return what the effect needs.

        Raises
        ------
        ParameterError
            If it cannot be computed at this rate, or for so many channels.
        """
        del rate, channels, block
        return Plan("")

    def changed(self, **parameters: Any) -> Any:
        """Return a copy of the effect with these parameters changed; some are fixed while a chain runs.

        Raises
        ------
        ParameterError
            If there is no such parameter, or it is fixed.
        """
        names = [field.name for field in dataclasses.fields(self)]
        free = [name for name in names if name not in self._fixed]
        for name in parameters:
            if name not in free:
                why = "is fixed while a chain runs: make another chain" if name in names else "does not exist"
                known = ", ".join(free) or "none"
                raise ParameterError(f"{name} of {type(self).__name__} {why}; what may change: {known}")
        return dataclasses.replace(self, **parameters)

    def _check(self, name: str, low: float, high: float) -> None:
        object.__setattr__(self, name, between(getattr(self, name), low, high, name))


@dataclass(frozen=True)
class Highpass(Effect):
    """Let through what is above a frequency: a Butterworth filter.

    Parameters
    ----------
    cutoff : float
        Hertz, where it is 3 dB down.
    order : int, optional
        2, 4, 6 or 8: 12 dB per octave for each 2.

    Examples
    --------
    >>> Highpass(80).cutoff
    80.0
    """

    cutoff: float
    order: int = 2
    _fixed = ("order",)

    def __post_init__(self) -> None:
        self._check("cutoff", 1e-3, 1e6)
        if whole_number(self.order, "order") not in (2, 4, 6, 8):
            raise ParameterError(f"order is {self.order}; it is 2, 4, 6 or 8")

    def values(self, rate: float) -> tuple[float, ...]:
        """b0, b1, b2, a1, a2 of each section."""
        if not self.cutoff < rate / 2:
            raise ParameterError(
                f"cutoff is {self.cutoff:g} Hz; at {rate:g} samples per second it is below {rate / 2:g}"
            )
        w, found = 2 * pi * self.cutoff / rate, []
        for k in range(self.order // 2):
            quality = 1 / (2 * cos(pi * (2 * k + 1) / (2 * self.order)))
            alpha = sin(w) / (2 * quality)
            b, a0 = (1 + cos(w)) / 2, 1 + alpha
            found += [b / a0, -2 * b / a0, b / a0, -2 * cos(w) / a0, (1 - alpha) / a0]
        return tuple(found)

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """Two numbers of state for each section."""
        self.values(rate)
        sections = self.order // 2
        return Plan("highpass", (sections,), wide=2 * sections * channels)


@dataclass(frozen=True)
class Gate(Effect):
    """Turn down what is quieter than a threshold, as `gate`.

    Parameters
    ----------
    threshold : float, optional
        Decibels below full scale.
    attack, release : float, optional
        Time constants in seconds with which it opens and closes.
    range : float, optional
        Decibels by which a closed gate turns down, negative.

    Examples
    --------
    >>> Gate(-40).changed(threshold=-30).threshold
    -30.0
    """

    threshold: float = -50.0
    attack: float = 0.001
    release: float = 0.1
    range: float = -80.0

    def __post_init__(self) -> None:
        self._check("threshold", -200, 200)
        self._check("attack", 0, 60)
        self._check("release", 0, 60)
        if not self.range < 0:
            raise ParameterError(f"range is {self.range}; it is negative")
        self._check("range", -300, 0)

    def values(self, rate: float) -> tuple[float, ...]:
        """Threshold as an amplitude, decibels of the closed gate, factors, and that of its meter (10 ms)."""
        return (
            linear(self.threshold), self.range, factor(self.attack, rate), factor(self.release, rate),
            factor(0.01, rate),
        )  # fmt: skip

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """A meter and how far the gate is open."""
        return Plan("gate", wide=2 * channels, scratch=2 * channels * block)


@dataclass(frozen=True)
class Compressor(Effect):
    """Turn loud parts down, as `compressor`.

    Parameters
    ----------
    threshold : float, optional
        Decibels below full scale.
    ratio : float, optional
        Above the threshold the level rises by one decibel for so many, at least 1.
    attack, release : float, optional
        Time constants in seconds with which it turns down, and up again.
    knee : float, optional
        Decibels around the threshold over which the ratio sets in.
    makeup : float, optional
        Decibels added at the end.

    Examples
    --------
    >>> Compressor(-18, ratio=3).ratio
    3.0
    """

    threshold: float = -20.0
    ratio: float = 4.0
    attack: float = 0.005
    release: float = 0.1
    knee: float = 6.0
    makeup: float = 0.0

    def __post_init__(self) -> None:
        self._check("threshold", -200, 200)
        self._check("ratio", 1, float("inf"))
        self._check("attack", 0, 60)
        self._check("release", 0, 60)
        self._check("knee", 0, 200)
        self._check("makeup", -120, 120)

    def values(self, rate: float) -> tuple[float, ...]:
        """Threshold, slope above it, knee, decibels added, factors."""
        slope = 1.0 - 1.0 / self.ratio
        return (
            self.threshold, slope, self.knee, self.makeup, factor(self.attack, rate), factor(self.release, rate)
        )  # fmt: skip

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """By how much each channel is turned down."""
        return Plan("compressor", wide=channels, scratch=2 * channels * block)


@dataclass(frozen=True)
class Limiter(Effect):
    """Keep samples under a ceiling, as `limiter`, but late by the look-ahead.

    Parameters
    ----------
    ceiling : float, optional
        Decibels below full scale that no sample is over.
    lookahead : float, optional
        Seconds over which the gain goes down before a peak, at most 0.1; the result is late by that.
    release : float, optional
        Time constant in seconds with which it goes up.

    Examples
    --------
    >>> Limiter(-1.0).latency(48000)
    240
    """

    ceiling: float = -1.0
    lookahead: float = 0.005
    release: float = 0.05
    _fixed = ("lookahead",)

    def __post_init__(self) -> None:
        self._check("ceiling", -200, 200)
        self._check("lookahead", 0, 0.1)
        self._check("release", 0, 60)

    def latency(self, rate: float) -> int:
        """The look-ahead in samples."""
        return ceil(self.lookahead * rate)

    def values(self, rate: float) -> tuple[float, ...]:
        """Ceiling in decibels, and factor."""
        return (self.ceiling, factor(self.release, rate))

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """Needs, what is held of them, and samples, over the look-ahead and a block."""
        ahead = self.latency(rate)
        if ahead > 19200:
            raise ParameterError(f"lookahead is {self.lookahead} s, {ahead} samples; 19200 are computed")
        size = (ahead + block) * channels
        return Plan("limiter", (ahead,), wide=2 * size + channels, narrow=size, scratch=2 * channels * block)


def _response(ir: Any) -> Any:
    values = np.asarray(ir.to_numpy() if isinstance(ir, GPUArray) else ir)
    if values.dtype.kind not in "fiu" or values.ndim not in (1, 2) or not values.size:
        raise ParameterError(
            f"ir has shape {values.shape} and type {values.dtype}; it is (n,) or (channels, n) of real numbers"
        )
    if values.shape[-1] > _MOST_TAPS:
        raise ParameterError(f"ir has {values.shape[-1]} samples; {_MOST_TAPS} are the most")
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.abs(values).sum(-1).max() > 1e6:
        raise ParameterError("ir has samples that are not finite, or a sum of magnitudes above 1e6")
    values.flags.writeable = False
    return values


def transform_size(block: int) -> int:
    """Return the length of the transforms of a convolution in blocks: a power of two that holds two of them."""
    return max(16, 1 << (2 * block - 1).bit_length())


def roots(size: int) -> Any:
    """Return exp(-2 pi i k / size) for half a turn, as float32 pairs."""
    angles = -2 * np.pi * np.arange(size // 2) / size
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32).reshape(-1)


@dataclass(frozen=True, eq=False)
class Convolve(Effect):
    """Convolve with a response, of a room for example: ``dry`` times the samples and ``wet`` times the convolution.

    The response is divided into parts of a block's length, so that nothing is late.

    Parameters
    ----------
    ir : array
        (n,) for all channels, or (channels, n).
    wet, dry : float, optional
        Parts of the sum, -16 to 16.

    Examples
    --------
    >>> Convolve([1.0, 0.5], wet=0.25, dry=0.75).wet
    0.25
    """

    ir: Any
    wet: float = 1.0
    dry: float = 0.0
    _fixed = ("ir",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ir", _response(self.ir))
        self._check("wet", -16, 16)
        self._check("dry", -16, 16)

    def values(self, rate: float) -> tuple[float, ...]:
        """Wet and dry."""
        return (self.wet, self.dry)

    def spectra(self, channels: int, block: int) -> Any:
        """Return spectra of the response's parts, complex64 (parts, 1 or channels, bins).

        Raises
        ------
        ParameterError
            If the response has another number of channels.
        """
        rows = np.atleast_2d(self.ir)
        if rows.shape[0] not in (1, channels):
            raise ParameterError(f"ir has {rows.shape[0]} channels and the chain {channels}")
        parts = -(-rows.shape[1] // block)
        padded = np.zeros((rows.shape[0], parts * block))
        padded[:, : rows.shape[1]] = rows
        made = np.fft.rfft(padded.reshape(rows.shape[0], parts, block), transform_size(block))
        return np.ascontiguousarray(np.swapaxes(made, 0, 1)).astype(np.complex64)

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """Roots of unity and the response's spectra; the last samples and their spectra, one for each part."""
        spectra, size = self.spectra(channels, block), transform_size(block)
        parts, rows, bins = spectra.shape[0], spectra.shape[1], size // 2
        # Those of frequency 0 and of the highest one are real: one pair holds both.
        packed = spectra[..., :-1].copy()
        packed.imag[..., 0] = spectra[..., -1].real
        # Threads add up several runs of parts for each bin, and then the runs in order.
        runs = max(1, min(8, parts, 512 // (channels * bins)))
        return Plan(
            "convolve", (size, parts, rows, runs), np.concatenate([roots(size), packed.view(np.float32).reshape(-1)]),
            narrow=channels * size + 2 * parts * channels * bins,
            scratch=2 * channels * (size + max(size, runs * bins)),
        )  # fmt: skip


@dataclass(frozen=True)
class _Spectral(Effect):
    """Effects on a Fourier transform of short frames: windowed, changed, transformed back and added up."""

    n_fft: int = dataclasses.field(default=512, kw_only=True)
    hop_length: int | None = dataclasses.field(default=None, kw_only=True)
    _fixed: ClassVar[tuple[str, ...]] = ("n_fft", "hop_length")

    def __post_init__(self) -> None:
        n = whole_number(self.n_fft, "n_fft")
        if not 16 <= n <= 8192 or n & (n - 1):
            raise ParameterError(f"n_fft is {n}; in a chain it is a power of two from 16 to 8192")
        hop = n // 4 if self.hop_length is None else whole_number(self.hop_length, "hop_length")
        if not 1 <= hop <= n // 2:
            raise ParameterError(f"hop_length is {hop}; with n_fft={n} it is from 1 to {n // 2}")
        object.__setattr__(self, "hop_length", hop)

    @property
    def hop(self) -> int:
        """Samples between frames."""
        assert self.hop_length is not None
        return self.hop_length

    def latency(self, rate: float) -> int:
        """A frame but one sample."""
        return self.n_fft - 1

    def window(self) -> tuple[Any, Any]:
        """Return the window, and the sum of its squares over frames, for the samples of a hop; float32."""
        w = padded_window("hann", self.n_fft, self.n_fft).astype(np.float32)
        total = np.zeros(self.hop)
        np.add.at(total, np.arange(self.n_fft) % self.hop, w.astype(np.float64) ** 2)
        # Frames begin at multiples of the hop less a frame.
        total = np.roll(total, -self.n_fft % self.hop)
        return w, total.astype(np.float32)

    def bins(self, rate: float) -> Any:
        """Return a factor for each bin, float32."""
        del rate
        return np.ones(self.n_fft // 2 + 1, np.float32)

    def _planned(self, rate: float, channels: int, block: int, gates: bool) -> Plan:
        n, bins = self.n_fft, self.n_fft // 2 + 1
        ring = 1 << (n + block - 1).bit_length()
        tables = np.concatenate([roots(n), *self.window(), self.bins(rate)])
        return Plan(
            "spectral", (n, self.hop, ring, int(gates)), tables, wide=channels * bins * int(gates),
            narrow=2 * channels * ring, scratch=4 * channels * n,
        )  # fmt: skip


@dataclass(frozen=True)
class SpectralGate(_Spectral):
    """Turn down each frequency where it is quieter than a threshold: it takes steady noise out.

    Parameters
    ----------
    threshold : float, optional
        Decibels of a tone below full scale.
    range : float, optional
        Decibels by which a closed bin is turned down, negative.
    attack, release : float, optional
        Time constants in seconds with which a bin opens and closes.
    n_fft : int, optional
        Samples of a frame, a power of two; the result is late by one less.
    hop_length : int, optional
        Samples between frames, a quarter of a frame by default.

    Examples
    --------
    >>> SpectralGate(-60, n_fft=256).latency(48000)
    255
    """

    threshold: float = -60.0
    range: float = -24.0
    attack: float = 0.0
    release: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", -200, 200)
        if not self.range < 0:
            raise ParameterError(f"range is {self.range}; it is negative")
        self._check("range", -300, 0)
        self._check("attack", 0, 60)
        self._check("release", 0, 60)

    def values(self, rate: float) -> tuple[float, ...]:
        """Threshold of a bin's magnitude, decibels of a closed bin, factors from frame to frame."""
        frames = rate / self.hop
        scale = float(self.window()[0].astype(np.float64).sum()) / 2
        return (
            linear(self.threshold) * scale, self.range, factor(self.attack, frames), factor(self.release, frames)
        )  # fmt: skip

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """How far each bin is open, the last samples, and sums of frames."""
        return self._planned(rate, channels, block, True)


@dataclass(frozen=True, eq=False)
class Equalizer(_Spectral):
    """Raise and lower frequencies by a curve, without change of phase.

    Parameters
    ----------
    bands : sequence of (float, float)
        Frequencies in hertz, ascending, with decibels; between them the curve is straight over the logarithm of
        frequency, and beyond them level.
    n_fft, hop_length
        As of `SpectralGate`.

    Examples
    --------
    >>> Equalizer([(200, 0), (3000, 6)]).latency(48000)
    511
    """

    bands: Any
    _fixed = ("bands", "n_fft", "hop_length")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            bands = tuple((positive(f, "a frequency"), between(g, -120, 60, "a band's level")) for f, g in self.bands)
        except (TypeError, ValueError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"bands is {self.bands!r}; it is a list of (hertz, decibels)") from None
        if not bands or any(b[0] <= a[0] for a, b in pairwise(bands)):
            raise ParameterError(f"bands is {self.bands!r}; frequencies ascend, and there is one at least")
        object.__setattr__(self, "bands", bands)

    def bins(self, rate: float) -> Any:
        """The curve at each bin."""
        at = np.maximum(np.arange(self.n_fft // 2 + 1) * rate / self.n_fft, 1e-3)
        frequencies, levels = np.transpose(self.bands)
        return (10 ** (np.interp(np.log(at), np.log(frequencies), levels) / 20)).astype(np.float32)

    def plan(self, rate: float, channels: int, block: int) -> Plan:
        """The last samples, and sums of frames."""
        return self._planned(rate, channels, block, False)


def checked_rate(rate: Any) -> float:
    """Return a rate that a chain computes.

    Raises
    ------
    ParameterError
        If it is another.
    """
    number = between(rate, 1000, 1_000_000, "rate")
    assert isfinite(number)
    return number
