"""What a sender is told: wrong types, full mailboxes, actors that have ended."""

from __future__ import annotations

from typing import Any

from pygpukit._pygpukit_rust import MessageBase
from pygpukit.errors import MailboxFullError, MessageError
from pygpukit.ring.actor import Actor
from pygpukit.ring.host import ended_error
from pygpukit.ring.waiting import CLOSED, DROPPED, REJECTED

__all__ = ["check_input", "check_outcome"]


def check_input(actor: Actor, message: Any) -> None:
    """Refuse what is not of the input type."""
    expected = actor.kernel.input_type
    if not isinstance(message, expected or MessageBase):
        name = expected.__name__ if expected else "messages"
        raise MessageError(f"{actor.kernel.kernel_id!r} takes {name}, not {message!r} ({type(message).__name__})")


def check_outcome(actor: Actor, outcome: int, timeout: float | None) -> bool:
    """False for a message that was dropped; raises for one that was not taken."""
    if outcome == DROPPED:
        return False
    if outcome == CLOSED:
        raise ended_error(actor)
    kernel_id, size = actor.kernel.kernel_id, actor.inbox.capacity
    if outcome == REJECTED:
        raise MailboxFullError(f"the mailbox of {kernel_id!r} is full with {size} messages, and rejects more")
    raise TimeoutError(f"the mailbox of {kernel_id!r} was full with {size} messages for {timeout} s")
