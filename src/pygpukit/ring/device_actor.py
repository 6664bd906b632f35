"""Device actors as the runtime sees them: mailboxes over a link, states, figures."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit.errors import ActorFailedError, MessageError, RingError, UndeliveredError
from pygpukit.ring.actor import SENT
from pygpukit.ring.delivery import check_outcome, ended_error
from pygpukit.ring.device import DeviceRing, Place, RingOptions
from pygpukit.ring.header import NO_DEADLINE
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.message import Message
from pygpukit.ring.post import Post
from pygpukit.ring.states import KernelState
from pygpukit.ring.tables import BUCKETS, MODES, REASONS
from pygpukit.ring.telemetry import KernelTelemetry, Latency
from pygpukit.ring.waiting import ACCEPTED, CLOSED, DROPPED, FULL, REJECTED

__all__ = ["DeviceActor", "DeviceTier"]

# What the link says became of a message, as mailboxes say it.
_OUTCOMES = (ACCEPTED, REJECTED, DROPPED, FULL)
_DROPPED, _DEAD, _UNANSWERED = 2, 4, 5

_HOST = 0xFFFFFFFF
_FAILED, _ENDED = MODES["FAILED"], MODES["ENDED"]

# How long an event loop stands still for an answer that is about to come: less than it takes to come back to it later.
_QUICK_SECONDS = 15e-6

# How often a full mailbox on the device is looked at by an event loop.
_ROOM_SECONDS = 200e-6

# How long the device may take to give back what an actor that has ended did not handle.
_DISCARD_SECONDS = 5.0


class DeviceInbox:
    """The way into a device actor's mailbox; a `Mailbox` that only takes."""

    def __init__(self, actor: DeviceActor) -> None:
        self._actor = actor

    @property
    def capacity(self) -> int:
        """Messages of the host that fit."""
        return self._actor.place.capacity

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
        """Send a message."""
        actor = self._actor
        if actor.state is not KernelState.ACTIVE and not actor.state.is_open:
            return CLOSED
        fate = actor.link.send(
            actor.place.index,
            actor.packed(message),
            message.message_id,
            message._flags,
            message.priority,
            message.correlation_id,
            _deadline(message),
            timeout,
        )
        if fate == _DROPPED:
            actor.post.dead(actor.kernel.kernel_id, message, "dropped_new")
        return _OUTCOMES[fate]

    def put_many(self, messages: Sequence[Any], timeout: float | None = None) -> tuple[int, int]:
        """Send messages until one cannot be."""
        until = None if timeout is None else time.monotonic() + timeout
        for count, message in enumerate(messages):
            outcome = self.put(message, None if until is None else max(0.0, until - time.monotonic()))
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
    """What a device actor sent to the host; a `Mailbox` that only gives."""

    def __init__(self, actor: DeviceActor) -> None:
        self._actor = actor
        self._waits: dict[int, tuple[asyncio.Future[Any], asyncio.AbstractEventLoop]] = {}
        self._ticket = 0
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Messages that wait to be received before the actor waits."""
        return self._actor.place.window

    @property
    def is_paused(self) -> bool:
        """It never is."""
        return False

    @property
    def is_finished(self) -> bool:
        """Has the actor ended, and is nothing left?"""
        actor = self._actor
        return actor.state.is_over and actor.link.depth(actor.place.index) == 0

    def try_get(self) -> Any:
        """The next message, or None."""
        actor = self._actor
        parts = actor.link.try_receive(actor.place.index)
        return None if parts is None else actor.loaded(parts)

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next message in this thread; None when the time is over or none will come."""
        actor = self._actor
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 0.05 if until is None else min(0.05, max(0.0, until - time.monotonic()))
            parts = actor.link.receive(actor.place.index, left)
            if parts is not None:
                return actor.loaded(parts)
            if self.is_finished or (until is not None and time.monotonic() >= until):
                return None

    def get_many(self, n: int, timeout: float | None = 0.0) -> list[Any]:
        """Up to `n` messages."""
        until = None if timeout is None else time.monotonic() + timeout
        found: list[Any] = []
        while len(found) < n:
            message = self.get(None if until is None else max(0.0, until - time.monotonic()))
            if message is None:
                break
            found.append(message)
        return found

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
        with self._lock:
            self._ticket += 1
            ticket = self._ticket
            self._waits[ticket] = (future, loop)
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
        if not self._waits or not (actor.state.is_over or actor.link.depth(actor.place.index)):
            return
        with self._lock:
            waits, self._waits = list(self._waits.values()), {}
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


def _deadline(message: Any) -> int:
    deadline = int(message._deadline_ns)
    return 0 if deadline == NO_DEADLINE else deadline


