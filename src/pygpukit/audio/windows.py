"""Windows by name, with the values of scipy.signal.get_window, in float64 on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.errors import ParameterError

__all__ = ["NAMES", "get_window", "padded_window", "window_values"]


def _cosines(n: int, terms: Sequence[float]) -> Any:
    t = np.linspace(-np.pi, np.pi, n)
    return sum(a * np.cos(k * t) for k, a in enumerate(terms))


def _triangle(n: int) -> Any:
    i = np.arange(1, (n + 1) // 2 + 1)
    half = (2 * i - 1.0) / n if n % 2 == 0 else 2 * i / (n + 1.0)
    return np.r_[half, half[::-1]] if n % 2 == 0 else np.r_[half, half[-2::-1]]


def _bartlett(n: int) -> Any:
    i = np.arange(n)
    return np.where(i <= (n - 1) / 2.0, 2.0 * i / (n - 1), 2.0 - 2.0 * i / (n - 1))


def _tukey(n: int, alpha: float = 0.5) -> Any:
    if alpha <= 0:
        return np.ones(n)
    if alpha >= 1:
        return _cosines(n, (0.5, 0.5))
    i, width = np.arange(n), int(np.floor(alpha * (n - 1) / 2.0))
    first, middle, last = i[: width + 1], i[width + 1 : n - width - 1], i[n - width - 1 :]
    return np.concatenate([
        0.5 * (1 + np.cos(np.pi * (-1 + 2.0 * first / alpha / (n - 1)))),
        np.ones(middle.shape),
        0.5 * (1 + np.cos(np.pi * (-2.0 / alpha + 1 + 2.0 * last / alpha / (n - 1)))),
    ])  # fmt: skip


def _bohman(n: int) -> Any:
    x = np.abs(np.linspace(-1, 1, n)[1:-1])
    return np.r_[0, (1 - x) * np.cos(np.pi * x) + 1.0 / np.pi * np.sin(np.pi * x), 0]


def _parzen(n: int) -> Any:
    i = np.arange(-(n - 1) / 2.0, (n - 1) / 2.0 + 0.5, 1.0)
    a = np.abs(i) / (n / 2.0)
    return np.where(np.abs(i) <= (n - 1) / 4.0, 1 - 6 * a**2.0 + 6 * a**3.0, 2 * (1 - a) ** 3.0)


def _kaiser(n: int, beta: float) -> Any:
    half = (n - 1) / 2.0
    return np.i0(beta * np.sqrt(np.maximum(0, 1 - ((np.arange(n) - half) / half) ** 2.0))) / np.i0(beta)


def _gaussian(n: int, std: float) -> Any:
    i = np.arange(n) - (n - 1.0) / 2.0
    return np.exp(-(i**2) / (2 * std * std))


_FLAT = (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368)
_WINDOWS: dict[str, Callable[..., Any]] = {
    "barthann": lambda n: 0.62 - 0.48 * (f := np.abs(np.arange(n) / (n - 1.0) - 0.5)) + 0.38 * np.cos(2 * np.pi * f),
    "bartlett": _bartlett,
    "blackman": lambda n: _cosines(n, (0.42, 0.50, 0.08)),
    "blackmanharris": lambda n: _cosines(n, (0.35875, 0.48829, 0.14128, 0.01168)),
    "bohman": _bohman,
    "boxcar": np.ones,
    "cosine": lambda n: np.sin(np.pi / n * (np.arange(n) + 0.5)),
    "flattop": lambda n: _cosines(n, _FLAT),
    "gaussian": _gaussian,
    "hamming": lambda n: _cosines(n, (0.54, 0.46)),
    "hann": lambda n: _cosines(n, (0.5, 0.5)),
    "kaiser": _kaiser,
    "nuttall": lambda n: _cosines(n, (0.3635819, 0.4891775, 0.1365995, 0.0106411)),
    "parzen": _parzen,
    "triang": _triangle,
    "tukey": _tukey,
}
_OTHER = {"box": "boxcar", "ones": "boxcar", "rect": "boxcar", "rectangular": "boxcar", "hanning": "hann",
          "blackmanharr": "blackmanharris", "triangle": "triang"}  # fmt: skip
_ARGUMENTS = {"gaussian": 1, "kaiser": 1}

NAMES = tuple(sorted(_WINDOWS))
"""Windows that are known by name."""


@lru_cache(maxsize=64)
def _named(name: str, arguments: tuple[float, ...], n: int, fftbins: bool) -> Any:
    function = _WINDOWS[_OTHER.get(name, name)]
    # Periodic windows are symmetric ones of one more element, without the last.
    values = np.ones(n) if n <= 1 else np.asarray(function(n + fftbins, *arguments), np.float64)[:n]
    values.flags.writeable = False
    return values


def window_values(window: Any, n: int, fftbins: bool = True) -> Any:
    """Return a window as float64 values on the host: a name, a tuple of name and arguments, a function, or values.

    Raises
    ------
    ParameterError
        If it is none, or its values are not ``n``.
    """
    if isinstance(window, GPUArray):
        window = window.to_numpy()
    if callable(window):
        return np.asarray(window(n), np.float64)
    if isinstance(window, float | int) and not isinstance(window, bool):
        window = ("kaiser", float(window))
    name, arguments = (window[0], window[1:]) if isinstance(window, tuple) and window else (window, ())
    if isinstance(name, str):
        known = _OTHER.get(name, name)
        if known not in _WINDOWS:
            raise ParameterError(f"there is no window '{name}'; use {', '.join(NAMES)}, or give its values")
        if len(arguments) < _ARGUMENTS.get(known, 0):
            raise ParameterError(f"the window '{name}' needs a number: ('{name}', 14.0) for example")
        try:
            numbers = tuple(map(float, arguments))
        except (TypeError, ValueError):
            raise ParameterError(f"the window {window!r} has other arguments than numbers") from None
        return _named(known, numbers, n, bool(fftbins))
    try:
        values = np.asarray(window, np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"window is {window!r}; it is a name, a tuple, a number, a function or values") from None
    if values.shape != (n,):
        raise ParameterError(f"the window has shape {values.shape}; {n} values are needed")
    return values


def get_window(window: Any, Nx: int, *, fftbins: bool = True) -> Any:
    """Return a window as a NumPy array of float64.

    Parameters
    ----------
    window : str, tuple, float, callable or array
        A name, such as ``"hann"``; a name with its arguments, such as ``("kaiser", 14.0)``; the beta of a Kaiser
        window; a function of a length; or values.
    Nx : int
        Values.
    fftbins : bool, optional
        Periodic (the default), or symmetric.

    Raises
    ------
    ParameterError
        If there is no such window.

    Examples
    --------
    >>> get_window("hann", 4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    return np.array(window_values(window, Nx, fftbins))


def padded_window(window: Any, win_length: int, n_fft: int) -> Any:
    """Return a window with zeros on both sides up to ``n_fft``; the left one is not the longer.

    Raises
    ------
    ParameterError
        If the window is longer.
    """
    if win_length > n_fft:
        raise ParameterError(f"win_length {win_length} is over n_fft {n_fft}; a window fits into a frame")
    left = (n_fft - win_length) // 2
    return np.pad(window_values(window, win_length), (left, n_fft - win_length - left))
