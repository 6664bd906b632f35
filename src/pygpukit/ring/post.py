"""Calls that wait for their answers, and messages that reached nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from pygpukit._pygpukit_rust import RingQueue
from pygpukit.errors import RingError, UndeliveredError
from pygpukit.ring.kinds import brief
from pygpukit.ring.replies import Replies

__all__ = ["CALL", "DeadLetter", "Post"]

CALL = 1
"""Flag of a message whose sender waits for its answer."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that was not delivered, or whose receiver failed."""

    kernel_id: str
    """To whom it went, or whose answer it was."""
    message: Any
    reason: str
    """``expired``, ``dropped_oldest``, ``dropped_new``, ``terminated``, ``failed``, ``unknown_destination``,
    ``wrong_type``, ``rejected``, ``outbox_full``, ``late_answer`` or ``worker_lost``."""
    detail: str
    time: float
    """Seconds of ``time.monotonic()``."""


class _AsyncCall:
    __slots__ = ("_future", "_loop", "_post", "_thread", "kernel_id")

    def __init__(
        self, post: Post, kernel_id: str, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._post = post
        self.kernel_id = kernel_id
        self._future = future
        self._loop = loop
        self._thread = threading.get_ident()

    def settle(self, answer: Any) -> None:
        if self._thread == threading.get_ident():
            self._set(answer)
            return
        try:
            self._loop.call_soon_threadsafe(self._set, answer)
        except RuntimeError:
            # The loop is closed, and nobody waits there.
            return

    def _set(self, answer: Any) -> None:
        if self._future.done():
            # The caller gave up while this was on its way to the loop.
            if not isinstance(answer, BaseException):
                self._post.late(self.kernel_id, answer)
        elif isinstance(answer, BaseException):
            self._future.set_exception(answer)
        else:
            self._future.set_result(answer)


class _ThreadCall:
    __slots__ = ("kernel_id", "slot")

    def __init__(self, kernel_id: str) -> None:
        self.kernel_id = kernel_id
        self.slot = RingQueue(1, "drop_new")

    def settle(self, answer: Any) -> None:
        self.slot.try_put(answer)


class Post:
    """One per runtime. It knows no actors, so that their mailboxes may hold on to it.

    Parameters
    ----------
    keep : int
        Most dead letters that are kept; all are counted.
    """

    def __init__(self, keep: int) -> None:
        self._calls: dict[int, _AsyncCall | _ThreadCall | Replies] = {}
        self._letters: deque[DeadLetter] = deque(maxlen=keep)
        self._lock = threading.Lock()
        self.is_closing = False
        """Are clients to send no more, because the runtime ends?"""
        self._counts: Counter[str] = Counter()

    def expect(self, kernel_id: str, number: int, future: asyncio.Future[Any], loop: Any) -> None:
        """Set a future of this thread's loop to the answer of a call."""
        self._calls[number] = _AsyncCall(self, kernel_id, future, loop)

    def expect_here(self, kernel_id: str, number: int) -> RingQueue:
        """A mailbox that will get the answer of a call, or an exception."""
        call = self._calls[number] = _ThreadCall(kernel_id)
        return call.slot

    def expect_all(self, number: int, replies: Replies) -> None:
        """Collect all answers of a call."""
        if self._calls.setdefault(number, replies) is not replies:
            raise RingError(f"message {number} is on its way already, and its answers are waited for; send another one")

    def replies_to(self, number: int) -> Replies | None:
        """Who collects the answers to this message, if somebody does."""
        call = self._calls.get(number)
        return call if isinstance(call, Replies) else None

    def forget_all(self, number: int, replies: Replies) -> None:
        """They are not collected any more; the last of them may have come, and the message have been sent again."""
        if self._calls.get(number) is replies:
            del self._calls[number]

    def unbind(self, kernel_id: str) -> None:
        """Let what is collected of a kernel's answers grow."""
        for call in list(self._calls.values()):
            if isinstance(call, Replies) and call.kernel_id == kernel_id:
                call.unbind()

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._calls.pop(number, None)

    def answer(self, kernel_id: str, message: Any) -> bool:
        """Give an answer to who waits for it; one that comes too late is a dead letter."""
        call = self._calls.pop(message.correlation_id, None)
        if call is None:
            self.late(kernel_id, message)
            return False
        call.settle(message)
        return True

    def late(self, kernel_id: str, message: Any) -> None:
        """Note an answer that nobody waits for any more."""
        self.dead(kernel_id, message, "late_answer", f"nobody waits for {message.correlation_id} any more")

    def fail(self, number: int, error: RingError) -> None:
        """Let one call raise."""
        call = self._calls.pop(number, None)
        if call is not None:
            call.settle(error)

    def fail_calls(self, kernel_id: str, error: RingError) -> None:
        """Let all calls to a kernel raise."""
        for number, call in list(self._calls.items()):
            if call.kernel_id == kernel_id and self._calls.pop(number, None) is not None:
                call.settle(error)

    def dead(self, kernel_id: str, message: Any, reason: str, detail: str = "") -> None:
        """Note a message that reached nobody, and tell its sender if that waits."""
        with self._lock:
            self._letters.append(DeadLetter(kernel_id, message, reason, detail, time.monotonic()))
            self._counts[reason] += 1
        if reason != "late_answer":
            call = self._calls.pop(getattr(message, "message_id", 0), None)
            if call is not None:
                why = f" ({detail})" if detail else ""
                call.settle(UndeliveredError(f"{brief(message)} to {kernel_id!r} was not answered: {reason}{why}"))

    def letters(self, kernel_id: str | None = None) -> list[DeadLetter]:
        """The dead letters that are kept, oldest first."""
        with self._lock:
            return [letter for letter in self._letters if kernel_id in (None, letter.kernel_id)]

    def counts(self) -> dict[str, int]:
        """How many dead letters there were, by reason."""
        with self._lock:
            return dict(self._counts)
