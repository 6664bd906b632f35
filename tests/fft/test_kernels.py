"""The kernels against numpy.fft in double: radices, lengths, layouts, windows, frames, steps and convolutions."""

from __future__ import annotations

from typing import Any

import fft_cases
import numpy as np
import pytest

import pygpukit as gp
from pygpukit.fft import plan, transform
from pygpukit.ops import planner
from pygpukit.ops.registry import load

GPU_DEVICES = [d for d in fft_cases.DEVICES if d != "cpu"]
# Every radix, one and more passes, a prime beyond them; others have the same code.
LENGTHS = (1, 2, 11, 13, 25, 37, 42, 120)
MORE_LENGTHS = (*range(1, 65), 20, 243, 400, 480, 512, 1000, 1001, 1009, 1024, 4096, 8192, 16384)


def check(x: fft_cases.Array, **options: Any) -> None:
    """All transforms of complex rows, or of real rows, along an axis."""
    device_array = gp.from_numpy(x)
    axis = options.get("axis", -1)
    n = options.get("n", x.shape[axis])
    context = f"{x.dtype}{x.shape} {options}"
    wide = fft_cases.wide(x)
    names = ("fft", "ifft") if x.dtype.kind == "c" else ("fft", "ifft", "rfft", "ihfft")
    for name in names:
        got = getattr(gp.fft, name)(device_array, **options)
        fft_cases.assert_near(got.to_numpy(), getattr(np.fft, name)(wide, **options), n, f"{name} of {context}")
    if x.dtype.kind == "c":
        return
    half = np.fft.rfft(x, **options).astype("complex64" if x.dtype == np.float32 else "complex128")
    for name in ("irfft", "hfft"):
        got = getattr(gp.fft, name)(gp.from_numpy(half), n, axis)
        want = getattr(np.fft, name)(fft_cases.wide(half), n, axis)
        fft_cases.assert_near(got.to_numpy(), want, n, f"{name} of {context}")


@pytest.mark.parametrize("kind", GPU_DEVICES)
def test_lengths(kind: str) -> None:
    with gp.device(kind):
        for n in MORE_LENGTHS if kind == "cuda" else LENGTHS:
            check(fft_cases.values((3, n), "complex64"))
            if kind == "cuda" or n not in (11, 13):
                check(fft_cases.values((3, n), "float32"))
        for n in MORE_LENGTHS if kind == "cuda" else (30,):
            check(fft_cases.values((2, n), "complex128"))
            check(fft_cases.values((2, n), "float64"))


@pytest.mark.parametrize("kind", GPU_DEVICES)
def test_longest_row_of_a_block(kind: str) -> None:
    with gp.device(kind):
        # Real and imaginary parts move through shared memory in turn.
        x = fft_cases.values((1, 16384), "complex64")
        fft_cases.assert_near(gp.fft.ifft(gp.from_numpy(x)).to_numpy(), np.fft.ifft(fft_cases.wide(x)), 16384)


