"""A real-time chain of audio effects on the device: gain, biquad filter, echo and limiter.

Blocks of 128 samples at 48 kHz are sent in real time, each as a message. A block is in time when it is back before the
next one is due. The emulator is not made for real time: there blocks follow each other as they are done, unless --paced
is given.

python examples/audio_chain.py
python examples/audio_chain.py --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

RATE = 48_000
SIZE = 128
PERIOD = SIZE / RATE
CHAIN = ("gain", "biquad", "echo", "limiter")

GAIN = 1.5
ECHO_SAMPLES = 4800
FEEDBACK = 0.4
CEILING = 0.8
RELEASE = 0.0005


def low_pass(frequency: float, quality: float) -> tuple[float, float, float, float, float]:
    """Coefficients b0, b1, b2, a1, a2 of a low-pass filter of second order."""
    w = 2 * math.pi * frequency / RATE
    alpha = math.sin(w) / (2 * quality)
    a0 = 1 + alpha
    b = (1 - math.cos(w)) / a0
    return b / 2, b, b / 2, -2 * math.cos(w) / a0, (1 - alpha) / a0


FILTER = low_pass(4000.0, 0.8)


@message
class Block:
    number: gp.int64
    x: gp.float32[SIZE]


def gain() -> None:
    """
    __device__ void handle(const Block& in, Block& out, State& state, Context& ctx) {
        out.x[ctx.lane] = in.x[ctx.lane] * state.factor;
        if (ctx.lane == 0) out.number = in.number;
        ctx.send("biquad", out);
    }
    """


def biquad() -> None:
    """
    // What a sample becomes depends on the one before: one thread does it, with the others waiting.
    __device__ void handle(const Block& in, Block& out, State& state, Context& ctx) {
        if (ctx.lane == 0) {
            const float b0 = state.k[0], b1 = state.k[1], b2 = state.k[2], a1 = state.k[3], a2 = state.k[4];
            float z1 = state.z1, z2 = state.z2;
            for (int i = 0; i < 128; i++) {
                const float x = in.x[i], y = b0 * x + z1;
                z1 = b1 * x - a1 * y + z2;
                z2 = b2 * x - a2 * y;
                out.x[i] = y;
            }
            state.z1 = z1;
            state.z2 = z2;
            out.number = in.number;
        }
        ctx.send("echo", out);
    }
    """


def echo() -> None:
    """
    __device__ void handle(const Block& in, Block& out, State& state, Context& ctx) {
        // The line is longer than a block: no sample needs another one of its block.
        const int at = (state.at + ctx.lane) % LENGTH;
        const float y = in.x[ctx.lane] + FEEDBACKf * state.line[at];
        state.line[at] = y;
        out.x[ctx.lane] = y;
        ctx.sync();
        if (ctx.lane == 0) {
            state.at = (state.at + 128) % LENGTH;
            out.number = in.number;
        }
        ctx.send("limiter", out);
    }
    """


def limiter() -> None:
    """
    __device__ void handle(const Block& in, Block& out, State& state, Context& ctx) {
        __shared__ float factor[128];
        if (ctx.lane == 0) {
            // Down at once, up again slowly. The state counts from full volume, so that it begins with zero.
            float reduction = state.reduction;
            for (int i = 0; i < 128; i++) {
                const float size = fabsf(in.x[i]);
                const float needed = size > CEILINGf ? 1.0f - CEILINGf / size : 0.0f;
                reduction = fmaxf(needed, reduction - RELEASEf * reduction);
                factor[i] = 1.0f - reduction;
            }
            state.reduction = reduction;
            out.number = in.number;
        }
        ctx.sync();
        out.x[ctx.lane] = in.x[ctx.lane] * factor[ctx.lane];
        ctx.send(out);
    }
    """


def define() -> None:
    """Make the effects actors of 128 threads, one a sample."""
    words = {"LENGTH": ECHO_SAMPLES, "FEEDBACK": FEEDBACK, "CEILING": CEILING, "RELEASE": RELEASE}
    states: list[tuple[Any, dict[str, Any]]] = [
        (gain, {"factor": np.float32(GAIN)}),
        (biquad, {"k": np.array(FILTER, np.float32), "z1": gp.float32, "z2": gp.float32}),
        (echo, {"at": gp.int32, "line": gp.float32[ECHO_SAMPLES]}),
        (limiter, {"reduction": gp.float32}),
    ]
    for name, (function, state) in zip(CHAIN, states, strict=True):
        for word, number in words.items():
            function.__doc__ = function.__doc__.replace(word, str(number))
        ring_kernel(
            kernel_id=name,
            input_type=Block,
            output_type=Block,
            device="gpu",
            state=state,
            block_size=SIZE,
            queue_size=64,
            dedicated=True,
        )(function)


def make_sound(samples: int) -> np.ndarray[Any, Any]:
    """A tone that rises, plucked twice a second, with some noise."""
    t = np.arange(samples) / RATE
    tone = np.sin(2 * np.pi * (220 * t + 40 * t * t)) * np.exp(-6 * (t % 0.5))
    return (0.7 * tone + 0.05 * np.random.default_rng(0).standard_normal(samples)).astype(np.float32)


def reference(sound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same chain on the host, in double precision."""
    b0, b1, b2, a1, a2 = (float(np.float32(k)) for k in FILTER)
    z1 = z2 = 0.0
    filtered = []
    for x in (GAIN * sound.astype(np.float64)).tolist():
        y = b0 * x + z1
        z1, z2 = b1 * x - a1 * y + z2, b2 * x - a2 * y
        filtered.append(y)
    line = np.array(filtered)
    for at in range(ECHO_SAMPLES, len(line), ECHO_SAMPLES):
        part = line[at : at + ECHO_SAMPLES]
        part += FEEDBACK * line[at - ECHO_SAMPLES : at - ECHO_SAMPLES + len(part)]
    reduction = 0.0
    factors = []
    for size in np.abs(line).tolist():
        reduction = max(1 - CEILING / size if size > CEILING else 0.0, reduction - RELEASE * reduction)
        factors.append(1 - reduction)
    return line * np.array(factors)


