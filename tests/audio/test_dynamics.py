"""Compressor, limiter, gate, reverberation, loudness: by their definitions, and item by item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import clicks, music, speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import ParameterError


def tone(level_db: float, frequency: float = 997, seconds: float = 1.0, sr: int = 48000) -> Any:
    return 10 ** (level_db / 20) * np.sin(2 * np.pi * frequency * np.arange(int(seconds * sr)) / sr)


def test_a_steady_level_is_compressed_by_the_ratio() -> None:
    for level, threshold, ratio, knee in ((-5, -20, 4, 0), (-20, -20, 3, 6), (-40, -20, 4, 6), (-12, -10, 2, 12)):
        y = np.full(40000, 10 ** (level / 20))
        got = A.compressor(gp.asarray(y), sr=48000, threshold=threshold, ratio=ratio, knee=knee, makeup=1.0)
        over = level - threshold
        bent = max(0.0, over + knee / 2) ** 2 / (2 * knee) if knee else 0.0
        down = over if 2 * over >= knee else bent
        want = level - down * (1 - 1 / ratio) + 1.0
        assert abs(20 * np.log10(got.to_numpy()[-1]) - want) < 1e-6


def test_attack_and_release_are_time_constants() -> None:
    y = np.r_[np.full(1000, 1e-3), np.full(9000, 1.0), np.full(30000, 1e-3)]
    got = A.compressor(gp.asarray(y), sr=1000, threshold=-20, ratio=1e9, attack=0.5, release=2.0, knee=0).to_numpy()
    down = -20 * np.log10(got / y)
    np.testing.assert_allclose(down[1000 + 499], 20 * (1 - np.exp(-1)), rtol=1e-6)
    np.testing.assert_allclose(down[10000 + 1999] / down[9999], np.exp(-1), rtol=1e-6)


@settings(max_examples=30)
@given(seed=st.integers(0, 99), lookahead=st.sampled_from([0.0, 0.001, 0.02]), gain=st.floats(0.1, 30))
def test_no_sample_is_over_the_ceiling(seed: int, lookahead: float, gain: float) -> None:
    y = (np.random.default_rng(seed).standard_normal(700) * gain).astype(np.float32)
    got = A.limiter(gp.asarray(y), sr=8000, ceiling=-3.0, lookahead=lookahead).to_numpy()
    assert np.abs(got).max() <= np.float32(10 ** (-3 / 20))
    quiet = A.limiter(gp.asarray(y / np.abs(y).max() * 0.5), sr=8000, ceiling=-3.0, lookahead=lookahead)
    np.testing.assert_array_equal(quiet.to_numpy(), y / np.abs(y).max() * 0.5)


def test_the_limiter_needs_its_clip_for_rounding_only() -> None:
    y = clicks()[:30000].astype(np.float64) * 5
    need = np.maximum(20 * np.log10(np.maximum(np.abs(y), 1e-10)) + 1, 0)
    got = A.limiter(gp.asarray(y), sr=22050).to_numpy()
    turned = np.abs(y) > 1e-6
    down = -20 * np.log10(np.abs(got[turned] / y[turned]))
    assert (down >= need[turned] - 1e-9).all()
    # The gain moves by no more than a part of the largest peak from sample to sample.
    gains = got[turned] / y[turned]
    assert np.abs(np.diff(gains)).max() < 0.1


def test_a_gate_lets_through_what_is_loud() -> None:
    y = np.r_[tone(-60, seconds=0.5), tone(-10, seconds=0.5), tone(-60, seconds=1.0)]
    got = A.gate(gp.asarray(y), sr=48000, threshold=-40, range=-60).to_numpy()
    np.testing.assert_allclose(got[36000:48000], y[36000:48000], rtol=1e-3)
    for part in (slice(5000, 24000), slice(90000, 96000)):
        np.testing.assert_allclose(np.abs(got[part]).max() / np.abs(y[part]).max(), 1e-3, rtol=0.2)


def test_reverberation_decays_as_said() -> None:
    y = np.zeros(24000)
    y[0] = 1.0
    got = A.reverb(gp.asarray(y), sr=8000, decay=1.0, wet=1.0, predelay=0.1, seed=3).to_numpy()
    assert np.abs(got[:800]).max() < 1e-12
    early, late = (np.sqrt((got[a : a + 800] ** 2).mean()) for a in (800, 4800))
    assert abs(20 * np.log10(late / early) + 30) < 2
    assert abs((got**2).sum() - 1) < 1e-9
    np.testing.assert_array_equal(A.reverb(gp.asarray(y), sr=8000, wet=0.0).to_numpy(), y)
    other = A.reverb(gp.asarray(y), sr=8000, decay=1.0, wet=1.0, seed=4).to_numpy()
    assert np.abs(other - got).max() > 0.01


def test_loudness_of_the_standards_tones() -> None:
    assert abs(float(A.loudness(gp.asarray(tone(0)), sr=48000)) + 3.01) < 0.01
    for sr in (44100, 48000, 96000):
        stereo = np.stack([tone(-23, 1000, 3, sr)] * 2)
        assert abs(float(A.loudness(gp.asarray(stereo), sr=sr)) + 23) < 0.1
    # Parts under the relative gate do not count: EBU Tech 3341, case 3.
    parts = [tone(level, 1000, seconds) for level, seconds in ((-36, 4), (-23, 12), (-36, 4))]
    got = A.loudness(gp.asarray(np.stack([np.concatenate(parts)] * 2)), sr=48000)
    assert abs(float(got) + 23) < 0.1
    # A surround channel weighs 1.41, the low-frequency one nothing.
    six = np.zeros((6, 48000))
    six[3] = tone(-20)
    assert float(A.loudness(gp.asarray(six), sr=48000)) == -np.inf
    six[3], six[4] = 0, tone(-20)
    one = float(A.loudness(gp.asarray(six[4]), sr=48000))
    np.testing.assert_allclose(float(A.loudness(gp.asarray(six), sr=48000)) - one, 10 * np.log10(1.41), atol=1e-9)
    assert A.loudness(gp.asarray(six), sr=48000, mode="momentary").shape == (7,)


def test_loudness_range_of_two_levels() -> None:
    y = np.concatenate([tone(-20, 1000, 20, 8000), tone(-30, 1000, 20, 8000)])
    assert abs(float(A.loudness_range(gp.asarray(np.stack([y, y])), sr=8000)) - 10) < 1


def test_true_peaks_lie_between_samples() -> None:
    y = np.sin(2 * np.pi * np.arange(4000) / 4 + np.pi / 4)
    assert abs(20 * np.log10(np.abs(y).max()) + 3.01) < 0.01
    assert abs(float(A.true_peak(gp.asarray(y * np.hanning(4000)))) - 0.0) < 0.05


BATCHED: dict[str, Callable[[Any], Any]] = {
    "compressor": lambda y: A.compressor(y, sr=22050),
    "limiter": lambda y: A.limiter(y * 8, sr=22050),
    "gate": lambda y: A.gate(y, sr=22050),
    "reverb": lambda y: A.reverb(y, sr=22050, decay=0.1),
    "true_peak": A.true_peak,
    "loudness": lambda y: gp.asarray(A.loudness(y[..., None, :], sr=8000)),
}


@pytest.mark.parametrize("name", BATCHED)
def test_an_item_of_a_batch_has_the_bits_of_the_item_alone(name: str) -> None:
    items = np.stack([speech()[:6000], music()[:6000]])
    batch = BATCHED[name](gp.asarray(items))
    for i, item in enumerate(items):
        assert batch[i].to_numpy().tobytes() == BATCHED[name](gp.asarray(item)).to_numpy().tobytes()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda y: A.compressor(y, sr=8000, ratio=0.5), "ratio is 0.5"),
        (lambda y: A.compressor(y, sr=8000, ratio="x"), "ratio is 'x'"),
        (lambda y: A.compressor(y, sr=8000, threshold=float("nan")), "threshold is nan; it is a number from -200"),
        (lambda y: A.compressor(y, sr=8000, knee=float("inf")), "knee is inf"),
        (lambda y: A.compressor(y, sr=8000, makeup=float("nan")), "makeup is nan"),
        (lambda y: A.compressor(y, sr=8000, attack=-1), "attack is -1"),
        (lambda y: A.limiter(y, sr=8000, ceiling=float("nan")), "ceiling is nan"),
        (lambda y: A.gate(y, sr=8000, threshold=float("nan")), "threshold is nan"),
        (lambda y: A.reverb(y, sr=8000, predelay=float("inf")), "predelay is inf"),
        (lambda y: A.limiter(y, sr=8000, lookahead=-1), "lookahead is -1"),
        (lambda y: A.gate(y, sr=8000, range=3), "range is 3"),
        (lambda y: A.reverb(y, sr=8000, wet=2), "wet is 2"),
        (lambda y: A.loudness(y, sr=8000, mode="long"), "mode is 'long'"),
        (lambda y: A.loudness(y[:100], sr=8000), "too few for a block"),
        (lambda y: A.loudness(gp.ones((7, 9000)), sr=8000), "7 channels; give weights"),
    ],
)
def test_wrong_parameters_are_named(call: Callable[[Any], Any], text: str) -> None:
    y = gp.ones(9000, "float32")
    with pytest.raises(ParameterError, match=text):
        call(y)


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_kernels_give_what_the_cpu_device_gives(device: str) -> None:
    y = speech()[9000:9400]
    want = A.compressor(gp.asarray(y), sr=22050, threshold=-30).to_numpy()
    with gp.device(device):
        got = A.compressor(gp.asarray(y), sr=22050, threshold=-30).to_numpy()
    np.testing.assert_allclose(got, want, atol=1e-6)
