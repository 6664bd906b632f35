"""Functions of spectra, frames first: [frames, bins], complex ones float32 [frames, bins, 2]."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio import chroma, constantq, decompose, mel, spectral, spectrum
from pygpukit.audio.arrays import at_least, frames_first
from pygpukit.audio.convert import fft_frequencies
from pygpukit.audio.filters import mel_values
from pygpukit.audio.operators import gp
from pygpukit.audio.published.buffers import AudioBuffer, samples_of
from pygpukit.errors import ParameterError

__all__ = [
    "apply_mel_filterbank", "chroma_cqt", "chroma_stft", "cqt", "cqt_magnitude", "create_mel_filterbank", "delta",
    "griffin_lim", "harmonic", "hpss", "istft", "log_mel", "log_mel_spectrogram", "magnitude_spectrum",
    "mel_spectrogram", "mfcc", "percussive", "power_spectrum", "spectral_bandwidth", "spectral_centroid",
    "spectral_contrast", "spectral_flatness", "spectral_rolloff", "stft", "to_decibels",
]  # fmt: skip


def _frames(x: Any, what: str, ndim: int = 2) -> GPUArray:
    if not isinstance(x, GPUArray) or x.ndim != ndim or x.dtype.name not in ("float32", "float64"):
        shape = "[frames, bins]" if ndim == 2 else "[frames, bins, 2]"
        raise ParameterError(f"{what} is a GPUArray of float32, {shape}")
    return x


def _pairs(D: GPUArray) -> GPUArray:
    return gp.stack([D.real, D.imag], axis=-1)


def _numbers(x: Any) -> GPUArray:
    x = _frames(x, "stft_output", 3)
    if x.shape[-1] != 2:
        raise ParameterError(f"stft_output has shape {x.shape}; it is [frames, bins, 2]")
    return (x[..., 0] + 1j * x[..., 1]).astype("complex64" if x.dtype.name == "float32" else "complex128")


def _window(win_length: int) -> int | None:
    return None if win_length == -1 else win_length


def stft(audio: Any, n_fft: int = 512, hop_length: int = 160, win_length: int = -1, center: bool = True) -> GPUArray:
    """Short-time Fourier transform with a Hann window and mirrored ends: [frames, n_fft // 2 + 1, 2].

    Examples
    --------
    >>> stft(gp.ones(1600, "float32")).shape
    (11, 257, 2)
    """
    D = spectrum.stft(samples_of(audio), n_fft=n_fft, hop_length=hop_length, win_length=_window(win_length),
                      center=center, pad_mode="reflect")  # fmt: skip
    return _pairs(frames_first(D))


def istft(
    stft_output: Any, hop_length: int = 160, win_length: int = -1, center: bool = True, length: int = -1
) -> GPUArray:
    """Inverse of `stft`; -1 for a length that follows from the frames.

    Examples
    --------
    >>> istft(stft(gp.ones(1600, "float32")), length=1600).round(5)[5].item()
    1.0
    """
    D = frames_first(_numbers(stft_output))
    return spectrum.istft(D, hop_length=hop_length, win_length=_window(win_length), center=center,
                          length=None if length == -1 else length)  # fmt: skip


def power_spectrum(stft_output: Any) -> GPUArray:
    """Squares of the magnitudes: [frames, bins].

    Examples
    --------
    >>> power_spectrum(gp.asarray([[[3.0, 4.0]]], "float32")).tolist()
    [[25.0]]
    """
    x = _frames(stft_output, "stft_output", 3)
    return x[..., 0] * x[..., 0] + x[..., 1] * x[..., 1]


def magnitude_spectrum(stft_output: Any) -> GPUArray:
    """Magnitudes: [frames, bins].

    Examples
    --------
    >>> magnitude_spectrum(gp.asarray([[[3.0, 4.0]]], "float32")).tolist()
    [[5.0]]
    """
    x = _frames(stft_output, "stft_output", 3)
    return gp.hypot(x[..., 0], x[..., 1])


def griffin_lim(magnitude: Any, n_iter: int = 32, hop_length: int = 160, win_length: int = -1) -> GPUArray:
    """Find samples for magnitudes, [frames, bins], by the Griffin-Lim algorithm from random phases of seed 0.

    Examples
    --------
    >>> griffin_lim(gp.ones((5, 33), "float32"), n_iter=2, hop_length=16).shape
    (64,)
    """
    return spectrum.griffinlim(frames_first(_frames(magnitude, "magnitude")), n_iter=n_iter, hop_length=hop_length,
                               win_length=_window(win_length), momentum=0.0, pad_mode="reflect")  # fmt: skip


def _mel_matrix(n_mels: int, n_fft: int, sample_rate: int, f_min: float, f_max: float) -> Any:
    top = sample_rate / 2 if f_max == -1 else float(f_max)
    return mel_values(float(sample_rate), int(n_fft), at_least(n_mels, 1, "n_mels"), float(f_min), top, True, None)


def create_mel_filterbank(
    n_mels: int = 80, n_fft: int = 512, sample_rate: int = 16000, f_min: float = 0.0, f_max: float = -1.0
) -> GPUArray:
    """Triangles on HTK's mel scale, of height 1: float32 [n_mels, n_fft // 2 + 1]. f_max of -1 is half the rate.

    Examples
    --------
    >>> create_mel_filterbank(n_mels=40).shape
    (40, 257)
    """
    return gp.from_numpy(_mel_matrix(n_mels, n_fft, sample_rate, f_min, f_max).copy())


def apply_mel_filterbank(spectrogram: Any, mel_filterbank: Any) -> GPUArray:
    """Apply filters, [n_mels, bins], to a spectrogram, [frames, bins]: [frames, n_mels].

    Examples
    --------
    >>> apply_mel_filterbank(gp.ones((3, 257), "float32"), create_mel_filterbank()).shape
    (3, 80)
    """
    S, filters = _frames(spectrogram, "spectrogram"), _frames(mel_filterbank, "mel_filterbank")
    if S.shape[-1] != filters.shape[-1]:
        raise ParameterError(f"{S.shape[-1]} bins, and filters of {filters.shape[-1]}")
    return gp.matmul(S, filters.T)


def log_mel(mel_spectrogram: Any, eps: float = 1e-10) -> GPUArray:
    """Natural logarithm of a spectrogram plus ``eps``.

    Examples
    --------
    >>> log_mel(gp.ones((1, 1), "float32")).round(3).tolist()
    [[0.0]]
    """
    return gp.log(_frames(mel_spectrogram, "mel_spectrogram") + eps)


def to_decibels(audio: Any, eps: float = 1e-10) -> GPUArray:
    """``10 log10(x + eps)`` of powers.

    Examples
    --------
    >>> to_decibels(gp.asarray([1.0, 0.1], "float32")).round(3).tolist()
    [0.0, -10.0]
    """
    x = audio.data if isinstance(audio, AudioBuffer) else audio
    if not isinstance(x, GPUArray):
        raise ParameterError("audio is an AudioBuffer or a GPUArray")
    return 10.0 * gp.log10(x + eps)


def mel_spectrogram(
    audio: Any, n_fft: int = 512, hop_length: int = 160, n_mels: int = 80, sample_rate: int = 16000,
    f_min: float = 0.0, f_max: float = -1.0,
) -> GPUArray:  # fmt: skip
    """Mel spectrogram of powers: [frames, n_mels]. The magnitudes are summed in one kernel over the transform.

    Examples
    --------
    >>> mel_spectrogram(gp.ones(1600, "float32")).shape
    (11, 80)
    """
    D = spectrum.stft(samples_of(audio), n_fft=n_fft, hop_length=hop_length, pad_mode="reflect")
    return mel.mel_bands(frames_first(D), _mel_matrix(n_mels, n_fft, sample_rate, f_min, f_max), 2)


def log_mel_spectrogram(
    audio: Any, n_fft: int = 512, hop_length: int = 160, n_mels: int = 80, sample_rate: int = 16000,
    f_min: float = 0.0, f_max: float = -1.0, eps: float = 1e-10,
) -> GPUArray:  # fmt: skip
    """`log_mel` of `mel_spectrogram`: [frames, n_mels].

    Examples
    --------
    >>> log_mel_spectrogram(gp.ones(1600, "float32")).shape
    (11, 80)
    """
    return log_mel(mel_spectrogram(audio, n_fft, hop_length, n_mels, sample_rate, f_min, f_max), eps)


def mfcc(log_mel_input: Any, n_mfcc: int = 13) -> GPUArray:
    """Cosine transform, orthonormal, of a logarithmic mel spectrogram: [frames, n_mfcc].

    Examples
    --------
    >>> mfcc(gp.ones((3, 80), "float32")).shape
    (3, 13)
    """
    made = mel.dct(_frames(log_mel_input, "log_mel_input"), norm="ortho")
    return made[:, : at_least(n_mfcc, 1, "n_mfcc")]


def delta(features: Any, order: int = 1, width: int = 2) -> GPUArray:
    """Differences in time by regression over ``width`` frames on each side, the ends repeated; of order 2, of these.

    Examples
    --------
    >>> delta(gp.asarray([[0.0], [1.0], [2.0]], "float32"), width=1).tolist()
    [[0.5], [1.0], [0.5]]
    """
    x, width = _frames(features, "features"), at_least(width, 1, "width")
    for _ in range(at_least(order, 1, "order")):
        n = x.shape[0]
        padded = gp.pad(x, [(width, width), (0, 0)], mode="edge")
        total = gp.zeros_like(x)
        for k in range(1, width + 1):
            total = total + k * (padded[width + k : width + k + n] - padded[width - k : width - k + n])
        x = total / float(2 * sum(k * k for k in range(1, width + 1)))
    return x


def _feature(function: Any, S: Any, sample_rate: int, **options: Any) -> GPUArray:
    x = _frames(S, "spectrum")
    freq = fft_frequencies(sr=sample_rate, n_fft=2 * (x.shape[-1] - 1))
    return function(S=frames_first(x), sr=sample_rate, freq=freq, **options)[0]


def spectral_centroid(spectrum: Any, sample_rate: int = 16000) -> GPUArray:
    """Mean frequency of each frame in Hz: [frames].

    Examples
    --------
    >>> spectral_centroid(gp.asarray([[0.0, 1.0, 1.0]], "float32"), 8).tolist()
    [3.0]
    """
    return _feature(spectral.spectral_centroid, spectrum, sample_rate)


def spectral_bandwidth(spectrum: Any, centroids: Any, sample_rate: int = 16000, p: int = 2) -> GPUArray:
    """Deviation of order p from the centroids, in Hz: [frames].

    Examples
    --------
    >>> S = gp.asarray([[0.0, 1.0, 1.0]], "float32")
    >>> spectral_bandwidth(S, spectral_centroid(S, 8), 8).tolist()
    [1.0]
    """
    return _feature(spectral.spectral_bandwidth, spectrum, sample_rate, centroid=centroids[None], p=p)


def spectral_rolloff(spectrum: Any, sample_rate: int = 16000, roll_percent: float = 0.85) -> GPUArray:
    """Frequency under which a part of each frame lies, in Hz: [frames].

    Examples
    --------
    >>> spectral_rolloff(gp.ones((1, 5), "float32"), 8, 0.5).tolist()
    [2.0]
    """
    return _feature(spectral.spectral_rolloff, spectrum, sample_rate, roll_percent=roll_percent)


def spectral_flatness(spectrum: Any) -> GPUArray:
    """Geometric over arithmetic mean of each frame: [frames].

    Examples
    --------
    >>> spectral_flatness(gp.ones((1, 5), "float32")).tolist()
    [1.0]
    """
    return spectral.spectral_flatness(S=frames_first(_frames(spectrum, "spectrum")), power=1.0)[0]


def spectral_contrast(spectrum: Any, n_bands: int = 6, alpha: float = 0.2) -> GPUArray:
    """Logarithm of peaks over valleys in bands that are octaves, the lowest down to 0: [frames, n_bands].

    Peaks and valleys are means of the largest and of the smallest part ``alpha`` of a band's bins.

    Examples
    --------
    >>> spectral_contrast(gp.ones((2, 257), "float32")).tolist()[0][:2]
    [0.0, 0.0]
    """
    x, n_bands = _frames(spectrum, "spectrum"), at_least(n_bands, 1, "n_bands")
    bins = x.shape[-1]
    if not 0 < alpha <= 1 or bins < 1 << n_bands:
        raise ParameterError(f"alpha {alpha} is from 0 to 1, and {n_bands} octaves need at least {1 << n_bands} bins")
    edges = [0, *(round(bins * 2.0 ** (k - n_bands)) for k in range(1, n_bands + 1))]
    made = []
    for low, high in pairwise(edges):
        count = max(1, round(alpha * (high - low)))
        band = gp.sort(x[:, low:high], axis=-1)
        peak, valley = gp.mean(band[:, -count:], axis=-1), gp.mean(band[:, :count], axis=-1)
        made.append(gp.log(peak + 1e-10) - gp.log(valley + 1e-10))
    return gp.stack(made, axis=-1)


def cqt(
    audio: Any, sample_rate: int = 16000, hop_length: int = 160, f_min: float = 32.7, n_bins: int = 84,
    bins_per_octave: int = 12,
) -> GPUArray:  # fmt: skip
    """Constant-Q transform: [frames, n_bins, 2].

    Examples
    --------
    >>> cqt(gp.ones(16000, "float32"), n_bins=12, f_min=500.0).shape
    (101, 12, 2)
    """
    C = constantq.cqt(samples_of(audio), sr=sample_rate, hop_length=hop_length, fmin=f_min, n_bins=n_bins,
                      bins_per_octave=bins_per_octave)  # fmt: skip
    return _pairs(frames_first(C))


def cqt_magnitude(
    audio: Any, sample_rate: int = 16000, hop_length: int = 160, f_min: float = 32.7, n_bins: int = 84,
    bins_per_octave: int = 12,
) -> GPUArray:  # fmt: skip
    """Magnitudes of `cqt`: [frames, n_bins].

    Examples
    --------
    >>> cqt_magnitude(gp.ones(16000, "float32"), n_bins=12, f_min=500.0).shape
    (101, 12)
    """
    return magnitude_spectrum(cqt(audio, sample_rate, hop_length, f_min, n_bins, bins_per_octave))


def chroma_stft(spectrum: Any, sample_rate: int = 16000, n_chroma: int = 12, tuning: float = 0.0) -> GPUArray:
    """Energy of pitch classes of a spectrum, the largest of a frame 1: [frames, n_chroma].

    Examples
    --------
    >>> chroma_stft(gp.ones((2, 257), "float32")).shape
    (2, 12)
    """
    S = frames_first(_frames(spectrum, "spectrum"))
    return frames_first(spectral.chroma_stft(S=S, sr=sample_rate, n_chroma=n_chroma, tuning=tuning, n_fft=1))


def chroma_cqt(cqt_magnitude_input: Any, bins_per_octave: int = 12) -> GPUArray:
    """Energy of the classes of a constant-Q transform that begins with a C: [frames, bins_per_octave].

    Examples
    --------
    >>> chroma_cqt(gp.ones((2, 84), "float32")).shape
    (2, 12)
    """
    C = frames_first(_frames(cqt_magnitude_input, "cqt_magnitude_input"))
    return frames_first(chroma.chroma_cqt(C=C, bins_per_octave=bins_per_octave, n_chroma=bins_per_octave))


def hpss(
    stft_magnitude_input: Any, kernel_size: int = 31, power: float = 2.0, margin: float = 1.0
) -> tuple[GPUArray, GPUArray]:
    """Harmonic and percussive parts of magnitudes, [frames, bins] each.

    Examples
    --------
    >>> h, p = hpss(gp.ones((9, 9), "float32"), kernel_size=3)
    >>> h.shape, p.shape
    ((9, 9), (9, 9))
    """
    S = frames_first(_frames(stft_magnitude_input, "stft_magnitude_input"))
    h, p = decompose.hpss(S, kernel_size=kernel_size, power=power, margin=margin)
    return frames_first(h), frames_first(p)


def harmonic(stft_magnitude_input: Any, kernel_size: int = 31, power: float = 2.0, margin: float = 1.0) -> GPUArray:
    """Harmonic part of `hpss`.

    Examples
    --------
    >>> harmonic(gp.ones((9, 9), "float32"), kernel_size=3).shape
    (9, 9)
    """
    return hpss(stft_magnitude_input, kernel_size, power, margin)[0]


def percussive(stft_magnitude_input: Any, kernel_size: int = 31, power: float = 2.0, margin: float = 1.0) -> GPUArray:
    """Percussive part of `hpss`.

    Examples
    --------
    >>> percussive(gp.ones((9, 9), "float32"), kernel_size=3).shape
    (9, 9)
    """
    return hpss(stft_magnitude_input, kernel_size, power, margin)[1]
