"""What the benchmarks share: rows with a bar each, calls timed in turns, and the file of results."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pygpukit as gp


class Report:
    """Rows of (what, ours, other, ratio, bar), printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, what: str, ours: float, other: float, unit: str, must: float, *, at_least: bool = False, **extra: Any
    ) -> None:
        """One comparison. `must` bounds ours / other from above, or from below with `at_least`."""
        ratio = ours / other if other else float("nan")
        held = bool(ratio >= must if at_least else ratio <= must)
        sign = ">=" if at_least else "<="
        row = {"what": what, "ours": ours, "other": other, "unit": unit, "ratio": ratio}
        self.rows.append({**row, "must": f"{sign} {must}", "held": held, **extra})
        print(
            f"{'ok  ' if held else 'MISS'} {what:62} {ours:10.3f} vs {other:10.3f} {unit:5} ratio {ratio:6.3f} "
            f"(must {sign} {must})",
            flush=True,
        )

    def fail(self, what: str, error: BaseException) -> None:
        """A row that could not be measured."""
        self.rows.append({"what": what, "error": f"{type(error).__name__}: {error}", "held": False})
        print(f"FAIL {what:62} {type(error).__name__}: {error}", flush=True)

    def finish(self, path: Path | None, command: str) -> int:
        """Write the rows with what they were measured on; 1 when one below its bar is no stretch and no floor."""
        if path is not None:
            path.write_text(json.dumps({"environment": environment(command), "rows": self.rows}, indent=1) + "\n")
        missed = [row for row in self.rows if not row["held"] and not row["what"].endswith(("(stretch)", "(floor)"))]
        print(f"{len(self.rows)} rows, {len(missed)} below their bar")
        return 1 if missed else 0


def environment(command: str) -> dict[str, Any]:
    """The machine, the versions and the command of a run."""
    device = gp.get_device_info()
    versions = {}
    for package in ("torch", "cupy-cuda13x"):
        try:
            versions[package.partition("-")[0]] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "device": device["name"],
        "driver_version": device["driver_version"],
        "python": platform.python_version(),
        **versions,
        "pygpukit": gp.__version__,
        "commit": os.environ.get("PYGPUKIT_COMMIT", ""),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
    }


def alternate(rounds: int, *calls: Callable[[], Any]) -> list[float]:
    """Median seconds of each call, taken in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for call, kept in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]
