"""Four stages on the device that hand messages on without the host: parse, filter, window statistics, alert.

The host sends batches of raw readings to the first stage and receives what the last one gives. Everything is compared
with the same pipeline in NumPy.

python examples/streaming_pipeline.py
python examples/streaming_pipeline.py --readings 1000000 --batch 8192
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

VALUES = 8
WINDOW = 32
SENSORS = 16
SCALE, OFFSET = 0.01, -20.0
LOWEST, HIGHEST = -30.0, 60.0
LIMIT = 3.0
STAGES = ("parse", "filter", "window", "alert")

NUMBERS = {"WINDOW": WINDOW, "SCALE": SCALE, "OFFSET": OFFSET, "LOWEST": LOWEST, "HIGHEST": HIGHEST, "LIMIT": LIMIT}


@message
class Raw:
    """What a sensor's converter gives: counts."""

    id: gp.int64
    sensor: gp.int32
    counts: gp.uint16[VALUES]


@message
class Reading:
    id: gp.int64
    sensor: gp.int32
    mean: gp.float64


@message
class Window:
    """A reading, with the mean and the deviation of those of its sensor that came before."""

    id: gp.int64
    sensor: gp.int32
    count: gp.int32
    value: gp.float64
    mean: gp.float64
    deviation: gp.float64


@message
class Alert:
    id: gp.int64
    sensor: gp.int32
    is_alert: gp.int32
    score: gp.float64


def parse() -> None:
    """
    __device__ void handle(const Raw& in, Reading& out, State& state, Context& ctx) {
        if (ctx.lane == 0) {
            int sum = 0;
            for (int i = 0; i < 8; i++) sum += in.counts[i];
            out.id = in.id;
            out.sensor = in.sensor;
            out.mean = sum / 8.0 * SCALE + OFFSET;
        }
        ctx.send("filter", out);
    }
    """


def keep_possible() -> None:
    """
    __device__ void handle(const Reading& in, Reading& out, State& state, Context& ctx) {
        if (in.mean < LOWEST || in.mean > HIGHEST) {
            if (ctx.lane == 0) state.dropped++;
            return;
        }
        ctx.send("window", in);
    }
    """


def window() -> None:
    """
    __device__ void handle(const Reading& in, Window& out, State& state, Context& ctx) {
        const int s = in.sensor;
        const int count = state.count[s] < WINDOW ? state.count[s] : WINDOW;
        // A lane for each value of the window.
        const double mine = (int)ctx.lane < count ? state.values[s][ctx.lane] : 0.0;
        double sum = mine;
        for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
        const double mean = count ? sum / count : 0.0;
        double square = (int)ctx.lane < count ? (mine - mean) * (mine - mean) : 0.0;
        for (int half = 16; half > 0; half /= 2) square += __shfl_xor_sync(~0u, square, half);
        ctx.sync();
        if (ctx.lane == 0) {
            out.id = in.id;
            out.sensor = s;
            out.count = count;
            out.value = in.mean;
            out.mean = mean;
            out.deviation = count ? sqrt(square / count) : 0.0;
            state.values[s][state.count[s]++ % WINDOW] = in.mean;
        }
        ctx.send("alert", out);
    }
    """


def alert() -> None:
    """
    __device__ void handle(const Window& in, Alert& out, State& state, Context& ctx) {
        if (ctx.lane == 0) {
            const bool is_known = in.count == WINDOW && in.deviation > 0.0;
            out.id = in.id;
            out.sensor = in.sensor;
            out.score = is_known ? (in.value - in.mean) / in.deviation : 0.0;
            out.is_alert = fabs(out.score) > LIMIT;
            state.alerts += out.is_alert;
        }
        ctx.send(out);
    }
    """


def define() -> None:
    """Make the stages actors, a warp each."""
    per_sensor = {"count": gp.int32[SENSORS], "values": gp.float64[SENSORS, WINDOW]}
    stages: list[tuple[Any, Any, Any, dict[str, Any]]] = [
        (parse, Raw, Reading, {}),
        (keep_possible, Reading, Reading, {"dropped": gp.int64}),
        (window, Reading, Window, per_sensor),
        (alert, Window, Alert, {"alerts": gp.int64}),
    ]
    for name, (function, takes, gives, state) in zip(STAGES, stages, strict=True):
        for word, number in NUMBERS.items():
            function.__doc__ = function.__doc__.replace(word, str(number))
        ring_kernel(
            kernel_id=name,
            input_type=takes,
            output_type=gives,
            device="gpu",
            state=state,
            block_size=32,
            queue_size=256,
        )(function)