class DeviceActor:
    """A handler that the persistent kernel runs.

    Parameters
    ----------
    kernel : RingKernel
        What it runs.
    post : Post
        The runtime's calls and dead letters.
    tier : DeviceTier
        The runtime's ring.
    escalate : callable
        Told when an actor that escalates has failed.
    """

    place: Place
    ring: DeviceRing

    def __init__(
        self, kernel: RingKernel, post: Post, tier: DeviceTier, escalate: Callable[[str, BaseException], None]
    ) -> None:
        self.kernel = kernel
        self.post = post
        self.state = KernelState.CREATED
        self.error: BaseException | None = None
        self.inbox = DeviceInbox(self)
        self.outbox = DeviceOutbox(self)
        self.answered = 0
        self._misses = self._pause = 0
        self._tier = tier
        self._escalate = escalate
        self._output = kernel.output_type
        self._launched_at = self._ended_at = 0.0
        self._size = 0

    @property
    def link(self) -> Any:
        """The host's end of the ring."""
        return self.ring.link

    def packed(self, message: Any) -> bytes:
        """A message's bytes."""
        if type(message) is not self.kernel.input_type:
            raise MessageError(
                f"{self.kernel.kernel_id!r} runs on the device and takes exactly {self.kernel.input_type.__name__}, "  # type: ignore[union-attr]
                f"not {type(message).__name__}"
            )
        try:
            return message._packed()  # type: ignore[no-any-return]
        except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise MessageError(f"{message!r} does not fit its layout: {error}") from error

    def loaded(self, parts: Any) -> Any:
        """A message from what the link gives."""
        (kind, flags, priority, _, number, correlation, *_), payload = parts
        cls = self._tier.type_of(kind) or self._output
        if cls is None:
            raise MessageError(f"{self.kernel.kernel_id!r} sent a message of the unknown type {kind:#x}")
        message: Any = cls._load(cls, payload, 0)
        message.message_id = number
        message.correlation_id = correlation
        if priority:
            message.priority = priority
        message._flags = flags & 3
        return message

    def call(self, message: Any, timeout: float | None) -> Any:
        """Send a message and wait for its answer, in this thread."""
        if self.state is not KernelState.ACTIVE and not self.state.is_open:
            raise ended_error(self)
        fate, answer = self._ask(message, message._call(), timeout)
        if fate == 0:
            return answer
        if fate == _UNANSWERED:
            raise TimeoutError(f"{self.kernel.kernel_id!r} did not answer within {timeout} s")
        check_outcome(self, _OUTCOMES[fate], timeout)
        raise ended_error(self)

    def try_call(self, message: Any, number: int) -> Any:
        """Send a message and wait a few microseconds for its answer, unless answers took longer lately.

        Returns
        -------
        object
            The answer; `SENT` when it has not come yet, and None when the message was not sent.
        """
        if self._pause:
            self._pause -= 1
            return None
        if self.state is not KernelState.ACTIVE:
            return None
        fate, answer = self._ask(message, number, _QUICK_SECONDS)
        if fate == 0:
            self._misses = 0
            return answer
        self._misses = min(self._misses + 1, 8)
        self._pause = (1 << self._misses) - 1
        return SENT if fate == _UNANSWERED else None

    def _ask(self, message: Any, number: int, timeout: float | None) -> tuple[int, Any]:
        """Send a message and wait for its answer: what became of it, and the answer."""
        output = self._output
        found = self.link.ask(
            self.place.index,
            self.packed(message),
            number,
            message.priority,
            _deadline(message),
            timeout,
            0 if output is None else output.type_id,
        )
        if type(found) is bytes:
            self.answered += 1
            answer: Any = output._load(output, found, 0)  # type: ignore[union-attr]
            answer.correlation_id = number
            return 0, answer
        fate, parts = found
        if fate == 0:
            self.answered += 1
            return 0, self.loaded(parts)
        if fate == _DEAD:
            reason = REASONS.get(parts[0][3], "lost")
            self._tier.bury(parts)
            raise UndeliveredError(f"{message!r} to {self.kernel.kernel_id!r} was not answered: {reason}")
        if fate == _DROPPED:
            self.post.dead(self.kernel.kernel_id, message, "dropped_new")
            raise UndeliveredError(f"{message!r} to {self.kernel.kernel_id!r} was not answered: dropped_new")
        return fate, None

    def send_array(self, array: np.ndarray[Any, Any], timeout: float | None) -> int:
        """Send the messages of a structured array, with one copy."""
        if not self.state.is_open:
            raise ended_error(self)
        input_type = self.kernel.input_type
        assert input_type is not None
        if array.dtype != input_type.dtype:
            raise MessageError(f"the array has dtype {array.dtype}, and {input_type.__name__} has {input_type.dtype}")
        rows = np.ascontiguousarray(array).reshape(-1)
        first = Message._new_ids(len(rows))
        done, fate = self.link.send_rows(self.place.index, rows.view(np.uint8), first, timeout)
        if fate != _DROPPED:
            return int(done)
        for number, message in enumerate(input_type.from_array(rows[done:]), first + done):
            message.message_id = number
            self.post.dead(self.kernel.kernel_id, message, "dropped_new")
        return len(rows)

    def receive_array(self, n: int, timeout: float | None) -> np.ndarray[Any, Any]:
        """Up to `n` messages of the output as a structured array."""
        if self._output is None or self._output.dtype is None:
            raise MessageError(f"{self.kernel.kernel_id!r} has no output_type")
        rows = np.empty(n, self._output.dtype)
        flat = rows.view(np.uint8).reshape(n, -1)
        until = None if timeout is None else time.monotonic() + timeout
        count = 0
        while count < n:
            left = 0.05 if until is None else min(0.05, max(0.0, until - time.monotonic()))
            got = self.link.receive_into(self.place.index, flat[count:], rows.itemsize, left)
            count += got
            if not got and (self.outbox.is_finished or (until is not None and time.monotonic() >= until)):
                break
        return rows[:count]

    async def launch(self) -> None:
        """Put it on the device; it stands still."""
        try:
            self.place = await self._tier.place(self.kernel)
        except BaseException as error:
            self.error = error
            self.state = KernelState.FAILED
            raise
        self.ring = self._tier.ring
        assert self.kernel.input_type is not None
        assert self.kernel.input_type.dtype is not None
        self._size = self.kernel.input_type.dtype.itemsize
        self._launched_at = time.monotonic()
        self._tier.actors[self.place.index] = self
        self.state = KernelState.LAUNCHED

    async def activate(self) -> None:
        """Let it take its messages; the device has answered when this returns."""
        await self._order("ACTIVE", None)
        if self.state.is_open:
            self.state = KernelState.ACTIVE

    async def deactivate(self, timeout: float | None) -> None:
        """Let it stand still; the device has answered when this returns."""
        if not await self._order("PAUSED", timeout):
            await self._order("ACTIVE", None, waits=False)
            raise TimeoutError(
                f"{self.kernel.kernel_id!r} did not stand still within {timeout} s: its handler has not returned"
            )
        if not self.state.is_open:
            raise RingError(f"{self.kernel.kernel_id!r} became {self.state.name} while it was to be deactivated")
        self.state = KernelState.DEACTIVATED

    async def terminate(self, drain: bool, timeout: float | None) -> None:
        """Let it work on what was accepted, and end it."""
        if self.state.is_open:
            self.state = KernelState.TERMINATING
        elif self.state is not KernelState.TERMINATING:
            return
        if not hasattr(self, "place"):
            self._end(KernelState.TERMINATED)
            return
        self.unbind_output()
        if not await self._order("DRAINING" if drain else "ENDED", timeout):
            if drain and not await self._order("ENDED", 1.0):
                raise TimeoutError(
                    f"{self.kernel.kernel_id!r} has not finished within {timeout} s: its handler has not returned, and a "
                    "running handler cannot be stopped; it stays TERMINATING"
                )
            if not drain:
                raise TimeoutError(f"{self.kernel.kernel_id!r} has not ended within {timeout} s")
        await self._discarded()
        self._look_at_mode()
        if not self.state.is_over:
            self._end(KernelState.TERMINATED)

    async def _discarded(self) -> None:
        """Wait until what was left in the mailbox of an actor that has ended is with the dead letters."""
        until = time.monotonic() + _DISCARD_SECONDS
        while time.monotonic() < until:
            counts = self.figures()
            if counts["host_sent"] == counts["from_host"] and not counts["depth"]:
                return
            await asyncio.sleep(0.001)

    def unbind_output(self) -> None:
        """Let the output grow: whoever would make room there may be who waits for the end."""
        if hasattr(self, "place"):
            self.link.unbound(self.place.index)

    async def _order(self, mode: str, timeout: float | None, waits: bool = True) -> bool:
        done: bool = await self._tier.in_thread(
            lambda: self.link.set_mode(self.place.index, MODES[mode], timeout if waits else 0.0)
        )
        self._look_at_mode()
        return done

    def _look_at_mode(self) -> None:
        if hasattr(self, "place") and not self.state.is_over:
            mode = self.figures()["mode"]
            if mode == _FAILED:
                self.error = self.error or RingError("its handler reported a failure")
                self._end(KernelState.FAILED)

    def expect(self, calls: int) -> None:
        """Event loops wait for the answers of so many more calls, or fewer."""
        self.link.expect(calls)

    def figures(self) -> dict[str, int]:
        """What device and host have counted."""
        return dict(self.link.figures(self.place.index))

    def failed(self, error: BaseException) -> None:
        """The device is lost, and the actor with it."""
        if not self.state.is_over:
            self.error = error
            self._end(KernelState.FAILED)

    def _end(self, state: KernelState) -> None:
        self.state = state
        self._ended_at = time.monotonic()
        if hasattr(self, "place"):
            self.ring.retire(self.place)
        self.outbox.wake()
        self.post.fail_calls(self.kernel.kernel_id, ended_error(self))
        if state is KernelState.FAILED and self.kernel.escalate and self.error is not None:
            self._escalate(self.kernel.kernel_id, self.error)

    def telemetry(self) -> KernelTelemetry:
        """What happened so far; figures of the device are those it last showed, microseconds ago at rest."""
        if not hasattr(self, "place"):
            return _no_figures(self)
        counts = self.figures()
        waiting = counts["host_sent"] - counts["from_host"]
        depth = counts["depth"] + waiting if self.place.dedicated else max(counts["depth"], waiting)
        ended = ("processed", "failed", "displaced", "expired", "discarded")
        refused = counts["host_refused"]
        is_rejecting = self.kernel.backpressure.value == "reject"
        latency = _latency(self.link.buckets(self.place.index))
        until = self._ended_at or time.monotonic()
        return KernelTelemetry(
            kernel_id=self.kernel.kernel_id,
            state=self.state,
            received=sum(counts[name] for name in ended) + depth,
            processed=counts["processed"],
            failed=counts["failed"],
            in_progress=0,
            displaced=counts["displaced"],
            expired=counts["expired"],
            discarded=counts["discarded"],
            rejected=refused if is_rejecting else 0,
            dropped=0 if is_rejecting else refused,
            sent=counts["sent"],
            answered=self.answered,
            input_depth=depth,
            output_depth=counts["output_depth"],
            max_input_depth=max(counts["max_depth"], depth),
            max_output_depth=counts["output_depth"],
            wait=Latency(),
            latency=latency,
            busy=self._tier.seconds(counts["busy"]),
            uptime=until - self._launched_at if self._launched_at else 0.0,
            restarts=counts["restarts"],
            last_error=None if self.error is None else f"{type(self.error).__name__}: {self.error}",
        )


