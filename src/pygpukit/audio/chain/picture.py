"""The picture of how long the blocks of a chain took."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from pygpukit.errors import MissingPackageError

__all__ = ["save_histogram"]

_IN_TIME, _LATE = "#2f6fb0", "#c44e52"


def save_histogram(path: Any, stats: dict[str, Any], title: str) -> None:
    """Draw the histogram of `Realtime.stats` to a file, with the deadline.

    Raises
    ------
    MissingPackageError
        If matplotlib is missing: ``pip install 'pygpukit[plot]'``.
    """
    name = Path(os.fspath(path)).name
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(f"matplotlib draws {name} ({error}): run pip install 'pygpukit[plot]'") from None
    edges, counts = stats["histogram"]
    deadline, used = stats["deadline"], np.flatnonzero(counts)
    figure = Figure(figsize=(8, 3.2), layout="constrained", dpi=100)
    axes = figure.subplots()
    colours = [_LATE if low >= deadline else _IN_TIME for low in edges[:-1]]
    axes.bar(1e6 * edges[:-1], counts, width=1e6 * np.diff(edges), align="edge", color=colours)
    axes.axvline(1e6 * deadline, color=_LATE, linestyle="--", label=f"deadline, {1e3 * deadline:.3f} ms")
    low, high = (edges[used[0]], edges[used[-1] + 1]) if used.size else (edges[0], edges[-1])
    axes.set(xscale="log", yscale="log" if used.size else "linear", ylabel="blocks")
    axes.set_xlabel("time of a block in microseconds")
    axes.set_xlim(0.5e6 * min(low, deadline), 2e6 * max(high, deadline))
    axes.set_ylim(bottom=0.5, top=None if used.size else 1.0)
    what = f"{stats['blocks']} blocks, {stats['late']} late"
    axes.set_title(f"{title}: {what}" if title else what, fontsize=10)
    axes.legend(loc="upper left")
    figure.savefig(os.fspath(path))
