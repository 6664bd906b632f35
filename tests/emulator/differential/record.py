"""Run every case on a device and record the bits of its results, for the emulator to be compared with.

python tests/emulator/differential/record.py --device cuda --out tests/emulator/differential/vectors.npz
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import vectors
from generate import Outcome, all_cases, batches, run

import pygpukit as gp


def record(progress: Callable[[str], None] = lambda _text: None) -> vectors.Vectors:
    """Results of all cases on the current device."""
    info = gp.get_device_info()
    names = {"name": "name", "kind": "kind", "capability": "capability", "driver": "driver_version"}
    outcome, cases, start = Outcome(), all_cases(), time.perf_counter()
    done = 0
    for batch in batches(cases):
        run(batch, outcome)
        done += len(batch)
        progress(f"{done}/{len(cases)} cases, {len(outcome.refused)} refused, {time.perf_counter() - start:.1f} s")
    digests = {case.name: case.digest for case in cases if case.name in outcome.results}
    return vectors.Vectors({key: info[name] for key, name in names.items()}, digests, outcome.results, outcome.refused)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="device to run on (default: cuda)")
    parser.add_argument("--out", type=Path, default=vectors.PATH, help="file to write (default: %(default)s)")
    options = parser.parse_args()
    with gp.device(options.device):
        recorded = record(lambda text: print(text, flush=True))
    recorded.save(options.out, all_cases())
    for name, reason in recorded.refused.items():
        print(f"refused: {name}: {reason}")
    size = options.out.stat().st_size
    print(f"{options.out}: {len(recorded.results)} cases of {recorded.device['name']}, {size} bytes")


if __name__ == "__main__":
    main()
