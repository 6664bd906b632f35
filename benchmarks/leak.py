"""Does memory come back? Allocate and free for a long time with work in flight, then compare the driver's figures.

Arrays of random sizes are made, used and dropped on several streams, with waits between the streams, until the wanted
amount has been handed out. After a trim the device must have as much free memory as before, up to a small slack.

    python benchmarks/leak.py
    python benchmarks/leak.py --gib 64 --streams 8 --json leak.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pygpukit as gp

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIVE = 96


def churn(total: int, streams: list[gp.Stream], rng: random.Random) -> int:
    """Hand out `total` bytes in arrays of random sizes, dropped in random order; return how many arrays that were."""
    live: list[tuple[gp.Stream, gp.GPUArray]] = []
    made = 0
    while total > 0:
        stream = rng.choice(streams)
        # As many small arrays as large ones, from 1 KiB to 64 MiB.
        size = int(2 ** rng.uniform(10, 26)) // 4
        with stream:
            x = gp.empty(size).fill(1.0)
            y = x * 0.5
            gp.add(x, y, out=x)
            if live and rng.random() < 0.3:
                # An array of another stream: its memory must wait for this stream too.
                theirs, other = rng.choice(live)
                stream.wait(theirs)
                gp.mul(other, 0.5, out=other)
                theirs.wait(stream)
            if rng.random() < 0.1:
                gp.sum(x)
        live.append((stream, x))
        made += 2
        total -= 2 * x.nbytes
        while len(live) > LIVE or (live and rng.random() < 0.45):
            live.pop(rng.randrange(len(live)))
    return made


def settled(device: gp.Device) -> int:
    """Free bytes of the device with nothing running and nothing cached."""
    gp.synchronize()
    gp.memory.trim()
    return device.memory_info()[0]


def main() -> int:
    """Run it; the exit code is 0 when the memory came back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=16, help="how much to hand out (default 16)")
    parser.add_argument("--streams", type=int, default=4, help="on how many streams (default 4)")
    parser.add_argument("--slack-mib", type=float, default=4, help="most that may be missing at the end (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes and the order (default 0)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()

    device = gp.current_device()
    rng = random.Random(args.seed)
    streams = [gp.Stream() for _ in range(args.streams)]
    # Kernels, events and the driver's own pools are made once and stay: they are no leak.
    churn(GIB // 2, streams, rng)
    before = settled(device)
    pool = gp.memory.get_default_pool()
    start_stats = pool.stats()
    start = time.perf_counter()
    arrays = churn(int(args.gib * GIB), streams, rng)
    gp.synchronize()
    seconds = time.perf_counter() - start
    cached = pool.cached
    held = before - device.memory_info()[0]
    after = settled(device)
    stats = pool.stats()
    allocations = stats["allocations"] - start_stats["allocations"]
    figures: dict[str, Any] = {
        "device": device.name,
        "handed_out_gib": args.gib,
        "arrays": arrays,
        "allocations": allocations,
        "driver_allocations": stats["misses"] - start_stats["misses"],
        "seconds": round(seconds, 3),
        "peak_mib": round(stats["peak"] / MIB, 1),
        "cached_before_trim_mib": round(cached / MIB, 1),
        "taken_before_trim_mib": round(held / MIB, 1),
        "free_before_mib": round(before / MIB, 1),
        "free_after_mib": round(after / MIB, 1),
        "missing_mib": round((before - after) / MIB, 3),
        "live_after": stats["live"] - start_stats["live"],
        "used_after": stats["used"] - start_stats["used"],
    }
    for name, value in figures.items():
        print(f"{name:24} {value}")
    failures = []
    if before - after > args.slack_mib * MIB:
        failures.append(f"{(before - after) / MIB:.1f} MiB did not come back")
    if figures["live_after"] or figures["used_after"]:
        failures.append(f"the pool still counts {figures['live_after']} blocks, {figures['used_after']} bytes")
    if stats["cached"] > start_stats["cached"]:
        failures.append(f"the pool still holds {stats['cached'] / KIB:.0f} KiB")
    print("\n".join(["LEAK: " + text for text in failures]) if failures else "everything came back")
    if args.json:
        command = f"python benchmarks/leak.py --gib {args.gib:g}"
        args.json.write_text(json.dumps({"command": command, **figures}, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
