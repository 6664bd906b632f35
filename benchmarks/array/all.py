"""Every benchmark of array operators in one process, each under a limit of time, with a file of results per family.

A row or a family that fails is printed, and the next one runs: whatever was measured is written. Where a kernel faults,
nothing works on the GPU in this process any more, so the remaining families run in a new one.

    python benchmarks/array/all.py --out /tmp/results --seconds 360
    python benchmarks/array/all.py --out /tmp/results --families host reduce --rounds 5
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# By family: the module, and the part of the time it may take. What has bars that no run has shown yet comes first.
FAMILIES: dict[str, tuple[str, float]] = {
    "host": ("host", 0.06),
    "elementwise": ("elementwise", 0.11),
    "reduce": ("reduce", 0.17),
    "index": ("index", 0.13),
    "fft": ("fft", 0.16),
    "sort": ("sort", 0.17),
    "random": ("random_numbers", 0.10),
    "fuse": ("fuse", 0.10),
}


class OutOfTimeError(BaseException):
    """A family took longer than its limit; no handler of errors of rows may keep it."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` in the block after so many seconds, as soon as Python code runs again."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(name: str, module: str, out: Path, seconds: float, rounds: int) -> str:
    """Run one family as its own command would run, and return what became of it."""
    from harness import Bench

    path = out / f"{name}.json"
    command = [f"{module}.py", "--json", str(path), "--rounds", str(rounds), "--seconds", f"{seconds * 0.8:.1f}"]
    before, sys.argv = sys.argv, command
    Bench.latest = None
    verdict = "every bar held"
    try:
        # Rows stop in time by themselves; the limit is for one that takes very long.
        with limit(seconds):
            if importlib.import_module(module).main():
                verdict = "rows below their bar, or failed"
            elif Bench.latest is not None and Bench.latest.skipped:
                verdict = f"every bar held, {len(Bench.latest.skipped)} rows skipped"
        return verdict
    except (Exception, SystemExit, OutOfTimeError) as error:
        traceback.print_exc()
        verdict = f"{type(error).__name__}: {error}"
        if Bench.latest is not None:
            Bench.latest.report.fail(f"the family {name}", error)
            Bench.latest.finish(f"python benchmarks/array/{module}.py")
        return verdict
    finally:
        sys.argv = before


def tidy() -> None:
    """Give memory back, and undo what a family set for its peer."""
    import torch
    from harness import Bench

    import pygpukit as gp

    Bench.latest = None
    torch.use_deterministic_algorithms(False)
    gc.collect()
    gp.synchronize()
    gp.memory.trim()
    torch.cuda.empty_cache()


def again(names: Sequence[str], options: argparse.Namespace, seconds: float) -> None:
    """Run the remaining families in a process of its own, in place of this one."""
    print(f"the GPU does not answer in this process any more: {', '.join(names)} in a new one", flush=True)
    os.execv(
        sys.executable,
        [sys.executable, __file__, "--out", str(options.out), "--seconds", f"{seconds:.0f}",
         "--rounds", str(options.rounds), "--families", *names],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the families; 0 when every bar held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=360, help="time for all families (default 360)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds per figure (default 9)")
    parser.add_argument("--families", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    verdicts: dict[str, str] = {}
    names = list(options.families)
    while names:
        name = names.pop(0)
        module, part = FAMILIES[name]
        left = options.seconds - (time.monotonic() - began)
        # What earlier families did not use is shared out.
        rest = part + sum(FAMILIES[n][1] for n in names)
        seconds = max(left * part / rest, 1.0)
        print(f"== {name}: at most {seconds:.0f} s", flush=True)
        start = time.monotonic()
        verdicts[name] = run(name, module, options.out, seconds, options.rounds)
        print(f"== {name}: {verdicts[name]} ({time.monotonic() - start:.0f} s)", flush=True)
        try:
            tidy()
        except Exception as error:
            print(f"== {name}: {type(error).__name__}: {error}", flush=True)
            if names:
                again(names, options, options.seconds - (time.monotonic() - began))
    for name, verdict in verdicts.items():
        print(f"{name:12} {verdict}")
    return int(any(not verdict.startswith("every bar held") for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
