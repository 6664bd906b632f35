"""`KernelContext`: what an actor's function is given, as a coroutine and as a thread."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pygpukit._pygpukit_rust import ContextBase
from pygpukit.errors import MailboxFullError
from pygpukit.ring.limits import check_timeout
from pygpukit.ring.waiting import (
    ACCEPTED,
    AWAITED,
    BURST,
    CLOSED,
    DROPPED,
    FULL,
    TURN,
    next_message,
    put_message,
    woken,
)

if TYPE_CHECKING:
    from pygpukit.ring.host import HostActor
    from pygpukit.ring.replies import Replies

__all__ = ["ActorExit", "CoroutineContext", "KernelContext", "ThreadContext"]


_LAST_OF_BURST = BURST - 1


class ActorExit(BaseException):
    """Raised in an actor by `KernelContext.receive` when no message will come any more; let it pass."""


class KernelContext(ContextBase):
    """An actor's side of its mailboxes.

    A coroutine awaits `receive`, `send`, `publish` and `wait_active`; an actor in a thread of its own calls them.
    """

    def __init__(self, actor: HostActor) -> None:
        self._actor = actor
        self._inbox = actor.inbox
        self._try_answer: Callable[[Any, Any], int] = actor.outbox.try_answer
        self._output_type = actor.kernel.output_type
        self.current: Any = None
        """The message received last; what is sent answers it, unless ``message.reply(answer)`` said otherwise."""
        self.timed_out: TimeoutError | None = None
        """What `receive` raised last because no message came."""

    @property
    def kernel_id(self) -> str:
        """Id of the actor."""
        return self._actor.kernel.kernel_id

    def _addressed(self, message: Any, to: str, more: bool) -> Any:
        """The mailbox of another actor, or None when the message went to the dead letters."""
        if more:
            raise ValueError(f"more=True is said of an answer, and a message to {to!r} is none: leave it out, or to=")
        actor = self._actor
        other = actor.find(to)
        if other is None:
            actor.post.dead(to, message, "unknown_destination", f"sent by {self.kernel_id!r}")
            return None
        if not other.kernel.takes(message):
            expected = other.kernel.input_type
            name = "messages" if expected is None else expected.__name__
            actor.post.dead(to, message, "wrong_type", f"{to!r} takes {name}")
            return None
        return other.inbox

    def _forwarded(self, message: Any, to: str, outcome: int) -> bool:
        actor = self._actor
        if outcome == ACCEPTED:
            actor.forwarded += 1
            return True
        if outcome != DROPPED:
            reason = "terminated" if outcome == CLOSED else "rejected"
            actor.post.dead(to, message, reason, f"sent by {self.kernel_id!r}")
        return False

    def _replies(self, message: Any) -> Replies | None:
        """Who collects the answers of which this is one; None when the first one is all that is waited for."""
        return self._actor.post.replies_to(message.correlation_id)

    def _gave(self, message: Any, outcome: int) -> bool:
        """What became of a reply that others follow."""
        actor = self._actor
        actor.answered += 1
        if outcome != ACCEPTED:
            actor.post.late(self.kernel_id, message)
        return outcome == ACCEPTED

    def _went(self, message: Any, outcome: int) -> bool:
        """What became of a message for the own output mailbox, or for who waits for it."""
        if outcome == AWAITED:
            return self._actor.answer(message)
        if outcome in (ACCEPTED, DROPPED):
            return outcome == ACCEPTED
        if outcome == CLOSED:
            raise ActorExit
        raise MailboxFullError(
            f"the output mailbox of {self.kernel_id!r} is full with {self._actor.outbox.capacity} messages"
        )


class CoroutineContext(KernelContext):
    """The context of a coroutine."""

    def __init__(self, actor: HostActor) -> None:
        super().__init__(actor)
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._get_or_wait: Callable[[Any], Any] = actor.inbox.get_or_wait

    async def receive(self, timeout: float | None = None) -> Any:
        """The next message.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; no time passes while the actor is not active.

        Raises
        ------
        TimeoutError
            If none came in time. Where it leaves the actor's function, the function is called again.
        """
        if timeout is None:
            # The way of every round trip: as `next_message`, without its frame.
            message = self._get_or_wait(self._loop)
            while type(message) is Future:
                try:
                    await message
                except BaseException:
                    self._inbox.forget_future(message)
                    raise
                message = self._get_or_wait(self._loop)
        else:
            try:
                message = await next_message(self._inbox, check_timeout(timeout))
            except TimeoutError as error:
                self.timed_out = error
                raise
        if message is None:
            raise ActorExit
        self.current = message
        return message

    async def send(self, message: Any, to: str | None = None, *, more: bool = False) -> bool:
        """Send a message: to who called, into the output mailbox, or to another actor.

        Parameters
        ----------
        message : message
            Of the kernel's output type, or of the other's input type.
        to : str, optional
            Id of another actor. What cannot be delivered there goes to the dead letters.
        more : bool
            Further answers to the same message follow. Who reads them with `stream` is waited for when it is slow.

        Returns
        -------
        bool
            Whether it was accepted; False also when nobody waits for this answer any more.
        """
        if to is not None:
            self._turn += 1
            if not self._turn & _LAST_OF_BURST:
                await asyncio.sleep(0)
            mailbox = self._addressed(message, to, more)
            return mailbox is not None and self._forwarded(message, to, await put_message(mailbox, message))
        if type(message) is not self._output_type:
            self._actor.check_output(message)
        outcome = self._try_answer(message, self.current)
        if outcome == ACCEPTED:
            return True
        while outcome == TURN:
            await asyncio.sleep(0)
            outcome = self._try_answer(message, self.current)
        if outcome == FULL:
            outcome = await put_message(self._actor.outbox, message)
        elif more and outcome == AWAITED and (replies := self._replies(message)) is not None:
            return self._gave(message, await put_message(replies.mailbox, replies.entry(message)))
        return self._went(message, outcome)

    async def publish(self, topic: str, message: Any) -> int:
        """Send a message to all actors that subscribe to a topic and take its type, on the host and on the device.

        The actor itself gets none. What is rejected goes to the dead letters.

        Returns
        -------
        int
            How many accepted it.
        """
        self._turn += 1
        if not self._turn & _LAST_OF_BURST:
            await asyncio.sleep(0)
        count = await self._actor.topics.publish(topic, message, self.kernel_id)
        self._actor.forwarded += count
        return count

    async def wait_active(self) -> None:
        """Wait until the actor is active."""
        while self._inbox.is_paused:
            await woken(self._inbox, self._inbox.await_active)


class ThreadContext(KernelContext):
    """The context of an actor in a thread of its own."""

    def receive(self, timeout: float | None = None) -> Any:
        """The next message, as in a coroutine, but without ``await``."""
        message = self._inbox.get(check_timeout(timeout))
        if message is None:
            if self._inbox.is_finished:
                raise ActorExit
            self.timed_out = TimeoutError(f"no message came within {timeout} s")
            raise self.timed_out
        self.current = message
        return message

    def send(self, message: Any, to: str | None = None, *, more: bool = False) -> bool:
        """Send a message, as in a coroutine, but without ``await``."""
        if to is not None:
            mailbox = self._addressed(message, to, more)
            return mailbox is not None and self._forwarded(message, to, mailbox.put(message))
        if type(message) is not self._output_type:
            self._actor.check_output(message)
        while (outcome := self._try_answer(message, self.current)) == TURN:
            continue
        if more and outcome == AWAITED and (replies := self._replies(message)) is not None:
            return self._gave(message, replies.mailbox.put(replies.entry(message)))
        return self._went(message, self._actor.outbox.put(message) if outcome == FULL else outcome)

    def publish(self, topic: str, message: Any) -> int:
        """Send a message to all subscribers, as in a coroutine, but without ``await``."""
        count = self._actor.topics.publish_here(topic, message, self.kernel_id)
        self._actor.forwarded += count
        return count

    def wait_active(self) -> None:
        """Wait until the actor is active."""
        self._inbox.wait_active()
