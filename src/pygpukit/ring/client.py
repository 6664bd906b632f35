"""`RingClient`: one kernel's mailboxes for threads, without an event loop."""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import set_patience
from pygpukit.errors import ForkError, RingError
from pygpukit.ring.actor import Actor
from pygpukit.ring.delivery import check_input, check_outcome, ended_error
from pygpukit.ring.limits import MOST_SECONDS, check_timeout
from pygpukit.ring.replies import Replies
from pygpukit.ring.waiting import ACCEPTED

__all__ = ["RingClient", "check_wait"]

# Seconds that a wait stays awake before it sleeps, by the name of the strategy; None for what is best for most.
_PATIENCE = {"hybrid": None, "spin": math.inf, "sleep": 0.0}

_get_running_loop = asyncio._get_running_loop


def check_wait(wait: str, whose: str = "") -> None:
    """Refuse a strategy that there is not; `whose` clients can have the default only."""
    choices = {"hybrid": None} if whose else _PATIENCE
    if wait not in choices:
        of = f" of {whose}," if whose else ""
        raise ValueError(f"wait{of} must be {' or '.join(map(repr, choices))}, not {wait!r}")


class RingClient:
    """Send and receive from any thread; made by `RingKernelRuntime.client`.

    It belongs to one launch of the kernel. Waiting is done without the interpreter's lock. In the runtime's own event
    loop it is refused, because the loop would wait for itself: await the runtime's methods there.
    """

    def __init__(self, actor: Actor, loop: asyncio.AbstractEventLoop, wait: str = "hybrid") -> None:
        self._actor = actor
        self._loop = loop
        self._post = actor.post
        self._input_type = actor.kernel.input_type
        self._patience = _PATIENCE[wait]
        self._call = self._waiting(actor.call)
        self._put = self._waiting(actor.inbox.put)
        self._get = self._waiting(actor.outbox.get)

    @property
    def kernel_id(self) -> str:
        """Id of the kernel."""
        return self._actor.kernel.kernel_id

    def send(self, message: Any, timeout: float | None = None) -> bool:
        """Send a message.

        Parameters
        ----------
        message : message
            Of the kernel's input type.
        timeout : float, optional
            Seconds to wait for room, where the policy is to wait.

        Returns
        -------
        bool
            True when it was accepted; False when it was dropped, as the policy says.

        Raises
        ------
        TimeoutError
            If there was no room in time.
        MailboxFullError
            If the mailbox is full and the policy is to reject.
        """
        self._check_open()
        if type(message) is not self._input_type:
            check_input(self._actor, message)
        timeout = check_timeout(timeout)
        if message._is_call:
            message = message._copy()
        outcome = self._put(message, timeout)
        return outcome == ACCEPTED or check_outcome(self._actor, outcome, timeout)

    def receive(self, timeout: float | None = None) -> Any:
        """The next message of the output mailbox.

        Raises
        ------
        TimeoutError
            If none came in time.
        RingError
            If the kernel has ended and nothing is left.
        """
        self._check_thread()
        timeout = check_timeout(timeout)
        message = self._get(timeout)
        if message is None:
            if self._actor.outbox.is_finished:
                raise ended_error(self._actor)
            raise TimeoutError(f"{self.kernel_id!r} sent nothing within {timeout} s")
        return message

    def call(self, message: Any, timeout: float | None = None) -> Any:
        """Send a message and wait for its answer.

        Raises
        ------
        TimeoutError
            If there was no answer in time.
        UndeliveredError
            If the message went to the dead letters.
        """
        if _get_running_loop() is self._loop or self._post.is_closing:
            self._check_open()
        if type(message) is not self._input_type:
            check_input(self._actor, message)
        if timeout is not None and (type(timeout) is not float or not 0.0 <= timeout < MOST_SECONDS):
            timeout = check_timeout(timeout)
        return self._call(message, timeout)

    def stream(self, message: Any, timeout: float | None = None) -> Generator[Any, None, None]:
        """Send a message with the first step, and give its answers as they come, up to the last one.

        Whoever stops before, by ``break`` or ``close()``, is sent no more; what comes then is a dead letter.

        Parameters
        ----------
        message : message
            Of the kernel's input type.
        timeout : float, optional
            Seconds to wait for room, and then for each answer.

        Raises
        ------
        TimeoutError
            If there was no answer in time; that ends the stream.
        UndeliveredError
            If the message went to the dead letters.
        """
        self._check_open()
        check_input(self._actor, message)
        return self._stream(message, check_timeout(timeout))

    def _stream(self, message: Any, timeout: float | None) -> Generator[Any, None, None]:
        replies = Replies(self._actor, message)
        try:
            outcome = self._put(replies.message, timeout)
            if outcome != ACCEPTED:
                check_outcome(self._actor, outcome, timeout)
            get = self._waiting(replies.next_here)
            while (reply := get(timeout)) is not None:
                yield reply
        finally:
            replies.close()

    def send_batch(self, messages: Sequence[Any] | np.ndarray[Any, Any], timeout: float | None = None) -> int:
        """Send many messages, a list or a structured array of the input type's dtype.

        Returns
        -------
        int
            How many were sent. Fewer than all when the time was over or the mailbox is full and rejects.
        """
        self._check_open()
        timeout = check_timeout(timeout)
        if isinstance(messages, np.ndarray):
            sent: int = self._waiting(self._actor.send_array)(messages, timeout)
        else:
            for message in messages:
                if type(message) is not self._input_type:
                    check_input(self._actor, message)
            each = [one._copy() if one._is_call else one for one in messages]
            sent, _ = self._waiting(self._actor.inbox.put_many)(each, timeout)
        if sent < len(messages) and not self._actor.state.is_open:
            error = ended_error(self._actor)
            error.add_note(f"{sent} of {len(messages)} messages were accepted before")
            raise error
        return sent

    def receive_batch(self, n: int, timeout: float | None = None) -> Any:
        """Up to `n` messages, waiting until they are there, the time is over or the kernel has ended.

        Returns
        -------
        numpy.ndarray or list
            A structured array when the output type has a fixed layout, else a list. Empty, and no error, also when the
            kernel has ended and nothing is left: so many clients can be looked at in turn.
        """
        self._check_thread()
        timeout = check_timeout(timeout)
        if isinstance(n, bool) or not hasattr(n, "__index__"):
            raise TypeError(f"n must be an int, not {n!r} ({type(n).__name__})")
        n = operator.index(n)
        if n < 0:
            raise ValueError(f"n must be at least 0, not {n}")
        if isinstance(self._actor.error, ForkError):
            raise ended_error(self._actor)
        output_type = self._actor.kernel.output_type
        if output_type is not None and output_type.is_fixed:
            return self._waiting(self._actor.receive_array)(n, timeout)
        return self._waiting(self._actor.outbox.get_many)(n, timeout)

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose waits are those of this client."""
        if self._patience is None:
            return function

        def waits(*args: Any) -> Any:
            before = set_patience(self._patience)
            try:
                return function(*args)
            finally:
                set_patience(before)

        return waits

    def _check_open(self) -> None:
        self._check_thread()
        if self._post.is_closing and self._actor.state.is_open:
            raise RingError(f"the runtime is shutting down, and {self.kernel_id!r} takes no more messages")

    def _check_thread(self) -> None:
        if _get_running_loop() is self._loop:
            raise RingError(
                f"the client of {self.kernel_id!r} would make the runtime's event loop wait for itself; await the "
                "methods of the runtime here, or use the client in a thread"
            )
