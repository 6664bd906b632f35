"""Anomalies among many sensors, with what is known of each kept as an actor's state on the device.

Every message is a frame with one value of each sensor. The actor keeps a running mean and variance (Welford's method) a
sensor, and flags values that are too many deviations away from those before. At the end its state is read back.

python examples/anomaly_detection.py
python examples/anomaly_detection.py --frames 100000 --limit 5
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

SENSORS = 64
WARM_UP = 20


@message
class Frame:
    id: gp.int64
    values: gp.float32[SENSORS]


@message
class Verdict:
    id: gp.int64
    flagged: gp.int64
    scores: gp.float32[SENSORS]


def detector() -> None:
    """
    // One thread a sensor.
    __device__ void handle(const Frame& in, Verdict& out, State& state, Context& ctx) {
        __shared__ unsigned flagged;
        const int s = ctx.lane;
        const double x = in.values[s], mean = state.mean[s], squares = state.squares[s];
        const long long count = state.count[s];
        const double deviation = count > 1 ? sqrt(squares / (count - 1)) : 0.0;
        const double score = count >= WARM_UP && deviation > 0.0 ? (x - mean) / deviation : 0.0;
        const bool is_flagged = fabs(score) > state.limit[0];
        if (ctx.lane == 0) flagged = 0;
        ctx.sync();
        if (is_flagged) {
            atomicAdd(&flagged, 1u);
            state.flagged[s]++;
        } else {
            // What is flagged does not change what is normal.
            const double step = x - mean, next = mean + step / (count + 1);
            state.count[s] = count + 1;
            state.mean[s] = next;
            state.squares[s] = squares + step * (x - next);
        }
        out.scores[s] = (float)score;
        ctx.sync();
        if (ctx.lane == 0) {
            out.id = in.id;
            out.flagged = flagged;
        }
        ctx.send(out);
    }
    """


def define(limit: float) -> None:
    """Make the detector an actor."""
    assert detector.__doc__ is not None
    detector.__doc__ = detector.__doc__.replace("WARM_UP", str(WARM_UP))
    ring_kernel(
        kernel_id="detector",
        input_type=Frame,
        output_type=Verdict,
        device="gpu",
        block_size=SENSORS,
        queue_size=512,
        # Types begin with zeros, arrays with what they hold.
        state={
            "limit": np.array([limit]),
            "count": gp.int64[SENSORS],
            "flagged": gp.int64[SENSORS],
            "mean": gp.float64[SENSORS],
            "squares": gp.float64[SENSORS],
        },
    )(detector)


def make_frames(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Frames, and where values were moved far away from what is normal."""
    rng = np.random.default_rng(seed)
    middle, spread = rng.uniform(-50, 50, SENSORS), rng.uniform(0.5, 5, SENSORS)
    values = rng.normal(middle, spread, (count, SENSORS))
    moved = rng.random((count, SENSORS)) < 0.002
    moved[:WARM_UP] = False
    values += moved * spread * rng.choice([-12.0, 12.0], (count, SENSORS))
    frames = np.zeros(count, Frame.dtype)
    frames["id"] = np.arange(count)
    frames["values"] = values
    return frames, moved


def reference(frames: np.ndarray[Any, Any], limit: float) -> dict[str, np.ndarray[Any, Any]]:
    """The same in NumPy, one frame after the other; means and deviations at the end by their definitions."""
    values = frames["values"].astype(np.float64)
    normal = np.ones(values.shape, bool)
    scores = np.zeros(values.shape)
    sums, squares, counts = np.zeros(SENSORS), np.zeros(SENSORS), np.zeros(SENSORS)
    # Sums of squares lose digits unless the values are small.
    small = values - values[0]
    for at, row in enumerate(small):
        if at >= WARM_UP:
            variance = (squares - sums * sums / counts) / (counts - 1)
            scores[at] = np.where(counts >= WARM_UP, (row - sums / counts) / np.sqrt(variance), 0.0)
        normal[at] = np.abs(scores[at]) <= limit
        sums += normal[at] * row
        squares += normal[at] * row * row
        counts += normal[at]
    return {
        "scores": scores,
        "normal": normal,
        "count": normal.sum(0),
        "mean": np.array([values[normal[:, s], s].mean() for s in range(SENSORS)]),
        "deviation": np.array([values[normal[:, s], s].std(ddof=1) for s in range(SENSORS)]),
    }


def run(count: int, limit: float, seed: int) -> bool:
    """Send the frames, receive the verdicts, read the state, and compare."""
    define(limit)
    frames, moved = make_frames(count, seed)
    expected = reference(frames, limit)
    print(f"{count} frames of {SENSORS} sensors, on {gp.current_device().name}")
    with RingKernelRuntime() as runtime:
        client = runtime.client("detector")
        feeder = threading.Thread(target=client.send_batch, args=(frames,))
        began = time.perf_counter()
        feeder.start()
        verdicts = client.receive_batch(count, timeout=100)
        seconds = time.perf_counter() - began
        feeder.join()
        # Deactivated it stands still, and its state is all there.
        runtime.run(runtime.deactivate("detector"))
        state = {name: array.to_numpy() for name, array in runtime.get_state("detector").items()}
        letters = runtime.dead_letters()
    if len(verdicts) < count or letters:
        print(f"only {len(verdicts)} of {count} frames came back, and there are {len(letters)} dead letters")
        return False
    flagged = np.abs(verdicts["scores"]) > limit
    found, missed, wrong = (int(both.sum()) for both in (flagged & moved, ~flagged & moved, flagged & ~moved))
    print(f"{seconds:.3f} s, {count * SENSORS / seconds:.0f} values a second")
    print(f"{int(moved.sum())} values were moved: {found} flagged, {missed} not; {wrong} others flagged")
    deviation = np.sqrt(state["squares"] / (state["count"] - 1))
    errors = {
        "score": np.abs(verdicts["scores"] - expected["scores"]).max(),
        "mean": np.abs(state["mean"] - expected["mean"]).max(),
        "deviation": np.abs(deviation - expected["deviation"]).max(),
    }
    print("largest errors: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()))
    is_right = (
        np.array_equal(verdicts["id"], frames["id"])
        and np.array_equal(verdicts["flagged"], (~expected["normal"]).sum(1))
        and np.array_equal(state["flagged"], (~expected["normal"]).sum(0))
        and np.array_equal(state["count"], expected["count"])
        # Scores come back in single precision.
        and errors["score"] < 1e-4
        and max(errors["mean"], errors["deviation"]) < 1e-9
        and missed == 0
    )
    print(f"equal to NumPy: {is_right}")
    return bool(is_right)


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=2000, help="with a value of each sensor (2000)")
    parser.add_argument("--limit", type=float, default=6.0, help="deviations that are too many (6)")
    parser.add_argument("--seed", type=int, default=0, help="of the values (0)")
    given = parser.parse_args()
    if given.frames <= WARM_UP or not 3 <= given.limit <= 6:
        parser.error(f"there must be more than {WARM_UP} frames, and a limit from 3 to 6")
    return 0 if run(given.frames, given.limit, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
