"""The scheduler's bars: shares, isolation, latency, cost, and what is charged.

python benchmarks/scheduler/harness.py --minutes 8 --json benchmarks/results/h200-scheduler.json
python benchmarks/scheduler/harness.py --minutes 0.5 --rows share,where
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.scheduler import Scheduler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report
from workloads import ClosedLoop, GraphLoop, Kernels, compete, open_loop, timed


class Bench:
    """What rows share: the report, the kernels, and how long a row runs."""

    def __init__(self, report: Report, seconds: float, repeats: int) -> None:
        self.report = report
        self.kernels = Kernels()
        self.seconds = seconds
        self.repeats = repeats

    def scheduler(self, **options: Any) -> Scheduler:
        return Scheduler(**options)

    def note(self, what: str, **figures: Any) -> None:
        """A figure without a bar."""
        self.report.rows.append({"what": what, "held": True, **figures})
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"     {what:62} {shown}", flush=True)


def shares_of(rows: list[list[int]], costs: list[float]) -> np.ndarray:
    """Part of the device time of each tenant in every window."""
    used = np.array(rows, dtype=float) * np.array(costs)
    return used / used.sum(axis=1, keepdims=True)


def matmul_maker(size: int) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        x, y = gp.ones((size, size)), gp.ones((size, size))

        def launch() -> None:
            gp.matmul(x, y)

        return launch

    return make


def share(bench: Bench) -> None:
    """30/70 by request and 10/90 by weight, matmul, in windows of a second."""
    make = matmul_maker(1024)
    launch = make()
    launch()
    cost = timed(launch)
    for label, requests, wanted, must in [
        ("30/70 by request", ({"bandwidth": 0.3}, {"bandwidth": 0.7}), 0.3, 1.5),
        ("30/70 by weight", ({"weight": 3}, {"weight": 7}), 0.3, 1.5),
        ("10/90 by weight", ({"weight": 1}, {"weight": 9}), 0.1, 1.5),
    ]:
        worst, all_shares, busy, charged = 0.0, [], [], []
        for _ in range(bench.repeats):
            with bench.scheduler() as scheduler:
                tenants = [ClosedLoop(scheduler, make, **request) for request in requests]
                rows = compete(tenants, bench.seconds, 1.0)
                stats = [tenant.join() for tenant in tenants]
            shares = shares_of(rows, [cost, cost])
            worst = max(worst, float(np.abs(shares[:, 0] - wanted).max()) * 100)
            all_shares.append(float(np.mean(shares[:, 0])))
            busy.append(sum(map(sum, rows)) * cost / len(rows))
            charged.append(stats[0]["gpu_seconds"] / sum(s["gpu_seconds"] for s in stats))
        bench.report.add(
            f"share error, {label}, matmul {cost * 1e6:.0f} us, worst 1 s window (points)", worst, 1.0, "pt", must
        )
        bench.note(
            f"  {label}: share, by our charge, device busy",
            share=statistics.mean(all_shares),
            charged=statistics.mean(charged),
            busy=statistics.mean(busy),
        )
        if wanted == 0.1:
            ratio = statistics.mean(all_shares) / (1 - statistics.mean(all_shares)) * 9
            bench.report.add("10/90: ratio against 1:9", abs(ratio - 1) * 100, 1.0, "%", 3.0)


def weights(bench: Bench) -> None:
    """Eight tenants of weight 1 to 8 with kernels of 5 us to 5 ms."""
    lengths = [5e-6, 5e-3, 20e-6, 1e-3, 50e-6, 200e-6, 2e-3, 500e-6]
    launchers = []
    for length in lengths:
        iters = bench.kernels.calibrate(length) if length > 1e-5 else 200
        launchers.append(lambda i=iters: bench.kernels.launcher(i))
    costs = [timed(make()) for make in launchers]
    errors, busy = [], []
    for _ in range(bench.repeats):
        with bench.scheduler() as scheduler:
            tenants = [ClosedLoop(scheduler, make, weight=i + 1, name=f"w{i + 1}") for i, make in enumerate(launchers)]
            rows = compete(tenants, max(bench.seconds, 3.0), 1.0)
            for tenant in tenants:
                tenant.join()
        charged = np.array([tenant.charged for tenant in tenants])
        share = charged / charged.sum()
        expected = np.arange(1, 9) / 36
        errors.append(np.abs(share / expected - 1).max() * 100)
        by_count = np.array(rows).sum(axis=0) * np.array(costs)
        busy.append(by_count.sum() / len(rows))
        bench.note(
            "  8 tenants: charged of the time",
            charged=float(charged.sum() / tenants[0].seconds),
            turns=int(sum(tenant.task.stats()["turns"] for tenant in tenants) / tenants[0].seconds),
        )
        bench.note(
            "  8 tenants: charged share / expected",
            per_tenant=[round(float(x), 3) for x in share / expected],
            by_count=[round(float(x), 3) for x in by_count / by_count.sum() / expected],
            costs_us=[round(c * 1e6, 1) for c in costs],
        )
    bench.report.add(
        "8 tenants, weights 1 to 8, kernels 5 us to 5 ms: worst relative error", max(errors), 1.0, "%", 4.0
    )
    bench.note("  8 tenants: device busy by count", busy=statistics.mean(busy))


def graphs(bench: Bench) -> None:
    """30/70 with CUDA graphs."""
    iters = bench.kernels.calibrate(50e-6)

    def make() -> Callable[[], None]:
        launch = bench.kernels.launcher(iters)
        graph = gp.CudaGraph()
        with graph.capture():
            for _ in range(10):
                launch()
        return graph.replay

    replay = make()
    replay()
    cost = timed(replay)
    worst, means = 0.0, []
    for _ in range(bench.repeats):
        with bench.scheduler() as scheduler:
            tenants = [ClosedLoop(scheduler, make, bandwidth=b) for b in (0.3, 0.7)]
            rows = compete(tenants, bench.seconds, 1.0)
            for tenant in tenants:
                tenant.join()
        shares = shares_of(rows, [cost, cost])
        worst = max(worst, float(np.abs(shares[:, 0] - 0.3).max()) * 100)
        means.append(float(np.mean(shares[:, 0])))
    bench.report.add(
        f"share error, 30/70, graphs of {cost * 1e6:.0f} us, worst 1 s window (points)", worst, 1.0, "pt", 2.0
    )
    bench.note("  graphs: mean share", share=statistics.mean(means))


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


def first_block(bench: Bench) -> None:
    """Host call to the first block of a guaranteed lane, under saturation."""
    kernels = bench.kernels
    hog_iters = kernels.calibrate(500e-6)
    found: dict[str, np.ndarray] = {}

    def owner() -> np.ndarray:
        return kernels.first_blocks(max(300, int(bench.seconds * 400)))

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
        bench.note(
            f"  first block, {label} (us)",
            p50=float(np.percentile(times, 50)),
            p90=float(np.percentile(times, 90)),
            p95=float(np.percentile(times, 95)),
            p98=float(np.percentile(times, 98)),
            p99=float(np.percentile(times, 99)),
            p999=float(np.percentile(times, 99.9)),
            clock_error_us=kernels.clock_error,
        )
    bench.report.add(
        "host call to first block in a guaranteed lane under saturation, p99",
        float(np.percentile(found["beside"], 99)),
        1.0,
        "us",
        15.0,
    )


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


def audit(bench: Bench) -> None:
    """Charged time against the device's own clock, written down by the kernels."""
    n = 2000
    for length in (100e-6, 500e-6):
        iters = bench.kernels.calibrate(length)
        grid = (4 * bench.kernels.sms,)
        log = gp.from_numpy(np.tile(np.array([2**63 - 1, 0], dtype=np.uint64), n))
        other_log = gp.from_numpy(np.tile(np.array([2**63 - 1, 0], dtype=np.uint64), n))

        def fill(log: gp.GPUArray, count: int, iters: int = iters, grid: tuple[int] = grid) -> None:
            for slot in range(count):
                bench.kernels.logged(log, slot, iters, grid=grid, block=(256,))

        with bench.scheduler() as scheduler:
            tasks = [scheduler.submit(fill, args=(which, n), weight=w) for which, w in ((log, 1), (other_log, 2))]
            for task in tasks:
                task.result(timeout=60)
            stats = [task.stats() for task in tasks]
        times = [array.to_numpy().reshape(n, 2).astype(np.int64) for array in (log, other_log)]
        owner = np.repeat([0, 1], n)
        both = np.concatenate(times)
        order = np.argsort(both[:, 0])
        both, owner = both[order], owner[order]
        # A turn lasts from the first block of a tenant's kernels in a row to the end of the last.
        edges = np.flatnonzero(np.diff(owner)) + 1
        turns = [
            (owner[a], both[a, 0], both[b - 1, 1], b - a) for a, b in zip([0, *edges], [*edges, 2 * n], strict=True)
        ]
        for which, stat in enumerate(stats):
            spans = sum(end - begin for who, begin, end, _ in turns if who == which) / 1e9
            kernels = float((times[which][:, 1] - times[which][:, 0]).sum()) / 1e9
            bench.report.add(
                f"charged / in-kernel time of the turns, {length * 1e6:.0f} us kernels, weight {which + 1}: error",
                abs(stat["gpu_seconds"] / spans - 1) * 100,
                1.0,
                "%",
                1.0,
            )
            bench.note(
                "  charged over the kernels' own times", ratio=stat["gpu_seconds"] / kernels, turns=len(turns) / 2
            )
        overlap = np.maximum(0, both[:-1, 1] - both[1:, 0]).sum() / (both[:, 1] - both[:, 0]).sum()
        bench.note("  overlap of the two tenants' kernels (part of the time)", overlap=float(overlap))


