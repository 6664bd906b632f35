"""Device actors against their bars: round trips, rates, hops, parking, idling, and operators beside them.

python benchmarks/ring/device.py --json benchmarks/results/h200-ring.json
python benchmarks/ring/device.py --rows trip,chain --messages 200
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

STAGES = 16
LAUNCHES = 5
ROUNDS = 10

ECHO = """
__device__ void handle(const Packet& in, Packet& out, State& state, Context& ctx) {
    for (int i = ctx.lane; i < 8; i += ctx.width) out.x[i] = in.x[i] + 1;
    ctx.sync();
    if (ctx.lane == 0) state.count += 1;
    ctx.send(%sout);
}
"""
# The first of a chain notes the device's clock when it is called, and so does the last.
STAGE = """
__device__ void handle(const Packet& in, Packet& out, State& state, Context& ctx) {
    for (int i = ctx.lane; i < 8; i += ctx.width) out.x[i] = in.x[i] + (i == 7);
    ctx.sync();
    if (ctx.lane == 0) {
        if (in.x[0] == 0) out.x[0] = ctx.time();
        if (in.x[7] == in.x[6]) out.x[1] = ctx.time();
        state.count += 1;
    }
    ctx.send(%sout);
}
"""
BATCH = """
__device__ void handle_batch(const Batch& batch, State& state, Context& ctx) {
    for (unsigned i = ctx.lane; i < batch.size; i += ctx.width) {
        const uint4* from = (const uint4*)&batch.in(i);
        uint4* to = (uint4*)&batch.out(i);
        uint4 first = from[0];
        first.x += 1;
        to[0] = first;
        for (int k = 1; k < 4; k++) to[k] = from[k];
    }
    if (ctx.lane == 0) state.count += batch.size;
}
"""
# What is below every round trip: a word that a kernel waits for, and another one that it writes.
WORD = """
extern "C" __global__ void word(unsigned long long at, unsigned long long n) {
    volatile unsigned long long *in = (volatile unsigned long long*)at, *out = in + 32;
    const long long end = clock64() + 8000000000ll;
    for (unsigned long long i = 1; i <= n; i++) {
        while (*in != i)
            if (clock64() > end) return;
        *out = i;
    }
}
"""


@message
class Packet:
    """64 bytes."""

    x: gp.int64[8]  # type: ignore[valid-type]


def actor(name: str, source: str, **options: Any) -> None:
    """Define a device actor."""

    def function() -> None: ...

    function.__doc__ = source
    options = {"block_size": 32, "dedicated": True, **options}
    ring_kernel(
        kernel_id=name, input_type=Packet, output_type=Packet, device="gpu", state={"count": gp.int64}, **options
    )(function)


def percentiles(times: list[float]) -> dict[str, float]:
    """In the unit of the times."""
    return {f"p{q:g}": float(np.percentile(times, q)) for q in (50, 90, 99, 99.9)}


def trips(call: Callable[[Any, float], Any], n: int) -> list[float]:
    """Microseconds of calls; every answer is looked at."""
    request = Packet(np.arange(8))
    for _ in range(n // 10 + 1):
        call(request, 10.0)
    times = []
    for i in range(n):
        request = Packet(np.full(8, i, np.int64))
        began = time.perf_counter_ns()
        answer = call(request, 10.0)
        times.append((time.perf_counter_ns() - began) / 1e3)
        assert answer.x[0] == i + 1, (answer, i)
    return times


def words(n: int) -> list[float]:
    """Microseconds from a word that this thread writes to the one that a kernel writes then."""
    memory = gp.empty_pinned(64, "uint64")
    memory[:] = 0
    view = memoryview(memory)
    stream = gp.Stream()
    gp.jit(WORD)(memory.ctypes.data, n, grid=(1,), block=(1,), stream=stream)
    times = []
    for i in range(1, n + 1):
        began = time.perf_counter_ns()
        view[0] = i
        for _ in range(10_000_000):
            if view[32] == i:
                break
        else:
            raise TimeoutError(f"word {i} of {n} did not come back")
        times.append((time.perf_counter_ns() - began) / 1e3)
    stream.synchronize()
    return times[n // 10 :]


@contextmanager
def busy_operators() -> Iterator[None]:
    """Somebody multiplies matrices all the time."""
    stop = threading.Event()
    a = gp.ones((2048, 2048))

    def work() -> None:
        with gp.Stream():
            while not stop.is_set():
                for _ in range(4):
                    gp.matmul(a, a)
                gp.current_stream().synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        time.sleep(0.2)
        yield
    finally:
        stop.set()
        thread.join()


class Bench:
    """Rows share the report and how many messages to send."""

    def __init__(self, report: Report, messages: int) -> None:
        self.report = report
        self.n = messages

    def trip(self) -> None:
        """Request to reply, sync, alone and beside operators."""
        has_floor = gp.current_device().kind == "cuda"
        floor = [words(self.n) for _ in range(ROUNDS)] if has_floor else []
        with RingKernelRuntime() as runtime:
            client = runtime.client("echo")
            alone, beside = [], []
            # One round takes a tenth of a second, in which other things may happen on the machine.
            for _ in range(ROUNDS):
                alone.append(trips(client.call, self.n))
                with busy_operators():
                    beside.append(trips(client.call, self.n))
        if has_floor:
            floor += [words(self.n) for _ in range(ROUNDS)]
            ours, bare = (percentiles([one for times in rounds for one in times]) for rounds in (alone, floor))
            what = "request to reply, sync, alone, p50, against a word and back from Python (floor)"
            self.report.add(what, ours["p50"], bare["p50"], "us", 1.0, **{f"word_{k}": v for k, v in bare.items()})
        self._trip("alone", alone, 6.0, 12.0)
        self._trip("beside operators", beside, 8.0, 30.0)

    def _trip(self, where: str, rounds: list[list[float]], p50: float, p99: float) -> None:
        found = percentiles([one for times in rounds for one in times])
        each = {"rounds": [round(float(np.median(times)), 3) for times in rounds]}
        self.report.add(f"request to reply, sync, {where}, p50 (us)", found["p50"], 1.0, "us", p50, **found, **each)
        self.report.add(f"request to reply, sync, {where}, p99 (us)", found["p99"], 1.0, "us", p99)

    def aio(self) -> None:
        """Request to reply in an event loop."""

        async def run() -> list[float]:
            async with RingKernelRuntime() as runtime:
                await runtime.launch("echo")
                await runtime.activate("echo")
                times = []
                for i in range(self.n + 100):
                    request = Packet(np.full(8, i, np.int64))
                    began = time.perf_counter_ns()
                    answer = await runtime.send_and_receive("echo", request)
                    times.append((time.perf_counter_ns() - began) / 1e3)
                    assert answer.x[0] == i + 1
                return times[100:]

        found = percentiles(asyncio.run(run()))
        self.report.add("request to reply, asyncio, p50 (us)", found["p50"], 1.0, "us", 25.0, **found)

    def rate(self) -> None:
        """Messages a second through one sequential actor, and through one that takes batches."""
        for name, count, must in (("many", 25 * self.n, 1e6), ("batch", 1000 * self.n, 20e6)):
            with RingKernelRuntime() as runtime:
                rate = self._rate(runtime, name, count)
            self.report.add(f"64 B messages/s, {name}", rate, 1.0, "1/s", must, at_least=True)

    def _rate(self, runtime: RingKernelRuntime, name: str, count: int) -> float:
        client = runtime.client(name)
        rows = np.zeros(8192, Packet.dtype)
        rows["x"][:, 0] = np.arange(8192)

        def feed() -> None:
            left = count
            while left:
                left -= client.send_batch(rows[:left])

        best = 0.0
        for _ in range(3):
            thread = threading.Thread(target=feed)
            began, got, total = time.perf_counter(), 0, 0
            thread.start()
            while got < count:
                part = client.receive_batch(min(4096, count - got), timeout=20.0)
                assert len(part), f"{got} of {count} came"
                got += len(part)
                total += int(part["x"][:, 0].sum())
            best = max(best, count / (time.perf_counter() - began))
            thread.join()
            whole, rest = divmod(count, 8192)
            assert total == whole * (8191 * 4096) + rest * (rest - 1) // 2 + count, "wrong results"
        return best

    def hops(self) -> None:
        """A hop from actor to actor, with blocks of their own and with shared ones."""
        rows = (
            ("own", STAGES, "dedicated blocks", 1.0),
            ("shared", STAGES, "run queue", 2.5),
            # Actors cannot stay with their blocks: each hop goes through the queue. Known, but no bar.
            ("shared", STAGES // 2, "run queue, half as many blocks as actors", math.inf),
        )
        times: list[list[tuple[list[float], list[float]]]] = [[] for _ in rows]
        # How far mailboxes and blocks are apart differs from launch to launch, and a hop with it.
        for _ in range(LAUNCHES):
            for (kind, workers, _, _), kept in zip(rows, times, strict=True):
                with RingKernelRuntime(workers=workers) as runtime:
                    clients = [runtime.client(f"{kind}{i}") for i in reversed(range(STAGES))]
                    kept.append(self._chain(clients[-1], clients[0]))
        for (_, _, what, must), kept in zip(rows, times, strict=True):
            hops, whole = ([one for run in kept for one in run[k]] for k in (0, 1))
            launches = [round(float(np.median(run[0])), 3) for run in kept]
            extra = {"launches": launches, "whole_us": float(np.median(whole)), **percentiles(hops)}
            hop = float(np.median(hops))
            self.report.add(f"hop in a chain of {STAGES}, {what} (us)", hop, 1.0, "us", must, **extra)

    def _chain(self, first: Any, last: Any) -> tuple[list[float], list[float]]:
        """Microseconds of a hop by the device's clock, and of the whole chain with the host at both ends."""
        hops, whole = [], []
        for i in range(self.n // 4 + 20):
            # What the message carries when the last stage gets it is said beforehand.
            request = Packet(np.array([0, 0, 0, 0, 0, 0, i + STAGES - 1, i], np.int64))
            began = time.perf_counter_ns()
            first.send(request)
            answer = last.receive(10.0)
            whole.append((time.perf_counter_ns() - began) / 1e3)
            assert answer.x[7] == i + STAGES
            hops.append(float(answer.x[1] - answer.x[0]) / (STAGES - 1) / 1e3)
        return hops[20:], whole[20:]

    def group(self) -> None:
        """A round trip to an actor of several blocks: each gets the message, and two barriers of all."""
        found = {}
        for name in ("echo", "group"):
            with RingKernelRuntime() as runtime:
                client = runtime.client(name)
                found[name] = percentiles(trips(client.call, self.n // 4))
        ours, other = found["group"]["p50"], found["echo"]["p50"]
        self.report.add("request, 8 blocks, reply against one (us)", ours, other, "us", math.inf, **found["group"])

    def park(self) -> None:
        """Leaving the device and coming back, until the next reply."""
        with RingKernelRuntime() as runtime:
            client = runtime.client("echo")
            link = runtime._tier.ring.link
            times, trip = [], float(np.median(trips(client.call, 100)))
            for i in range(max(20, self.n // 40)):
                began = time.perf_counter_ns()
                link.park()
                link.resume()
                client.call(Packet(np.full(8, i, np.int64)), 10.0)
                times.append((time.perf_counter_ns() - began) / 1e3 - trip)
        found = percentiles(times)
        self.report.add("park and relaunch, p99 (us)", found["p99"], 1.0, "us", 200.0, **found)

    def idle(self) -> None:
        """What an idle ring costs the host."""
        with RingKernelRuntime() as runtime:
            client = runtime.client("echo")
            reads = self._reads(runtime, client)
            time.sleep(0.5)
            began, used = time.perf_counter(), time.process_time()
            time.sleep(3.0)
            seconds = time.perf_counter() - began
            share = (time.process_time() - used) / seconds * 100
            rate = (self._reads(runtime, client) - reads) / (seconds + 0.5)
        self.report.add("idle ring, processor time (% of a core)", share, 1.0, "%", 2.0)
        self.report.add("idle ring, reads of the host's memory (1/s)", rate, 1.0, "1/s", 200e3)

    def _reads(self, runtime: RingKernelRuntime, client: Any) -> int:
        """How often blocks have read the host's memory to see whether anything came, the warden and an actor's."""
        client.call(Packet(np.zeros(8, np.int64)), 10.0)
        # An actor's figures are shown when it has been idle for a moment.
        time.sleep(0.02)
        ring = runtime._tier.ring
        warden = ctypes.c_uint64.from_address(ring._words["beat"] + 8).value
        return warden + int(dict(ring.link.figures(runtime.get_actor_number("echo")))["reads"])

    def operators(self) -> None:
        """Operators, first-time kernels and torch beside a ring."""
        a, b = gp.ones((4096, 4096)), gp.ones(1 << 26)

        def timed(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
            times = []
            for _ in range(20):
                began = time.perf_counter()
                for _ in range(5):
                    call()
                wait()
                times.append(time.perf_counter() - began)
            return float(np.median(times)) * 1e3

        def ours() -> tuple[float, float]:
            wait = gp.current_stream().synchronize
            return timed(lambda: gp.matmul(a, a), wait), timed(lambda: gp.add(b, b), wait)

        alone = ours()
        with RingKernelRuntime() as runtime:
            clients = [runtime.client(f"own{i}") for i in reversed(range(STAGES))]
            beside = ours()
            began = time.perf_counter()
            fresh = gp.jit(
                f'extern "C" __global__ void fresh(float* x) {{ x[threadIdx.x] = {time.time()}f; }}', func="fresh"
            )
            x = gp.zeros(32)
            fresh(x, grid=(1,), block=(32,))
            first = time.perf_counter() - began if x.to_numpy()[0] > 0 else float("nan")
            torch_seconds = _torch()
            clients[-1].send(Packet(np.zeros(8, np.int64)))
            assert clients[0].receive(10.0).x[7] == STAGES
        for what, before, after in zip(("matmul", "add"), alone, beside, strict=True):
            budget = 1 + (STAGES + 1) / int(gp.get_device_info()["sm_count"])
            self.report.add(f"{what} beside {STAGES} resident blocks / alone", after, before, "ms", budget)
        self.report.add("first-time kernel beside a ring (s)", first, 1.0, "s", 20.0)
        if torch_seconds is not None:
            self.report.add("torch's first kernels beside a ring (s)", torch_seconds, 1.0, "s", 60.0)


def _torch() -> float | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available() or gp.current_device().kind != "cuda":
        return None
    began = time.perf_counter()
    x = torch.randn(1000, 1000, device="cuda")
    y = torch.softmax(x @ x + torch.sin(x), dim=1)
    torch.cuda.current_stream().synchronize()
    assert abs(float(y.sum()) - 1000) < 1
    return time.perf_counter() - began


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("trip", "aio", "rate", "hops", "group", "park", "idle", "operators")
    parser.add_argument("--rows", default=",".join(names), help="which, with commas")
    parser.add_argument("--messages", type=int, default=20_000, help="of a row; rates send more")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    rows = options.rows.split(",")
    if unknown := [name for name in rows if name not in names]:
        parser.error(f"there is no row {unknown}; there is {', '.join(names)}")
    actor("echo", ECHO % "")
    actor("group", ECHO % "", grid_size=8)
    actor("many", ECHO % "", queue_size=1 << 13)
    actor("batch", BATCH, block_size=512, queue_size=1 << 15)
    for kind in ("own", "shared"):
        for i in range(STAGES):
            onward = f'"{kind}{i + 1}", ' if i + 1 < STAGES else ""
            actor(f"{kind}{i}", STAGE % onward, dedicated=kind == "own", queue_size=256)
    report = Report()
    bench = Bench(report, options.messages)
    for name in rows:
        began = time.perf_counter()
        getattr(bench, name)()
        print(f"  -- {name}: {time.perf_counter() - began:.1f} s", flush=True)
    command = f"python benchmarks/ring/device.py --messages {options.messages} --rows {options.rows}"
    return report.finish(options.json, command)


if __name__ == "__main__":
    sys.exit(main())
