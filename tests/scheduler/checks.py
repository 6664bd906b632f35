"""What the tests of the scheduler have in common."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pygpukit as gp
from pygpukit.scheduler import Scheduler, Task, yield_

# More than any of it takes on a loaded machine; a test that needs it has failed.
PATIENCE = 60.0


def use_device(steps: int = 20, size: int = 1000) -> float:
    """Some operators, and a result that proves them."""
    x = gp.ones(size)
    for _ in range(steps):
        gp.tanh(x)
    return float(gp.sum(x).item())


def until_cancelled() -> None:
    """Use the device until the task is cancelled."""
    x = gp.ones(1000)
    while True:
        gp.tanh(x)


def python_until_cancelled() -> None:
    """The same without the device."""
    pause = threading.Event()
    while True:
        pause.wait(0.001)
        yield_()


def await_state(task: Task[Any], *states: str) -> None:
    """Wait until the task is in one of the states."""
    pause = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if task.state in states:
            return
        pause.wait(0.001)
    raise AssertionError(f"{task!r} is not {states} after {PATIENCE} seconds")


def await_submissions(task: Task[Any], number: int = 1) -> None:
    """Wait until the task has submitted work."""
    pause = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if task.stats().get("submissions", 0) >= number or task.done():
            return
        pause.wait(0.001)
    raise AssertionError(f"{task!r} has submitted nothing in {PATIENCE} seconds: {task.stats()}")


def reserved(scheduler: Scheduler) -> list[dict[str, Any]]:
    """What the partitions have promised, without figures that change by themselves."""
    moving = {"memory_used", "memory_in_use", "compute_used"}
    rows = scheduler.status()["partitions"]
    return [{key: value for key, value in row.items() if key not in moving} for row in rows]


def pools() -> set[str]:
    """Names of the pools of the device that are alive."""
    gc.collect()
    gp.synchronize()
    return {str(pool["name"]) for pool in gp.memory.snapshot().pools}


@contextmanager
def nothing_left(scheduler: Scheduler) -> Iterator[None]:
    """After the block no task, promise or pool is there that was not before it."""
    promised, alive = reserved(scheduler), pools()
    yield
    assert scheduler.status()["tasks"] == []
    assert reserved(scheduler) == promised
    # A thread that has told of the end of its task may not quite have left it.
    pause = threading.Event()
    for _ in range(int(PATIENCE * 100)):
        if pools() <= alive:
            break
        pause.wait(0.01)
    assert pools() <= alive
