"""Write the tables of the docs from the committed results: ``python benchmarks/tables.py``, or ``--check`` for tests.

What stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` in a page of docs/ is replaced. NAME is an area below,
a results file without its ending, or ``slower``. An area without results is left empty. The same results give the same
text.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"


class Area(NamedTuple):
    """A heading, what is said below it, and the results files that belong there, in order."""

    heading: str
    text: str
    files: tuple[str, ...]


AREAS = {
    "host": Area(
        "Host times",
        "What a call takes until it returns, on small arrays. `a launch` is the driver's launch call alone, made "
        "from Python or from a compiled loop; a time is added for what an operator may take beside it. "
        "`h200-core.json` also has operators on 1 GiB and the import.",
        ("h200-core", "h200-library", "h200-array-host"),
    ),
    "arrays": Area(
        "Arrays",
        "Against torch unless the row says otherwise. The copy rate is that of a device copy in the same run.",
        ("h200-array-elementwise", "h200-array-reduce", "h200-array-sort", "h200-array-*"),
    ),
    "products": Area(
        "Matrix products",
        "Against torch (cuBLAS). `nt` has the weights as linear layers keep them; `rows 16 by 3584x4608` is 16 "
        "rows by weights of 3584 inputs and 4608 outputs. A chain is the products of a layer, one after the other "
        "in a graph. Routes are measured alone, also where `gp.matmul` takes another.",
        ("h200-tensor-gemm", "h200-tensor-routes"),
    ),
    "attention": Area(
        "Attention",
        "Prompts are shown as batch x heads x tokens x head size, against FlashAttention-2 and cuDNN by way of "
        "torch. Single tokens are held against the rate of reading, or against 5 us or reading at 0.8 of that "
        "rate, whichever is longer; their kernel has changed since this run.",
        ("h200-tensor-attention",),
    ),
    "rows": Area(
        "Row operators and sampling",
        "Against torch, against the rate of a device copy, or against a bound that the row names.",
        ("h200-tensor-rows",),
    ),
    "quantised": Area(
        "Quantised weights",
        "Against our own product with the decoded bfloat16 weight: a ratio below 1 is the gain. `gemv` has few "
        "rows, where reading codes saves time; `gemm` has many, where decoding costs some. A name has code, kind, "
        "type of scales, and the values that share a scale (0: a row).",
        ("h200-tensor-quant",),
    ),
    "llm": Area(
        "Language models",
        "An engine, host, sampling and detokenising included; [what the rows mean](#engines). They have no bars.",
        ("h200-llm*",),
    ),
    "audio": Area(
        "Audio",
        "Against torch, against librosa's times on processor cores, or against the rate of a device copy.",
        ("h200-audio*",),
    ),
    "memory": Area(
        "Memory",
        "Copies between host and device, and arrays that move to the host and back.",
        ("h200-transfer", "h200-eviction"),
    ),
    "scheduler": Area(
        "Scheduler",
        "Tasks that share a device, against the same alone or against a bound. [Scheduling](scheduler.md#how-well-"
        "it-holds) sums them up.",
        ("h200-scheduler-shares", "h200-scheduler-latency", "h200-scheduler-*", "h200-slicing", "h200-processes"),
    ),
    "ring": Area(
        "Device actors",
        "Messages of 64 bytes from Python, against bounds. [Device actors](ring-device.md#how-fast) sums them up.",
        ("h200-ring", "h200-ring-*"),
    ),
}

# Files of another form.
NO_ROWS = {"h200-leak"}

# Rows that are compared with a limit of the hardware, such as the copy rate, or with a number that we chose. All others
# are compared with a peer.
LIMIT = re.compile(
    r"copy rate|bytes written|device copy|cuLaunchKernelEx|compiled loop|the same \+|ml_dtypes|first operator"
    r"|against a launch|, bound|^one token|^gem[mv] \d+ by|against \d+ (us|reads?)|one way|pinned rate|the disk"
    r"|against max|pool allocate|per argument"
)
NO_PEERS = ("scheduler", "ring")
PEER = re.compile(r"cuDNN|FlashAttention|torch|cupy|librosa")

# Parameters tried one by one; the row of evictions that counts wrong elements from 1.
LEFT_OUT = re.compile(r"^sweep|, \d+ blocks per SM|, \d+ warps|, \d+ steps$|wrong elements$")

NOTE = " (stretch)"


class Line(NamedTuple):
    """A line of a table, and how many times faster the peer was: 0 where there is none."""

    cells: tuple[str, ...]
    peer_ahead: float = 0.0


class Table(NamedTuple):
    """A results file as a table, and the line below it."""

    headings: tuple[str, ...]
    lines: list[Line]
    source: str


def shown(value: float, unit: str, scale: float = 1.0) -> str:
    """Return a value with three digits and its unit, or with four."""
    value *= scale
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{3 if unit else 4}g}"
    return digits + {"": "", "yes": "", "1/s": "/s"}.get(unit, f" {unit}")


def shown_ratio(ratio: float, peer_ahead: bool) -> str:
    """Return a ratio, in bold where a peer is ahead."""
    digits = f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"
    return f"**{digits}**" if peer_ahead else digits


def unit_of(row: dict[str, Any]) -> tuple[str, float]:
    """Return the unit a row is shown in, and what its values are multiplied with."""
    if row["unit"] == "ms" and 0 < row["ours"] < 0.1:
        return "us", 1e3
    return row["unit"], 1.0


def bar(row: dict[str, Any]) -> tuple[str, float]:
    """Return the sign and bound of a row."""
    sign, _, bound = row["must"].partition(" ")
    return sign, float(bound)


def is_kept(row: dict[str, Any], names: set[str]) -> bool:
    """Does a row belong in a table? Not details, sweeps, rows without a bar, and harder bars of rows that are there."""
    what = row["what"]
    if "error" in row:
        return True
    if "ours" not in row or LEFT_OUT.search(what):
        return False
    sign, bound = bar(row)
    if math.isinf(bound) or (sign == ">=" and bound == 0) or (sign == "<=" and bound >= 1000 and row["other"] != 1.0):
        return False
    return not what.endswith(NOTE) or (what.removesuffix(NOTE) not in names and bool(PEER.search(what)))


def subject(what: str) -> str:
    """Return what a row measures, without what it is compared with."""
    return re.split(r",? against |, of the copy rate|, torch: ", what)[0]


def is_met_limit(row: dict[str, Any]) -> bool:
    """Is the row within a limit, and no comparison with a peer?"""
    return "error" not in row and bool(row["held"] and row["other"] != 1.0 and LIMIT.search(row["what"]))


def worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst of the repetitions of a row, which says so."""
    if len(rows) == 1 or "error" in rows[0]:
        return rows[0]
    pick = max if bar(rows[0])[0] == "<=" else min
    found = pick(rows, key=lambda row: float(row["ratio"]))
    return {**found, "what": f"{found['what']} (worst of {len(rows)})"}


