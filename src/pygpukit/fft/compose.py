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
    keyword_only = (x.name for x in OPERATORS[p.name].parameters if x.keyword_only)
    return {name: p.options[name] for name in keyword_only}


def _function(name: str) -> Callable[..., Any]:
    from pygpukit.fft import rows

    return {"fft_complex": rows.complex_rows, "fft_real": rows.real_rows, "fft_hermitian": rows.hermitian_rows}[name]


def by_copies(p: Problem) -> Callable[..., None]:
    """Transform contiguous copies."""
    options, function, name = _options(p), _function(p.name), p.name

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        (out,), (x, *rest) = results, given
        if out.size == 0:
            return
        if x.size == 0:
            out.fill(0)
            return
        if name != "fft_hermitian" and rest[0] is not None:
            rest[0] = rest[0].copy()
        made = function(x.copy(), *rest, **options)
        _native.apply("copy", (made,), out)

    return run


def by_transforms(name: str) -> Callable[[Problem], Callable[..., None]]:
    """Return the composition of an operator where no kernel holds a row."""
    return {"fft_complex": _complex, "fft_real": _real, "fft_hermitian": _hermitian}[name]


def _part(x: GPUArray, axis: int, start: int, count: int, step: int = 1) -> GPUArray:
    return x._slice(axis, start, count, step)


def _padded(x: GPUArray, axis: int, n: int) -> GPUArray:
    """The first ``n`` elements of an axis, zeros beyond those there are."""
    size = x.shape[axis]
    if size >= n:
        return _part(x, axis, 0, n)
    shape = list(x.shape)
    shape[axis] = n
    whole = empty(shape, x.dtype, device=x.device).fill(0)
    _native.apply("copy", (x,), _part(whole, axis, 0, size))
    return whole


def _windowed(x: GPUArray, window: GPUArray | None, axis: int) -> GPUArray:
    if window is None:
        return x
    for _ in range(x.ndim - axis - 1):
        window = window._expand(window.ndim)
    return _native.apply("mul", (x, window))


def _length(given: Any, size: int) -> int:
    return int(size if given is None else given)


def _complex(p: Problem) -> Callable[..., None]:
    options = _options(p)
    inverse = bool(options["inverse"])

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.fft.rows import complex_rows

        (out,), (x, window, scale) = results, given
        axis = options["axis"] % x.ndim
        n = _length(options["n"], x.shape[axis])
        real = _native.apply("real", (x,)).dtype
        if plan.is_smooth(n):
            x = _windowed(_padded(x, axis, n), window, axis)
            moved = x._permute([*(i for i in range(x.ndim) if i != axis), axis]).reshape((-1, n)).contiguous()
            made = _smooth(moved, n, real, inverse, scale).reshape([*(s for i, s in enumerate(x.shape) if i != axis), n])
            back = [*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)]
            _native.apply("copy", (made._permute(back),), out)
            return
        m = plan.convolution_length(n)
        # As in the kernel: an inverse transform is one of the conjugate.
        chirp, spectrum = _chirp(n, m, x, inverse)
        for _ in range(x.ndim - axis - 1):
            chirp, spectrum = chirp._expand(chirp.ndim), spectrum._expand(spectrum.ndim)
        x = _windowed(_padded(x, axis, n), window, axis)
        y = complex_rows(_native.apply("mul", (x, chirp)), n=m, axis=axis)
        y = _native.apply("mul", (y, spectrum), y)
        z = _part(complex_rows(y, scale=scale, axis=axis, inverse=True), axis, 0, n)
        _native.apply("mul", (z, chirp), out)

    return run


def _smooth(x: GPUArray, n: int, real: Any, inverse: bool, scale: Any) -> GPUArray:
    """Transform rows longer than two or three steps hold, or with padding: the steps as operators."""
    from pygpukit.fft.rows import complex_rows

    return complex_rows(x, scale=scale, inverse=inverse)  # type: ignore[no-any-return]


def _chirp(n: int, m: int, like: GPUArray, inverse: bool) -> tuple[GPUArray, GPUArray]:
    from pygpukit.fft.chirp import chirp

    return chirp(n, m, like, inverse)


def _real(p: Problem) -> Callable[..., None]:
    return lambda results, given: None


def _hermitian(p: Problem) -> Callable[..., None]:
    return lambda results, given: None
