"""Host actors: round trips, messages per second, and threads side by side. No GPU is used.

PyDotCompute runs the same program in the same process where it is installed (pip install pydotcompute); else ours are
compared with its figures from another machine.

    python benchmarks/ring/host.py --json benchmarks/results/ring-host.json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

from pygpukit import ring

# Of PyDotCompute 0.2: microseconds of a round trip, messages per second.
KNOWN_P50, KNOWN_P99, KNOWN_RATE = 29.7, 51.3, 54_000.0

ROUND_TRIP_BAR, RATE_BAR, SCALING_BAR = 0.5, 4.0, 4.0
ACTORS = 8


class Peer:
    """The same actor, defined with one of the packages."""

    def __init__(self, package: Any) -> None:
        self.package = package

        class ComputeRequest:
            values: list[float]

        class ComputeResponse:
            result: float

        for cls, annotation in ((ComputeRequest, {"values": list[float]}), (ComputeResponse, {"result": float})):
            cls.__annotations__ = annotation
        self.request: Any = package.message(ComputeRequest)
        self.response: Any = package.message(ComputeResponse)
        response = self.response

        @package.ring_kernel(kernel_id="compute", input_type=self.request, output_type=self.response)
        async def compute(ctx: Any) -> None:
            while not ctx.should_terminate:
                msg = await ctx.receive()
                await ctx.send(response(result=sum(msg.values)))

        self.actor = compute

    async def measure(self, trips: int, burst: int) -> tuple[list[float], float]:
        """Seconds of each round trip, and messages per second with many on their way."""
        async with self.package.RingKernelRuntime() as runtime:
            await runtime.launch("compute")
            await runtime.activate("compute")
            request, values = self.request, [1.0, 2.0, 3.0]

            async def trip() -> float:
                start = time.perf_counter()
                await runtime.send("compute", request(values=values))
                await runtime.receive("compute")
                return time.perf_counter() - start

            for _ in range(200):
                await trip()
            times = [await trip() for _ in range(trips)]

            async def feed() -> None:
                for _ in range(burst):
                    await runtime.send("compute", request(values=values))

            start = time.perf_counter()
            feeding = asyncio.create_task(feed())
            for _ in range(burst):
                await runtime.receive("compute")
            rate = burst / (time.perf_counter() - start)
            await feeding
            return times, rate


def installed_peer() -> Peer | None:
    """PyDotCompute, where it is installed."""
    try:
        import pydotcompute
    except ImportError:
        return None
    return Peer(pydotcompute)


def percentiles(times: list[float]) -> tuple[float, float]:
    """Microseconds: the median and the 99th percentile."""
    ordered = sorted(times)
    return statistics.median(ordered) * 1e6, ordered[int(0.99 * (len(ordered) - 1))] * 1e6


def asyncio_actor(report: Report, rounds: int, trips: int, burst: int) -> None:
    """The contract's example, in turns with the peer."""
    own, peer = Peer(ring), installed_peer()
    ours: list[tuple[float, float, float]] = []
    theirs: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        for one, kept in ((own, ours), (peer, theirs)):
            if one is not None:
                times, rate = asyncio.run(one.measure(trips, burst))
                kept.append((*percentiles(times), rate))
    p50, p99, rate = (statistics.median(column) for column in zip(*ours, strict=True))
    if theirs:
        other50, other99, other_rate = (statistics.median(column) for column in zip(*theirs, strict=True))
    else:
        other50, other99, other_rate = KNOWN_P50, KNOWN_P99, KNOWN_RATE
        print("PyDotCompute is not installed: its figures are those of another machine", file=sys.stderr)
    report.add("round trip, coroutine, p50", p50, other50, "us", ROUND_TRIP_BAR, measured_here=bool(theirs))
    report.add("round trip, coroutine, p99 (floor)", p99, other99, "us", ROUND_TRIP_BAR, measured_here=bool(theirs))
    report.add(
        "messages on their way, coroutine", rate / 1e3, other_rate / 1e3, "k/s", RATE_BAR, at_least=True,
        measured_here=bool(theirs),
    )  # fmt: skip


