"""NumPy's Fourier transforms along one axis, and the form with window, scale and frames that others are built on."""

from __future__ import annotations

from contextlib import nullcontext
from math import sqrt
from operator import index
from typing import Any

from numpy.exceptions import AxisError

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.fft.rows import complex_of, complex_rows, hermitian_rows, real_rows
from pygpukit.ops.operands import as_array

__all__ = ["fft", "hfft", "ifft", "ihfft", "irfft", "normalise_axis", "rfft", "transform"]

_NO_STREAM = nullcontext()
_NORMS = {"backward": (0, 1), "ortho": (0.5, 0.5), "forward": (1, 0)}


def _scale(norm: str | None, n: int, inverse: bool) -> float:
    if norm is not None and norm not in _NORMS:
        raise ValueError(f"invalid norm {norm!r}: it is 'backward', 'ortho' or 'forward'")
    power = _NORMS[norm or "backward"][inverse]
    return 1.0 if power == 0 or n < 1 else 1.0 / n if power == 1 else 1.0 / sqrt(n)


def normalise_axis(axis: Any, ndim: int) -> int:
    """Return an axis counted from the front.

    Raises
    ------
    AxisError
        If there is none.
    """
    place = int(index(axis))
    if not -ndim <= place < ndim:
        raise AxisError(place, ndim)
    return place % ndim


def _array(x: Any) -> GPUArray:
    return x if isinstance(x, GPUArray) else as_array(x, "a transform")


def _computed(x: DataType) -> DataType:
    """Return the type a transform of ``x`` is computed in: small floats in float32, integers in float64."""
    if x.kind == "c":
        return x
    return dtype("float32") if x.kind == "f" and x.itemsize < 8 else dtype("float64")


_REAL = (dtype("float32"), dtype("float64"))


def _to_real(x: GPUArray, what: str) -> GPUArray:
    kind = x.dtype
    if kind in _REAL:
        return x
    if kind.kind == "c":
        raise DTypeError(f"{what} takes real numbers, not {kind.name}; use its complex form, or gp.real")
    return x.astype(_computed(kind), copy=False)


def _to_complex(x: GPUArray) -> GPUArray:
    return x if x.dtype.kind == "c" else x.astype(complex_of(_computed(x.dtype)), copy=False)


def _length(n: Any, size: int) -> int:
    return size if n is None else int(index(n))


def _any(x: Any, n: Any, axis: int, norm: str | None, inverse: bool, out: GPUArray | None, stream: Any) -> GPUArray:
    x = _array(x)
    axis = normalise_axis(axis, x.ndim)
    n = _length(n, x.shape[axis])
    scale = _scale(norm, n, inverse)
    with stream or _NO_STREAM:
        if x.dtype.kind == "c":
            return complex_rows(x, None, scale, n=n, axis=axis, inverse=inverse, out=out)  # type: ignore[no-any-return]
        real = _to_real(x, "fft")
        # The inverse transform of real numbers is the conjugate of their transform.
        return real_rows(  # type: ignore[no-any-return]
            real, None, scale, n=n, axis=axis, full=True, conjugate=inverse, out=out
        )


