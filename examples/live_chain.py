"""A chain of audio effects in real time: blocks of 128 samples at 48 kHz under a deadline, and how long they took.

By default a sound is made and fed at the pace of a sound card; none is needed. With --microphone the default input is
played through the chain: pip install 'pygpukit[live]'.

python examples/live_chain.py
python examples/live_chain.py --seconds 120 --picture late.png
python examples/live_chain.py --microphone --seconds 30
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.errors import DeadlineRefusedError, MissingPackageError

RATE, BLOCK = 48_000, 128
# A microphone that gives nothing for so many seconds has stopped.
STOPPED = 1.0


def make_chain(channels: int) -> A.Chain:
    """High-pass, gate, compressor, a room, a limiter."""
    t = np.arange(RATE // 2) / RATE
    room = np.random.default_rng(0).standard_normal(t.size) * np.exp(-8 * t) * 0.03
    return (
        A.Chain(RATE, channels=channels, block=BLOCK)
        | A.Highpass(80)
        | A.Gate(-50)
        | A.Compressor(-18, ratio=3)
        | A.Convolve(room, wet=0.3, dry=0.8)
        | A.Limiter(-1.0)
    )


def make_sound(blocks: int, channels: int) -> np.ndarray[Any, Any]:
    """Plucked tones over noise, (channels, samples)."""
    t = np.arange(blocks * BLOCK) / RATE
    tone = sum(np.sin(2 * np.pi * f * t) * np.exp(-5 * (t % 0.5)) for f in (220.0, 277.2, 329.6))
    noise = np.random.default_rng(1).standard_normal((channels, t.size))
    return (0.4 * tone + 0.003 * noise).astype(np.float32)


def feed(rt: Any, sound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the blocks of a sound at the pace of a sound card; returns what came out."""
    played = np.zeros_like(sound)
    began = time.perf_counter()
    for number in range(sound.shape[1] // BLOCK):
        due = began + number * BLOCK / RATE
        # Sleeping is not exact: the last part of the wait is spent looking at the clock.
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left - 0.0003 if left > 0.0005 else 0)
        part = slice(number * BLOCK, (number + 1) * BLOCK)
        played[:, part] = rt.process(np.ascontiguousarray(sound[:, part]))
    return played


def play_microphone(rt: Any, seconds: float) -> None:
    """Play the default input through the chain until the time is over or it stops."""
    try:
        import sounddevice
    except ImportError:
        raise MissingPackageError("--microphone needs sounddevice: pip install 'pygpukit[live]'") from None
    except OSError as error:
        raise MissingPackageError(
            f"--microphone: sounddevice finds no PortAudio ({error}); install libportaudio2"
        ) from None
    heard, failure = threading.Event(), []

    def callback(given: Any, wanted: Any, *_: Any) -> None:
        try:
            wanted[:] = rt.process(np.ascontiguousarray(given.T)).T
        except Exception as error:
            failure.append(error)
            wanted[:] = 0
        heard.set()

    options = {"samplerate": RATE, "blocksize": BLOCK, "channels": rt.chain.channels, "dtype": "float32"}
    with sounddevice.Stream(**options, callback=callback):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not failure:
            heard.clear()
            if not heard.wait(STOPPED):
                print(f"the microphone stopped: nothing came for {STOPPED:g} s")
                return
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))
    if failure:
        raise failure[0]


def show(stats: dict[str, Any]) -> None:
    """Print what happened, with the histogram of the blocks' times as text."""
    print(f"{stats['blocks']} blocks, {stats['late']} late, {stats['skipped']} of them not processed")
    for name in ("deadline", "p50", "p99", "p999", "max", "device_p50"):
        print(f"{name:12} {1e6 * stats[name]:9.1f} us")
    edges, counts = stats["histogram"]
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            late = " late" if low >= stats["deadline"] else ""
            bar = "#" * max(1, round(50 * count / counts.max()))
            print(f"{1e6 * low:9.0f} - {1e6 * high:9.0f} us {count:8} {bar}{late}")


def run(given: argparse.Namespace) -> bool:
    """Feed the chain, and say what happened."""
    device = gp.current_device()
    chain = make_chain(given.channels)
    # The CPU device promises no timing: there late blocks are waited for, unless it is said otherwise.
    on_late = given.on_late or ("bypass" if device.kind == "cuda" else "wait")
    print(f"{chain} on {device.name}")
    try:
        rt = chain.realtime(deadline=given.deadline and given.deadline * 1e-3, on_late=on_late)
    except DeadlineRefusedError as error:
        print(f"refused: {error}")
        return False
    with rt:
        if given.microphone:
            play_microphone(rt, given.seconds)
            is_right = True
        else:
            sound = make_sound(max(1, round(given.seconds * RATE / BLOCK)), given.channels)
            played = feed(rt, sound)
            want = chain(gp.asarray(sound)).to_numpy()
            is_right = bool(rt.stats()["late"] and on_late != "wait") or played.tobytes() == want.tobytes()
            print(f"the bits of the whole sound at once: {is_right}")
        print(f"{rt.flush().shape[-1]} samples were still in the chain")
        show(rt.stats())
        if given.picture:
            rt.save_plot(given.picture, f"{device.name}, blocks of {BLOCK} at {RATE / 1000:g} kHz")
            print(f"wrote {given.picture}")
    return is_right


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of sound (2)")
    parser.add_argument("--channels", type=int, default=2, choices=[1, 2], help="1 or 2 (2)")
    parser.add_argument("--deadline", type=float, help="milliseconds (those between two blocks)")
    parser.add_argument(
        "--on-late", choices=["bypass", "silence", "repeat", "raise", "wait"], help="what a late block is"
    )
    parser.add_argument("--microphone", action="store_true", help="play the default input; needs sounddevice")
    parser.add_argument("--picture", type=Path, help="write the histogram of the blocks' times here (PNG)")
    given = parser.parse_args()
    if not 0 < given.seconds <= 86400:
        parser.error("--seconds must be above 0, and 86400 at most")
    try:
        return 0 if run(given) else 1
    except MissingPackageError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
