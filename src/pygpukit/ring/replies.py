"""Streams of replies: all answers to one message, in the order they were sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from pygpukit._pygpukit_rust import RingQueue
from pygpukit.ring.delivery import check_outcome
from pygpukit.ring.waiting import ACCEPTED, UNBOUNDED, called, next_message, put_message

if TYPE_CHECKING:
    from pygpukit.ring.actor import Actor

__all__ = ["Replies", "replies_of"]


class Replies:
    """The answers to one message, from its sending on; for one reader, in a thread or in an event loop.

    Parameters
    ----------
    actor : Actor
        Who answers.
    message : message
        What is about to be sent to it.
    """

    def __init__(self, actor: Actor, message: Any) -> None:
        self.kernel_id = actor.kernel.kernel_id
        size = actor.kernel.output_queue_size
        # A device actor waits by itself, when so many of its replies have not been read.
        self.mailbox = RingQueue(UNBOUNDED if actor.kernel.kind == "device" else size, "block")
        self._actor = actor
        self.message = called(message)
        """What is to be sent."""
        self._number: int = self.message.message_id
        self._read = 0
        # The actor needs to know now and then, not for every reply.
        self._batch = max(1, size // 4)
        actor.post.expect_all(self._number, self)
        actor.expect(1)

    @staticmethod
    def entry(reply: Any, more: bool = True) -> tuple[Any, bool]:
        """A reply as it lies in the mailbox: that has no look at its priority, for replies come in order."""
        return reply, more

    def give(self, reply: Any) -> bool:
        """Add a reply that others follow; False when nobody reads them any more."""
        return self.mailbox.try_put(self.entry(reply)) == ACCEPTED

    def settle(self, answer: Any) -> None:
        """Add the last reply, or an error, for which there is always room."""
        self.unbind()
        self.mailbox.try_put(answer if isinstance(answer, BaseException) else self.entry(answer, more=False))
        self.mailbox.close()

    def unbind(self) -> None:
        """Let the replies be as many as they are: whoever reads them may be who waits for the actor's end."""
        self.mailbox.set_capacity(UNBOUNDED)

    def next_here(self, timeout: float | None) -> Any:
        """The next reply, waiting for it in this thread; None when there are no more."""
        found = self.mailbox.get(timeout)
        if found is None and not self.mailbox.is_finished:
            raise self._late(timeout)
        return self._opened(found)

    async def next(self, timeout: float | None) -> Any:
        """The same in an event loop."""
        try:
            found = await next_message(self.mailbox, timeout)
        except TimeoutError:
            raise self._late(timeout) from None
        return self._opened(found)

    def close(self) -> None:
        """The replies are not wanted any more; those that were not read are dead letters."""
        post = self._actor.post
        post.forget_all(self._number, self)
        self._actor.expect(-1)
        self.mailbox.close()
        for found in self.mailbox.discard():
            if not isinstance(found, BaseException):
                reply, more = found
                self._read += more
                post.late(self.kernel_id, reply)
        self._tell()

    def _opened(self, found: Any) -> Any:
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return None
        reply, more = found
        self._read += more
        if self._read >= self._batch or not self.mailbox.depth:
            self._tell()
        return reply

    def _tell(self) -> None:
        if self._read:
            self._actor.took(self._read)
            self._read = 0

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"{self.kernel_id!r} sent no reply within {timeout} s")


async def replies_of(actor: Actor, message: Any, timeout: float | None) -> AsyncGenerator[Any, None]:
    """Send a message in an event loop, and give its answers as they come."""
    replies = Replies(actor, message)
    try:
        outcome = await put_message(actor.inbox, replies.message, timeout)
        if outcome != ACCEPTED:
            check_outcome(actor, outcome, timeout)
        while (reply := await replies.next(timeout)) is not None:
            yield reply
    finally:
        replies.close()
