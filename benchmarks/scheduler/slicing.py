"""Long kernels launched in ranges of blocks: what that costs, and how long others wait beside them.

python benchmarks/scheduler/slicing.py --seconds 10 --repeats 3 --json benchmarks/results/h200-slicing.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.scheduler import Scheduler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report
from workloads import SOURCE, ClosedLoop, Kernels

LENGTH = 5e-3
# Blocks many times over what runs at once: with fewer there is nothing to cut.
WAVES = 128
BURST = 20
BLOCK = 256


class Hog:
    """The long kernel, to be launched whole or in ranges."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.kernel = {cut: gp.jit(SOURCE, func="burn", sliceable=cut) for cut in (True, False)}
        per_sm = round(self.kernel[False].occupancy(BLOCK) * 2048 / BLOCK)
        self.blocks = WAVES * per_sm * kernels.sms
        self.iters = kernels.calibrate(LENGTH, self.blocks)

    def launcher(self, cut: bool) -> Any:
        """A call that launches it."""
        kernel, out, iters, blocks = self.kernel[cut], self.kernels.out, self.iters, self.blocks
        return lambda: kernel(out, iters, grid=(blocks,), block=(BLOCK,))


def cost(report: Report, hog: Hog, seconds: float) -> None:
    """Bursts of whole and of sliced launches in turns, in a besteffort task that is alone."""
    times: dict[bool, list[float]] = {True: [], False: []}

    def run() -> None:
        launchers = {cut: hog.launcher(cut) for cut in times}
        for launch in launchers.values():
            # The first ones are measured whole, and make the variant.
            for _ in range(8):
                launch()
                gp.current_stream().synchronize()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for cut, launch in launchers.items():
                start = time.perf_counter()
                for _ in range(BURST):
                    launch()
                gp.current_stream().synchronize()
                times[cut].append((time.perf_counter() - start) / BURST)

    with Scheduler() as scheduler:
        task = scheduler.submit(run, policy="besteffort")
        task.result(timeout=seconds + 120)
        slices = task.stats()["slices"]
    if not slices:
        raise SystemExit("nothing was sliced: the kernel is too short, or its variant does not compile")
    sliced, whole = (statistics.median(times[cut]) * 1e3 for cut in (True, False))
    launches = len(times[True]) * BURST + 8
    what = f"{LENGTH * 1e3:.0f} ms kernel in {slices / launches:.1f} ranges against whole, alone"
    report.add(what, sliced, whole, "ms", 1.03)


def waits(report: Report, hog: Hog, seconds: float) -> None:
    """How long a request of a guaranteed task in time windows waits for its first block beside the hog."""
    count = max(200, int(seconds * 400))
    for cut in (False, True):
        with Scheduler() as scheduler:
            neighbour = ClosedLoop(scheduler, lambda cut=cut: hog.launcher(cut), policy="besteffort")
            neighbour.ready.wait(60)
            with scheduler.task(policy="guaranteed", bandwidth=0.25, isolation="time"):
                alone = hog.kernels.first_blocks(200, 1e-3)
                neighbour.go()
                time.sleep(0.5)
                beside = hog.kernels.first_blocks(count, 1e-3)
            neighbour.stop()
            stats = neighbour.join()
        p50, p99 = np.percentile(beside, [50, 99]) / 1e3
        extra = {"p50_ms": float(p50), "alone_p99_ms": float(np.percentile(alone, 99) / 1e3), "slices": stats["slices"]}
        if cut:
            report.add("wait for the first block beside the sliced hog, p99", p99, 0.5, "ms", 1.0, **extra)
        else:
            # For comparison: at least what is left of one kernel.
            report.add("the same beside the whole hog (floor)", p99, LENGTH * 1e3, "ms", 1.0, **extra)
        print(f"     p50 {p50:.3f} ms, alone p99 {extra['alone_p99_ms']:.3f} ms, {stats['slices']} slices", flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each row")
    parser.add_argument("--repeats", type=int, default=3, help="how often each row runs; each run has to hold")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    report, hog = Report(), Hog(Kernels())
    for _ in range(arguments.repeats):
        cost(report, hog, arguments.seconds)
        waits(report, hog, arguments.seconds)
    command = f"--seconds {arguments.seconds:g} --repeats {arguments.repeats}"
    return report.finish(arguments.json, f"python benchmarks/scheduler/slicing.py {command}")


if __name__ == "__main__":
    raise SystemExit(main())
