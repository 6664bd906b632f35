"""What a sound is like: loudness, tempo, pitch, tuning and mel spectrum, and the spectrum again in a stream.

Without a file a melody over a beat is made, and written to a WAV file that can be played.

python examples/sound_features.py
python examples/sound_features.py talk.flac        # FLAC, Ogg, MP3: pip install 'pygpukit[audio]'
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
import pygpukit.audio as A

RATE = 22_050
NOTES = ("A3", "C4", "E4", "A4", "G4", "E4", "D4", "C4")


def melody(seconds: float) -> Any:
    """A note each half second, with a click at its beginning."""
    t = gp.arange(int(RATE * seconds), dtype="float32") / RATE
    inside = t % 0.5
    pitch = gp.asarray(A.note_to_hz(NOTES), "float32")
    frequency = gp.take(pitch, ((t * 2).astype("int64")) % len(NOTES))
    tone = sum(gp.sin(2 * np.pi * k * frequency * inside) / k for k in range(1, 6))
    click = gp.random.default_rng(1).standard_normal(t.shape, dtype="float32") * gp.exp(-inside * 200)
    return A.limiter(0.3 * tone * gp.exp(-inside * 4) + 0.3 * click, sr=RATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="a sound; a melody is made without")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the melody")
    options = parser.parse_args()

    path = options.file
    if path is None:
        path = str(Path(tempfile.mkdtemp()) / "melody.wav")
        A.save(path, melody(options.seconds), RATE)
    y, sr = A.load(path, sr=RATE)
    print(f"{path}: {y.shape[-1] / sr:.2f} s at {sr} Hz on {y.device}")

    print(f"loudness   {float(A.loudness(y, sr=sr)):.1f} LUFS, true peak {float(A.true_peak(y)):.1f} dB")
    tempo, beats = A.beat_track(y=y, sr=sr, units="time")
    print(f"tempo      {float(np.ravel(tempo)[0]):.0f} bpm, {len(beats)} beats")
    f0, voiced, _ = A.pyin(y, fmin=100, fmax=800, sr=sr)
    heard = f0.to_numpy()[voiced.to_numpy()]
    names = list(dict.fromkeys(A.hz_to_note(heard))) if heard.size else []
    print(f"pitch      {' '.join(names)}; tuning {A.estimate_tuning(y=y, sr=sr):+.2f} semitones")
    print(f"brightness {float(gp.mean(A.spectral_centroid(y=y, sr=sr))):.0f} Hz")

    whole = A.melspectrogram(y=y, sr=sr)
    stream = A.MelStream(sr=sr)
    parts = [stream.push(y[i : i + 1000]) for i in range(0, y.shape[-1], 1000)]
    joined = gp.concatenate([*parts, stream.flush()], axis=-1)
    verdict = "the same bits" if bool(gp.all(joined == whole)) else "other bits"
    print(f"mel        {whole.shape[0]} x {whole.shape[1]}; in blocks of 1000 samples {verdict}")


if __name__ == "__main__":
    main()
