"""Transforms made of others: with copies for layouts without a kernel, and by a convolution for long prime factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.fft import plan
from pygpukit.ops.problem import Problem
from pygpukit.ops.registry import OPERATORS

__all__ = ["by_copies", "by_transforms"]


def _options(p: Problem) -> dict[str, Any]:
    return {x.name: p.options[x.name] for x in OPERATORS[p.name].parameters if x.keyword_only}


def _function(name: str) -> Callable[..., Any]:
    from pygpukit.fft import rows

    return {"fft_complex": rows.complex_rows, "fft_real": rows.real_rows, "fft_hermitian": rows.hermitian_rows}[name]


def by_copies(p: Problem) -> Callable[..., None]:
    """Transform contiguous copies."""
    options, function = _options(p), _function(p.name)
    windowed = p.name != "fft_hermitian"

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        (out,), (x, *rest) = results, given[: 2 + windowed]
        if out.size == 0:
            return
        if x.size == 0:
            out.fill(0)
            return
        if windowed and rest[0] is not None:
            rest[0] = rest[0].copy()
        _native.apply("copy", (function(x.copy(), *rest, **options),), out)

    return run


def by_transforms(p: Problem) -> Callable[..., None]:
    """Transform rows that no kernel holds: first as plain rows, then by the operators that hold them."""
    name, options, windowed = p.name, _options(p), p.name != "fft_hermitian"
    given_n = options.pop("n")
    axis, hop = options.pop("axis"), options.pop("hop", None)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        (out,), x, scale = results, given[0], given[1 + windowed]
        window = given[1] if windowed else None
        last = axis % x.ndim
        size = x.shape[last]
        n = int(given_n if given_n is not None else 2 * (size - 1) if name == "fft_hermitian" else size)
        held = n // 2 + 1 if name == "fft_hermitian" else n
        if hop is None and window is None and x.ndim == 2 and last == 1 and size == held and x.is_contiguous:
            _native.apply("copy", (_WHOLE[name](x, n, scale, **options),), out)
            return
        if hop is not None:
            x, last = _frames(x, n, hop), x.ndim
        others = [i for i in range(x.ndim) if i != last]
        x = x._permute([*others, last])
        shape = x.shape[:-1]
        x = _padded(x, held)
        if window is not None:
            x = _native.apply("mul", (x, window))
        plain = x.reshape((-1, held)).contiguous()
        made = _function(name)(plain, *[None] * windowed, scale, n=n, **options)
        made = made.reshape((*shape, made.shape[1]))
        _native.apply("copy", (made._permute([*range(last), made.ndim - 1, *range(last, made.ndim - 1)]),), out)

    return run


def _first(x: GPUArray, count: int, start: int = 0) -> GPUArray:
    """``count`` elements of the last axis."""
    return x._slice(x.ndim - 1, start, count, 1)


def _padded(x: GPUArray, n: int) -> GPUArray:
    """The first ``n`` elements of the last axis, zeros beyond those there are."""
    size = x.shape[-1]
    if size >= n:
        return _first(x, n)
    whole = empty((*x.shape[:-1], n), x.dtype, device=x.device).fill(0)
    _native.apply("copy", (x,), _first(whole, size))
    return whole


def _frames(x: GPUArray, n: int, hop: int) -> GPUArray:
    """Frames of the last axis, written out."""
    count = (x.shape[-1] - n) // hop + 1
    made = empty((*x.shape[:-1], count, n), x.dtype, device=x.device)
    for i in range(count):
        _native.apply("copy", (_first(x, n, i * hop),), made._select(made.ndim - 2, i))
    return made


def _convolved(x: GPUArray, n: int, scale: Any, inverse: bool = False) -> GPUArray:
    """Contiguous rows of any length, as products with a chirp around a convolution with its inverse (Bluestein)."""
    from pygpukit.fft.rows import chirp_pair, complex_rows

    real = _native.apply("real", (_first(x, 0),)).dtype
    m = plan.convolution_length(n)
    if m <= plan.limit(real):
        # Its kernel is missing, as others are: without a compiler there are those of a bundle.
        m = plan.bundled_convolution(n, real) or m
    chirp, kernel = chirp_pair(x, n=n, m=m, inverse=inverse)
    spectrum = complex_rows(_native.apply("mul", (x, chirp)), n=m)
    _native.apply("mul", (spectrum, complex_rows(kernel)), spectrum)
    convolved = complex_rows(spectrum, None, 1.0 / m, inverse=True)
    result = _native.apply("mul", (_first(convolved, n), chirp))
    return result if scale == 1 else _native.apply("mul", (result, scale), result)


def _real(x: GPUArray, n: int, scale: Any, full: bool, conjugate: bool) -> GPUArray:
    from pygpukit.fft.rows import complex_of, complex_rows

    whole = complex_rows(x.astype(complex_of(x.dtype)), None, scale)
    half = whole if full else _first(whole, n // 2 + 1)
    return _native.apply("conj", (half,)) if conjugate else half


def _hermitian(x: GPUArray, n: int, scale: Any, conjugate: bool) -> GPUArray:
    from pygpukit.fft.rows import complex_rows

    whole = empty((x.shape[0], n), x.dtype, device=x.device)
    half, back = n // 2 + 1, (n - 1) // 2
    _native.apply("copy", (x,), _first(whole, half))
    for i in (0, n // 2) if n % 2 == 0 else (0,):
        # NumPy ignores the imaginary parts of numbers that have to be real.
        _native.apply("copy", (_native.apply("real", (_first(x, 1, i),)),), _first(whole, 1, i))
    if back:
        # Numbers back, ..., 1 belong at n - back, ..., n - 1.
        _native.apply("conj", (_first(x, back, 1)._slice(1, back - 1, back, -1),), _first(whole, back, n - back))
    if conjugate:
        _native.apply("conj", (whole,), whole)
    return _native.apply("real", (complex_rows(whole, None, scale, inverse=True),))


_WHOLE: dict[str, Callable[..., GPUArray]] = {"fft_complex": _convolved, "fft_real": _real, "fft_hermitian": _hermitian}
