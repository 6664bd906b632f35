"""Waiting for a mailbox in an event loop: one future per wait, set by whoever ends it."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from typing import Any

from pygpukit.ring.actor import Mailbox
from pygpukit.ring.limits import end_of, left_of

__all__ = [
    "ACCEPTED",
    "AWAITED",
    "BURST",
    "CLOSED",
    "DROPPED",
    "FULL",
    "REJECTED",
    "TURN",
    "UNBOUNDED",
    "called",
    "in_turn",
    "next_message",
    "put_message",
    "woken",
]

# What a mailbox says became of a message. An answer that is awaited was not put in: its caller is to get it. After a
# burst nothing was done: others are to run first.
ACCEPTED, DROPPED, REJECTED, FULL, CLOSED, AWAITED, TURN = range(7)


BURST = 256
"""A coroutine that never has to wait lets others run after so many messages; a power of two."""

UNBOUNDED = 1 << 62
"""Size of a mailbox that takes all."""


def called(message: Any) -> Any:
    """What is sent for a call: the message, or a copy where the answer to another call with it may still come."""
    if not message._call():
        message = message._copy()
        message._call()
    return message


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(False)


async def woken(mailbox: Mailbox, register: Callable[[Any, Any], int], until: float | None = None) -> bool:
    """Wait as `register` says; False when ``time.monotonic()`` reached `until`."""
    loop = asyncio.get_running_loop()
    # Some wake up at once to look again; that must not go on for ever.
    if (left := left_of(until)) == 0.0:
        return False
    future = loop.create_future()
    ticket = register(future, loop)
    if not ticket:
        return True
    timer = None if left is None else loop.call_later(left, _expire, future)
    try:
        if await future is not False:
            return True
    except BaseException:
        mailbox.forget(ticket)
        raise
    finally:
        if timer is not None:
            timer.cancel()
    mailbox.forget(ticket)
    return False


async def in_turn(orders: asyncio.Lock, until: float | None) -> bool:
    """Wait until no other order for an actor is under way; False when ``time.monotonic()`` reached `until`."""
    try:
        async with asyncio.timeout(left_of(until)):
            await orders.acquire()
    except TimeoutError:
        return False
    return True


async def next_message(mailbox: Mailbox, timeout: float | None = None) -> Any:
    """The next message; None when none will come. No time passes while the mailbox is paused."""
    loop = asyncio.get_running_loop()
    if timeout is None:
        message = mailbox.get_or_wait(loop)
        while type(message) is Future:
            try:
                await message
            except BaseException:
                mailbox.forget_future(message)
                raise
            message = mailbox.get_or_wait(loop)
        return message
    until = end_of(timeout)
    while (message := mailbox.try_get()) is None and not mailbox.is_finished:
        if not await woken(mailbox, mailbox.await_item, until):
            if not mailbox.is_paused:
                raise TimeoutError(f"no message came within {timeout} s")
            await woken(mailbox, mailbox.await_active)
    return message


async def put_message(mailbox: Mailbox, message: Any, timeout: float | None = None) -> int:
    """Put a message in, waiting for room where that is the policy; FULL when the time is over."""
    until = end_of(timeout)
    while (outcome := mailbox.try_put(message)) == FULL:
        if not await woken(mailbox, mailbox.await_space, until):
            break
    return outcome
