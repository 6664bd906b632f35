"""Who holds which memory: a picture of a device's pools and segments at one moment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device
from pygpukit.config import format_size
from pygpukit.core.saved import integer, optional, read_object, text, write_object

__all__ = ["Snapshot", "follow", "snapshot"]

_PACKAGE = str(Path(__file__).resolve().parents[1])


class Snapshot(NamedTuple):
    """Pools and segments of a device.

    Attributes
    ----------
    device : str
        Name of the device.
    free, total : int
        Bytes of the device, as the driver sees them.
    pools : list of dict
        Each pool's ``id``, ``parent``, ``name`` and numbers, in the order they were made.
    segments : list of dict
        Each mapping: ``pool`` (an id), ``address``, ``bytes``, ``kind`` (array or slab), ``live`` blocks of
        ``block_bytes``, ``place`` (device, leaving or host), ``evictable``, ``pinned``, ``exported``, and the ``label``
        of a large array.
    """

    device: str
    free: int
    total: int
    pools: list[dict[str, Any]]
    segments: list[dict[str, Any]]

    def to_json(self, path: str | Path | None = None) -> str:
        """The snapshot as JSON, also written to a file if one is named.

        Examples
        --------
        >>> snapshot().to_json().startswith("{")
        True
        """
        return write_object(self._asdict(), path, indent=1)

    @classmethod
    def from_json(cls, path: str | Path) -> Snapshot:
        """Read a snapshot from the file `to_json` has written.

        Raises
        ------
        LoadError
            If the file cannot be read or is no snapshot.
        """
        return read_object(path, "a snapshot", parse_snapshot)

    def table(self, count: int = 20) -> str:
        """Pools, and the largest segments that hold something, as text.

        Parameters
        ----------
        count : int
            Most segments to show.
        """
        names = {pool["id"]: pool["name"] for pool in self.pools}
        lines = [f"{self.device}: {format_size(self.free)} free of {format_size(self.total)}", ""]
        lines.append(f"{'pool':<24}{'used':>12}{'peak':>12}{'cached':>12}{'on host':>12}{'quota':>12}")
        for pool in self.pools:
            quota = "-" if pool["quota"] is None else format_size(pool["quota"])
            sizes = "".join(f"{format_size(pool[key]):>12}" for key in ("used", "peak", "cached", "evicted"))
            lines.append(f"{pool['name']:<24}{sizes}{quota:>12}")
        held = sorted((s for s in self.segments if s["live"]), key=lambda s: -s["bytes"])
        lines += ["", f"{'bytes':>12}  {'place':<8}{'pool':<20}holds"]
        for segment in held[:count]:
            label = segment["label"] or f"{segment['live']} blocks of {format_size(segment['block_bytes'])}"
            marks = "".join(f", {mark}" for mark in ("pinned", "exported") if segment[mark])
            pool = names.get(segment["pool"], "?")
            lines.append(f"{format_size(segment['bytes']):>12}  {segment['place']:<8}{pool:<20}{label}{marks}")
        if len(held) > count:
            lines.append(f"... and {len(held) - count} more")
        return "\n".join(lines)


def snapshot(device: Device | None = None) -> Snapshot:
    """Who holds which memory now.

    Parameters
    ----------
    device : Device, optional
        The current device by default.

    Returns
    -------
    Snapshot
        A table with ``print(snapshot.table())``, JSON with ``snapshot.to_json(path)``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.zeros((512, 1024))
    >>> any("(512, 1024)" in (s["label"] or "") for s in snapshot().segments)
    True
    """
    device = checked_device(device)
    free, total = device.memory_info()
    pools, segments = _native.memory_snapshot(device)
    return Snapshot(device.name, free, total, pools, segments)


def checked_device(device: Device | None) -> Device:
    """The device that is meant, the current one by default."""
    if device is None:
        return _native.current_device()
    if not isinstance(device, Device):
        raise TypeError(f"a Device is needed, such as gp.current_device(), but it is {device!r}")
    return device


def follow(on: bool = True) -> bool:
    """Note where large arrays are made, so that snapshots and out-of-memory errors say so.

    Every array above 1 MiB then costs a look at the Python stack, some microseconds.

    Returns
    -------
    bool
        What was in force before.

    Examples
    --------
    >>> before = follow(True)
    >>> _ = follow(before)
    """
    return _native.follow_arrays(on)


def parse_snapshot(content: dict[str, Any]) -> Snapshot:
    """Make a snapshot of what JSON says; ValueError or KeyError where it says something else."""
    pools = [_plain(pool, "a pool") for pool in content["pools"]]
    for pool in pools:
        text(pool["name"], "a pool's name")
        optional(integer, pool["quota"], "a pool's quota")
        for key in ("id", "used", "peak", "cached", "evicted"):
            integer(pool[key], f"{key} of a pool")
    segments = [_plain(segment, "a segment") for segment in content["segments"]]
    for segment in segments:
        text(segment["place"], "the place of a segment")
        optional(text, segment["label"], "the label of a segment")
        for key in ("pool", "bytes", "live", "block_bytes"):
            integer(segment[key], f"{key} of a segment")
        if not all(isinstance(segment[key], bool) for key in ("pinned", "exported")):
            raise ValueError("pinned or exported of a segment is neither true nor false")
    free, total = (integer(content[key], f"{key} of the device") for key in ("free", "total"))
    return Snapshot(text(content["device"], "its device"), free, total, pools, segments)


def _plain(item: object, what: str) -> dict[str, Any]:
    """An object of plain values, its texts without what would move the cursor of a terminal."""
    if not isinstance(item, dict):
        raise ValueError(f"{what} is no object")
    for key, value in item.items():
        if isinstance(value, str):
            item[key] = text(value, key)
        elif value is not None and not isinstance(value, bool | float):
            integer(value, key)
    return item


def caller() -> str:
    """File and line of the innermost frame outside this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
