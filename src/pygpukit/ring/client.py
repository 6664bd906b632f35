"""`RingClient`: one kernel's mailboxes for threads, without an event loop."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit.errors import RingError
from pygpukit.ring.actor import Actor
from pygpukit.ring.delivery import check_input, check_outcome, ended_error
from pygpukit.ring.limits import check_timeout
from pygpukit.ring.post import CALL
from pygpukit.ring.waiting import ACCEPTED

__all__ = ["RingClient"]

_get_running_loop = asyncio._get_running_loop


class RingClient:
    """Send and receive from any thread; made by `RingKernelRuntime.client`.

    It belongs to one launch of the kernel. Waiting is done without the interpreter's lock. In the runtime's own event
    loop it is refused, because the loop would wait for itself: await the runtime's methods there.
    """

    def __init__(self, actor: Actor, loop: asyncio.AbstractEventLoop) -> None:
        self._actor = actor
        self._loop = loop
        self._input_type = actor.kernel.input_type
        self._call = actor.call

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
        self._check_thread()
        if type(message) is not self._input_type:
            check_input(self._actor, message)
        timeout = check_timeout(timeout)
        if message._flags & CALL:
            message = message._copy()
        outcome = self._actor.inbox.put(message, timeout)
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
        outbox, timeout = self._actor.outbox, check_timeout(timeout)
        message = outbox.get(timeout)
        if message is None:
            if outbox.is_finished:
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
        if _get_running_loop() is self._loop:
            self._check_thread()
        if type(message) is not self._input_type:
            check_input(self._actor, message)
        return self._call(message, None if timeout is None else check_timeout(timeout))

    def send_batch(self, messages: Sequence[Any] | np.ndarray[Any, Any], timeout: float | None = None) -> int:
        """Send many messages, a list or a structured array of the input type's dtype.

        Returns
        -------
        int
            How many were sent. Fewer than all when the time was over or the mailbox is full and rejects.
        """
        self._check_thread()
        timeout = check_timeout(timeout)
        if isinstance(messages, np.ndarray):
            sent = self._actor.send_array(messages, timeout)
        else:
            for message in messages:
                if type(message) is not self._input_type:
                    check_input(self._actor, message)
            each = [one._copy() if one._flags & CALL else one for one in messages]
            sent, _ = self._actor.inbox.put_many(each, timeout)
        if sent < len(messages) and not self._actor.state.is_open:
            raise ended_error(self._actor)
        return sent

    def receive_batch(self, n: int, timeout: float | None = None) -> Any:
        """Up to `n` messages, waiting until they are there, the time is over or the kernel has ended.

        Returns
        -------
        numpy.ndarray or list
            A structured array when the output type has a fixed layout, else a list.
        """
        self._check_thread()
        timeout = check_timeout(timeout)
        if isinstance(n, bool) or not hasattr(n, "__index__"):
            raise TypeError(f"n must be an int, not {n!r} ({type(n).__name__})")
        n = operator.index(n)
        if n < 0:
            raise ValueError(f"n must be at least 0, not {n}")
        output_type = self._actor.kernel.output_type
        if output_type is not None and output_type.is_fixed:
            return self._actor.receive_array(n, timeout)
        return self._actor.outbox.get_many(n, timeout)

    def _check_thread(self) -> None:
        if _get_running_loop() is self._loop:
            raise RingError(
                f"the client of {self.kernel_id!r} would make the runtime's event loop wait for itself; await the "
                "methods of the runtime here, or use the client in a thread"
            )
