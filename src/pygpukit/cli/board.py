"""Tables of what schedulers and rings say: the device, partitions, running and waiting tasks; actors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pygpukit.config import format_size
from pygpukit.core.saved import text as printable

__all__ = ["Rates", "actors", "board", "console", "header", "partitions", "running", "waiting"]

_BAR_WIDTH = 16
# Wide enough for every column where nobody looks at a terminal.
_FILE_WIDTH = 160
# A moving picture has every column where it has this much room.
_WIDE = 140
# Every column of the actors' table fits beside a name of some length.
_FITS_ACTORS = 100
# Seconds of device time without a task that are worth a row.
_WORTH_A_ROW = 0.01
# No figure is larger; what is comes from somebody who makes things up.
_LARGEST = 2**64

_Status = Mapping[str, Any]

_WAITING = ("queued", "starting")


def console() -> Console:
    """Where tables are printed: as wide as the terminal, and wide enough for all of it elsewhere."""
    return Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, highlight=False)


def board(status: _Status, live: bool = False, width: int = _FILE_WIDTH) -> RenderableType:
    """Everything that one scheduler says.

    Parameters
    ----------
    status : mapping
        `Scheduler.status`, with ``pid`` and ``program`` if it came from another process.
    live : bool
        For a picture that moves: with bars, the busiest task first.
    width : int
        Columns of the terminal; on narrow ones moving pictures leave some out.
    """
    parts: list[RenderableType] = [header(status), partitions(status), running(status, live, width)]
    if any(task.get("state") in _WAITING for task in status["tasks"]):
        parts.append(waiting(status))
    return Group(*parts)


def header(status: _Status) -> Text:
    """The device, how shares are enforced on it, and what NVML measures."""
    capacity = status["capacity"]
    parts: list[Any] = []
    if "pid" in status:
        parts.append((f"process {status['pid']} ({_word(status.get('program') or 'python')})  ", "bold cyan"))
    parts.append((_word(status["device"]), "bold"))
    parts.append(f", {_whole(capacity.get('sms'))} SMs, {_size(capacity.get('memory'))} to give")
    parts.append(f"\nenforced by {_word(capacity.get('mechanism') or 'unknown means')}")
    if capacity.get("divisible"):
        granule, most = _whole(capacity.get("granule")), _whole(capacity.get("max_lanes"))
        parts.append(f", lanes by {granule} SMs, {most} at most")
    measured = _nvml(status.get("nvml"))
    return Text.assemble(*parts, f"\nNVML: {measured}" if measured else "")


def _nvml(found: object) -> str:
    if not isinstance(found, dict):
        return ""
    shown: list[tuple[str, Callable[[float], str]]] = [
        ("gpu_utilization", lambda value: f"busy {value:.0%}"),
        ("memory_used", lambda value: f"memory {_size(value)}"),
        ("sm_clock", lambda value: f"{value / 1e6:.0f} MHz"),
        ("power", lambda value: f"{value:.0f} W"),
        ("temperature", lambda value: f"{value:.0f} C"),
    ]
    return ", ".join(write(_number(found[name])) for name, write in shown if name in found)


def partitions(status: _Status) -> Table:
    """Memory and compute of each partition: used, promised to tasks, guaranteed to it, and its limit."""
    table = _table("partitions", ["partition", ""], ["used", "promised", "guaranteed", "limit", "tasks", "waiting"])
    for row in status["partitions"]:
        table.add_row(
            Text(_word(row.get("name")), "bold"),
            "memory",
            _size(row.get("memory_in_use")),
            _size(row.get("memory_reserved")),
            _size(row.get("memory_capacity")),
            _size(row.get("memory_limit"), "-"),
            _whole(row.get("tasks")),
            _whole(row.get("waiting")),
        )
        limit = row.get("compute_limit")
        table.add_row(
            "",
            "compute",
            _percent(row.get("compute_used")),
            _percent(row.get("compute_promised")),
            _percent(row.get("compute")),
            "-" if limit is None else _percent(limit),
        )
    return table


class _Column(NamedTuple):
    title: str
    cell: Callable[[_Status], RenderableType]
    is_number: bool = True
    # Left out of moving pictures on narrow terminals.
    is_wide: bool = False
    is_live: bool = False


_COLUMNS = [
    _Column("id", lambda task: _whole(task.get("id")), is_number=False),
    _Column("task", lambda task: Text(_word(task.get("name"))), is_number=False),
    _Column("policy", lambda task: _word(task.get("policy") or "-"), is_number=False),
    _Column("partition", lambda task: _word(task.get("partition") or "-"), is_number=False, is_wide=True),
    _Column("lane", lambda task: _whole(task.get("lane")), is_wide=True),
    _Column("SMs", lambda task: _whole(task.get("sm_count"))),
    _Column("share", lambda task: _percent(task.get("share"))),
    _Column("", lambda task: _bar(task.get("share")), is_number=False, is_live=True),
    _Column("GPU s", lambda task: f"{_number(task.get('gpu_seconds')):.2f}"),
    _Column("memory", lambda task: _size(task.get("memory"), "-")),
    _Column("peak", lambda task: _size(task.get("memory_peak"), "-"), is_wide=True),
    _Column("waited", lambda task: f"{_number(task.get('throttled_seconds')):.2f} s", is_wide=True),
    _Column("times", lambda task: _whole(task.get("throttled")), is_wide=True),
    _Column("last wait", lambda task: _last_wait(task.get("throttle_log"))),
    _Column("lane held by", lambda task: Text(_word(task.get("lane_holder") or "-")), False, True, True),
]


def running(status: _Status, live: bool = False, width: int = _FILE_WIDTH) -> RenderableType:
    """Tasks that run: their SMs, what they got, and what they waited for."""
    rows = [task for task in status["tasks"] if task.get("state") == "running"]
    if live:
        rows.sort(key=lambda task: -_number(task.get("share")))
    others = status.get("unscheduled")
    if isinstance(others, dict) and _number(others.get("gpu_seconds")) >= _WORTH_A_ROW:
        rows.append({"name": "(no task)", **others})
    if not rows:
        return Text("no task runs\n", "dim")
    columns = [c for c in _COLUMNS if live or not c.is_live]
    if live and width < _WIDE:
        columns = [c for c in columns if not c.is_wide]
    table = _table("running", [], [])
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold")
    for task in rows:
        table.add_row(*(column.cell(task) for column in columns))
    return table


def _bar(share: object) -> Bar:
    return Bar(1.0, 0.0, min(1.0, _number(share)), width=_BAR_WIDTH, color="green")


def waiting(status: _Status) -> Table:
    """Tasks that wait to be admitted, in order, each with the inequality that fails, and those about to start."""
    table = _table("waiting", ["place", "id", "task", "policy", "partition", "because"], [])
    rows = [task for task in status["tasks"] if task.get("state") in _WAITING]
    for task in sorted(rows, key=lambda task: _number(task.get("position"))):
        place = task.get("position")
        table.add_row(
            "starting" if task.get("state") == "starting" or place is None else _whole(_number(place) + 1),
            _whole(task.get("id")),
            Text(_word(task.get("name"))),
            _word(task.get("policy") or "-"),
            _word(task.get("partition") or "-"),
            Text(_word(task.get("reason") or "-")),
        )
    return table


class Rates:
    """Messages a second of every actor, from one look to the next; at the first look since it was launched."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, object, str], tuple[float, float]] = {}

    def of(self, ring: _Status, actor: _Status) -> float:
        """The rate of an actor; each is asked for once a look."""
        key = ring.get("pid"), ring["ring"], _word(actor.get("kernel_id"))
        now, processed = _number(ring.get("time")), _number(actor.get("processed"))
        before, had = self._seen.get(key, (now, processed))
        self._seen[key] = now, processed
        # One that was launched again counts from zero.
        if now <= before or processed < had:
            return _number(actor.get("throughput"))
        return (processed - had) / (now - before)


