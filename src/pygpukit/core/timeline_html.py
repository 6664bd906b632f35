"""The picture of a recording as one HTML page that needs nothing else: drawings written here as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from pygpukit.config import format_size
from pygpukit.core.timeline import EVICTED, ON_HOST, REFUSED, RESTORED, Row, Timeline, byte_axis, time_axis

__all__ = ["draw"]

_WIDTH, _LEFT, _RIGHT = 900, 78, 12
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 900px; margin: 24px auto;
  padding: 0 12px; }
h1 { font-size: 20px; margin: 0; }
p { margin: 2px 0 10px; color: #555; }
svg { width: 100%; height: auto; display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin-bottom: 6px; }
.legend span { white-space: nowrap; }
.legend i { display: inline-block; width: 14px; height: 12px; margin-right: 6px; vertical-align: -1px; }
.legend i.line { height: 0; border-top: 2px dashed; vertical-align: 4px; }
.legend i.mark { width: 3px; }
table { border-collapse: collapse; margin-top: 18px; width: 100%; }
th, td { text-align: right; padding: 3px 10px; border-bottom: 1px solid #e4e4e4; font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
"""


def draw(timeline: Timeline, path: Path) -> None:
    """Write the page."""
    title = escape(timeline.title)
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            f"<p>{escape(timeline.subtitle)}</p>",
            f'<div class="legend">{"".join(_legend(timeline))}</div>',
            *_panels(timeline),
            _table(timeline),
        ]
    )
    page = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
    path.write_text(page, encoding="ascii", errors="xmlcharrefreplace")


def _legend(timeline: Timeline) -> Iterator[str]:
    for band in timeline.bands:
        yield f'<span><i style="background:{band.color}"></i>{escape(band.name)}</span>'
    for line in timeline.quotas:
        yield f'<span><i class="line" style="border-color:{line.color}"></i>{escape(line.label)}</span>'
    if timeline.moves:
        yield f'<span><i style="background:{ON_HOST}"></i>on the host</span>'
        for name, color in (("evicted", EVICTED), ("restored", RESTORED)):
            kind = ' class="mark"' if timeline.rows else ""
            yield f'<span><i{kind} style="background:{color}"></i>{name}</span>'
    if timeline.refused:
        yield f'<span><i class="line" style="border-color:{REFUSED}"></i>refused</span>'


