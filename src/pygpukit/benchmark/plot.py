"""The roofline of a run as a picture."""

from __future__ import annotations

from pathlib import Path

from pygpukit.benchmark.results import Run
from pygpukit.errors import MissingPackageError


def draw(run: Run, path: Path) -> None:
    """Draw operations per second over operations per byte, under the measured ceilings.

    Raises
    ------
    MissingPackageError
        If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(f'matplotlib draws {path.name} ({error}): run pip install "pygpukit[plot]"') from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="operations per byte", ylabel="operations per second")
    rows = [row for row in run.rows if row.ours and row.flops and row.nbytes]
    if not rows:
        axes.text(0.5, 0.5, "no row of this run counts operations", transform=axes.transAxes, ha="center")
    intensities = [row.flops / row.nbytes for row in rows] or [1.0]
    low, high = min(intensities) / 4, max(intensities) * 4
    for name, peak in run.ceilings.items():
        if name in ("copy", "read"):
            continue
        knee = peak / run.ceilings["read"]
        axes.plot([low, max(low, knee), max(high, knee)], [run.ceilings["read"] * low, peak, peak], label=name)
    for section in sorted({row.section for row in rows}):
        these = [row for row in rows if row.section == section]
        axes.scatter(
            [row.flops / row.nbytes for row in these], [row.flops / row.seconds for row in these], s=18, label=section
        )
    axes.set_title(f"{run.machine['device']}, pygpukit {run.machine['pygpukit']}")
    if rows:
        axes.legend(fontsize=8)
    figure.savefig(path)