def where(bench: Bench) -> None:
    """SMs that lanes really use."""
    found: dict[str, set[int]] = {}
    sizes: dict[str, int] = {}

    together = threading.Barrier(3)

    def look(name: str, rounds: int) -> None:
        together.wait(30)
        histogram = gp.zeros(256, dtype="uint32")
        for _ in range(rounds):
            bench.kernels.where(histogram, 200, grid=(10_000,), block=(64,))
        found[name] = set(np.flatnonzero(histogram.to_numpy()).tolist())
        sizes[name] = gp.scheduler.current_task().stats()["sm_count"]

    with bench.scheduler() as scheduler:
        tasks = [
            scheduler.submit(look, args=(name, 34), name=name, **request)
            for name, request in {
                "a": {"policy": "guaranteed", "bandwidth": 0.2},
                "b": {"policy": "guaranteed", "bandwidth": 0.1},
                "common": {},
            }.items()
        ]
        for task in tasks:
            task.result(timeout=60)
    disjoint = not (found["a"] & found["b"]) and not (found["a"] & found["common"])
    exact = all(len(found[name]) == sizes[name] for name in found)
    bench.report.add(
        "SM sets of lanes are disjoint and as wide as the lane",
        float(bool(disjoint and exact)),
        1.0,
        "yes",
        1.0,
        at_least=True,
        found={k: len(v) for k, v in found.items()},
        lanes=sizes,
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


def revoke(bench: Bench) -> None:
    """How long a besteffort tenant with kernels of 0.5 ms keeps a guaranteed one with windows of time waiting."""
    kernels = bench.kernels
    iters = kernels.calibrate(500e-6)
    with bench.scheduler() as scheduler:
        hog = GraphLoop(scheduler, lambda: kernels.launcher(iters), name="hog")
        hog.wait()
        task = scheduler.submit(
            lambda: kernels.first_blocks(max(200, int(bench.seconds * 300))),
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
    """Four periodic tasks that use 0.9 of the device, beside a besteffort load."""
    kernels = bench.kernels
    jobs = max(50, int(bench.seconds * 50 * (4 if bench.repeats > 1 else 1)))
    step = kernels.calibrate(500e-6)
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
        figures = [task.stats()["jobs"] for task in tasks]
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


ROWS: dict[str, Callable[[Bench], None]] = {
    "where": where,
    "share": share,
    "weights": weights,
    "graphs": graphs,
    "isolation": isolation,
    "lane": lane_throughput,
    "lending": lending,
    "memory": memory_neighbour,
    "first": first_block,
    "revoke": revoke,
    "cost": cost,
    "processor": processor,
    "audit": audit,
    "deadlines": deadlines,
    "allocations": allocations,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="about how long all rows take")
    parser.add_argument("--rows", default=",".join(ROWS), help="which, by name, with commas")
    parser.add_argument("--json", type=Path, default=None, help="write the rows here")
    options = parser.parse_args()
    names = [name for name in options.rows.split(",") if name]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"there is no row {unknown}; there is {list(ROWS)}")
    report = Report()
    bench = Bench(
        report,
        seconds=max(2.0, min(10.0, options.minutes * 60 / (len(names) * 4))),
        repeats=3 if options.minutes >= 4 else 1,
    )
    failed = False
    for name in names:
        began = time.perf_counter()
        try:
            ROWS[name](bench)
        except Exception:
            failed = True
            traceback.print_exc(limit=6)
        print(f"  -- {name}: {time.perf_counter() - began:.1f} s", flush=True)
    return report.finish(options.json, " ".join(sys.argv)) or int(failed)


if __name__ == "__main__":
    sys.exit(main())
