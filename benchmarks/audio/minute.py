"""CPU seconds that a minute of audio takes on the CPU device, or with --peer in librosa: median of five runs each.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYGPUKIT_DEVICE=cpu python benchmarks/audio/minute.py
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/audio/minute.py --peer     # librosa 0.11 installed

Both compute with one thread, on the same samples, after a run that is not timed.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RATE = 22_050


def samples() -> Any:
    """A minute of chords that decay, over noise."""
    t = np.arange(60 * RATE) / RATE
    y = sum(np.sin(2 * np.pi * f * t) * np.exp(-3 * (t % 0.5)) for f in (220.0, 277.2, 329.6, 440.0))
    noise = np.random.Generator(np.random.PCG64(1)).standard_normal(t.size)
    return (0.1 * y + 0.01 * noise).astype(np.float32)


def calls(A: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """What is timed, by librosa's names."""
    D = A.stft(y)
    return {
        "stft": lambda: A.stft(y),
        "istft": lambda: A.istft(D),
        "melspectrogram": lambda: A.feature.melspectrogram(y=y, sr=RATE),
        "mfcc": lambda: A.feature.mfcc(y=y, sr=RATE),
        "spectral_contrast": lambda: A.feature.spectral_contrast(y=y, sr=RATE),
        "chroma_stft": lambda: A.feature.chroma_stft(y=y, sr=RATE),
        "cqt": lambda: A.cqt(y, sr=RATE),
        "yin": lambda: A.yin(y, fmin=65, fmax=2093, sr=RATE),
        "pyin": lambda: A.pyin(y, fmin=65, fmax=2093, sr=RATE),
        "onset_strength": lambda: A.onset.onset_strength(y=y, sr=RATE),
        "beat_track": lambda: A.beat.beat_track(y=y, sr=RATE),
        "hpss": lambda: A.effects.hpss(y),
        "time_stretch": lambda: A.effects.time_stretch(y, rate=1.2),
        "pitch_shift": lambda: A.effects.pitch_shift(y, sr=RATE, n_steps=3),
        "resample to 16 kHz": lambda: A.resample(y, orig_sr=RATE, target_sr=16000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="store_true", help="time librosa")
    options = parser.parse_args()
    y = samples()
    if options.peer:
        A = importlib.import_module("librosa")
    else:
        A = importlib.import_module("pygpukit.audio")
        y = importlib.import_module("pygpukit").asarray(y)
    for name, call in calls(A, y).items():
        call()
        times = []
        for _ in range(5):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        print(f"{name:20} {statistics.median(times) * 1e3:8.1f} ms")


if __name__ == "__main__":
    main()
