"""The scheduler's bars: shares, isolation, latency, cost, and what is charged.

python benchmarks/scheduler/harness.py --minutes 10 --json scheduler.json
python benchmarks/scheduler/harness.py --minutes 5 --rows where,share,weights,graphs,audit,lane,lending
python benchmarks/scheduler/harness.py --minutes 0.5 --rows share,where
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import latency
import shares
import upkeep
from bench import Bench
from report import Report

ROWS: dict[str, Callable[[Bench], None]] = {
    "where": shares.where,
    "share": shares.share,
    "weights": shares.weights,
    "graphs": shares.graphs,
    "audit": shares.audit,
    "isolation": latency.isolation,
    "threads": latency.threads,
    "lane": latency.lane_throughput,
    "lending": latency.lending,
    "memory": latency.memory_neighbour,
    "first": latency.first_block,
    "revoke": latency.revoke,
    "deadlines": latency.deadlines,
    "cost": upkeep.cost,
    "processor": upkeep.processor,
    "allocations": upkeep.allocations,
}

# Rows that take one window of time: run anew for each repeat, and each run has to hold.
AGAIN = {"lane", "lending", "first", "revoke", "cost", "processor"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all rows; ten give each 10 s, three times")
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
            for _ in range(bench.repeats if name in AGAIN else 1):
                ROWS[name](bench)
        except Exception:
            failed = True
            traceback.print_exc(limit=6)
        print(f"  -- {name}: {time.perf_counter() - began:.1f} s", flush=True)
    return report.finish(
        options.json, f"python benchmarks/scheduler/harness.py --minutes {options.minutes:g} --rows {options.rows}"
    ) or int(failed)


if __name__ == "__main__":
    sys.exit(main())
