"""Tasks and asyncio: awaiting, coroutines as tasks, cancelling on either side, contexts that stay where they belong."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import Any

import pytest
from checks import PATIENCE, await_state, until_cancelled, use_device

import pygpukit as gp
from pygpukit.errors import AdmissionError, TaskCancelledError
from pygpukit.scheduler import Scheduler, Task, current_task, scheduled, yield_


def here() -> tuple[int, str]:
    """Stream and task that an operator would use."""
    task = current_task()
    return gp.current_stream().id, "" if task is None else task.name


async def steps(number: int) -> tuple[set[tuple[int, str]], float]:
    places = set()
    x = gp.ones(100)
    for _ in range(number):
        places.add(here())
        x = x + 1
        await asyncio.sleep(0)
    return places, float(x.to_numpy()[0])


def test_functions_are_awaited(scheduler: Scheduler) -> None:
    async def main() -> list[float]:
        first = await scheduler.submit(use_device)
        return [first, *await asyncio.gather(*(scheduler.submit(use_device, memory="1MiB") for _ in range(20)))]

    assert asyncio.run(main()) == [1000] * 21


def test_coroutines_keep_their_contexts(scheduler: Scheduler) -> None:
    async def main() -> list[tuple[set[tuple[int, str]], float]]:
        outside = here()
        tasks = [scheduler.submit(steps, args=[20], name=f"task {n}", memory="1MiB") for n in range(5)]
        mixed = []
        for _ in range(50):
            # Between the steps of the tasks the loop's own work is nobody's.
            assert here() == outside
            mixed.append(gp.ones(10) + 1)
            await asyncio.sleep(0)
        assert all((x.to_numpy() == 2).all() for x in mixed)
        found = await asyncio.gather(*tasks)
        assert here() == outside
        return list(found)

    found = asyncio.run(main())
    assert [value for _, value in found] == [21.0] * 5
    places = [places for places, _ in found]
    assert all(len(place) == 1 for place in places)
    assert {name for place in places for _, name in place} == {f"task {n}" for n in range(5)}
    # They ran at the same time, so each had a stream of its own.
    assert len({stream for place in places for stream, _ in place}) == 5


def test_a_coroutine_without_a_loop_gets_one(scheduler: Scheduler) -> None:
    places, value = scheduler.submit(steps, args=[3], name="alone").result(PATIENCE)
    assert value == 4.0
    assert {name for _, name in places} == {"alone"}


class Doubling:
    async def __call__(self, x: int) -> int:
        await asyncio.sleep(0)
        assert current_task() is not None
        return 2 * x


@pytest.mark.parametrize(
    "function",
    [Doubling(), functools.partial(Doubling().__call__), functools.partial(Doubling()), lambda x: Doubling()(x)],
    ids=["object", "partial", "partial object", "lambda"],
)
def test_coroutine_functions_in_disguise(scheduler: Scheduler, function: Any) -> None:
    assert scheduler.submit(function, args=[21]).result(PATIENCE) == 42

    async def main() -> int:
        return await scheduler.submit(function, args=[21])

    assert asyncio.run(main()) == 42
    with pytest.raises(ValueError, match="a coroutine cannot have a deadline"):
        scheduler.submit(function, args=[21], deadline=1.0, cost=0.1).result(PATIENCE)


def test_a_coroutine_that_was_returned_is_cancelled(scheduler: Scheduler) -> None:
    task = scheduler.submit(lambda: asyncio.sleep(10 * PATIENCE))
    await_state(task, "running")
    assert task.cancel()
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)


def test_exceptions_of_coroutines(scheduler: Scheduler) -> None:
    async def fail() -> None:
        gp.ones(10)
        await asyncio.sleep(0)
        raise LookupError("inside")

    async def main() -> Task[Any]:
        task = scheduler.submit(fail)
        with pytest.raises(LookupError, match="inside"):
            await task
        return task

    assert asyncio.run(main()).state == "failed"
    with pytest.raises(LookupError, match="inside"):
        scheduler.submit(fail).result(PATIENCE)


def test_a_rejected_task_is_awaited(scheduler: Scheduler) -> None:
    async def main() -> None:
        with pytest.raises(AdmissionError, match=r"65\.0 MiB asked > 64\.0 MiB"):
            await scheduler.submit(steps, args=[1], memory="65MiB")

    asyncio.run(main())


def test_whoever_stops_waiting_does_not_stop_the_task(scheduler: Scheduler) -> None:
    go_on = threading.Event()

    async def main() -> None:
        task = scheduler.submit(go_on.wait, args=[PATIENCE])
        waiting = asyncio.ensure_future(asyncio.wait_for(task, 0.01))
        with pytest.raises(TimeoutError):
            await waiting
        second = asyncio.ensure_future(task)
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not task.done()
        go_on.set()
        assert await task is True

    asyncio.run(main())


def test_a_cancelled_task_tells_those_who_await_it(scheduler: Scheduler) -> None:
    async def forever() -> None:
        while True:
            gp.ones(10)
            await asyncio.sleep(0.001)

    async def main() -> None:
        for _ in range(3):
            task = scheduler.submit(forever, memory="1MiB")
            while task.state != "running":
                await asyncio.sleep(0)
            waiting = asyncio.ensure_future(task)
            await asyncio.sleep(0.002)
            assert task.cancel()
            with pytest.raises(TaskCancelledError, match="task 'forever' was cancelled"):
                await waiting
            assert task.state == "cancelled"

    asyncio.run(main())


def test_cancelled_from_another_thread(scheduler: Scheduler) -> None:
    async def asleep() -> None:
        await asyncio.sleep(PATIENCE)

    async def main() -> None:
        task = scheduler.submit(asleep)
        while task.state != "running":
            await asyncio.sleep(0)
        thread = threading.Thread(target=task.cancel)
        thread.start()
        with pytest.raises(TaskCancelledError):
            await task
        thread.join(PATIENCE)

    asyncio.run(main())
    for _ in range(10):
        alone = scheduler.submit(asleep)
        await_state(alone, "running")
        assert alone.cancel()
        assert isinstance(alone.exception(PATIENCE), TaskCancelledError)
        assert alone.state == "cancelled"


def test_cancelled_before_a_coroutine_begins(scheduler: Scheduler) -> None:
    began: list[int] = []

    async def count(number: int) -> None:
        began.append(number)
        await asyncio.sleep(PATIENCE)

    async def main() -> None:
        # However far each had come: queued in the loop, being started in a thread, or begun.
        tasks = []
        for number in range(40):
            task = scheduler.submit(count, args=[number], policy="guaranteed", memory="1MiB")
            for _ in range(number % 5):
                await asyncio.sleep(0.0002 * (number % 3))
            assert task.cancel()
            tasks.append(task)
        for task in tasks:
            with pytest.raises(TaskCancelledError):
                await task

    asyncio.run(main())
    assert len(began) < 40


def test_a_loop_that_ends_with_tasks_running(scheduler: Scheduler) -> None:
    async def asleep() -> None:
        await asyncio.sleep(PATIENCE)

    async def main() -> list[Task[Any]]:
        tasks = [scheduler.submit(asleep, memory="1MiB") for _ in range(5)]
        while not all(task.state == "running" for task in tasks):
            await asyncio.sleep(0)
        return tasks

    tasks = asyncio.run(main())
    assert [task.wait(PATIENCE) for task in tasks] == [True] * 5
    assert {task.state for task in tasks} == {"cancelled"}


def test_a_coroutine_admitted_after_its_loop_has_ended(scheduler: Scheduler) -> None:
    go_on = threading.Event()
    holder = scheduler.submit(go_on.wait, memory="64MiB")
    await_state(holder, "running")

    async def main() -> Task[Any]:
        return scheduler.submit(steps, args=[1], memory="1MiB")

    task = asyncio.run(main())
    assert task.state == "queued"
    go_on.set()
    assert isinstance(task.exception(PATIENCE), RuntimeError)
    assert task.state == "failed"


def test_a_coroutine_that_its_loop_does_not_begin(scheduler: Scheduler) -> None:
    async def forever() -> None:
        await asyncio.sleep(PATIENCE)

    async def main() -> Task[None]:
        return scheduler.submit(forever, memory="1MiB")

    # The loop cancels it before its first step.
    task = asyncio.run(main())
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)
    assert task.state == "cancelled"


def test_a_coroutine_admitted_while_its_loop_closes(scheduler: Scheduler) -> None:
    closing = threading.Event()

    def hold_the_loop() -> None:
        # What the loop waits for after it takes no more work for threads.
        closing.wait(PATIENCE)
        holder.cancel()
        task.wait(PATIENCE)

    async def answer() -> int:
        return 42

    async def main() -> None:
        nonlocal task
        task = scheduler.submit(answer, memory="64MiB")
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, hold_the_loop)
        shutdown = loop.shutdown_default_executor

        async def tell() -> None:
            loop.call_later(0.01, closing.set)
            await shutdown()

        loop.shutdown_default_executor = tell  # type: ignore[method-assign]

    task: Task[int]
    holder = scheduler.submit(until_cancelled, memory="64MiB")
    asyncio.run(main())
    assert task.result(PATIENCE) == 42


def test_a_loop_that_is_closed_with_a_task_in_it(scheduler: Scheduler) -> None:
    async def forever() -> None:
        await asyncio.sleep(PATIENCE)

    async def main() -> Task[None]:
        task = scheduler.submit(forever, memory="1MiB")
        while task.state != "running":
            await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(main())
    left = asyncio.all_tasks(loop)
    loop.close()
    assert task.state == "running"
    # Nobody but who cancels it can know that it will never end.
    assert task.cancel()
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)
    for pending in left:
        pending._log_destroy_pending = False  # type: ignore[attr-defined]


def test_coroutines_wait_in_the_queue_too(scheduler: Scheduler) -> None:
    async def main() -> list[float]:
        tasks = [scheduler.submit(steps, args=[2], memory="40MiB") for _ in range(5)]
        assert [str(task.decision) for task in tasks] == ["admitted"] + ["queued"] * 4
        return [value for _, value in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == [3.0] * 5


def test_a_coroutine_that_waited_has_the_context_it_was_submitted_with(scheduler: Scheduler) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")

    async def read() -> str:
        return variable.get()

    def end_holder() -> None:
        variable.set("the holder's")
        block.__exit__(None, None, None)

    async def main() -> str:
        variable.set("mine")
        task = scheduler.submit(read, memory="64MiB")
        assert task.decision == "queued"
        end_holder_in.run(end_holder)
        return await task

    end_holder_in = contextvars.copy_context()
    block = scheduler.task(memory="64MiB")
    end_holder_in.run(block.__enter__)
    assert asyncio.run(main()) == "mine"


def test_yielding_in_a_coroutine(scheduler: Scheduler) -> None:
    async def polite() -> str:
        for _ in range(5):
            gp.ones(10)
            yield_()
            await asyncio.sleep(0)
        task = current_task()
        assert task is not None
        return task.name

    assert scheduler.submit(polite).result(PATIENCE) == "polite"


def test_decorated_coroutines(scheduler: Scheduler) -> None:
    @scheduled(scheduler=scheduler, memory="1MiB")
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        task = current_task()
        assert task is not None
        assert task.policy == "burstable"
        return 2 * x

    async def main() -> list[int]:
        return [await double(1), *await asyncio.gather(double(2), double(3))]

    assert asyncio.run(main()) == [2, 4, 6]


def test_blocks_inside_coroutines_stay_inside(scheduler: Scheduler) -> None:
    async def block(name: str) -> None:
        with scheduler.task(name=name):
            for _ in range(5):
                assert here()[1] == name
                gp.ones(10)
                await asyncio.sleep(0)

    async def main() -> None:
        outside = here()
        blocks = [asyncio.ensure_future(gp.with_context(block(f"block {n}"))) for n in range(3)]
        for _ in range(10):
            assert here()[0] == outside[0]
            await asyncio.sleep(0)
        await asyncio.gather(*blocks)
        assert here() == outside

    asyncio.run(main())
