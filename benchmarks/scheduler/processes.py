"""Tasks in processes of their own: shares of two, and of one beside a thread; what a killed one costs the other.

python benchmarks/scheduler/processes.py --json benchmarks/results/h200-processes.json
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.errors import TaskProcessError
from pygpukit.scheduler import Scheduler, Task

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report


def closed_loop(size: int, folder: str, name: str, stop: str) -> int:
    """Multiply as fast as it may, and note when how many were submitted and done."""
    x, y = gp.ones((size, size)), gp.ones((size, size))
    gp.matmul(x, y)
    stream = gp.current_stream()
    stream.synchronize()
    Path(folder, f"{name}.ready").touch()
    log = np.memmap(Path(folder, name), dtype=np.int64, mode="r+", shape=(2,))
    count = 0
    while count % 32 or not os.path.exists(stop):
        gp.matmul(x, y)
        count += 1
        log[0] = count
    stream.synchronize()
    return count


class Tenant:
    """A closed loop, in a process of its own or in a thread, whose count can be read at any time."""

    def __init__(self, scheduler: Scheduler, folder: str, name: str, size: int, **request: Any) -> None:
        np.zeros(2, dtype=np.int64).tofile(Path(folder, name))
        self._log = np.memmap(Path(folder, name), dtype=np.int64, mode="r", shape=(2,))
        self._ready = Path(folder, f"{name}.ready")
        args = (size, folder, name, str(Path(folder, "stop")))
        self.task: Task[int] = scheduler.submit(closed_loop, args=args, name=name, **request)
        if self.task.decision == "rejected":
            raise RuntimeError(str(self.task.decision.reason))

    def wait_ready(self) -> None:
        limit = time.monotonic() + 60
        while not self._ready.exists():
            if self.task.done() or time.monotonic() > limit:
                self.task.result(timeout=0)  # raises what went wrong
            time.sleep(0.005)

    def count(self) -> int:
        return int(self._log[0])


def in_windows(tenants: list[Tenant], seconds: float, window: float) -> np.ndarray:
    """Multiplications of each tenant in every window."""
    rows, before = [], [tenant.count() for tenant in tenants]
    next_at = time.perf_counter()
    for _ in range(max(1, round(seconds / window))):
        next_at += window
        time.sleep(max(0.0, next_at - time.perf_counter()))
        after = [tenant.count() for tenant in tenants]
        rows.append([b - a for a, b in zip(before, after, strict=True)])
        before = after
    return np.array(rows, dtype=float)


def compete(
    report: Report, label: str, must: float, size: int, seconds: float, repeats: int, kinds: tuple[str, str]
) -> None:
    """30/70 by request."""
    worst, shares, charged, busy = [], [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder, Scheduler() as scheduler:
            tenants = [
                Tenant(scheduler, folder, f"{kind}-{share}", size, isolation=kind, bandwidth=share)
                for kind, share in zip(kinds, (0.3, 0.7), strict=True)
            ]
            for tenant in tenants:
                tenant.wait_ready()
            time.sleep(1.0)
            before = [tenant.task.stats()["gpu_seconds"] for tenant in tenants]
            began = time.perf_counter()
            rows = in_windows(tenants, seconds, 1.0)
            used = [tenant.task.stats()["gpu_seconds"] - b for tenant, b in zip(tenants, before, strict=True)]
            busy.append(sum(used) / (time.perf_counter() - began))
            Path(folder, "stop").touch()
            for tenant in tenants:
                tenant.task.result(timeout=60)
        share = rows[:, 0] / rows.sum(axis=1)
        worst.append(float(np.abs(share - 0.3).max()) * 100)
        shares.append(float(rows[:, 0].sum() / rows.sum()))
        charged.append(used[0] / sum(used))
    figures = {
        "share": statistics.mean(shares),
        "charged_share": statistics.mean(charged),
        "charged_of_time": statistics.mean(busy),
    }
    report.add(f"share error, {label}, worst 1 s window (points)", max(worst), 1.0, "pt", must, **figures)
    print("     " + ", ".join(f"{k} {v:.4f}" for k, v in figures.items()), flush=True)


def lone(report: Report, size: int, seconds: float) -> None:
    """What a process gets of the device when nobody else wants it, against a thread."""
    rates = {}
    for kind in ("auto", "process"):
        with tempfile.TemporaryDirectory() as folder, Scheduler() as scheduler:
            tenant = Tenant(scheduler, folder, kind, size, isolation=kind)
            tenant.wait_ready()
            time.sleep(0.5)
            rates[kind] = float(in_windows([tenant], seconds, seconds).sum() / seconds)
            Path(folder, "stop").touch()
            tenant.task.result(timeout=60)
    report.add(
        "throughput of a lone process / a lone thread", rates["process"], rates["auto"], "1/s", 0.97, at_least=True
    )


def lost(report: Report, what: str, size: int, strike: Callable[[int], None], must: float, kills: bool) -> None:
    """Time until the neighbour of a process that was killed or stopped has the whole device."""
    with tempfile.TemporaryDirectory() as folder, Scheduler() as scheduler:
        victim = Tenant(scheduler, folder, "victim", size, isolation="process", bandwidth=0.7)
        other = Tenant(scheduler, folder, "other", size, isolation="process", bandwidth=0.3)
        for tenant in (victim, other):
            tenant.wait_ready()
        time.sleep(2.0)
        shared = in_windows([other], 1.0, 1.0).sum()
        pid = victim.task.stats()["process"]["pid"]
        began = time.perf_counter()
        strike(pid)
        # Twice its share is more than it can have while the other lives.
        seen, recovered = other.count(), None
        while recovered is None and time.perf_counter() < began + 10:
            time.sleep(0.02)
            now = other.count()
            if now - seen > 2 * shared * 0.02:
                recovered = time.perf_counter() - began
            seen = now
        noticed = None
        if kills:
            try:
                victim.task.result(timeout=10)
            except TaskProcessError:
                noticed = time.perf_counter() - began
        else:
            os.kill(pid, signal.SIGCONT)
        Path(folder, "stop").touch()
        other.task.result(timeout=60)
        if not kills:
            victim.task.result(timeout=60)
    found = recovered if recovered is not None else float("inf")
    report.add(f"{what}: the other has the device after", found, 1.0, "s", must, task_ended_after=noticed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, help="of the matrices")
    parser.add_argument("--json", type=Path, default=None, help="write the rows here")
    options = parser.parse_args()
    report = Report()
    size, seconds, repeats = options.size, options.seconds, options.repeats
    lone(report, size, min(seconds, 3.0))
    compete(report, "30/70, two processes", 3.0, size, seconds, repeats, ("process", "process"))
    compete(report, "30/70, a process and a thread", 3.0, size, seconds, repeats, ("process", "auto"))
    lost(report, "a process killed", size, lambda pid: os.kill(pid, signal.SIGKILL), 1.0, kills=True)
    lost(report, "a process stopped", size, lambda pid: os.kill(pid, signal.SIGSTOP), 1.0, kills=False)
    return report.finish(
        options.json,
        f"python benchmarks/scheduler/processes.py --seconds {options.seconds:g} --repeats {options.repeats}",
    )


if __name__ == "__main__":
    sys.exit(main())
