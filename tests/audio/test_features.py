"""Features and effects: wrong parameters, silence, values that are not finite, and what follows from definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from signals import SR, clicks, music, noise, silence, speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.audio.pitch_states import beta_cdf, moves
from pygpukit.errors import ParameterError
from pygpukit.ops.audio.rows import pitch_path


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda y: A.yin(y, fmin=20, fmax=500, frame_length=512), "use a frame_length over 1104"),
        (lambda y: A.yin(y, fmin=500, fmax=100), "fmin 500 is above 0 and under fmax 100"),
        (lambda y: A.yin(y, fmin=500, fmax=20000), "over half the rate"),
        (lambda y: A.yin(y, fmin=None, fmax=100), "fmin and fmax are needed"),
        (lambda y: A.pyin(y, fmin=100, fmax=500, resolution=2), "resolution is 2"),
        (lambda y: A.cqt(y, n_bins=120), "over half the rate"),
        (lambda y: A.cqt(y, sparsity=1.0), "sparsity is 1.0"),
        (lambda y: A.vqt(y, intervals="ji5"), "intervals is 'ji5'"),
        (lambda y: A.icqt(y), "C is a complex GPUArray"),
        (lambda y: A.spectral_contrast(y=y, n_bands=9), "not under sr / 2"),
        (lambda y: A.spectral_contrast(y=y, n_fft=32), "use a longer n_fft"),
        (lambda y: A.spectral_rolloff(y=y, roll_percent=1.5), "roll_percent is 1.5"),
        (lambda y: A.spectral_centroid(y=y, freq=np.ones(3)), "3 values for 1025 bins"),
        (lambda y: A.rms(S=abs(A.stft(y)), frame_length=100), "frames of 100 have 51"),
        (lambda y: A.rms(), "give samples y"),
        (lambda y: A.chroma_cqt(y=y, bins_per_octave=35), "no multiple of n_chroma 12"),
        (lambda y: A.chroma_cqt(y=y, cqt_mode="half"), "cqt_mode is 'half'"),
        (lambda y: A.tonnetz(), "give samples y or a chroma"),
        (lambda y: A.onset_detect(y=y, units="hours"), "units is 'hours'"),
        (lambda y: A.onset_detect(onset_envelope=gp.ones((2, 9), "float32")), "one sound at a time"),
        (lambda y: A.onset_strength(y=y, aggregate=False), "aggregate is False"),
        (lambda y: A.onset_strength(y=y, lag=0), "lag is 0"),
        (lambda y: A.beat_track(y=y[None]), "one sound at a time"),
        (lambda y: A.beat_track(onset_envelope=y, bpm=-3), "bpm is -3"),
        (lambda y: A.beat_track(onset_envelope=y, bpm=9000.0), "shorter than two frames"),
        (lambda y: A.tempo(y=y, start_bpm=0), "start_bpm is 0"),
        (lambda y: A.plp(y=y, tempo_min=100, tempo_max=50), "tempo_max 50"),
        (lambda y: A.tempogram(), "give samples y or an onset_envelope"),
        (lambda y: A.hpss(y, margin=0.5), "margin is 0.5"),
        (lambda y: A.time_stretch(y, rate=-1), "rate is -1"),
        (lambda y: A.time_stretch(y, rate=1e-9), "too many to compute"),
        (lambda y: A.resample(y, orig_sr=1e9, target_sr=1), "ratio 1:1000000000 need a filter"),
        (lambda y: A.stft(np.ones(9)), r"copy it to the device with gp.asarray\(y\)"),
        (lambda y: A.preemphasis(y[:1]), "give zi"),
        (lambda y: A.sosfilt(np.ones((2, 5)), y), r"shape \(2, 5\)"),
        (lambda y: A.sosfilt([[1, 0, 0, 1, float("nan"), 0]], y), "not finite"),
        (lambda y: A.sosfilt(np.ones((17, 6)), y), "34 states"),
        (lambda y: A.sosfilt([[1, 0, 0, 1, 0, 0]], y, zi=np.zeros((2, 2))), "zi has shape"),
        (lambda y: A.lfilter([1.0], [0.0], y), r"a\[0\] is not 0"),
        (lambda y: A.fftconvolve(y, y, mode="wrap"), "mode is 'wrap'"),
        (lambda y: A.fftconvolve(y, y.astype("float64")), "use one type"),
        (lambda y: A.pcen(y, gain=-1), "gain is -1"),
        (lambda y: A.pcen(y, b=2.0), "b is 2.0"),
        (lambda y: A.note_to_hz("H2"), "'H2' is no note"),
        (lambda y: A.note_to_hz(5), "5 is no note; it is a text like 'C4'"),
        (lambda y: A.note_to_hz(["C4", None]), "None is no note"),
        (lambda y: A.hz_to_note(0), "a frequency is 0; those of notes are above 0"),
        (lambda y: A.hz_to_note([440.0, float("nan")]), "a frequency is nan"),
        (lambda y: A.hz_to_note("A4"), "'A4' is no number"),
        (lambda y: A.midi_to_note(float("nan")), "midi is nan"),
        (lambda y: A.remix(y, []), r"intervals is \[\]; intervals are pairs \(start, end\) of samples"),
        (lambda y: A.remix(y, 5), "intervals is 5"),
        (lambda y: A.remix(y, [(1, 2, 3)]), "intervals is"),
        (lambda y: A.remix(y, [(0.5, 2.0)]), "intervals is"),
        (lambda y: A.remix(y, [(0, 2), (5, 2)]), r"an interval is \(5, 2\)"),
        (lambda y: A.yin(y, fmin="a", fmax=400), "fmin is 'a'"),
        (lambda y: A.yin(y, fmin=100, fmax=400, sr=float("nan")), "sr is nan"),
        (lambda y: A.pitch_shift(y, sr=8000, n_steps="x"), "n_steps is 'x'"),
        (lambda y: A.trim(y, top_db="x"), "top_db is 'x'"),
        (lambda y: A.preemphasis(y, coef="x"), "coef is 'x'"),
        (lambda y: A.beat_track(y=y, bpm=float("nan"), onset_envelope=y), "bpm is"),
        (lambda y: A.hpss(y, power="x"), "power is 'x'"),
        (lambda y: A.spectral_rolloff(y=y, roll_percent=None), "roll_percent is None"),
        (lambda y: A.peak_pick(y, pre_max=-1, post_max=1, pre_avg=1, post_avg=1, delta=0, wait=0), "at least 0"),
    ],
)
def test_wrong_parameters_are_named(call: Callable[[Any], Any], text: str) -> None:
    y = gp.asarray(noise())
    with pytest.raises(ParameterError, match=text):
        call(y)


def test_silence_has_no_events() -> None:
    y = gp.asarray(silence())
    assert A.onset_detect(y=y, sr=SR).size == 0
    tempo, beats = A.beat_track(y=y, sr=SR)
    assert tempo == 0
    assert beats.size == 0
    assert A.trim(y)[1].tolist() == [0, 6000]
    assert A.split(gp.concatenate([y, gp.asarray(speech()), y])).shape[1] == 2
    assert not np.isnan(A.yin(y, fmin=100, fmax=900).to_numpy()).any()
    f0, voiced, probability = A.pyin(y, fmin=100, fmax=900)
    assert np.isnan(f0.to_numpy()).all()
    assert not voiced.to_numpy().any()
    assert not probability.to_numpy().any()
    with pytest.warns(UserWarning, match="no frequency to estimate"):
        assert A.estimate_tuning(y=y) == 0


def test_beats_of_clicks_are_where_they_are() -> None:
    tempo, beats = A.beat_track(y=gp.asarray(clicks()), sr=SR, units="time")
    assert abs(float(np.ravel(tempo)[0]) - 120) < 4
    np.testing.assert_allclose(np.diff(beats), 0.5, atol=0.03)


def test_harmonic_and_percussive_add_up() -> None:
    y = gp.asarray(music()[:12000])
    h, p = A.hpss(y)
    np.testing.assert_allclose((h + p).to_numpy(), y.to_numpy(), atol=2e-5)
    np.testing.assert_array_equal(A.effects.harmonic(y).to_numpy(), h.to_numpy())
    np.testing.assert_array_equal(A.effects.percussive(y).to_numpy(), p.to_numpy())
    masks = A.decompose.hpss(abs(A.stft(y)), power=float("inf"), mask=True)
    assert masks[0].dtype.name == "bool"


def test_emphasis_is_undone() -> None:
    y = gp.asarray(speech().astype(np.float64))
    np.testing.assert_allclose(A.deemphasis(A.preemphasis(y)).to_numpy(), y.to_numpy(), atol=1e-9)
    for undone in (A.preemphasis, A.deemphasis):
        with pytest.raises(ParameterError, match="one sample has no slope"):
            undone(y[:1])
    np.testing.assert_array_equal(A.deemphasis(y[:1], zi=[0.0]).to_numpy(), y[:1].to_numpy())


def test_filters_go_on_from_their_state() -> None:
    sos = [[0.2, 0.1, 0.3, 1.0, -1.2, 0.5]]
    y = gp.asarray(noise().astype(np.float64))
    whole = A.sosfilt(sos, y).to_numpy()
    first, state = A.sosfilt(sos, y[:1000], zi=np.zeros((1, 2)))
    second, _ = A.sosfilt(sos, y[1000:], zi=state)
    np.testing.assert_allclose(np.r_[first.to_numpy(), second.to_numpy()], whole, atol=1e-14)
    along = A.sosfilt(sos, y[:100].reshape((50, 2)), axis=0)
    np.testing.assert_array_equal(along[:, 1].to_numpy(), A.sosfilt(sos, y[1:100:2].contiguous()).to_numpy())


@pytest.mark.nvrtc
@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_kernels_give_what_the_cpu_device_gives(device: str) -> None:
    y = speech()[9000:10300]
    sos = [[0.2, 0.1, 0.3, 1.0, -1.2, 0.5]]
    calls: list[tuple[Callable[[Any], Any], float]] = [
        (lambda y: A.resample(y[:200], orig_sr=2, target_sr=1, res_type="polyphase"), 2e-6),
        (lambda y: A.sosfilt(sos, y), 2e-6),
        (lambda y: A.decompose.hpss(abs(A.stft(y[:600], n_fft=32)), kernel_size=5)[0], 2e-6),
        (lambda y: A.phase_vocoder(A.stft(y[:600], n_fft=32), rate=1.3), 2e-5),
        (lambda y: A.yin(y, fmin=300, fmax=2000, frame_length=256), 2e-3),
        (lambda y: A.fftconvolve(y[:300], y[300:400]), 2e-6),
    ]
    for call, limit in calls:
        want = call(gp.asarray(y)).to_numpy()
        with gp.device(device):
            got = call(gp.asarray(y)).to_numpy()
        np.testing.assert_allclose(got, want, atol=limit * np.abs(want).max())


@pytest.mark.parametrize(("pitches", "reach"), [(12, 5), (13, 5), (12, 4), (13, 4), (9, 1)])
def test_the_moves_is_that_of_all_transitions(pitches: int, reach: int) -> None:
    rng = np.random.default_rng(5)
    frames, switch, tiny = 30, 0.05, np.finfo(float).tiny
    heard = rng.random((frames, pitches)) ** 8
    # Frames in which only far pitches are likely, and none without voice.
    heard[10:12] = 0
    heard[10, 2], heard[11, pitches - 1] = 1.0, 1.0
    voiced = np.minimum(heard.sum(1), 1)
    observed = np.hstack([heard, np.repeat((1 - voiced)[:, None] / pitches, pitches, axis=1)])
    triangle = A.get_window("triang", reach, fftbins=False)
    near = np.zeros((pitches, pitches))
    # As librosa.sequence.transition_local makes it: of an even width it leans to one side.
    center = reach // 2 - (reach % 2 == 0 and pitches % 2 == 0)
    for i in range(pitches):
        for k in range(reach):
            if 0 <= i + k - center < pitches:
                near[i, i + k - center] = triangle[k]
    near /= near.sum(1, keepdims=True)
    steps = np.kron([[1 - switch, switch], [switch, 1 - switch]], near)
    value, back = np.log(observed[0] + tiny) - np.log(2 * pitches), []
    for t in range(1, frames):
        routes = value[:, None] + np.log(steps + tiny)
        back.append(routes.argmax(0))
        value = np.log(observed[t] + tiny) + routes.max(0)
    wanted = [int(value.argmax())]
    for links in reversed(back):
        wanted.append(int(links[wanted[-1]]))
    triangle, leave, first = moves(pitches, reach)
    found = pitch_path(
        gp.asarray(np.log(heard + tiny)[None]), gp.asarray(voiced[None]), gp.asarray(triangle), gp.asarray(leave),
        first=first, keep=float(np.log(1 - switch)), change=float(np.log(switch)),
    )  # fmt: skip
    np.testing.assert_array_equal(found[0].to_numpy(), wanted[::-1])


def test_beta_distribution() -> None:
    x = np.linspace(0, 1, 11)
    # Of (2, 18): 1 - (1 - x)^18 (1 + 18 x).
    np.testing.assert_allclose(beta_cdf(x, 2, 18), 1 - (1 - x) ** 18 * (1 + 18 * x), atol=1e-12)
    np.testing.assert_allclose(beta_cdf(x, 0.5, 0.5), 2 / np.pi * np.arcsin(np.sqrt(x)), atol=1e-12)


def test_remix() -> None:
    y = gp.asarray(np.stack([np.sin(np.arange(100) * 0.3), np.cos(np.arange(100) * 0.3)]))
    assert A.remix(y, [(50, 100), (0, 20)], align_zeros=False).shape == (2, 70)
    ends = A.remix(y, [(0, 100)])
    assert ends.shape[1] == 100
