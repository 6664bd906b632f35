"""`external`: another library has the task's turn, until the block is left."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from checks import PATIENCE, use_device

import pygpukit as gp
from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import DeviceError, TaskCancelledError
from pygpukit.scheduler import Scheduler, current_task, external, yield_

# The CPU device, as the functions for other libraries' memory know it.
_CPU = -1


def until(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    pause = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came")


def test_outside_of_a_task_there_is_no_turn_to_have() -> None:
    with pytest.raises(RuntimeError, match=r"external\(\) gives other libraries a task's turn, and no task runs here"):
        external().__enter__()


def test_its_time_is_charged_and_its_operators_run_in_it(scheduler: Scheduler) -> None:
    def work() -> tuple[float, bool]:
        with external() as stream:
            result = use_device()
            time.sleep(0.02)
            return result, stream.id == gp.current_stream().id

    task = scheduler.submit(work)
    assert task.result(PATIENCE) == (1000.0, True)
    row = task.stats()
    assert row["gpu_seconds"] >= 0.02
    assert row["enforcement"] == "full"


def test_a_block_inside_of_another_changes_nothing(scheduler: Scheduler) -> None:
    with scheduler.task() as task, external() as outer:
        before = task.stats()["submissions"]
        with external() as inner:
            assert inner.id == outer.id
        assert task.stats()["submissions"] == before
        use_device()


@contextmanager
def held(scheduler: Scheduler, body: Callable[[], Any] = lambda: None) -> Iterator[tuple[Any, threading.Event]]:
    """A task that has the turn until it is told to leave it."""
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with external():
            inside.set()
            while not leave.wait(0.001):
                body()

    task = scheduler.submit(work, name="holder")
    assert inside.wait(PATIENCE)
    try:
        yield task, leave
    finally:
        leave.set()


def test_others_wait_for_the_end_of_the_block(scheduler: Scheduler) -> None:
    with held(scheduler) as (holder, leave):
        other = scheduler.submit(use_device)
        until(lambda: other.stats().get("waiting", 0) > 0)
        assert not other.wait(0.02)
        leave.set()
        assert other.result(PATIENCE) == 1000.0
    holder.result(PATIENCE)


def test_others_have_their_turns_when_the_block_gives_way(scheduler: Scheduler) -> None:
    with held(scheduler, yield_) as (holder, leave):
        assert scheduler.submit(use_device).result(PATIENCE) == 1000.0
        assert not holder.done()
        leave.set()
        holder.result(PATIENCE)


def test_blocks_share_the_lane_by_weight(scheduler: Scheduler) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with external():
                time.sleep(0.0005)

    tasks = [scheduler.submit(work, weight=weight) for weight in (1, 3)]
    until(lambda: sum(task.stats().get("gpu_seconds", 0.0) for task in tasks) > 1.0)
    stop.set()
    for task in tasks:
        task.result(PATIENCE)
    one, three = (task.stats()["gpu_seconds"] for task in tasks)
    # Half of it would be neither; threads that come late on a loaded machine lose some.
    assert 0.15 < one / (one + three) < 0.4


def test_an_exception_ends_the_block(scheduler: Scheduler) -> None:
    def work() -> None:
        with external():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scheduler.submit(work).result(PATIENCE)
    assert scheduler.submit(use_device).result(PATIENCE) == 1000.0


def test_a_block_that_is_never_left_ends_with_its_task(scheduler: Scheduler) -> None:
    kept: list[object] = []

    def work() -> None:
        block = external()
        block.__enter__()
        kept.append(block)

    scheduler.submit(work).result(PATIENCE)
    assert scheduler.submit(use_device).result(PATIENCE) == 1000.0


def test_a_cancelled_task_leaves_the_block_at_its_next_step(scheduler: Scheduler) -> None:
    with held(scheduler, yield_) as (holder, _):
        other = scheduler.submit(use_device)
        assert holder.cancel()
        with pytest.raises(TaskCancelledError):
            holder.result(PATIENCE)
        assert other.result(PATIENCE) == 1000.0


def test_a_cancelled_task_does_not_get_a_turn(scheduler: Scheduler) -> None:
    with held(scheduler) as (holder, leave):

        def work() -> None:
            with external():
                pytest.fail("it was cancelled")

        waiter = scheduler.submit(work)
        until(lambda: waiter.stats().get("waiting", 0) > 0)
        waiter.cancel()
        with pytest.raises(TaskCancelledError):
            waiter.result(PATIENCE)
        leave.set()
        holder.result(PATIENCE)


def test_a_coroutine_has_the_turn_between_two_awaits(scheduler: Scheduler) -> None:
    async def work(number: int) -> float:
        total = 0.0
        for _ in range(5):
            with external():
                total += use_device(size=number)
            await asyncio.sleep(0)
        return total

    async def main() -> list[float]:
        return await asyncio.gather(*(scheduler.submit(work, args=[number]) for number in (10, 20)))

    assert asyncio.run(main()) == [50.0, 100.0]


def test_awaiting_inside_of_the_block_is_refused_to_the_others(scheduler: Scheduler) -> None:
    inside = threading.Event()

    async def holder() -> None:
        with external():
            inside.set()
            await asyncio.sleep(0.05)

    async def other() -> float:
        while not inside.is_set():
            await asyncio.sleep(0)
        return use_device()

    async def main() -> list[Any]:
        tasks = [scheduler.submit(holder, name="holder"), scheduler.submit(other)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    done, refused = asyncio.run(main())
    assert done is None
    assert isinstance(refused, DeviceError)
    assert "task 'holder' has the lane" in str(refused)
    assert "do not await" in str(refused)


def test_streams_of_the_cpu_device_have_no_handle() -> None:
    stream = gp.Stream()
    if stream.device.kind == "cuda":
        assert stream.__cuda_stream__() == (0, stream.handle)
        return
    assert stream.handle is None
    with pytest.raises(DeviceError, match="CPU device"):
        stream.__cuda_stream__()


@pytest.fixture
def cpu_device() -> None:
    if gp.Stream().device.kind == "cuda":
        pytest.skip("of the CPU device")


def _functions() -> tuple[Any, Any]:
    library = ctypes.CDLL(_native.__file__)
    allocate, free = library.pygpukit_external_alloc, library.pygpukit_external_free
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    return allocate, free


@pytest.mark.usefixtures("cpu_device")
def test_memory_for_other_libraries_is_the_tasks(scheduler: Scheduler) -> None:
    allocate, free = _functions()
    mib = 1 << 20

    def used() -> int:
        task = current_task()
        assert task is not None
        return int(task.stats()["memory"])

    def work() -> list[Any]:
        stream = None
        first = allocate(4 * mib, _CPU, stream)
        seen = [bool(first), used()]
        seen += [allocate(8 * mib, _CPU, stream), allocate(-1, _CPU, stream), allocate(0, _CPU, stream)]
        free(first, 4 * mib, _CPU, stream)
        free(first, 4 * mib, _CPU, stream)
        free(None, 0, _CPU, stream)
        return [*seen, used()]

    assert scheduler.submit(work, memory_limit="8MiB").result(PATIENCE) == [True, 4 * mib, None, None, None, 0]


@pytest.mark.usefixtures("cpu_device")
def test_memory_for_other_libraries_outlives_the_task(scheduler: Scheduler) -> None:
    allocate, free = _functions()
    address = scheduler.submit(lambda: allocate(1 << 20, _CPU, None), memory_limit="8MiB").result(PATIENCE)
    ctypes.memset(address, 7, 1 << 20)
    assert ctypes.string_at(address, 4) == b"\7\7\7\7"
    free(address, 1 << 20, _CPU, None)


@pytest.mark.usefixtures("cpu_device")
def test_memory_of_a_gpu_that_is_not_there_is_none() -> None:
    allocate, _ = _functions()
    assert allocate(1 << 20, 0, None) is None
