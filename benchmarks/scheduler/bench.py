"""What the rows share: the report, the kernels, and how long a row runs."""

from __future__ import annotations

from typing import Any

from report import Report
from workloads import Kernels

from pygpukit.scheduler import Scheduler


class Bench:
    """What rows share: the report, the kernels, and how long a row runs."""

    def __init__(self, report: Report, seconds: float, repeats: int) -> None:
        self.report = report
        self.kernels = Kernels()
        self.seconds = seconds
        self.repeats = repeats

    def scheduler(self, **options: Any) -> Scheduler:
        return Scheduler(**options)

    def note(self, what: str, **figures: Any) -> None:
        """A figure without a bar."""
        self.report.rows.append({"what": what, "held": True, **figures})
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"     {what:62} {shown}", flush=True)
