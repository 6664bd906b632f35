"""The end of the process, and forks of it: what they mean for runtimes that run."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING

from pygpukit.errors import ForkError
from pygpukit.ring.host import ThreadActor

if TYPE_CHECKING:
    from pygpukit.ring.runtime import RingKernelRuntime

__all__ = ["forget", "remember"]

_live: weakref.WeakSet[RingKernelRuntime] = weakref.WeakSet()


def remember(runtime: RingKernelRuntime) -> None:
    """A runtime has begun."""
    _live.add(runtime)


def forget(runtime: RingKernelRuntime) -> None:
    """It has ended."""
    _live.discard(runtime)


@atexit.register
def _close_mailboxes() -> None:
    """Threads that wait for messages at the end of the process are let go."""
    for runtime in list(_live):
        for actor in list(runtime._actors.values()):
            if isinstance(actor, ThreadActor):
                actor.inbox.close()
                actor.inbox.discard()
                actor.outbox.close()


def _abandon() -> None:
    """In a forked child neither the loops and threads of runtimes are there, nor the device's kernel."""
    for runtime in list(_live):
        runtime._abandon(
            ForkError(
                f"this runtime belongs to process {os.getppid()}, and its actors did not follow into this fork of it: "
                "make a new runtime here, or start processes with the spawn method"
            )
        )
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)
