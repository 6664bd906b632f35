"""The public functions against numpy.fft on the CPU device: values, types, shapes, exceptions."""

from __future__ import annotations

from typing import Any

import fft_cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp

ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
MANY_AXES = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")
KINDS = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128")


@pytest.fixture(autouse=True)
def on_the_cpu_device() -> Any:
    with gp.device("cpu"):
        yield


def same(name: str, x: fft_cases.Array, *args: Any, **kwargs: Any) -> None:
    """Both give the same values, type and shape, or an exception of the same class."""
    context = f"{name} of {x.dtype}{x.shape} {args} {kwargs}"
    wrong: type[Exception] | None = None
    try:
        want = getattr(np.fft, name)(x, *args, **kwargs)
    except (ValueError, IndexError, TypeError) as error:
        wrong = type(error)
    if wrong is not None:
        with pytest.raises(wrong):
            getattr(gp.fft, name)(gp.from_numpy(x), *args, **kwargs)
        return
    got = getattr(gp.fft, name)(gp.from_numpy(x), *args, **kwargs)
    assert got.shape == want.shape, context
    assert got.to_numpy().dtype == want.dtype, context
    if x.dtype == np.float16:
        # NumPy rounds the factor to float16.
        np.testing.assert_allclose(got.to_numpy(), want, rtol=4e-3, atol=2e-3, err_msg=context)
        return
    fft_cases.assert_near(got.to_numpy(), fft_cases.wide(want), max(x.shape, default=1), context)


@pytest.mark.parametrize("name", ONE_AXIS)
def test_one_axis(name: str) -> None:
    for kind in KINDS:
        if name in ("rfft", "ihfft") and kind.startswith("complex"):
            with pytest.raises(TypeError, match="real numbers"):
                getattr(gp.fft, name)(gp.ones(3, kind))
            continue
        x = fft_cases.values((3, 6, 5), kind)
        for axis in (0, 1, -1):
            for n in (None, 4, 9):
                same(name, x, n, axis)
        same(name, x, norm="ortho")
        same(name, x, norm="forward")
        same(name, x[::-1, ::2].transpose(2, 0, 1), axis=1)
    for n in range(1, 65):
        same(name, fft_cases.values((2, n), "float32"), n)
    for bad in ({"n": 0}, {"n": -3}, {"axis": 3}, {"axis": -4, "n": 3}, {"norm": "half"}, {"n": 2.5}):
        same(name, fft_cases.values((3, 4, 5), "float32"), **bad)
    same(name, np.float32(3.0) * np.ones(()))
    same(name, np.zeros((2, 0), np.float32))
    same(name, np.zeros((0, 4), np.float32))
    empty = gp.zeros((2, 0), "float32")
    assert not getattr(gp.fft, name)(empty, 4).to_numpy().any()


@pytest.mark.parametrize("name", MANY_AXES)
def test_many_axes(name: str) -> None:
    for kind in ("int32", "float32", "complex128"):
        if name in ("rfftn", "rfft2") and kind == "complex128":
            continue
        x = fft_cases.values((4, 3, 6), kind)
        same(name, x)
        same(name, x, norm="ortho")
        same(name, x, norm="forward")
        cases = ((5, 2), (0, 2)), ((2, -1), (1, -1)), ((4, 4), (-1, -2)), (None, (0, 1)), (None, (2,)), (None, (1, 1))
        for s, axes in cases:
            same(name, x, s, axes)
    for bad in ({"s": (3,), "axes": (0, 1)}, {"axes": (0, 3)}, {"s": (0, 2), "axes": (0, 1)}, {"norm": "half"}):
        same(name, fft_cases.values((3, 4, 5), "float32"), **bad)


def test_small_floats_are_computed_in_float32() -> None:
    for kind in ("float16", "bfloat16", "float8_e5m2"):
        x = gp.from_numpy(np.linspace(-1, 1, 12, dtype=np.float32)).astype(kind)
        got = gp.fft.fft(x)
        assert got.dtype is gp.complex64
        np.testing.assert_allclose(got.to_numpy(), np.fft.fft(x.astype("float32").to_numpy()), rtol=1e-6, atol=1e-6)
        assert gp.fft.irfft(x).dtype is x.dtype
        assert gp.fft.hfft(x, out=gp.empty(22, "float32")).dtype is gp.float32


