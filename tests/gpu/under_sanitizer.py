"""Run the CUDA tests under compute-sanitizer, every array an allocation of its own.

    python3 tests/gpu/under_sanitizer.py [--shards N] [--timeout SECONDS] [pytest arguments]

Each shard has a sanitizer of its own: one sanitizer over many processes can lock up. Left out are tests that fault on
purpose, tests of the pool (which is off here), tests that need kernels beside each other (the sanitizer runs them one
by one), tests that compile in child processes (very slow here), and one test over 2 GiB arrays.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SRC = HERE.parents[1] / "src"
SELECT = ["-m", "cuda and not pool and not concurrent", "-p", "no:cacheprovider", "-W", "ignore", "-q"]
LEFT_OUT = ["test_faults.py", "test_bundle.py"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--timeout", type=int, default=600, help="seconds for each shard")
    args, rest = parser.parse_known_args()
    pytest = [sys.executable, "-m", "pytest", *SELECT]
    ignore = [f"--ignore={HERE / name}" for name in LEFT_OUT]
    environment = os.environ | {"PYGPUKIT_POOL": "none", "PYTHONPATH": str(SRC)}
    listing = subprocess.run(
        [*pytest, "--collect-only", *ignore, *rest, str(HERE)], env=environment, stdout=subprocess.PIPE, text=True
    )
    names = [line for line in listing.stdout.splitlines() if "::" in line and "32_bits" not in line]
    if not names:
        print(f"no CUDA tests were found\n{listing.stdout}")
        return 1
    sanitizer = ["compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "9"]
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for i in range(min(args.shards, len(names))):
            (tests := Path(folder, f"{i}.tests")).write_text("\n".join(names[i :: args.shards]) + "\n")
            with (log := Path(folder, f"{i}.log")).open("w") as out:
                command = [*sanitizer, *pytest, *rest, f"@{tests}"]
                running.append((subprocess.Popen(command, env=environment, stdout=out, stderr=out), log))
            # Sanitizers that start at the same moment have been seen to crash.
            time.sleep(0.3)
        failed = passed = 0
        for child, log in running:
            try:
                status = str(child.wait(args.timeout))
            except subprocess.TimeoutExpired:
                child.kill()
                status = f"none after {args.timeout} s"
            text = log.read_text(errors="replace")
            passed += int((re.findall(r"(\d+) passed", text) or [0])[-1])
            if status != "0" or "ERROR SUMMARY: 0 errors" not in text:
                failed += 1
                print(f"--- exit status {status}\n{text[-6000:]}")
    print(f"{passed} of {len(names)} tests passed under compute-sanitizer, {failed} of {len(running)} shards failed")
    return 1 if failed or passed != len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
