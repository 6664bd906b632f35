"""Rows about what the scheduler costs, and about memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
from bench import Bench

import pygpukit as gp


def cost(bench: Bench) -> None:
    """What going through the scheduler costs a lone tenant."""
    for length, must in ((10e-6, 1.03), (50e-6, 1.01), (200e-6, 1.01)):
        iters = bench.kernels.calibrate(length)
        launch = bench.kernels.launcher(iters)
        count = int(0.3 / length)

        def loop(launch: Callable[[], None] = launch, count: int = count) -> float:
            stream = gp.current_stream()
            for _ in range(50):
                launch()
            stream.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                launch()
            stream.synchronize()
            return (time.perf_counter() - began) / count

        plain, ours = [], []
        for _ in range(max(3, bench.repeats)):
            plain.append(loop())
            with bench.scheduler() as scheduler:
                ours.append(scheduler.submit(loop, policy="burstable").result())
        bench.report.add(
            f"cost of the scheduler, kernels of {length * 1e6:.0f} us (us per launch)",
            statistics.median(ours) * 1e6,
            statistics.median(plain) * 1e6,
            "us",
            must,
        )


def processor(bench: Bench) -> None:
    """Processor time of 1,000 submissions a second."""
    kernels = bench.kernels
    launch_for = kernels.calibrate(100e-6)
    used = {}
    for scheduled in (False, True):

        def paced() -> float:
            launch = kernels.launcher(launch_for)
            began, cpu = time.perf_counter(), time.thread_time()
            for i in range(int(bench.seconds * 1000)):
                launch()
                time.sleep(max(0.0, began + i * 1e-3 - time.perf_counter()))
            return (time.thread_time() - cpu) / (time.perf_counter() - began)

        if scheduled:
            with bench.scheduler() as scheduler:
                used[True] = scheduler.submit(paced).result(timeout=120)
        else:
            used[False] = paced()
    own = max(0.0, used[True] - used[False]) * 100
    bench.report.add("processor time of the scheduler at 1,000 submissions/s (% of a core)", own, 1.0, "%", 5.0)
    bench.note("  processor (% of a core)", scheduled=used[True] * 100, unscheduled=used[False] * 100)


def allocations(bench: Bench) -> None:
    """Guaranteed allocations while a hog fills the rest."""
    total = int(gp.get_device_info()["total_memory"])
    mib = 1 << 20
    tries = 10_000 if bench.repeats > 1 else 1_000
    with bench.scheduler() as scheduler:
        stop = threading.Event()
        grabbed: list[int] = []

        def hog() -> None:
            # Nearly everything, again and again; the last arrays find no place, and earlier ones move to the host.
            most = total // (256 * mib) - 2
            held: list[gp.GPUArray] = []
            while not stop.is_set():
                held.append(gp.empty(256 * mib, dtype="uint8"))
                if len(held) >= most:
                    grabbed.append(len(held))
                    held.clear()

        def owner() -> tuple[int, int]:
            failures = over = 0
            rng = np.random.default_rng(1)
            for _ in range(tries):
                sizes = rng.integers(1, 24, size=8)
                try:
                    held = [gp.empty(int(size) * mib, dtype="uint8") for size in sizes]
                    del held
                except gp.OutOfMemoryError:
                    failures += 1
            for _ in range(100):
                try:
                    gp.empty(260 * mib, dtype="uint8")
                except gp.OutOfMemoryError:
                    over += 1
            return failures, over

        task = scheduler.submit(owner, policy="guaranteed", memory=256 * mib, bandwidth=0.1, name="owner")
        greedy = scheduler.submit(hog, name="hog")
        failures, over = task.result(timeout=300)
        stop.set()
        greedy.result(timeout=120)
    bench.report.add(
        f"guaranteed allocations that failed beside a hog, of {tries}",
        float(failures),
        1.0,
        "",
        0.0,
        filled=len(grabbed),
    )
    bench.report.add("allocations over the cap that were refused, of 100", float(over), 100.0, "", 1.0, at_least=True)
