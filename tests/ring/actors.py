"""Messages and actors that several tests use."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from pygpukit.ring import RingKernel, message, ring_kernel

KINDS = ("coroutine", "thread")
_numbers = itertools.count()


@message
class Ask:
    n: int


@message
class Answer:
    n: int


def make_actor(kind: str, handle: Callable[[Any], Any] | None = None, **options: Any) -> RingKernel:
    """An actor of a new id that answers every message with what `handle` makes of it, or with its number."""
    work = handle or (lambda one: Answer(one.n))
    options = {"kernel_id": f"actor-{next(_numbers)}", "input_type": Ask, "output_type": Answer, **options}

    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            made = work(await ctx.receive())
            if made is not None:
                await ctx.send(made)

    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            made = work(ctx.receive())
            if made is not None:
                ctx.send(made)

    made = ring_kernel(**options)(coroutine if kind == "coroutine" else thread)
    assert made.kind == kind
    return made


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine, with a limit on how long it may take."""
    return asyncio.run(asyncio.wait_for(main, 90))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens elsewhere."""
    while not condition():
        await asyncio.sleep(0.002)
