"""Wall seconds that librosa takes for five minutes of audio on two CPU cores: what `gpu.py` compares with.

    OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2 python benchmarks/audio/five_minutes.py \\
        --json benchmarks/results/librosa-five-minutes.json

After a run that is not timed, so that numba has compiled what it compiles. `seconds` is the least of wall and CPU time
over the runs, so that what else the machine does makes librosa no slower.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from minute import RATE, samples

MINUTES = 5

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "hpss": lambda A, y: A.effects.hpss(y),
    "cqt": lambda A, y: A.cqt(y, sr=RATE),
    "pyin": lambda A, y: A.pyin(y, fmin=65, fmax=2093, sr=RATE),
}
"""What is timed, by librosa's names: of a module and samples."""


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    librosa, y = importlib.import_module("librosa"), np.tile(samples(), MINUTES)
    rows = []
    for name, call in CALLS.items():
        call(librosa, y)
        wall, cpu = [], []
        for _ in range(options.runs):
            start, used = time.perf_counter(), time.process_time()
            call(librosa, y)
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - used)
        rows.append({"what": name, "seconds": min(*wall, *cpu), "wall": wall, "cpu": cpu})
        print(f"{name:8} {min(*wall, *cpu):8.3f} s", flush=True)
    record = {
        "minutes": MINUTES,
        "rate": RATE,
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": {k: os.environ.get(k, "") for k in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")},
        "versions": {k: importlib.metadata.version(k) for k in ("librosa", "numpy", "scipy", "numba", "soxr")},
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python {' '.join(sys.argv)}",
        "rows": rows,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
