"""What is computed by librosa 0.11 and stored, and computed again by our functions of the same names.

A case names a function, as an attribute path of both packages, and its arguments. ``"@music"`` is a signal;
``"@music.stft"`` its transform, made by the package that runs the case.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
from signals import SIGNALS, SR

MOST = 900
"""Values of a result that are stored."""


class Case(NamedTuple):
    """A call; ``limit`` is relative to the largest stored magnitude, or absolute in decibels and events."""

    name: str
    path: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    limit: float
    wide: bool = False
    theirs: str = ""


def case(name: str, path: str, *arguments: Any, limit: float = 1e-5, wide: bool = False, theirs: str = "",
         **options: Any) -> Case:  # fmt: skip
    return Case(name, path, arguments, options, limit, wide, theirs)


WINDOWS = (
    "barthann", "bartlett", "blackman", "blackmanharris", "bohman", "boxcar", "cosine", "flattop", "gaussian",
    "hamming", "hann", "kaiser", "nuttall", "parzen", "triang", "tukey",
)  # fmt: skip
# Butterworth low passes of order 5 and 3 by scipy.signal.butter, as sections and as a rational function.
SOS = np.array([
    [0.0005979578037000326, 0.0011959156074000652, 0.0005979578037000326, 1.0, -0.5095254494944288, 0.0],
    [1.0, 2.0, 1.0, 1.0, -1.0965794655679613, 0.3554467990116143],
    [1.0, 1.0, 0.0, 1.0, -1.3693171946832927, 0.6925691353878489],
])  # fmt: skip
B = np.array([0.0028981946337214645, 0.008694583901164393, 0.008694583901164393, 0.0028981946337214645])
A_ = np.array([1.0, -2.37409474370935, 1.92935566909122, -0.5320753683120923])


CASES = [
    case("stft", "stft", "@music"),
    case("stft_speech_400", "stft", "@speech", n_fft=400, hop_length=160, pad_mode="reflect"),
    case("stft_odd", "stft", "@noise", n_fft=511, hop_length=100, win_length=300, window="hamming"),
    case("stft_prime", "stft", "@noise", n_fft=37, hop_length=11, window=("kaiser", 6.0), center=False),
    case("stft_edge", "stft", "@sine", n_fft=1000, pad_mode="edge", window="blackmanharris"),
    case("stft_wide", "stft", "@speech", limit=1e-12, wide=True, n_fft=512),
    case("stft_clipped", "stft", "@clipped", n_fft=1024),
    case("stft_stereo", "stft", "@stereo", n_fft=256),
    case("stft_silence", "stft", "@silence", n_fft=256),
    case("stft_two", "stft", "@noise", n_fft=2, hop_length=1),
    case("istft", "istft", "@music.stft"),
    case("istft_length", "istft", "@music.stft", length=20000),
    case("istft_window", "istft", "@speech.stft512", hop_length=100, win_length=400, n_fft=512, window="hamming"),
    case("istft_uncentred", "istft", "@speech.stft512", center=False),
    case("griffinlim", "griffinlim", "@speech.abs512", n_iter=4, init=None, wide=True, limit=1e-8),
    case("griffinlim_seed", "griffinlim", "@speech.abs512", n_iter=2, random_state=3, momentum=0.5, wide=True,
         limit=1e-8),
    case("phase_vocoder", "phase_vocoder", "@speech.stft512", rate=1.3, wide=True, limit=1e-6),
    case("phase_vocoder_slow", "phase_vocoder", "@speech.stft512", rate=0.7, wide=True, limit=1e-6),
    case("power_to_db", "power_to_db", "@speech.abs512", limit=1e-3),
    case("power_to_db_max", "power_to_db", "@speech.abs512", ref=np.max, top_db=40.0, limit=1e-3),
    case("amplitude_to_db", "amplitude_to_db", "@speech.abs512", ref=np.max, limit=1e-3),
    case("amplitude_to_db_all", "amplitude_to_db", "@speech.abs512", ref=0.5, top_db=None, limit=1e-3),
    case("db_to_power", "db_to_power", "@music", ref=2.0),
    case("db_to_amplitude", "db_to_amplitude", "@music"),
    case("mel", "filters.mel", sr=22050, n_fft=2048, limit=1e-6),
    case("mel_htk", "filters.mel", sr=16000, n_fft=400, n_mels=40, htk=True, norm=None, fmin=80, fmax=7600, limit=1e-6),
    case("mel_norm", "filters.mel", sr=8000, n_fft=511, n_mels=20, norm=1, limit=1e-6),
    case("chroma_filters", "filters.chroma", sr=22050, n_fft=2048, limit=1e-6),
    case("chroma_filters_24", "filters.chroma", sr=11025, n_fft=1024, n_chroma=24, tuning=0.2, octwidth=None, norm=1,
         base_c=False, limit=1e-6),
    case("melspectrogram", "feature.melspectrogram", y="@music", sr=SR, limit=5e-4),
    case("melspectrogram_whisper", "feature.melspectrogram", y="@speech", sr=16000, n_fft=400, hop_length=160,
         n_mels=80, limit=5e-4),
    case("melspectrogram_energy", "feature.melspectrogram", y="@clipped", power=1.0, n_mels=40, htk=True, fmax=8000,
         limit=5e-4),
    case("melspectrogram_cube", "feature.melspectrogram", y="@noise", power=3.0, n_fft=301, norm=None, limit=5e-4),
    case("melspectrogram_S", "feature.melspectrogram", S="@speech.abs512", sr=SR, n_mels=32, limit=5e-4),
    case("mfcc", "feature.mfcc", y="@speech", sr=SR, limit=5e-4),
    case("mfcc_lifter", "feature.mfcc", y="@music", sr=SR, n_mfcc=13, lifter=22, n_mels=40, limit=5e-4),
    case("mfcc_dct3", "feature.mfcc", y="@noise", sr=SR, dct_type=3, norm=None, n_mels=33, n_fft=512, limit=5e-4),
    case("mfcc_dct1", "feature.mfcc", y="@noise", sr=SR, dct_type=1, n_mels=24, n_fft=512, limit=5e-4),
    case("mfcc_silence", "feature.mfcc", y="@silence", sr=SR, limit=5e-4),
    case("delta", "feature.delta", "@speech.mel", limit=1e-4),
    case("delta_2", "feature.delta", "@speech.mel", order=2, width=5, limit=1e-4),
    case("delta_nearest", "feature.delta", "@speech.mel", mode="nearest", axis=-2, limit=1e-4),
    case("stack_memory", "feature.stack_memory", "@speech.mel", n_steps=3, delay=2),
    case("resample_half", "resample", "@music", orig_sr=22050, target_sr=11025, res_type="polyphase"),
    case("resample_up", "resample", "@speech", orig_sr=16000, target_sr=22050, res_type="polyphase", scale=True),
    case("resample_soxr", "resample", "@faded", orig_sr=22050, target_sr=16000, limit=1e-3),
    case("resample_soxr_up", "resample", "@faded", orig_sr=22050, target_sr=48000, limit=1e-3),
    case("to_mono", "to_mono", "@stereo"),
    case("spectral_centroid", "feature.spectral_centroid", y="@music", limit=5e-4),
    case("spectral_centroid_silence", "feature.spectral_centroid", y="@silence", n_fft=512, limit=5e-4),
    case("spectral_bandwidth", "feature.spectral_bandwidth", y="@speech", n_fft=1024, limit=5e-4),
    case("spectral_bandwidth_3", "feature.spectral_bandwidth", S="@speech.abs512", p=3, norm=False, limit=5e-4),
    case("spectral_contrast", "feature.spectral_contrast", y="@music", wide=True, limit=1e-6),
    case("spectral_contrast_linear", "feature.spectral_contrast", S="@speech.abs512", n_bands=4, linear=True,
         quantile=0.1, limit=5e-4),
    case("spectral_flatness", "feature.spectral_flatness", y="@noise", n_fft=512, limit=5e-4),
    case("spectral_rolloff", "feature.spectral_rolloff", y="@speech", limit=1e-5),
    case("spectral_rolloff_low", "feature.spectral_rolloff", y="@music", roll_percent=0.1, n_fft=1000, limit=1e-5),
    case("poly_features", "feature.poly_features", S="@speech.abs512", order=2, limit=5e-4),
    case("rms", "feature.rms", y="@speech", limit=1e-5),
    case("rms_S", "feature.rms", S="@speech.abs512", frame_length=512, limit=1e-5),
    case("zero_crossing_rate", "feature.zero_crossing_rate", "@speech", limit=1e-9),
    case("zero_crossing_rate_noise", "feature.zero_crossing_rate", "@noise", frame_length=300, hop_length=100,
         center=False, limit=1e-9),
    case("zero_crossings", "zero_crossings", "@clipped", limit=0),
    case("chroma_stft", "feature.chroma_stft", y="@music", sr=SR, limit=5e-4),
    case("chroma_stft_tuned", "feature.chroma_stft", y="@speech", sr=SR, tuning=0.1, n_chroma=24, norm=2, n_fft=1024,
         limit=5e-4),
    case("autocorrelate", "autocorrelate", "@noise", max_size=800),
    case("piptrack", "piptrack", y="@music", sr=SR, limit=1e-4),
    case("piptrack_ref", "piptrack", y="@speech", sr=SR, ref=1.0, n_fft=1024, fmin=100, limit=1e-4),
    case("estimate_tuning", "estimate_tuning", y="@music", sr=SR, limit=1e-6),
    case("yin", "yin", "@sine", fmin=100, fmax=2000, sr=SR, limit=5e-5, wide=True),
    case("yin_speech", "yin", "@speech", fmin=60, fmax=500, sr=SR, limit=5e-5, wide=True, frame_length=1024),
    case("yin_single", "yin", "@sine", fmin=200, fmax=1000, sr=SR, limit=1e-3, center=False),
    case("pyin", "pyin", "@speech", fmin=65.0, fmax=500.0, sr=SR, limit=5e-5, wide=True),
    case("pyin_music", "pyin", "@music", fmin=100.0, fmax=800.0, sr=SR, hop_length=400, resolution=0.2, limit=5e-5,
         fill_na=None, wide=True),
    case("cqt", "cqt", "@music", res_type="polyphase", limit=1e-4),
    case("cqt_soxr", "cqt", "@faded", limit=1e-3),
    case("cqt_few", "cqt", "@speech", sr=SR, n_bins=30, fmin=200.0, bins_per_octave=24, hop_length=256, scale=False,
         res_type="polyphase", limit=1e-4, tuning=0.2),
    case("cqt_low", "cqt", "@music", sr=SR, n_bins=12, fmin=60.0, hop_length=512, res_type="polyphase", limit=1e-4),
    case("vqt", "vqt", "@music", res_type="polyphase", limit=1e-4),
    case("pseudo_cqt", "pseudo_cqt", "@music", fmin=100.0, n_bins=60, limit=1e-4),
    case("hybrid_cqt", "hybrid_cqt", "@music", res_type="polyphase", limit=1e-4),
    case("icqt", "icqt", "@music.cqt", res_type="polyphase", limit=1e-4, length=33075),
    case("chroma_cqt", "feature.chroma_cqt", y="@music", sr=SR, tuning=0.0, limit=2e-3),
    case("chroma_cens", "feature.chroma_cens", C="@music.abscqt", bins_per_octave=12, limit=1e-3),
    case("tonnetz", "feature.tonnetz", chroma="@music.abscqt12", limit=1e-4),
    case("onset_strength", "onset.onset_strength", y="@clicks", sr=SR, limit=1e-3),
    case("onset_strength_detrend", "onset.onset_strength", y="@music", sr=SR, lag=2, max_size=3, detrend=True,
         limit=1e-3),
    case("onset_strength_multi", "onset.onset_strength_multi", S="@speech.mel", channels=[0, 8, 24], limit=1e-5),
    case("onset_detect", "onset.onset_detect", y="@clicks", sr=SR, limit=0),
    case("onset_detect_back", "onset.onset_detect", y="@music", sr=SR, backtrack=True, units="samples", limit=0),
    case("tempogram", "feature.tempogram", y="@music", sr=SR, win_length=40, limit=1e-3),
    case("fourier_tempogram", "feature.fourier_tempogram", y="@music", sr=SR, win_length=40, limit=1e-3),
    case("tempo", "feature.tempo", y="@clicks", sr=SR, limit=1e-9),
    case("beat_track", "beat.beat_track", y="@clicks", sr=SR, limit=1e-9),
    case("beat_track_music", "beat.beat_track", y="@music", sr=SR, trim=False, start_bpm=100, limit=1e-9),
    case("plp", "beat.plp", y="@clicks", sr=SR, win_length=192, limit=1e-3),
    case("decompose_hpss", "decompose.hpss", "@music.abs512", limit=1e-4),
    case("decompose_hpss_margin", "decompose.hpss", "@speech.stft512", kernel_size=(11, 16), margin=(1.5, 2.0),
         power=1.5, limit=1e-4),
    case("effects_hpss", "effects.hpss", "@music", n_fft=1024, limit=1e-4),
    case("time_stretch", "effects.time_stretch", "@speech", rate=1.4, wide=True, limit=1e-6),
    case("pitch_shift", "effects.pitch_shift", "@faded", sr=SR, n_steps=3, wide=True, limit=2e-3),
    case("trim", "effects.trim", "@trimmed", top_db=40),
    case("split", "effects.split", "@trimmed", top_db=30, limit=0),
    case("preemphasis", "effects.preemphasis", "@speech", coef=0.9),
    case("preemphasis_state", "effects.preemphasis", "@speech", zi=[0.5], return_zf=True),
    case("deemphasis", "effects.deemphasis", "@speech"),
    case("deemphasis_state", "effects.deemphasis", "@speech", zi=[0.25], return_zf=True, coef=0.5),
    case("sosfilt", "sosfilt", SOS, "@speech", theirs="scipy.signal.sosfilt", limit=1e-6),
    case("sosfilt_wide", "sosfilt", SOS, "@speech", theirs="scipy.signal.sosfilt", limit=1e-12, wide=True),
    case("sosfilt_state", "sosfilt", SOS, "@noise", zi=np.full((3, 2), 0.1), theirs="scipy.signal.sosfilt", wide=True,
         limit=1e-11),
    case("lfilter", "lfilter", B, A_, "@music", theirs="scipy.signal.lfilter", limit=1e-11, wide=True),
    case("lfilter_state", "lfilter", B, A_, "@noise", zi=np.array([0.5, 0.2, -0.1]), theirs="scipy.signal.lfilter",
         wide=True, limit=1e-11),
    case("lfilter_finite", "lfilter", np.hanning(60), 2.0, "@noise", theirs="scipy.signal.lfilter", limit=1e-5),
    case("fftconvolve", "fftconvolve", "@music", "@sine", theirs="scipy.signal.fftconvolve", limit=1e-5),
    case("fftconvolve_same", "fftconvolve", "@noise", "@sine", mode="same", theirs="scipy.signal.fftconvolve",
         limit=1e-11, wide=True),
    case("fftconvolve_valid", "fftconvolve", "@music", "@noise", mode="valid", theirs="scipy.signal.fftconvolve",
         limit=1e-11, wide=True),
    case("dct_2", "dct", "@noise", n=301, theirs="scipy.fft.dct", limit=1e-12, wide=True),
    case("dct_3", "dct", "@noise", n=300, type=3, norm="ortho", theirs="scipy.fft.dct", limit=1e-12, wide=True),
    case("dct_1", "dct", "@stereo", n=40, type=1, axis=-1, theirs="scipy.fft.dct", limit=1e-12, wide=True),
    case("pcen", "pcen", "@speech.abs512", sr=SR, limit=1e-4),
    case("pcen_max", "pcen", "@speech.abs512", sr=SR, max_size=3, power=0.3, bias=1.5, return_zf=True, limit=1e-4),
    *(case(f"window_{name}_{n}", "get_window", (name, 5.0) if name in ("kaiser", "gaussian") else name, n,
           fftbins=n == 16, theirs="scipy.signal.get_window", limit=1e-10)
      for n in (16, 17) for name in WINDOWS),
    case("A_weighting", "A_weighting", np.array([20.0, 440.0, 1000.0, 10000.0]), limit=1e-9),
    case("hz_to_mel", "hz_to_mel", np.array([0.0, 100.0, 1000.0, 5000.0]), limit=1e-12),
    case("mel_to_hz_htk", "mel_to_hz", np.array([0.0, 10.0, 1000.0]), htk=True, limit=1e-12),
    case("mel_frequencies", "mel_frequencies", 40, fmin=50.0, fmax=8000.0, limit=1e-12),
    case("note_to_hz", "note_to_hz", ["C1", "F#4", "Bb2+20"], limit=1e-9),
    case("hz_to_octs", "hz_to_octs", np.array([55.0, 440.0, 1000.0]), tuning=0.1, limit=1e-12),
    case("cqt_frequencies", "cqt_frequencies", 24, fmin=55.0, tuning=0.3, limit=1e-12),
    case("tempo_frequencies", "tempo_frequencies", 20, limit=1e-12),
    case("time_to_frames", "time_to_frames", np.array([0.0, 0.5, 1.7]), n_fft=2048, limit=0),
    case("times_like", "times_like", 9, n_fft=512, limit=1e-12),
]  # fmt: skip


def value_of(text: Any, module: Any, array: Any, wide: bool) -> Any:
    """The value that an argument stands for."""
    if not isinstance(text, str) or not text.startswith("@"):
        return text
    name, _, made = text[1:].partition(".")
    y = SIGNALS[name]()
    y = array(y.astype(np.float64) if wide else y)
    if not made:
        return y
    if made == "stft":
        return module.stft(y)
    if made == "cqt":
        return module.cqt(y, res_type="polyphase")
    if made.startswith("abscqt"):
        return abs(module.cqt(y, res_type="polyphase", n_bins=int(made[6:] or 84), fmin=130.0 if made[6:] else None))
    if made == "mel":
        return module.power_to_db(module.feature.melspectrogram(y=y, sr=SR, n_mels=24))
    size = int("".join(c for c in made if c.isdigit()) or 2048)
    return abs(module.stft(y, n_fft=size)) if made.startswith("abs") else module.stft(y, n_fft=size)


def run(one: Case, module: Any, array: Any) -> list[Any]:
    """The results of a case by one of the packages, as NumPy arrays."""
    function: Any = module
    path = one.path
    if one.theirs and module.__name__ == "librosa":
        home, _, path = one.theirs.rpartition(".")
        function = importlib.import_module(home)
    for part in path.split("."):
        function = getattr(function, part)
    arguments = [value_of(x, module, array, one.wide) for x in one.arguments]
    options = {k: value_of(v, module, array, one.wide) for k, v in one.options.items()}
    made = function(*arguments, **options)
    return [
        x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)
        for x in (made if isinstance(made, tuple) else (made,))
    ]


def thinned(x: Any) -> Any:
    """Values spread over an array, in a fixed order."""
    flat = np.ascontiguousarray(x).reshape(-1)
    # A step without a factor in common with usual sizes meets every row and column.
    step = max(1, flat.size // MOST)
    return flat[:: step + (step > 1 and step % 2 == 0)]
