"""`RingQueue`: policies, priorities, waits of threads and of event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from pygpukit._pygpukit_rust import RingQueue
from pygpukit.ring import message
from pygpukit.ring.waiting import ACCEPTED, CLOSED, DROPPED, FULL, REJECTED, next_message, put_message


@message
class Item:
    n: int


def drained(queue: RingQueue) -> list[int]:
    return [one.n for one in queue.get_many(1000)]


@pytest.mark.parametrize(
    ("policy", "outcomes", "left"),
    [
        ("block", [ACCEPTED, ACCEPTED, FULL], [0, 1]),
        ("reject", [ACCEPTED, ACCEPTED, REJECTED], [0, 1]),
        ("drop_oldest", [ACCEPTED, ACCEPTED, ACCEPTED], [1, 2]),
        ("drop_new", [ACCEPTED, ACCEPTED, DROPPED], [0, 1]),
    ],
)
def test_policies(policy: str, outcomes: list[int], left: list[int]) -> None:
    dead: list[tuple[int, str]] = []
    queue = RingQueue(2, policy, lambda one, reason: dead.append((one.n, reason)))
    assert [queue.try_put(Item(n)) for n in range(3)] == outcomes
    assert drained(queue) == left
    expected = {"drop_oldest": [(0, "dropped_oldest")], "drop_new": [(2, "dropped_new")]}
    assert dead == expected.get(policy, [])


def test_priorities_are_kept_and_equals_stay_in_order() -> None:
    queue = RingQueue(10)
    for n, priority in enumerate([0, 5, 0, 255, 5, 0]):
        queue.try_put(Item(n, priority=priority))
    assert drained(queue) == [3, 1, 4, 0, 2, 5]


def test_a_less_urgent_message_does_not_displace() -> None:
    queue = RingQueue(2, "drop_oldest")
    assert queue.try_put(Item(0, priority=1)) == ACCEPTED
    assert queue.try_put(Item(1, priority=9)) == ACCEPTED
    assert queue.try_put(Item(2)) == DROPPED
    assert queue.try_put(Item(3, priority=1)) == ACCEPTED
    assert drained(queue) == [1, 3]


def test_what_is_too_late_is_not_delivered() -> None:
    dead: list[Any] = []
    queue = RingQueue(4, "block", lambda one, reason: dead.append((one.n, reason)))
    queue.try_put(Item(0, deadline=time.monotonic() - 1))
    queue.try_put(Item(1, deadline=time.monotonic() + 60))
    assert queue.try_get().n == 1
    assert dead == [(0, "expired")]
    assert queue.counts()["expired"] == 1


def test_a_thread_waits_for_a_message() -> None:
    queue = RingQueue(4)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(queue.get().n))
    thread.start()
    queue.put(Item(3))
    thread.join(60)
    assert got == [3]


def test_a_thread_waits_for_room() -> None:
    queue = RingQueue(1)
    queue.put(Item(0))
    outcome: list[int] = []
    thread = threading.Thread(target=lambda: outcome.append(queue.put(Item(1))))
    thread.start()
    assert queue.get().n == 0
    thread.join(60)
    assert outcome == [ACCEPTED]
    assert queue.get(0).n == 1


def test_waits_end_with_their_time() -> None:
    queue = RingQueue(1)
    assert queue.get(0.01) is None
    assert not queue.is_finished
    queue.put(Item(0))
    assert queue.put(Item(1), 0.01) == FULL
    assert queue.put_many([Item(1), Item(2)], 0.01) == (0, FULL)
    assert [one.n for one in queue.get_many(5, 0.01)] == [0]


def test_closing_ends_waits_and_keeps_what_is_there() -> None:
    queue = RingQueue(1)
    queue.put(Item(0))
    ends: list[Any] = []
    threads = [threading.Thread(target=lambda: ends.append(queue.put(Item(1)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join(60)
    assert ends == [CLOSED] * 3
    assert queue.get().n == 0
    assert queue.get() is None
    assert queue.is_finished


def test_no_time_passes_while_paused() -> None:
    queue = RingQueue(4)
    queue.pause()
    queue.put(Item(1))
    assert queue.try_get() is None
    timer = threading.Timer(0.1, queue.resume)
    timer.start()
    assert queue.get(0.01).n == 1
    timer.join()


@pytest.mark.parametrize("producers", [1, 4])
def test_threads_and_a_loop_lose_nothing(producers: int) -> None:
    each = 500
    queue = RingQueue(3)

    async def consume() -> list[int]:
        return [(queue.try_get() or await next_message(queue)).n for _ in range(producers * each)]

    def produce(first: int) -> None:
        for n in range(each):
            queue.put(Item(first + n))

    threads = [threading.Thread(target=produce, args=(i * each,)) for i in range(producers)]
    for thread in threads:
        thread.start()
    got = asyncio.run(consume())
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(producers * each))
    for i in range(producers):
        assert [n for n in got if n // each == i] == list(range(i * each, (i + 1) * each)), "in the order of one sender"


def test_a_cancelled_wait_takes_nothing() -> None:
    queue = RingQueue(3)

    async def main() -> int:
        first = asyncio.create_task(next_message(queue))
        second = asyncio.create_task(next_message(queue))
        await asyncio.sleep(0)
        queue.try_put(Item(1))
        # It was woken already, and is cancelled before it runs.
        first.cancel()
        got = await asyncio.wait_for(second, 60)
        assert first.cancelled()
        return got.n

    assert asyncio.run(main()) == 1


def test_a_loop_waits_for_room_and_for_a_time() -> None:
    queue = RingQueue(1)

    async def main() -> None:
        assert await put_message(queue, Item(0)) == ACCEPTED
        assert await put_message(queue, Item(1), 0.01) == FULL
        waiting = asyncio.create_task(put_message(queue, Item(2)))
        await asyncio.sleep(0)
        assert queue.try_get().n == 0
        assert await waiting == ACCEPTED
        assert queue.try_get().n == 2
        with pytest.raises(TimeoutError, match=r"within 0.01 s"):
            await next_message(queue, 0.01)

    asyncio.run(main())


@pytest.mark.parametrize(("capacity", "policy"), [(0, "block"), (1, "sometimes")])
def test_wrong_arguments(capacity: int, policy: str) -> None:
    with pytest.raises(ValueError, match=r"capacity|policy"):
        RingQueue(capacity, policy)
    with pytest.raises(ValueError, match="nan"):
        RingQueue(1).get(float("nan"))


def test_ctrl_c_ends_a_wait(interrupted: Any) -> None:
    program = """
from pygpukit._pygpukit_rust import RingQueue
print("waiting", flush=True)
try:
    RingQueue(1).get()
except KeyboardInterrupt:
    print("interrupted")
"""
    status, out, err = interrupted(program, delay=0.2)
    assert (status, out) == (0, "interrupted\n"), err
