"""Fourier transforms on the device against torch.fft (cuFFT).

Most rows read and write 512 MiB. First all transforms are compared with NumPy in double, on sizes that do not divide
evenly. `of_copy_rate` is what a copy of the input to the output would take, over what ours takes.

    python benchmarks/array/fft.py --json benchmarks/results/h200-array-fft.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
from harness import Bench

import pygpukit as gp
from pygpukit.fft import transform

MUST = 1.2
ELEMENTS = 1 << 26
LENGTHS = (1, 16, 37, 125, 400, 480, 1001, 1009, 1024, 4096, 16384, 32768, 65536, 65537, 98304, 1 << 22)
WIDE = (37, 125, 400, 1024, 65536)


def checked(what: str, got: Any, want: Any, n: int, wide: bool = False) -> None:
    """Stop at a result that is not NumPy's."""
    error = np.linalg.norm((got.to_numpy() - want).ravel()) / np.linalg.norm(want.ravel())
    if not error <= (1e-15 if wide else 3e-7) * max(1.0, log2(n)):
        raise SystemExit(f"{what}: the relative error is {error:.2e}")


def check() -> None:
    """Compare with NumPy before anything is timed."""
    rng = np.random.default_rng(3)
    for n in LENGTHS:
        rows = 5 if n < 10000 else 1
        for real, kind, wide in (("float32", "complex64", False), ("float64", "complex128", True))[: 1 + (n in WIDE)]:
            x = rng.standard_normal((rows, n)).astype(real)
            z = (x + 1j * rng.standard_normal((rows, n))).astype(kind)
            half = np.fft.rfft(x).astype(kind)
            checked(f"fft {n} {kind}", gp.fft.fft(gp.from_numpy(z)), np.fft.fft(z.astype(complex)), n, wide)
            checked(f"ifft {n} {kind}", gp.fft.ifft(gp.from_numpy(z)), np.fft.ifft(z.astype(complex)), n, wide)
            checked(f"rfft {n} {real}", gp.fft.rfft(gp.from_numpy(x)), np.fft.rfft(x.astype(float)), n, wide)
            checked(f"fft {n} {real}", gp.fft.fft(gp.from_numpy(x)), np.fft.fft(x.astype(float)), n, wide)
            back = np.fft.irfft(half.astype(complex), n)
            checked(f"irfft {n} {real}", gp.fft.irfft(gp.from_numpy(half), n), back, n, wide)
    x = rng.standard_normal((3, 60, 77)).astype("float32")
    checked("fftn", gp.fft.fftn(gp.from_numpy(x)), np.fft.fftn(x.astype(float)), 77)
    checked("rfft2", gp.fft.rfft2(gp.from_numpy(x)), np.fft.rfft2(x.astype(float)), 77)


def main() -> int:
    """Measure."""
    bench = Bench(__doc__)
    torch = bench.torch
    bench.check(check)

    def pair(shape: tuple[int, ...], kind: str) -> tuple[Any, Any]:
        theirs = torch.randn(shape, dtype=getattr(torch, kind), device="cuda")
        return gp.from_numpy(theirs.cpu().numpy()), theirs

    def row(what: str, shape: tuple[int, ...], kind: str, ours: Callable[..., Any], theirs: Callable[..., Any],
            must: float = MUST) -> None:  # fmt: skip
        if not bench.wanted(what):
            return
        x, y = pair(shape, kind)
        out = ours(x)
        bench.against_torch(what, lambda: ours(x, out=out), lambda: theirs(y), must, nbytes=x.nbytes + out.nbytes)

    for n in (400, 480, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
        row(f"rfft float32 {ELEMENTS // n} x {n}", (ELEMENTS // n, n), "float32", gp.fft.rfft, torch.fft.rfft)
    for n in (400, 1024, 4096, 65536):
        points = n // 2 + 1
        row(f"irfft float32 {ELEMENTS // n} x {n}", (ELEMENTS // n, points), "complex64", gp.fft.irfft, torch.fft.irfft)
    for power in range(10, 17):
        n, rows = 1 << power, ELEMENTS // 2 >> power
        row(f"fft complex64 {rows} x {n}", (rows, n), "complex64", gp.fft.fft, torch.fft.fft)
    row("fft complex64 1 x 2^24", (1, 1 << 24), "complex64", gp.fft.fft, torch.fft.fft)
    row("rfft float32 1 x 2^24", (1, 1 << 24), "float32", gp.fft.rfft, torch.fft.rfft)
    row("fft complex128 16384 x 1024", (16384, 1024), "complex128", gp.fft.fft, torch.fft.fft)
    row("fft complex64 33000 x 1009", (33000, 1009), "complex64", gp.fft.fft, torch.fft.fft)
    row("fft complex64 1000 x 32749", (1000, 32749), "complex64", gp.fft.fft, torch.fft.fft)
    columns = {"axis": 1}, {"dim": 1}
    row(
        "fft complex64 64 x 512 x 1024, middle axis", (64, 512, 1024), "complex64",
        lambda x, out=None: gp.fft.fft(x, **columns[0], out=out), lambda y: torch.fft.fft(y, **columns[1]),
    )  # fmt: skip
    row(
        "fft2 complex64 128 x 512 x 512", (128, 512, 512), "complex64",
        lambda x, out=None: gp.fft.fft2(x, out=out), torch.fft.fft2,
    )  # fmt: skip
    row(
        "rfft2 float32 256 x 512 x 512", (256, 512, 512), "float32",
        lambda x, out=None: gp.fft.rfft2(x, out=out), torch.fft.rfft2,
    )  # fmt: skip

    # Short-time transform: windowed frames of 400 points, 160 apart, points before frames.
    signal, theirs = pair((64, 160000), "float32")
    window = torch.hann_window(400, device="cuda")
    ours = gp.from_numpy(window.cpu().numpy())
    spectrum = transform(signal, 400, real=True, window=ours, hop=160)
    frames = np.lib.stride_tricks.sliding_window_view(signal[0].to_numpy().astype(float), 400)[::160]
    checked("frames", spectrum[0], np.fft.rfft(frames * ours.to_numpy()), 400)
    bench.against_torch(
        "stft float32 64 x 160000, frames of 400",
        lambda: transform(signal, 400, real=True, window=ours, hop=160, out=spectrum),
        lambda: torch.stft(theirs, 400, 160, window=window, center=False, return_complex=True),
        MUST,
        nbytes=signal.nbytes + spectrum.nbytes,
    )
    return bench.finish("python benchmarks/array/fft.py")


if __name__ == "__main__":
    sys.exit(main())