def make_readings(count: int, seed: int) -> np.ndarray[Any, Any]:
    """Readings around 20 degrees, with some that are impossible and some that are worth an alert."""
    rng = np.random.default_rng(seed)
    raw = np.zeros(count, Raw.dtype)
    raw["id"] = np.arange(count)
    raw["sensor"] = rng.integers(0, SENSORS, count)
    degrees = rng.normal(20.0, 1.0, (count, 1)) + rng.normal(0.0, 0.1, (count, VALUES))
    degrees[rng.random(count) < 0.01] += 12.0
    raw["counts"] = np.clip((degrees - OFFSET) / SCALE, 0, 65535).astype(np.uint16)
    raw["counts"][rng.random(count) < 0.02] = 65535
    return raw


def reference(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same in NumPy."""
    means = raw["counts"].sum(1, dtype=np.int64) / 8.0 * SCALE + OFFSET
    is_possible = (means >= LOWEST) & (means <= HIGHEST)
    kept, means = raw[is_possible], means[is_possible]
    out = np.zeros(len(kept), Alert.dtype)
    out["id"], out["sensor"] = kept["id"], kept["sensor"]
    for sensor in range(SENSORS):
        (places,) = np.nonzero(kept["sensor"] == sensor)
        if len(places) > WINDOW:
            before = np.lib.stride_tricks.sliding_window_view(means[places], WINDOW)[:-1]
            out["score"][places[WINDOW:]] = (means[places[WINDOW:]] - before.mean(1)) / before.std(1)
    out["is_alert"] = np.abs(out["score"]) > LIMIT
    return out


def run(count: int, batch: int, seed: int) -> bool:
    """Send the readings, receive the alerts, and compare."""
    define()
    raw = make_readings(count, seed)
    expected = reference(raw)
    print(f"{count} readings of {Raw.dtype.itemsize} bytes in batches of {batch}, on {gp.current_device().name}")
    with RingKernelRuntime() as runtime:

        async def launch() -> None:
            # Together: the program of all stages is built once.
            await asyncio.gather(*(runtime.launch(name) for name in STAGES))
            await asyncio.gather(*(runtime.activate(name) for name in STAGES))

        runtime.run(launch())
        first, last = runtime.client("parse"), runtime.client("alert")

        def feed() -> None:
            for at in range(0, count, batch):
                # Waits while the stages are behind.
                first.send_batch(raw[at : at + batch])

        feeder = threading.Thread(target=feed)
        began = time.perf_counter()
        feeder.start()
        got = last.receive_batch(len(expected), timeout=100)
        seconds = time.perf_counter() - began
        feeder.join()
    # The stages have ended, with nothing left in them.
    figures = runtime.get_all_telemetry()
    letters = runtime.dead_letters()
    print(f"{seconds:.3f} s, {count / seconds:.0f} readings a second through {len(STAGES)} stages\n")
    print(f"{'stage':<8} {'received':>9} {'sent':>9} {'sampled':>8} {'p50 us':>9} {'p99 us':>9}")
    for name in STAGES:
        one = figures[name]
        times = [
            f"{1e6 * part:9.1f}" if one.latency.count else f"{'-':>9}" for part in (one.latency.p50, one.latency.p99)
        ]
        print(f"{name:<8} {one.received:>9} {one.sent:>9} {one.latency.count:>8} {' '.join(times)}")
    print("\nof the messages that stages send to each other one in 16 is timed, from there until it is worked on")
    is_whole = len(got) == len(expected) and not letters
    error = float(np.abs(got["score"] - expected["score"]).max()) if is_whole else float("inf")
    is_equal = is_whole and all(np.array_equal(got[name], expected[name]) for name in ("id", "sensor", "is_alert"))
    dropped = int(runtime.get_state("filter")["dropped"].to_numpy()[0])
    print(f"{dropped} readings dropped, {int(got['is_alert'].sum())} alerts; largest error of a score {error:.1e}")
    is_right = is_equal and error < 1e-9 and dropped == count - len(expected)
    print(f"equal to NumPy: {is_right}")
    return is_right


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readings", type=int, default=4000, help="in all (4000)")
    parser.add_argument("--batch", type=int, default=512, help="readings sent together (512)")
    parser.add_argument("--seed", type=int, default=0, help="of the readings (0)")
    given = parser.parse_args()
    if given.readings < 1 or given.batch < 1:
        parser.error("there must be a reading, in batches of one or more")
    return 0 if run(given.readings, given.batch, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