def test_out_and_stream() -> None:
    x = gp.from_numpy(fft_cases.values((3, 8), "complex64"))
    out = gp.empty((3, 8), "complex64")
    with gp.Stream() as stream:
        assert gp.fft.fft(x, out=out, stream=stream) is out
    np.testing.assert_array_equal(out.to_numpy(), np.fft.fft(x.to_numpy()))
    want = np.fft.fft(x.to_numpy())
    assert gp.fft.fft(x, out=x) is x
    np.testing.assert_array_equal(x.to_numpy(), want)
    half, whole = gp.empty((3, 5), "complex64"), gp.empty((8, 3), "float32").T
    r = gp.from_numpy(fft_cases.values((3, 8), "float32"))
    assert gp.fft.rfftn(r, out=half) is half
    fft_cases.assert_near(half.to_numpy(), np.fft.rfftn(fft_cases.wide(r.to_numpy())), 24)
    assert gp.fft.irfftn(half, out=whole) is whole
    fft_cases.assert_near(whole.to_numpy(), fft_cases.wide(r.to_numpy()), 24)
    assert gp.fft.fftn(r, axes=(), out=gp.empty((3, 8), "float32")).tolist() == r.tolist()
    with pytest.raises(gp.DTypeError, match="complex64"):
        gp.fft.fft(x, out=gp.empty((3, 8), "complex128"))
    with pytest.raises(gp.ShapeError):
        gp.fft.fft(x, out=gp.empty((3, 7), "complex64"))
    assert gp.fft.fft([1.0, 2.0]).tolist() == [3.0, -1.0]
    for transform in (gp.fft.fft, gp.fft.fftn):
        with pytest.raises(TypeError, match="from_numpy"):
            transform(np.ones(3))


def test_frequencies_and_shifts() -> None:
    for n in (1, 2, 5, 8):
        for d in (1.0, 0.25):
            np.testing.assert_array_equal(gp.fft.fftfreq(n, d).to_numpy(), np.fft.fftfreq(n, d))
            np.testing.assert_array_equal(gp.fft.rfftfreq(n, d).to_numpy(), np.fft.rfftfreq(n, d))
    with pytest.raises(ValueError, match="integer"):
        gp.fft.fftfreq(2.5)  # type: ignore[arg-type]
    for shape in ((1,), (5,), (4, 3), (2, 0, 3), (3, 4, 5)):
        x = fft_cases.values(shape, "float32")
        for axes in (None, 0, -1, tuple(range(len(shape))), (0, 0)):
            for name in ("fftshift", "ifftshift"):
                want, got = getattr(np.fft, name)(x, axes), getattr(gp.fft, name)(gp.from_numpy(x), axes)
                np.testing.assert_array_equal(got.to_numpy(), want, f"{name} {axes}")
    with pytest.raises(IndexError):
        gp.fft.fftshift(gp.ones(3), 1)


@settings(max_examples=40, derandomize=True)
@given(st.integers(1, 300), st.integers(0, 5), st.sampled_from(["float32", "float64"]))
def test_properties(n: int, shift: int, kind: str) -> None:
    x, y = (gp.from_numpy(fft_cases.values((n,), kind, seed)) for seed in (1, 2))
    spectrum = gp.fft.fft(x).to_numpy()
    limit = (1e-12 if kind == "float64" else 1e-5) * max(1.0, float(np.abs(spectrum).max()))
    # Linear, keeps the energy, turns a shift into a phase, and its inverse gives back what it was given.
    both = gp.fft.fft(gp.add(gp.mul(x, 2.0), y)).to_numpy()
    assert np.abs(both - 2 * spectrum - gp.fft.fft(y).to_numpy()).max() <= 4 * limit
    power = float(np.sum(np.abs(spectrum) ** 2) / n)
    assert power == pytest.approx(float(np.sum(x.to_numpy() ** 2)), rel=1e-4, abs=1e-6)
    phase = np.exp(-2j * np.pi * np.arange(n) * shift / n)
    moved = gp.fft.fft(gp.from_numpy(np.roll(x.to_numpy(), shift))).to_numpy()
    assert np.abs(moved - spectrum * phase).max() <= limit * 4
    assert np.abs(gp.fft.ifft(gp.fft.fft(x)).to_numpy() - x.to_numpy()).max() <= limit
    assert np.abs(gp.fft.irfft(gp.fft.rfft(x), n).to_numpy() - x.to_numpy()).max() <= limit
