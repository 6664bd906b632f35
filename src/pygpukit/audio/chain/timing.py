"""How long blocks took: counts, quantiles of the last ones, a histogram of all."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["EDGES", "Timing"]

_KEPT = 1 << 16

EDGES = np.logspace(-6, 1, 71)
"""Edges of the histogram in seconds, ten a decade; what lies beyond them is in the outer bins."""


class Timing:
    """Times of blocks.

    Parameters
    ----------
    deadline, period : float
        Seconds.
    """

    def __init__(self, deadline: float, period: float) -> None:
        self._period = period
        self.deadline = deadline
        self.blocks = self.late = self.skipped = self.gaps = 0
        self._times, self._device = np.zeros(_KEPT), np.zeros(_KEPT)
        self._answers = 0
        self._counts = np.zeros(len(EDGES) - 1, np.int64)
        self._longest = self._longest_device = 0.0
        self._ended: float | None = None

    def note(self, began: float, took: float, late: bool) -> None:
        """Count a block."""
        if self._ended is not None and began - self._ended > 2 * self._period:
            self.gaps += 1
        self._ended = began + took
        self._times[self.blocks % _KEPT] = took
        self.blocks += 1
        self.late += late
        self._longest = max(self._longest, took)
        # Searching a sorted array costs less than a histogram of one.
        bin_ = int(np.searchsorted(EDGES, took, side="right")) - 1
        self._counts[min(max(bin_, 0), len(self._counts) - 1)] += 1

    def note_device(self, nanoseconds: int) -> None:
        """Count what the actor took."""
        seconds = float(nanoseconds) * 1e-9
        self._device[self._answers % _KEPT] = seconds
        self._answers += 1
        self._longest_device = max(self._longest_device, seconds)

    def figures(self) -> dict[str, Any]:
        """Counts, quantiles and the histogram."""
        times, device = self._times[: self.blocks], self._device[: self._answers]
        p50, p99, p999 = np.percentile(times, [50, 99, 99.9]).tolist() if times.size else (0.0, 0.0, 0.0)
        return {
            "blocks": self.blocks, "late": self.late, "skipped": self.skipped, "gaps": self.gaps,
            "p50": p50, "p99": p99, "p999": p999, "max": self._longest,
            "device_p50": float(np.median(device)) if device.size else 0.0, "device_max": self._longest_device,
            "histogram": (EDGES.copy(), self._counts.copy()),
        }  # fmt: skip
