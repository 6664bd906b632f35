"""Device actors as the runtime sees them: calls, states, figures."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit.errors import DeviceError, MessageError, RingError, UndeliveredError
from pygpukit.ring.actor import SENT
from pygpukit.ring.delivery import check_outcome, ended_error
from pygpukit.ring.device import DeviceRing, Place
from pygpukit.ring.device_mailbox import OUTCOMES, DeviceInbox, DeviceOutbox
from pygpukit.ring.device_tier import DeviceTier
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.kinds import brief
from pygpukit.ring.limits import end_of, left_of, part_of
from pygpukit.ring.message import Message
from pygpukit.ring.post import Post
from pygpukit.ring.states import KernelState
from pygpukit.ring.tables import BUCKETS, MODES, REASONS
from pygpukit.ring.telemetry import KernelTelemetry, Latency
from pygpukit.ring.waiting import FULL, in_turn
from pygpukit.ring.worker_ring import WorkerRing

__all__ = ["DeviceActor"]

_DROPPED, _DEAD, _UNANSWERED = 2, 4, 5

_FAILED = MODES["FAILED"]

_ACTIVE = KernelState.ACTIVE

# How long an event loop stands still for an answer that is about to come: less than it takes to come back to it later.
_QUICK_SECONDS = 15e-6

# How often an actor whose end nobody waits for is looked at.
_FINISH_SECONDS = 0.05

# How long the device may take to give back what an actor that has ended did not handle.
_DISCARD_SECONDS = 5.0


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
    ring: DeviceRing | WorkerRing
    link: Any
    """The host's end of the ring."""
    _ask: Callable[..., Any]

    def __init__(
        self, kernel: RingKernel, post: Post, tier: DeviceTier, escalate: Callable[[str, BaseException], None]
    ) -> None:
        self.kernel = kernel
        self.post = post
        self.state = KernelState.CREATED
        self.error: BaseException | None = None
        self.inbox = DeviceInbox(self)
        self.outbox = DeviceOutbox(self, tier.awaited)
        self._misses = self._pause = 0
        self._tier = tier
        self._escalate = escalate
        self._output = kernel.output_type
        self._launched_at = self._ended_at = 0.0
        self._index = 0
        self._expected = 0
        self._finishing: asyncio.Future[None] | None = None
        # Held from an order to activate or to deactivate until the device has answered it.
        self._orders = asyncio.Lock()
        self._ordering: asyncio.Future[None] | None = None
        self._launching = threading.Lock()

    def is_launching(self) -> bool:
        """Is it still on its way to the device?"""
        return self.state is KernelState.CREATED

    def packed(self, message: Any) -> bytes:
        """A message's bytes."""
        try:
            packed: bytes = message._packed()
        except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise MessageError(f"{brief(message)} does not fit its layout: {error}") from error
        if type(packed) is not bytes or len(packed) != message.dtype.itemsize:
            size = message.dtype.itemsize
            raise MessageError(
                f"{brief(message)} does not fit its layout: its fields gave {packed[:100]!r}, not {size} bytes"
            )
        return packed

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
        if self.state is not _ACTIVE:
            timeout = self._open_within(timeout)
        found = self._ask(message, timeout)
        if found is None:
            self.packed(message)
            raise MessageError(f"{brief(message)} was changed while it was being sent")
        if type(found) is not tuple:
            return found
        fate, answer = self._fate(message, found)
        if fate == 0:
            return answer
        if fate == _UNANSWERED:
            raise TimeoutError(f"{self.kernel.kernel_id!r} did not answer within {timeout} s")
        check_outcome(self, OUTCOMES[fate], timeout)
        raise ended_error(self)

    def _open_within(self, timeout: float | None) -> float | None:
        """Wait in this thread until messages are accepted; the time that is left."""
        left = self.inbox.await_launch(timeout)
        if self.is_launching():
            check_outcome(self, FULL, timeout)
        if not self.state.is_open:
            raise ended_error(self)
        return left

    def try_call(self, message: Any) -> Any:
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
        found = self._ask(message, _QUICK_SECONDS, True)
        if found is None:
            self.packed(message)
            return None
        if type(found) is not tuple:
            self._misses = 0
            return found
        fate, answer = self._fate(message, found)
        if fate == 0:
            self._misses = 0
            return answer
        self._misses = min(self._misses + 1, 8)
        self._pause = (1 << self._misses) - 1
        return SENT if fate == _UNANSWERED else None

    def _fate(self, message: Any, found: tuple[int, Any]) -> tuple[int, Any]:
        """What became of a call that was not just answered, and the answer."""
        fate, parts = found
        if fate == 0:
            return 0, self.loaded(parts)
        if fate == _DEAD:
            reason = REASONS.get(parts[0][3], "lost")
            self._tier.bury(parts)
            raise UndeliveredError(f"{brief(message)} to {self.kernel.kernel_id!r} was not answered: {reason}")
        if fate == _DROPPED:
            self.post.dead(self.kernel.kernel_id, message, "dropped_new")
            raise UndeliveredError(f"{brief(message)} to {self.kernel.kernel_id!r} was not answered: dropped_new")
        return fate, None

    def send_array(self, array: np.ndarray[Any, Any], timeout: float | None) -> int:
        """Send the messages of a structured array, with one copy."""
        timeout = self._open_within(timeout)
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
        timeout = self.inbox.await_launch(timeout)
        if not hasattr(self, "link"):
            return np.empty(0, self._output.dtype)
        rows = np.empty(n, self._output.dtype)
        flat = rows.view(np.uint8).reshape(n, -1)
        until = end_of(timeout)
        count = 0
        try:
            while count < n:
                left = part_of(until, 0.05)
                try:
                    got = self.link.receive_into(self.place.index, flat[count:], rows.itemsize, left)
                except DeviceError:
                    # The ring was closed: what had come is there.
                    if count or not self.outbox.is_finished:
                        break
                    raise ended_error(self) from None
                count += got
                if not got and (self.outbox.is_finished or left_of(until) == 0.0):
                    break
        except BaseException:
            self.link.give_back(self.place.index, flat[:count], rows.itemsize)
            raise
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
        with self._launching:
            self.link = self.ring.link
            if self._expected:
                self.link.expect(self._expected)
        self._index = self.place.index
        self._ask = self.link.caller(self._index, self._output).ask
        self._launched_at = time.monotonic()
        self.state = KernelState.LAUNCHED
        self._tier.enrol(self)

    async def activate(self) -> None:
        """Let it take its messages; the device has answered when this returns."""
        # What is ordered happens, also when whoever waits for it is cancelled.
        self._ordering = asyncio.ensure_future(self._activate())
        await asyncio.shield(self._ordering)

    async def _activate(self) -> None:
        async with self._orders:
            if self.state.is_open:
                await self._order("ACTIVE", None)
            if self.state.is_open:
                self.state = KernelState.ACTIVE

    async def deactivate(self, timeout: float | None, wait: bool = True) -> None:
        """Let it stand still; the device has answered when this returns, whatever `wait` says."""
        until = end_of(timeout)
        if not await in_turn(self._orders, until):
            raise self._not_still(timeout)
        if self.state is not KernelState.ACTIVE:
            # By whoever had the turn before, or it ends.
            self._orders.release()
            self._check_open()
            return
        pausing = asyncio.ensure_future(self._order("PAUSED", left_of(until)))
        try:
            if not await asyncio.shield(pausing):
                raise self._not_still(timeout)
            self._check_open()
        except BaseException:
            self._ordering = asyncio.ensure_future(self._undo(pausing))
            raise
        self.state = KernelState.DEACTIVATED
        self._orders.release()

    def _check_open(self) -> None:
        if not self.state.is_open:
            raise RingError(f"{self.kernel.kernel_id!r} became {self.state.name} while it was to be deactivated")

    def _not_still(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"{self.kernel.kernel_id!r} did not stand still within {timeout} s: its handler has not returned"
        )

    async def _undo(self, pausing: asyncio.Future[bool]) -> None:
        """Activate it again, after an order that nobody wants any more, which may still be on its way."""
        try:
            await asyncio.wait([pausing])
            if self.state.is_open and not self.ring.is_closed and pausing.exception() is None:
                await self._order("ACTIVE", None, waits=False)
        finally:
            self._orders.release()

    async def terminate(self, drain: bool, timeout: float | None) -> None:
        """Let it work on what was accepted, and end it."""
        if self.state.is_open:
            self.state = KernelState.TERMINATING
        elif self.state is not KernelState.TERMINATING:
            return
        if not hasattr(self, "place"):
            self._end(KernelState.TERMINATED)
            return
        # Whoever waits for room now would be told that the message was accepted, and it would go to the dead letters.
        self.link.close(self.place.index)
        self.unbind_output()
        try:
            await self._order_end(drain, timeout)
        except BaseException:
            # It ends when its handler returns.
            if self._finishing is None:
                self._finishing = asyncio.ensure_future(self._finish())
            raise
        await self._discarded()
        self._look_at_mode()
        # Answers that have come are no answers missed.
        self._tier.collect()
        if not self.state.is_over:
            self._end(KernelState.TERMINATED)

    async def _finish(self) -> None:
        """Note the end of an actor that nobody waits for any more."""
        while not self.state.is_over and not self.ring.is_closed:
            if self.figures()["mode"] >= MODES["ENDED"]:
                await self.terminate(True, None)
                return
            await asyncio.sleep(_FINISH_SECONDS)

    async def _order_end(self, drain: bool, timeout: float | None) -> None:
        was_ordered = self._orders.locked()
        until = end_of(timeout)
        await self._order_last(drain, timeout)
        if was_ordered:
            # What was ordered before may have reached the device after it. Now that is answered, and no more follows.
            async with self._orders:
                await self._order_last(drain, left_of(until))

    async def _order_last(self, drain: bool, timeout: float | None) -> None:
        if not await self._order("DRAINING" if drain else "ENDED", timeout):
            if drain and not await self._order("ENDED", 1.0):
                raise TimeoutError(
                    f"{self.kernel.kernel_id!r} has not finished within {timeout} s: its handler has not returned, and "
                    "a running handler cannot be stopped; it stays TERMINATING until it does"
                )
            if not drain:
                raise TimeoutError(f"{self.kernel.kernel_id!r} has not ended within {timeout} s")

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

    def took(self, replies: int) -> None:
        """The actor may send so many more."""
        if hasattr(self, "link"):
            self.link.took(self._index, replies)

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
        if not hasattr(self, "link"):
            with self._launching:
                if not hasattr(self, "link"):
                    self._expected += calls
                    return
        self.link.expect(calls)

    def figures(self) -> dict[str, int]:
        """What device and host have counted."""
        return dict(self.link.figures(self.place.index))

    def lost(self, error: BaseException, is_restarted: bool) -> None:
        """The device is lost, and the actor with it unless it was started again elsewhere."""
        if not self.state.is_over:
            self.error = error
            if not is_restarted:
                self._end(KernelState.FAILED)

    def abandon(self, error: BaseException) -> None:
        """It runs in the process that this one was forked from."""
        self.state, self.error = KernelState.FAILED, error
        # What they lead to is the other process's, and the same memory.
        for name in ("link", "place", "_ask"):
            self.__dict__.pop(name, None)

    def _end(self, state: KernelState) -> None:
        self.state = state
        self._ended_at = time.monotonic()
        if hasattr(self, "place"):
            self.link.close(self.place.index)
            self.link.end_calls(self.place.index)
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
        ticks, missed_ticks = self.ring.ticks_of(self.place.index)
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
            answered=counts["answered"],
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
            ticks=ticks,
            missed_ticks=missed_ticks,
            stuck=self._index in self.link.stuck_actors(),
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
