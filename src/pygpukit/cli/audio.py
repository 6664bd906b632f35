"""`pygpukit audio`: what a sound file holds, files of other formats and rates, and pictures of sounds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from math import log10
from pathlib import Path
from typing import Any

import numpy as np

from pygpukit.errors import GPUKitError, ParameterError

__all__ = ["add_parser"]

_KINDS = ("spectrogram", "mel", "pitch", "onsets", "chroma")
_SHORTEST = 0.4


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``audio`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("audio", help="sound files: what they hold, conversion, pictures")
    commands = parser.add_subparsers(dest="audio_command", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="format, rate, length and loudness of files")
    info.add_argument("files", nargs="+", type=Path, metavar="FILE")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    convert = commands.add_parser(
        "convert", help="write a file in another format, at another rate, or a part of it",
        description="Write a sound as another file, whose ending is its format. WAV needs no package; FLAC, Ogg, MP3 "
        "and what FFmpeg reads need: pip install 'pygpukit[audio]'.",
    )  # fmt: skip
    convert.add_argument("source", type=Path, metavar="SOURCE")
    convert.add_argument("target", type=Path, metavar="TARGET")
    convert.add_argument("--rate", type=float, help="samples per second of the target (default: those of the source)")
    convert.add_argument("--mono", action="store_true", help="average channels")
    convert.add_argument("--subtype", default="PCM_16", help="of WAV: PCM_U8, PCM_16 (default), PCM_24, PCM_32, FLOAT, "
                         "DOUBLE; of other formats as soundfile names them")  # fmt: skip
    convert.add_argument("--quality", default="soxr_hq", metavar="NAME", help="of resampling (default: soxr_hq)")
    convert.add_argument("--force", action="store_true", help="replace a target that exists")
    convert.set_defaults(run=_convert)

    plot = commands.add_parser(
        "plot", help="draw spectrograms, pitch, onsets and chroma",
        description="Draw a sound over time; several kinds are drawn one above the other. Pictures need: pip install "
        "'pygpukit[plot]'.",
    )  # fmt: skip
    plot.add_argument("file", type=Path, metavar="FILE")
    plot.add_argument("--kind", nargs="+", choices=_KINDS, default=["mel"], help="what is drawn (default: mel)")
    plot.add_argument("-o", "--output", type=Path, help="the picture; its ending (png, svg, pdf) is its format "
                      "(default: the file's name with the kinds, as png, in this folder)")  # fmt: skip
    plot.add_argument("--rate", type=float, default=22050, help="samples per second that are analysed (default: 22050)")
    plot.set_defaults(run=_plot)

    for command in (convert, plot):
        command.add_argument("--offset", type=float, default=0.0, metavar="S", help="seconds left out at the beginning")
        command.add_argument("--duration", type=float, metavar="S", help="seconds read (default: all)")


def _tried(path: Path, function: Callable[[], Any]) -> Any:
    """Call a function; a failure of the file system is said with the file, and None returned."""
    try:
        return function()
    except OSError as error:
        print(f"pygpukit: {error.filename or path}: {error.strerror or error}", file=sys.stderr)
    except GPUKitError as error:
        print(f"pygpukit: {error}", file=sys.stderr)
    return None


def _decibels(value: float) -> float | None:
    return 20 * log10(value) if value > 0 else None


def _facts(path: Path) -> dict[str, Any]:
    from pygpukit.array.bridge import from_numpy
    from pygpukit.audio.files import read
    from pygpukit.audio.loudness import loudness, true_peak

    values, rate, kind = read(str(path))
    frames, channels = values.shape
    facts: dict[str, Any] = {
        "file": str(path), "format": kind, "rate": rate, "channels": channels, "samples": frames,
        "seconds": frames / rate, "bytes": path.stat().st_size,
    }  # fmt: skip
    if frames == 0:
        return facts
    peak = float(np.abs(values).max())
    facts |= {
        "peak_db": _decibels(peak),
        "rms_db": _decibels(float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))),
        "clipped": int(np.count_nonzero(np.abs(values) >= 1 - 2**-15)),
        "finite": bool(np.isfinite(values).all()),
    }
    if facts["finite"] and facts["seconds"] >= _SHORTEST:
        y = from_numpy(np.ascontiguousarray(values.T))
        loud, highest = float(loudness(y, sr=rate)), float(true_peak(y).max())
        facts |= {"loudness_lufs": loud if np.isfinite(loud) else None,
                  "true_peak_db": highest if np.isfinite(highest) else None}  # fmt: skip
    return facts


def _counted(channels: int) -> str:
    return f"{channels} channel{'s' if channels != 1 else ''}"


def _shown(value: float | None, unit: str) -> str:
    return "silence" if value is None else f"{value:.1f} {unit}"


def _info(args: argparse.Namespace) -> int:
    found = []
    for path in args.files:
        facts = _tried(path, lambda path=path: _facts(path))  # type: ignore[misc]
        if facts is None:
            continue
        found.append(facts)
        if args.json:
            continue
        print(f"{facts['file']}: {facts['format']}")
        print(f"  {facts['seconds']:.3f} s, {facts['samples']} samples at {facts['rate']} Hz, "
              f"{_counted(facts['channels'])}, {facts['bytes']} bytes")  # fmt: skip
        if "finite" in facts and not facts["finite"]:
            print("  there are numbers in it that are not finite")
        elif "peak_db" in facts:
            print(f"  peak {_shown(facts['peak_db'], 'dBFS')}, RMS {_shown(facts['rms_db'], 'dBFS')}, "
                  f"{facts['clipped']} clipped samples")  # fmt: skip
        if "loudness_lufs" in facts:
            print(f"  loudness {_shown(facts['loudness_lufs'], 'LUFS')}, true peak "
                  f"{_shown(facts['true_peak_db'], 'dB')}")  # fmt: skip
    if args.json:
        print(json.dumps(found, indent=2))
    return 0 if len(found) == len(args.files) else 1


def _convert(args: argparse.Namespace) -> int:
    from pygpukit.audio.files import load, save

    if args.target.exists() and not args.force:
        raise ParameterError(f"{args.target} exists; give another name, or --force to replace it")
    if not args.target.suffix:
        raise ParameterError(f"{args.target} has no ending; it says the format: {args.target}.wav for example")

    def run() -> int:
        y, rate = load(args.source, sr=args.rate, mono=args.mono, offset=args.offset, duration=args.duration,
                       res_type=args.quality)  # fmt: skip
        if rate != int(rate):
            raise ParameterError(f"--rate is {rate}; a file has a whole number of samples per second")
        save(args.target, y, int(rate), subtype=args.subtype)
        channels = y.shape[0] if y.ndim > 1 else 1
        print(f"{args.target}: {y.shape[-1] / rate:.3f} s at {int(rate)} Hz, {_counted(channels)}")
        return 0

    return 1 if _tried(args.source, run) is None else 0


def _plot(args: argparse.Namespace) -> int:
    from pygpukit.audio.files import load
    from pygpukit.audio.pictures import save_plot

    target = args.output or Path(f"{args.file.stem}-{'-'.join(args.kind)}.png")

    def run() -> int:
        y, rate = load(args.file, sr=args.rate, offset=args.offset, duration=args.duration)
        save_plot(target, y, sr=rate, kinds=args.kind, title=args.file.name)
        print(f"{target}: {', '.join(args.kind)} of {y.shape[-1] / rate:.3f} s")
        return 0

    return 1 if _tried(args.file, run) is None else 0
