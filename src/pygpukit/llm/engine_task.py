"""An engine as a task of a scheduler: its admission, and the thread that computes in the task's turns and memory."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pygpukit._pygpukit_rust import Device
from pygpukit.config import format_size, parse_size
from pygpukit.errors import AdmissionError, TaskCancelledError
from pygpukit.llm import arguments
from pygpukit.llm.tenants import POLICIES
from pygpukit.scheduler import Partition, Scheduler, Task, current_task, default_scheduler, yield_

__all__ = ["EngineTask", "admit"]

_T = TypeVar("_T")

# How often a call that waits for the task's thread sees whether the task has ended.
_POLL_SECONDS = 0.1


def admit(
    name: str,
    device: Device,
    policy: str | None,
    bandwidth: float | None,
    memory: int | str | None,
    scheduler: Scheduler | Partition | None,
    offload: bool,
) -> EngineTask | None:
    """Ask for an engine to be a task; None where nothing is asked for.

    Parameters
    ----------
    name : str
        Of the engine.
    device : Device
        Where it computes.
    policy, bandwidth, memory, scheduler
        As `LLM` takes them.
    offload : bool
        Its memory may move to the host.

    Raises
    ------
    AdmissionError
        If there is no room; the text is the inequality that failed.
    ValueError
        If values contradict each other.
    """
    if policy is None and bandwidth is None and scheduler is None:
        return None
    if policy is not None:
        arguments.one_of("policy", policy, POLICIES)
    if scheduler is None:
        scheduler = default_scheduler()
    elif not isinstance(scheduler, Scheduler | Partition):
        raise TypeError(
            f"scheduler is {scheduler!r:.80}, and must be a Scheduler, or what create_partition() or create_context() "
            "has made"
        )
    if scheduler.device != device:
        raise ValueError(
            f"the scheduler shares {scheduler.device.name}, and the engine is made for {device.name}: make it inside "
            "of `with gp.device(...)`, or give it a scheduler of its device"
        )
    if isinstance(scheduler, Partition) and scheduler.usage()["isolation"] == "process":
        raise ValueError(
            f"partition '{scheduler.name}' runs tasks in processes of their own, and an engine computes in the process "
            "that made it: use another isolation, or make the engine in a program of its own"
        )
    if policy == "guaranteed" and memory is None:
        raise ValueError("policy='guaranteed' needs memory=: what the engine is promised is reserved before it loads")
    reserved = policy != "besteffort" and memory is not None
    if not offload and not reserved:
        raise ValueError(
            "offload=False keeps the engine's memory on the device, and only reserved memory stays there: give memory= "
            "and policy='guaranteed' or 'burstable'"
        )
    request: dict[str, Any] = {"policy": policy, "bandwidth": bandwidth, "memory_limit": memory}
    if reserved:
        request["memory"] = memory
    return EngineTask(name, scheduler, {key: value for key, value in request.items() if value is not None})


class EngineTask:
    """A task that runs what it is given, until it is ended.

    Parameters
    ----------
    name : str
    scheduler : Scheduler or Partition
    request : dict
        What `Scheduler.submit` takes.

    Raises
    ------
    AdmissionError
        If it is not admitted at once.
    """

    def __init__(self, name: str, scheduler: Scheduler | Partition, request: dict[str, Any]) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._request, self._owner = request, os.getpid()
        self.task: Task[None] = scheduler.submit(_serve, args=(self._calls,), name=name, on_full="reject", **request)
        if self.task.decision == "rejected":
            raise AdmissionError(f"engine '{name}' was not admitted: {self.task.decision.reason}")
        self.task.on_cancel(lambda: self._calls.put(None))

    def run(self, call: Callable[[], _T]) -> _T:
        """Return what a function returns that runs in the task's turns, with its arrays in the task's memory."""
        future: Future[_T] = Future()

        def answer() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(answer)
        while True:
            try:
                return future.result(_POLL_SECONDS)
            except TimeoutError:
                if future.done():
                    return future.result()
                if self.task.done():
                    raise TaskCancelledError(f"task '{self.task.name}' has ended: {self.task.state}") from None

    def start(self, call: Callable[[], None]) -> Call:
        """Let a function run in the task, and return at once."""
        made = Call(call, self.task)
        self._calls.put(made)
        return made

    @staticmethod
    def give_way() -> None:
        """Let others have the lane between two steps; raises if the task was cancelled."""
        yield_()

    def end(self, wait: bool = True) -> None:
        """Give everything back, when what runs has ended."""
        if os.getpid() != self._owner:
            # The task's thread did not follow into this fork.
            return
        self._calls.put(None)
        if wait and current_task() is not self.task:
            self.task.wait()

    def stats(self) -> dict[str, Any]:
        """Return what the scheduler says of the task."""
        return self.task.stats()

    def explain(self) -> str:
        """Return what the engine was promised, in a line."""
        asked, row = self._request, self.task.stats()
        memory = asked.get("memory")
        parts = [f"task {self.task.id} in partition '{self.task.partition}', {self.task.policy}"]
        if asked.get("bandwidth") is not None:
            parts.append(f"{asked['bandwidth']:g} of the compute")
        if memory is not None:
            parts.append(f"{format_size(parse_size(memory))} reserved")
        elif asked.get("memory_limit") is not None:
            parts.append(f"at most {format_size(parse_size(asked['memory_limit']))}, nothing reserved")
        else:
            parts.append("no memory reserved")
        if "mode" in row:
            parts.append(f"{row['mode']} of {row['sm_count']} SMs")
        return ", ".join(parts)


class Call:
    """A function that runs in a task, as a thread to wait for."""

    def __init__(self, call: Callable[[], None], task: Task[None]) -> None:
        self._call, self._task, self._ended = call, task, threading.Event()
        self.ident: int | None = None

    def __call__(self) -> None:
        self.ident = threading.get_ident()
        try:
            self._call()
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        """Whether neither it nor the task has ended; a task does not wait for itself."""
        return not (self._ended.is_set() or self._task.done() or current_task() is self._task)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._ended.wait(timeout)


def _serve(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """What the task is: it waits for functions and runs them."""
    while (call := calls.get()) is not None:
        call()
        # The function holds arrays.
        del call