@pytest.mark.parametrize("kind", GPU_DEVICES)
def test_layouts(kind: str) -> None:
    with gp.device(kind):
        for name, dtype in (("fft", "complex64"), ("rfft", "float32"), ("irfft", "complex64")):
            base = fft_cases.values((3, 12, 4, 12), dtype)
            x = gp.from_numpy(base)
            for axis, view, host in (
                (3, x, base),
                (1, x, base),
                (1, x.transpose(3, 1, 2, 0), base.transpose(3, 1, 2, 0)),
                (3, x[::-1, ::-2, ::3, ::-1], base[::-1, ::-2, ::3, ::-1]),
                (1, x[:, :, 1:2]._broadcast_to([3, 12, 5, 12]), np.broadcast_to(base[:, :, 1:2], (3, 12, 5, 12))),
                (-1, x[0, 0, 0], base[0, 0, 0]),
            ):
                for n in (12, 16) if name == "rfft" else (12,):
                    got = getattr(gp.fft, name)(view, n, axis)
                    want = getattr(np.fft, name)(fft_cases.wide(host), n, axis)
                    fft_cases.assert_near(got.to_numpy(), want, n, f"{name} {axis} {n} {host.strides}")
        # Results in another order, and four separate levels of rows.
        r, base = (f(fft_cases.values((2, 3, 12), "float32")) for f in (gp.from_numpy, fft_cases.wide))
        out = gp.empty((2, 7, 3), "complex64").transpose(0, 2, 1)
        fft_cases.assert_near(gp.fft.rfft(r, out=out).to_numpy(), np.fft.rfft(base), 12)
        many = fft_cases.values((2, 4, 2, 4, 12), "complex64")
        got = gp.fft.fft(gp.from_numpy(many)[:, ::2].transpose(3, 0, 2, 1, 4)[::2])
        want = np.fft.fft(fft_cases.wide(many[:, ::2].transpose(3, 0, 2, 1, 4)[::2]))
        fft_cases.assert_near(got.to_numpy(), want, 12)
        for shape in ((0, 12), (3, 0)):
            assert gp.fft.fft(gp.zeros(shape, "complex64"), 12).to_numpy().tolist() == [[0] * 12] * shape[0]
        assert gp.fft.rfft2(gp.from_numpy(base.astype("float32"))).shape == (2, 3, 7)


@pytest.mark.parametrize("kind", fft_cases.DEVICES)
def test_windows_scales_and_frames(kind: str) -> None:
    with gp.device(kind):
        signal, window = fft_cases.values((2, 61), "float32"), fft_cases.values((16,), "float32", 1)
        x, w = gp.from_numpy(signal), gp.from_numpy(window)
        for hop in (4, 5):
            frames = np.lib.stride_tricks.sliding_window_view(fft_cases.wide(signal), 16, -1)[:, ::hop]
            want = np.fft.rfft(frames * window) * 0.5
            got = transform(x, 16, real=True, window=w, scale=0.5, hop=hop)
            fft_cases.assert_near(got.to_numpy(), want, 16, f"hop {hop}")
            plain = transform(x, 16, real=True, hop=hop)
            fft_cases.assert_near(plain.to_numpy(), np.fft.rfft(frames), 16, f"hop {hop}")
        # Points before frames, as spectrograms are stored.
        out = gp.empty((2, 9, want.shape[1]), "complex64")
        transform(x, 16, real=True, window=w, scale=0.5, hop=5, out=out.transpose(0, 2, 1))
        fft_cases.assert_near(out.to_numpy().transpose(0, 2, 1), want, 16)
        short = transform(x[:, :10], 16, window=w, scale=2.0, inverse=True)
        padded = np.pad(fft_cases.wide(signal[:, :10]), ((0, 0), (0, 6))) * window
        fft_cases.assert_near(short.to_numpy(), np.fft.ifft(padded) * 32, 16)
        z = transform(gp.from_numpy(signal[:, :16].astype("complex64")), window=w)
        fft_cases.assert_near(z.to_numpy(), np.fft.fft(signal[:, :16].astype(complex) * window), 16)
        back = transform(got[:, 0], 16, real=True, inverse=True, scale=1 / 16)
        fft_cases.assert_near(back.to_numpy(), fft_cases.wide(signal[:, :16]) * window * 0.5, 16)
        for wrong, text in (({"hop": 2}, "real=True"), ({"real": True, "inverse": True, "window": w}, "no window")):
            with pytest.raises(ValueError, match=text):
                transform(x, 16, **wrong)  # type: ignore[arg-type]
        with pytest.raises(gp.ShapeError, match="no frame of 62"):
            transform(x, 62, real=True, hop=1)
        with pytest.raises(gp.ShapeError, match="window"):
            transform(x, 12, real=True, window=w)
        with pytest.raises(gp.DTypeError, match="window"):
            transform(x, 16, real=True, window=w.astype("float64"))


