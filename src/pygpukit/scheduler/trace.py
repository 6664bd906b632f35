"""Traces for Perfetto and Chrome: lanes as rows, the turns of tasks on them, and each task's share over time."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pygpukit.scheduler.scheduler import Scheduler
    from pygpukit.scheduler.task import Task

__all__ = ["Trace"]

# A lane keeps 100,000 turns until they are fetched: hundreds of times what happens in this time.
_FETCH_SECONDS = 0.05

# What tasks have said of themselves and is not fetched yet; older spans are dropped.
_MOST_SPANS = 100_000

# Width of the intervals that shares are told for.
_SHARE_SECONDS = 0.01

# Turns that overlap on one lane are drawn below each other; so far apart are the numbers of these rows.
_ROW_STEP = 1000

# Rows of tasks, for what they say of themselves, come after all lanes.
_FIRST_TASK_ROW = 1_000_000

_Row = tuple[str, int, int, float, float, int, float, float]
_Event = dict[str, Any]


class Trace:
    """A recording of a scheduler's turns; made by `Scheduler.trace`.

    The file is written while the trace is open, in the JSON array format of trace events, which can be read even if the
    program ends before the trace is closed.

    Attributes
    ----------
    path : Path
        The file.

    Examples
    --------
    >>> import tempfile, pygpukit.scheduler
    >>> scheduler = pygpukit.scheduler.Scheduler()
    >>> with tempfile.TemporaryDirectory() as folder, scheduler.trace(folder + "/trace.json") as trace:
    ...     scheduler.submit(lambda: gp.sum(gp.ones(1000)).item()).result()
    1000.0
    """

    def __init__(self, scheduler: Scheduler, path: str | Path) -> None:
        self.path = Path(path)
        self._scheduler = scheduler
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: TextIO | None = None
        self._problem: OSError | None = None
        self._spans: deque[_Event] = deque(maxlen=_MOST_SPANS)

    def __repr__(self) -> str:
        return f"<Trace '{self.path}' {'open' if self._thread is not None else 'closed'}>"

    def start(self) -> Trace:
        """Open the file and begin to record.

        Raises
        ------
        OSError
            If the file cannot be written.
        RuntimeError
            If the scheduler is being traced already.
        """
        scheduler = self._scheduler
        with scheduler._tracing:
            if scheduler._trace is not None:
                raise RuntimeError(f"a trace is being written to {scheduler._trace.path} already: stop it first")
            core = scheduler._core
            self._events = TraceEvents(int(core.capacity()["sms"]), core.now())
            # Of the two clocks.
            self._apart = core.now() - time.perf_counter()
            with ExitStack() as undo:
                file = undo.enter_context(self.path.open("w", encoding="utf-8"))
                file.write("[\n" + json.dumps(self._events.head(scheduler.device.name)))
                file.flush()
                undo.pop_all()
            self._file, self._problem = file, None
            self._stopped.clear()
            scheduler._trace = self
        core.set_trace(True)
        self._thread = threading.Thread(target=self._fetch_all, name="pygpukit-trace", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the recording and the file. Does nothing when it is not open.

        Raises
        ------
        OSError
            If the file could not be written to its end; what it holds can be read.
        """
        thread, self._thread = self._thread, None
        if thread is None or self._file is None:
            return
        self._stopped.set()
        thread.join()
        core = self._scheduler._core
        self._write(self._events.of(core.take_trace()))
        self._write(self._take_spans())
        core.set_trace(False)
        self._write(self._events.shares())
        try:
            if self._problem is None:
                self._file.write("\n]\n")
            self._file.close()
        except OSError as error:
            self._problem = self._problem or error
        with self._scheduler._tracing:
            self._scheduler._trace = None
        if self._problem is not None:
            raise OSError(f"the trace {self.path} is not whole: {self._problem}") from self._problem

    def __enter__(self) -> Trace:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def add_span(
        self, task: Task[Any], name: str, times: tuple[float, float], key: str | None, args: Mapping[str, Any]
    ) -> None:
        """Note what a task says that it did; see `Task.span`."""
        begun, ended = times
        self._spans += self._events.spans(
            task.id, name, (begun + self._apart, ended + self._apart), key, {"task": task.name, **args}
        )

    def _take_spans(self) -> Iterator[_Event]:
        while self._spans:
            span = self._spans.popleft()
            yield from self._events.row_of(span)
            yield span

    def _fetch_all(self) -> None:
        while not self._stopped.wait(_FETCH_SECONDS):
            self._write(self._events.of(self._scheduler._core.take_trace()))
            self._write(self._take_spans())

    def _write(self, events: Iterable[_Event]) -> None:
        # After an error the rest is dropped: the recorded program must not stumble over its observer.
        assert self._file is not None
        lines = [json.dumps(event, separators=(",", ":")) for event in events]
        if not lines or self._problem is not None:
            return
        try:
            self._file.write("".join(",\n" + line for line in lines))
            self._file.flush()
        except OSError as error:
            self._problem = error


