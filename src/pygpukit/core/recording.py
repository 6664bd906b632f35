"""Recorded runs: what the pools of a device did with their memory, as events, a table, JSON and a picture."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device
from pygpukit.config import format_size
from pygpukit.core.saved import integer, optional, read_object, text, write_object
from pygpukit.core.snapshot import Snapshot, checked_device, parse_snapshot

__all__ = ["Event", "Recording", "record"]

KINDS = ("held", "allocate", "free", "evict", "restore", "return", "refuse", "quota", "unlimit")


class Event(NamedTuple):
    """Something that happened to memory.

    Attributes
    ----------
    time : int
        Nanoseconds since the recording began, by the host's clock.
    kind : str
        ``"held"`` (by the pool when the recording began, once on the device and once on the host), ``"allocate"``,
        ``"free"``, ``"evict"`` (memory was taken), ``"restore"`` (there is memory again, content is on its way),
        ``"return"`` (an eviction was given up), ``"refuse"`` (no memory for a request; pool 0 is the device itself),
        ``"quota"`` and ``"unlimit"`` (a pool's quota is `bytes`, or none, from now on).
    on_host : bool
        What was allocated, freed or held is on the host.
    pool : int
        Id of the pool, a key of ``recording.pools``.
    address : int
        Of the array, or of the segment that moves.
    bytes : int
        Bytes, rounded to their size class.
    used : int
        What the pool and those inside it used afterwards.
    """

    time: int
    kind: str
    on_host: bool
    pool: int
    address: int
    bytes: int
    used: int


class _Run(NamedTuple):
    device: str
    pools: dict[int, str]
    parents: dict[int, int | None]
    events: list[Event]
    nanoseconds: int
    dropped: int


class Recording:
    """What happened to a device's memory; made by `record`, complete once it is stopped.

    Examples
    --------
    >>> import pygpukit as gp
    >>> with record() as recording:
    ...     x = gp.zeros((1024, 1024))
    >>> [event.bytes for event in recording.events if event.kind == "allocate"]
    [4194304]
    """

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device.name
        self._run: _Run | None = None
        self._journal: _native.MemoryJournal | None = _native.record_memory(device, limit)

    def stop(self) -> None:
        """End the recording; a second call does nothing."""
        if self._journal is None:
            return
        journal, self._journal = self._journal, None
        rows, pools, dropped, nanoseconds = journal.stop()
        events = [Event(row[0], KINDS[row[1]], *row[2:]) for row in rows]
        names = {number: name for number, name, _ in pools}
        self._run = _Run(
            self._device, names, {number: parent for number, _, parent in pools}, events, nanoseconds, dropped
        )

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._run is None:
            return "<Recording running>"
        return f"<Recording {len(self.events)} events in {self.seconds:.3g} s>"

    @property
    def _done(self) -> _Run:
        if self._run is None:
            raise ValueError("the recording is still running: call stop() first")
        return self._run

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._done.device

    @property
    def pools(self) -> dict[int, str]:
        """Names of the pools there were, by id."""
        return self._done.pools

    @property
    def parents(self) -> dict[int, int | None]:
        """Ids of the pools around the pools, by id."""
        return self._done.parents

    @property
    def events(self) -> list[Event]:
        """What happened, in order."""
        return self._done.events

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self._done.nanoseconds / 1e9

    @property
    def dropped(self) -> int:
        """Events that came after the limit was reached; those before them are complete."""
        return self._done.dropped

    @property
    def peak(self) -> dict[int, int]:
        """Most bytes each pool and those inside it used on the device at a time, by id."""
        from pygpukit.core.timeline import Balance

        balance, parents = Balance(), self.parents
        used: Counter[int] = Counter()
        peak = dict.fromkeys(self.pools, 0)
        for event in self.events:
            change, _ = balance.apply(event)
            pool: int | None = event.pool
            while change and pool is not None:
                used[pool] += change
                peak[pool] = max(peak.get(pool, 0), used[pool])
                pool = parents.get(pool)
        return peak

    def to_json(self, path: str | Path | None = None) -> str:
        """The recording as JSON, also written to a file if one is named; `from_json` reads it."""
        run = self._done
        content = {
            "device": run.device,
            "nanoseconds": run.nanoseconds,
            "dropped": run.dropped,
            "pools": [{"id": pool, "name": run.pools[pool], "parent": run.parents[pool]} for pool in run.pools],
            "columns": Event._fields,
            "events": run.events,
        }
        return write_object(content, path)

    @classmethod
    def from_json(cls, path: str | Path) -> Recording:
        """Read a recording from the file `to_json` has written.

        Raises
        ------
        LoadError
            If the file cannot be read or is no recording.
        """
        return read_object(path, "a recording", cls._of)

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Recording:
        found = cls.__new__(cls)
        found._journal, found._run = None, _parse(content)
        return found

    def table(self, count: int = 20) -> str:
        """What each pool did, as text.

        Parameters
        ----------
        count : int
            Most pools to show, those with the largest peak.
        """
        kinds: Counter[tuple[int, str]] = Counter((event.pool, event.kind) for event in self.events)
        peak = self.peak
        lines = [f"{self.device}: {len(self.events)} events in {self.seconds:.6g} s"]
        if self.dropped:
            lines.append(f"{self.dropped} more came after its limit was reached: record(limit=...) raises it")
        columns = ("allocate", "free", "evict", "restore", "return", "refuse")
        lines += ["", f"{'pool':<24}{'peak':>12}" + "".join(f"{kind:>12}" for kind in columns)]
        shown = sorted(self.pools, key=lambda pool: (-peak[pool], pool))
        for pool in shown[:count]:
            numbers = "".join(f"{kinds[pool, kind]:>12}" for kind in columns)
            lines.append(f"{self.pools[pool]:<24}{format_size(peak[pool]):>12}{numbers}")
        if len(shown) > count:
            lines.append(f"... and {len(shown) - count} more pools")
        if kinds[0, "refuse"]:
            lines.append(f"the device itself was full {kinds[0, 'refuse']} times")
        return "\n".join(lines)

    def plot(self, path: str | Path) -> None:
        """Draw the recording: bytes of each pool over time, what is on the host, and what moved when.

        Parameters
        ----------
        path : str or Path
            ``.html`` makes a page that needs nothing else. ``.png``, ``.svg`` and what else matplotlib writes need
            ``pip install "pygpukit[plot]"``.

        Raises
        ------
        MissingPackageError
            If matplotlib is needed and not installed.
        """
        from pygpukit.core.timeline import Timeline

        path = Path(path)
        draw: Callable[[Timeline, Path], None]
        if path.suffix.lower() in (".html", ".htm"):
            from pygpukit.core.timeline_html import draw
        else:
            from pygpukit.core.timeline_plot import draw
        draw(Timeline(self), path)


def record(device: Device | None = None, limit: int = 1_000_000) -> Recording:
    """Record what happens to a device's memory until the recording is stopped.

    Parameters
    ----------
    device : Device, optional
        The current device by default.
    limit : int
        Most events to keep, some 40 bytes each, besides what the pools hold when it begins. Those after it are only
        counted.

    Returns
    -------
    Recording
        To be used in a ``with`` block, or ended with ``recording.stop()``.

    Raises
    ------
    ValueError
        If the device is being recorded already.

    Examples
    --------
    >>> import pygpukit as gp
    >>> with record() as recording:
    ...     x = gp.zeros(4)
    ...     del x
    >>> [event.kind for event in recording.events if event.kind in ("allocate", "free")]
    ['allocate', 'free']
    """
    if not 0 <= limit <= sys.maxsize:
        raise ValueError(f"the limit must be a number of events from 0 to {sys.maxsize}, but it is {limit}")
    return Recording(checked_device(device), limit)


def load(path: str | Path) -> Snapshot | Recording:
    """Read a snapshot or a recording, whichever the file holds."""

    def parse(content: dict[str, Any]) -> Snapshot | Recording:
        return Recording._of(content) if "events" in content else parse_snapshot(content)

    return read_object(path, "a snapshot or a recording", parse)


def _parse(content: dict[str, Any]) -> _Run:
    pools: dict[int, str] = {}
    parents: dict[int, int | None] = {}
    for pool in content["pools"]:
        if not isinstance(pool, dict):
            raise ValueError("a pool is no object")
        number = integer(pool["id"], "a pool's id")
        parent = optional(integer, pool["parent"], "a pool's parent")
        # A pool is made after the one around it, so there are no circles.
        if parent is not None and parent >= number:
            raise ValueError(f"pool {number} has the later pool {parent} around it")
        pools[number], parents[number] = text(pool["name"], "a pool's name"), parent
    if content["columns"] != list(Event._fields):
        raise ValueError(f"its columns are not {', '.join(Event._fields)}")
    events: list[Event] = []
    before = 0
    for row in content["events"]:
        if not isinstance(row, list) or len(row) != len(Event._fields):
            raise ValueError(f"event {len(events)} does not have {len(Event._fields)} columns")
        time, kind, on_host, *rest = row
        if kind not in KINDS or not isinstance(on_host, bool):
            raise ValueError(f"event {len(events)} is of no known kind")
        if integer(time, "a time") < before:
            raise ValueError(f"event {len(events)} is earlier than the one before it")
        before = time
        pool, address, size, used = (integer(value, f"a number of event {len(events)}") for value in rest)
        events.append(Event(time, kind, on_host, pool, address, size, used))
    nanoseconds = integer(content["nanoseconds"], "its length")
    if nanoseconds < before:
        raise ValueError("it ends before its last event")
    device, dropped = text(content["device"], "its device"), integer(content["dropped"], "its number of dropped events")
    return _Run(device, pools, parents, events, nanoseconds, dropped)