@pytest.mark.parametrize("kind", GPU_DEVICES)
def test_long_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gp._pygpukit_rust.clear_plans()
    lengths: tuple[int, ...] = (65536, 32768 * 3, 2**21, 65537, 2 * 65537, 40001)
    if kind != "cuda":
        # The same paths with short rows.
        monkeypatch.setattr(plan, "MOST_POINTS", {4: 16, 8: 16})
        lengths = (96, 37, 74, 27)
    with gp.device(kind):
        for n in lengths:
            check(fft_cases.values((2, n), "float32"))
            check(fft_cases.values((2, n), "complex64"))
        n = lengths[0]
        check(fft_cases.values((n, 3), "complex64"), axis=0)
        check(fft_cases.values((2, n + 3), "float32"), n=n)
        window, signal = fft_cases.values((n,), "float32"), fft_cases.values((2, n - 3), "float32")
        got = transform(gp.from_numpy(signal), n, real=True, window=gp.from_numpy(window))
        want = np.fft.rfft(np.pad(fft_cases.wide(signal), ((0, 0), (0, 3))) * window)
        fft_cases.assert_near(got.to_numpy(), want, n)
        if kind != "cuda":
            framed = transform(gp.from_numpy(signal[:, : n - 3]), 74, real=True, hop=9)
            want = np.fft.rfft(np.lib.stride_tricks.sliding_window_view(fft_cases.wide(signal), 74, -1)[:, ::9])
            fft_cases.assert_near(framed.to_numpy(), want, 74)
            with monkeypatch.context() as patch:
                patch.setattr(plan, "steps", lambda n, wide: (4, 3, 5) if n == 60 else None)
                for inverse in (False, True):
                    x = fft_cases.values((2, 60), "complex64")
                    got = transform(gp.from_numpy(x), inverse=inverse)
                    want = np.fft.ifft(fft_cases.wide(x)) * 60 if inverse else np.fft.fft(fft_cases.wide(x))
                    fft_cases.assert_near(got.to_numpy(), want, 60, f"three steps, inverse={inverse}")
        else:
            x = fft_cases.values((1, 2**24), "complex64")
            fft_cases.assert_near(gp.fft.fft(gp.from_numpy(x)).to_numpy(), np.fft.fft(fft_cases.wide(x)), 2**24)
    gp._pygpukit_rust.clear_plans()


@pytest.mark.parametrize("kind", GPU_DEVICES)
def test_without_a_compiler_bundled_lengths_make_the_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = [op for op in load().values() if op.name.startswith("fft_")]
    bundled = {unit.name for op in operators for unit in op.units(["float32", "complex64"])}
    monkeypatch.setattr(planner, "_loadable", lambda unit, device: None if unit.name in bundled else "it is missing")
    gp._pygpukit_rust.clear_plans()
    with gp.device(kind):
        check(fft_cases.values((2, 20), "complex64"))
        check(fft_cases.values((21, 2), "float32"), axis=0)
        for wrong in (gp.ones(4000, "complex64"), gp.ones(20, "complex128")):
            with pytest.raises(gp.DeviceError, match="it is missing"):
                gp.fft.fft(wrong)
    gp._pygpukit_rust.clear_plans()


@pytest.mark.parametrize("kind", GPU_DEVICES)
def test_bits_depend_on_the_row_alone(kind: str) -> None:
    with gp.device(kind):
        x = fft_cases.values((5, 120), "complex64")
        rows = gp.fft.fft(gp.from_numpy(x)).to_numpy()
        columns = gp.fft.fft(gp.from_numpy(np.ascontiguousarray(x.T)), axis=0).to_numpy()
        turned = gp.fft.fft(gp.from_numpy(x), out=gp.empty((120, 5), "complex64").T).to_numpy()
        one = gp.fft.fft(gp.from_numpy(x[3])).to_numpy()
        assert rows.tobytes() == columns.T.tobytes() == turned.tobytes()
        assert one.tobytes() == rows[3].tobytes()
