"""How a row is timed: device time between events on a GPU, the host's clock elsewhere."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pygpukit as gp
from pygpukit.benchmark.work import Call, Options

NODES = 20
"""Calls in a graph at least, where a call is short."""

SHORT = 100e-6
"""Seconds below which a call is repeated inside a graph."""

_HOST_SAMPLE = 2e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """Seconds per call, in the order they were measured."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median


class Timer:
    """Times calls of ours and of the peer, in turns.

    Parameters
    ----------
    options : Options
        Device and peer.
    rounds : int
        Samples of each; two more come first and do not count.
    """

    def __init__(self, options: Options, rounds: int) -> None:
        self.options, self.rounds = options, rounds
        if options.on_gpu:
            self._flush = gp.empty(max(2 * options.l2_bytes, 1 << 20) // 4, "float32")

    def measure(self, ours: Sequence[Call], peer: Sequence[Call] = ()) -> tuple[Samples, Samples | None]:
        """Return samples of ours and of the peer, taken alternately."""
        if self.options.on_gpu:
            runs = [self._ours_on_gpu(ours)] + ([self._theirs_on_gpu(peer)] if peer else [])
        else:
            runs = [self._on_host(calls) for calls in (ours, peer) if calls]
        kept: list[list[float]] = [[] for _ in runs]
        for _ in range(self.rounds + 2):
            for run, samples in zip(runs, kept, strict=True):
                samples.append(run())
        made = [Samples(tuple(samples[2:])) for samples in kept]
        return made[0], made[1] if peer else None

    def _ours_on_gpu(self, calls: Sequence[Call]) -> Callable[[], float]:
        def timed(call: Call) -> float:
            self._flush.fill(1.0)
            start, end = gp.Event(), gp.Event()
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_ms(end)) * 1e-3

        def graph_of(count: int) -> Call:
            graph = gp.CudaGraph()
            with graph.capture():
                for i in range(count):
                    calls[i % len(calls)]()
            return graph.replay

        return self._repeated(calls, timed, graph_of)

    def _theirs_on_gpu(self, calls: Sequence[Call]) -> Callable[[], float]:
        torch: Any = self.options.torch
        flush = torch.empty(max(2 * self.options.l2_bytes, 1 << 20) // 4, device="cuda")

        def timed(call: Call) -> float:
            flush.fill_(1.0)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        def graph_of(count: int) -> Call:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                calls[0]()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(count):
                    calls[i % len(calls)]()
            replay: Call = graph.replay
            return replay

        return self._repeated(calls, timed, graph_of)

    @staticmethod
    def _repeated(
        calls: Sequence[Call], timed: Callable[[Call], float], graph_of: Callable[[int], Call]
    ) -> Callable[[], float]:
        """Time a graph of many calls where one is short; calls take turns otherwise."""
        for call in calls[:2]:
            timed(call)
        if min(timed(calls[0]) for _ in range(3)) >= SHORT:
            turn = iter(range(1 << 62))
            return lambda: timed(calls[next(turn) % len(calls)])
        count = max(NODES, len(calls))
        replay = graph_of(count)
        return lambda: timed(replay) / count

    @staticmethod
    def _on_host(calls: Sequence[Call]) -> Callable[[], float]:
        calls[0]()
        start = time.perf_counter()
        calls[0]()
        once = max(time.perf_counter() - start, 1e-7)
        count = max(1, min(10_000, int(_HOST_SAMPLE / once)))

        def run() -> float:
            begin = time.perf_counter()
            for i in range(count):
                calls[i % len(calls)]()
            gp.synchronize()
            return (time.perf_counter() - begin) / count

        return run


def ceilings(options: Options, timer: Timer) -> dict[str, float]:
    """Return bytes per second of a copy (read and write) and of reading, measured now."""
    n = (1 << 28) if options.on_gpu and not options.quick else (1 << 26) if options.on_gpu else (1 << 23)
    x = options.normal((n,), "float32")
    y = gp.empty_like(x)

    def copy() -> Any:
        y[...] = x

    largest = gp.empty((), "float32")
    moved = timer.measure([copy])[0].median
    read = timer.measure([lambda: gp.max(x, out=largest)])[0].median
    return {"copy": 2.0 * x.nbytes / moved, "read": float(x.nbytes) / read}
