"""A live chain on the device: blocks of 128 samples at 48 kHz through all effects, alone and beside a saturating task.

    python benchmarks/audio/live.py --seconds 120 --json benchmarks/results/h200-audio-live.json
    python benchmarks/audio/live.py --seconds 2          # to try the script; on the CPU device no row is at its bar

The first rows compare bits: blocks in real time with the whole array, and the device with NumPy. Then blocks are fed at
the pace of a sound card, `--seconds` of them beside a task of the same process that saturates the device by replaying a
graph, and a quarter as many in the other rows. A row that fails is noted, and the next one runs; a part that hangs ends
the program with what was measured so far.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.scheduler import Scheduler

RATE, BLOCK, CHANNELS = 48_000, 128, 2
MUST_US, STRETCH_US = 500.0, 150.0
# Seconds that a part may take beyond those it is to feed.
GRACE = 90.0

BURN = """
extern "C" __global__ void burn(float* out, int iters) {
    float a = threadIdx.x, b = 0.5f;
    for (int i = 0; i < iters; i++) a = fmaf(a, 1.0000001f, b);
    if (a == 12345.678f) out[0] = a;
}
"""


def make_chain(room_seconds: float = 3.0) -> A.Chain:
    """High-pass, gate, compressor, STFT effect, a room of three seconds, a limiter; two channels."""
    t = np.arange(round(RATE * room_seconds)) / RATE
    room = np.random.default_rng(0).standard_normal(t.size) * np.exp(-2.3 * t) * 0.01
    return (
        A.Chain(RATE, channels=CHANNELS, block=BLOCK)
        | A.Highpass(80)
        | A.Gate(-50)
        | A.Compressor(-18, ratio=3)
        | A.SpectralGate(-60, n_fft=512)
        | A.Convolve(room, wet=0.3, dry=0.8)
        | A.Limiter(-1.0)
    )


def make_blocks(count: int) -> np.ndarray[Any, Any]:
    """Plucked tones over noise, (count, channels, samples)."""
    t = np.arange(count * BLOCK) / RATE
    tone = sum(np.sin(2 * np.pi * f * t) * np.exp(-5 * (t % 0.5)) for f in (220.0, 277.2, 329.6))
    noise = np.random.default_rng(1).standard_normal((CHANNELS, t.size))
    y = (0.4 * tone + 0.003 * noise).astype(np.float32)
    return np.ascontiguousarray(y.reshape(CHANNELS, count, BLOCK).swapaxes(0, 1))


def feed(rt: Any, seconds: float) -> dict[str, Any]:
    """Give blocks at the pace of a sound card, from the pool over and over; returns the statistics."""
    blocks, out = make_blocks(256), np.empty((CHANNELS, BLOCK), np.float32)
    period, count = BLOCK / RATE, max(1, round(seconds * RATE / BLOCK))
    for block in blocks:
        rt.process(block, out=out)
    rt.reset_stats()
    gc.collect()
    gc.freeze()
    late_feeds, began, said = 0, time.perf_counter() + period, time.perf_counter()
    try:
        for number in range(count):
            due = began + number * period
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left - 0.0005 if left > 0.001 else 0)
            # The feeder's own delays are told apart from the chain's.
            late_feeds += time.perf_counter() - due > period
            rt.process(blocks[number % len(blocks)], out=out)
            if time.perf_counter() - said > 20:
                said = time.perf_counter()
                stats = rt.stats()
                print(
                    f"    {stats['blocks']} blocks, {stats['late']} late, p99.9 {1e6 * stats['p999']:.0f} us",
                    flush=True,
                )
    finally:
        gc.unfreeze()
    return {**rt.stats(), "late_feeds": late_feeds}


class Hog:
    """A besteffort task that saturates the device: kernels of half a millisecond on all SMs.

    Parameters
    ----------
    scheduler : Scheduler
        Whose task it is.
    from_python : bool
        Launch each kernel from Python, for the interpreter; else replay a graph of twenty.
    """

    def __init__(self, scheduler: Scheduler, from_python: bool) -> None:
        self._from_python = from_python
        self._stop = threading.Event()
        self.running = threading.Event()
        self.launches = 0
        self.task = scheduler.submit(self._run, name="hog")

    def _run(self) -> None:
        kernel, out = gp.jit(BURN, func="burn"), gp.zeros(1)
        sms = int(gp.get_device_info()["sm_count"])
        iterations = 200_000 if gp.current_device().kind == "cuda" else 20

        def launch() -> None:
            kernel(out, iterations, grid=(4 * sms,), block=(256,))

        stream = gp.current_stream()
        launch()
        stream.synchronize()
        graph = None
        if not self._from_python:
            graph = gp.CudaGraph()
            with graph.capture():
                launch()
            graph.replay()
            graph.synchronize()
        self.running.set()
        while not self._stop.is_set():
            if graph is not None:
                graph.replay_many(20)
                self.launches += 20
            else:
                launch()
                self.launches += 1
                if self.launches % 8 == 0:
                    stream.synchronize()

    def end(self) -> dict[str, Any]:
        self._stop.set()
        with contextlib.suppress(Exception):
            self.task.result(timeout=30)
        stats = self.task.stats()
        return {"launches": self.launches, "gpu_seconds": stats["gpu_seconds"], "sm_count": stats["sm_count"]}


@contextlib.contextmanager
def hogging(scheduler: Scheduler, kind: str | None) -> Iterator[Callable[[], dict[str, Any]]]:
    """A hog of a kind beside what is in the block, and what it did."""
    hog = None if kind is None else Hog(scheduler, kind == "launches from Python")
    done: dict[str, Any] = {}
    try:
        if hog is not None:
            if not hog.running.wait(60):
                raise RuntimeError("the saturating task did not start within 60 s")
            time.sleep(1.0)
        yield lambda: done
    finally:
        if hog is not None:
            done.update(hog.end())


class Live:
    """The rows.

    Parameters
    ----------
    report : Report
        Where they go.
    options : argparse.Namespace
        Of the command.
    """

    def __init__(self, report: Report, options: argparse.Namespace) -> None:
        self.report, self.options = report, options

    def part(self, what: str, seconds: float, function: Callable[..., None], *args: Any) -> None:
        """Run a part under a limit of time; what it raises is noted."""
        print(f"-- {what}", flush=True)
        began = time.perf_counter()
        limit = seconds + GRACE
        timer = threading.Timer(limit, self._give_up, (what, limit))
        timer.daemon = True
        timer.start()
        try:
            function(*args)
        except Exception as error:
            self.report.fail(what, error)
            traceback.print_exc(limit=8)
        finally:
            timer.cancel()
        print(f"   {time.perf_counter() - began:.1f} s", flush=True)

    def _give_up(self, what: str, limit: float) -> None:
        """Write what there is, and end: a call that hangs cannot be ended otherwise."""
        self.report.fail(what, TimeoutError(f"it took more than {limit:.0f} s"))
        faulthandler.dump_traceback(all_threads=True)
        self.report.finish(self.options.json, command(self.options))
        sys.stdout.flush()
        os._exit(3)

    def bits(self) -> None:
        """Blocks in real time have the bits of the whole array, and the device computes what NumPy does."""
        chain = make_chain(0.5)
        blocks = make_blocks(64)
        y = np.ascontiguousarray(blocks.swapaxes(0, 1).reshape(CHANNELS, -1))
        whole = chain(gp.asarray(y)).to_numpy()
        with gp.device("cpu"):
            want = chain(gp.asarray(y)).to_numpy()
        error = float(np.abs(whole - want).max() / np.abs(want).max())
        self.report.add("largest difference from NumPy, of the largest sample", error, 1.0, "", 3e-6)
        with chain.realtime(on_late="wait") as rt:
            got = np.concatenate([rt.process(block) for block in blocks], axis=1)
        same = float(got.tobytes() == whole.tobytes())
        self.report.add("blocks in real time have the bits of the whole array", same, 1.0, "", 1.0, at_least=True)

    def effects(self) -> None:
        """What each effect takes on the device, for the record."""
        for effect in (None, *make_chain().effects):
            chain = A.Chain(RATE, channels=CHANNELS, block=BLOCK, effects=[] if effect is None else [effect])
            with chain.realtime(on_late="wait", reserve=False) as rt:
                block = make_blocks(1)[0]
                for _ in range(200):
                    rt.process(block)
                stats = rt.stats()
            name = (
                "a block through an empty chain" if effect is None else f"a block through {type(effect).__name__} alone"
            )
            ours, round_trip = 1e6 * stats["device_p50"], 1e6 * stats["p50"]
            self.report.add(f"{name}: on the device, of the round trip (floor)", ours, round_trip, "us", 1.0)

    def live(self, what: str, seconds: float, hog: str | None, reserve: bool, floor: str = "") -> None:
        """Blocks at the pace of a sound card."""
        chain = make_chain()
        scheduler = Scheduler()
        try:
            with chain.realtime(scheduler=scheduler, on_late="bypass", reserve=reserve) as rt:
                with hogging(scheduler, hog) as hogged:
                    stats = feed(rt, seconds)
                if self.options.picture and hog and reserve and not floor:
                    with contextlib.suppress(Exception):
                        rt.save_plot(self.options.picture, f"{gp.current_device().name}, {what}")
        finally:
            scheduler.shutdown(cancel=True, timeout=10)
        edges, counts = stats.pop("histogram")
        extra = {
            **stats, **{f"hog_{k}": v for k, v in hogged().items()},
            "histogram_us": [[round(1e6 * float(e), 1), int(n)] for e, n in zip(edges[:-1], counts, strict=True) if n],
        }  # fmt: skip
        p999 = 1e6 * stats["p999"]
        self.report.add(f"{what}: p99.9 of a block{floor}", p999, MUST_US, "us", 1.0, **extra)
        if not floor:
            self.report.add(f"{what}: p99.9 of a block (stretch)", p999, STRETCH_US, "us", 1.0)
        self.report.add(f"{what}: late blocks of {stats['blocks']}{floor}", float(stats["late"]), 1.0, "", 0.0)
        print(
            f"    p50 {1e6 * stats['p50']:.1f} us, p99 {1e6 * stats['p99']:.1f}, max {1e6 * stats['max']:.1f}; on the "
            f"device p50 {1e6 * stats['device_p50']:.1f}, max {1e6 * stats['device_max']:.1f}; declared cost "
            f"{stats['cost']}; blocks fed a period late {stats['late_feeds']}; the other task {hogged()}",
            flush=True,
        )


def command(options: argparse.Namespace) -> str:
    """How this was run."""
    return f"python benchmarks/audio/live.py --seconds {options.seconds:g}"


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of sound beside the saturating task (120)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--picture", type=Path, help="write the histogram of the main row here; needs matplotlib")
    options = parser.parse_args()
    if not 0 < options.seconds <= 3600:
        parser.error("--seconds must be above 0, and 3600 at most")
    print(f"{gp.current_device().name}, {make_chain()}", flush=True)
    live, short = Live(Report(), options), max(1.0, options.seconds / 4)
    live.part("bits", 0.0, live.bits)
    live.part("effects", 0.0, live.effects)
    rows: list[tuple[str, float, str | None, bool, str]] = [
        ("live block beside a saturating task", options.seconds, "graph", True, ""),
        ("live block alone", short, None, True, " (floor)"),
        ("beside a task that launches from Python", short, "launches from Python", True, " (floor)"),
        ("beside a saturating task, without SMs of its own", short, "graph", False, " (floor)"),
    ]
    for what, seconds, hog, reserve, floor in rows:
        live.part(what, seconds, live.live, what, seconds, hog, reserve, floor)
    return live.report.finish(options.json, command(options))


if __name__ == "__main__":
    sys.exit(main())
