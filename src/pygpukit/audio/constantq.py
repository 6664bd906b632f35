"""Constant-Q and variable-Q transforms: an octave at a time, the samples halved in rate between octaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from math import ceil, log2
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import at_least, constant, each_item, fix_length, frames_first, positive, samples
from pygpukit.audio.convert import cqt_frequencies
from pygpukit.audio.filters import relative_bandwidth, wavelet, wavelet_lengths
from pygpukit.audio.operators import gp
from pygpukit.audio.pitch import estimate_tuning
from pygpukit.audio.resampling import resample, resampling_filter
from pygpukit.audio.spectrum import centered, istft, stft
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.filtering import resample as resample_operator

__all__ = ["cqt", "hybrid_cqt", "icqt", "pseudo_cqt", "vqt"]

_Transform = TypeVar("_Transform", bound=Callable[..., GPUArray])

C1 = 440.0 * 2.0 ** ((24 - 69.0) / 12.0)


def _alpha(frequencies: Any, bins_per_octave: int) -> Any:
    if len(frequencies) > 1:
        return relative_bandwidth(frequencies)
    r = 2 ** (1 / bins_per_octave)
    return np.atleast_1d((r**2 - 1) / (r**2 + 1))


@lru_cache(maxsize=64)
def _basis(sr: float, freqs: tuple[float, ...], filter_scale: float, norm: Any, sparsity: float,
           hop_length: int | None, window: Any, gamma: Any, alpha: tuple[float, ...]) -> tuple[Any, int]:  # fmt: skip
    """Spectra of the wavelets, complex64 (bins, 1 + n_fft // 2), the smallest of each row left out, and n_fft."""
    waves, lengths = wavelet(freqs=np.array(freqs), sr=sr, filter_scale=filter_scale, norm=norm, pad_fft=True,
                             window=window, gamma=gamma, alpha=np.array(alpha))  # fmt: skip
    n_fft = waves.shape[1]
    if hop_length is not None:
        n_fft = max(n_fft, int(2.0 ** (1 + ceil(log2(hop_length)))))
    waves *= (lengths[:, None] / float(n_fft)).astype(np.float64)
    basis = np.fft.fft(waves, n=n_fft, axis=1)[:, : n_fft // 2 + 1].astype(np.complex64)
    if not 0.0 <= sparsity < 1:
        raise ParameterError(f"sparsity is {sparsity}; it is from 0 to under 1")
    size = np.abs(basis)
    ordered = np.sort(size, axis=1)
    small = np.argmin(np.cumsum(ordered / size.sum(axis=1, keepdims=True), axis=1) < sparsity, axis=1)
    basis[size < np.take_along_axis(ordered, small[:, None], axis=1)] = 0
    basis.flags.writeable = False
    return basis, n_fft


def _octave_basis(sr: float, freqs: Any, alpha: Any, filter_scale: float, norm: Any, sparsity: float, window: Any,
                  gamma: Any = 0.0, hop_length: int | None = None) -> tuple[Any, int]:  # fmt: skip
    key = window if isinstance(window, str | tuple | float) else None
    arguments = (float(sr), tuple(freqs), float(filter_scale), norm, float(sparsity), hop_length, window, gamma,
                 tuple(alpha))  # fmt: skip
    return _basis(*arguments) if key is not None else _basis.__wrapped__(*arguments)


class _Octave(NamedTuple):
    """The spectra of an octave's wavelets with all factors, n_fft, the hop, and whether the rate is halved before."""

    basis: Any
    n_fft: int
    hop: int
    halved: bool


@lru_cache(maxsize=16)
def _planned(
    sr: float, hop: int, low: float, n_bins: int, per_octave: int, intervals: Any, gamma: float | None,
    filter_scale: float, norm: Any, sparsity: float, window: Any, scale: bool,
) -> tuple[int, tuple[_Octave, ...]]:  # fmt: skip
    """Return by what the rate is divided first, and the octaves from the top."""
    octaves, count = ceil(n_bins / per_octave), min(per_octave, n_bins)
    freqs = _frequencies(n_bins, low, per_octave, intervals)
    alpha = _alpha(freqs, per_octave)
    options: dict[str, Any] = {"window": window, "filter_scale": filter_scale, "gamma": gamma, "alpha": alpha}
    _, cutoff = wavelet_lengths(freqs=freqs, sr=sr, **options)
    nyquist = sr / 2.0
    if cutoff > nyquist:
        raise ParameterError(
            f"the highest wavelet, at {freqs[-1]:.1f} Hz, reaches {cutoff:.1f} Hz, over half the rate, {nyquist}: use "
            "fewer bins"
        )
    # Where all wavelets are far under half the rate, the rate is lowered first.
    early = 2 ** max(0, min(max(0, ceil(log2(nyquist / cutoff)) - 2), max(0, _halvings(hop) - octaves + 1)))
    rate, hop, halved, made = sr / early, hop // early, False, []
    whole_rate = rate
    factors = np.ones(n_bins)
    if scale:
        factors /= np.sqrt(wavelet_lengths(freqs=freqs, sr=whole_rate, **options)[0])
    for i in range(octaves):
        part = slice(-count, None) if i == 0 else slice(-count * (i + 1), -count * i)
        basis, n_fft = _octave_basis(rate, freqs[part], alpha[part], filter_scale, norm, sparsity, window, gamma)
        scaled = (basis * (factors[part, None] * np.sqrt(whole_rate / rate))).astype(np.complex64)
        scaled.flags.writeable = False
        made.append(_Octave(scaled, n_fft, hop, halved))
        halved = hop % 2 == 0
        if halved:
            hop, rate = hop // 2, rate / 2.0
    return early, tuple(made)


@lru_cache(maxsize=8)
def _halving(res_type: str) -> tuple[Any, int]:
    """Return the filter that halves a rate and keeps the energy, (1, taps), and its tap of output 0."""
    filter_ = resampling_filter(1, 2, res_type)
    phases = filter_.phases * np.sqrt(2.0)
    phases.flags.writeable = False
    return phases, filter_.center


def _halved(y: GPUArray, phases: GPUArray, center: int, edge: int) -> tuple[GPUArray, GPUArray]:
    """Return samples at half the rate, written between zeros, and these with ``edge`` zeros on both sides."""
    length = -(-y.shape[-1] // 2)
    padded = gp.zeros((*y.shape[:-1], length + 2 * edge), y.dtype.name, device=y.device)
    inner = padded[..., edge : edge + length]
    resample_operator(y, phases, up=1, down=2, center=center, length=length, out=inner)
    return inner, padded


def _stack(parts: list[GPUArray], n_bins: int) -> GPUArray:
    """Join octaves, the highest first in the list, to rows from low to high."""
    frames = min(part.shape[-1] for part in parts)
    joined = gp.concatenate([part[..., :frames] for part in reversed(parts)], axis=-2)
    return joined[..., joined.shape[-2] - n_bins :, :]


def _tuned(y: GPUArray, tuning: float | None, sr: float, bins_per_octave: int) -> float:
    return estimate_tuning(y=y, sr=sr, bins_per_octave=bins_per_octave) if tuning is None else float(tuning)


def _each_with_its_tuning(function: _Transform) -> _Transform:
    """Give each item of a batch a tuning of its own where one is to be estimated."""

    @wraps(function)
    def transform(y: Any, **options: Any) -> GPUArray:
        y = samples(y)
        if options.get("tuning", 0.0) is None and y.ndim > 1:
            return each_item(y, lambda item: function(item, **options), 1)
        return function(y, **options)

    return cast(_Transform, transform)


class _Wavelets(NamedTuple):
    """Lowest frequency, all of them, their bandwidths, and the wavelets' lengths in samples."""

    low: float
    freqs: Any
    alpha: Any
    lengths: Any


def _wavelets(
    fmin: float | None, n_bins: Any, bins_per_octave: int, tuning: float, sr: float, window: Any, filter_scale: float
) -> _Wavelets:
    """Return the wavelets of a constant-Q transform on the host."""
    low = _lowest(fmin, tuning, bins_per_octave)
    freqs = cqt_frequencies(at_least(n_bins, 1, "n_bins"), fmin=low, bins_per_octave=bins_per_octave)
    alpha = _alpha(freqs, bins_per_octave)
    lengths, _ = wavelet_lengths(freqs=freqs, sr=sr, window=window, filter_scale=filter_scale, alpha=alpha)
    return _Wavelets(low, freqs, alpha, lengths)


def _lowest(fmin: float | None, tuning: float, bins_per_octave: int) -> float:
    low: float = (C1 if fmin is None else positive(fmin, "fmin")) * 2.0 ** (tuning / bins_per_octave)
    return low


def _frequencies(n_bins: int, fmin: float, bins_per_octave: int, intervals: Any) -> Any:
    if isinstance(intervals, str):
        if intervals != "equal":
            raise ParameterError(f"intervals is '{intervals}'; it is 'equal', or a list of ratios in an octave")
        return cqt_frequencies(n_bins, fmin=fmin, bins_per_octave=bins_per_octave)
    octaves = 2.0 ** np.arange(ceil(n_bins / len(intervals)))
    return np.sort(np.multiply.outer(octaves, np.asarray(intervals, np.float64)).reshape(-1)[:n_bins]) * fmin


def _halvings(hop: int) -> int:
    return (hop & -hop).bit_length() - 1


@_each_with_its_tuning
def vqt(
    y: Any, *, sr: float = 22050, hop_length: int = 512, fmin: float | None = None, n_bins: int = 84,
    intervals: Any = "equal", gamma: float | None = None, bins_per_octave: int = 12, tuning: float | None = 0.0,
    filter_scale: float = 1, norm: Any = 1, sparsity: float = 0.01, window: Any = "hann", scale: bool = True,
    pad_mode: str = "constant", res_type: str = "soxr_hq",
) -> GPUArray:  # fmt: skip
    """Variable-Q transform: (..., n_bins, frames).

    Parameters
    ----------
    y, sr
        Samples and their rate.
    hop_length : int, optional
        Samples from frame to frame.
    fmin : float, optional
        Lowest frequency; that of C1, 32.7 Hz, by default.
    n_bins : int, optional
        Frequencies.
    intervals : optional
        ``"equal"``, or the ratios within an octave.
    gamma : float, optional
        Bandwidth that is added to all, in Hz; 0 for a constant Q, by default that of human hearing.
    bins_per_octave : int, optional
        Frequencies per octave.
    tuning : float, optional
        Deviation in fractions of a bin; None to estimate it, for each item of a batch, on the host.
    filter_scale : float, optional
        Factor of the wavelets' lengths.
    norm : optional
        Order of the wavelets' norm.
    sparsity : float, optional
        Part of each wavelet's spectrum that is left out, the smallest values.
    window, pad_mode
        As of `stft`.
    scale : bool, optional
        Divide by the root of the wavelets' lengths.
    res_type : str, optional
        How samples are halved in rate, as of `resample`.

    Returns
    -------
    GPUArray
        complex64, of float64 complex128.

    Raises
    ------
    ParameterError
        If a wavelet reaches over half the rate, or another parameter is not what it is said to be.

    Examples
    --------
    >>> vqt(gp.ones(22050, "float32"), n_bins=24, fmin=400.0).shape
    (24, 44)
    """
    hop, n_bins = at_least(hop_length, 1, "hop_length"), at_least(n_bins, 1, "n_bins")
    if not isinstance(intervals, str):
        intervals = tuple(intervals)
    per_octave = at_least(bins_per_octave, 1, "bins_per_octave") if isinstance(intervals, str) else len(intervals)
    low = _lowest(fmin, _tuned(y, tuning, sr, per_octave), per_octave)
    plan = _planned if isinstance(window, str | tuple | float) else _planned.__wrapped__
    early, octaves = plan(
        positive(sr, "sr"), hop, low, n_bins, per_octave, intervals, gamma, filter_scale, norm, sparsity, window,
        bool(scale),
    )  # fmt: skip
    if early > 1:
        if y.shape[-1] < early:
            raise ParameterError(f"{y.shape[-1]} samples are too few for {len(octaves)} octaves")
        y = resample(y, orig_sr=early, target_sr=1, res_type=res_type, scale=True)
        if not scale:
            y = y * float(np.sqrt(early))
    kind = "complex64" if y.dtype.name == "float32" else "complex128"
    shapes, parts, phases, padded = {octave.basis.shape for octave in octaves}, [], None, None
    # Few copies to the device: the bases in one where they have one shape, the filter once.
    joined = constant(np.stack([octave.basis for octave in octaves]), y, kind) if len(shapes) == 1 else None
    for i, (basis, n_fft, step, halved) in enumerate(octaves):
        if halved:
            if phases is None:
                phases = constant(_halving(res_type)[0], y)
            y, padded = _halved(y, phases, _halving(res_type)[1], n_fft // 2)
        frames = centered(y, n_fft, pad_mode) if padded is None or pad_mode != "constant" else padded
        D = frames_first(gp.fft.transform(frames, n_fft, real=True, hop=step))
        parts.append(gp.matmul(constant(basis, y, kind) if joined is None else joined[i], D))
    return _stack(parts, n_bins)


def cqt(
    y: Any, *, sr: float = 22050, hop_length: int = 512, fmin: float | None = None, n_bins: int = 84,
    bins_per_octave: int = 12, tuning: float | None = 0.0, filter_scale: float = 1, norm: Any = 1,
    sparsity: float = 0.01, window: Any = "hann", scale: bool = True, pad_mode: str = "constant",
    res_type: str = "soxr_hq",
) -> GPUArray:  # fmt: skip
    """Constant-Q transform: `vqt` with equal intervals and no added bandwidth; parameters as there.

    Examples
    --------
    >>> cqt(gp.ones(22050, "float32"), n_bins=24, fmin=400.0).shape
    (24, 44)
    """
    return vqt(
        y, sr=sr, hop_length=hop_length, fmin=fmin, n_bins=n_bins, intervals="equal", gamma=0,
        bins_per_octave=bins_per_octave, tuning=tuning, filter_scale=filter_scale, norm=norm, sparsity=sparsity,
        window=window, scale=scale, pad_mode=pad_mode, res_type=res_type,
    )  # fmt: skip


@_each_with_its_tuning
def pseudo_cqt(
    y: Any, *, sr: float = 22050, hop_length: int = 512, fmin: float | None = None, n_bins: int = 84,
    bins_per_octave: int = 12, tuning: float | None = 0.0, filter_scale: float = 1, norm: Any = 1,
    sparsity: float = 0.01, window: Any = "hann", scale: bool = True, pad_mode: str = "constant",
) -> GPUArray:  # fmt: skip
    """Magnitudes of a constant-Q transform from one short-time Fourier transform; parameters as of `vqt`.

    Examples
    --------
    >>> pseudo_cqt(gp.ones(22050, "float32"), n_bins=24, fmin=400.0).shape
    (24, 44)
    """
    found = _tuned(y, tuning, sr, bins_per_octave)
    _, freqs, alpha, lengths = _wavelets(fmin, n_bins, bins_per_octave, found, sr, window, filter_scale)
    basis, n_fft = _octave_basis(sr, freqs, alpha, filter_scale, norm, sparsity, window,
                                 hop_length=at_least(hop_length, 1, "hop_length"))  # fmt: skip
    C = gp.matmul(constant(np.abs(basis), y), gp.abs(stft(y, n_fft=n_fft, hop_length=hop_length, pad_mode=pad_mode)))
    return C / float(np.sqrt(n_fft)) if scale else C * constant(np.sqrt(lengths / n_fft)[:, None], y)


@_each_with_its_tuning
def hybrid_cqt(
    y: Any, *, sr: float = 22050, hop_length: int = 512, fmin: float | None = None, n_bins: int = 84,
    bins_per_octave: int = 12, tuning: float | None = 0.0, filter_scale: float = 1, norm: Any = 1,
    sparsity: float = 0.01, window: Any = "hann", scale: bool = True, pad_mode: str = "constant",
    res_type: str = "soxr_hq",
) -> GPUArray:  # fmt: skip
    """Magnitudes of a constant-Q transform, those of wavelets shorter than two hops by `pseudo_cqt`.

    Examples
    --------
    >>> hybrid_cqt(gp.ones(22050, "float32"), n_bins=24, fmin=400.0).shape
    (24, 44)
    """
    found = _tuned(y, tuning, sr, bins_per_octave)
    low, freqs, _, lengths = _wavelets(fmin, n_bins, bins_per_octave, found, sr, window, filter_scale)
    short = 2.0 ** np.ceil(np.log2(lengths)) < 2 * at_least(hop_length, 1, "hop_length")
    options: dict[str, Any] = {
        "sr": sr, "hop_length": hop_length, "bins_per_octave": bins_per_octave, "filter_scale": filter_scale,
        "norm": norm, "sparsity": sparsity, "window": window, "scale": scale, "pad_mode": pad_mode,
    }  # fmt: skip
    parts, count = [], int(np.sum(short))
    if count:
        parts.append(pseudo_cqt(y, fmin=float(np.min(freqs[short])), n_bins=count, **options))
    if count < n_bins:
        parts.append(gp.abs(cqt(y, fmin=low, n_bins=n_bins - count, res_type=res_type, **options)))
    return _stack(parts, n_bins)


def icqt(
    C: Any, *, sr: float = 22050, hop_length: int = 512, fmin: float | None = None, bins_per_octave: int = 12,
    tuning: float = 0.0, filter_scale: float = 1, norm: Any = 1, sparsity: float = 0.01, window: Any = "hann",
    scale: bool = True, length: int | None = None, res_type: str = "soxr_hq",
) -> GPUArray:  # fmt: skip
    """Samples of a constant-Q transform, approximately: octave by octave by the conjugate wavelets.

    Parameters
    ----------
    C : GPUArray
        Complex, (..., bins, frames), as `cqt` gives it.
    length : int, optional
        Samples of the result.
    sr, hop_length, fmin, bins_per_octave, tuning, filter_scale, norm, sparsity, window, scale, res_type
        As of `vqt`.

    Raises
    ------
    ParameterError
        If C is not complex.

    Examples
    --------
    >>> y = gp.sin(gp.arange(11025, dtype="float32") * 0.2)
    >>> icqt(cqt(y, n_bins=24, fmin=400.0), fmin=400.0, length=11025).shape
    (11025,)
    """
    if not isinstance(C, GPUArray) or C.dtype.kind != "c" or C.ndim < 2:
        raise ParameterError("C is a complex GPUArray of (..., bins, frames)")
    n_bins = C.shape[-2]
    _, freqs, alpha, lengths = _wavelets(fmin, n_bins, bins_per_octave, tuning, sr, window, filter_scale)
    if length is not None:
        C = C[..., : ceil((length + max(lengths)) / hop_length)]
    rates, hops = [float(sr)], [at_least(hop_length, 1, "hop_length")]
    for _ in range(ceil(n_bins / bins_per_octave) - 1):
        halves = hops[0] % 2 == 0
        rates.insert(0, rates[0] * 0.5 if halves else rates[0])
        hops.insert(0, hops[0] // 2 if halves else hops[0])
    total: GPUArray | None = None
    for i, (rate, hop) in enumerate(zip(rates, hops, strict=True)):
        part = slice(bins_per_octave * i, min(bins_per_octave * (i + 1), n_bins))
        basis, n_fft = _octave_basis(rate, freqs[part], alpha[part], filter_scale, norm, sparsity, window)
        weights = n_fft / lengths[part] / np.sum(np.abs(basis) ** 2, axis=1)
        if scale:
            weights = weights * np.sqrt(lengths[part])
        inverse = (np.conj(basis) * weights[:, None]).T
        D = gp.matmul(constant(inverse, C, C.dtype.name), C[..., part, :])
        made = istft(D, window="ones", hop_length=hop)
        made = resample(made, orig_sr=1, target_sr=int(sr // rate), res_type=res_type)
        if total is None:
            total = made
        else:
            size = max(total.shape[-1], made.shape[-1])
            total = fix_length(total, size) + fix_length(made, size)
    assert total is not None
    return total if length is None else fix_length(total, length)