def line(row: dict[str, Any], peers: bool) -> Line:
    """Return a row of `report.Report` as a line."""
    what = row["what"].strip().replace("|", "\\|")
    if "error" in row:
        return Line((what, "failed: " + row["error"].replace("|", "\\|"), "", "", "", "no"))
    sign, bound = bar(row)
    unit, scale = unit_of(row)
    what = what.removesuffix(f" ({unit})")
    ours = shown(row["ours"], unit, scale)
    floor = "(floor)" in what
    held = "" if floor else "yes" if row["held"] else "no"
    if row["other"] == 1.0:
        return Line((what, ours, "", "", f"{sign} {shown(bound, unit, scale)}", held))
    ahead = 0.0
    if peers and not LIMIT.search(what) and not floor and row["ratio"]:
        ahead = row["ratio"] if sign == "<=" else 1 / row["ratio"]
    other, ratio = shown(row["other"], unit, scale), shown_ratio(row["ratio"], ahead > 1)
    if "torch_us" in row:
        ahead = row["ours"] / row["torch_us"]
        other, ratio = f"{other}; torch {shown(row['torch_us'], 'us')}", f"{ratio}; {shown_ratio(ahead, ahead > 1)}"
    return Line((what, ours, other, ratio, "" if floor else f"{sign} {bound:.3g}", held), ahead)


def source(stem: str, machine: dict[str, Any]) -> str:
    """Return the line below a table."""
    commit = f"commit {machine['commit']}" if machine.get("commit") else "commit not recorded"
    command = re.sub(r" --(json|out|save) \S+", "", machine.get("command") or "")
    parts = [commit, machine.get("date") or "date not recorded", f"`{command}`" if command else "command not recorded"]
    parts += [f"{name} {machine[name]}" for name in ("torch", "cupy") if machine.get(name)]
    return f"`{stem}.json`: {', '.join(parts)}."


def read(stem: str) -> Table | None:
    """Return a results file as a table; None if it has nothing to show."""
    path = RESULTS / f"{stem}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if "schema" in content:
        return read_bench(path)
    groups: dict[str, list[dict[str, Any]]] = {}
    names = {row["what"] for row in content["rows"]}
    for row in content["rows"]:
        if is_kept(row, names):
            groups.setdefault(row["what"], []).append(row)
    peers = area_of(stem) not in NO_PEERS
    found = [worst(rows) for rows in groups.values()]
    if not found:
        return None
    # Where a peer is there too, a limit that was met adds a line and says little.
    beside_peers = {subject(row["what"]) for row in found if "error" not in row and not LIMIT.search(row["what"])}
    lines = [line(row, peers) for row in found if not (is_met_limit(row) and subject(row["what"]) in beside_peers)]
    bars = [bool(row["held"]) for row in found if "(floor)" not in row["what"]]
    headings = ("what", "ours", "peer or ceiling", "ratio", "bar", "held")
    return Table(headings, lines, f"{source(stem, content['environment'])} {sum(bars)} of {len(bars)} bars held.")


