"""Other libraries inside a task: torch and CuPy on its lane's stream, in its turns and its memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from pygpukit.scheduler.task import _current, _region
from pygpukit.scheduler.torch_memory import pools_kept
from pygpukit.scheduler.torch_turns import OperatorTurns, Torch, loaded_torch, memory_of, operators_in_turns

if TYPE_CHECKING:
    from pygpukit import _pygpukit_rust as _native
    from pygpukit.scheduler.task import Task

__all__ = ["Libraries", "Region", "external", "following"]

# The kind of work that is known to be somebody else's, and nothing more.
_UNKNOWN_WORK = 7


class _Handle:
    """A stream by its number, as other libraries take it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CuPy:
    """CuPy's current stream in this thread, for a device."""

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy = cupy
        self._index = index

    def set(self, handle: int) -> None:
        """Make the stream with this handle the current one."""
        cuda = self._cupy.cuda
        with cuda.Device(self._index):
            # Older ones have no such function, newer ones warn about the class.
            adopt = getattr(cuda.Stream, "from_external", None)
            (cuda.ExternalStream(handle, self._index) if adopt is None else adopt(_Handle(handle))).use()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the stream back at the end."""
        with self._cupy.cuda.Device(self._index):
            stream = self._cupy.cuda.get_current_stream()
        try:
            yield
        finally:
            with self._cupy.cuda.Device(self._index):
                stream.use()


def _loaded_cupy() -> Any:
    cupy = sys.modules.get("cupy")
    return cupy if hasattr(cupy, "cuda") else None


class Libraries:
    """What of other libraries follows a task, in the thread it runs in.

    Parameters
    ----------
    lease : TaskLease
        The task's.
    stack : ExitStack
        Closed when the task ends.
    """

    def __init__(self, lease: _native.TaskLease, stack: ExitStack) -> None:
        self.turns: OperatorTurns | None = None
        self._lease = lease
        self._stack = stack
        self._cupy: CuPy | None = None

    @property
    def enforcement(self) -> str:
        """What holds for the task's work: ``full``, ``sm-only`` or ``none``."""
        if self.turns is not None and self.turns.has_strayed:
            return "none"
        return "sm-only" if self._cupy is not None else "full"

    def look(self) -> None:
        """Take in what has been loaded by now."""
        lease = self._lease
        index = lease.stream.device.index
        # Nobody else is on the SMs of such a lane and they stay the same, so streams can be set once.
        is_alone = lease.mode == "own lane"
        module, cupy = loaded_torch(), _loaded_cupy()
        if module is not None and self.turns is None:
            torch = Torch(module, index)
            self.turns = self._stack.enter_context(operators_in_turns(lease, torch))
            if is_alone and torch.is_ready:
                self.turns.adopt(self._bind())
        if cupy is not None and self._cupy is None and is_alone:
            self._cupy = CuPy(cupy, index)
            self._stack.enter_context(self._cupy.kept())
            self._cupy.set(self._bind())

    def _bind(self) -> int:
        """Have the stream on the lane: a turn does it."""
        handle = self._lease.begin_external(_UNKNOWN_WORK)
        self._lease.end_external(False)
        return handle


@contextmanager
def following(task: Task[Any], lease: _native.TaskLease, outer: Task[Any] | None) -> Iterator[None]:
    """Have the libraries that are loaded follow the task, which runs in this thread, perhaps inside of another."""
    if lease.stream.device.kind != "cuda":
        yield
        return
    with ExitStack() as stack:
        if outer is not None and outer._libraries is not None and outer._libraries.turns is not None:
            stack.enter_context(outer._libraries.turns.paused())
        task._libraries = Libraries(lease, stack)
        task._libraries.look()
        yield


class Region:
    """A block in which other libraries have the task's turn."""

    def __init__(self, task: Task[Any], lease: _native.TaskLease) -> None:
        self._task = task
        self._lease = lease
        self._thread = threading.get_ident()
        self._sides: list[Torch | CuPy] = []

    def is_here(self, task: Task[Any]) -> bool:
        """Is it one of this task, in this thread?"""
        return task is self._task and threading.get_ident() == self._thread

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Hold the turn, with the libraries on the lane's stream."""
        with ExitStack() as stack:
            if self._lease.stream.device.kind == "cuda":
                self._prepare(stack)
            stack.callback(self._lease.end_external, True)
            self._begin()
            yield

    def _prepare(self, stack: ExitStack) -> None:
        index = self._lease.stream.device.index
        followed = self._task._libraries
        module, cupy = loaded_torch(), _loaded_cupy()
        torch = None if module is None else Torch(module, index)
        if torch is not None and torch.prepare():
            self._sides.append(torch)
            stack.enter_context(torch.kept())
            if followed is not None and followed.turns is not None:
                memory = followed.turns.memory
                stack.enter_context(followed.turns.paused())
            else:
                memory = memory_of(self._lease, torch)
                if memory is not None:
                    stack.callback(memory.drop)
            # Without a limit too: a graph may be captured in the block.
            stack.enter_context(pools_kept() if memory is None else memory.used())
        if cupy is not None:
            self._sides.append(CuPy(cupy, index))
            stack.enter_context(self._sides[-1].kept())

    def _begin(self) -> None:
        handle = self._lease.begin_external(_UNKNOWN_WORK)
        for side in self._sides:
            side.set(handle)

    def give_way(self) -> None:
        """Let others have the lane, if they want it. It may be another one afterwards."""
        self._lease.end_external(True)
        self._lease.give_way()
        self._begin()


@contextmanager
def external() -> Iterator[_native.Stream]:
    """Let other libraries use the task's turn, on the stream of its lane.

    Waits for a turn and keeps it until the block is left: nobody else uses the lane meanwhile, and all of the time
    counts as the task's. On a GPU the current streams of torch and CuPy, where they are loaded, are the lane's; other
    libraries are given the handle of the stream. Long blocks call `yield_` between their steps.

    Inside of the block do not await, and do not wait for other tasks: they may be waiting for its end. A block inside
    of another changes nothing.

    Yields
    ------
    Stream
        Its ``handle`` stays the same until the block is left, or until `yield_`.

    Raises
    ------
    RuntimeError
        Outside of tasks.
    TaskCancelledError
        If the task was cancelled.

    Examples
    --------
    >>> from pygpukit.scheduler import external, submit
    >>> def work():
    ...     with external() as stream:
    ...         return stream.query()
    >>> submit(work).result()
    True
    """
    task = _current.get()
    lease = None if task is None else task._lease
    if task is None or lease is None:
        raise RuntimeError("external() gives other libraries a task's turn, and no task runs here: call it inside one")
    around = _region.get()
    if around is not None and around.is_here(task):
        yield lease.stream
        return
    region = Region(task, lease)
    with region.entered():
        _region.set(region)
        try:
            yield lease.stream
        finally:
            _region.set(around)
