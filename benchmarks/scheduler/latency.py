"""Rows about latency: what neighbours cost a guaranteed task, and what it leaves to them."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench import Bench
from workloads import GraphLoop, open_loop, timed

import pygpukit as gp


def isolation(bench: Bench) -> None:
    """Latency of a guaranteed lane alone and beside a saturating, compute-bound neighbour."""
    kernels = bench.kernels
    hog_iters = kernels.calibrate(500e-6)
    for length in (20e-6, 200e-6, 2e-3):
        latencies: dict[str, list[np.ndarray]] = {"alone": [], "beside": []}
        clocks: dict[str, list[float]] = {"alone": [], "beside": []}
        rate: list[float] = []
        fixed: list[int] = []

        def serve_all(length: float = length, rate: list[float] = rate, fixed: list[int] = fixed) -> np.ndarray:
            if not fixed:
                fixed.append(kernels.calibrate(length, 4 * 32))
            launch = kernels.launcher(fixed[0], 4 * 32)
            stream = gp.current_stream()

            def serve() -> None:
                launch()
                stream.synchronize()

            for _ in range(20):
                serve()
            began = time.perf_counter()
            for _ in range(200):
                serve()
            if not rate:
                rate.append(0.5 * 200 / (time.perf_counter() - began))
            return open_loop(serve, rate[0], bench.seconds)

        def owner(serve: Callable[[], Any] = serve_all) -> tuple[np.ndarray, float]:
            found = serve()
            return found, kernels.megahertz()

        for _ in range(bench.repeats):
            for beside in (False, True):
                with bench.scheduler() as scheduler:
                    hog = GraphLoop(scheduler, lambda: kernels.launcher(hog_iters), name="hog") if beside else None
                    task = scheduler.submit(owner, policy="guaranteed", bandwidth=0.2, name="owner")
                    if hog is not None:
                        hog.begin()
                    found, clock = task.result(timeout=120)
                    if hog is not None:
                        hog.end()
                label = "beside" if beside else "alone"
                latencies[label].append(found)
                clocks[label].append(clock)
        p99 = {k: statistics.median(float(np.percentile(x, 99)) for x in v) * 1e6 for k, v in latencies.items()}
        p50 = {k: statistics.median(float(np.percentile(x, 50)) for x in v) * 1e6 for k, v in latencies.items()}
        scale = statistics.median(clocks["beside"]) / statistics.median(clocks["alone"])
        what = f"guaranteed p99 beside a compute neighbour / alone, kernels of {length * 1e6:.0f} us"
        bench.report.add(f"{what}, clock-normalised", p99["beside"] * scale, p99["alone"], "us", 1.05)
        bench.note(
            "  raw",
            p99=p99["beside"] / p99["alone"],
            p50=p50["beside"] / p50["alone"],
            p50_alone_us=p50["alone"],
            p50_beside_us=p50["beside"],
            clock=scale,
            requests=len(latencies["alone"][0]),
        )


def threads(bench: Bench) -> None:
    """A guaranteed task's own loop of short kernels, alone and beside a thread that launches without pause."""
    kernels = bench.kernels
    found: dict[str, list[np.ndarray]] = {"alone": [], "beside": []}
    launches: list[float] = []

    def owner() -> np.ndarray:
        launch = kernels.launcher(kernels.calibrate(20e-6, 4 * 32), 4 * 32)
        stream = gp.current_stream()
        times = []
        end = time.perf_counter() + bench.seconds / 4
        while (began := time.perf_counter()) < end:
            launch()
            stream.synchronize()
            times.append(time.perf_counter() - began)
        # The first ones load and learn.
        return np.array(times[200:])

    def neighbour(stop: threading.Event, began: threading.Event) -> float:
        launch = kernels.launcher(kernels.calibrate(20e-6, 4 * 32), 4 * 32)
        count, start = 0, time.perf_counter()
        while not stop.is_set():
            launch()
            count += 1
            if count == 100:
                began.set()
        return count / (time.perf_counter() - start)

    # Rounds alternate, so that clocks and other programs change both alike.
    for _ in range(max(4, 2 * bench.repeats)):
        for label in found:
            stop, began = threading.Event(), threading.Event()
            with bench.scheduler() as scheduler:
                other = None
                if label == "beside":
                    other = scheduler.submit(neighbour, args=(stop, began), policy="besteffort", name="neighbour")
                    began.wait(60)
                task = scheduler.submit(owner, policy="guaranteed", bandwidth=0.2, name="owner")
                found[label].append(task.result(timeout=120))
                stop.set()
                if other is not None:
                    launches.append(other.result(timeout=120))
    at = {
        (label, q): statistics.median(float(np.percentile(x, q)) for x in rounds) * 1e6
        for label, rounds in found.items()
        for q in (50, 99)
    }
    what = "guaranteed loop of 20 us kernels beside a thread that launches without pause / alone"
    bench.report.add(f"{what}, p99", at["beside", 99], at["alone", 99], "us", 1.3)
    bench.note(
        "  p50, and the neighbour",
        p50=at["beside", 50] / at["alone", 50],
        p50_alone_us=at["alone", 50],
        p50_beside_us=at["beside", 50],
        launches_per_second=statistics.median(launches),
        rounds=len(found["alone"]),
    )


