"""The processes of tasks: started, given turns, watched, and ended."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import TaskCancelledError, TaskProcessError
from pygpukit.scheduler.parcel import pack_call, unpack, unpack_error
from pygpukit.scheduler.worker import Order, main

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from pygpukit.core.device import Device
    from pygpukit.scheduler.partition import Partition
    from pygpukit.scheduler.roster import Roster
    from pygpukit.scheduler.scheduler import Scheduler
    from pygpukit.scheduler.task import Task

__all__ = ["TaskProcess", "finds_mps", "order_for", "submit_apart"]

# A process that was asked to end is killed after this time.
_GRACE_SECONDS = 0.5
# One that has told its result may tidy up for so long.
_EXIT_SECONDS = 5.0

_MEMORY = ("memory", "memory_soft", "memory_limit")

_alive: weakref.WeakSet[TaskProcess] = weakref.WeakSet()


def finds_mps(environ: Mapping[str, str] = os.environ) -> bool:
    """Is an MPS control daemon running that new processes will use?"""
    folder = Path(environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    try:
        daemon = int((folder / "nvidia-cuda-mps-control.pid").read_text().strip())
        os.kill(daemon, 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return daemon > 0


def order_for(task: Task[Any], device: Device, call: bytes, request: Mapping[str, Any]) -> Order:
    """What the process of a task is told when it starts."""
    memory = {key: request[key] for key in _MEMORY if request.get(key) is not None}
    if task.policy == "guaranteed" and "memory" in memory:
        # A guaranteed task has what was reserved, and no more.
        memory.setdefault("memory_limit", memory["memory"])
    mps = device.kind == "cuda" and finds_mps()
    limit = request.get("bandwidth_limit")
    percentage = max(1, math.ceil(float(limit) * 100)) if mps and limit is not None else None
    name = f"cuda:{device.index}" if device.kind == "cuda" else device.kind
    return Order(task.name, name, call, memory, mps, percentage)


def submit_apart(
    scheduler: Scheduler,
    name: str,
    partition: str | Partition,
    request: dict[str, Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Task[Any]:
    """`Scheduler.submit` for a task in a process of its own."""
    if not hasattr(_native.TaskLease, "lend"):
        raise ValueError("isolation='process' needs Unix sockets, which this platform does not have")
    if request.get("period") is not None or request.get("deadline") is not None:
        raise ValueError("isolation='process' and a deadline exclude each other: turns change too slowly; use 'sm'")
    call = pack_call(name, fn, args, kwargs)
    task = scheduler._admit(name, partition, request)
    if task.decision != "rejected":
        process = TaskProcess(task, order_for(task, scheduler.device, call, request))
        task._process = process
        roster = scheduler._roster
        roster.begin(task, lambda: roster.workers.run(lambda: _run(roster, task, process)))
    return task


def _run(roster: Roster, task: Task[Any], process: TaskProcess) -> None:
    """The life of a task in a process of its own, in the thread that watches it."""
    outcome: Any = None
    failure: BaseException | None = None
    try:
        outcome = process.run(roster.start(task))
    except BaseException as error:
        failure = error
    roster.conclude(task, outcome, failure)


class TaskProcess:
    """The process of one task, as its scheduler sees it."""

    def __init__(self, task: Task[Any], order: Order) -> None:
        self._task = task
        self._order = order
        self._process: SpawnProcess | None = None
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._state = "starting"
        self._told: dict[str, Any] = {}

    def run(self, lease: _native.TaskLease) -> Any:
        """Start it, take turns for it, and return what its function returned.

        Raises
        ------
        TaskProcessError
            If it ended without a word.
        Exception
            What the function raised, with its traceback as the cause.
        """
        context = multiprocessing.get_context("spawn")
        words, far_words = context.Pipe()
        turns, far_turns = socket.socketpair()
        lender: threading.Thread | None = None
        try:
            name = f"pygpukit task '{self._task.name}'"
            process = context.Process(target=main, args=(far_words, far_turns, self._order), name=name)
            with far_words, far_turns:
                _start(process)
            self._process, self._pid = process, process.pid
            _alive.add(self)
            self._task._interrupt = self.stop
            if self._task._cancel.is_set():
                self.stop()
            lender = threading.Thread(target=_lend, args=(lease, turns), name=f"{name}, turns", daemon=True)
            lender.start()
            return self._listen(words, process, lease)
        finally:
            self._task._interrupt = None
            # It has nothing on the device any more, or will not have for long: others need not wait for it.
            with suppress(OSError):
                turns.shutdown(socket.SHUT_RDWR)
            if lender is not None:
                lender.join()
            words.close()
            turns.close()
            self._end()

    def _listen(self, words: Any, process: SpawnProcess, lease: _native.TaskLease) -> Any:
        """What it says, until it has told how its function ended."""
        while True:
            connection.wait([words, process.sentinel])
            try:
                # What it said before it died is read first.
                if not words.poll():
                    raise EOFError
                what, parcel = words.recv()
            except (EOFError, OSError):
                code = _exit_code(process, _GRACE_SECONDS)
                if self._task._cancel.is_set():
                    raise TaskCancelledError(f"task '{self._task.name}' was cancelled") from None
                raise TaskProcessError(self._epitaph(code)) from None
            if what == "figures":
                self._told = parcel
                self._state = "running"
            elif what == "error":
                raise unpack_error(parcel)
            else:
                return unpack(parcel)

    def _epitaph(self, code: int | None) -> str:
        who = f"the process {self._pid} of task '{self._task.name}'"
        if code is None:
            return f"{who} closed its connection and said no more"
        if code < 0:
            with suppress(ValueError):
                return f"{who} was ended by {signal.Signals(-code).name} before its function returned"
        said = f"{who} exited with code {code} before its function returned"
        if self._state == "running":
            return said
        return f"{said}; it had not begun: a script that submits such tasks does so below if __name__ == '__main__'"

    def stop(self) -> None:
        """End the process: politely, then not."""
        process = self._process
        if process is None:
            return
        with suppress(ValueError, OSError):
            process.terminate()
        # One that was stopped, or ignores the signal, does not end by it.
        timer = threading.Timer(_GRACE_SECONDS, self._kill)
        timer.daemon = True
        timer.start()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            with suppress(ValueError, OSError):
                process.kill()

    def _end(self) -> None:
        """Wait until it is gone, so that its memory is free when its task has ended."""
        process = self._process
        if process is None:
            return
        patience = _GRACE_SECONDS if self._task._cancel.is_set() else _EXIT_SECONDS
        code = _exit_code(process, patience)
        if code is None:
            process.kill()
            code = _exit_code(process, None)
        self._exit_code, self._state = code, "ended"
        self._process = None
        _alive.discard(self)
        # One whose code somebody else took counts as running.
        with suppress(ValueError):
            process.close()

    def figures(self, lease: _native.TaskLease) -> dict[str, Any]:
        """What the process said last, and how it does."""
        health = lease.health
        state = health if health in ("overrunning", "unresponsive") else self._state
        process = {"pid": self._pid, "state": state, "exit_code": self._exit_code, "mps": self._order.mps}
        memory = {"memory": 0, "memory_peak": 0, "evictions": 0, "restores": 0}
        return {**memory, **self._told, "process": process}


_starting = threading.Lock()


def _start(process: SpawnProcess) -> None:
    # The module's own list of processes is not made for several threads.
    with _starting:
        process.start()


def _exit_code(process: SpawnProcess, patience: float | None) -> int | None:
    """The exit code of a process that ends within `patience` seconds (None: however long it takes)."""
    process.join(patience)
    # A thread that starts another process reaps this one too, and tells its code a moment later.
    late = time.monotonic() + _GRACE_SECONDS
    while process.exitcode is None and connection.wait([process.sentinel], 0) and time.monotonic() < late:
        time.sleep(0.001)
    return process.exitcode


def _lend(lease: _native.TaskLease, turns: socket.socket) -> None:
    # At the interpreter's end the lease refuses; there is nobody left to tell.
    with suppress(RuntimeError):
        lease.lend(turns.fileno())


@atexit.register
def _end_all() -> None:
    """The interpreter would wait for them."""
    for process in list(_alive):
        process._kill()
