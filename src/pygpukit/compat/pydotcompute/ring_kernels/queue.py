"""`MessageQueue`: a bounded queue for coroutines, which is a mailbox of the ring."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from pygpukit._pygpukit_rust import RingQueue
from pygpukit.compat.pydotcompute.exceptions import KernelStateError, QueueFullError, QueueTimeoutError
from pygpukit.compat.pydotcompute.ring_kernels.envelope import Envelope, priority_of
from pygpukit.ring.limits import check_timeout
from pygpukit.ring.waiting import ACCEPTED, CLOSED, DROPPED, FULL, UNBOUNDED, next_message, put_message

__all__ = ["BackpressureStrategy", "FullTimeoutError", "MessageQueue", "PriorityItem", "RingMailbox"]

T = TypeVar("T")


class BackpressureStrategy(Enum):
    """What happens to a message for a full queue."""

    BLOCK = 1
    """Its sender waits for room."""
    REJECT = 2
    """Its sender gets a `QueueFullError`."""
    DROP_OLDEST = 3
    """The oldest of the least urgent messages is dropped for it."""


@dataclass(order=True)
class PriorityItem(Generic[T]):
    """A message with its place in an order: by priority, then by number."""

    priority: int
    sequence: int
    message: T = field(compare=False)


class FullTimeoutError(QueueTimeoutError, QueueFullError):
    """The time to wait for room is over, and the queue is still full."""

    def __init__(self, kernel_id: str, queue_size: int, timeout: float) -> None:
        self.kernel_id, self.queue_size = kernel_id, queue_size
        self.timeout, self.operation = timeout, "send"
        Exception.__init__(self, f"the queue of {kernel_id!r} was full with {queue_size} messages for {timeout} s")


class RingMailbox(Generic[T]):
    """What the queues have in common: a mailbox of the ring, and its errors in PyDotCompute's words."""

    _ring: RingQueue
    _maxsize: int
    _kernel_id: str

    def _open(self, maxsize: int, policy: str, kernel_id: str) -> None:
        self._ring = RingQueue(maxsize if maxsize > 0 else UNBOUNDED, policy)
        self._maxsize = maxsize
        self._kernel_id = kernel_id

    def _join(self, ring: RingQueue) -> None:
        """Stand for the mailbox of an actor from now on."""
        self._ring = ring

    def _sealed(self, message: Any) -> Envelope:
        """The message as the mailbox takes it."""
        return Envelope(message, priority_of(message))

    def _opened(self, envelope: Any) -> Any:
        """The message that was in it."""
        return envelope.body

    @property
    def maxsize(self) -> int:
        """Most messages it holds; 0 for any number."""
        return self._maxsize

    @property
    def qsize(self) -> int:
        """Messages in it."""
        return int(self._ring.depth)

    @property
    def empty(self) -> bool:
        """Is there no message?"""
        return self.qsize == 0

    @property
    def full(self) -> bool:
        """Is there no room?"""
        return 0 < self._maxsize <= self.qsize

    async def put(self, message: T, *, timeout: float | None = None) -> bool:
        """Put a message in.

        Raises
        ------
        QueueFullError
            If the queue is full and rejects more.
        QueueTimeoutError
            If there was no room within `timeout` seconds; it is a `QueueFullError` too.
        """
        envelope = self._sealed(message)
        outcome = self._ring.try_put(envelope)
        if outcome == FULL:
            outcome = await put_message(self._ring, envelope, check_timeout(timeout))
        if outcome == FULL:
            raise FullTimeoutError(self._kernel_id, self._maxsize, timeout or 0.0)
        if outcome == CLOSED:
            raise KernelStateError(self._kernel_id, "TERMINATED", "send message")
        if outcome not in (ACCEPTED, DROPPED):
            raise QueueFullError(self._kernel_id, self._maxsize)
        self._entered(envelope)
        return True

    async def get(self, *, timeout: float | None = None) -> T:
        """The next message.

        Raises
        ------
        QueueTimeoutError
            If none came within `timeout` seconds.
        """
        try:
            envelope = await next_message(self._ring, check_timeout(timeout))
        except TimeoutError as error:
            raise QueueTimeoutError(self._kernel_id, timeout or 0.0, "receive") from error
        if envelope is None:
            raise KernelStateError(self._kernel_id, "TERMINATED", "receive message")
        self._left(envelope)
        message: T = self._opened(envelope)
        return message

    def put_nowait(self, message: T) -> bool:
        """Put a message in if that can be done at once; whether it was."""
        envelope = self._sealed(message)
        if self._ring.try_put(envelope) not in (ACCEPTED, DROPPED):
            return False
        self._entered(envelope)
        return True

    def get_nowait(self) -> T | None:
        """The next message, or None."""
        envelope = self._ring.try_get()
        if envelope is None:
            return None
        self._left(envelope)
        message: T = self._opened(envelope)
        return message

    def clear(self) -> int:
        """Take all messages out; how many there were."""
        dropped = self._ring.discard()
        for envelope in dropped:
            self._left(envelope)
        return len(dropped)

    def get_stats(self) -> dict[str, Any]:
        """How many messages are in it, and how many were put in, taken out and dropped."""
        counts = self._ring.counts()
        return {
            "current_size": counts["depth"],
            "max_size": self._maxsize,
            "total_enqueued": counts["accepted"],
            "total_dequeued": counts["delivered"],
            "total_dropped": counts["displaced"] + counts["dropped"],
        }

    def _entered(self, envelope: Envelope) -> None:
        """A message was put in."""

    def _left(self, envelope: Envelope) -> None:
        """A message was taken out."""

    def __len__(self) -> int:
        return self.qsize

    def __bool__(self) -> bool:
        # An empty queue is a queue.
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.qsize}/{self._maxsize})"


class MessageQueue(RingMailbox[T]):
    """A bounded queue with priorities.

    Parameters
    ----------
    maxsize : int
        Most messages it holds; 0 for any number.
    backpressure : BackpressureStrategy
        What happens to a message when it is full.
    use_priority : bool
        Give the message with the largest priority first; else the oldest.
    kernel_id : str
        For the text of errors.

    Examples
    --------
    >>> queue = MessageQueue(maxsize=2, backpressure=BackpressureStrategy.REJECT)
    >>> queue.put_nowait("a"), queue.put_nowait("b"), queue.put_nowait("c")
    (True, True, False)
    """

    def __init__(
        self,
        maxsize: int = 4096,
        *,
        backpressure: BackpressureStrategy = BackpressureStrategy.BLOCK,
        use_priority: bool = True,
        kernel_id: str = "",
    ) -> None:
        self._backpressure = backpressure
        self._use_priority = use_priority
        self._open(maxsize, backpressure.name.lower(), kernel_id)

    def _sealed(self, message: Any) -> Envelope:
        return Envelope(message, priority_of(message) if self._use_priority else 0)

    def __repr__(self) -> str:
        size = f"size={self.qsize}/{self._maxsize}"
        return f"MessageQueue({size}, priority={self._use_priority}, backpressure={self._backpressure.name})"
