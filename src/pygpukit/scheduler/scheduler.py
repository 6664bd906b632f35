"""`Scheduler`: admits tasks, runs them, and says what everybody got."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.device import resolve_device
from pygpukit.core.nvml import read_nvml
from pygpukit.core.waits import wait_in_slices
from pygpukit.errors import AdmissionError, ForkError, TaskCancelledError
from pygpukit.scheduler.figures import row_of
from pygpukit.scheduler.partition import Context, Partition, with_use
from pygpukit.scheduler.periodic import run_jobs
from pygpukit.scheduler.publish import publish, unpublished_because
from pygpukit.scheduler.roster import SHUT_DOWN, Roster
from pygpukit.scheduler.running import coroutine_starter, returns_coroutine, tenancy, thread_starter
from pygpukit.scheduler.task import Decision, Task, current_task
from pygpukit.scheduler.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from pygpukit.core.device import Device

__all__ = ["Scheduler"]


def _named(call: str, error: Exception) -> Exception:
    """A native function's complaint about an argument, as one of the call that was made, with the argument's name."""
    about = [note.removeprefix("while processing ") for note in getattr(error, "__notes__", ())]
    if isinstance(error, ValueError) and not about:
        # Of the values themselves, which it names.
        return error
    return type(error)(": ".join([call, *about, str(error).split("() ")[-1]]))


def _check_count(call: str, name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{call}: '{name}': {value!r} is not an int")
    if operator.index(value) < least:
        raise ValueError(f"{name}={value} is out of range: give {least} or more")


def _check_flag(call: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{call}: '{name}': {value!r} is not a bool")


class Scheduler:
    """Shares one device among tasks.

    Parameters
    ----------
    device : int, str or Device, optional
        Which device; the current one by default.
    total_memory : int or str, optional
        Bytes to promise at most; 98 % of the device's memory by default.
    clusters : bool
        Kernels may use thread block clusters: SMs are then given in steps of 8. With False they are given in steps of
        2, which fits shares better, but kernels with large clusters cannot run in a lane.
    lending : bool
        Lanes of guaranteed tasks that have been idle for a millisecond are used by others, in short turns: the owner's
        next work waits for what they have in flight. Without it they stay empty.
    max_queue : int, optional
        Most tasks that wait; further ones are rejected.

    Examples
    --------
    >>> scheduler = Scheduler()
    >>> task = scheduler.submit(lambda: 6 * 7, memory="1MB")
    >>> task.result()
    42
    >>> scheduler.shutdown()
    True
    """

    def __init__(
        self,
        device: int | str | Device | None = None,
        total_memory: int | str | None = None,
        *,
        clusters: bool = True,
        lending: bool = False,
        max_queue: int | None = None,
    ) -> None:
        if max_queue is not None:
            _check_count("Scheduler()", "max_queue", max_queue, 0)
        for name, flag in (("clusters", clusters), ("lending", lending)):
            _check_flag("Scheduler()", name, flag)
        self.device = resolve_device(device)
        self._core = _native.SchedulerCore(self.device, total_memory, not clusters, max_queue, lending)
        self._roster = Roster(self._core)
        self._pid = os.getpid()
        self._tracing = threading.Lock()
        self._trace: Trace | None = None
        publish(self)

    def __repr__(self) -> str:
        return f"<Scheduler of {self.device.name}, {len(self._roster)} tasks>"

    def submit(
        self,
        fn: Callable[..., Any],
        /,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        jobs: int | None = None,
        partition: str | Partition = "default",
        **request: Any,
    ) -> Task[Any]:
        """Ask for a function to be run on the device.

        Parameters
        ----------
        fn : callable
            Runs in a thread of its own, with its operators on the task's lane and its arrays in the task's memory. A
            coroutine function, or an object whose ``__call__`` is one, runs in the event loop it was submitted from, or
            in a loop of its own, as does a coroutine that another function returns.
        args, kwargs : optional
            Arguments of the function.
        name : str, optional
            Shown in statistics, traces and errors; the function's name by default.
        jobs : int, optional
            With a period: how often the function is run; until the task is cancelled by default.
        partition : str or Partition
            Where the task runs.
        policy : str, optional
            ``guaranteed``, ``burstable``, ``besteffort``, ``priority``, ``deadline`` or ``fair``. By default burstable
            when something is asked for, else besteffort.
        memory : int or str, optional
            Bytes reserved for the task before it starts.
        memory_soft : int or str, optional
            Bytes that are never evicted; above them a burstable task's arrays may move to the host.
        memory_limit : int or str, optional
            Most bytes in use; what was reserved, for a guaranteed task.
        bandwidth, bandwidth_limit : float, optional
            Part of the device's compute that is kept for the task, and that it gets at most.
        weight : int, optional
            How compute that nobody asked for is divided.
        priority : int, optional
            Higher ones are admitted and served first.
        deadline, period, cost : float, optional
            Seconds from release to deadline, between releases, and of device time that one run takes at most.
        isolation : str, optional
            ``auto``, ``sm`` for SMs of its own, ``time`` for windows of the whole GPU, ``process`` for a process of its
            own: function, arguments and result are pickled, and arrays come back as NumPy arrays.
        on_full : str, optional
            ``queue`` or ``reject``: what happens when the request does not fit now.
        sandbox : bool
            Only the task's own work may use its arrays until it has ended.

        Returns
        -------
        Task
            With the decision and its reason.

        Raises
        ------
        ValueError
            If the request makes no sense on any device; the text says which value and what to do.
        TypeError
            If the function is to run in a process of its own, and it or its arguments cannot be pickled.
        """
        self._refuse_in_forks()
        if not callable(fn):
            raise TypeError(f"submit() runs a function, not {type(fn).__name__}")
        if jobs is not None:
            _check_count("submit()", "jobs", jobs, 1)
            if request.get("period") is None:
                raise ValueError(f"jobs={jobs} needs a period: without one the function runs once")
        label = name or str(getattr(fn, "__name__", type(fn).__name__))
        args, bound = tuple(args), dict(kwargs or {})
        if self._is_apart(partition, request):
            # Other programs need not wait for its modules.
            from pygpukit.scheduler.process import submit_apart

            return submit_apart(self, label, partition, request, fn, args, bound)
        if request.get("period") is not None or request.get("deadline") is not None:
            if returns_coroutine(fn):
                raise ValueError("a coroutine cannot have a deadline: the event loop decides when it runs")

            def call(task: Task[Any]) -> Any:
                return run_jobs(task, fn, args, bound, jobs, request)
        else:

            def call(task: Task[Any]) -> Any:
                return fn(*args, **bound)

        starter = coroutine_starter if returns_coroutine(fn) else thread_starter
        task: Task[Any] = self._admit(label, partition, request)
        if task.decision != "rejected":
            self._roster.begin(task, starter(self._roster, task, call))
        return task

    def _refuse_in_forks(self) -> None:
        # Before anything is asked of the core: the threads that are not here may have left its locks locked.
        if os.getpid() != self._pid:
            raise ForkError(
                f"this scheduler belongs to process {self._pid}, and its threads did not follow into this fork of it: "
                "make a new scheduler here"
            )

    def _is_apart(self, partition: str | Partition, request: Mapping[str, Any]) -> bool:
        """Does a task run in a process of its own?"""
        asked = request.get("isolation")
        if asked not in (None, "auto"):
            return bool(asked == "process")
        where = str(getattr(partition, "name", partition))
        return any(row["name"] == where and row["isolation"] == "process" for row in self._core.partitions())

    def _admit(self, name: str, partition: str | Partition, request: dict[str, Any]) -> Task[Any]:
        sandbox = request.pop("sandbox", False)
        _check_flag("submit()", "sandbox", sandbox)
        where = partition.name if isinstance(partition, Partition) else partition
        if not isinstance(name, str):
            raise TypeError(f"submit(): 'name': {name!r} is not a str")
        if self._roster.is_closed:
            raise RuntimeError(SHUT_DOWN)
        try:
            number, verdict, reason, policy = self._core.submit(partition=where, **request)
        except (TypeError, ValueError, OverflowError) as error:
            raise _named("submit()", error) from None
        task: Task[Any] = Task(self, number, name, Decision(verdict, reason), policy, where)
        task._sandbox = sandbox
        task._is_prompt |= request.get("deadline") is not None or request.get("period") is not None
        return task

    @contextmanager
    def task(
        self,
        *,
        name: str = "block",
        partition: str | Partition = "default",
        timeout: float | None = None,
        **request: Any,
    ) -> Iterator[Task[None]]:
        """Run the block as a task, in this thread.

        Parameters
        ----------
        name : str
            Shown in statistics, traces and errors.
        partition : str or Partition
            Where the task runs.
        timeout : float, optional
            Seconds to wait for admission at most.
        **request
            As for `submit`.

        Yields
        ------
        Task
            The task; its work has ended when the block is left.

        Raises
        ------
        AdmissionError
            If it was rejected.
        TimeoutError
            If it was not admitted in time.

        Examples
        --------
        >>> with Scheduler().task(memory="1MB") as task:
        ...     task.state
        'running'
        """
        self._refuse_in_forks()
        if self._is_apart(partition, request):
            raise ValueError("a block runs where it stands: for isolation='process' submit() a function")
        task: Task[None] = self._admit(name, partition, request)
        if task.decision == "rejected":
            raise AdmissionError(f"task '{name}' was rejected: {task.decision.reason}")
        admitted = threading.Event()
        # Whoever cancels it while it waits ends the wait.
        task._future.add_done_callback(lambda _: admitted.set())
        self._roster.begin(task, admitted.set)
        try:
            if not wait_in_slices(admitted.wait, timeout):
                raise TimeoutError(f"task '{name}' was not admitted in {timeout} seconds: {task.reason}")
            if task.cancelled():
                raise TaskCancelledError(f"task '{name}' was cancelled while it waited")
        except BaseException as error:
            if not task.cancel():
                raise
            # It may have been admitted a moment ago, and then nobody but this thread can give its place back.
            wait_in_slices(admitted.wait)
            if not task.done():
                self._roster.conclude(task, None, error)
            task._unseen = None
            raise
        failure: BaseException | None = None
        try:
            with tenancy(self._roster, task):
                yield task
        except BaseException as error:
            failure = error
            raise
        finally:
            self._roster.conclude(task, None, failure)
            # It is raised here.
            task._unseen = None

    def cancel(self, number: int) -> bool:
        """Cancel a task by its number; see `Task.cancel`."""
        found = self._roster.find(number)
        return isinstance(found, Task) and found.cancel()

    def create_partition(
        self, name: str, memory: int | str | None = None, compute: float = 0.0, **limits: Any
    ) -> Partition:
        """Set a part of the device aside.

        Parameters
        ----------
        name : str
            Unique in the scheduler.
        memory : int or str, optional
            Bytes taken from the device for the partition's tasks.
        compute : float
            Part of the device's compute kept for them.
        memory_limit : int or str, optional
            Bytes its tasks get together at most.
        compute_limit : float, optional
            Part of the device's compute that each of its tasks gets at most.
        priority_band : (int, int), optional
            Lowest and highest priority of its tasks.
        isolation : str, optional
            ``sm`` gives the partition SMs of its own, which its tasks share; otherwise it has a share of the common
            lane.
        classes : list of str, optional
            Classes of tasks it takes; all by default.
        queue_limit : int, optional
            Most tasks that wait in it.

        Returns
        -------
        Partition
            With `submit` and `task`.

        Raises
        ------
        ValueError
            If a value makes no sense.
        DeviceError
            If the device has not enough left; the text is the inequality that failed.
        """
        self._refuse_in_forks()
        try:
            self._core.create_partition(name, memory, compute, **limits)
        except (TypeError, ValueError, OverflowError) as error:
            raise _named("create_partition()", error) from None
        finally:
            # A waiting request that only the partition is in the way of now lets others pass.
            self._roster.start_all(self._core.admit_waiting())
        return Partition(self, name)

    def create_context(self, id: str, max_vram: int | str | None = None, **limits: Any) -> Context:
        """Set a part of the device aside for one model. Several run beside each other, and their tasks can be awaited.

        Parameters
        ----------
        id : str
            Unique in the scheduler.
        max_vram : int or str, optional
            Bytes taken from the device for the model, and the most that its tasks have together.
        **limits
            As for `create_partition`: ``compute``, ``isolation`` and others.

        Returns
        -------
        Context
            With `submit`, `task`, `usage` and `close`.
        """
        return Context(self, self.create_partition(id, memory=max_vram, **limits).name)

    def partition(self, name: str) -> Partition:
        """A partition that exists."""
        self._refuse_in_forks()
        names = [row["name"] for row in self._core.partitions()]
        if name not in names:
            raise ValueError(f"there is no partition '{name}'; there is {', '.join(map(repr, names))}")
        return Partition(self, name)

    def _remove_partition(self, name: str) -> None:
        self._roster.start_all(self._core.remove_partition(name))

    def stats(self, task: Task[Any] | int) -> dict[str, Any]:
        """What a task has used, and waited for.

        Parameters
        ----------
        task : Task or int
            The task, or its ``id``.

        Returns
        -------
        dict
            ``state``, ``decision``, ``reason``, ``position``, ``policy``, ``partition``; device time as
            ``gpu_seconds`` on its lane and ``device_seconds`` of the whole device, ``share`` in the last second;
            ``sm_count``, ``mode``, ``submissions``, ``slices`` among them, ``throttled`` and ``throttle_log``;
            ``memory``, ``memory_peak``, ``evictions``, ``restores``; ``enforcement`` of other libraries' work; ``jobs``
            of a task with a deadline; ``process`` of a task in a process of its own.
        """
        self._refuse_in_forks()
        if isinstance(task, Task) and task._scheduler is not self:
            raise ValueError(f"task {task.id} '{task.name}' belongs to another scheduler: use task.stats()")
        found = self._roster.find(task.id if isinstance(task, Task) else task)
        return row_of(found) if isinstance(found, Task) else dict(found)

    def status(self) -> dict[str, Any]:
        """Everything at once: the device, its partitions, running and waiting tasks.

        Returns
        -------
        dict
            ``device``, ``capacity``, ``partitions``, ``tasks`` and ``unscheduled``; plain values, ready for JSON.
            ``nvml`` is what the driver measures, or None where nvidia-ml-py or the GPU is missing; ``unpublished`` why
            ``pygpukit status`` cannot show this process, or None.
        """
        self._refuse_in_forks()
        tasks = [row_of(task) for task in self._roster.tasks()]
        capacity = dict(self._core.capacity())
        return {
            "time": time.time(),
            "device": self.device.name,
            "capacity": capacity,
            "partitions": [with_use(row, tasks, capacity["sms"]) for row in self._core.partitions()],
            "tasks": tasks,
            "unscheduled": self._core.unscheduled(),
            "nvml": read_nvml(self.device),
            "unpublished": unpublished_because(),
        }

    def trace(self, path: str | Path) -> Trace:
        """Record who had which lane when, for Perfetto or Chrome's ``about:tracing``.

        Parameters
        ----------
        path : str or Path
            File to write, as JSON.

        Returns
        -------
        Trace
            Records while it is open: ``with scheduler.trace("trace.json"):``, or between `start` and `stop`.
        """
        return Trace(self, path)

    def _is_over(self) -> bool:
        return self._roster.is_closed and not self._roster

    def shutdown(self, wait: bool = True, *, cancel: bool = False, timeout: float | None = None) -> bool:
        """Take no more tasks.

        Parameters
        ----------
        wait : bool
            Wait until every task, waiting ones included, has ended.
        cancel : bool
            Cancel them all first.
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        bool
            Whether every task has ended.

        Raises
        ------
        RuntimeError
            If a task of this scheduler would wait for itself.
        """
        if os.getpid() != self._pid:
            # The threads of the tasks did not follow into this fork: nobody would end the wait.
            self._roster.is_closed = True
            return not self._roster
        here = current_task()
        if wait and timeout is None and here is not None and here._scheduler is self:
            raise RuntimeError(
                f"shutdown() waits for every task, and was called inside of one, '{here.name}', which it would wait for"
                " without end: give it wait=False or a timeout, or call it outside"
            )
        tasks = self._roster.close()
        if cancel:
            for task in reversed(tasks):
                task.cancel()
        limit = None if timeout is None else time.monotonic() + timeout
        if wait:
            for task in tasks:
                task.wait(None if limit is None else max(0.0, limit - time.monotonic()))
        return all(task.done() for task in tasks)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown(cancel=exc[0] is not None)