def lane_throughput(bench: Bench) -> None:
    """What a besteffort tenant gets of the SMs outside a busy guaranteed lane."""
    kernels = bench.kernels
    hog_iters = kernels.calibrate(500e-6)
    counts = {}
    for busy in (False, True):
        with bench.scheduler() as scheduler:
            done = threading.Event()

            def owner(busy: bool = busy, done: threading.Event = done) -> None:
                launch = kernels.launcher(kernels.calibrate(200e-6, 128), 128)
                while not done.is_set():
                    if busy:
                        launch()
                        gp.current_stream().synchronize()
                    else:
                        time.sleep(0.01)

            task = scheduler.submit(owner, policy="guaranteed", bandwidth=0.2, name="owner")
            hog = GraphLoop(scheduler, lambda: kernels.launcher(hog_iters), name="hog")
            hog.begin()
            time.sleep(0.2)
            before, began = hog.count, time.perf_counter()
            time.sleep(bench.seconds)
            counts[busy] = (hog.count - before) / (time.perf_counter() - began)
            done.set()
            hog.end()
            task.result(timeout=60)
    bench.report.add(
        "besteffort throughput beside a busy guaranteed lane / beside an idle one",
        counts[True],
        counts[False],
        "1/s",
        0.95,
        at_least=True,
    )


def memory_neighbour(bench: Bench) -> None:
    """Requests of 10 ms that are memory bound, beside a memory-bound neighbour, with windows of time and with SMs."""
    kernels = bench.kernels
    for mode, must in (("time", 1.10), ("sm", None)):
        rate: list[float] = []
        latencies: dict[str, list[np.ndarray]] = {"alone": [], "beside": []}
        for _ in range(bench.repeats):
            for beside in (False, True):
                with bench.scheduler() as scheduler:
                    hog = GraphLoop(scheduler, kernels.copier(64), name="hog") if beside else None

                    def owner(rate: list[float] = rate) -> np.ndarray:
                        launch, stream = kernels.copier(512)(), gp.current_stream()
                        count = max(1, round(10e-3 / timed(launch, 3)))

                        def serve() -> None:
                            for _ in range(count):
                                launch()
                            stream.synchronize()

                        serve()
                        began = time.perf_counter()
                        for _ in range(10):
                            serve()
                        if not rate:
                            rate.append(0.5 * 10 / (time.perf_counter() - began))
                        return open_loop(serve, rate[0], bench.seconds)

                    if hog is not None:
                        hog.wait()
                    task = scheduler.submit(owner, policy="guaranteed", bandwidth=0.6, isolation=mode, name="owner")
                    if task.decision != "admitted":
                        raise RuntimeError(task.decision.reason)
                    if hog is not None:
                        hog.begin()
                    latencies["beside" if beside else "alone"].append(task.result(timeout=120))
                    if hog is not None:
                        hog.end()
        p99 = {k: statistics.median(float(np.percentile(x, 99)) for x in v) * 1e3 for k, v in latencies.items()}
        p50 = {k: statistics.median(float(np.percentile(x, 50)) for x in v) * 1e3 for k, v in latencies.items()}
        what = f"10 ms memory-bound requests beside a memory-bound neighbour, p99 / alone, isolation={mode}"
        if must is None:
            bench.note(what, p99=p99["beside"] / p99["alone"], p50=p50["beside"] / p50["alone"])
        else:
            bench.report.add(what, p99["beside"], p99["alone"], "ms", must)
            bench.note("  p50", beside=p50["beside"], alone=p50["alone"], requests=len(latencies["alone"][0]))


def lending(bench: Bench) -> None:
    """What a besteffort tenant gets of the idle time of a lane whose requests take 10 ms, half of the time."""
    kernels = bench.kernels
    hog_iters = kernels.calibrate(200e-6)
    alone = 1 / timed(kernels.launcher(hog_iters))
    fixed: list[int] = []
    p99 = {}
    for lend in (False, True):
        with bench.scheduler(lending=lend) as scheduler:

            def owner() -> tuple[np.ndarray, float]:
                if not fixed:
                    fixed.append(kernels.calibrate(1e-3, 128))
                launch, stream = kernels.launcher(fixed[0], 128), gp.current_stream()

                def serve() -> None:
                    for _ in range(10):
                        launch()
                    stream.synchronize()

                began = time.perf_counter()
                found = open_loop(serve, 50.0, bench.seconds)
                return found, len(found) * 10e-3 / (time.perf_counter() - began)

            hog = GraphLoop(scheduler, lambda: kernels.launcher(hog_iters), name="hog")
            hog.wait()
            task = scheduler.submit(owner, policy="guaranteed", bandwidth=0.2, name="owner")
            hog.begin()
            time.sleep(0.05)
            before, began = hog.count, time.perf_counter()
            found, load = task.result(timeout=120)
            got = (hog.count - before) / (time.perf_counter() - began)
            hog.end()
        p99[lend] = float(np.percentile(found, 99))
        sms, lane = kernels.sms, 32
        # What is not used by the owner: the other SMs always, and its own while it is idle.
        idle = 1 - load * lane / sms
        if lend:
            bench.report.add(
                "besteffort throughput with lending / of all idle time", got / alone, idle, "", 0.85, at_least=True
            )
            bench.note("  owner's p99 with lending / without", ratio=p99[True] / p99[False], load=load)
        else:
            bench.note("  besteffort throughput without lending / of all idle time", ratio=got / alone / idle)


