"""The life of a task, from its start to its end: in a thread, in an event loop, or around a block."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.context import drive
from pygpukit.errors import TaskCancelledError
from pygpukit.scheduler.external import following
from pygpukit.scheduler.roster import AGAIN_SECONDS, Roster
from pygpukit.scheduler.task import Task, _current, _region

__all__ = ["coroutine_starter", "returns_coroutine", "tenancy", "thread_starter"]

_T = TypeVar("_T")


def returns_coroutine(fn: Callable[..., Any]) -> bool:
    """Is it a coroutine function, a partial one, or an object with an async ``__call__``?"""
    # Partial functions are looked through by the first.
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


@contextmanager
def tenancy(roster: Roster, task: Task[Any]) -> Iterator[None]:
    """Start the task, be it in this thread, and wait for its work."""
    lease = roster.start(task)
    outer, region = _current.get(), _region.get()
    _current.set(task)
    task._outer, task._thread = outer, threading.get_ident()
    lease._enter()
    try:
        with following(task, lease, outer):
            yield
            lease.stream.synchronize()
    finally:
        task._thread = None
        if _current.get() is task:
            # Blocks that were left in the wrong order are not there to come back to.
            while outer is not None and outer.done():
                outer = outer._outer
            _current.set(outer)
            task._outer = None
        # A block that was not left would keep the task, and its memory.
        _region.set(region)
        lease._leave()


def thread_starter(roster: Roster, task: Task[_T], call: Callable[[Task[_T]], _T]) -> Callable[[], None]:
    """What starts a task that runs in a thread of its own."""
    return lambda: roster.workers.run(lambda: _run(roster, task, call))


def _run(roster: Roster, task: Task[_T], call: Callable[[Task[_T]], _T]) -> None:
    """The life of a task in its thread."""
    outcome: _T | None = None
    failure: BaseException | None = None
    try:
        with tenancy(roster, task):
            outcome = call(task)
            if inspect.iscoroutine(outcome):
                # It could not be told before: a lambda, perhaps.
                coroutine = outcome
                outcome = asyncio.run(_step_alone(task, lambda _: coroutine))
    except BaseException as error:
        failure = error
    # What the function entered and did not leave must not reach the next task of this thread.
    _native.swap_context(None)
    roster.conclude(task, outcome, failure)
    # Its traceback has this frame: the arrays of the function would stay until the collector comes by.
    failure = None


def coroutine_starter(roster: Roster, task: Task[_T], call: Callable[[Task[_T]], Any]) -> Callable[[], None]:
    """What starts a coroutine: in the event loop that runs here, or in a loop of its own."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return thread_starter(roster, task, lambda own: asyncio.run(_step_alone(own, call)))
    # Of whoever submitted it, as for any coroutine, and not of who happens to make room for it.
    context = contextvars.copy_context()

    def start() -> None:
        try:
            loop.call_soon_threadsafe(begin, context=context)
        except RuntimeError as closed:
            failure = closed
            roster.workers.run(lambda: roster.conclude(task, None, failure))

    def begin() -> None:
        running = loop.create_task(_run_coroutine(roster, task, call), name=task.name)
        task._interrupt = lambda: loop.call_soon_threadsafe(running.cancel)
        # Not by the coroutine: one that is cancelled before its first step never runs.
        running.add_done_callback(end)

    def end(running: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
        # It keeps what the function returned.
        task._interrupt = None
        outcome: Any = None
        failure: BaseException | None = TaskCancelledError(f"task '{task.name}' was cancelled")
        if running.cancelled():
            task._cancel.set()
        else:
            outcome, failure = running.result()
        roster.workers.run(lambda: roster.conclude(task, outcome, failure))

    return start


async def _step(task: Task[_T], call: Callable[[Task[_T]], Any]) -> Any:
    assert task._lease is not None
    return await drive(call(task), task._lease.exec_context())


async def _step_alone(task: Task[_T], call: Callable[[Task[_T]], Any]) -> Any:
    """The same in a loop of its own, which others can wake to cancel it."""
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None
    task._interrupt = lambda: loop.call_soon_threadsafe(running.cancel)
    try:
        if task._cancel.is_set():
            raise asyncio.CancelledError
        return await _step(task, call)
    except asyncio.CancelledError:
        raise TaskCancelledError(f"task '{task.name}' was cancelled") from None


async def _run_coroutine(
    roster: Roster, task: Task[Any], call: Callable[[Task[Any]], Any]
) -> tuple[Any, BaseException | None]:
    """The life of a task in an event loop, and how it ended. It waits for the device elsewhere."""
    try:
        # Not in a thread that waits: whoever has the memory may need the loop to end.
        while (lease := await _elsewhere(roster, lambda: roster.try_start(task))) is None:
            await asyncio.sleep(AGAIN_SECONDS)
        token = _current.set(task)
        try:
            outcome = await _step(task, call)
            await _elsewhere(roster, lease.stream.synchronize)
        finally:
            _current.reset(token)
    except asyncio.CancelledError as error:
        task._cancel.set()
        return None, TaskCancelledError(str(error) or f"task '{task.name}' was cancelled")
    except BaseException as error:
        return None, error
    return outcome, None


async def _elsewhere(roster: Roster, function: Callable[[], _T]) -> _T:
    """Await a function that runs in a thread of the scheduler's: a loop that closes has none left."""
    future: Future[_T] = Future()
    # Whoever stops waiting does not stop it.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    roster.workers.run(run)
    return await asyncio.wrap_future(future)
