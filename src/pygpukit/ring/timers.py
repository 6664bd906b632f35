"""Timers of device actors: the table that the ring's warden looks at, and what it has counted."""

from __future__ import annotations

import ctypes
from collections.abc import Container

import numpy as np

from pygpukit.ring.memory import DeviceMemory, MappedMemory, Piece, power_of_two
from pygpukit.ring.tables import TIMER

__all__ = ["Timers"]


class Timers:
    """A ring's timers. The kernel is not on the device while they are added and written."""

    def __init__(self, device: DeviceMemory, mapped: MappedMemory) -> None:
        self._device = device
        self._mapped = mapped
        self._table: Piece | None = None
        self._count = 0
        self._new: list[np.ndarray[tuple[int], np.dtype[np.void]]] = []
        self._seen: dict[int, int] = {}
        self.silent = mapped.take(8)
        """Address of the word that says that they have stopped."""

    def add(self, actor: int, seconds: float, nbytes: int) -> None:
        """Call an actor, whose messages have so many bytes, every so often."""
        row = np.zeros(1, TIMER)
        self._seen[actor] = self._mapped.take(16)
        row["period"], row["seen"] = round(seconds * 1e9), self._seen[actor]
        row["actor"], row["bytes"] = actor, nbytes
        self._new.append(row)

    def write(self, over: Container[int]) -> tuple[int, int]:
        """Put those that are new into the table, without those of actors that are over; where it is, and how many."""
        rows = [] if self._table is None else [self._table.read()[: self._count * TIMER.itemsize].view(TIMER)]
        rows += self._new
        self._new = []
        if not rows:
            return 0, 0
        table = np.concatenate(rows)
        table = table[[int(actor) not in over for actor in table["actor"]]]
        if self._table is None or self._table.nbytes < table.nbytes:
            self._device.give(self._table)
            self._table = self._device.take(power_of_two(table.nbytes))
        if len(table):
            self._table.write(table)
        self._count = len(table)
        return self._table.address, self._count

    def counts(self, actor: int) -> tuple[int, int]:
        """Ticks that an actor was given, and those that it missed."""
        address = self._seen.get(actor)
        if address is None:
            return 0, 0
        given, missed = (ctypes.c_uint64 * 2).from_address(address)
        return given, missed

    def stop(self) -> None:
        """Give no more ticks."""
        ctypes.c_uint64.from_address(self.silent).value = 1
