"""The ring's message in which any Python object travels through a mailbox."""

from __future__ import annotations

import time
from typing import Any

from pygpukit.ring import Message

__all__ = ["Envelope", "priority_of"]


def priority_of(message: Any) -> int:
    """The priority a message says it has; 128 for one that says none."""
    priority = getattr(message, "priority", 128)
    return min(255, max(0, priority)) if isinstance(priority, int) else 128


class Envelope(Message):
    """One object on its way, with a header that mailboxes read."""

    __slots__ = ("body", "put_ns")

    def __init__(self, body: Any, priority: int = 0) -> None:
        self.body = body
        self.put_ns = time.monotonic_ns()
        if priority:
            self.priority = priority

    def _copy(self) -> Envelope:
        one = Envelope(self.body, self.priority)
        one.correlation_id, one._deadline_ns = self.correlation_id, self._deadline_ns
        return one

    def __repr__(self) -> str:
        return repr(self.body)
