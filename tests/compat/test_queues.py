"""Queues: order, sizes, what happens when they are full, figures."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any

import pytest

from pygpukit.compat.pydotcompute.exceptions import QueueFullError, QueueTimeoutError
from pygpukit.compat.pydotcompute.ring_kernels.fast_queue import (
    FastMessageQueue,
    PriorityBand,
    QueueStats,
    get_priority_band,
)
from pygpukit.compat.pydotcompute.ring_kernels.message import RingKernelMessage
from pygpukit.compat.pydotcompute.ring_kernels.queue import BackpressureStrategy, MessageQueue, PriorityItem

BLOCK, REJECT, DROP_OLDEST = BackpressureStrategy
QUEUES = [MessageQueue, FastMessageQueue]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


def messages(*priorities: int) -> list[RingKernelMessage]:
    return [RingKernelMessage(priority=one) for one in priorities]


def drained(queue: Any) -> list[int]:
    found = []
    while (one := queue.get_nowait()) is not None:
        found.append(one.priority)
    return found


def test_strategies() -> None:
    assert [one.name for one in BackpressureStrategy] == ["BLOCK", "REJECT", "DROP_OLDEST"]


def test_items_are_ordered_by_priority_and_number() -> None:
    assert PriorityItem(1, 5, "b") < PriorityItem(2, 0, "a")
    assert PriorityItem(1, 2, "b") < PriorityItem(1, 3, "a")
    assert PriorityItem(1, 2, "b") == PriorityItem(1, 2, "other")
    assert [one.name for one in dataclasses.fields(PriorityItem)] == ["priority", "sequence", "message"]


@pytest.mark.parametrize("cls", QUEUES)
def test_sizes(cls: Any) -> None:
    queue = cls(maxsize=2)
    assert (queue.maxsize, queue.qsize, len(queue), queue.empty, queue.full) == (2, 0, 0, True, False)
    assert queue.put_nowait(RingKernelMessage()) is True
    assert (queue.qsize, len(queue), queue.empty, queue.full) == (1, 1, False, False)
    queue.put_nowait(RingKernelMessage())
    assert queue.full
    assert queue.put_nowait(RingKernelMessage()) is False
    assert cls.__name__ in repr(queue)
    assert "2" in repr(queue)
    assert queue.clear() == 2
    assert (queue.empty, queue.clear()) == (True, 0)
    assert cls().maxsize == 4096


@pytest.mark.parametrize("cls", QUEUES)
def test_the_object_itself_comes_out(cls: Any) -> None:
    async def main() -> None:
        queue, one = cls(), RingKernelMessage()
        assert await queue.put(one) is True
        assert await queue.get() is one
        assert queue.get_nowait() is None
        for plain in (0, "text", [1]):
            assert queue.put_nowait(plain)
            assert queue.get_nowait() is plain

    run(main())


@pytest.mark.parametrize("cls", QUEUES)
def test_the_most_urgent_goes_first(cls: Any) -> None:
    queue = cls()
    for one in messages(50, 200, 100):
        queue.put_nowait(one)
    assert drained(queue) == [200, 100, 50]


def test_equal_priorities_keep_their_order() -> None:
    queue, ones = MessageQueue(), messages(5, 5, 5)
    for one in ones:
        queue.put_nowait(one)
    assert [queue.get_nowait() for _ in ones] == ones


def test_without_priorities_the_first_goes_first() -> None:
    queue = MessageQueue(use_priority=False)
    for one in messages(50, 200, 100):
        queue.put_nowait(one)
    assert drained(queue) == [50, 200, 100]


def test_bands() -> None:
    assert [one.name for one in PriorityBand] == ["SYSTEM", "HIGH", "NORMAL", "LOW"]
    borders = {255: 0, 224: 0, 223: 1, 160: 1, 159: 2, 64: 2, 63: 3, 0: 3}
    assert {priority: int(get_priority_band(priority)) for priority in borders} == borders


def test_in_a_band_the_first_goes_first() -> None:
    queue = FastMessageQueue()
    for one in messages(100, 150, 10, 200, 255, 20, 180):
        queue.put_nowait(one)
    assert queue.get_stats()["band_counts"] == {"system": 1, "high": 2, "normal": 2, "low": 2}
    assert drained(queue) == [255, 200, 180, 100, 150, 10, 20]
    assert set(queue.get_stats()["band_counts"].values()) == {0}


@pytest.mark.parametrize("size", [0])
def test_size_zero_has_no_end(size: int) -> None:
    queue = MessageQueue(maxsize=size)
    assert all(queue.put_nowait(RingKernelMessage()) for _ in range(5000))
    assert (queue.qsize, queue.full, queue.maxsize) == (5000, False, 0)


def test_reject() -> None:
    async def main() -> None:
        queue = MessageQueue(1, backpressure=REJECT, kernel_id="k")
        await queue.put(RingKernelMessage())
        with pytest.raises(QueueFullError) as caught:
            await queue.put(RingKernelMessage())
        assert (caught.value.kernel_id, caught.value.queue_size) == ("k", 1)
        assert queue.put_nowait(RingKernelMessage()) is False
        assert queue.get_stats()["total_enqueued"] == 1

    run(main())


@pytest.mark.parametrize("use_priority", [True, False])
def test_drop_oldest(use_priority: bool) -> None:
    async def main() -> None:
        queue = MessageQueue(2, backpressure=DROP_OLDEST, use_priority=use_priority)
        for one in messages(10, 50, 100):
            assert await queue.put(one) is True
        assert (queue.qsize, queue.get_stats()["total_dropped"]) == (2, 1)
        assert sorted(drained(queue)) == [50, 100]
        assert all(queue.put_nowait(one) for one in messages(1, 2, 3))
        assert queue.get_stats()["total_dropped"] == 2

    run(main())


@pytest.mark.parametrize("cls", QUEUES)
def test_block(cls: Any) -> None:
    async def main() -> None:
        queue = cls(1, kernel_id="k")
        await queue.put(RingKernelMessage(priority=1))
        with pytest.raises(QueueFullError):
            await queue.put(RingKernelMessage(), timeout=0.01)
        with pytest.raises(QueueTimeoutError) as caught:
            await queue.put(RingKernelMessage(), timeout=0)
        assert (caught.value.kernel_id, caught.value.timeout) == ("k", 0)
        waiting = asyncio.create_task(queue.put(RingKernelMessage(priority=2)))
        assert (await queue.get()).priority == 1
        assert await waiting is True
        assert (await queue.get()).priority == 2

    run(main())


@pytest.mark.parametrize("cls", QUEUES)
def test_get_waits(cls: Any) -> None:
    async def main() -> None:
        queue = cls(kernel_id="k")
        with pytest.raises(QueueTimeoutError) as caught:
            await queue.get(timeout=0.01)
        assert (caught.value.kernel_id, caught.value.timeout) == ("k", 0.01)
        waiting = asyncio.create_task(queue.get(timeout=60))
        await asyncio.sleep(0)
        await queue.put(RingKernelMessage(priority=42))
        assert (await waiting).priority == 42
        cancelled = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await queue.put(RingKernelMessage(priority=43))
        assert queue.get_nowait().priority == 43

    run(main())


def test_many_senders() -> None:
    async def main() -> None:
        queue = MessageQueue(100)

        async def send() -> None:
            for _ in range(10):
                await queue.put(RingKernelMessage())

        await asyncio.gather(*(send() for _ in range(3)))
        assert queue.qsize == 30

    run(main())


def test_figures() -> None:
    queue = MessageQueue(100)
    for _ in range(5):
        queue.put_nowait(RingKernelMessage())
    for _ in range(3):
        queue.get_nowait()
    assert queue.get_stats() == {
        "current_size": 2,
        "max_size": 100,
        "total_enqueued": 5,
        "total_dequeued": 3,
        "total_dropped": 0,
    }


def test_figures_of_a_fast_queue() -> None:
    queue = FastMessageQueue(100)
    for one in messages(1, 128, 255):
        queue.put_nowait(one)
    queue.get_nowait()
    assert queue.get_stats() == {
        "current_size": 2,
        "max_size": 100,
        "peak_size": 3,
        "total_enqueued": 3,
        "total_dequeued": 1,
        "total_dropped": 0,
        "band_counts": {"system": 0, "high": 0, "normal": 1, "low": 1},
    }
    queue.clear()
    assert set(queue.get_stats()["band_counts"].values()) == {0}
    assert QueueStats().band_counts is None


def test_batches() -> None:
    queue = FastMessageQueue(3)
    ones = messages(1, 2, 3, 4)
    assert queue.put_batch(ones) == 3
    assert queue.get_batch(2) == ones[:2]
    assert queue.get_batch(9) == ones[2:3]


def test_bytes_in_a_queue() -> None:
    queue, one = FastMessageQueue(serialize=True), RingKernelMessage(priority=200)
    queue.put_nowait(one)
    assert RingKernelMessage.deserialize(queue.get_nowait()) == one
