"""The process's own scheduler, for programs that need no other."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from pygpukit import _pygpukit_rust as _native
from pygpukit.scheduler.running import returns_coroutine
from pygpukit.scheduler.scheduler import Scheduler, _named
from pygpukit.scheduler.task import Task

__all__ = ["default_scheduler", "scheduled", "shutdown", "stats", "status", "submit", "task"]

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_default: Scheduler | None = None


def _begin_anew() -> None:
    """In a forked child the tasks and the scheduler, and perhaps a locked lock, are the parent's."""
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


def stats(task: Task[Any] | int) -> dict[str, Any]:
    """`Scheduler.stats` of the default scheduler."""
    return default_scheduler().stats(task)


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
        attribute ``submit`` takes the same arguments and returns the task instead. Both work for methods too.

    Raises
    ------
    TypeError, ValueError
        If there is no such option, or its value makes no sense on any device.

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

    _check(options)

    def decorate(fn: _F) -> _F:
        if isinstance(fn, (staticmethod, classmethod)):
            raise TypeError(f"put @scheduled(...) below @{type(fn).__name__}, next to the function")
        kind = _ScheduledCoroutine if returns_coroutine(fn) else _Scheduled
        return kind(fn, scheduler, options)  # type: ignore[return-value]

    return decorate


def _check(options: Mapping[str, Any]) -> None:
    """Refuse options that no call could be submitted with."""
    request = {key: value for key, value in options.items() if key not in ("name", "jobs", "partition", "sandbox")}
    try:
        _native.QosTaskMeta("", "", **request)
    except (TypeError, ValueError, OverflowError) as error:
        raise _named("scheduled()", error) from None


class _Scheduled:
    """A function whose calls are tasks, be it a method or not."""

    def __init__(
        self, fn: Callable[..., Any], scheduler: Scheduler | None, options: Mapping[str, Any], *bound: object
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._scheduler = scheduler
        self._options = options
        self._bound = bound

    def __get__(self, instance: object, owner: type | None = None) -> _Scheduled:
        return self if instance is None else type(self)(self._fn, self._scheduler, self._options, instance)

    def submit(self, /, *args: Any, **kwargs: Any) -> Task[Any]:
        """Submit a call, and return its task."""
        scheduler = self._scheduler or default_scheduler()
        return scheduler.submit(self._fn, args=(*self._bound, *args), kwargs=kwargs, **self._options)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.submit(*args, **kwargs).result()

    def __repr__(self) -> str:
        return f"<scheduled {self._fn!r}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # As functions and methods are pickled.
        name = self._fn.__name__ if self._bound else self._fn.__qualname__
        return (getattr, (*self._bound, name)) if self._bound else name


class _ScheduledCoroutine(_Scheduled):
    """The same of a coroutine function: it is awaited as before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # What asyncio looks for, and inspect in later versions of Python.
        self._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)
        getattr(inspect, "markcoroutinefunction", id)(self)

    async def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return await self.submit(*args, **kwargs)
