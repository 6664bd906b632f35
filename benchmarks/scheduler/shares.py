"""Rows about shares: who gets how much of the device, what is charged for it, and on which SMs."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

import numpy as np
from bench import Bench
from workloads import ClosedLoop, compete, timed

import pygpukit as gp


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
        # Now, while all are there: the lane of one that ends is given to others.
        sizes[name] = gp.scheduler.current_task().stats()["sm_count"]
        histogram = gp.zeros(256, dtype="uint32")
        for _ in range(rounds):
            bench.kernels.where(histogram, 200, grid=(10_000,), block=(64,))
        found[name] = set(np.flatnonzero(histogram.to_numpy()).tolist())

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
