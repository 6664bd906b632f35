"""Many threads, many tasks, random programs: states follow a simple model, and nothing is left at the end."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from checks import PATIENCE, nothing_left, use_device
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.errors import TaskCancelledError
from pygpukit.scheduler import Scheduler, Task, yield_

MIB = 1 << 20


def test_many_threads_submit() -> None:
    streams: set[int] = set()
    tasks: list[Task[Any]] = []

    def work(number: int) -> int:
        streams.add(gp.current_stream().id)
        assert use_device(2, 100) == 100
        return number

    def submit_all(first: int) -> None:
        for number in range(first, first + 50):
            asked = [{}, {"memory": "1MiB"}, {"bandwidth": 0.01}, {"policy": "guaranteed", "memory": "1MiB"}][
                number % 4
            ]
            tasks.append(scheduler.submit(work, args=[number], **asked))

    with Scheduler(total_memory="16MiB") as scheduler, nothing_left(scheduler):
        threads = [threading.Thread(target=submit_all, args=[50 * n]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(task.result(PATIENCE) for task in tasks) == list(range(400))
        assert len({task.id for task in tasks}) == 400
        # Streams are used again: there are no more than tasks that ran at the same time.
        before = len(streams)
        for number in range(100):
            scheduler.submit(work, args=[number]).result(PATIENCE)
        assert len(streams) == before


def test_threads_are_used_again_and_few_stay() -> None:
    names: set[str] = set()
    before = set(threading.enumerate())
    with Scheduler() as scheduler:
        for _ in range(100):
            scheduler.submit(lambda: names.add(threading.current_thread().name)).result(PATIENCE)
        assert len(names) <= 3
        go_on = threading.Event()
        crowd = [scheduler.submit(go_on.wait) for _ in range(50)]
        go_on.set()
        assert all(task.result(PATIENCE) for task in crowd)
        pause = threading.Event()
        for _ in range(int(PATIENCE * 100)):
            left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("pygpukit-task")]
            if len(left) <= 17:
                break
            pause.wait(0.01)
        assert len(left) <= 17
        assert all(thread.daemon for thread in left)


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_that_cancels_and_waits(seed: int) -> None:
    """Threads submit, cancel, wait and look at random; every task ends as its future says."""
    tasks: list[Task[Any]] = []
    failures: list[BaseException] = []

    def work(chance: float) -> str:
        x = gp.ones(100)
        for _ in range(20):
            gp.tanh(x)
            yield_()
        if chance < 0.2:
            raise KeyError("chance")
        return "done"

    def client(number: int) -> None:
        chance = random.Random(100 * seed + number)
        try:
            for _ in range(40):
                action = chance.random()
                if action < 0.5 or not tasks:
                    memory = chance.choice([0, MIB, 5 * MIB, 12 * MIB])
                    policy = chance.choice(["guaranteed", "burstable"]) if memory else "besteffort"
                    asked: dict[str, Any] = {"memory": memory} if memory else {}
                    tasks.append(scheduler.submit(work, args=[chance.random()], policy=policy, **asked))
                elif action < 0.7:
                    chance.choice(tasks).cancel()
                elif action < 0.9:
                    chance.choice(tasks).wait(0.01)
                else:
                    scheduler.status()
        except BaseException as error:
            failures.append(error)

    with Scheduler(total_memory="16MiB") as scheduler, nothing_left(scheduler):
        threads = [threading.Thread(target=client, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert failures == []
        for task in tasks:
            assert task.wait(PATIENCE), task
            expected = {"done": type(None), "failed": KeyError, "cancelled": TaskCancelledError}[task.state]
            assert type(task.exception()) is expected, task
        # A failed task's exception has the frame of its function, and with it its arrays.
        del task
        tasks.clear()


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 5), st.integers(-1, 1)),
    st.tuples(st.just("finish"), st.integers(0, 10), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 10), st.just(0)),
)


class Model:
    """A device of 8 MiB: who runs, who waits, in which order."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.waiting: list[tuple[int, int, int]] = []

    def submit(self, number: int, size: int, priority: int) -> str:
        # Only tasks before it can be in its way: those of a higher priority, and earlier ones of the same.
        ahead = any(waits[0] <= -priority for waits in self.waiting)
        if not ahead and sum(self.running.values()) + size <= 8:
            self.running[number] = size
            return "admitted"
        self.waiting.append((-priority, number, size))
        self.waiting.sort()
        return "queued"

    def remove(self, number: int) -> None:
        self.running.pop(number, None)
        self.waiting = [waits for waits in self.waiting if waits[1] != number]
        while self.waiting and sum(self.running.values()) + self.waiting[0][2] <= 8:
            _, first, size = self.waiting.pop(0)
            self.running[first] = size


@settings(max_examples=30)
@given(st.lists(ACTIONS, max_size=25))
def test_random_programs_follow_the_model(actions: list[tuple[str, int, int]]) -> None:
    model = Model()
    tasks: dict[int, Task[Any]] = {}
    ends: dict[int, tuple[threading.Event, list[bool]]] = {}
    expected: dict[int, str] = {}

    def work(end: threading.Event, fails: list[bool]) -> int:
        while not end.wait(0.0005):
            yield_()
        if fails:
            raise KeyError("told to")
        return 1

    with Scheduler(total_memory=8 * MIB) as scheduler:
        for action, which, more in actions:
            alive = sorted(set(model.running) | {waits[1] for waits in model.waiting})
            if action == "submit":
                end: tuple[threading.Event, list[bool]] = (threading.Event(), [])
                task = scheduler.submit(work, args=end, memory=which * MIB, priority=more)
                tasks[task.id], ends[task.id] = task, end
                assert task.decision == model.submit(task.id, which, more), task.decision.reason
            elif alive:
                number = alive[which % len(alive)]
                event, fails = ends[number]
                if action == "cancel":
                    assert tasks[number].cancel()
                    expected[number] = "cancelled"
                else:
                    fails.extend([True] * more)
                    event.set()
                    if number not in model.running:
                        continue
                    expected[number] = "failed" if fails else "done"
                assert tasks[number].wait(PATIENCE)
                assert tasks[number].state == expected[number]
                model.remove(number)
            # Those told to finish while they waited do so when their turn comes.
            while over := [number for number in model.running if ends[number][0].is_set()]:
                assert tasks[over[0]].wait(PATIENCE)
                expected[over[0]] = "failed" if ends[over[0]][1] else "done"
                model.remove(over[0])
            waiting = [waits[1] for waits in model.waiting]
            assert [tasks[number].position for number in waiting] == list(range(len(waiting)))
            assert [tasks[number].state for number in waiting] == ["queued"] * len(waiting)
            assert scheduler.status()["partitions"][0]["memory_reserved"] == sum(model.running.values()) * MIB
        for event, _ in ends.values():
            event.set()
    for number, task in tasks.items():
        assert task.state == expected.get(number, "failed" if ends[number][1] else "done")
    assert scheduler.status()["partitions"][0]["memory_reserved"] == 0


def test_unscheduled_work_beside_tasks_that_come_and_go(scheduler: Scheduler) -> None:
    # When the last task ends, work of nobody that waits for its turn needs none any more.
    x = gp.ones(100)
    for _ in range(30):
        task = scheduler.submit(use_device, args=[3, 100], memory="1MiB")
        while not task.done():
            gp.tanh(x)
        assert task.result(PATIENCE) == 100