def play(
    runtime: RingKernelRuntime, blocks: np.ndarray[Any, Any], paced: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Send every block through the chain; returns what came back, and how long after it was due."""
    first, last = runtime.client(CHAIN[0]), runtime.client(CHAIN[-1])
    played = np.zeros_like(blocks)
    late = np.zeros(len(blocks))
    began = time.perf_counter() + PERIOD
    for number, block in enumerate(blocks):
        due = began + number * PERIOD if paced else time.perf_counter()
        # Sleeping is not exact: the last part of the wait is spent looking at the clock.
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left - 0.0003 if left > 0.0005 else 0)
        first.send(Block(number=number, x=block))
        answer = last.receive(timeout=60)
        late[number] = time.perf_counter() - due
        if answer.number != number:
            raise RuntimeError(f"block {answer.number} came back when {number} was sent")
        played[number] = answer.x
    return played, late


def run(seconds: float, paced: bool) -> bool:
    """Play a sound, and say how many blocks were in time."""
    define()
    count = max(1, int(seconds / PERIOD))
    sound = make_sound(count * SIZE)
    print(f"{count} blocks of {SIZE} samples through {' -> '.join(CHAIN)}, on {gp.current_device().name}")
    if paced:
        print(f"paced: a block every {1e3 * PERIOD:.3f} ms")
    else:
        print("not paced: each block is sent when the one before is back, and the deadlines are only compared with")
    with RingKernelRuntime() as runtime:

        async def launch() -> None:
            # Together: the program of the whole chain is built once.
            await asyncio.gather(*(runtime.launch(name) for name in CHAIN))
            await asyncio.gather(*(runtime.activate(name) for name in CHAIN))

        runtime.run(launch())
        played, late = play(runtime, sound.reshape(count, SIZE), paced)
        letters = runtime.dead_letters()
    met = int((late <= PERIOD).sum())
    p50, p99 = np.percentile(late, [50, 99])
    print(f"deadlines of {1e3 * PERIOD:.3f} ms: {met} met, {count - met} missed")
    print(f"from due to back: p50 {1e6 * p50:.1f} us, p99 {1e6 * p99:.1f} us, max {1e6 * late.max():.1f} us")
    error = float(np.abs(played.reshape(-1) - reference(sound)).max())
    limited = float(np.abs(played).max())
    print(f"peak {limited:.3f}; largest difference from the chain in NumPy {error:.1e}")
    is_right = error < 1e-4 and limited <= CEILING * 1.0001 and not letters
    print(f"as expected: {is_right}")
    return is_right


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of sound (1)")
    parser.add_argument(
        "--paced", action=argparse.BooleanOptionalAction, help="send blocks in real time (yes, on the emulator no)"
    )
    given = parser.parse_args()
    if not 0 < given.seconds <= 3600:
        parser.error("--seconds must be above 0, and 3600 at most")
    paced = gp.current_device().kind == "cuda" if given.paced is None else given.paced
    return 0 if run(given.seconds, paced) else 1


if __name__ == "__main__":
    sys.exit(main())