def _panels(timeline: Timeline) -> Iterator[str]:
    yield _Panel(timeline, 300, "on the device").device(last=not timeline.moves)
    if timeline.moves:
        yield _Panel(timeline, 100, "on the host").host()
        if timeline.rows:
            yield _Panel(timeline, max(60, min(16, 420 // len(timeline.rows)) * len(timeline.rows)), "").rows()
        else:
            yield _Panel(timeline, 110, "moved").rates()


class _Panel:
    """One of the drawings below each other, which share their times."""

    def __init__(self, timeline: Timeline, height: int, name: str) -> None:
        self.timeline, self.height, self.name = timeline, height, name
        self.factor, self.unit, self.ticks = time_axis(timeline.seconds)
        self.wide = _WIDTH - _LEFT - _RIGHT

    def x(self, seconds: float) -> str:
        share = seconds / self.timeline.seconds if self.timeline.seconds > 0 else 0.0
        return _number(_LEFT + share * self.wide)

    def y(self, value: float, top: float) -> str:
        return _number(8 + self.height * (1 - value / top))

    def device(self, last: bool) -> str:
        timeline, top = self.timeline, int(self.timeline.top * 1.04) + 1
        parts = [self.grid(top)]
        floor = [0] * len(timeline.times)
        for band in timeline.bands:
            roof = [low + value for low, value in zip(floor, band.values, strict=True)]
            about = f"{escape(band.name)}: at most {format_size(band.peak)}"
            parts.append(self.area(floor, roof, top, band.color, about))
            floor = roof
        for line in timeline.quotas:
            # White below the dashes, so that they are seen on their own color too.
            path = self.line(line.values, top)
            parts.append(f'<path d="{path}" fill="none" stroke="#fff" stroke-width="3"/>')
            parts.append(
                f'<path d="{path}" fill="none" stroke="{line.color}" stroke-width="2" stroke-dasharray="7 4">'
                f"<title>{escape(line.label)}</title></path>"
            )
        for time in timeline.refused[:500]:
            parts.append(
                f'<path d="M{self.x(time)} 8v{self.height}" stroke="{REFUSED}" stroke-dasharray="2 3">'
                f"<title>no memory for a request at {time * self.factor:.4g} {self.unit}</title></path>"
            )
        return self.frame(parts, last)

    def host(self) -> str:
        values = self.timeline.host
        top = int(max(*values, 1) * 1.08) + 1
        about = f"on the host: at most {format_size(max(values))}"
        area = self.area([0] * len(values), values, top, ON_HOST, about)
        return self.frame([self.grid(top, 4), area], False)

    def rates(self) -> str:
        spans = self.timeline.rates
        top = int(max(max(evicted, restored) for _, _, evicted, restored in spans) * 1.08) + 1
        parts = [self.grid(top, 3)]
        for start, end, evicted, restored in spans:
            middle = (start + end) / 2
            for left, right, size, color, what in (
                (start, middle, evicted, EVICTED, "evicted"),
                (middle, end, restored, RESTORED, "restored"),
            ):
                if size:
                    x, y = self.x(left), self.y(size, top)
                    width, height = float(self.x(right)) - float(x), 8 + self.height - float(y)
                    parts.append(
                        f'<rect x="{x}" y="{y}" width="{_number(width)}" height="{_number(height)}" fill="{color}">'
                        f"<title>{format_size(size)} {what}</title></rect>"
                    )
        return self.frame(parts, True)

    def rows(self) -> str:
        rows = self.timeline.rows
        each = self.height / len(rows)
        parts = [self.grid(0)]
        for number, row in enumerate(rows):
            parts += self.row(row, 8 + number * each, each)
        parts.append(_name(f"{len(rows)} segments by address", self.height))
        return self.frame(parts, True)

    def row(self, row: Row, above: float, each: float) -> Iterator[str]:
        gap = min(2.0, each / 5)
        y, height = _number(above + gap / 2), _number(each - gap)
        for start, end, on_host in row.bars:
            x = self.x(start)
            width = _number(max(float(self.x(end)) - float(x), 0.3))
            color, opacity, where = (ON_HOST, 0.55, "on the host") if on_host else (row.color, 0.9, "on the device")
            yield (
                f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{color}" fill-opacity="{opacity}">'
                f"<title>{row.address:#x} of {escape(row.pool)}, {where}</title></rect>"
            )
        for times, color in ((row.evictions, EVICTED), (row.restores, RESTORED)):
            marks = "".join(f"M{self.x(time)} {y}v{height}" for time in times)
            if marks:
                yield f'<path d="{marks}" stroke="{color}" stroke-width="1.6"/>'

    def grid(self, top: int, ticks: int = 5) -> str:
        """Lines behind the picture, numbers beside it, and the name of what is counted."""
        parts = []
        for tick in self.ticks:
            parts.append(f'<path d="M{self.x(tick / self.factor)} 8v{self.height}" stroke="#eee"/>')
        if top:
            unit, name, marks = byte_axis(top, ticks)
            for mark in marks:
                y = self.y(mark, top)
                parts.append(f'<path d="M{_LEFT} {y}h{self.wide}" stroke="#ddd"/>')
                parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{mark / unit:g}</text>')
            parts.append(_name(f"{name} {self.name}", self.height))
        return "".join(parts)

    def area(self, floor: Sequence[int], roof: Sequence[int], top: int, color: str, about: str) -> str:
        outline = "L".join([*self.corners(roof, top), *reversed(self.corners(floor, top))])
        return f'<path d="M{outline}Z" fill="{color}" fill-opacity="0.9"><title>{about}</title></path>'

    def corners(self, values: Sequence[int], top: int) -> list[str]:
        """Corners of the steps from each time to the next."""
        before = self.y(values[0], top)
        found = [f"{self.x(0.0)} {before}"]
        for time, value in zip(self.timeline.times, values, strict=True):
            y = self.y(value, top)
            if y != before:
                found += [f"{self.x(time)} {before}", f"{self.x(time)} {y}"]
                before = y
        return [*found, f"{self.x(self.timeline.seconds)} {before}"]

    def line(self, values: Sequence[int | None], top: int) -> str:
        """Steps from each time to the next, with gaps where there is no value."""
        path: list[str] = []
        at: str | None = None
        for time, value in zip(self.timeline.times, values, strict=True):
            y = None if value is None else self.y(value, top)
            if y == at:
                continue
            if at is not None:
                path.append(f"H{self.x(time)}")
            if y is not None:
                path.append(f"V{y}" if at is not None else f"M{self.x(time)} {y}")
            at = y
        if at is not None:
            path.append(f"H{self.x(self.timeline.seconds)}")
        return "".join(path)

    def frame(self, parts: list[str], last: bool) -> str:
        height = self.height + (44 if last else 18)
        parts.append(f'<path d="M{_LEFT} {8 + self.height}h{self.wide}" stroke="#888"/>')
        if last:
            for tick in self.ticks:
                x = self.x(tick / self.factor)
                parts.append(f'<text x="{x}" y="{self.height + 24}" text-anchor="middle">{tick:g}</text>')
            middle = _LEFT + self.wide / 2
            label = f"time ({self.unit})"
            parts.append(
                f'<text font-size="12" x="{middle}" y="{self.height + 40}" text-anchor="middle">{label}</text>'
            )
        font = 'font-family="system-ui, sans-serif" font-size="11" fill="#333"'
        return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" {font}>{"".join(parts)}</svg>'


def _name(text: str, height: float) -> str:
    y = _number(8 + height / 2)
    return f'<text font-size="12" text-anchor="middle" transform="translate(16 {y}) rotate(-90)">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _table(timeline: Timeline) -> str:
    recording = timeline.recording
    kinds = ("allocate", "free", "evict", "restore", "refuse")
    count = {(pool, kind): 0 for pool in recording.pools for kind in kinds}
    for event in recording.events:
        if (event.pool, event.kind) in count:
            count[event.pool, event.kind] += 1
    peak = recording.peak
    rows = [f"<tr><th>pool</th><th>peak</th>{''.join(f'<th>{kind}</th>' for kind in kinds)}</tr>"]
    for pool in sorted(recording.pools, key=lambda pool: (-peak[pool], pool))[:50]:
        cells = "".join(f"<td>{count[pool, kind]:,}</td>" for kind in kinds)
        rows.append(f"<tr><td>{escape(recording.pools[pool])}</td><td>{format_size(peak[pool])}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"