class TraceEvents:
    """Makes trace events of turns.

    Parameters
    ----------
    sms : int
        How many SMs the device has.
    began : float
        Time that is 0 in the trace.
    """

    def __init__(self, sms: int, began: float) -> None:
        self._began = began
        self._sms = max(1, sms)
        self._pid = os.getpid()
        # When the last turn of each row of a lane ended.
        self._ends: dict[int, list[float]] = {}
        self._shares: dict[str, dict[int, float]] = {}
        self._rows: set[int] = set()

    def head(self, device: str) -> _Event:
        """What comes before all turns."""
        return self._meta("process_name", 0, {"name": device})

    def of(self, rows: Iterable[_Row]) -> Iterator[_Event]:
        """The turns, in the order in which they began."""
        for task, lane, sms, start, seconds, submissions, begun, ended in rows:
            start = max(0.0, start - self._began)
            row, is_new = self._place(lane, start, start + seconds)
            tid = lane + _ROW_STEP * row
            if is_new:
                yield self._meta("thread_name", tid, {"name": f"lane {lane} ({sms} SMs)" + f" +{row}" * (row > 0)})
                yield self._meta("thread_sort_index", tid, {"sort_index": lane * _ROW_STEP + row})
            share = sms / self._sms
            self._count(task, start, seconds, share)
            yield {
                "ph": "X",
                "cat": "turn",
                "name": task,
                "pid": self._pid,
                "tid": tid,
                "ts": _microseconds(start),
                "dur": _microseconds(seconds),
                "args": {
                    "submissions": submissions,
                    "sms": sms,
                    "share": round(share, 4),
                    "submitted_us": _microseconds(ended - begun),
                    "queued_us": _microseconds(max(0.0, start + self._began - begun)),
                },
            }

    def spans(
        self, number: int, name: str, times: tuple[float, float], key: str | None, args: dict[str, Any]
    ) -> list[_Event]:
        """What a task did, in a row of its own, or in one of its key."""
        begun, ended = (_microseconds(max(0.0, at - self._began)) for at in times)
        event = {"cat": "task", "name": name, "pid": self._pid, "tid": _FIRST_TASK_ROW + number, "args": args}
        if key is None:
            return [{"ph": "X", "ts": begun, "dur": round(ended - begun, 3), **event}]
        own = {**event, "cat": args["task"], "id": f"{number}.{key}"}
        return [{"ph": "b", "ts": begun, **own}, {"ph": "e", "ts": ended, **own}]

    def row_of(self, span: _Event) -> Iterator[_Event]:
        """The name of a span's row, before the first one in it."""
        if span["tid"] not in self._rows:
            self._rows.add(span["tid"])
            yield self._meta("thread_name", span["tid"], {"name": f"task {span['args']['task']}"})
            yield self._meta("thread_sort_index", span["tid"], {"sort_index": span["tid"]})

    def _place(self, lane: int, start: float, end: float) -> tuple[int, bool]:
        """The first row of a lane where nothing else is drawn, and whether it is a new one."""
        ends = self._ends.setdefault(lane, [])
        for row, last in enumerate(ends):
            # Times are told in nanoseconds; rounding must not open another row.
            if last <= start + 1e-6:
                ends[row] = end
                return row, False
        ends.append(end)
        return len(ends) - 1, True

    def _count(self, task: str, start: float, seconds: float, share: float) -> None:
        counted = self._shares.setdefault(task, defaultdict(float))
        end = start + seconds
        for interval in range(int(start / _SHARE_SECONDS), int(end / _SHARE_SECONDS) + 1):
            begin = interval * _SHARE_SECONDS
            inside = min(end, begin + _SHARE_SECONDS) - max(start, begin)
            counted[interval] += share * max(0.0, inside) / _SHARE_SECONDS

    def shares(self) -> Iterator[_Event]:
        """The share of each task, whenever it changed."""
        for task, counted in sorted(self._shares.items()):
            shown = 0.0
            for interval in sorted({first for used in counted for first in (used, used + 1)}):
                value = round(counted.get(interval, 0.0), 4)
                if value != shown:
                    shown = value
                    yield {
                        "ph": "C",
                        "name": f"share of {task}",
                        "pid": self._pid,
                        "ts": _microseconds(interval * _SHARE_SECONDS),
                        "args": {"share": value},
                    }

    def _meta(self, name: str, tid: int, args: dict[str, Any]) -> _Event:
        return {"ph": "M", "name": name, "pid": self._pid, "tid": tid, "args": args}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
