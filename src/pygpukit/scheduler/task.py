"""Tasks: what was asked for, what was decided, and what came of it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pygpukit.core.waits import wait_in_slices
from pygpukit.errors import AdmissionError, TaskCancelledError
from pygpukit.scheduler.figures import row_of

if TYPE_CHECKING:
    from pygpukit import _pygpukit_rust as _native
    from pygpukit.scheduler.external import Libraries, Region
    from pygpukit.scheduler.process import TaskProcess
    from pygpukit.scheduler.scheduler import Scheduler

__all__ = ["Decision", "Task", "current_task", "yield_"]

_T = TypeVar("_T")

_current: ContextVar[Task[Any] | None] = ContextVar("pygpukit_task", default=None)

_log = logging.getLogger("pygpukit.scheduler")

# Failed tasks that are still there; the end of the program reports those whose failure no caller has seen.
_failed: weakref.WeakSet[Task[Any]] = weakref.WeakSet()


def _report_failed() -> None:
    for task in list(_failed):
        task._report()


atexit.register(_report_failed)

# The innermost block of `external`.
_region: ContextVar[Region | None] = ContextVar("pygpukit_region", default=None)


class Decision(str):
    """``"admitted"``, ``"queued"`` or ``"rejected"``, with the inequality that failed.

    Attributes
    ----------
    reason : str or None
        Which number was short, and by how much; None for an admitted task.
    """

    reason: str | None

    def __new__(cls, verdict: str, reason: str | None = None) -> Decision:
        decision = super().__new__(cls, verdict)
        decision.reason = reason
        return decision


class Task(Generic[_T]):
    """A function or coroutine that runs under the scheduler.

    Made by `Scheduler.submit`. It can be waited for with `result`, or awaited.

    Attributes
    ----------
    id : int
        Number in the scheduler.
    name : str
        Shown in statistics, traces and errors.
    decision : Decision
        What admission answered when the task was submitted.
    policy : str
        The class: guaranteed, burstable or besteffort.
    """

    def __init__(
        self, scheduler: Scheduler, number: int, name: str, decision: Decision, policy: str, partition: str
    ) -> None:
        self.id = number
        self.name = name
        self.decision = decision
        self.policy = policy
        self.partition = partition
        self._scheduler = scheduler
        self._future: Future[_T] = Future()
        self._state = "rejected" if decision == "rejected" else "queued"
        self._lease: _native.TaskLease | None = None
        # The thread that is inside of it, and the task it is inside of.
        self._thread: int | None = None
        self._outer: Task[Any] | None = None
        self._final: dict[str, Any] = {}
        self._starting = threading.Lock()
        self._cancel = threading.Event()
        self._interrupt: Callable[[], object] | None = None
        self._on_cancel: list[Callable[[], object]] = []
        self._jobs: dict[str, Any] = {}
        self._sandbox = False
        # Its thread must not wait for the interpreter.
        self._is_prompt = policy == "guaranteed"
        self._process: TaskProcess | None = None
        self._libraries: Libraries | None = None
        # What its function raised, until a caller has seen it.
        self._unseen: BaseException | None = None

    def __del__(self) -> None:
        self._report()

    def _fail(self, failure: BaseException) -> None:
        self._unseen = failure
        _failed.add(self)

    def _report(self) -> None:
        """Log a failure that no caller has asked for, once."""
        failure, self._unseen = getattr(self, "_unseen", None), None
        if failure is not None:
            # In a collection, which may interrupt the parser: a whole traceback would parse its lines with it.
            last = failure.__traceback__
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            where = f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})" if last is not None else ""
            text = "task %d '%s' failed, and its result was never asked for: %r%s"
            _log.error(text, self.id, self.name, failure, where)

    def __repr__(self) -> str:
        return f"<Task {self.id} '{self.name}' {self.state}>"

    @property
    def state(self) -> str:
        """``queued``, ``starting``, ``running``, ``done``, ``failed``, ``cancelled`` or ``rejected``.

        A task is ``starting`` when it was admitted and its function does not run yet. This takes a moment, or longer
        when its memory is in the hands of others; then `reason` says so.
        """
        return self._state

    @property
    def reason(self) -> str | None:
        """Why the task waits now, or was rejected."""
        if self._state in ("queued", "starting"):
            return self._scheduler._core.reason(self.id)
        return self.decision.reason if self._state == "rejected" else None

    @property
    def position(self) -> int | None:
        """Place in the queue, from 0; None when it does not wait."""
        return self._scheduler._core.position(self.id)

    def done(self) -> bool:
        """Has it ended, one way or another?"""
        return self._state in ("done", "failed", "cancelled", "rejected")

    def cancelled(self) -> bool:
        """Was it cancelled before it could end by itself?"""
        return self._state == "cancelled"

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the task and return what its function returned.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        object
            Arrays in it are complete: the task's stream has been waited for.

        Raises
        ------
        AdmissionError
            If the task was rejected; the text is the inequality that failed.
        TaskCancelledError
            If it was cancelled.
        TimeoutError
            If it has not ended in time; it goes on.
        RuntimeError
            If the task would wait for itself, without end.
        Exception
            What the function raised.
        """
        if self._state == "rejected":
            raise AdmissionError(f"task '{self.name}' was rejected: {self.decision.reason}")
        if not self.wait(timeout):
            raise TimeoutError(f"task '{self.name}' is still {self._state} after {timeout} seconds")
        self._unseen = None
        try:
            return self._future.result()
        except CancelledError:
            if not self._future.cancelled():
                # The function's own, of something that it waited for.
                raise
            raise TaskCancelledError(f"task '{self.name}' was cancelled") from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the task and return what `result` raises, or None; TimeoutError if it has not ended in time."""
        if not self.wait(timeout):
            raise TimeoutError(f"task '{self.name}' is still {self._state} after {timeout} seconds")
        try:
            self.result()
        except BaseException as error:
            return error
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; False if it has not in time. It cannot wait for itself: RuntimeError."""
        if self._state != "rejected":
            self._refuse_own_wait(timeout)
            return wait_in_slices(self._ends_within, timeout)
        return True

    def _ends_within(self, seconds: float | None) -> bool:
        try:
            self._future.exception(seconds)
        except CancelledError:
            pass
        except TimeoutError:
            return False
        return True

    def _refuse_own_wait(self, timeout: float | None) -> None:
        inside = self._thread == threading.get_ident() or _current.get() is self
        if inside and timeout is None and not self.done():
            raise RuntimeError(f"task '{self.name}' cannot wait for its own end: it would wait without end")

    def __await__(self) -> Generator[Any, None, _T]:
        return self._awaited().__await__()

    async def _awaited(self) -> _T:
        if self._state == "rejected":
            return self.result()
        try:
            outcome = await asyncio.shield(asyncio.wrap_future(self._future))
        except asyncio.CancelledError:
            if self._future.cancelled():
                raise TaskCancelledError(f"task '{self.name}' was cancelled") from None
            raise
        except BaseException:
            self._unseen = None
            raise
        return outcome

    def cancel(self) -> bool:
        """Cancel the task, whatever it does.

        A waiting task leaves the queue. A running one may submit no more work: its next operator raises
        `TaskCancelledError`, as does `yield_`. What is in flight on the GPU ends by itself. A process of its own is
        ended by SIGTERM, and by SIGKILL half a second later.

        Returns
        -------
        bool
            False if it had ended already.
        """
        return self._scheduler._roster.cancel(self)

    def on_cancel(self, call: Callable[[], object]) -> None:
        """Have a function called when the task is cancelled, in the thread that does it; now, if it has been already.

        A task that waits for something that no operator is part of wakes by it. The function must not wait.
        """
        self._on_cancel.append(call)
        if self._cancel.is_set():
            call()

    @property
    def is_traced(self) -> bool:
        """Whether a trace of its scheduler is being written."""
        return self._scheduler._trace is not None

    def span(self, name: str, begun: float, ended: float, *, key: str | None = None, **args: Any) -> None:
        """Show what the task did in the trace of its scheduler, if one is written.

        Parameters
        ----------
        name : str
        begun, ended : float
            Seconds of `time.perf_counter`.
        key : str, optional
            Spans of one key are drawn in a row of their own, inside of each other; those without one in the task's row.
        **args
            Shown beside it.
        """
        trace = self._scheduler._trace
        if trace is not None:
            trace.add_span(self, name, (begun, ended), key, args)

    def stats(self) -> dict[str, Any]:
        """What the task has used and waited for; see `Scheduler.stats`."""
        return row_of(self)


def current_task() -> Task[Any] | None:
    """The task that runs here, or None outside of tasks.

    Examples
    --------
    >>> current_task() is None
    True
    """
    return _current.get()


def yield_() -> None:
    """A point where the task can be stopped, and where others may have its lane.

    Long functions call it between their steps. Outside of tasks it does nothing.

    Raises
    ------
    TaskCancelledError
        If the task was cancelled.

    Examples
    --------
    >>> yield_()
    """
    task = _current.get()
    if task is None or task._lease is None:
        return
    if task._cancel.is_set():
        raise TaskCancelledError(f"task '{task.name}' was cancelled")
    region = _region.get()
    if region is not None and region.is_here(task):
        region.give_way()
    else:
        task._lease.give_way()
