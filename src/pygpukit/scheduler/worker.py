"""The process of a task: runs its function when the scheduler's process gives it turns."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pygpukit.scheduler import default
from pygpukit.scheduler.parcel import pack_error, pack_result, unpack
from pygpukit.scheduler.scheduler import Scheduler
from pygpukit.scheduler.task import current_task

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pygpukit.scheduler.task import Task

__all__ = ["Order", "main"]

# How often figures are told, and the end of the scheduler's process is looked for at the latest.
_TELL_SECONDS = 0.2

# Python threads hand the interpreter over after this time at most: the one that listens must not wait for the function.
_SWITCH_SECONDS = 500e-6

_TOLD = ("submissions", "enforcement", "throttled", "throttled_seconds", "throttle_log", "waiting")
_MEMORY = ("memory", "memory_peak", "evictions", "restores")


@dataclass(frozen=True)
class Order:
    """What the process of a task is told when it starts."""

    name: str
    device: str
    call: bytes = field(repr=False)
    memory: dict[str, Any]
    mps: bool
    mps_percentage: int | None


def main(words: Connection, turns: socket.socket, order: Order) -> None:
    """Run the function of a task, tell how it ended, and leave when nobody listens any more."""
    # Ctrl-C reaches every process of a terminal; the scheduler's decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The scheduler's process tells of its tasks already.
    os.environ["PYGPUKIT_STATUS"] = "0"
    if order.mps_percentage is not None:
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(order.mps_percentage)
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
    saying = threading.Lock()

    def say(what: str, parcel: Any) -> None:
        with saying:
            words.send((what, parcel))

    try:
        task = _begin(turns, order, say)
    except BaseException as error:
        say("error", pack_error(error))
        task = None
    try:
        while not words.poll(_TELL_SECONDS):
            if task is not None and task._lease is not None:
                say("figures", _figures(task))
        words.recv()
    except (EOFError, OSError):
        pass
    if task is not None and not task.done():
        # Nobody waits for it: the function is not asked.
        os._exit(1)


def _begin(turns: socket.socket, order: Order, say: Any) -> Task[Any]:
    from pygpukit.core.device import resolve_device

    device = resolve_device(order.device)
    device._set_default()
    scheduler = Scheduler(device)
    default.adopt(scheduler)
    orders = scheduler._core.hold_back(turns.fileno())
    threading.Thread(target=orders.obey, name="pygpukit-turns", daemon=True).start()

    def call() -> bytes:
        # Inside the task, so that arrays among the arguments are in its memory.
        fn, args, kwargs = unpack(order.call)
        inside = current_task()
        if inside is not None and inside._libraries is not None:
            # Its modules are loaded by now.
            inside._libraries.look()
        outcome = fn(*args, **kwargs)
        if hasattr(outcome, "__await__"):
            import asyncio

            outcome = asyncio.run(_awaited(outcome))
        return pack_result(order.name, outcome)

    say("figures", {})
    task = scheduler.submit(call, name=order.name, **order.memory)

    def tell(_future: Any) -> None:
        error = task.exception()
        # Over there nobody listens to turns any more when the result has come.
        with suppress(Exception):
            orders.report()
        say("figures", _figures(task))
        if error is not None:
            say("error", pack_error(error))
        else:
            say("result", task.result())

    task._future.add_done_callback(tell)
    return task


async def _awaited(outcome: Any) -> Any:
    return await outcome


def _figures(task: Task[Any]) -> dict[str, Any]:
    stats = task.stats()
    return {key: stats[key] for key in (*_TOLD, *_MEMORY) if key in stats}
