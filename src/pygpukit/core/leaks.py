"""The report at the end of a program of the arrays that are still alive, asked for by PYGPUKIT_LEAKS."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterable
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device
from pygpukit.config import format_size

__all__ = ["leak_report", "watch"]

_SHOWN = 20
_watched: list[Device] = []


def watch(device: Device) -> None:
    """Report on this device too when the program ends; from now on large arrays remember the line that made them."""
    _native.follow_arrays(True)
    if not _watched:
        atexit.register(_report, os.getpid())
    _watched.append(device)


def leak_report(devices: Iterable[Device]) -> str:
    """Arrays that are alive, by device and pool, those with the most bytes first.

    Examples
    --------
    >>> leak_report([])
    ''
    """
    return "\n".join(line for device in devices for line in _of_device(device))


def _report(process: int) -> None:
    # A forked child has copies of its parent's arrays, and may not ask the driver about them.
    if process != os.getpid() or sys.stderr is None:
        return
    # What only waits for the collector is no leak.
    gc.collect()
    with contextlib.suppress(OSError, ValueError):
        print(leak_report(_watched), file=sys.stderr)


def _of_device(device: Device) -> list[str]:
    pools, segments = _native.memory_snapshot(device)
    held: dict[int, list[dict[str, Any]]] = {}
    for segment in segments:
        if segment["live"]:
            held.setdefault(segment["pool"], []).append(segment)
    what = _counted(segments)
    if what == "no array":
        return [f"pygpukit: no array is alive at exit on {device!r}"]
    lines = [f"pygpukit: {what} alive at exit on {device!r}"]
    order = sorted((pool for pool in pools if pool["id"] in held), key=lambda pool: -_bytes(held[pool["id"]]))
    for pool in order[:_SHOWN]:
        own = held[pool["id"]]
        lines.append(f"  pool '{pool['name']}': {_counted(own)}")
        large = sorted((s for s in own if s["kind"] == "array"), key=lambda s: -s["bytes"])
        for segment in large[:_SHOWN]:
            lines.append(f"    {format_size(segment['bytes']):>10}  {segment['label'] or 'a block that is no array'}")
        if len(large) > _SHOWN:
            lines.append(f"    {format_size(_bytes(large[_SHOWN:])):>10}  in {len(large) - _SHOWN} more")
        if small := [segment for segment in own if segment["kind"] == "slab"]:
            lines.append(f"    {format_size(_bytes(small)):>10}  in {_arrays(small)} of at most 1 MiB each")
    if len(order) > _SHOWN:
        lines.append(f"  and {len(order) - _SHOWN} more pools")
    return lines


def _bytes(segments: list[dict[str, Any]]) -> int:
    return sum(segment["live"] * segment["block_bytes"] for segment in segments)


def _arrays(segments: list[dict[str, Any]]) -> str:
    count = sum(segment["live"] for segment in segments)
    return {0: "no array", 1: "1 array"}.get(count, f"{count} arrays")


def _counted(segments: list[dict[str, Any]]) -> str:
    return f"{_arrays(segments)}, {format_size(_bytes(segments))}" if _bytes(segments) else "no array"
