"""The picture of a recording as a file that matplotlib writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pygpukit.core.timeline import EVICTED, ON_HOST, REFUSED, RESTORED, Timeline, byte_axis, time_axis
from pygpukit.errors import MissingPackageError

__all__ = ["draw"]


def draw(timeline: Timeline, path: Path) -> None:
    """Write the picture in the format the file's name ends with.

    Raises
    ------
    MissingPackageError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            f'matplotlib draws {path.name} ({error}): run pip install "pygpukit[plot]", or write an .html'
        ) from None

    heights = [3.4] + ([1.1, max(1.0, min(3.6, 0.16 * len(timeline.rows)))] if timeline.moves else [])
    figure = Figure(figsize=(9, sum(heights) + 1.9), dpi=150, layout="constrained")
    panels: list[Any] = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0].tolist()
    factor, unit, ticks = time_axis(timeline.seconds)
    times = [time * factor for time in timeline.times]

    device = panels[0]
    floor = [0] * len(times)
    for band in timeline.bands:
        roof = [low + value for low, value in zip(floor, band.values, strict=True)]
        device.fill_between(times, floor, roof, step="post", color=band.color, alpha=0.9, linewidth=0, label=band.name)
        floor = roof
    for line in timeline.quotas:
        values = [float("nan") if value is None else value for value in line.values]
        device.step(times, values, where="post", color="white", linewidth=2.6)
        device.step(times, values, where="post", color=line.color, linewidth=1.6, linestyle="--", label=line.label)
    for number, time in enumerate(timeline.refused[:500]):
        label = "refused" if number == 0 else None
        device.axvline(time * factor, color=REFUSED, linewidth=0.9, linestyle=":", label=label)
    _bytes_on(device, int(timeline.top * 1.04) + 1, "on the device", 5)

    if timeline.moves:
        host, moved = panels[1:]
        host.fill_between(times, timeline.host, step="post", color=ON_HOST, linewidth=0, label="on the host")
        _bytes_on(host, int(max(*timeline.host, 1) * 1.08) + 1, "on the host", 4)
        if timeline.rows:
            _rows(moved, timeline, factor)
        else:
            _rates(moved, timeline, factor)

    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
        panel.grid(color="#e4e4e4", linewidth=0.7)
    panels[-1].set_xlim(0, max(timeline.seconds * factor, 1e-9))
    panels[-1].set_xticks(ticks)
    panels[-1].set_xlabel(f"time ({unit})")
    figure.suptitle(timeline.title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    device.set_title(timeline.subtitle, fontsize=9, loc="left", color="#555555")
    named = [pair for panel in panels for pair in zip(*panel.get_legend_handles_labels(), strict=True)]
    if named:
        handles, labels = zip(*named, strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=8, frameon=False)
    figure.savefig(path)


def _bytes_on(panel: Any, top: int, name: str, count: int) -> None:
    unit, unit_name, marks = byte_axis(top, count)
    panel.set_ylim(0, top)
    panel.set_yticks(marks, [f"{mark / unit:g}" for mark in marks])
    panel.set_ylabel(f"{unit_name}\n{name}", fontsize=9)


def _rows(panel: Any, timeline: Timeline, factor: float) -> None:
    for number, row in enumerate(timeline.rows):
        for wanted, color, opacity in ((False, row.color, 0.9), (True, ON_HOST, 0.55)):
            bars = [(start * factor, (end - start) * factor) for start, end, on_host in row.bars if on_host == wanted]
            panel.broken_barh(bars, (number + 0.1, 0.8), color=color, alpha=opacity, linewidth=0)
    for name, color in (("evictions", EVICTED), ("restores", RESTORED)):
        marks = [(time * factor, number) for number, row in enumerate(timeline.rows) for time in getattr(row, name)]
        if marks:
            at, rows = zip(*marks, strict=True)
            lows, highs = [row + 0.1 for row in rows], [row + 0.9 for row in rows]
            panel.vlines(at, lows, highs, color=color, linewidth=1.0, label=name)
    panel.set_ylim(len(timeline.rows), 0)
    panel.set_yticks([])
    panel.set_ylabel(f"{len(timeline.rows)} segments\nby address", fontsize=9)


def _rates(panel: Any, timeline: Timeline, factor: float) -> None:
    spans = timeline.rates
    width = (spans[0][1] - spans[0][0]) * factor / 2
    for number, name, color in ((2, "evicted", EVICTED), (3, "restored", RESTORED)):
        at = [span[0] * factor + (number - 2) * width for span in spans]
        panel.bar(at, [span[number] for span in spans], width, align="edge", color=color, linewidth=0, label=name)
    _bytes_on(panel, int(max(max(span[2:]) for span in spans) * 1.08) + 1, "moved", 3)
