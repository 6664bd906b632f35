"""Mailboxes of device actors: over a link to the ring, for threads and event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pygpukit.errors import DeviceError, RingError
from pygpukit.ring.limits import end_of, left_of, part_of
from pygpukit.ring.states import KernelState
from pygpukit.ring.waiting import ACCEPTED, CLOSED, DROPPED, FULL, REJECTED

if TYPE_CHECKING:
    from pygpukit.ring.device_actor import DeviceActor

__all__ = ["OUTCOMES", "DeviceInbox", "DeviceOutbox", "deadline_of"]

OUTCOMES = {0: ACCEPTED, 1: REJECTED, 2: DROPPED, 3: FULL, 6: CLOSED}
"""What the link says became of a message that is not on its way, as mailboxes say it."""

# Nanoseconds of a message without a deadline.
_NEVER = (1 << 64) - 1

# How often a full mailbox on the device is looked at by an event loop.
_ROOM_SECONDS = 200e-6

# How often a thread looks whether an actor has been launched.
_LAUNCH_SECONDS = 1e-3


def deadline_of(message: Any) -> int:
    """A message's deadline in nanoseconds, or 0."""
    deadline = int(message._deadline_ns)
    return 0 if deadline == _NEVER else deadline


class DeviceInbox:
    """The way into a device actor's mailbox; a `Mailbox` that only takes."""

    def __init__(self, actor: DeviceActor) -> None:
        self._actor = actor

    @property
    def capacity(self) -> int:
        """Messages of the host that fit."""
        actor = self._actor
        return actor.place.capacity if hasattr(actor, "place") else actor.kernel.input_queue_size

    @property
    def is_paused(self) -> bool:
        """Does the actor stand still?"""
        return self._actor.state is not KernelState.ACTIVE

    @property
    def is_finished(self) -> bool:
        """Has it ended?"""
        return self._actor.state.is_over

    def try_put(self, message: Any, /) -> int:
        """Send a message without waiting."""
        return self.put(message, 0.0)

    def put(self, message: Any, timeout: float | None = None) -> int:
        """Send a message; while the actor is being launched, that is waited for."""
        actor = self._actor
        if actor.state is not KernelState.ACTIVE:
            timeout = self.await_launch(timeout)
            if actor.is_launching():
                return FULL
            if not actor.state.is_open:
                return CLOSED
        message._sent()
        fate = actor.link.send(
            actor.place.index,
            actor.packed(message),
            message.message_id,
            message._flags,
            message.priority,
            message.correlation_id,
            deadline_of(message),
            timeout,
        )
        if OUTCOMES[fate] == DROPPED:
            actor.post.dead(actor.kernel.kernel_id, message, "dropped_new")
        return OUTCOMES[fate]

    def await_launch(self, timeout: float | None) -> float | None:
        """Wait in this thread while the actor is being launched, and return the time that is left."""
        actor = self._actor
        if not actor.is_launching():
            return timeout
        until = end_of(timeout)
        while actor.is_launching() and left_of(until) != 0.0:
            time.sleep(_LAUNCH_SECONDS)
        return left_of(until)

    def put_many(self, messages: Sequence[Any], timeout: float | None = None) -> tuple[int, int]:
        """Send messages until one cannot be."""
        until = end_of(timeout)
        for count, message in enumerate(messages):
            outcome = self.put(message, left_of(until))
            if outcome not in (ACCEPTED, DROPPED):
                return count, outcome
        return len(messages), ACCEPTED

    def await_space(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, /) -> int:
        """Look again in a moment."""
        loop.call_later(_ROOM_SECONDS, _set, future)
        return 1

    def await_active(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, /) -> int:
        """Look again in a moment."""
        return self.await_space(future, loop)

    def await_item(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, /) -> int:
        """The device takes what is sent: there is nothing to wait for."""
        raise RingError(f"messages sent to {self._actor.kernel.kernel_id!r} are on the device and cannot be taken back")

    def forget(self, ticket: int, /) -> None:
        """Nothing is kept for a wait."""

    def forget_future(self, future: asyncio.Future[Any], /) -> None:
        """Nothing is kept for a wait."""

    def try_get(self) -> Any:
        """Nothing comes out here."""
        return None

    def get(self, timeout: float | None = None) -> Any:
        """Nothing comes out here."""
        return None

    def get_many(self, n: int, timeout: float | None = 0.0) -> list[Any]:
        """Nothing comes out here."""
        return []

    def get_or_wait(self, event_loop: asyncio.AbstractEventLoop, /) -> Any:
        """Nothing comes out here."""
        return None


