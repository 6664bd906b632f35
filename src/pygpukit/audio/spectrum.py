"""Short-time Fourier transforms and back, and what is made of their magnitudes and phases."""

from __future__ import annotations

import warnings
from math import ceil
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
    per_item,
    positive,
    real_array,
    samples,
    tiny,
)
from pygpukit.audio.operators import gp
from pygpukit.audio.windows import padded_window
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.spectra import overlap_add

__all__ = [
    "amplitude_to_db", "db_to_amplitude", "db_to_power", "griffinlim", "istft", "magphase", "phase_vocoder",
    "power_to_db", "spectrogram", "stft", "stft_frames",
]  # fmt: skip

_LONG = 1 << 20
"""Samples of a sound that is not copied to be padded."""
_LOCAL = ("constant", "edge", "reflect", "symmetric")
"""Modes whose padding depends on the samples at the ends alone."""
PAD_MODES = ("constant", "edge", "reflect", "symmetric", "linear_ramp", "empty")


def lengths(n_fft: Any, hop_length: Any, win_length: Any) -> tuple[int, int, int]:
    """Return frame, hop and window lengths with their defaults."""
    n = at_least(n_fft, 2, "n_fft")
    win = n if win_length is None else at_least(win_length, 1, "win_length")
    hop = max(1, win // 4) if hop_length is None else at_least(hop_length, 1, "hop_length")
    return n, hop, win


def centered(y: GPUArray, n_fft: int, pad_mode: Any) -> GPUArray:
    """Return samples with half a frame added on both sides."""
    if pad_mode not in PAD_MODES:
        raise ParameterError(f"pad_mode is {pad_mode!r}; with center=True it is one of {', '.join(PAD_MODES)}")
    if n_fft > y.shape[-1]:
        warnings.warn(f"n_fft={n_fft} is over the {y.shape[-1]} samples there are", UserWarning, stacklevel=4)
    if n_fft < 2:
        return y
    return gp.pad(y, [(0, 0)] * (y.ndim - 1) + [(n_fft // 2, n_fft // 2)], mode=pad_mode)


def stft_frames(y: GPUArray, n_fft: int, hop_length: int, window: Any) -> GPUArray:
    """Transform the frames of samples as they are: (..., frames, bins). ``window`` has n_fft host values.

    Raises
    ------
    ParameterError
        If not one frame fits.
    """
    if y.shape[-1] < n_fft:
        raise ParameterError(f"n_fft={n_fft} is over the {y.shape[-1]} samples there are; use center=True or pad them")
    return gp.fft.transform(y, n_fft, real=True, window=constant(window, y), hop=hop_length)


def _long_centered(y: GPUArray, n: int, hop: int, window: Any, pad_mode: str) -> GPUArray:
    """`stft_frames` of `centered` samples of one long sound: only the frames at the ends are made of padded samples."""
    size, edge = y.shape[-1], n // 2
    count, first = 1 + (size + 2 * edge - n) // hop, -(-edge // hop)
    last = (size + edge - n) // hop
    spectra = gp.empty((count, n // 2 + 1), "complex64" if y.dtype.name == "float32" else "complex128", device=y.device)
    values = constant(window, y)

    def frames(x: GPUArray, start: int, end: int) -> None:
        gp.fft.transform(x[: (end - start - 1) * hop + n], n, real=True, window=values, hop=hop, out=spectra[start:end])

    frames(y[first * hop - edge :], first, last + 1)
    # Mirrored ends need one sample more than they add.
    head = y[: max((first - 1) * hop + n - edge, edge + 1)]
    if first:
        frames(gp.pad(head, [(edge, 0)], mode=pad_mode), 0, first)
    if last + 1 < count:
        start = (last + 1) * hop - edge
        begin = min(start, size - edge - 1)
        frames(gp.pad(y[begin:], [(0, edge)], mode=pad_mode)[start - begin :], last + 1, count)
    return spectra


def stft(
    y: Any, *, n_fft: int = 2048, hop_length: int | None = None, win_length: int | None = None, window: Any = "hann",
    center: bool = True, pad_mode: str = "constant",
) -> GPUArray:  # fmt: skip
    """Short-time Fourier transform.

    Frames are read where they are, multiplied by the window and transformed by one kernel.

    Parameters
    ----------
    y : GPUArray
        float32 or float64 samples, any leading axes.
    n_fft : int, optional
        Samples of a frame, at least 2.
    hop_length : int, optional
        Samples from frame to frame; a quarter of ``win_length`` by default.
    win_length : int, optional
        Samples of the window, ``n_fft`` by default; zeros are put around a shorter one.
    window : str, tuple, float, callable or array, optional
        As `get_window` takes it.
    center : bool, optional
        Frame t is centred at sample ``t * hop_length``: half a frame is added on both sides.
    pad_mode : str, optional
        With what, as `gp.pad` names it.

    Returns
    -------
    GPUArray
        complex64 of float32, complex128 of float64: (..., 1 + n_fft // 2, frames). A view: frames are contiguous.

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Notes
    -----
    Determinism on a GPU: ``batch_invariant``; a frame depends on its own samples alone, so that NaN stays in the frames
    that hold it.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.stft(gp.ones(8, "float64"), n_fft=4, hop_length=4, center=False)[:, 0].real.tolist()
    [2.0, -1.0, 0.0]
    """
    y = samples(y)
    n, hop, win = lengths(n_fft, hop_length, win_length)
    values = padded_window(window, win, n)
    if center:
        if y.ndim == 1 and y.shape[-1] >= max(_LONG, 4 * n + 2 * hop) and pad_mode in _LOCAL:
            return frames_first(_long_centered(y, n, hop, values, pad_mode))
        y = centered(y, n, pad_mode)
    return frames_first(stft_frames(y, n, hop, values))


def istft(
    stft_matrix: Any, *, hop_length: int | None = None, win_length: int | None = None, n_fft: int | None = None,
    window: Any = "hann", center: bool = True, length: int | None = None,
) -> GPUArray:  # fmt: skip
    """Inverse short-time Fourier transform: overlap-add of the windowed frames over the sum of the squared window.

    Parameters
    ----------
    stft_matrix : GPUArray
        Complex, (..., bins, frames).
    hop_length, win_length, window, center
        As of `stft`.
    n_fft : int, optional
        ``2 * (bins - 1)`` by default; give it where it is odd.
    length : int, optional
        Samples of the result, which is cut or continued with zeros.

    Returns
    -------
    GPUArray
        Real samples, (..., n).

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> y = gp.asarray([0.0, 1.0, 2.0, 3.0, 2.0, 1.0])
    >>> A.istft(A.stft(y, n_fft=4), length=6, n_fft=4).round(12).tolist()
    [0.0, 1.0, 2.0, 3.0, 2.0, 1.0]
    """
    D = stft_matrix
    if not isinstance(D, GPUArray) or D.dtype.kind != "c" or D.ndim < 2:
        raise ParameterError("stft_matrix is a complex GPUArray of (..., bins, frames)")
    n, hop, win = lengths(2 * (D.shape[-2] - 1) if n_fft is None else n_fft, hop_length, win_length)
    if D.shape[-2] != n // 2 + 1:
        raise ParameterError(f"stft_matrix has {D.shape[-2]} bins, where n_fft={n} makes {n // 2 + 1}")
    frames, edge = D.shape[-1], n // 2 if center else 0
    if length is not None:
        length = at_least(length, 0, "length")
        frames = min(frames, max(1, ceil((length + 2 * edge) / hop)))
    D = frames_first(D)[..., :frames, :]
    values = constant(padded_window(window, win, n), D)
    x = gp.fft.irfft(D, n)
    y = overlap_add(x, values, hop=hop, start=edge, end=edge if length is None else 0)
    return y if length is None else fix_length(y, length)


def spectrogram(y: Any, S: Any, n_fft: int | None, hop_length: int | None, power: float, win_length: int | None,
                window: Any, center: bool, pad_mode: str) -> tuple[GPUArray, int]:  # fmt: skip
    """Return magnitudes to a power, given or made of samples, and n_fft."""
    if S is not None:
        S = magnitudes(S)
        return S, 2 * (S.shape[-2] - 1) if n_fft is None or n_fft // 2 + 1 != S.shape[-2] else n_fft
    if y is None:
        raise ParameterError("give samples y or a spectrogram S")
    n = 2048 if n_fft is None else n_fft
    D = stft(y, n_fft=n, hop_length=hop_length, win_length=win_length, window=window, center=center, pad_mode=pad_mode)
    # Frames lie one after the other, and stay so.
    magnitude = gp.abs(frames_first(D))
    return frames_first(magnitude if power == 1 else magnitude * magnitude if power == 2 else magnitude**power), n


def magphase(D: Any, *, power: float = 1) -> tuple[GPUArray, GPUArray]:
    """Separate a complex spectrogram into magnitudes to a power and phases of magnitude 1.

    The phase of 0 is 1.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> m, p = A.magphase(gp.asarray([[2j, 0j]]))
    >>> m.tolist(), p.tolist()
    ([[2.0, 0.0]], [[1j, (1+0j)]])
    """
    if not isinstance(D, GPUArray):
        raise ParameterError("D is a GPUArray")
    if D.dtype.kind != "c":
        D = real_array(D, "D").astype("complex64" if D.dtype.name == "float32" else "complex128")
    magnitude = gp.abs(D)
    zero = magnitude == 0
    phase = gp.where(zero, gp.ones_like(D), D / gp.where(zero, gp.ones_like(magnitude), magnitude))
    return (magnitude if power == 1 else magnitude**power), phase


def phase_vocoder(D: Any, *, rate: float, hop_length: int | None = None, n_fft: int | None = None) -> GPUArray:
    """Stretch a complex spectrogram in time: frames at steps of ``rate``, phases advanced by those between frames.

    Phases are added as fractions of a turn in integers, exactly: however long the sound, nothing drifts.

    Parameters
    ----------
    D : GPUArray
        Complex, (..., bins, frames).
    rate : float
        Above 1 is faster.
    hop_length, n_fft : int, optional
        Taken for librosa's sake. The result does not depend on them: what a bin's frequency advances the phase by is a
        whole number of turns away from the difference that is measured.

    Raises
    ------
    ParameterError
        If rate is not above 0.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.phase_vocoder(gp.ones((3, 8), "complex64"), rate=2.0).shape
    (3, 4)
    """
    rate = positive(rate, "rate")
    if not isinstance(D, GPUArray) or D.dtype.kind != "c" or D.ndim < 2:
        raise ParameterError("D is a complex GPUArray of (..., bins, frames)")
    if D.size / rate >= 1 << 31:
        raise ParameterError(
            f"rate is {rate:g}: {D.shape[-1]} frames would be {D.shape[-1] / rate:.3g}, too many to compute"
        )
    steps = np.arange(0, D.shape[-1], rate, dtype=np.float64)
    # Whole frames are taken, which lie one after the other.
    X = gp.pad(frames_first(D).contiguous(), [(0, 0)] * (D.ndim - 2) + [(0, 2), (0, 0)])
    magnitude, turns = gp.abs(X), gp.rint(gp.angle(X).astype("float64") * (2.0**48 / (2 * np.pi))).astype("int64")
    here = constant(np.floor(steps), X, "int64")
    alpha = constant((steps % 1.0)[:, None], X)
    m0, m1 = gp.take(magnitude, here, axis=-2), gp.take(magnitude, here + 1, axis=-2)
    advance = gp.take(turns[..., 1:, :] - turns[..., :-1, :], here, axis=-2)
    # The phase of a frame is that of the first plus all advances before it.
    before = gp.concatenate([turns[..., :1, :], advance[..., :-1, :]], axis=-2)
    total = gp.bitwise_and(gp.cumsum(before, axis=-2), (1 << 48) - 1)
    angle = (total.astype("float64") * (2 * np.pi / 2.0**48)).astype(magnitude.dtype)
    mag = (1 - alpha) * m0 + alpha * m1
    return frames_first(gp.cos(angle) * mag + 1j * (gp.sin(angle) * mag))


def _random_phases(S: GPUArray, random_state: int | None, kind: str) -> GPUArray:
    """Return numbers of magnitude 1, (bins, frames), for all items of a batch."""
    if random_state is not None:
        seed = at_least(random_state, 0, "random_state")
        if seed >= 1 << 32:
            raise ParameterError(f"random_state is {seed}; seeds of NumPy's generator are under 2**32")
        generator = np.random.RandomState(seed)
        phase = 2 * np.pi * generator.random_sample(S.shape[-2:])
        return constant(np.cos(phase) + 1j * np.sin(phase), S, kind)
    with gp.device(S.device):
        turns = gp.random.default_rng(0).random(S.shape[-2:], S.dtype.name) * (2 * np.pi)
    return gp.cos(turns) + 1j * gp.sin(turns)


def griffinlim(
    S: Any, *, n_iter: int = 32, hop_length: int | None = None, win_length: int | None = None,
    n_fft: int | None = None, window: Any = "hann", center: bool = True, length: int | None = None,
    pad_mode: str = "constant", momentum: float = 0.99, init: str | None = "random", random_state: int | None = None,
) -> GPUArray:  # fmt: skip
    """Find samples whose spectrogram has given magnitudes: the fast Griffin-Lim algorithm.

    Parameters
    ----------
    S : GPUArray
        Magnitudes, (..., bins, frames).
    n_iter : int, optional
        Rounds.
    hop_length, win_length, n_fft, window, center, length, pad_mode
        As of `stft` and `istft`.
    momentum : float, optional
        0 is the original algorithm.
    init : str, optional
        ``"random"`` phases, or None for phases of 0.
    random_state : int, optional
        Seed of NumPy's generator: librosa's phases, drawn on the host. By default phases are drawn on the device, the
        same ones in every call. Each item of a batch begins with the same phases, those of the item alone.

    Returns
    -------
    GPUArray
        Samples.

    Raises
    ------
    ParameterError
        If momentum is negative, or init is neither.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> y = gp.sin(gp.arange(512, dtype="float32") * 0.3)
    >>> A.griffinlim(gp.abs(A.stft(y, n_fft=64)), n_iter=4, length=512).shape
    (512,)
    """
    S = magnitudes(S)
    momentum = not_negative(momentum, "momentum")
    n, hop, win = lengths(2 * (S.shape[-2] - 1) if n_fft is None else n_fft, hop_length, win_length)
    kind = "complex64" if S.dtype.name == "float32" else "complex128"
    # Frames lie one after the other from here on, as the transforms read and write them.
    turned = frames_first(S).contiguous()
    if init == "random":
        angles = frames_first(_random_phases(S, random_state, kind)) * turned
    elif init is None:
        angles = turned.astype(kind)
    else:
        raise ParameterError(f"init is {init!r}; it is 'random' or None")
    least, before = tiny(S), None
    options: dict[str, Any] = {"hop_length": hop, "win_length": win, "n_fft": n, "window": window, "center": center}
    for _ in range(at_least(n_iter, 0, "n_iter")):
        sound = istft(frames_first(angles), length=length, **options)
        rebuilt = frames_first(stft(sound, pad_mode=pad_mode, **options))
        angles = rebuilt if before is None else rebuilt - before * (momentum / (1 + momentum))
        angles = angles / (gp.abs(angles) + least) * turned
        before = rebuilt
    return istft(frames_first(angles), length=length, **options)


def _reference(ref: Any, S: GPUArray) -> Any:
    axes = min(2, S.ndim)
    if not callable(ref):
        return abs(ref)
    name = getattr(ref, "__name__", "")
    if name in ("max", "amax", "median", "mean", "min") and getattr(gp, name, None) is not None:
        return gp.abs(getattr(gp, name)(S, axis=tuple(range(-axes, 0)), keepdims=True))
    return gp.abs(per_item(S, ref, axes))


def _logarithm(S: GPUArray, factor: float, ref: Any, amin: float, top_db: float | None) -> GPUArray:
    amin = positive(amin, "amin")
    if callable(ref) or isinstance(ref, GPUArray):
        against = factor * gp.log10(gp.maximum(ref if isinstance(ref, GPUArray) else _reference(ref, S), amin))
    else:
        against = factor * float(np.log10(max(amin, abs(number(ref, "ref")))))
    made = factor * gp.log10(gp.maximum(S, amin)) - against
    if top_db is None:
        return made
    top_db = not_negative(top_db, "top_db")
    highest = gp.max(made, axis=tuple(range(-min(2, S.ndim), 0)), keepdims=True)
    return gp.maximum(made, highest - top_db)


def power_to_db(S: Any, *, ref: Any = 1.0, amin: float = 1e-10, top_db: float | None = 80.0) -> GPUArray:
    """Powers in decibels: ``10 log10(S / ref)``.

    Parameters
    ----------
    S : GPUArray
        Powers. Of complex numbers the magnitudes are taken.
    ref : float, callable or GPUArray, optional
        What is 0 dB; a function such as ``gp.max`` is applied to each item of a batch, that is to its last two axes.
    amin : float, optional
        Smaller powers, and a smaller ref, are taken as this.
    top_db : float, optional
        What lies further below the largest of an item is raised to that. None for no limit.

    Raises
    ------
    ParameterError
        If amin is not above 0, or top_db is negative.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.power_to_db(gp.asarray([1.0, 0.1, 0.0])).tolist()
    [0.0, -10.0, -80.0]
    """
    S = gp.abs(S) if isinstance(S, GPUArray) and S.dtype.kind == "c" else real_array(S, "S")
    return _logarithm(S, 10.0, ref, amin, top_db)


def amplitude_to_db(S: Any, *, ref: Any = 1.0, amin: float = 1e-5, top_db: float | None = 80.0) -> GPUArray:
    """Amplitudes in decibels: ``20 log10(|S| / ref)``; parameters as of `power_to_db`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.amplitude_to_db(gp.asarray([1.0, 0.1])).tolist()
    [0.0, -20.0]
    """
    S = gp.abs(S) if isinstance(S, GPUArray) else gp.abs(real_array(S, "S"))
    ref = _reference(ref, S) if callable(ref) else ref
    squared = ref * ref if isinstance(ref, GPUArray) else number(ref, "ref") ** 2
    return _logarithm(S * S, 10.0, squared, positive(amin, "amin") ** 2, top_db)


def db_to_power(S_db: Any, *, ref: float = 1.0) -> GPUArray:
    """Powers of decibels, the inverse of `power_to_db`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.db_to_power(gp.asarray([0.0, 10.0])).tolist()
    [1.0, 10.0]
    """
    return ref * gp.power(10.0, real_array(S_db, "S_db") * 0.1)


def db_to_amplitude(S_db: Any, *, ref: float = 1.0) -> GPUArray:
    """Amplitudes of decibels, the inverse of `amplitude_to_db`.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> A.db_to_amplitude(gp.asarray([0.0, 20.0])).tolist()
    [1.0, 10.0]
    """
    return gp.sqrt(db_to_power(S_db, ref=ref**2))
