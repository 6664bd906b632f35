"""What is computed by librosa 0.11 and stored, and computed again by our functions of the same names.

A case names a function, as an attribute path of both packages, and its arguments. ``"@music"`` is a signal;
``"@music.stft"`` its transform, made by the package that runs the case.
"""

from __future__ import annotations

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


def case(name: str, path: str, *arguments: Any, limit: float = 1e-5, wide: bool = False, **options: Any) -> Case:
    return Case(name, path, arguments, options, limit, wide)


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
    if made == "mel":
        return module.power_to_db(module.feature.melspectrogram(y=y, sr=SR, n_mels=24))
    size = int("".join(c for c in made if c.isdigit()) or 2048)
    return abs(module.stft(y, n_fft=size)) if made.startswith("abs") else module.stft(y, n_fft=size)


def run(one: Case, module: Any, array: Any) -> list[Any]:
    """The results of a case by one of the packages, as NumPy arrays."""
    function: Any = module
    for part in one.path.split("."):
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
