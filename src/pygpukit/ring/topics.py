"""Topics on the host: who subscribes to them, and how a message comes to all of those."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pygpukit.errors import ActorFailedError, MessageError, RingError
from pygpukit.ring.actor import Actor
from pygpukit.ring.kinds import brief
from pygpukit.ring.limits import end_of, left_of
from pygpukit.ring.message import Message
from pygpukit.ring.post import Post
from pygpukit.ring.waiting import ACCEPTED, CLOSED, DROPPED, FULL, put_message

__all__ = ["Topics"]


class Topics:
    """A runtime's topics, with the actors that subscribe to them.

    What is published goes to every subscriber that accepts messages and takes this type, except to the actor that
    publishes it. Each gets a message of its own; what the fields refer to is shared. Those that have room get it first;
    only then those are waited for that are full and block.

    Parameters
    ----------
    post : Post
        The runtime's dead letters.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._actors: dict[str, dict[str, Actor]] = {}

    def add(self, actor: Actor) -> None:
        """An actor was launched; it takes the place of an earlier one of its id."""
        kernel_id = actor.kernel.kernel_id
        for actors in self._actors.values():
            actors.pop(kernel_id, None)
        for topic in actor.kernel.topics:
            self._actors.setdefault(topic, {})[kernel_id] = actor

    async def publish(self, topic: str, message: Any, by: str | None = None, timeout: float | None = None) -> int:
        """Send a message to all subscribers; how many accepted it."""
        until = end_of(timeout)
        count, full = self._give(topic, message, by)
        for actor, one in full:
            outcome = CLOSED
            with suppress(ActorFailedError):
                outcome = await put_message(actor.inbox, one, left_of(until))
            count += self._is_accepted(topic, actor, one, by, outcome)
        return count

    def publish_here(self, topic: str, message: Any, by: str | None = None) -> int:
        """The same in a thread, which waits here."""
        count, full = self._give(topic, message, by)
        for actor, one in full:
            outcome = CLOSED
            with suppress(ActorFailedError):
                outcome = actor.inbox.put(one)
            count += self._is_accepted(topic, actor, one, by, outcome)
        return count

    def _give(self, topic: str, message: Any, by: str | None) -> tuple[int, list[tuple[Actor, Any]]]:
        """Give a message to all that have room; how many accepted it, and those that have to be waited for."""
        if not isinstance(message, Message):
            raise MessageError(f"messages are published, not {brief(message)} ({type(message).__name__}); use @message")
        if not topic or not isinstance(topic, str):
            raise RingError(f"a topic is a name, one of the topics of @ring_kernel, not {topic!r}")
        count, full = 0, []
        for actor in list(self._actors.get(topic, {}).values()):
            if actor.kernel.kernel_id == by or not actor.state.is_open or not actor.kernel.takes(message):
                continue
            one = message._copy()
            outcome = CLOSED
            # One that was lost a moment ago is no subscriber any more, and the others are to get it.
            with suppress(ActorFailedError):
                outcome = actor.inbox.try_put(one)
            if outcome == FULL:
                full.append((actor, one))
            else:
                count += self._is_accepted(topic, actor, one, by, outcome)
        return count, full

    def _is_accepted(self, topic: str, actor: Actor, message: Any, by: str | None, outcome: int) -> bool:
        # One that was dropped is a dead letter already, and one that has ended meanwhile is no subscriber any more.
        if outcome not in (ACCEPTED, DROPPED, CLOSED):
            sender = "" if by is None else f" by {by!r}"
            self._post.dead(actor.kernel.kernel_id, message, "rejected", f"published to {topic!r}{sender}")
        return outcome == ACCEPTED