def first_block(bench: Bench) -> None:
    """Host call to the first block of a guaranteed lane, under saturation."""
    kernels = bench.kernels
    # Few launches: the driver takes one call at a time, and the neighbour's would be in the way.
    hog_iters = kernels.calibrate(2e-3)
    for pause, what in ((20e-6, "half of the time busy"), (1e-3, "after idle milliseconds")):
        found: dict[str, np.ndarray] = {}

        def owner(pause: float = pause) -> np.ndarray:
            return kernels.first_blocks(int(bench.seconds * 0.5 / (pause + 20e-6)), pause)

        found["unscheduled"] = owner()
        for beside in (False, True):
            with bench.scheduler() as scheduler:
                hog = GraphLoop(scheduler, lambda: kernels.launcher(hog_iters), name="hog") if beside else None
                task = scheduler.submit(owner, policy="guaranteed", bandwidth=0.2, name="owner")
                if hog is not None:
                    hog.begin()
                found["beside" if beside else "alone"] = task.result(timeout=120)
                if hog is not None:
                    hog.end()
        for label, times in found.items():
            marks = {f"p{q}": float(np.percentile(times, q)) for q in (50, 90, 95, 98, 99, 99.9)}
            bench.note(f"  first block, {what}, {label} (us)", **marks, clock_error_us=kernels.clock_error)
        if pause < 1e-4:
            p99 = float(np.percentile(found["beside"], 99))
            bench.report.add(
                "host call to first block in a guaranteed lane under saturation, p99", p99, 1.0, "us", 15.0
            )


def revoke(bench: Bench) -> None:
    """How long a besteffort tenant with kernels of 0.5 ms keeps a guaranteed one with windows of time waiting."""
    kernels = bench.kernels
    iters = kernels.calibrate(500e-6)
    with bench.scheduler() as scheduler:
        hog = GraphLoop(scheduler, lambda: kernels.launcher(iters), name="hog")
        hog.wait()
        task = scheduler.submit(
            lambda: kernels.first_blocks(max(200, int(bench.seconds * 300)), 1e-3),
            policy="guaranteed",
            bandwidth=0.5,
            isolation="time",
            name="owner",
        )
        hog.begin()
        times = task.result(timeout=120)
        hog.end()
    bench.report.add(
        "revoking a besteffort tenant with 0.5 ms kernels, p99 / (kernel + 0.5 ms)",
        float(np.percentile(times, 99)),
        1000.0,
        "us",
        1.0,
    )
    bench.note("  revoke (us)", p50=float(np.percentile(times, 50)), worst=float(times.max()), requests=len(times))


def deadlines(bench: Bench) -> None:
    """Four periodic tasks that use 0.9 of the device, beside a besteffort load; all jobs of all runs together."""
    kernels = bench.kernels
    jobs = max(50, int(bench.seconds * 50 * (2 if bench.repeats > 1 else 1)))
    step = kernels.calibrate(500e-6)
    figures: list[dict[str, float]] = []
    for _ in range(bench.repeats):
        with bench.scheduler() as scheduler:
            hog = GraphLoop(scheduler, lambda: kernels.launcher(kernels.calibrate(200e-6)), name="hog")
            hog.wait()

            def job() -> None:
                launch = kernels.launcher(step)
                for _ in range(8):
                    launch()

            request = {"deadline": 0.020, "period": 0.020, "cost": 0.0045, "jobs": jobs}
            tasks = [scheduler.submit(job, name=f"job{i}", **request) for i in range(4)]
            refused = [task.decision.reason for task in tasks if task.decision != "admitted"]
            if refused:
                raise RuntimeError(refused)
            hog.begin()
            for task in tasks:
                task.result(timeout=jobs * 0.02 * 2 + 30)
            hog.end()
            figures += [task.stats()["jobs"] for task in tasks]
    met = sum(f["met"] for f in figures)
    missed = sum(f["missed"] + f["skipped"] for f in figures)
    bench.report.add(
        "deadlines met, admitted set with U = 0.9, besteffort load beside it",
        met / (met + missed),
        1.0,
        "",
        0.999,
        at_least=True,
        jobs=met + missed,
        worst_ms=max(f["worst_seconds"] for f in figures) * 1e3,
    )