def fft(a: GPUArray, n: int | None = None, axis: int = -1, norm: str | None = None, out: GPUArray | None = None, *,
        stream: Any = None) -> GPUArray:  # fmt: skip
    """Discrete Fourier transform along an axis.

    Parameters
    ----------
    a : GPUArray
        Real or complex. float16, bfloat16 and float8 are computed in float32, integers and bool in float64.
    n : int, optional
        Points: the axis is cropped, or continued with zeros. Its length by default.
    axis : int, optional
        The last by default.
    norm : str, optional
        ``"backward"`` (the default): no factor; ``"forward"``: 1 / n; ``"ortho"``: 1 / sqrt(n).
    out : GPUArray, optional
        Where the result is written; of its type.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray
        complex128 of 8-byte reals, integers and bool, else complex64.

    Notes
    -----
    Any length works: those whose prime factors are at most 13 are computed directly, others as convolutions. The kernel
    for a length is compiled when it is first used. Determinism on a GPU: ``batch_invariant``; the bits depend on the
    row, its type and n alone.

    Examples
    --------
    >>> gp.fft.fft(gp.asarray([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _any(a, n, axis, norm, False, out, stream)


def ifft(a: GPUArray, n: int | None = None, axis: int = -1, norm: str | None = None, out: GPUArray | None = None, *,
         stream: Any = None) -> GPUArray:  # fmt: skip
    """Inverse of `fft`; by default with the factor 1 / n.

    Examples
    --------
    >>> gp.fft.ifft(gp.asarray([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _any(a, n, axis, norm, True, out, stream)


def _half(x: Any, n: Any, axis: int, norm: str | None, conjugate: bool, out: Any, stream: Any, what: str) -> GPUArray:
    x = _array(x)
    axis = normalise_axis(axis, x.ndim)
    n = _length(n, x.shape[axis])
    scale = _scale(norm, n, conjugate)
    with stream or _NO_STREAM:
        real = _to_real(x, what)
        return real_rows(  # type: ignore[no-any-return]
            real, None, scale, n=n, axis=axis, conjugate=conjugate, out=out
        )


def rfft(a: GPUArray, n: int | None = None, axis: int = -1, norm: str | None = None, out: GPUArray | None = None, *,
         stream: Any = None) -> GPUArray:  # fmt: skip
    """Discrete Fourier transform of real numbers: its first n // 2 + 1 points, which determine the others.

    Raises
    ------
    DTypeError
        If ``a`` is complex.

    Examples
    --------
    >>> gp.fft.rfft(gp.asarray([1.0, 2.0, 3.0, 4.0])).tolist()
    [(10+0j), (-2+2j), (-2+0j)]
    """
    return _half(a, n, axis, norm, False, out, stream, "rfft")


def ihfft(a: GPUArray, n: int | None = None, axis: int = -1, norm: str | None = None, out: GPUArray | None = None, *,
          stream: Any = None) -> GPUArray:  # fmt: skip
    """Inverse of `hfft`: n // 2 + 1 points of the inverse transform of real numbers.

    Examples
    --------
    >>> gp.fft.ihfft(gp.asarray([4.0, 0.0, 0.0, 0.0])).tolist()
    [(1-0j), (1-0j), (1-0j)]
    """
    return _half(a, n, axis, norm, True, out, stream, "ihfft")


def _whole(x: Any, n: Any, axis: int, norm: str | None, forward: bool, out: Any, stream: Any) -> GPUArray:
    x = _array(x)
    axis = normalise_axis(axis, x.ndim)
    n = _length(n, 2 * (x.shape[axis] - 1))
    scale = _scale(norm, n, not forward)
    with stream or _NO_STREAM:
        if x.dtype.kind == "f" and x.dtype.itemsize < 4 and (out is None or out.dtype is x.dtype):
            # As in NumPy the result of small floats is small, though the numbers between are not.
            made = hermitian_rows(_to_complex(x), scale, n=n, axis=axis, conjugate=forward)
            return _native.apply("copy", (made,), empty(made.shape, x.dtype, device=x.device) if out is None else out)
        return hermitian_rows(  # type: ignore[no-any-return]
            _to_complex(x), scale, n=n, axis=axis, conjugate=forward, out=out
        )


def irfft(a: GPUArray, n: int | None = None, axis: int = -1, norm: str | None = None, out: GPUArray | None = None, *,
          stream: Any = None) -> GPUArray:  # fmt: skip
    """Inverse of `rfft`: n real numbers from n // 2 + 1 points. Give n where it is odd.

    Imaginary parts of points that must be real are ignored.

    Examples
    --------
    >>> gp.fft.irfft(gp.fft.rfft(gp.asarray([1.0, 2.0, 3.0, 4.0]))).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return _whole(a, n, axis, norm, False, out, stream)


def hfft(a: GPUArray, n: int | None = None, axis: int = -1, norm: str | None = None, out: GPUArray | None = None, *,
         stream: Any = None) -> GPUArray:  # fmt: skip
    """Transform of numbers of which the other half are the conjugates: n real points from n // 2 + 1 numbers.

    Examples
    --------
    >>> gp.fft.hfft(gp.asarray([1.0, 1.0, 1.0])).tolist()
    [4.0, 0.0, 0.0, 0.0]
    """
    return _whole(a, n, axis, norm, True, out, stream)


def transform(
    x: GPUArray,
    n: int | None = None,
    axis: int = -1,
    *,
    inverse: bool = False,
    real: bool = False,
    window: GPUArray | None = None,
    scale: float = 1.0,
    hop: int | None = None,
    out: GPUArray | None = None,
    stream: Any = None,
) -> GPUArray:
    """Transform with everything that a kernel does on the way: a window, a factor, overlapping frames.

    Parameters
    ----------
    x : GPUArray
        float32, float64, complex64 or complex128. With ``real`` and ``inverse`` half the points of a real row. Rows may
        lie in any way in memory: what neither strides nor alignment allow is copied first.
    n : int, optional
        Points, as of `fft`.
    axis : int, optional
        The last by default.
    inverse, real : bool, optional
        As `ifft`, `rfft` and `irfft`, without a factor.
    window : GPUArray, optional
        n real numbers by which the input is multiplied. Not with ``real`` and ``inverse``.
    scale : float, optional
        Factor of the result. Another value is not another plan.
    hop : int, optional
        Transform all frames of n elements of the last axis, this many elements apart; the result has an axis for frames
        before that of points. Frames are read where they are. Only with ``real``.
    out : GPUArray, optional
        Where the result is written: for points before frames, the transpose of such an array.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray
        The result.

    Raises
    ------
    ValueError
        If the options do not go together.

    Examples
    --------
    >>> x = gp.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> transform(x, 4, real=True, hop=2, window=gp.ones(4, "float64"))[:, 0].tolist()
    [(10+0j), (18+0j)]
    """
    x = _array(x)
    axis = normalise_axis(axis, x.ndim)
    if hop is not None and (not real or inverse or axis != x.ndim - 1):
        raise ValueError("frames are taken of the last axis of real numbers: hop needs real=True and axis=-1")
    if window is not None and real and inverse:
        raise ValueError("a transform to real numbers takes no window; multiply the result")
    with stream or _NO_STREAM:
        if real and inverse:
            return hermitian_rows(_to_complex(x), scale, n=n, axis=axis, out=out)  # type: ignore[no-any-return]
        if real:
            return real_rows(  # type: ignore[no-any-return]
                _to_real(x, "transform"), window, scale, n=n, axis=axis, hop=hop, out=out
            )
        if x.dtype.kind != "c":
            return real_rows(  # type: ignore[no-any-return]
                _to_real(x, "transform"), window, scale, n=n, axis=axis, full=True, conjugate=inverse, out=out
            )
        return complex_rows(  # type: ignore[no-any-return]
            x, window, scale, n=n, axis=axis, inverse=inverse, out=out
        )
