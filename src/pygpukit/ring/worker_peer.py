"""One actor of a worker process, as the runtime sees it: what was sent and is not done with, what came, and figures."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from pygpukit.ring.device import Place
from pygpukit.ring.post import CALL
from pygpukit.ring.states import Backpressure
from pygpukit.ring.tables import MODES, WORKER_LOST
from pygpukit.ring.worker_wire import FIGURES, TICKS, Parts

__all__ = ["WorkerPeer"]

HOST = 0xFFFFFFFF
"""Where messages of the host come from."""

_DRAINING = MODES["DRAINING"]

# So many calls without an answer are remembered. Whoever made older ones hardly waits any more, and would not be told.
_MOST_CALLS = 1 << 16

# Figures that count, and go on when the actor begins anew.
_COUNTED = ("processed", "sent", "displaced", "expired", "discarded", "failed", "restarts", "busy", "dead", *TICKS)


class _Entry:
    """Messages that were sent together: one, or the rows of an array."""

    __slots__ = ("ahead", "count", "done", "first", "header", "payload", "start")

    def __init__(self, header: tuple[int, ...], payload: bytes, start: int, count: int) -> None:
        self.header = header
        self.payload = payload
        self.first = header[4]
        self.start = start
        self.count = count
        self.done = bytearray(count)
        # So many from the first on are done with.
        self.ahead = 0

    def finish(self, row: int) -> None:
        self.done[row] = 1
        while self.ahead < self.count and self.done[self.ahead]:
            self.ahead += 1


class WorkerPeer:
    """An actor's mail and figures; used under the lock of the link.

    Parameters
    ----------
    place : Place
        Its number and sizes.
    lock : threading.RLock
        The link's.
    """

    def __init__(self, place: Place, lock: Any) -> None:
        self.place = place
        self.mode = MODES["CREATED"]
        self.loss = ""
        """Why it was lost last."""
        self.has_ended = False
        """Is it not to be started again?"""
        self.is_closed = False
        """Does it take no more messages?"""
        self.is_over = False
        """Is it gone with its worker?"""
        self.room = threading.Condition(lock)
        self.arrived = threading.Condition(lock)
        self.sent = self.settled = self.refused = self.answered = 0
        self.output: deque[Parts] = deque()
        self.received = self.credited = 0
        self.unread = 0
        """Replies of streams that came, and of which the worker has not been told that they were read."""
        self.watched = 0
        self.buckets: list[int] = []
        self._words: list[int] = [0] * FIGURES
        self._names: list[str] = []
        self._begin = self._came = 0
        self._base = dict.fromkeys(_COUNTED, 0)
        self._crashes: deque[float] = deque()
        self._pending: deque[_Entry] = deque()
        self._single: dict[int, _Entry] = {}
        self._rows: deque[_Entry] = deque()
        self._calls: dict[int, None] = {}
        # The worker drops the oldest, which takes a moment: until then it has more than fit.
        drops_oldest = place.kernel.backpressure is Backpressure.DROP_OLDEST
        self._limit = place.capacity * (2 if drops_oldest else 1)

    @property
    def free(self) -> int:
        """How many messages it has room for."""
        return self._limit - (self.sent - self.settled)

    @property
    def is_ending(self) -> bool:
        """Has it ended, or was it told to?"""
        return self.has_ended or self.mode >= _DRAINING

    def note_sent(self, header: tuple[int, ...], payload: bytes, count: int) -> None:
        """These are on their way; `header` is that of the first of them."""
        entry = _Entry(header, payload, self.sent, count)
        self.sent += count
        self._pending.append(entry)
        if count == 1:
            self._single[entry.first] = entry
        else:
            self._rows.append(entry)
        if header[1] & CALL:
            self._calls[entry.first] = None
            if len(self._calls) > _MOST_CALLS:
                del self._calls[next(iter(self._calls))]

    def note_done(self, number: int) -> None:
        """The message of this number was answered, or came back."""
        self._calls.pop(number, None)
        entry = self._single.pop(number, None)
        if entry is None:
            entry = next((one for one in self._rows if 0 <= number - one.first < one.count), None)
        if entry is None:
            return
        entry.finish(number - entry.first)
        if entry is self._pending[0]:
            self._settle(entry.start + entry.ahead)

    def note_came(self, parts: Parts, is_answer: bool, more: bool) -> None:
        """The actor sent this to the host; with `more` it is not done yet with what it answers."""
        self._came += 1
        if more:
            self.unread += 1
        else:
            self.note_done(parts[0][5])
        if is_answer:
            self.answered += 1
        else:
            self.output.append(parts)

    def note_seen(self, settled: int, words: list[int]) -> None:
        """The worker is done with so many, and has counted this."""
        self._words = words
        self._settle(self._begin + settled)

    def _settle(self, position: int) -> None:
        """All that was sent before this one is done with."""
        if position <= self.settled:
            return
        self.settled = position
        while self._pending:
            entry = self._pending[0]
            end = entry.start + entry.count
            if end > max(self.settled, entry.start + entry.ahead):
                break
            self.settled = max(self.settled, end)
            self._pending.popleft()
            if entry.count == 1:
                self._single.pop(entry.first, None)
            else:
                self._rows.popleft()
        self.room.notify_all()

    def show(self, words: list[int], buckets: list[int]) -> None:
        """The worker has counted this."""
        self._words, self.buckets = words, buckets

    def learn(self, names: list[str]) -> None:
        """Names of the figures, in the order they come."""
        self._names = names

    def lose(self) -> tuple[list[Parts], list[int]]:
        """The worker is gone: what it had not done with, as letters, and the calls it had not answered.

        The figures go on without it.
        """
        lost = [letter for entry in self._pending for letter in self._letters(entry)]
        gone = self._counts()
        settled = self.sent - self._begin - len(lost)
        # What came back is done with, whether or not the worker had time to count it; its counts are not of one moment.
        others = gone["failed"] + gone["displaced"] + gone["expired"] + gone["discarded"]
        gone["processed"] = max(0, gone["processed"] + settled - gone["from_host"], settled - others)
        gone["sent"] = max(gone["sent"], self._came)
        in_mail = (
            gone["depth"] if self.place.dedicated else gone["depth"] - (self.sent - self._begin - gone["from_host"])
        )
        gone["discarded"] += len(lost) + max(0, in_mail)
        for name in _COUNTED:
            self._base[name] += gone[name]
        self._words = [0] * FIGURES
        self._pending.clear()
        self._single.clear()
        self._rows.clear()
        self._begin = self.settled = self.sent
        self._came = self.unread = 0
        # The new worker begins to count, and what is here already came from the old one.
        self.received, self.credited = -len(self.output), 0
        calls, self._calls = list(self._calls), {}
        return lost, calls

    def may_restart(self) -> bool:
        """Is it to begin anew? Counts the loss."""
        kernel = self.place.kernel
        if self.is_over or self.is_ending or kernel.restart == "never":
            return False
        now = time.monotonic()
        while self._crashes and self._crashes[0] < now - kernel.restart_window:
            self._crashes.popleft()
        if len(self._crashes) >= kernel.max_restarts:
            return False
        self._crashes.append(now)
        self._base["restarts"] += 1
        return True

    def _letters(self, entry: _Entry) -> list[Parts]:
        row = len(entry.payload) // entry.count
        kind, flags, priority, _, first, correlation, source, destination, deadline = entry.header
        return [
            (
                (kind, flags, priority, WORKER_LOST, first + i, correlation, source, destination, deadline),
                entry.payload[i * row : (i + 1) * row],
            )
            for i in range(max(0, self.settled - entry.start), entry.count)
            if not entry.done[i]
        ]

    def _counts(self) -> dict[str, int]:
        names = self._names or [f"figure {i}" for i in range(FIGURES)]
        zeros = dict.fromkeys((*_COUNTED, "mode", "generation", "from_host", "depth", "max_depth", "waiting"), 0)
        return {**zeros, **dict(zip(names, self._words, strict=True))}

    def figures(self) -> dict[str, int]:
        """As `RingLink.figures`, of all workers the actor was in."""
        found = self._counts()
        for name, count in self._base.items():
            found[name] += count
        found["from_host"] += self._begin
        if self.is_over:
            found["mode"] = MODES["ENDED"]
        return {
            **found,
            "host_sent": self.sent,
            "host_refused": self.refused,
            "answered": self.answered,
            "output_depth": len(self.output),
        }
