"""An item of a batch has the bits of the item alone, for every function that takes a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from signals import SR, music, speech

import pygpukit as gp
import pygpukit.audio as A

SOS = [[0.2, 0.1, 0.3, 1.0, -1.2, 0.5], [1.0, -0.4, 0.1, 1.0, 0.3, 0.2]]


def magnitudes(y: Any) -> Any:
    return abs(A.stft(y, n_fft=256))


BATCHED: dict[str, Callable[[Any], Any]] = {
    "stft": lambda y: A.stft(y, n_fft=512),
    "istft": lambda y: A.istft(A.stft(y, n_fft=500, hop_length=120), n_fft=500, hop_length=120),
    "melspectrogram": lambda y: A.melspectrogram(y=y, sr=SR),
    "melspectrogram_cube": lambda y: A.melspectrogram(y=y, sr=SR, power=3.0),
    "mfcc": lambda y: A.mfcc(y=y, sr=SR, n_fft=512, lifter=10),
    "power_to_db": lambda y: A.power_to_db(A.melspectrogram(y=y, sr=SR), ref=np.max, top_db=30.0),
    "amplitude_to_db": lambda y: A.amplitude_to_db(magnitudes(y), ref=np.median),
    "power_to_db_function": lambda y: A.power_to_db(magnitudes(y), ref=lambda S: S[0, 0] + 1),
    "griffinlim": lambda y: A.griffinlim(magnitudes(y), n_iter=2),
    "phase_vocoder": lambda y: A.phase_vocoder(A.stft(y, n_fft=256), rate=1.5),
    "pcen": lambda y: A.pcen(magnitudes(y), sr=SR),
    "delta": lambda y: A.delta(A.mfcc(y=y, sr=SR), order=2),
    "resample": lambda y: A.resample(y, orig_sr=22050, target_sr=11025),
    "dct": lambda y: A.dct(y[..., :75], type=3),
    "spectral_centroid": lambda y: A.spectral_centroid(y=y, n_fft=512),
    "spectral_bandwidth": lambda y: A.spectral_bandwidth(y=y, n_fft=512, p=3),
    "spectral_contrast": lambda y: A.spectral_contrast(y=y),
    "spectral_flatness": lambda y: A.spectral_flatness(y=y, n_fft=512),
    "spectral_rolloff": lambda y: A.spectral_rolloff(y=y, n_fft=512),
    "poly_features": lambda y: A.poly_features(y=y, n_fft=512),
    "rms": lambda y: A.rms(y=y, frame_length=400),
    "rms_S": lambda y: A.rms(S=magnitudes(y), frame_length=256),
    "zero_crossing_rate": lambda y: A.zero_crossing_rate(y, frame_length=300),
    "chroma_stft": lambda y: A.chroma_stft(y=y, sr=SR),
    "chroma_cqt": lambda y: A.chroma_cqt(y=y, sr=SR, n_octaves=3, fmin=100.0),
    "chroma_cens": lambda y: A.chroma_cens(C=magnitudes(y)[..., :36, :], bins_per_octave=36),
    "tonnetz": lambda y: A.tonnetz(chroma=magnitudes(y)[..., :12, :]),
    "autocorrelate": lambda y: A.autocorrelate(y, max_size=300),
    "piptrack": lambda y: A.piptrack(y=y, sr=SR)[0],
    "yin": lambda y: A.yin(y, fmin=80, fmax=800, frame_length=1024),
    "pyin": lambda y: A.pyin(y, fmin=80, fmax=800, frame_length=1024, resolution=0.5)[0],
    "cqt": lambda y: A.cqt(y, n_bins=24, fmin=300.0),
    "vqt": lambda y: A.vqt(y, n_bins=24, fmin=300.0, tuning=None),
    "hybrid_cqt": lambda y: A.hybrid_cqt(y, n_bins=36, fmin=300.0),
    "pseudo_cqt": lambda y: A.pseudo_cqt(y, n_bins=24, fmin=300.0, tuning=None),
    "icqt": lambda y: A.icqt(A.cqt(y, n_bins=24, fmin=300.0), fmin=300.0, length=8000),
    "onset_strength": lambda y: A.onset_strength(y=y, sr=SR, max_size=3, detrend=True),
    "tempogram": lambda y: A.tempogram(y=y, sr=SR, win_length=12, hop_length=128),
    "fourier_tempogram": lambda y: A.fourier_tempogram(y=y, sr=SR, win_length=12),
    "tempo": lambda y: gp.asarray(A.tempo(y=y, sr=SR, hop_length=64, ac_size=1.0)),
    "plp": lambda y: A.plp(y=y, sr=SR, hop_length=128, win_length=40),
    "hpss": lambda y: A.hpss(y, n_fft=256, kernel_size=9)[1],
    "time_stretch": lambda y: A.time_stretch(y, rate=0.8, n_fft=256),
    "pitch_shift": lambda y: A.pitch_shift(y[..., :2000], sr=SR, n_steps=2, n_fft=256),
    "preemphasis": A.preemphasis,
    "deemphasis": A.deemphasis,
    "sosfilt": lambda y: A.sosfilt(SOS, y),
    "lfilter": lambda y: A.lfilter([1.0, 0.5], [1.0, -0.9], y),
}


@pytest.mark.parametrize("name", BATCHED)
def test_an_item_of_a_batch_has_the_bits_of_the_item_alone(name: str) -> None:
    items = np.stack([speech()[:8000], music()[:8000], music()[4000:12000]])
    batch = BATCHED[name](gp.asarray(items[:, None, :]))
    for i, item in enumerate(items):
        alone = BATCHED[name](gp.asarray(item))
        assert batch[i, 0].shape == alone.shape
        assert batch[i, 0].to_numpy().tobytes() == alone.to_numpy().tobytes()


def test_convolution_with_one_response_and_with_one_for_each() -> None:
    items, h = np.stack([speech()[:4000], music()[:4000]]), music()[5000:5700]
    one = A.fftconvolve(gp.asarray(items), gp.asarray(h))
    each = A.fftconvolve(gp.asarray(items), gp.asarray(np.stack([h, h[::-1]])))
    for i in range(2):
        alone = A.fftconvolve(gp.asarray(items[i]), gp.asarray(h if i == 0 else h[::-1].copy()))
        assert each[i].to_numpy().tobytes() == alone.to_numpy().tobytes()
    assert one[0].to_numpy().tobytes() == each[0].to_numpy().tobytes()
