"""Transforms: inversion, energy, linearity, shifts, batches, values that are not finite, and wrong parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import SR, clipped, noise, silence, speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.audio import spectrum
from pygpukit.errors import ParameterError


def values(n: int, seed: int = 0, kind: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(n).astype(kind)


@pytest.mark.filterwarnings("ignore:n_fft")
@settings(max_examples=40)
@given(
    n=st.integers(1, 300), n_fft=st.integers(2, 70), hop_part=st.integers(2, 6), seed=st.integers(0, 99),
    wide=st.booleans(), window=st.sampled_from(["hann", "hamming", "boxcar", ("kaiser", 4.0)]),
)  # fmt: skip
def test_the_inverse_gives_the_samples_back(
    n: int, n_fft: int, hop_part: int, seed: int, wide: bool, window: Any
) -> None:
    y = values(n, seed, "float64" if wide else "float32")
    hop = max(1, n_fft // hop_part)
    options: dict[str, Any] = {"hop_length": hop, "n_fft": n_fft, "window": window}
    D = A.stft(gp.asarray(y), **options)
    assert D.shape == (n_fft // 2 + 1, 1 + (n + 2 * (n_fft // 2) - n_fft) // hop)
    back = A.istft(D, length=n, **options).to_numpy()
    assert back.shape == (n,)
    # Where frames leave a sample uncovered nothing is known of it: the last ones, and those on which a window is 0.
    w = A.get_window(window, n_fft)
    cover = np.zeros(n + 2 * n_fft)
    for t in range(D.shape[1]):
        cover[t * hop : t * hop + n_fft] += w**2
    covered = cover[n_fft // 2 : n_fft // 2 + n] > 1e-3
    np.testing.assert_allclose(back[covered], y[covered], atol=1e-11 if wide else 2e-4 * np.abs(y).max())


def test_energy_is_kept() -> None:
    y = values(4096, 1, "float64")
    D = A.stft(gp.asarray(y), n_fft=64, hop_length=64, window="boxcar", center=False).to_numpy()
    doubled = np.r_[1.0, np.full(31, 2.0), 1.0][:, None]
    np.testing.assert_allclose((doubled * np.abs(D) ** 2).sum() / 64, (y**2).sum(), rtol=1e-12)


def test_it_is_linear_and_moves_with_the_samples() -> None:
    a, b = values(900, 1, "float64"), values(900, 2, "float64")

    def stft(y: Any) -> Any:
        return A.stft(gp.asarray(y), n_fft=60, hop_length=20).to_numpy()

    np.testing.assert_allclose(stft(2 * a - b), 2 * stft(a) - stft(b), atol=1e-12)
    np.testing.assert_array_equal(stft(a[20:])[:, 3:-4], stft(a)[:, 4:-4])


@pytest.mark.parametrize("n_fft", [2, 3, 5, 31, 34, 37, 401, 1000, 2310])
def test_any_length_of_frames(n_fft: int) -> None:
    y = values(5000, n_fft)
    hop = max(1, n_fft // 3)
    got = A.stft(gp.asarray(y), n_fft=n_fft, hop_length=hop, center=False).to_numpy()
    frames = np.lib.stride_tricks.sliding_window_view(y.astype(np.float64), n_fft)[::hop]
    want = np.fft.rfft(frames * A.get_window("hann", n_fft)).T
    np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("pad_mode", ["constant", "edge", "reflect", "symmetric"])
def test_a_long_sound_has_the_frames_of_its_padded_samples(pad_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for n, hop, size in ((64, 16, 700), (65, 20, 701), (30, 47, 900), (16, 3, 300), (64, 64, 512), (7, 1, 100)):
        y = gp.asarray(noise()[:size])
        whole = A.stft(y, n_fft=n, hop_length=hop, pad_mode=pad_mode)
        with monkeypatch.context() as patch:
            patch.setattr(spectrum, "_LONG", 0)
            parts = A.stft(y, n_fft=n, hop_length=hop, pad_mode=pad_mode)
        assert parts.strides == whole.strides
        assert parts.to_numpy().tobytes() == whole.to_numpy().tobytes(), (n, hop, size)


def test_nan_stays_in_its_frames() -> None:
    y = noise()
    bad = y.copy()
    bad[3000] = np.nan
    good, got = (A.melspectrogram(y=gp.asarray(x), sr=SR, n_fft=256, hop_length=64).to_numpy() for x in (y, bad))
    touched = np.isnan(got).any(0)
    np.testing.assert_array_equal(np.flatnonzero(touched), np.arange(3000 // 64 - 1, 3000 // 64 + 3))
    np.testing.assert_array_equal(got[:, ~touched], good[:, ~touched])


def test_silence_and_clipping() -> None:
    assert not A.stft(gp.asarray(silence())).to_numpy().any()
    quiet = A.power_to_db(A.melspectrogram(y=gp.asarray(silence()))).to_numpy()
    np.testing.assert_allclose(quiet, -100, atol=1e-4)
    m, p = A.magphase(A.stft(gp.asarray(silence()), n_fft=64))
    np.testing.assert_array_equal(p.to_numpy(), 1)
    assert not m.to_numpy().any()
    assert np.isfinite(A.mfcc(y=gp.asarray(clipped())).to_numpy()).all()


@pytest.mark.parametrize("name", A.windows.NAMES)
def test_windows_are_symmetric_and_periodic_ones_go_on(name: str) -> None:
    named: Any = {"kaiser": ("kaiser", 5.0), "gaussian": ("gaussian", 3.0)}.get(name, name)
    for n in (1, 2, 7, 16):
        w = A.get_window(named, n, fftbins=False)
        np.testing.assert_allclose(w, w[::-1], atol=1e-12)
        periodic = A.get_window(named, n + 1, fftbins=False)[:n] if n > 1 else np.ones(1)
        np.testing.assert_array_equal(A.get_window(named, n), periodic)


@pytest.mark.filterwarnings("ignore:n_fft")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda y: A.stft(y, n_fft=1), "n_fft is 1; it is at least 2"),
        (lambda y: A.stft(y, n_fft=64.5), "n_fft is 64.5; it is a whole number"),
        (lambda y: A.stft(y, hop_length=0), "hop_length is 0"),
        (lambda y: A.stft(y, n_fft=64, win_length=65), "win_length 65 is over n_fft 64"),
        (lambda y: A.stft(y, n_fft=64, window="han"), "no window 'han'"),
        (lambda y: A.stft(y, n_fft=64, window=[1.0] * 63), "64 values are needed"),
        (lambda y: A.stft(y, n_fft=64, window="kaiser"), "needs a number"),
        (lambda y: A.stft(y, pad_mode="wrap"), "pad_mode is 'wrap'; with center=True it is one of constant, edge"),
        (lambda y: A.stft(y, pad_mode="zzz"), "pad_mode is 'zzz'"),
        (lambda y: A.stft(y, window=object()), "it is a name, a tuple, a number, a function or values"),
        (lambda y: A.stft(y, window=("kaiser", "a")), "other arguments than numbers"),
        (lambda y: A.melspectrogram(y=y, power="x"), "power is 'x'; it is a finite number"),
        (lambda y: A.melspectrogram(y=y, sr="x"), "sr is 'x'"),
        (lambda y: A.melspectrogram(y=y, fmin=None), "fmin is None"),
        (lambda y: A.mfcc(y=y, lifter="x"), "lifter is 'x'"),
        (lambda y: A.power_to_db(y, amin="x"), "amin is 'x'"),
        (lambda y: A.power_to_db(y, ref="x"), "ref is 'x'"),
        (lambda y: A.amplitude_to_db(y, top_db=float("nan")), "top_db is nan"),
        (lambda y: A.griffinlim(gp.abs(A.stft(y)), momentum="x"), "momentum is 'x'"),
        (lambda y: A.griffinlim(gp.abs(A.stft(y)), random_state=1 << 32), "seeds of NumPy's generator are under"),
        (lambda y: A.resample(y, orig_sr=None, target_sr=1), "orig_sr is None"),
        (lambda y: A.stft(y, n_fft=2000, center=False), "n_fft=2000 is over the 1000 samples"),
        (lambda y: A.stft(gp.zeros(0, "float32")), "there are no samples"),
        (lambda y: A.stft(gp.zeros(9, "int16")), "divide by 32768"),
        (lambda y: A.stft(gp.zeros(9, "float16")), "convert with astype"),
        (lambda y: A.stft(np.zeros(9)), r"gp.asarray\(y\)"),
        (lambda y: A.istft(y), "complex GPUArray"),
        (lambda y: A.istft(A.stft(y, n_fft=64), n_fft=62), "33 bins, where n_fft=62 makes 32"),
        (lambda y: A.melspectrogram(), "give samples y or a spectrogram S"),
        (lambda y: A.melspectrogram(y=y, n_mels=0), "n_mels is 0"),
        (lambda y: A.melspectrogram(y=y, fmin=500, fmax=400), "fmax 400.0 above it"),
        (lambda y: A.mfcc(y=y, lifter=-1), "lifter is -1"),
        (lambda y: A.power_to_db(y, amin=0), "amin is 0"),
        (lambda y: A.power_to_db(y, top_db=-1), "top_db is -1"),
        (lambda y: A.griffinlim(gp.abs(A.stft(y)), momentum=-1), "momentum is -1"),
        (lambda y: A.griffinlim(gp.abs(A.stft(y)), init="zeros"), "init is 'zeros'"),
        (lambda y: A.resample(y, orig_sr=0, target_sr=1), "orig_sr is 0"),
        (lambda y: A.resample(y, orig_sr=2, target_sr=1, res_type="fft"), "res_type is 'fft'"),
        (lambda y: A.dct(y, type=4), "type 4"),
        (lambda y: A.delta(y, width=4), "width is 4"),
        (lambda y: A.phase_vocoder(A.stft(y), rate=0), "rate is 0"),
    ],
)
def test_wrong_parameters_are_named(call: Callable[[Any], Any], text: str) -> None:
    y = gp.ones(1000, "float32")
    with pytest.raises(ParameterError, match=text):
        call(y)


def test_a_frame_longer_than_the_samples_warns() -> None:
    with pytest.warns(UserWarning, match="n_fft=2048 is over the 100 samples"):
        assert A.stft(gp.ones(100, "float32")).shape == (1025, 1)


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_kernels_give_what_the_cpu_device_gives(device: str) -> None:
    y = speech()[9000:10500]
    want = A.melspectrogram(y=gp.asarray(y), sr=SR, n_fft=128, n_mels=20).to_numpy()
    back = A.istft(A.stft(gp.asarray(y), n_fft=128)).to_numpy()
    with gp.device(device):
        got = A.melspectrogram(y=gp.asarray(y), sr=SR, n_fft=128, n_mels=20)
        np.testing.assert_allclose(got.to_numpy(), want, atol=2e-6 * want.max())
        np.testing.assert_allclose(A.istft(A.stft(gp.asarray(y), n_fft=128)).to_numpy(), back, atol=2e-6)


def test_types_of_cosine_transforms_undo_each_other() -> None:
    x = values(31, 5, "float64")
    for n in (2, 7, 30, 31):
        for norm, factor in (("ortho", 1.0), (None, 2.0 * n)):
            back = A.dct(A.dct(gp.asarray(x[:n]), norm=norm), type=3, norm=norm).to_numpy()
            np.testing.assert_allclose(back, x[:n] * factor, atol=1e-12 * factor)
        once = A.dct(gp.asarray(x[:n]), type=1, norm="ortho")
        np.testing.assert_allclose(A.dct(once, type=1, norm="ortho").to_numpy(), x[:n], atol=1e-12)
