"""The tasks of one scheduler: remembered, started when there is room, concluded, and their figures kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pygpukit.errors import OutOfMemoryError, TaskCancelledError
from pygpukit.scheduler.figures import figures_of, row_of
from pygpukit.scheduler.task import Task
from pygpukit.scheduler.workers import Workers

if TYPE_CHECKING:
    from pygpukit import _pygpukit_rust as _native

__all__ = ["AGAIN_SECONDS", "SHUT_DOWN", "Roster"]

SHUT_DOWN = "the scheduler was shut down and takes no more tasks; make a new one"

# While a guarantee or a deadline exists Python threads hand the interpreter over after this time at most.
_SWITCH_SECONDS = 100e-6

# How soon a task tries again whose memory others have.
AGAIN_SECONDS = 0.005

# Ended tasks whose figures are kept.
_KEPT_TASKS = 1000


class _SwitchInterval:
    """Lowers the interpreter's switch interval while anybody needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0
        self._lowered = 0.0

    def lower(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SWITCH_SECONDS))
                self._lowered = sys.getswitchinterval()

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            # What somebody else has set meanwhile stays.
            if self._users == 0 and sys.getswitchinterval() == self._lowered:
                sys.setswitchinterval(self._before)


_switch_interval = _SwitchInterval()


class Roster:
    """Who waits, who runs and who has ended.

    Attributes
    ----------
    workers : Workers
        The threads that tasks run in.
    is_closed : bool
        No more tasks are taken.
    """

    def __init__(self, core: _native.SchedulerCore) -> None:
        self.workers = Workers("pygpukit-task")
        self.is_closed = False
        self._core = core
        self._lock = threading.Lock()
        self._tasks: dict[int, Task[Any]] = {}
        # Figures only: what a task returned is not the scheduler's to keep.
        self._ended: dict[int, dict[str, Any]] = {}
        self._starts: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, task: Task[Any], start: Callable[[], None]) -> None:
        """Remember a task, and have it started: now, or when there is room for it."""
        with self._lock:
            late = self.is_closed
            self._tasks[task.id] = task
            # A queued task may have been admitted, in place of one that ended, before it could be remembered.
            admitted = task.decision == "admitted" or self._core.position(task.id) is None
            if not admitted and not late:
                self._starts[task.id] = start
                return
            task._state = "starting"
        if late:
            self.conclude(task, None, TaskCancelledError(SHUT_DOWN))
            task._unseen = None
            raise RuntimeError(SHUT_DOWN)
        try:
            start()
        except BaseException as error:
            self.conclude(task, None, error)
            task._unseen = None
            raise

    def start(self, task: Task[Any]) -> _native.TaskLease:
        """Give a task its place on the device, when its memory is there."""
        while (lease := self.try_start(task)) is None:
            task._cancel.wait(AGAIN_SECONDS)
        return lease

    def try_start(self, task: Task[Any]) -> _native.TaskLease | None:
        """None: what others hold is in the way, and cannot be moved now."""
        # Whoever ends the task meanwhile waits for this, or comes first.
        with task._starting:
            if task._cancel.is_set() or task.done():
                raise TaskCancelledError(f"task '{task.name}' was cancelled before it started")
            try:
                lease = self._core.start(task.id, task.name, task._sandbox)
            except OutOfMemoryError:
                if task.reason is None:
                    raise
                return None
            task._lease = lease
            task._state = "running"
            if task._is_prompt:
                _switch_interval.lower()
        if task._cancel.is_set():
            lease.end()
        return lease

    def conclude(self, task: Task[Any], outcome: Any, failure: BaseException | None) -> None:
        """Give back what the task had, tell those who wait for it, and start those admitted in its place."""
        self.start_all(self._end(task, outcome, failure))

    def _end(self, task: Task[Any], outcome: Any, failure: BaseException | None) -> list[int]:
        """End a task; returns the numbers of those admitted in its place."""
        with task._starting:
            if task.done():
                return []
            lease = task._lease
            if lease is not None:
                lease.end_all_external()
                lease.end()
                with suppress(Exception):
                    task._final = figures_of(task, lease)
            try:
                admitted = self._core.finish(task.id)
            except BaseException as error:
                # Ctrl-C, while the device was waited for. Other threads hear no signals: its place must not be lost.
                admitted, failure = [], failure or error
                self.workers.run(lambda: self._finish(task.id))
            if lease is not None:
                task._lease = task._libraries = None
                if task._is_prompt:
                    _switch_interval.restore()
            cancelled = task._cancel.is_set() and (failure is None or isinstance(failure, TaskCancelledError))
            task._state = "cancelled" if cancelled else "failed" if failure is not None else "done"
        with self._lock:
            self._tasks.pop(task.id, None)
            self._starts.pop(task.id, None)
            self._ended[task.id] = row_of(task)
            while len(self._ended) > _KEPT_TASKS:
                del self._ended[next(iter(self._ended))]
        future = task._future
        if cancelled:
            future.cancel()
            future.set_running_or_notify_cancel()
        elif failure is not None:
            task._fail(failure)
            future.set_exception(failure)
        else:
            future.set_result(outcome)
        return admitted

    def _finish(self, number: int) -> None:
        # A device that is lost has no places to give back.
        with suppress(Exception):
            self.start_all(self._core.finish(number))

    def start_all(self, numbers: Sequence[int]) -> None:
        """Start tasks that were admitted in place of others."""
        admitted = list(numbers)
        for number in admitted:
            with self._lock:
                task, start = self._tasks.get(number), self._starts.pop(number, None)
                if task is None or start is None:
                    continue
                task._state = "starting"
            try:
                start()
            except Exception as error:
                # The system has no thread for it, and its place is the next one's.
                admitted += self._end(task, None, error)

    def cancel(self, task: Task[Any]) -> bool:
        """Take a task out of the queue, or make it stop; False if it had ended already."""
        if task.done():
            return False
        task._cancel.set()
        with self._lock:
            waiting = self._starts.pop(task.id, None)
        if waiting is not None:
            self.conclude(task, None, TaskCancelledError(f"task '{task.name}' was cancelled while it waited"))
            return True
        lease = task._lease
        if lease is not None:
            lease.end()
        for call in task._on_cancel:
            call()
        interrupt = task._interrupt
        if interrupt is not None:
            try:
                interrupt()
            except RuntimeError:
                # Its event loop was closed before it had ended: nobody else will end it.
                self.conclude(task, None, TaskCancelledError(f"task '{task.name}' was cancelled"))
        return True

    def find(self, number: int) -> Task[Any] | dict[str, Any]:
        """A task, or the figures of one that has ended."""
        with self._lock:
            found = self._tasks.get(number) or self._ended.get(number)
        if found is None:
            raise ValueError(f"there is no task {number}: it never was, or ended long ago")
        return found

    def tasks(self) -> list[Task[Any]]:
        """Those that have not ended, the oldest first."""
        with self._lock:
            return [task for _, task in sorted(self._tasks.items())]

    def rows(self) -> list[dict[str, Any]]:
        """Figures of all tasks whose figures are kept, ended ones first."""
        with self._lock:
            ended, tasks = [dict(row) for row in self._ended.values()], list(self._tasks.values())
        return ended + [row_of(task) for task in tasks]

    def close(self) -> list[Task[Any]]:
        """Take no more tasks; returns those that have not ended."""
        with self._lock:
            self.is_closed = True
            return list(self._tasks.values())