class DeviceOutbox:
    """What a device actor sent to the host; a `Mailbox` that only gives.

    While event loops wait for it, it is one of `awaited`.
    """

    def __init__(self, actor: DeviceActor, awaited: set[DeviceOutbox]) -> None:
        self._actor = actor
        self._awaited = awaited
        self._waits: dict[int, tuple[asyncio.Future[Any], asyncio.AbstractEventLoop]] = {}
        # Number 1 is of waits for a launch, of which nothing is kept.
        self._ticket = 1
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Messages that wait to be received before the actor waits."""
        actor = self._actor
        return actor.place.window if self.is_there else actor.kernel.output_queue_size

    @property
    def is_there(self) -> bool:
        """Has the actor been launched? One that is being launched has no output yet."""
        return hasattr(self._actor, "link")

    @property
    def is_paused(self) -> bool:
        """It never is."""
        return False

    @property
    def is_finished(self) -> bool:
        """Has the actor ended, and is nothing left?"""
        actor = self._actor
        return actor.state.is_over and (not self.is_there or actor.link.depth(actor.place.index) == 0)

    def try_get(self) -> Any:
        """The next message, or None."""
        actor = self._actor
        if not self.is_there:
            return None
        parts = actor.link.try_receive(actor.place.index)
        return None if parts is None else actor.loaded(parts)

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next message in this thread; None when the time is over or none will come."""
        actor = self._actor
        until = end_of(timeout)
        while True:
            left = part_of(until, 0.05)
            if not self.is_there:
                time.sleep(min(left, _LAUNCH_SECONDS))
            elif (parts := self._receive(left)) is not None:
                return actor.loaded(parts)
            if self.is_finished or left_of(until) == 0.0:
                return None

    def _receive(self, timeout: float) -> Any:
        """Wait for the next message's parts."""
        actor = self._actor
        try:
            return actor.link.receive(actor.place.index, timeout)
        except DeviceError:
            # Of a ring that was closed meanwhile no more comes.
            if not self.is_finished:
                raise
            return None

    def get_many(self, n: int, timeout: float | None = 0.0) -> list[Any]:
        """Up to `n` messages."""
        rows = self._actor.receive_array(n, timeout)
        output_type: Any = self._actor.kernel.output_type
        return list(output_type.from_array(rows))

    def get_or_wait(self, event_loop: asyncio.AbstractEventLoop, /) -> Any:
        """The next message, None when none will come, or a future that is set when it is time to ask again."""
        message = self.try_get()
        if message is not None or self.is_finished:
            return message
        future = event_loop.create_future()
        return future if self.await_item(future, event_loop) else self.get_or_wait(event_loop)

    def await_item(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, /) -> int:
        """Set the future when a message has come, or none will."""
        actor = self._actor
        if not self.is_there:
            loop.call_later(_ROOM_SECONDS, _set, future)
            return 1
        with self._lock:
            self._ticket += 1
            ticket = self._ticket
            self._waits[ticket] = (future, loop)
            self._awaited.add(self)
        actor.link.watch(actor.place.index, True)
        if actor.link.depth(actor.place.index) or actor.state.is_over:
            self.forget(ticket)
            return 0
        return ticket

    def await_space(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, /) -> int:
        """The device puts things in: there is nothing to wait for."""
        raise RingError(f"only {self._actor.kernel.kernel_id!r} itself sends into its output")

    def await_active(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, /) -> int:
        """It is never paused."""
        return 0

    def forget(self, ticket: int, /) -> None:
        """Give up a wait."""
        with self._lock:
            known = self._waits.pop(ticket, None)
            if not self._waits:
                self._awaited.discard(self)
        if known is not None:
            self._actor.link.watch(self._actor.place.index, False)

    def forget_future(self, future: asyncio.Future[Any], /) -> None:
        """Give up a wait of `get_or_wait`."""
        for ticket, (waiting, _) in list(self._waits.items()):
            if waiting is future:
                self.forget(ticket)

    def wake(self) -> None:
        """Let everybody who waits look again."""
        actor = self._actor
        if not self._waits or not self.is_there or not (actor.state.is_over or actor.link.depth(actor.place.index)):
            return
        with self._lock:
            waits, self._waits = list(self._waits.values()), {}
            self._awaited.discard(self)
        for future, loop in waits:
            actor.link.watch(actor.place.index, False)
            if loop is asyncio._get_running_loop():
                _set(future)
                continue
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:
                # The loop is closed, and nobody waits there.
                continue

    def try_put(self, message: Any, /) -> int:
        """Nothing goes in here."""
        return CLOSED

    def put(self, message: Any, timeout: float | None = None) -> int:
        """Nothing goes in here."""
        return CLOSED

    def put_many(self, messages: Sequence[Any], timeout: float | None = None) -> tuple[int, int]:
        """Nothing goes in here."""
        return 0, CLOSED


def _set(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
