"""Threads that tasks run in: made when needed, used again, and never waited for at exit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Workers"]

# Idle threads end after this time, or at once when so many others are idle.
_IDLE_SECONDS = 30.0
_IDLE_THREADS = 16


class Workers:
    """Runs functions, each in a thread of its own.

    The threads are daemons: a task that never returns does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []
        self._made = 0

    def run(self, function: Callable[[], None]) -> None:
        """Run a function soon; it must not raise."""
        with self._lock:
            if self._idle:
                self._idle.pop().put(function)
                return
            self._made += 1
            name = f"{self._name}-{self._made}"
        inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        inbox.put(function)
        threading.Thread(target=self._work, args=(inbox,), name=name, daemon=True).start()

    def _work(self, inbox: queue.SimpleQueue[Callable[[], None]]) -> None:
        following: Callable[[], None] | None = inbox.get()
        while following is not None:
            following()
            # An idle thread keeps nothing of what it ran: neither arguments nor results.
            following = None
            following = self._next(inbox)

    def _next(self, inbox: queue.SimpleQueue[Callable[[], None]]) -> Callable[[], None] | None:
        with self._lock:
            if len(self._idle) >= _IDLE_THREADS:
                return None
            self._idle.append(inbox)
        try:
            return inbox.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        # Somebody took this thread in the last moment: its function is on the way.
        return inbox.get()
