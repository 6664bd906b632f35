"""What the benchmarks of array operators share: device time of a call against its peer or the copy rate.

Calls alternate in one process. Before each timed call a buffer larger than the L2 cache is written; events around the
call give its device time, and the median of many rounds counts. Small calls are repeated inside a graph on both sides.

A row that raises is noted as failed, and the next one runs.

    python benchmarks/array/reduce.py --json benchmarks/results/h200-array-reduce.json
    python benchmarks/array/all.py --out /tmp/results --seconds 360
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

FLUSH = 512 << 20
COPY = 1 << 30


class Bench:
    """Rows of one family of operators.

    Attributes
    ----------
    torch
        The peer's module.
    report
        Where rows go; `Report.add` takes rows of any other kind.
    latest
        The one that was made last: what `all.py` writes where a family ends early.
    """

    latest: ClassVar[Bench | None] = None

    def __init__(
        self, description: str | None, arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    ) -> None:
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        arguments(parser)
        parser.add_argument("--json", type=Path)
        parser.add_argument("--rounds", type=int, default=15)
        parser.add_argument("--only", help="run only rows whose name contains this")
        parser.add_argument("--seconds", type=float, help="skip the rows that would begin after this time")
        self.options = parser.parse_args()
        self._began = time.monotonic()
        self.skipped: list[str] = []
        import torch

        self.torch = torch
        self.report = Report()
        Bench.latest = self
        self._flush = gp.empty(FLUSH // 4, "float32")
        self._torch_flush = torch.empty(FLUSH // 4, device="cuda")
        self._copy_ms: float | None = None

    def wanted(self, what: str) -> bool:
        """Is this row asked for, and is there time for it?"""
        if self.options.only is not None and self.options.only not in what:
            return False
        if self.options.seconds is not None and time.monotonic() - self._began > self.options.seconds:
            self.skipped.append(what)
            return False
        return True

    def check(self, function: Callable[..., None], *args: Any) -> None:
        """Compare results before they are timed; a difference is noted, and the rows are measured all the same."""
        self.guarded("check of values", function, *args)

    def guarded(self, what: str, measure: Callable[..., None], *args: Any) -> None:
        """Measure a row; note it as failed if that raises."""
        try:
            measure(*args)
        except Exception as error:
            traceback.print_exc()
            self.report.fail(what, error)

    def ours_ms(self, call: Callable[[], Any], repeat: int = 1) -> float:
        """Milliseconds of a call of ours on the device; with ``repeat`` that many in one graph."""
        return self._median(self._ours(call, repeat)) / repeat

    def theirs_ms(self, call: Callable[[], Any], repeat: int = 1) -> float:
        """The same for a call of torch."""
        return self._median(self._theirs(call, repeat)) / repeat

    def copy_rate(self) -> float:
        """Bytes read and written per millisecond by a copy of 1 GiB, measured once."""
        if self._copy_ms is None:
            x, y = (self.torch.rand(COPY // 4, device="cuda") for _ in range(2))
            self._copy_ms = self.theirs_ms(lambda: y.copy_(x))
        return 2 * COPY / self._copy_ms

    def against_torch(
        self,
        what: str,
        ours: Callable[[], Any],
        theirs: Callable[[], Any],
        must: float,
        *,
        repeat: int = 1,
        nbytes: int | None = None,
        stretch: float | None = None,
        **extra: Any,
    ) -> None:
        """Add a row: our time over torch's, at most ``must``. With ``nbytes`` the share of the copy rate is noted.

        ``stretch`` is a bar that is noted in a row of its own.
        """
        if not self.wanted(what):
            return

        def measure() -> None:
            run, peer = self._ours(ours, repeat), self._theirs(theirs, repeat)
            mine, other = (t / repeat for t in self._medians(run, peer))
            if nbytes is not None:
                extra["of_copy_rate"] = nbytes / mine / self.copy_rate()
            self.report.add(what, mine, other, "ms", must, **extra)
            if stretch is not None:
                self.report.add(f"{what} (stretch)", mine, other, "ms", stretch, **extra)

        self.guarded(what, measure)

    def against_ours(
        self,
        what: str,
        ours: Callable[[], Any],
        other: Callable[[], Any],
        must: float,
        *,
        repeat: int = 1,
        other_repeat: int = 1,
        **extra: Any,
    ) -> tuple[float, float]:
        """Add a row: the time of one call of ours over that of another, at most ``must``; return both."""
        run, peer = self._ours(ours, repeat), self._ours(other, other_repeat)
        mine, theirs = self._medians(run, peer)
        mine, theirs = mine / repeat, theirs / other_repeat
        self.report.add(what, mine, theirs, "ms", must, **extra)
        return mine, theirs

    def of_copy_rate(
        self, what: str, call: Callable[[], Any], nbytes: int, must: float, *, repeat: int = 1,
        stretch: float | None = None,
    ) -> None:  # fmt: skip
        """Add a row: bytes per second of a call over those of a copy, at least ``must``; ``stretch`` is another bar."""
        if not self.wanted(what):
            return

        def measure() -> None:
            mine = nbytes / self.ours_ms(call, repeat) / 1e6
            self.report.add(what, mine, self.copy_rate() / 1e6, "GB/s", must, at_least=True)
            if stretch is not None:
                self.report.add(f"{what} (stretch)", mine, self.copy_rate() / 1e6, "GB/s", stretch, at_least=True)

        self.guarded(what, measure)

    def finish(self, command: str) -> int:
        """Write the results; 1 when a row is below its bar or failed."""
        for what in self.skipped:
            print(f"skip {what}")
        return self.report.finish(self.options.json, command)

    def _ours(self, call: Callable[[], Any], repeat: int) -> Callable[[], float]:
        if repeat > 1:
            call()
            graph = gp.CudaGraph()
            with graph.capture():
                for _ in range(repeat):
                    call()
            call = graph.replay
        call()

        def run() -> float:
            self._flush.fill(1.0)
            start, end = gp.Event(), gp.Event()
            start.record()
            call()
            end.record()
            end.synchronize()
            return start.elapsed_ms(end)

        return run

    def _theirs(self, call: Callable[[], Any], repeat: int) -> Callable[[], float]:
        torch = self.torch
        if repeat > 1:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(repeat):
                    call()
            call = graph.replay
        call()

        def run() -> float:
            self._torch_flush.fill_(1.0)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end))

        return run

    def _median(self, run: Callable[[], float]) -> float:
        return self._medians(run)[0]

    def _medians(self, *runs: Callable[[], float]) -> list[float]:
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(self.options.rounds + 2):
            for run, kept in zip(runs, times, strict=True):
                kept.append(run())
        return [statistics.median(kept[2:]) for kept in times]
