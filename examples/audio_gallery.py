"""Pictures and sounds: a melody over a beat, what effects make of it, and what its analyses look like.

Writes WAV files that can be played and pictures of them into a folder; without matplotlib the sounds only.

python examples/audio_gallery.py --folder gallery
python examples/audio_gallery.py --folder gallery --seconds 20
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import MissingPackageError

RATE = 22_050
NOTES = ("A3", "C4", "E4", "A4", "G4", "E4", "D4", "C4", "F3", "A3", "C4", "F4", "E4", "C4", "B3", "G3")
PICTURES = {
    "spectrogram": ["spectrogram"],
    "mel": ["mel"],
    "pitch": ["pitch"],
    "onsets": ["onsets"],
    "chroma": ["chroma"],
}


def melody(seconds: float) -> Any:
    """A note each half second with vibrato and harmonics, and a drum of noise at its beginning."""
    t = gp.arange(int(RATE * seconds), dtype="float64") / RATE
    inside = t % 0.5
    pitch = gp.asarray(A.note_to_hz(NOTES), "float64")
    frequency = gp.take(pitch, (t * 2).astype("int64") % len(NOTES))
    phase = 2 * np.pi * frequency * inside + 1.5 * gp.sin(2 * np.pi * 5.5 * inside) * inside
    tone = sum(gp.sin(k * phase) / k**1.3 for k in range(1, 13))
    drum = gp.random.default_rng(1).standard_normal(t.shape) * gp.exp(-inside * 60)
    return A.limiter((0.3 * tone * gp.exp(-inside * 3) + 0.2 * drum).astype("float32"), sr=RATE)


SOUNDS: dict[str, Callable[[Any], Any]] = {
    "melody": lambda y: y,
    "harmonic": lambda y: A.effects.harmonic(y),
    "percussive": lambda y: A.effects.percussive(y),
    "slower": lambda y: A.time_stretch(y, rate=0.75),
    "higher": lambda y: A.pitch_shift(y, sr=RATE, n_steps=5),
    "reverberating": lambda y: A.limiter(A.reverb(y, sr=RATE, decay=2.0, wet=0.4), sr=RATE),
    "from magnitudes": lambda y: A.griffinlim(gp.abs(A.stft(y)), n_iter=16, length=y.shape[-1]),
}


def main() -> None:
    """Write the sounds and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write (default: a new temporary folder)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of the melody (default: 8)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)

    y = melody(options.seconds)
    for name, effect in SOUNDS.items():
        sound = effect(y)
        path = folder / f"{name.replace(' ', '-')}.wav"
        A.save(path, sound, RATE)
        loud = A.loudness(sound, sr=RATE)
        print(f"{path.name:20} {sound.shape[-1] / RATE:6.2f} s {float(loud):6.1f} LUFS")
    try:
        for name, kinds in PICTURES.items():
            A.save_plot(folder / f"audio-{name}.png", y, sr=RATE, kinds=kinds)
            print(f"audio-{name}.png")
    except MissingPackageError as error:
        print(f"no pictures: {error}")
    print(f"in {folder}")


if __name__ == "__main__":
    main()