def _no_figures(actor: DeviceActor) -> KernelTelemetry:
    counts: dict[str, Any] = dict.fromkeys(
        (
            *("received", "processed", "failed", "in_progress", "displaced", "expired", "discarded", "rejected"),
            *("dropped", "sent", "answered", "input_depth", "output_depth", "max_input_depth", "max_output_depth"),
            "restarts",
        ),
        0,
    )
    error = None if actor.error is None else f"{type(actor.error).__name__}: {actor.error}"
    return KernelTelemetry(
        kernel_id=actor.kernel.kernel_id,
        state=actor.state,
        wait=Latency(),
        latency=Latency(),
        busy=0.0,
        uptime=0.0,
        last_error=error,
        **counts,
    )


def _latency(buckets: Sequence[int]) -> Latency:
    """Percentiles of counts by powers of two of nanoseconds."""
    count = sum(buckets)
    if not count:
        return Latency()
    edges = [1.5 * 2.0 ** (i - 1) * 1e-9 for i in range(BUCKETS)]

    def at(part: float) -> float:
        left = part * count
        for edge, here in zip(edges, buckets, strict=True):
            left -= here
            if left <= 0:
                return edge
        return edges[-1]

    mean = sum(edge * here for edge, here in zip(edges, buckets, strict=True)) / count
    largest = max(i for i, here in enumerate(buckets) if here)
    return Latency(count, mean, at(0.5), at(0.9), at(0.99), at(0.999), 2.0**largest * 1e-9)


