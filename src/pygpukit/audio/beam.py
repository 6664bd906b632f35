"""Beamforming: one sound of several microphones, from one direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.audio.arrays import constant, each_item, frames_first, not_negative, positive, samples
from pygpukit.audio.operators import gp
from pygpukit.audio.spectrum import istft, lengths, stft
from pygpukit.errors import ParameterError

__all__ = ["beamform"]

METHODS = ("delay_and_sum", "mvdr")


def _host(values: Any, what: str) -> Any:
    """Return finite numbers as float64 on the host."""
    try:
        found = np.asarray(values.to_numpy() if isinstance(values, GPUArray) else values, np.float64)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if not np.isfinite(found).all():
        raise ParameterError(f"{what} is {values!r}; it is an array of finite numbers")
    return found


def _delays(microphones: int, delays: Any, positions: Any, direction: Any, speed: float) -> Any:
    """Return the seconds by which a sound reaches each microphone later than the origin."""
    if (delays is None) == (positions is None and direction is None):
        raise ParameterError("give delays, or positions and a direction")
    if delays is not None:
        found = _host(delays, "delays")
        if found.shape != (microphones,):
            raise ParameterError(f"delays has shape {found.shape}; y has {microphones} microphones")
        return found
    places, way = _host(positions, "positions"), _host(direction, "direction")
    if places.shape != (microphones, *way.shape) or way.ndim != 1 or not np.linalg.norm(way) > 0:
        raise ParameterError(
            f"positions has shape {places.shape} and direction {way.shape}; of {microphones} microphones they are "
            f"({microphones}, axes) and (axes,), not all 0"
        )
    return -(places @ way) / np.linalg.norm(way) / speed


def _weights(spectra: GPUArray, steering: Any, loading: float) -> Any:
    """Weights of least power that keep the direction: (bins, microphones) on the host."""
    by_bin = gp.moveaxis(spectra, -1, 0).contiguous()
    products = gp.matmul(by_bin, gp.conj(gp.swapaxes(by_bin, -1, -2))).to_numpy().astype(np.complex128)
    microphones = products.shape[-1]
    power = np.trace(products, axis1=-2, axis2=-1).real / microphones
    # A bin without any sound gets the weights of the sum.
    products += (loading * power + np.where(power > 0, 0, 1))[:, None, None] * np.eye(microphones)
    solved = np.linalg.solve(products, steering[..., None])[..., 0]
    return solved / np.sum(np.conj(steering) * solved, axis=-1, keepdims=True)


def beamform(
    y: Any, *, sr: float = 22050, delays: Any = None, positions: Any = None, direction: Any = None,
    method: str = "delay_and_sum", noise: Any = None, loading: float = 1e-3, speed: float = 343.0, n_fft: int = 1024,
    hop_length: int | None = None,
) -> GPUArray:  # fmt: skip
    """Listen in one direction with several microphones: each bin of a transform is a weighted sum of theirs.

    Parameters
    ----------
    y : GPUArray
        (..., microphones, n).
    sr : float, optional
        Samples per second.
    delays : array, optional
        Seconds by which the sound reaches each microphone later than the origin, (microphones,).
    positions, direction : array, optional
        In place of delays: metres of each microphone, (microphones, axes), and where the sound comes from, (axes,).
    method : str, optional
        ``"delay_and_sum"``: the mean of the microphones, moved in time; or ``"mvdr"``: weights of least power that keep
        the direction, one set for the whole sound, computed on the host.
    noise : GPUArray, optional
        (..., microphones, n): what "mvdr" takes the power of, in place of ``y``.
    loading : float, optional
        Part of the mean power that "mvdr" adds to each microphone's own.
    speed : float, optional
        Of sound, in metres per second.
    n_fft, hop_length : int, optional
        As of `stft`. Delays are far shorter than a frame.

    Returns
    -------
    GPUArray
        (..., n).

    Raises
    ------
    ParameterError
        If a parameter is not what it is said to be, or a delay is over a quarter of a frame.

    Examples
    --------
    >>> import pygpukit.audio as A
    >>> y = gp.sin(gp.arange(4096, dtype="float64") * 0.1)
    >>> A.beamform(gp.stack([y, y]), delays=[0.0, 0.0]).shape
    (4096,)
    """
    y, rate = samples(y), positive(sr, "sr")
    if y.ndim < 2:
        raise ParameterError(f"y has shape {y.shape}; of several microphones it is (..., microphones, n)")
    if method not in METHODS:
        raise ParameterError(f"method is {method!r}; it is {' or '.join(METHODS)}")
    if noise is not None and (method != "mvdr" or samples(noise, "noise").shape[:-1] != y.shape[:-1]):
        raise ParameterError(f"noise goes with method='mvdr', and has the leading axes of y, {y.shape[:-1]}")
    n, hop, _ = lengths(n_fft, hop_length, None)
    late = _delays(y.shape[-2], delays, positions, direction, positive(speed, "speed"))
    if np.abs(late).max() * rate > n / 4:
        raise ParameterError(f"a delay is {np.abs(late).max():g} s, over a quarter of a frame of {n} samples: use more")
    options: dict[str, Any] = {"n_fft": n, "hop_length": hop}
    steering = np.exp(-2j * np.pi * np.outer(np.arange(n // 2 + 1) * (rate / n), late))
    loading = not_negative(loading, "loading")

    def item(y: GPUArray, noise: GPUArray | None = None) -> GPUArray:
        spectra = frames_first(stft(y, **options))
        if method == "mvdr":
            weights = _weights(spectra if noise is None else frames_first(stft(noise, **options)), steering, loading)
        else:
            weights = steering / steering.shape[1]
        factors = constant(np.conj(weights.T)[:, None], y, spectra.dtype.name)
        return istft(frames_first(gp.sum(spectra * factors, axis=-3)), length=y.shape[-1], **options)

    if noise is None or y.ndim == 2:
        return each_item(y, item, 2) if method == "mvdr" and y.ndim > 2 else item(y, noise)
    lead = y.shape[:-2]
    pairs = zip(y.reshape((-1, *y.shape[-2:])), samples(noise).reshape((-1, *noise.shape[-2:])), strict=True)
    return gp.stack([item(a, b) for a, b in pairs]).reshape((*lead, y.shape[-1]))