def read_bench(path: Path) -> Table:
    """Return what ``pygpukit bench --save`` wrote as a table. It has no bars."""
    from pygpukit.benchmark import results

    run = results.Run.load(path)
    lines = []
    for row in run.rows:
        name, seconds, _, rate, share, _, _, _ = results.cells(row, run.ceilings)
        if row.failure:
            lines.append(Line((name, f"failed: {row.failure}", "", "", "", "")))
            continue
        ratio = row.seconds / statistics.median(row.peer) if row.peer else 0.0
        beside = results.shown_time(statistics.median(row.peer)) if row.peer else ""
        # Rows of requests have a part of the engine or another way of it beside them.
        ahead = ratio if row.section != "llm" or "layer products" in name else 0.0
        cells = (name, seconds, rate, share, beside, shown_ratio(ratio, ahead > 1) if ratio else "")
        lines.append(Line(cells, ahead))
    headings = ("what", "ours", "rate", "of roofline", "beside", "ratio")
    return Table(headings, lines, source(path.stem, run.machine))


def stems() -> list[str]:
    """Return the results of the H200 that have rows."""
    return sorted(path.stem for path in RESULTS.glob("h200-*.json") if path.stem not in NO_ROWS)


def area_of(stem: str) -> str:
    """Return the area a results file belongs to."""
    for name, area in AREAS.items():
        if any(stem in (pattern, pattern.removesuffix("*")) for pattern in area.files):
            return name
    for name, area in AREAS.items():
        if any(fnmatch(stem, pattern) for pattern in area.files):
            return name
    raise ValueError(f"{stem}.json is in no area: add it to AREAS of benchmarks/tables.py")


def files_of(name: str) -> list[str]:
    """Return the results files of an area, in its order."""
    left = [stem for stem in stems() if area_of(stem) == name]
    found: list[str] = []
    for pattern in AREAS[name].files:
        found += [stem for stem in left if fnmatch(stem, pattern) and stem not in found]
    return found


def markdown(table: Table) -> list[str]:
    """Return a table as Markdown, with what it was measured on."""
    made = ["| " + " | ".join(table.headings) + " |", "|" + "---|" * len(table.headings)]
    made += ["| " + " | ".join(found.cells) + " |" for found in table.lines]
    return [*made, "", table.source, ""]


def slower() -> Iterator[str]:
    """Yield the rows in which a peer was more than 2 % faster."""
    yield "| what | ours | peer | the peer is |"
    yield "|---|---|---|---|"
    for name in AREAS:
        for stem in files_of(name):
            table = read(stem)
            for found in table.lines if table else ():
                if found.peer_ahead > 1.02:
                    what, ours = found.cells[:2]
                    peer = found.cells[2 if table and table.headings[2] == "peer or ceiling" else 4]
                    peer = peer.split("; ")[-1].removeprefix("torch ")
                    yield f"| {what} (`{stem}`) | {ours} | {peer} | {found.peer_ahead:.2f} times as fast |"
    yield ""


def body(name: str) -> list[str]:
    """Return what belongs between the markers of `name`."""
    if name == "slower":
        return list(slower())
    if name in AREAS:
        made = [table for stem in files_of(name) if (table := read(stem))]
        head = [f"### {AREAS[name].heading}", "", AREAS[name].text, ""] if made else []
        return head + [text for table in made for text in markdown(table)]
    if not re.fullmatch(r"h200-[a-z0-9-]+", name):
        raise ValueError(
            f"no table {name!r}: use slower, a file of benchmarks/results without .json, or {', '.join(AREAS)}"
        )
    found = read(name) if name in stems() else None
    return markdown(found) if found else []


def updated(text: str) -> str:
    """Return a page with its tables as the results have them."""
    marked = re.compile(r"(<!-- table: (\S+) -->\n)(?:(?!<!-- table:).)*?(<!-- end -->)", re.DOTALL)
    if text.count("<!-- table: ") != len(marked.findall(text)):
        raise ValueError("a table has no end: every <!-- table: NAME --> needs an <!-- end --> before the next")
    return marked.sub(lambda found: "\n".join([found[1], *body(found[2])]) + found[3], text)


def pages() -> list[Path]:
    """Return the pages with tables."""
    return [page for page in sorted(DOCS.glob("*.md")) if "<!-- table: " in page.read_text(encoding="utf-8")]


def record(path: Path, **given: str) -> None:
    """Enter a commit or a date into results that do not say theirs."""
    content = json.loads(path.read_text(encoding="utf-8"))
    machine = content["machine" if "schema" in content else "environment"]
    machine.update({key: value for key, value in given.items() if value and not machine.get(key)})
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Write the pages, or say which differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a page would change")
    parser.add_argument(
        "--record", type=Path, nargs="+", default=[], metavar="F", help="results to enter these into first:"
    )
    parser.add_argument("--commit", default="", help="where they name none")
    parser.add_argument("--date", default="", metavar="YYYY-MM-DD", help="where they have none")
    options = parser.parse_args()
    for path in options.record:
        record(path, commit=options.commit, date=options.date)
    changed = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        made = updated(text)
        if made != text:
            changed += 1
            print(
                f"{page.relative_to(ROOT)} {'differs: run python benchmarks/tables.py' if options.check else 'written'}"
            )
            if not options.check:
                page.write_text(made, encoding="utf-8")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
