"""Tables of what schedulers and rings say: the device, partitions, running and waiting tasks; actors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pygpukit.cli.columns import Column, fitted
from pygpukit.config import format_size
from pygpukit.core.saved import text as printable

__all__ = ["Rates", "actors", "board", "console", "header", "partitions", "running", "waiting"]

_BAR_WIDTH = 16
# Wide enough for every column where nobody looks at a terminal.
_FILE_WIDTH = 160
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
        Columns of the terminal; on narrow ones some columns of tables are left out.
    """
    parts: list[RenderableType] = [header(status), partitions(status, width), running(status, live, width)]
    if any(task.get("state") in _WAITING for task in status["tasks"]):
        parts.append(waiting(status, width))
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


_PARTITIONS = [
    Column("partition", lambda row: Text(_word(row.get("name")), "bold"), False, is_name=True),
    Column("", lambda row: row["of"], False),
    Column("used", lambda row: row["used"]),
    Column("promised", lambda row: row["promised"]),
    Column("guaranteed", lambda row: row["guaranteed"], rank=1),
    Column("limit", lambda row: row["limit"], rank=2),
    Column("tasks", lambda row: row["tasks"]),
    Column("waiting", lambda row: row["waiting"]),
]


def partitions(status: _Status, width: int = _FILE_WIDTH) -> Table:
    """Memory and compute of each partition: used, promised to tasks, guaranteed to it, and its limit."""
    rows: list[_Status] = []
    for row in status["partitions"]:
        limit = row.get("compute_limit")
        rows += [
            {
                "name": row.get("name"),
                "of": "memory",
                "used": _size(row.get("memory_in_use")),
                "promised": _size(row.get("memory_reserved")),
                "guaranteed": _size(row.get("memory_capacity")),
                "limit": _size(row.get("memory_limit"), "-"),
                "tasks": _whole(row.get("tasks")),
                "waiting": _whole(row.get("waiting")),
            },
            {
                "name": "",
                "of": "compute",
                "used": _percent(row.get("compute_used")),
                "promised": _percent(row.get("compute_promised")),
                "guaranteed": _percent(row.get("compute")),
                "limit": "-" if limit is None else _percent(limit),
                "tasks": "",
                "waiting": "",
            },
        ]
    return fitted("partitions", _PARTITIONS, rows, width)


# Ranks: what says who a task is and what it gets stays longest.
_RUNNING = [
    Column("id", lambda task: _whole(task.get("id")), False, 1),
    Column("task", lambda task: Text(_word(task.get("name"))), False, is_name=True),
    Column("policy", lambda task: _word(task.get("policy") or "-"), False, 2),
    Column("partition", lambda task: Text(_word(task.get("partition") or "-")), False, 5, is_name=True),
    Column("lane", lambda task: _whole(task.get("lane")), rank=7),
    Column("SMs", lambda task: _whole(task.get("sm_count"))),
    Column("share", lambda task: _percent(task.get("share"))),
    Column("GPU s", lambda task: f"{_number(task.get('gpu_seconds')):.2f}"),
    Column("memory", lambda task: _size(task.get("memory"), "-")),
    Column("peak", lambda task: _size(task.get("memory_peak"), "-"), rank=6),
    Column("waited", lambda task: f"{_number(task.get('throttled_seconds')):.2f} s", rank=4),
    Column("times", lambda task: _whole(task.get("throttled")), rank=8),
    Column("last wait", lambda task: _last_wait(task.get("throttle_log")), rank=3),
]
_BAR_COLUMN = Column("", lambda task: _bar(task.get("share")), False, 4)
_HOLDER = Column("lane held by", lambda task: Text(_word(task.get("lane_holder") or "-")), False, 9, is_name=True)


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
    columns = [*_RUNNING[:7], _BAR_COLUMN, *_RUNNING[7:], _HOLDER] if live else _RUNNING
    return fitted("running", columns, rows, width)


def _bar(share: object) -> Bar:
    return Bar(1.0, 0.0, min(1.0, _number(share)), width=_BAR_WIDTH, color="green")


_WAITING_COLUMNS = [
    Column("place", lambda task: _place(task), False),
    Column("id", lambda task: _whole(task.get("id")), False, 3),
    Column("task", lambda task: Text(_word(task.get("name"))), False, is_name=True),
    Column("policy", lambda task: _word(task.get("policy") or "-"), False, 2),
    Column("partition", lambda task: Text(_word(task.get("partition") or "-")), False, 1, is_name=True),
    Column("because", lambda task: Text(_word(task.get("reason") or "-")), False, is_prose=True),
]


def waiting(status: _Status, width: int = _FILE_WIDTH) -> Table:
    """Tasks that wait to be admitted, in order, each with the inequality that fails, and those about to start."""
    rows = [task for task in status["tasks"] if task.get("state") in _WAITING]
    rows.sort(key=lambda task: _number(task.get("position")))
    return fitted("waiting", _WAITING_COLUMNS, rows, width)


def _place(task: _Status) -> str:
    place = task.get("position")
    return "starting" if task.get("state") == "starting" or place is None else _whole(_number(place) + 1)


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
        Columns of the terminal; on narrow ones some columns of the table are left out.
    """
    head = Text.assemble((f"process {ring.get('pid')} ({_word(ring.get('program') or 'python')})  ", "bold cyan"))
    letters = {name: count for name, count in ring["dead_letters"].items() if _number(count)}
    head.append(f"ring of {len(ring['actors'])} actors")
    if letters:
        head.append("\ndead letters: " + ", ".join(f"{_whole(n)} {_word(why)}" for why, n in letters.items()), "yellow")
    # Each rate is asked for once.
    rows = [{**actor, "rate": f"{rates.of(ring, actor):.0f}"} for actor in ring["actors"]]
    return Group(head, fitted("actors", _ACTORS, rows, width))


def _state(actor: _Status) -> Text:
    state = "STUCK" if actor.get("stuck") is True else _word(actor.get("state"))
    return Text(state, "red" if state in ("FAILED", "STUCK") else "")


def _latency(actor: _Status, name: str) -> str:
    latency = actor.get("latency")
    known = latency if isinstance(latency, dict) and _number(latency.get("count")) else {}
    return _duration(known.get(name))


_ACTORS = [
    Column("actor", lambda actor: Text(_word(actor.get("kernel_id"))), False, is_name=True),
    Column("tier", lambda actor: _word(actor.get("tier") or "-"), False, 2),
    Column("state", _state, False),
    Column("in", lambda actor: _whole(actor.get("input_depth"))),
    Column("out", lambda actor: _whole(actor.get("output_depth"))),
    Column("per s", lambda actor: _word(actor["rate"])),
    Column("p50", lambda actor: _latency(actor, "p50")),
    Column("p99", lambda actor: _latency(actor, "p99")),
    Column("processed", lambda actor: _whole(actor.get("processed")), rank=4),
    Column("failed", lambda actor: _whole(actor.get("failed")), rank=3),
    Column("restarts", lambda actor: _whole(actor.get("restarts")), rank=1),
]


def _duration(seconds: object) -> str:
    value = _finite(seconds)
    if value is None:
        return "-"
    return f"{value * 1e6:.1f} us" if value < 1e-3 else f"{value * 1e3:.1f} ms"


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
