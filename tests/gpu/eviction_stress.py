"""Run the random programs of the eviction model from a fixed seed, for compute-sanitizer and for long runs.

    python3 tests/gpu/eviction_stress.py [--seed S] [--steps N] [--programs P] [--seconds T] [--threads K]

The arena stays on: eviction needs it. The last line is a checksum of everything read, the same on every device.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import threading
import time
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from eviction_model import Pools, Program, run  # noqa: E402

import pygpukit as gp  # noqa: E402


def in_threads(seed: int, steps: int, count: int) -> list[BaseException]:
    """Programs of their own seeds in threads that share pools; what they raised."""
    pools, device = Pools.make(), gp.current_device().kind
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with gp.device(device):
                Program(1000 * seed + number, pools).run(steps)
        except BaseException as error:
            error.add_note(
                f"in thread {number} of {count}; repeat it with: --seed {seed} --steps {steps} --threads {count}"
            )
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gp.synchronize()
    if not errors:
        pools.check_empty()
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first program (default: 1)")
    parser.add_argument("--steps", type=int, default=300, help="steps of each program (default: 300)")
    parser.add_argument("--programs", type=int, default=1, help="programs to run, each with the next seed (default: 1)")
    parser.add_argument("--seconds", type=float, help="start new programs until this time is over")
    parser.add_argument("--threads", type=int, default=1, help="threads that share their pools (default: 1)")
    args = parser.parse_args()
    if os.environ.get("PYGPUKIT_POOL") == "none":
        parser.error("PYGPUKIT_POOL=none takes away the arena, without which nothing can be evicted")
    start, checksum, done, refused = time.perf_counter(), 0, 0, 0
    for seed in itertools.count(args.seed):
        over = done >= args.programs if args.seconds is None else time.perf_counter() - start >= args.seconds
        if over and done:
            break
        if args.threads > 1:
            for error in in_threads(seed, args.steps, args.threads):
                raise error
        else:
            program = run(seed, args.steps)
            checksum = zlib.crc32(program.checksum.to_bytes(4, "little"), checksum)
            refused += program.refused
        done += 1
    moved = gp.memory.stats()
    print(
        f"{done} programs of {args.steps} steps on {gp.current_device().kind}: {moved['evictions']} evictions, "
        f"{moved['restores']} restores, {refused} refusals, checksum {checksum:08x}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