def actors(ring: _Status, rates: Rates, width: int = _FILE_WIDTH) -> RenderableType:
    """A ring's actors: their states, what waits for them and for others, how many messages a second, and how long.

    Parameters
    ----------
    ring : mapping
        What `pygpukit.scheduler.publish.ask_all` gives of a ring.
    rates : Rates
        Of the looks before.
    width : int
        Columns of the terminal; on narrow ones the counts are left out.
    """
    head = Text.assemble((f"process {ring.get('pid')} ({_word(ring.get('program') or 'python')})  ", "bold cyan"))
    letters = {name: count for name, count in ring["dead_letters"].items() if _number(count)}
    head.append(f"ring of {len(ring['actors'])} actors")
    if letters:
        head.append("\ndead letters: " + ", ".join(f"{_whole(n)} {_word(why)}" for why, n in letters.items()), "yellow")
    counts = ["processed", "failed"] if width >= _FITS_ACTORS else []
    table = _table("actors", ["actor", "tier", "state"], ["in", "out", "per s", "p50", "p99", *counts, "restarts"])
    for actor in ring["actors"]:
        latency = actor.get("latency")
        known = latency if isinstance(latency, dict) and _number(latency.get("count")) else {}
        state = "STUCK" if actor.get("stuck") is True else _word(actor.get("state"))
        table.add_row(
            Text(_word(actor.get("kernel_id"))),
            _word(actor.get("tier") or "-"),
            Text(state, "red" if state in ("FAILED", "STUCK") else ""),
            _whole(actor.get("input_depth")),
            _whole(actor.get("output_depth")),
            f"{rates.of(ring, actor):.0f}",
            _duration(known.get("p50")),
            _duration(known.get("p99")),
            *(_whole(actor.get(name)) for name in counts),
            _whole(actor.get("restarts")),
        )
    return Group(head, table)


def _duration(seconds: object) -> str:
    value = _finite(seconds)
    if value is None:
        return "-"
    return f"{value * 1e6:.1f} us" if value < 1e-3 else f"{value * 1e3:.1f} ms"


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _last_wait(log: object) -> str:
    if not isinstance(log, (list, tuple)) or not log or not isinstance(log[-1], (list, tuple)) or len(log[-1]) != 3:
        return "-"
    _, seconds, why = log[-1]
    return f"{_word(why).replace('_', ' ')} {_number(seconds) * 1e3:.1f} ms"


def _word(value: object) -> str:
    return printable(str(value), "")


def _finite(value: object) -> float | None:
    """A number of an answer; None for anything else."""
    # Adding 0.0 makes a negative zero positive.
    return value + 0.0 if isinstance(value, (int, float)) and abs(value) < _LARGEST else None


def _number(value: object) -> float:
    return _finite(value) or 0.0


def _whole(value: object) -> str:
    number = _finite(value)
    return "-" if number is None else f"{number:.0f}"


def _percent(value: object) -> str:
    return f"{_number(value):.1%}"


def _size(value: object, absent: str = "0 B") -> str:
    number = _finite(value)
    return absent if number is None or number < 0 else format_size(int(number))
