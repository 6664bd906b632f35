"""A tenant with a guarantee beside one that takes whatever is left, and what each of them got.

python examples/scheduler_tenants.py
python examples/scheduler_tenants.py --seconds 10 --share 0.5 --memory 4GiB --size 8000000
"""

from __future__ import annotations

import argparse
import time

import pygpukit as gp
from pygpukit.config import parse_size
from pygpukit.scheduler import Scheduler, Task


def requests(seconds: float, pause: float, size: int) -> list[float]:
    """Serve a small request now and then; returns how long each took."""
    x = gp.ones(size)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        y = gp.tanh(x)
        for _ in range(4):
            y = gp.tanh(y)
        gp.sum(y).item()
        times.append(time.perf_counter() - began)
        time.sleep(pause)
    return times


def hog(seconds: float, size: int) -> int:
    """Use the device, and as much memory as there is; returns how many arrays it had at most."""
    kept: list[gp.GPUArray] = []
    most = 0
    x = gp.ones(size)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        x = gp.tanh(x)
        try:
            kept.append(x.copy())
        except MemoryError:
            kept.clear()
        most = max(most, len(kept))
    return most


def describe(task: Task[object]) -> str:
    row = task.stats()
    return (
        f"{row['name']:<10} {row['policy']:<10} {row['mode']:<10} {row['sm_count']:>4} {row['gpu_seconds']:>9.3f} s "
        f"{row['throttled_seconds']:>9.3f} s {row['memory_peak'] / 2**20:>9.1f} MiB {row['evictions']:>9}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long both run (default: 2)")
    parser.add_argument("--share", type=float, default=0.5, help="compute guaranteed to the first (default: 0.5)")
    parser.add_argument("--memory", default="64MiB", help="memory the scheduler gives out (default: 64MiB)")
    parser.add_argument("--size", type=int, default=100_000, help="elements of the hog's arrays (default: 100000)")
    args = parser.parse_args()

    with Scheduler(total_memory=args.memory) as scheduler:
        capacity = scheduler.status()["capacity"]
        print(f"{scheduler.device.name}: {capacity['sms']} SMs, shared by {capacity['mechanism']}\n")
        critical = scheduler.submit(
            requests,
            args=(args.seconds, 0.005, 10_000),
            name="requests",
            policy="guaranteed",
            bandwidth=args.share,
            memory=parse_size(args.memory) // 4,
        )
        # Above its limit its arrays move to the host, one at a time.
        neighbour = scheduler.submit(
            hog, args=(args.seconds, args.size), name="hog", memory_limit=parse_size(args.memory) // 2
        )
        late = scheduler.submit(requests, name="late", policy="guaranteed", memory=args.memory, on_full="reject")
        print(f"late: {late.decision}, {late.reason}\n")
        times = sorted(critical.result())
        neighbour.result()

        head = f"{'task':<10} {'class':<10} {'mode':<10} {'SMs':>4}"
        print(f"{head} {'device':>11} {'waited':>11} {'memory':>13} {'evicted':>9}")
        print(describe(critical))
        print(describe(neighbour))
        median, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"\n{len(times)} requests: median {median * 1e3:.2f} ms, 99 % within {p99 * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
