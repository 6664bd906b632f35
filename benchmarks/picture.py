"""Draw the picture of the README from the committed results: ``python benchmarks/picture.py``.

Standard library only. The same results give the same bytes, and a test compares them with the committed file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "figures.svg"

OURS, OTHER = "#2f6fb0", "#b8bec6"
WIDTH, COLUMN, LABEL, BAR, LINE = 960, 480, 208, 170, 22


class Bar(NamedTuple):
    """One bar of a panel: its label, value and text, and whether the value is ours."""

    label: str
    value: float
    text: str
    ours: bool


class Panel(NamedTuple):
    """Bars with one scale, a title, and where the values come from."""

    title: str
    source: str
    bars: list[Bar]


def row(file: str, what: str) -> dict[str, Any]:
    """Return the first row of a results file whose name is `what`, or fail with what there is."""
    rows = json.loads((RESULTS / file).read_text(encoding="utf-8"))["rows"]
    for found in rows:
        if found["what"].strip() == what:
            return dict(found)
    raise KeyError(f"{file} has no row {what!r}")


def panels() -> list[Panel]:
    """Return what the picture shows, read from the committed results."""
    latency, shares, ring = "h200-scheduler-latency.json", "h200-scheduler-shares.json", "h200-ring.json"
    core, host = "h200-core.json", "ring-host.json"
    isolation = []
    for length, name in ((20, "20 us"), (200, "200 us"), (2000, "2 ms")):
        what = f"guaranteed p99 beside a compute neighbour / alone, kernels of {length} us, clock-normalised"
        ratio = row(latency, what)["ratio"]
        isolation.append(Bar(f"kernels of {name}", ratio, f"{ratio:.2f} x alone", True))
    share = row(shares, "30/70 by request: share, by our charge, device busy")["share"]
    trip = row(ring, "request to reply, sync, alone, p50 (us)")
    asyncio_trip = row(ring, "request to reply, asyncio, p50 (us)")["ours"]
    peer = row(host, "round trip, coroutine, p50")["other"]
    add = row(core, "gp.add(x, y) 1,024 float32, against torch.add")
    jit = row(core, "JIT kernel, three arguments, against cupy.RawKernel")
    graph = row(core, "graph of 100 adds, replay, against torch.cuda.CUDAGraph")
    return [
        Panel("p99 of a guaranteed task beside a saturating neighbour", latency, isolation),
        Panel(
            "GPU time of two saturating tasks that ask for 30 % and 70 %",
            shares,
            [
                Bar("bandwidth=0.3", share, f"{share:.2%}", True),
                Bar("bandwidth=0.7", 1 - share, f"{1 - share:.2%}", True),
            ],
        ),
        Panel(
            "one call of an actor from Python, median",
            f"{ring}, {host}",
            [
                Bar("on the GPU, client.call", trip["p50"], f"{trip['p50']:.1f} us", True),
                Bar("on the GPU, asyncio", asyncio_trip, f"{asyncio_trip:.1f} us", True),
                Bar("PyDotCompute 0.2, on the host", peer, f"{peer:.1f} us", False),
            ],
        ),
        Panel(
            "host time of one call",
            core,
            [
                Bar("gp.add of 1,024 float32", add["ours"], f"{add['ours']:.1f} us", True),
                Bar("torch.add", add["other"], f"{add['other']:.1f} us", False),
                Bar("kernel of gp.jit", jit["ours"], f"{jit['ours']:.1f} us", True),
                Bar("cupy.RawKernel", jit["other"], f"{jit['other']:.1f} us", False),
                Bar("graph of 100 adds / 10", graph["ours"] / 10, f"{graph['ours']:.0f} us / 10", True),
                Bar("torch.cuda.CUDAGraph / 10", graph["other"] / 10, f"{graph['other']:.0f} us / 10", False),
            ],
        ),
    ]


def readme_figures() -> list[str]:
    """Return the phrases of the README that carry a figure, as the committed results have it."""
    latency, ring, core = "h200-scheduler-latency.json", "h200-ring.json", "h200-core.json"
    ratios = [
        row(latency, f"guaranteed p99 beside a compute neighbour / alone, kernels of {length} us, clock-normalised")[
            "ratio"
        ]
        for length in (20, 200, 2000)
    ]
    trip = row(ring, "request to reply, sync, alone, p50 (us)")
    word = row(ring, "request to reply, sync, alone, p50, against a word and back from Python (floor)")["other"]
    add = row(core, "gp.add(x, y) 1,024 float32, against torch.add")["ratio"]
    jit = row(core, "JIT kernel, three arguments, against cupy.RawKernel")["ratio"]
    return [
        f"{ratios[0]:.2f}, {ratios[1]:.2f} and {ratios[2]:.2f} times its p99 alone",
        f"answers a call from Python in {trip['p50']:.1f} us",
        f"on an H200 is {trip['p50']:.1f} us and the p99 {trip['p99']:.1f} us",
        f"one word to the GPU and back takes {word:.1f} us",
        f"`gp.add` takes {add:.2f} of the host time",
        f"`gp.jit` calls take {jit:.2f} of a `RawKernel` call",
    ]


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "start", weight: str = "400") -> str:
    """Return one line of text."""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def draw(found: Sequence[Panel]) -> str:
    """Return the picture: two columns of panels, filled from the top."""
    parts: list[str] = []
    bottoms = [34, 34]
    parts.append(text(12, 20, "Measured on an NVIDIA H200 and its host", 13, weight="600"))
    for number, panel in enumerate(found):
        column = number % 2
        x, y = 12 + column * COLUMN, bottoms[column] + 16
        parts.append(text(x, y, panel.title, 13, weight="600"))
        longest = max(bar.value for bar in panel.bars)
        for bar in panel.bars:
            y += LINE
            length = BAR * bar.value / longest
            parts.append(text(x + LABEL - 8, y, bar.label, 12, "end"))
            color = OURS if bar.ours else OTHER
            parts.append(f'<rect x="{x + LABEL:g}" y="{y - 12:g}" width="{length:.1f}" height="15" fill="{color}"/>')
            parts.append(text(x + LABEL + length + 6, y, bar.text, 12))
        parts.append(text(x + LABEL, y + 18, f"benchmarks/results: {panel.source}", 10))
        bottoms[column] = y + 34
    height = max(bottoms)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" fill="#1f2328">\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(panels()), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
