"""What a tier of actors implements: mailboxes, and actors that own two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.states import KernelState
from pygpukit.ring.telemetry import KernelTelemetry

if TYPE_CHECKING:
    from pygpukit.ring.post import Post

__all__ = ["SENT", "Actor", "Mailbox"]

SENT: Any = object()
"""Of a message that was sent and whose answer is still to come."""


class Mailbox(Protocol):
    """A bounded queue of messages, for threads and for event loops. `RingQueue` is the one in host memory.

    Putting returns 0 accepted, 1 dropped, 2 rejected, 3 full, 4 closed. An ``await_...`` method has a future of the
    calling thread's event loop set to None when it is time to try again, and returns a ticket for `forget`, or 0 when
    that is now.
    """

    @property
    def capacity(self) -> int:
        """Most messages it holds."""

    @property
    def is_paused(self) -> bool:
        """Does it hold its messages back?"""

    @property
    def is_finished(self) -> bool:
        """Is it closed and empty?"""

    def try_put(self, message: Any, /) -> int:
        """Put a message in without waiting."""

    def put(self, message: Any, timeout: float | None = None) -> int:
        """Put a message in, waiting for room where that is the policy."""

    def put_many(self, messages: Sequence[Any], timeout: float | None = None) -> tuple[int, int]:
        """Put messages in until one cannot be; how many, and what became of the last."""

    def try_get(self) -> Any:
        """The next message, or None."""

    def get_or_wait(self, event_loop: asyncio.AbstractEventLoop, /) -> Any:
        """The next message, None when none will come, or a future that is set when it is time to ask again."""

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next message; None when the time is over, or none will come."""

    def get_many(self, n: int, timeout: float | None = 0.0) -> list[Any]:
        """Up to `n` messages."""

    def await_item(self, future: asyncio.Future[Any], event_loop: asyncio.AbstractEventLoop, /) -> int:
        """For a message."""

    def await_space(self, future: asyncio.Future[Any], event_loop: asyncio.AbstractEventLoop, /) -> int:
        """For room."""

    def await_active(self, future: asyncio.Future[Any], event_loop: asyncio.AbstractEventLoop, /) -> int:
        """For the end of a pause."""

    def forget(self, ticket: int, /) -> None:
        """Give up a wait."""

    def forget_future(self, future: asyncio.Future[Any], /) -> None:
        """Give up a wait of `get_or_wait`."""


class Actor(Protocol):
    """A launched kernel. The runtime calls its methods in the runtime's event loop, one at a time."""

    @property
    def kernel(self) -> RingKernel:
        """What it runs."""

    @property
    def post(self) -> Post:
        """The runtime's calls and dead letters."""

    @property
    def state(self) -> KernelState:
        """Where it is in its life."""

    @property
    def error(self) -> BaseException | None:
        """What it raised last."""

    @property
    def inbox(self) -> Mailbox:
        """What it is sent."""

    @property
    def outbox(self) -> Mailbox:
        """What it sends without another receiver. Answers to calls go to `Post.answer` instead."""

    def call(self, message: Any, timeout: float | None) -> Any:
        """Send a message and wait for its answer in this thread, which is none of an event loop's."""

    def try_call(self, message: Any) -> Any:
        """Send a call if its answer may come at once: the answer, `SENT`, or None if it was not sent."""

    def expect(self, calls: int) -> None:
        """Event loops wait for the answers of so many more calls, or fewer."""

    def took(self, replies: int) -> None:
        """So many replies that others follow were read."""

    def send_array(self, array: np.ndarray[Any, Any], timeout: float | None) -> int:
        """Send the messages of a structured array in this thread; how many were accepted."""

    def receive_array(self, n: int, timeout: float | None) -> np.ndarray[Any, Any]:
        """Up to `n` messages of the output mailbox as a structured array, waiting for them in this thread."""

    async def launch(self) -> None:
        """Start it, with its inbox paused."""

    async def activate(self) -> None:
        """Deliver its messages, for the first time or again."""

    async def deactivate(self, timeout: float | None, wait: bool = True) -> None:
        """Stop delivering, and return when it stands still, or without `wait` at once if it is a host actor."""

    async def terminate(self, drain: bool, timeout: float | None) -> None:
        """Accept nothing more, let it work on what was accepted, and end it; a second call waits for the same end."""

    def unbind_output(self) -> None:
        """Let the outbox grow beyond its size from now on."""

    def telemetry(self) -> KernelTelemetry:
        """What happened so far."""

    def abandon(self, error: BaseException) -> None:
        """This process was forked from the one where it runs: it is none of this one, where it has failed."""
