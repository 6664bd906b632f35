"""The published names of pygpukit.ops.audio: their order of parameters, shapes, formulas, and work in place."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import speech

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import ParameterError
from pygpukit.ops import audio

SIGNATURES = {
    "stft": "audio, n_fft=512, hop_length=160, win_length=-1, center=True",
    "istft": "stft_output, hop_length=160, win_length=-1, center=True, length=-1",
    "griffin_lim": "magnitude, n_iter=32, hop_length=160, win_length=-1",
    "power_spectrum": "stft_output",
    "magnitude_spectrum": "stft_output",
    "create_mel_filterbank": "n_mels=80, n_fft=512, sample_rate=16000, f_min=0.0, f_max=-1.0",
    "apply_mel_filterbank": "spectrogram, mel_filterbank",
    "log_mel": "mel_spectrogram, eps=1e-10",
    "to_decibels": "audio, eps=1e-10",
    "mfcc": "log_mel_input, n_mfcc=13",
    "delta": "features, order=1, width=2",
    "mel_spectrogram": "audio, n_fft=512, hop_length=160, n_mels=80, sample_rate=16000, f_min=0.0, f_max=-1.0",
    "log_mel_spectrogram": "audio, n_fft=512, hop_length=160, n_mels=80, sample_rate=16000, f_min=0.0, f_max=-1.0, "
    "eps=1e-10",
    "autocorrelation": "audio, max_lag",
    "detect_pitch_yin": "audio, sample_rate=16000, f_min=50.0, f_max=500.0, threshold=0.1",
    "detect_pitch_yin_frames": "audio, sample_rate=16000, frame_size=1024, hop_size=256, f_min=50.0, f_max=500.0, "
    "threshold=0.1",
    "spectral_centroid": "spectrum, sample_rate=16000",
    "spectral_bandwidth": "spectrum, centroids, sample_rate=16000, p=2",
    "spectral_rolloff": "spectrum, sample_rate=16000, roll_percent=0.85",
    "spectral_flatness": "spectrum",
    "spectral_contrast": "spectrum, n_bands=6, alpha=0.2",
    "zero_crossing_rate": "audio, frame_size=512, hop_size=256",
    "cqt": "audio, sample_rate=16000, hop_length=160, f_min=32.7, n_bins=84, bins_per_octave=12",
    "cqt_magnitude": "audio, sample_rate=16000, hop_length=160, f_min=32.7, n_bins=84, bins_per_octave=12",
    "chroma_stft": "spectrum, sample_rate=16000, n_chroma=12, tuning=0.0",
    "chroma_cqt": "cqt_magnitude_input, bins_per_octave=12",
    "hpss": "stft_magnitude_input, kernel_size=31, power=2.0, margin=1.0",
    "harmonic": "stft_magnitude_input, kernel_size=31, power=2.0, margin=1.0",
    "percussive": "stft_magnitude_input, kernel_size=31, power=2.0, margin=1.0",
    "time_stretch": "audio, rate, n_fft=2048, hop_length=512",
    "pitch_shift": "audio, sample_rate, n_steps, n_fft=2048, hop_length=512",
    "preemphasis": "audio, alpha=0.97",
    "deemphasis": "audio, alpha=0.97",
    "remove_dc": "audio",
    "highpass_filter": "audio, cutoff_hz=20.0, sample_rate=None",
    "noise_gate": "audio, threshold=0.01",
    "spectral_gate": "audio, threshold=0.01, attack_samples=64, release_samples=256",
    "compute_short_term_energy": "audio, frame_size=256",
    "from_pcm": "samples, sample_rate, channels=1",
}
CLASSES = {
    "AudioBuffer": "data, sample_rate, channels",
    "AudioRingBuffer": "capacity, sample_rate=16000",
    "AudioStream": "chunk_size=480, hop_size=None, sample_rate=16000, buffer_duration=30.0",
    "VAD": "sample_rate=16000, frame_ms=20.0, hop_ms=10.0, energy_threshold=None, hangover_ms=100.0, zcr_low=0.02, "
    "zcr_high=0.25",
    "SpeechSegment": "start_sample, end_sample, start_time, end_time",
}


@pytest.mark.parametrize("name", SIGNATURES | CLASSES)
def test_parameters_are_those_that_were_published(name: str) -> None:
    thing = getattr(audio, name)
    assert inspect.getdoc(thing)
    parameters = inspect.signature(thing).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert ", ".join(shown) == (SIGNATURES | CLASSES)[name]


def test_names_are_listed() -> None:
    assert set(audio.NAMES) == set(SIGNATURES) | set(CLASSES)
    assert set(audio.NAMES) <= set(dir(audio))
    with pytest.raises(AttributeError, match="has no attribute 'fft'"):
        audio.fft  # noqa: B018


def host_stft(y: Any, n_fft: int = 512, hop: int = 160) -> Any:
    padded = np.pad(y.astype(np.float64), n_fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
    return np.fft.rfft(frames * A.get_window("hann", n_fft))


def test_spectra_are_frames_first() -> None:
    y = speech()
    want = host_stft(y)
    D = audio.stft(gp.asarray(y))
    assert D.shape == (*want.shape, 2)
    assert D.dtype is gp.float32
    peak = np.abs(want).max()
    np.testing.assert_allclose(D.to_numpy()[..., 0], want.real, atol=1e-5 * peak)
    np.testing.assert_allclose(D.to_numpy()[..., 1], want.imag, atol=1e-5 * peak)
    np.testing.assert_allclose(audio.power_spectrum(D).to_numpy(), np.abs(want) ** 2, atol=1e-5 * peak**2)
    np.testing.assert_allclose(audio.magnitude_spectrum(D).to_numpy(), np.abs(want), atol=1e-5 * peak)
    np.testing.assert_allclose(audio.istft(D, length=y.size).to_numpy(), y, atol=1e-5)


def test_mel_spectrograms_are_htk_without_norm_in_natural_logarithms() -> None:
    y = speech()
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 82) / 2595) - 1)
    bins = np.linspace(0, 8000, 257)
    up = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    filters = np.maximum(0, np.minimum(up, down))
    np.testing.assert_allclose(audio.create_mel_filterbank().to_numpy(), filters, atol=1e-6)
    want = np.abs(host_stft(y)) ** 2 @ filters.T
    buffer = audio.from_pcm(y, sample_rate=16000)
    got = audio.mel_spectrogram(buffer)
    np.testing.assert_allclose(got.to_numpy(), want, atol=1e-5 * want.max())
    by_steps = audio.apply_mel_filterbank(audio.power_spectrum(audio.stft(buffer)), audio.create_mel_filterbank())
    np.testing.assert_allclose(by_steps.to_numpy(), want, atol=1e-5 * want.max())
    logarithm = audio.log_mel_spectrogram(buffer)
    np.testing.assert_allclose(logarithm.to_numpy(), np.log(want + 1e-10), atol=1e-2)
    np.testing.assert_allclose(audio.log_mel(got).to_numpy(), logarithm.to_numpy())
    coefficients = audio.mfcc(logarithm).to_numpy()
    basis = np.cos(np.pi * np.arange(13)[:, None] * (np.arange(80) + 0.5) / 80) * np.sqrt(2 / 80)
    basis[0] /= np.sqrt(2)
    np.testing.assert_allclose(coefficients, logarithm.to_numpy() @ basis.T, atol=1e-4)
    np.testing.assert_allclose(audio.to_decibels(got).to_numpy(), 10 * np.log10(got.to_numpy() + 1e-10), atol=1e-4)


def test_differences_in_time() -> None:
    x = np.random.default_rng(1).standard_normal((9, 3)).astype(np.float32)
    padded = np.pad(x, ((2, 2), (0, 0)), mode="edge").astype(np.float64)
    want = sum(k * (padded[2 + k : 11 + k] - padded[2 - k : 11 - k]) for k in (1, 2)) / 10
    np.testing.assert_allclose(audio.delta(gp.asarray(x)).to_numpy(), want, atol=1e-6)
    twice = audio.delta(gp.asarray(x), order=2)
    np.testing.assert_array_equal(twice.to_numpy(), audio.delta(audio.delta(gp.asarray(x))).to_numpy())


def test_features_are_those_of_the_other_namespace() -> None:
    y = gp.asarray(speech())
    S = audio.magnitude_spectrum(audio.stft(y))
    turned = S.T.contiguous()
    for name in ("spectral_centroid", "spectral_rolloff"):
        want = getattr(A, name)(S=turned, sr=16000)[0].to_numpy()
        np.testing.assert_allclose(getattr(audio, name)(S).to_numpy(), want, rtol=1e-5)
    bandwidth = audio.spectral_bandwidth(S, audio.spectral_centroid(S)).to_numpy()
    np.testing.assert_allclose(bandwidth, A.spectral_bandwidth(S=turned, sr=16000)[0].to_numpy(), rtol=1e-4)
    assert audio.spectral_contrast(S).shape == (S.shape[0], 6)
    assert (audio.spectral_contrast(S).to_numpy() >= 0).all()
    flat = audio.spectral_flatness(S).to_numpy()
    assert ((flat > 0) & (flat <= 1)).all()
    np.testing.assert_allclose(audio.hpss(S)[0].T.to_numpy(), A.decompose.hpss(turned)[0].to_numpy(), rtol=1e-5)
    C = audio.cqt_magnitude(y, f_min=130.0, n_bins=36)
    want = abs(A.cqt(y, sr=16000, hop_length=160, fmin=130.0, n_bins=36)).to_numpy()
    np.testing.assert_allclose(C.T.to_numpy(), want, atol=1e-6)
    assert audio.chroma_cqt(C).shape == (C.shape[0], 12)
    np.testing.assert_allclose(audio.chroma_stft(S).max(axis=1).to_numpy(), 1, atol=1e-6)
    assert audio.griffin_lim(S, n_iter=2).shape[0] == (S.shape[0] - 1) * 160
    assert audio.time_stretch(y, 2.0).shape == (11025,)


def test_pitch() -> None:
    t = np.arange(8000) / 16000
    y = np.where(t < 0.25, np.sin(2 * np.pi * 220 * t), np.random.default_rng(1).standard_normal(8000))
    found = audio.detect_pitch_yin_frames(gp.asarray(y.astype(np.float32))).to_numpy()
    np.testing.assert_allclose(found[:10], 220, rtol=5e-3)
    assert not found[-8:].any()
    assert abs(audio.detect_pitch_yin(gp.asarray(y[:1024].astype(np.float32))) - 220) < 1
    lags = audio.autocorrelation(gp.asarray(y[:100].astype(np.float32)), 120).to_numpy()
    np.testing.assert_allclose(lags[:100], np.correlate(y[:100], y[:100], "full")[99:], atol=1e-3)
    assert not lags[100:].any()


def test_filters_work_in_place_and_return_their_argument() -> None:
    y = speech()[:4000]
    wide = y.astype(np.float64)
    smooth, last = [], 0.0
    a = 1 / (1 + 2 * np.pi * 100 / 16000)
    for i, v in enumerate(wide):
        last = a * (last + v - (wide[i - 1] if i else 0))
        smooth.append(last)
    emphasised = wide - 0.97 * np.r_[0, wide[:-1]]
    cases: list[tuple[str, dict[str, Any], Any]] = [
        ("preemphasis", {}, emphasised),
        ("remove_dc", {}, wide - wide.mean()),
        ("noise_gate", {"threshold": 0.1}, np.where(np.abs(wide) < 0.1, 0, wide)),
        ("highpass_filter", {"cutoff_hz": 100.0}, np.array(smooth)),
    ]
    for name, options, want in cases:
        for make in (lambda: gp.asarray(y), lambda: audio.from_pcm(y.copy(), 16000)):
            given_audio = make()
            got = getattr(audio, name)(given_audio, **options)
            assert got is given_audio
            np.testing.assert_allclose(got.to_numpy(), want, atol=1e-6)
    data = gp.asarray(y)
    np.testing.assert_allclose(audio.deemphasis(audio.preemphasis(data)).to_numpy(), y, atol=1e-5)


def test_the_gate_of_energies_turns_down_what_is_quiet() -> None:
    y = np.r_[np.full(640, 0.5), np.full(6400, 0.01)].astype(np.float32)
    got = audio.spectral_gate(gp.asarray(y), threshold=0.01).to_numpy()
    np.testing.assert_allclose(got[:640], 0.5)
    np.testing.assert_allclose(got[-64:], 0.01 * 0.01, rtol=1e-3)
    assert (np.diff(got[640:]) <= 0).all()
    energy = audio.compute_short_term_energy(gp.asarray(y), 64).to_numpy()
    np.testing.assert_allclose(energy[[0, -1]], [0.25, 1e-4], rtol=1e-5)


def test_buffers() -> None:
    pcm = np.array([0, 16384, -16384, 32767, 100, -32768], np.int16)
    buffer = audio.from_pcm(pcm, sample_rate=48000, channels=2)
    assert (buffer.sample_rate, buffer.channels, buffer.data.shape) == (48000, 2, (6,))
    np.testing.assert_array_equal(buffer.to_numpy(), pcm / np.float32(32768))
    mono = buffer.to_mono()
    np.testing.assert_allclose(mono.to_numpy(), (pcm.reshape(-1, 2) / 32768).mean(1), atol=1e-7)
    assert mono.to_mono() is mono
    y = np.stack([speech()[:4800], -speech()[:4800]])
    lower = audio.from_pcm(np.ascontiguousarray(y.T.reshape(-1)), 48000, 2).resample(16000)
    want = A.resample(gp.asarray(y), orig_sr=48000, target_sr=16000).to_numpy()
    np.testing.assert_array_equal(lower.to_numpy().reshape(-1, 2).T, want)
    loud = audio.from_pcm(y[0].copy(), 16000)
    assert loud.normalize() is loud
    assert np.abs(loud.to_numpy()).max() == 1
    loud.normalize("rms", target_db=-20)
    np.testing.assert_allclose(np.sqrt((loud.to_numpy() ** 2).mean()), 0.1, rtol=1e-5)
    quiet = audio.from_pcm(np.zeros(5, np.float32), 16000).normalize().normalize("rms")
    assert not quiet.to_numpy().any()
    with pytest.raises(ParameterError, match="mode is 'loud'"):
        loud.normalize("loud")
    with pytest.raises(ParameterError, match="9 samples are not whole frames of 2 channels"):
        audio.from_pcm(np.zeros(9, np.float32), 16000, channels=2)
    with pytest.raises(ParameterError, match="use int16 or float32"):
        audio.from_pcm(np.zeros(3), 16000)


@settings(max_examples=60)
@given(capacity=st.integers(1, 20), blocks=st.lists(st.integers(0, 30), max_size=8), data=st.data())
def test_a_ring_has_the_last_samples(capacity: int, blocks: list[int], data: Any) -> None:
    ring, sent = audio.AudioRingBuffer(capacity), np.zeros(0, np.float32)
    for n in blocks:
        block = np.arange(len(sent), len(sent) + n, dtype=np.float32)
        assert ring.write(block) == n
        sent = np.r_[sent, block]
        kept = sent[max(0, len(sent) - capacity) :]
        assert ring.samples_available == len(kept)
        assert ring.overruns == len(sent) - len(kept)
        offset = data.draw(st.integers(0, len(kept)))
        count = data.draw(st.integers(0, len(kept) - offset))
        np.testing.assert_array_equal(ring.read(count, offset).to_numpy(), kept[offset : offset + count])
        with pytest.raises(ParameterError, match="that are there"):
            ring.read(len(kept) + 1)
    ring.clear()
    assert ring.samples_available == 0


@settings(max_examples=60)
@given(
    chunk=st.integers(1, 8), hop=st.integers(1, 10), blocks=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 4)),
    max_size=8),
)  # fmt: skip
def test_chunks_are_whole_or_counted(chunk: int, hop: int, blocks: list[tuple[int, int]]) -> None:
    stream = audio.AudioStream(chunk_size=chunk, hop_size=hop, sample_rate=10, buffer_duration=2.0)
    sent, next_chunk = 0, 0
    for n, pops in blocks:
        stream.push(np.arange(sent, sent + n, dtype=np.float32))
        sent += n
        for _ in range(pops):
            if not stream.has_chunk():
                with pytest.raises(RuntimeError, match="no whole chunk"):
                    stream.pop_chunk()
                break
            got = stream.pop_chunk(apply_window=False).to_numpy()
            assert got[0] % hop == 0
            assert got[0] // hop >= next_chunk
            next_chunk = int(got[0] // hop) + 1
            np.testing.assert_array_equal(got, np.arange(got[0], got[0] + chunk))
    assert stream.overruns <= max(0, sent - 20) // hop + 1
    stream.reset()
    assert stream.chunks_available == 0


def test_chunks_have_a_window() -> None:
    stream = audio.AudioStream(chunk_size=8)
    stream.push(np.ones(8, np.float32))
    np.testing.assert_allclose(stream.pop_chunk().to_numpy(), A.get_window("hann", 8), atol=1e-7)
    with pytest.raises(ParameterError, match="do not hold a chunk"):
        audio.AudioStream(chunk_size=480, buffer_duration=0.001)


def test_speech_is_found() -> None:
    t = np.arange(32000) / 16000
    on = ((t > 0.4) & (t < 0.9)) | (t > 1.5)
    y = 0.3 * np.sin(2 * np.pi * 500 * t) * on + 1e-4 * np.random.default_rng(2).standard_normal(32000)
    vad = audio.VAD(sample_rate=16000)
    assert (vad.sample_rate, vad.frame_size, vad.hop_size) == (16000, 320, 160)
    found = vad.detect(gp.asarray(y.astype(np.float32)))
    assert len(found) == 2
    assert abs(found[0].start_time - 0.4) < 0.03
    assert 0.9 < found[0].end_time < 1.05
    assert found[1].end_sample == 32000
    energy, crossings = vad.get_frame_features(audio.from_pcm(y.astype(np.float32), 16000))
    assert energy.shape == crossings.shape == (199,)
    assert not vad.detect(gp.zeros(4000, "float32"))
    assert not vad.detect(gp.zeros(10, "float32"))
    hiss = 0.5 * np.random.default_rng(1).standard_normal(16000).astype(np.float32)
    assert not vad.detect(gp.asarray(hiss))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: audio.stft(gp.zeros((2, 9), "float32")), "an AudioBuffer, or a GPUArray"),
        (lambda: audio.istft(gp.zeros((3, 9), "float32")), r"\[frames, bins, 2\]"),
        (lambda: audio.istft(gp.zeros((3, 9, 3), "float32")), r"\(3, 9, 3\)"),
        (lambda: audio.apply_mel_filterbank(gp.ones((3, 9), "float32"), gp.ones((2, 8), "float32")), "9 bins"),
        (lambda: audio.spectral_contrast(gp.ones((2, 9), "float32")), "at least 64 bins"),
        (lambda: audio.log_mel(gp.ones(3, "float32")), r"\[frames, bins\]"),
        (lambda: audio.highpass_filter(gp.ones(3, "float32"), cutoff_hz=0), "cutoff_hz is 0"),
        (lambda: audio.highpass_filter(gp.zeros(0, "float32")), "audio has 0 samples; it needs at least 1"),
        (lambda: audio.spectral_gate(gp.zeros(0, "float32")), "audio has 0 samples"),
        (lambda: audio.preemphasis(gp.zeros(0, "float32")), "audio has 0 samples"),
        (lambda: audio.from_pcm(np.zeros(0, np.int16), 16000).normalize(), "audio has 0 samples"),
        (lambda: audio.detect_pitch_yin(gp.zeros(0, "float32")), "at least 4"),
        (lambda: audio.from_pcm([1, 2], 16000), "NumPy array or a GPUArray"),
        (lambda: audio.AudioRingBuffer(0), "capacity is 0"),
    ],
)
def test_wrong_arguments_are_named(call: Any, text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        call()
