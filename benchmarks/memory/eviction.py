"""Eviction: how fast arrays move, what moving costs the work around it, and what it costs when nothing moves.

python benchmarks/memory/eviction.py --json benchmarks/results/h200-eviction.json
python benchmarks/memory/eviction.py --small          # sizes for a machine without a GPU, to see that it runs
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report, alternate

MIB = 1 << 20
GIB = 1 << 30


def torch_pinned(nbytes: int, rounds: int) -> tuple[float, float, float] | None:
    """Seconds of torch's page-locked copies: to the device, back, both at once; None without torch or a GPU."""
    if not gp.is_cuda_available():
        return None
    try:
        import torch
    except ImportError:
        return None
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def copy(to: Any, source: Any) -> None:
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    other, target = torch.empty_like(host, pin_memory=True), torch.empty_like(device)
    streams = [torch.cuda.Stream() for _ in range(2)]

    def both() -> None:
        with torch.cuda.stream(streams[0]):
            device.copy_(host, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            other.copy_(target, non_blocking=True)
        torch.cuda.synchronize()

    up, down, duplex = alternate(rounds, lambda: copy(device, host), lambda: copy(host, device), both)
    return up, down, duplex


def rates(report: Report, nbytes: int, count: int, rounds: int) -> float:
    """Bytes per second of evicting and restoring arrays one after the other, against torch's page-locked copies.

    Returns the seconds a byte takes each way when both are busy.
    """
    pool = gp.memory.MemoryPool(enable_eviction=True, name="rates")
    with pool:
        arrays = [gp.full(nbytes // 4, float(i), "float32") for i in range(count)]
    out: list[float] = []
    back: list[float] = []
    for turn in range(rounds + 1):
        for array in arrays:
            array += 1.0
        gp.synchronize()
        start = time.perf_counter()
        for array in arrays:
            assert array.evict()
        middle = time.perf_counter()
        for array in arrays:
            array.prefetch()
        gp.synchronize()
        end = time.perf_counter()
        if turn:  # the first turn page-locks the host memory
            out.append(middle - start)
            back.append(end - middle)
    for i, array in enumerate(arrays):
        assert array[0].item() == i + rounds + 1
    away = statistics.median(out) / count
    again = statistics.median(back) / count
    del arrays, array
    gp.memory.trim()
    peer = torch_pinned(nbytes, rounds)
    up, down, duplex = peer or (again, away, again + away)
    scale = nbytes / 1e9
    name = f"{nbytes // MIB} MiB arrays"
    report.add(f"evict {name}, against torch's pinned copy", scale / away, scale / down, "GB/s", 0.9, at_least=True)
    report.add(f"restore {name}, against torch's pinned copy", scale / again, scale / up, "GB/s", 0.9, at_least=True)
    return duplex / nbytes


def overflow(report: Report, nbytes: int, rounds: int) -> None:
    """The same when page-locked memory is used up, against torch's copies of ordinary memory."""
    pool = gp.memory.MemoryPool(enable_eviction=True, name="overflow")
    device = gp.current_device()
    limit = gp.memory.pinned_stats()["limit"]
    with pool:
        array = gp.full(nbytes // 4, 1.0, "float32")
    gp.memory.trim_pinned()
    device._set_pinned_limit(gp.memory.pinned_stats()["used"])
    out: list[float] = []
    back: list[float] = []
    try:
        for turn in range(rounds + 1):
            array += 1.0
            gp.synchronize()
            start = time.perf_counter()
            assert array.evict()
            middle = time.perf_counter()
            array.prefetch()
            gp.synchronize()
            end = time.perf_counter()
            if turn:  # the first turn touches the host's pages
                out.append(middle - start)
                back.append(end - middle)
        assert pool.stats()["host_pageable"] >= nbytes
        assert array[-1].item() == rounds + 2
    finally:
        device._set_pinned_limit(limit)
    away, again = statistics.median(out), statistics.median(back)
    up, down = again, away
    if gp.is_cuda_available():
        import torch

        host, target = torch.ones(nbytes, dtype=torch.uint8), torch.ones(nbytes, dtype=torch.uint8, device="cuda")

        def upload() -> None:
            target.copy_(host)
            torch.cuda.synchronize()

        up, down = alternate(rounds, upload, lambda: host.copy_(target))
    scale = nbytes / 1e9
    name = f"{nbytes // MIB} MiB beyond page-locked memory"
    report.add(f"evict {name}, against torch's pageable copy", scale / away, scale / down, "GB/s", 1.0, at_least=True)
    report.add(f"restore {name}, against torch's pageable copy", scale / again, scale / up, "GB/s", 1.0, at_least=True)


def working_sets(report: Report, quota: int, side: int, rows: int, phases: int, seconds_per_byte: float) -> None:
    """Two sets of 0.75 of the quota each take turns: products of every matrix of a set, into results of the set."""

    def make(pool: gp.memory.MemoryPool, seed: int) -> list[tuple[gp.GPUArray, gp.GPUArray]]:
        noise = np.random.default_rng(seed).standard_normal((side, side)).astype(np.float32)
        count = int(0.75 * quota) // ((side + rows) * side * 4)
        with pool:
            matrix = gp.from_numpy(noise)
            return [(matrix.copy(), gp.empty((rows, side))) for _ in range(count)]

    left = gp.from_numpy(np.random.default_rng(5).standard_normal((rows, side)).astype(np.float32))

    def run(sets: list[list[tuple[gp.GPUArray, gp.GPUArray]]], count: int) -> float:
        gp.synchronize()
        start = time.perf_counter()
        for phase in range(count):
            for matrix, result in sets[phase % 2]:
                gp.matmul(left, matrix, out=result)
                matrix[0] = 1.0  # written, so that it has to be copied back
        gp.synchronize()
        return (time.perf_counter() - start) / count

    free = gp.memory.MemoryPool(name="free")
    sets = [make(free, seed) for seed in (1, 2)]
    run(sets, 2)
    compute = run(sets, phases)
    expected = [result.to_numpy() for _, result in sets[0]]
    del sets
    gp.memory.trim()
    outer = gp.memory.MemoryPool(quota=quota, enable_eviction=True, name="card")
    with outer:
        pools = [gp.memory.MemoryPool(enable_eviction=True, name=name) for name in ("one", "two")]
    sets = [make(pool, seed) for pool, seed in zip(pools, (1, 2), strict=True)]
    run(sets, 4)
    before = outer.stats()
    tight = run(sets, phases)
    after = outer.stats()
    moved = (after["restored_bytes"] - before["restored_bytes"]) / phases
    for (_, result), values in zip(sets[0], expected, strict=True):
        np.testing.assert_array_equal(result.to_numpy(), values)
    # Half of the quota has to come in for each phase, and as much goes out meanwhile.
    transfer = quota * 0.5 * seconds_per_byte
    report.add(
        f"two sets of 0.75 x {quota // MIB} MiB take turns, against max(compute, transfer)",
        1 / tight,
        1 / max(compute, transfer),
        "1/s",
        0.8,
        at_least=True,
        compute_ms=compute * 1e3,
        transfer_ms=transfer * 1e3,
        phase_ms=tight * 1e3,
        restored_of_quota=moved / quota,
    )
    print(
        f"     compute {compute * 1e3:.1f} ms, transfer {transfer * 1e3:.1f} ms, phase {tight * 1e3:.1f} ms, "
        f"{moved / quota:.2f} of the quota restored per phase"
    )


def stress(report: Report, cycles: int, count: int) -> None:
    """Random work on twice the quota, graphs included, until this many evictions and restores: nothing may change."""
    pool = gp.memory.MemoryPool(quota=count * 2 * MIB, enable_eviction=True, name="stress")
    chance = random.Random(11)
    streams = [gp.Stream() for _ in range(3)]
    with pool:
        arrays = [gp.full(MIB - 17, i, "int32") for i in range(count)]
        model = list(range(count))
        graphs = []
        for i in range(0, count, 4):
            graph = gp.CudaGraph()
            with graph.capture():
                arrays[i] += 3
                arrays[i] -= 1
            graphs.append((i, graph))
    # Graphs keep raw addresses: a segment that came back elsewhere would show in what they write.
    start = time.perf_counter()
    wrong = 0
    while pool.stats()["evictions"] + pool.stats()["restores"] < 2 * cycles:
        i = chance.randrange(count)
        what = chance.randrange(10)
        stream = streams[i % 3]
        with stream:
            if what < 5:
                arrays[i] += 1
                model[i] += 1
            elif what < 7 and i % 4 == 0:
                graphs[i // 4][1].replay()
                model[i] += 2
            elif what == 7:
                arrays[i].evict()
            elif what == 8:
                arrays[i].prefetch()
            else:
                found = arrays[i].to_numpy()
                wrong += int((found != model[i]).sum())
    for array, value in zip(arrays, model, strict=True):
        wrong += int((array.to_numpy() != value).sum())
    seconds = time.perf_counter() - start
    stats = pool.stats()
    moves = stats["evictions"] + stats["restores"]
    print(f"     {moves} moves in {seconds:.1f} s, {stats['evictions_without_copy']} without a copy")
    report.add(f"{cycles} evictions and restores under random work: wrong elements", wrong + 1, 1, "", 1.0, moves=moves)


def overhead(report: Report, rounds: int) -> None:
    """One launch with three arrays, from a pool that evicts and from one that does not, without pressure."""
    kernel = gp.jit('extern "C" __global__ void nothing(float* a, float* b, float* c) {}')

    def calls(pool: gp.memory.MemoryPool) -> Callable[[], None]:
        with pool:
            a, b, c = (gp.zeros(1024) for _ in range(3))

        def burst() -> None:
            for _ in range(256):
                kernel(a, b, c, grid=1, block=32)
            gp.synchronize()

        return burst

    plain, moving = calls(gp.memory.MemoryPool()), calls(gp.memory.MemoryPool(enable_eviction=True))
    without, with_ = alternate(rounds, plain, moving)
    each = (with_ - without) / 256 / 3 * 1e9
    report.add("evictable arrays without pressure: ns per argument", max(each, 0.0), 50.0, "ns", 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measurement (default: 9)")
    parser.add_argument("--small", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--cycles", type=int, default=10_000, help="evictions and restores of the stress run")
    parser.add_argument(
        "--parts", nargs="+", default=["rates", "overflow", "sets", "stress", "overhead"], help="what to measure"
    )
    parser.add_argument("--rows", type=int, default=256, help="rows of the left matrix of the working sets")
    args = parser.parse_args()
    report = Report()
    small = args.small
    cost = 2e-11
    if "rates" in args.parts:
        cost = rates(report, 16 * MIB if small else GIB, 4, 2 if small else args.rounds)
    if "overflow" in args.parts:
        overflow(report, 16 * MIB if small else GIB, 2 if small else args.rounds)
    if "sets" in args.parts:
        sizes = (64 * MIB, 1024, 16, 4) if small else (16 * GIB, 8192, args.rows, 6)
        working_sets(report, *sizes, seconds_per_byte=cost)
    if "stress" in args.parts:
        stress(report, 100 if small else args.cycles, 16 if small else 64)
    if "overhead" in args.parts:
        overhead(report, 3 if small else 101)
    return report.finish(args.json, f"python benchmarks/memory/eviction.py --rounds {args.rounds}")


if __name__ == "__main__":
    sys.exit(main())
