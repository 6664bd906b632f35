"""What a sender is told: wrong types, full mailboxes, actors that have ended."""

from __future__ import annotations

from typing import Any

from pygpukit.errors import ActorFailedError, MailboxFullError, MessageError, RingError
from pygpukit.ring.actor import Actor
from pygpukit.ring.kinds import brief
from pygpukit.ring.states import KernelState
from pygpukit.ring.waiting import CLOSED, DROPPED, REJECTED

__all__ = ["check_input", "check_outcome", "ended_error"]


def check_input(actor: Actor, message: Any) -> None:
    """Refuse what is not of the input type."""
    kernel = actor.kernel
    if not kernel.takes(message):
        name = kernel.input_type.__name__ if kernel.input_type else "messages"
        if kernel.input_type is not None and isinstance(message, kernel.input_type):
            name = f"exactly {name} and nothing derived from it"
        raise MessageError(f"{kernel.kernel_id!r} takes {name}, not {brief(message)} ({type(message).__name__})")


def check_outcome(actor: Actor, outcome: int, timeout: float | None) -> bool:
    """False for a message that was dropped; raises for one that was not taken."""
    if outcome == DROPPED:
        return False
    if outcome == CLOSED:
        raise ended_error(actor)
    kernel_id, size = actor.kernel.kernel_id, actor.inbox.capacity
    if actor.state is KernelState.CREATED:
        raise TimeoutError(f"{kernel_id!r} is being launched, and was not ready within {timeout} s")
    if outcome == REJECTED:
        raise MailboxFullError(f"the mailbox of {kernel_id!r} is full with {size} messages, and rejects more")
    raise TimeoutError(f"the mailbox of {kernel_id!r} was full with {size} messages for {timeout} s")


def ended_error(actor: Actor) -> RingError:
    """Why an actor that has ended, or ends, does not do what was asked."""
    kernel_id = actor.kernel.kernel_id
    if actor.state is KernelState.FAILED and actor.error is not None:
        error: RingError = ActorFailedError(f"{kernel_id!r} failed: {type(actor.error).__name__}: {actor.error}")
        error.__cause__ = actor.error
        return error
    return RingError(f"{kernel_id!r} is {actor.state.name}, and takes and gives no more messages; launch it again")
