"""The transforms over NumPy arrays: what the CPU device runs and kernels are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["by_name", "chirp_pair", "complex_rows", "frames", "hermitian_rows", "real_rows"]


def _norm(n: int, scale: float, inverse: bool) -> tuple[str, float]:
    """Return NumPy's name of a factor, and the factor that is still missing."""
    unscaled, scaled = ("forward", "backward") if inverse else ("backward", "forward")
    if scale == 1.0 / n:
        return scaled, 1.0
    if scale == 1.0 / n**0.5:
        return "ortho", 1.0
    return unscaled, scale


def frames(x: Any, n: int, hop: int) -> Any:
    """Return overlapping frames of the last axis, a view."""
    return np.lib.stride_tricks.sliding_window_view(x, n, axis=-1)[..., ::hop, :]


def _windowed(x: Any, window: Any, axis: int, n: int) -> Any:
    if window is None:
        return x
    length = min(x.shape[axis], n)
    kept = x[(slice(None),) * (axis % x.ndim) + (slice(0, length),)]
    return kept * window[:length].reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def complex_rows(x: Any, window: Any, n: int, axis: int, scale: float, out: Any, inverse: bool = False) -> Any:
    """Transform complex rows."""
    norm, rest = _norm(n, scale, inverse)
    function = np.fft.ifft if inverse else np.fft.fft
    result = function(_windowed(x, window, axis, n), n, axis, norm, out)  # type: ignore[arg-type]
    if rest != 1.0:
        result *= result.real.dtype.type(rest)
    return result


def real_rows(x: Any, window: Any, n: int, axis: int, scale: float, out: Any, full: bool = False,
              conjugate: bool = False) -> Any:  # fmt: skip
    """Transform real rows, to all points or the first half of them."""
    if full and conjugate:
        return complex_rows(x, window, n, axis, scale, out, True)
    norm, rest = _norm(n, scale, False)
    function = np.fft.fft if full else np.fft.rfft
    result = function(_windowed(x, window, axis, n), n, axis, norm, out)  # type: ignore[arg-type]
    if rest != 1.0:
        result *= result.real.dtype.type(rest)
    return np.conjugate(result, out=result) if conjugate else result


def hermitian_rows(x: Any, _window: Any, n: int, axis: int, scale: float, out: Any, conjugate: bool = False) -> Any:
    """Transform the first half of the points of real rows back."""
    norm, rest = _norm(n, scale, True)
    if x.shape[axis] == 0:
        # NumPy's result is what was in memory before.
        x = np.zeros([1 if i == axis % x.ndim else size for i, size in enumerate(x.shape)], x.dtype)
    result = np.fft.irfft(np.conjugate(x) if conjugate else x, n, axis, norm, out)  # type: ignore[arg-type]
    if rest != 1.0:
        result *= result.dtype.type(rest)
    return result


def by_name(name: str, x: Any, window: Any = None, scale: float = 1.0, *, n: Any = None, axis: int = -1,
            hop: Any = None, **options: Any) -> Any:  # fmt: skip
    """Call the transform of an operator with the operator's arguments."""
    if name == "fft_hermitian":
        n = 2 * (x.shape[axis] - 1) if n is None else n
        return hermitian_rows(x, None, n, axis, scale, None, **options)
    n = x.shape[axis] if n is None else n
    x = x if hop is None else frames(x, n, hop)
    return (complex_rows if name == "fft_complex" else real_rows)(x, window, n, axis, scale, None, **options)


def chirp_pair(x: Any, n: int, m: int, inverse: bool = False) -> tuple[Any, Any]:
    """Return ``exp(-pi i j^2 / n)``, and its conjugate as the kernel of a convolution of ``m`` points."""
    from pygpukit.fft.plan import roots

    j = np.arange(n, dtype=np.int64)
    chirp = roots(j * j % (2 * n), 2 * n)
    chirp = chirp.conj() if inverse else chirp
    kernel = np.zeros(m, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[m - n + 1 :] = chirp[:0:-1].conj()
    return chirp.astype(x.dtype), kernel.astype(x.dtype)