@ring.message
class Ping:
    n: int


def thread_actor(report: Report, trips: int, burst: int) -> None:
    """Round trips and batches between threads, by the client."""

    @ring.ring_kernel(kernel_id="echo", input_type=Ping, output_type=Ping)
    def echo(ctx: Any) -> None:
        while not ctx.should_terminate:
            ctx.send(Ping(ctx.receive().n))

    with ring.RingKernelRuntime() as runtime:
        client = runtime.client("echo")
        times = []
        for n in range(trips + 200):
            start = time.perf_counter()
            client.call(Ping(n))
            times.append(time.perf_counter() - start)
        p50, p99 = percentiles(times[200:])
        report.add("round trip, thread, client.call, p50 (floor)", p50, KNOWN_P50, "us", ROUND_TRIP_BAR)
        report.add("round trip, thread, client.call, p99 (floor)", p99, KNOWN_P99, "us", ROUND_TRIP_BAR)
        messages = [Ping(n) for n in range(burst)]
        start = time.perf_counter()
        sender = threading.Thread(target=client.send_batch, args=(messages,))
        sender.start()
        got = 0
        while got < burst:
            got += len(client.receive_batch(min(1000, burst - got)))
        rate = burst / (time.perf_counter() - start)
        sender.join()
        report.add("batches, thread (floor)", rate / 1e3, KNOWN_RATE / 1e3, "k/s", RATE_BAR, at_least=True)


def scaling(report: Report, seconds: float, numbers: int, kind: str) -> None:
    """Messages per second of actors whose handlers leave Python's lock alone for so many numbers, against one of them.

    What Python does for a message, in the actor and its client, is done one at a time: the less there is to compute
    for one, the less is gained.
    """
    block = np.random.default_rng(0).random(numbers)

    def handle(ctx: Any) -> None:
        scratch = np.empty_like(block)
        while not ctx.should_terminate:
            n = ctx.receive().n
            np.sqrt(block, out=scratch)
            np.exp(scratch, out=scratch)
            ctx.send(Ping(n))

    def rate(actors: int) -> float:
        names = [f"worker-{number}" for number in range(actors)]
        with ring.RingKernelRuntime() as runtime:
            for name in names:
                ring.ring_kernel(kernel_id=name, input_type=Ping, output_type=Ping, queue_size=64)(handle)
            clients = [runtime.client(name) for name in names]
            end = time.perf_counter() + seconds
            counts = [0] * actors

            def drive(at: int) -> None:
                client = clients[at]
                client.send_batch([Ping(n) for n in range(32)])
                while time.perf_counter() < end:
                    client.receive()
                    client.send(Ping(0))
                    counts[at] += 1

            threads = [threading.Thread(target=drive, args=(at,)) for at in range(actors)]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sum(counts) / (time.perf_counter() - start)

    one, many = rate(1), rate(ACTORS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    what = f"{ACTORS} threads on {cores} cores against one, {1e3 / one:.2g} ms a message"
    report.add(
        what + (kind if cores >= ACTORS else " (floor)"), many, one, "/s", SCALING_BAR, at_least=True, cores=cores
    )


def main() -> int:
    """Measure, and say which bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=5_000, help="round trips a round")
    parser.add_argument("--burst", type=int, default=50_000, help="messages on their way")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate of threads")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = Report()
    steps: list[Callable[[], None]] = [
        lambda: asyncio_actor(report, arguments.rounds, arguments.trips, arguments.burst),
        lambda: thread_actor(report, arguments.trips, arguments.burst),
        lambda: scaling(report, arguments.seconds, 500_000, ""),
        lambda: scaling(report, arguments.seconds, 50_000, " (floor)"),
    ]
    for step in steps:
        step()
    command = f"python benchmarks/ring/host.py --rounds {arguments.rounds} --trips {arguments.trips} "
    return report.finish(arguments.json, command + f"--burst {arguments.burst} --seconds {arguments.seconds:g}")


if __name__ == "__main__":
    raise SystemExit(main())
