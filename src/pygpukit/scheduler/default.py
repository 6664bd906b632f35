"""The process's own scheduler, for programs that need no other."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from pygpukit.scheduler.scheduler import Scheduler
from pygpukit.scheduler.task import Task

__all__ = ["default_scheduler", "scheduled", "shutdown", "stats", "status", "submit", "task"]

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_default: Scheduler | None = None


def _begin_anew() -> None:
    """In a forked child the scheduler, and perhaps a locked lock, are the parent's."""
    global _lock, _default
    if _default is not None:
        atexit.unregister(_default.shutdown)
    _lock, _default = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def default_scheduler() -> Scheduler:
    """The scheduler that the functions of this module use; made at the first call, for the current device.

    Examples
    --------
    >>> default_scheduler() is default_scheduler()
    True
    """
    global _default
    with _lock:
        if _default is None:
            _default = Scheduler()
            atexit.register(_default.shutdown, cancel=True, timeout=1.0)
        return _default


def adopt(scheduler: Scheduler) -> None:
    """Make a scheduler the default one; the process of a task uses the one that gets its turns."""
    global _default
    with _lock:
        _default = scheduler


def submit(fn: Callable[..., Any], /, **options: Any) -> Task[Any]:
    """`Scheduler.submit` of the default scheduler.

    Examples
    --------
    >>> submit(lambda: 1 + 1).result()
    2
    """
    return default_scheduler().submit(fn, **options)


def task(**options: Any) -> AbstractContextManager[Task[None]]:
    """`Scheduler.task` of the default scheduler."""
    return default_scheduler().task(**options)


def stats(number: int) -> dict[str, Any]:
    """`Scheduler.stats` of the default scheduler."""
    return default_scheduler().stats(number)


def status() -> dict[str, Any]:
    """`Scheduler.status` of the default scheduler."""
    return default_scheduler().status()


def shutdown(**options: Any) -> bool:
    """`Scheduler.shutdown` of the default scheduler; the next use makes a new one."""
    global _default
    with _lock:
        scheduler, _default = _default, None
    if scheduler is None:
        return True
    atexit.unregister(scheduler.shutdown)
    return scheduler.shutdown(**options)


def scheduled(*, scheduler: Scheduler | None = None, **options: Any) -> Callable[[_F], _F]:
    """Make a function run as a task whenever it is called.

    Parameters
    ----------
    scheduler : Scheduler, optional
        Which one; the default one otherwise.
    **options
        As for `Scheduler.submit`.

    Returns
    -------
    decorator
        The decorated function waits for its task and returns its result; a coroutine function is awaited as before. Its
        attribute ``submit`` takes the same arguments and returns the task instead.

    Examples
    --------
    >>> @scheduled(memory="1MB")
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    >>> double.submit(1).result()
    2
    """

    def decorate(fn: _F) -> _F:
        def start(*args: Any, **kwargs: Any) -> Task[Any]:
            return (scheduler or default_scheduler()).submit(fn, args=args, kwargs=kwargs, **options)

        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                return await start(*args, **kwargs)
        else:

            @functools.wraps(fn)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return start(*args, **kwargs).result()

        wrapper.submit = start  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate
