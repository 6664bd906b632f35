"""States of a ring kernel, and what may follow what."""

from __future__ import annotations

from enum import Enum

from pygpukit.errors import RingError

__all__ = ["Backpressure", "KernelState", "check_transition"]


class KernelState(Enum):
    """Where a ring kernel is in its life."""

    CREATED = "created"
    """Defined, not launched."""
    LAUNCHED = "launched"
    """It runs and accepts messages, and delivers none yet."""
    ACTIVE = "active"
    """It is given its messages."""
    DEACTIVATED = "deactivated"
    """It stands still; messages are accepted."""
    TERMINATING = "terminating"
    """It works on what was accepted, and accepts nothing more."""
    TERMINATED = "terminated"
    """It has ended."""
    FAILED = "failed"
    """It raised, and is not restarted any more."""

    @property
    def is_open(self) -> bool:
        """Are messages accepted?"""
        return self in _OPEN

    @property
    def is_over(self) -> bool:
        """Has it ended, for whatever reason?"""
        return self in (KernelState.TERMINATED, KernelState.FAILED)


class Backpressure(Enum):
    """What happens to a message for a full mailbox."""

    BLOCK = "block"
    """The sender waits for room."""
    REJECT = "reject"
    """The sender gets a `MailboxFullError`."""
    DROP_OLDEST = "drop_oldest"
    """The oldest of the least urgent messages goes to the dead letters."""
    DROP_NEW = "drop_new"
    """The new message goes to the dead letters."""


_OPEN = frozenset({KernelState.LAUNCHED, KernelState.ACTIVE, KernelState.DEACTIVATED})
_FROM = {
    "launch": frozenset({KernelState.CREATED, KernelState.TERMINATED, KernelState.FAILED}),
    "activate": frozenset({KernelState.LAUNCHED}),
    "deactivate": frozenset({KernelState.ACTIVE}),
    "reactivate": frozenset({KernelState.DEACTIVATED}),
    "terminate": _OPEN,
}


def check_transition(kernel_id: str, verb: str, state: KernelState) -> None:
    """Refuse a step that the state does not allow.

    Examples
    --------
    >>> check_transition("gain", "activate", KernelState.CREATED)
    Traceback (most recent call last):
    pygpukit.errors.RingError: cannot activate 'gain': it is CREATED, and must be LAUNCHED
    """
    allowed = _FROM[verb]
    if state not in allowed:
        names = " or ".join(one.name for one in KernelState if one in allowed)
        raise RingError(f"cannot {verb} {kernel_id!r}: it is {state.name}, and must be {names}")
