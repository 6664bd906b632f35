"""`KernelContext`: what an actor's function is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pygpukit.compat.pydotcompute.exceptions import QueueFullError, QueueTimeoutError
from pygpukit.compat.pydotcompute.ring_kernels.envelope import Envelope
from pygpukit.compat.pydotcompute.ring_kernels.fast_queue import FastMessageQueue
from pygpukit.compat.pydotcompute.ring_kernels.queue import MessageQueue, RingMailbox
from pygpukit.compat.pydotcompute.ring_kernels.telemetry import RingKernelTelemetry
from pygpukit.errors import MailboxFullError
from pygpukit.ring.context import ActorExit, CoroutineContext

__all__ = ["KernelContext", "LaunchedContext"]

# So often an actor that is to end may look at `should_terminate` between two messages.
_ASKED_IN_VAIN = 4

TIn = TypeVar("TIn")
TOut = TypeVar("TOut")


@dataclass
class KernelContext(Generic[TIn, TOut]):
    """An actor's side of its queues. One made by hand has no actor: it is not active, and never told to end."""

    kernel_id: str
    input_queue: MessageQueue[TIn] | FastMessageQueue[TIn]
    output_queue: MessageQueue[TOut] | FastMessageQueue[TOut]

    @property
    def should_terminate(self) -> bool:
        """Is the actor to end, with all done that was accepted?"""
        return False

    @property
    def is_active(self) -> bool:
        """Are messages delivered?"""
        return False

    async def receive(self, timeout: float | None = None) -> TIn:
        """The next message; `QueueTimeoutError` when none came within `timeout` seconds."""
        return await self.input_queue.get(timeout=timeout)

    async def send(self, message: TOut) -> None:
        """Put a message into the output queue, or give it to the caller that waits for it."""
        await self.output_queue.put(message)

    async def wait_active(self) -> None:
        """Wait until the actor is active."""
        if not self.is_active:
            await asyncio.get_running_loop().create_future()


class LaunchedContext(KernelContext[Any, Any]):
    """The context of an actor of the ring.

    Parameters
    ----------
    kernel_id : str
        The actor.
    queues : tuple
        Its input and output queue.
    inner : CoroutineContext
        Its context in the ring.
    telemetry : RingKernelTelemetry
        Where its messages are counted.
    is_closed : callable
        Is nothing more accepted?
    """

    def __init__(
        self,
        kernel_id: str,
        queues: tuple[Any, Any],
        inner: CoroutineContext,
        telemetry: RingKernelTelemetry,
        is_closed: Callable[[], bool],
    ) -> None:
        super().__init__(kernel_id, *queues)
        self._inner = inner
        self._telemetry = telemetry
        self._is_closed = is_closed
        self._received: Envelope | None = None
        self._callers: dict[Any, Envelope] = {}
        self._asked = 0
        self.timed_out: tuple[QueueTimeoutError, TimeoutError] | None = None
        """The last timeout of `receive`, and the ring's that caused it."""
        self.told: QueueTimeoutError | None = None
        """What `receive` raised because the actor is to end."""

    @property
    def should_terminate(self) -> bool:
        if self._inner.should_terminate:
            return True
        if not self._is_closed():
            return False
        # Messages are left. A loop that asks this again and again and takes none would never end.
        self._asked += 1
        return self._asked > _ASKED_IN_VAIN

    @property
    def is_active(self) -> bool:
        return self._inner.is_active

    async def receive(self, timeout: float | None = None) -> Any:
        self.finished()
        self._asked = 0
        try:
            envelope = await self._inner.receive(timeout)
        except TimeoutError as error:
            self.timed_out = QueueTimeoutError(self.kernel_id, timeout or 0.0, "receive"), error
            raise self.timed_out[0] from error
        except ActorExit:
            await self._tell_end(timeout)
            raise
        self._received = envelope
        if isinstance(self.input_queue, RingMailbox):
            self.input_queue._left(envelope)
        if envelope._is_call:
            self._callers[getattr(envelope.body, "message_id", None)] = envelope
        return envelope.body

    async def send(self, message: Any) -> None:
        envelope = self.output_queue._sealed(message)
        request = self._request_of(message)
        if request is not None:
            self._callers = {key: one for key, one in self._callers.items() if one is not request}
            request.reply(envelope)
        elif self._inner.current is not None and self._inner.current._is_call:
            # Its caller has the answer; this message goes to the output queue.
            self._inner.current = None
        try:
            await self._inner.send(envelope)
        except MailboxFullError as error:
            raise QueueFullError(self.kernel_id, self.output_queue.maxsize) from error
        if request is None:
            self.output_queue._entered(envelope)
        self.finished()

    async def wait_active(self) -> None:
        self._asked = 0
        await self._inner.wait_active()

    def finished(self) -> None:
        """The message received last is done: it was answered, or the actor came back for more."""
        if self._received is not None:
            self._telemetry.record_message(time.monotonic_ns() - self._received.put_ns)
            self._received = None

    def _request_of(self, message: Any) -> Envelope | None:
        """The call that a message answers: the one it names, one of its own number, or the one received last."""
        if not self._callers:
            return None
        for key in (getattr(message, "correlation_id", None), getattr(message, "message_id", None)):
            if key is not None and key in self._callers:
                return self._callers[key]
        current = self._inner.current
        return current if any(one is current for one in self._callers.values()) else None

    async def _tell_end(self, timeout: float | None) -> None:
        """Let a loop end by itself where it looks at `should_terminate`, so that what follows it is done."""
        if timeout is None:
            raise asyncio.CancelledError(f"{self.kernel_id!r} is to end, and no message will come") from None
        # A loop that does not look there waits each time.
        await asyncio.sleep(0 if self.told is None else timeout)
        self.told = QueueTimeoutError(self.kernel_id, timeout, "receive")
        raise self.told from None