class DeviceTier:
    """A runtime's device actors: the ring they share, and what comes from it."""

    def __init__(self, post: Post, options: RingOptions) -> None:
        self._post = post
        self._options = options
        self._ring: DeviceRing | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._pending: list[tuple[RingKernel, asyncio.Future[Place]]] = []
        self._adding: asyncio.Task[None] | None = None
        self._types: dict[int, type[Message]] = {}
        self.actors: dict[int, DeviceActor] = {}

    @property
    def ring(self) -> DeviceRing:
        """The ring; there is one when the first actor is launched."""
        assert self._ring is not None
        return self._ring

    @property
    def is_made(self) -> bool:
        """Was a device actor launched?"""
        return self._ring is not None

    def type_of(self, kind: int) -> type[Message] | None:
        """The class of a message's type."""
        return self._types.get(kind)

    def seconds(self, cycles: int) -> float:
        """Time of the device's clock cycles."""
        return self._ring.cycle_seconds * cycles if self._ring is not None else 0.0

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run something that waits for the device."""
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def place(self, kernel: RingKernel) -> Place:
        """Put a kernel on the device, together with all others that are launched at the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Place] = loop.create_future()
        self._pending.append((kernel, future))
        if self._adding is None or self._adding.done():
            self._adding = loop.create_task(self._add())
        return await future

    async def _add(self) -> None:
        await asyncio.sleep(0)
        while self._pending:
            pending, self._pending = self._pending, []
            kernels = [kernel for kernel, _ in pending]
            try:
                ring = await self._open()
                places = await self.in_thread(lambda ring=ring, kernels=kernels: ring.add(kernels))  # type: ignore[misc]
            except BaseException as error:
                if len(pending) > 1:
                    # One of them is wrong: each is told for itself.
                    for one in pending:
                        await self._add_one(one)
                    continue
                _settle(pending[0][1], error)
                continue
            for (kernel, future), place in zip(pending, places, strict=True):
                self._learn(kernel)
                if not future.done():
                    future.set_result(place)

    async def _open(self) -> DeviceRing:
        """The ring; a new one for the first actor, and for the first one after it was closed."""
        if self._ring is None or self._ring.is_closed:
            self._ring = await self.in_thread(lambda: DeviceRing(self._options))
            self.actors = {}
            self._listen()
        return self._ring

    async def _add_one(self, one: tuple[RingKernel, asyncio.Future[Place]]) -> None:
        kernel, future = one
        try:
            ring = await self._open()
            [place] = await self.in_thread(lambda: ring.add([kernel]))
        except BaseException as error:
            _settle(future, error)
            return
        self._learn(kernel)
        if not future.done():
            future.set_result(place)

    def _learn(self, kernel: RingKernel) -> None:
        for one in (kernel.input_type, kernel.output_type):
            if one is not None:
                self._types[one.type_id] = one

    def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._fd, self._signalled)
        self.ring.link.signal(self._fd)

    def _signalled(self) -> None:
        """Something came that is for the event loop."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
        self.ring.link.signalled()
        self._collect()

    def _collect(self) -> None:
        link = self.ring.link
        for parts in link.take_answers():
            actor = self.actors.get(parts[0][6])
            if actor is not None:
                actor.answered += 1
                self._post.answer(actor.kernel.kernel_id, actor.loaded(parts))
        for parts in link.take_letters():
            self.bury(parts)
        failure = link.failure()
        if failure is not None:
            error = ActorFailedError(f"the ring is lost: {failure}")
            for actor in list(self.actors.values()):
                actor.failed(error)
        for actor in list(self.actors.values()):
            actor.outbox.wake()

    def bury(self, parts: Any) -> None:
        """Note a message that reached nobody."""
        (kind, _, priority, reason, number, correlation, _, destination, *_), payload = parts
        actor = self.actors.get(destination)
        name = actor.kernel.kernel_id if actor is not None else f"actor {destination}"
        cls = self.type_of(kind)
        message: Any = payload
        if cls is not None:
            message = cls._load(cls, payload, 0)  # type: ignore[attr-defined]
            message.message_id, message.correlation_id, message.priority = number, correlation, priority
        why = REASONS.get(reason, "lost")
        self._post.dead(name, message, why)
        if why == "failed" and actor is not None and self._loop is not None:
            # The device says so a moment later.
            self._loop.call_soon_threadsafe(self._check_failed, actor, 20)

    def _check_failed(self, actor: DeviceActor, tries: int) -> None:
        actor._look_at_mode()
        if tries and not actor.state.is_over and self._loop is not None and not self._loop.is_closed():
            self._loop.call_later(0.005, self._check_failed, actor, tries - 1)

    async def close(self) -> None:
        """End the kernel."""
        if self._ring is None or self._ring.is_closed:
            return
        ring = self._ring
        try:
            await self.in_thread(ring.close)
        finally:
            self._collect()
            if self._loop is not None and self._fd >= 0:
                self._loop.remove_reader(self._fd)
                ring.link.signal(-1)
                os.close(self._fd)
                self._fd = -1


def _settle(future: asyncio.Future[Place], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
