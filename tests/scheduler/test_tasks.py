"""The life of a task: results, failures, and being cancelled in every state."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
from checks import (
    PATIENCE,
    await_state,
    await_submissions,
    pools,
    python_until_cancelled,
    reserved,
    until_cancelled,
    use_device,
)

import pygpukit as gp
from pygpukit.errors import AdmissionError, TaskCancelledError
from pygpukit.scheduler import Scheduler, Task, current_task, yield_


@pytest.fixture
def full(scheduler: Scheduler) -> Iterator[threading.Event]:
    """All memory is promised until the event is set."""
    go_on = threading.Event()
    holder = scheduler.submit(lambda: go_on.wait(PATIENCE), name="holder", memory="64MiB")
    await_state(holder, "running")
    yield go_on
    go_on.set()
    assert holder.result(PATIENCE)


def test_results_are_complete(scheduler: Scheduler) -> None:
    task = scheduler.submit(lambda: gp.ones(1000) + 1, memory="1MiB")
    assert task.decision == "admitted"
    assert task.decision.reason is None
    assert (task.result(PATIENCE).to_numpy() == 2).all()
    assert (task.state, task.done(), task.cancelled(), task.exception()) == ("done", True, False, None)
    assert task.result() is task.result()
    assert not task.cancel()


def test_exceptions_arrive_with_their_traceback(scheduler: Scheduler) -> None:
    def inner() -> None:
        raise LookupError("no such key")

    task = scheduler.submit(inner)
    with pytest.raises(LookupError, match="no such key") as caught:
        task.result(PATIENCE)
    assert "in inner" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert (task.state, task.done(), task.cancelled()) == ("failed", True, False)
    assert task.exception() is caught.value
    assert task.wait(0)


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, TimeoutError, StopIteration, CancelledError]
)
def test_unusual_exceptions_are_failures_too(scheduler: Scheduler, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("odd")

    task = scheduler.submit(fail)
    with pytest.raises(kind, match="odd"):
        task.result(PATIENCE)
    assert task.state == "failed"
    assert isinstance(task.exception(), kind)
    assert scheduler.submit(use_device).result(PATIENCE) == 1000


def test_a_task_that_raises_among_operators(scheduler: Scheduler) -> None:
    def fail() -> None:
        x = gp.ones(1000)
        gp.tanh(x)
        gp.add(x, gp.ones(7))

    task = scheduler.submit(fail, policy="guaranteed", memory="2MiB", bandwidth=0.5)
    with pytest.raises(gp.ShapeError):
        task.result(PATIENCE)
    assert task.stats()["submissions"] >= 2


def test_an_operator_that_fails_late_fails_its_task() -> None:
    # A bad task must not be able to leave its error to the next one in its thread.
    with Scheduler() as scheduler:
        first = scheduler.submit(lambda: gp.ones(10) + gp.ones(11))
        assert isinstance(first.exception(PATIENCE), gp.ShapeError)
        assert scheduler.submit(use_device).result(PATIENCE) == 1000


def test_waiting_has_an_end(scheduler: Scheduler) -> None:
    go_on = threading.Event()
    task = scheduler.submit(go_on.wait)
    await_state(task, "running")
    with pytest.raises(TimeoutError, match=r"task 'wait' is still running after 0\.01 seconds"):
        task.result(timeout=0.01)
    with pytest.raises(TimeoutError, match="is still running"):
        task.exception(timeout=0.01)
    assert not task.wait(0.01)
    go_on.set()
    assert task.result(PATIENCE)


def test_cancelled_in_the_queue(scheduler: Scheduler, full: threading.Event) -> None:
    ran: list[int] = []
    first = scheduler.submit(lambda: ran.append(1), name="first", memory="1MiB")
    second = scheduler.submit(lambda: ran.append(2), name="second", memory="1MiB")
    assert first.decision == second.decision == "queued"
    assert first.reason == "memory: 1.0 MiB asked + 64.0 MiB reserved > 64.0 MiB of partition 'default'"
    assert (first.position, second.position) == (0, 1)
    assert second.reason is not None
    assert "'default'" in second.reason
    assert first.cancel()
    assert (first.state, first.position, first.cancelled()) == ("cancelled", None, True)
    with pytest.raises(TaskCancelledError, match="task 'first' was cancelled"):
        first.result()
    assert isinstance(first.exception(), TaskCancelledError)
    assert not first.cancel()
    assert second.position == 0
    full.set()
    second.result(PATIENCE)
    assert ran == [2]


def test_cancelled_before_it_starts(scheduler: Scheduler) -> None:
    ran: list[int] = []
    tasks = []
    for number in range(100):
        task = scheduler.submit(ran.append, args=[number], memory="1MiB", policy="guaranteed")
        task.cancel()
        tasks.append(task)
    for task in tasks:
        assert task.wait(PATIENCE)
        assert task.state in ("cancelled", "done")
    finished = [number for number, task in enumerate(tasks) if task.state == "done"]
    assert set(finished) <= set(ran)


def test_cancelled_in_python(scheduler: Scheduler) -> None:
    task = scheduler.submit(python_until_cancelled)
    await_state(task, "running")
    assert task.cancel()
    with pytest.raises(TaskCancelledError):
        task.result(PATIENCE)
    assert task.state == "cancelled"


@pytest.mark.parametrize("policy", ["besteffort", "burstable", "guaranteed"])
def test_cancelled_between_operators(scheduler: Scheduler, policy: str) -> None:
    asked: dict[str, Any] = {} if policy == "besteffort" else {"memory": "4MiB"}
    task = scheduler.submit(until_cancelled, policy=policy, **asked)
    await_submissions(task, 10)
    assert task.cancel()
    with pytest.raises(TaskCancelledError):
        task.result(PATIENCE)
    assert task.cancelled()


def test_a_cancelled_task_that_goes_on_is_refused_again_and_again(scheduler: Scheduler) -> None:
    refused: list[str] = []

    def stubborn() -> int:
        x = gp.ones(10)
        started.set()
        assert cancelled.wait(PATIENCE)
        for _ in range(3):
            try:
                gp.tanh(x)
            except TaskCancelledError as error:
                refused.append(str(error))
        return 7

    started, cancelled = threading.Event(), threading.Event()
    task = scheduler.submit(stubborn)
    assert started.wait(PATIENCE)
    assert task.cancel()
    cancelled.set()
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)
    assert len(refused) == 3
    assert "'stubborn'" in refused[0]


def test_cancelled_while_it_waits_for_a_turn(scheduler: Scheduler) -> None:
    # A thousandth of the device is used up at once, and then it waits for more nearly all the time.
    task = scheduler.submit(until_cancelled, bandwidth=0.001, bandwidth_limit=0.001)
    pause = threading.Event()
    while task.stats().get("waiting", 0) == 0:
        assert not task.done()
        pause.wait(0.001)
    assert task.cancel()
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)


def test_cancelled_between_releases(scheduler: Scheduler) -> None:
    released = threading.Event()
    task = scheduler.submit(released.set, period=1000.0, cost=0.001)
    assert released.wait(PATIENCE)
    assert task.cancel()
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)
    assert task.stats()["jobs"]["released"] == 1


def test_cancelled_blocks(scheduler: Scheduler, full: threading.Event) -> None:
    failures: list[BaseException] = []

    def block() -> None:
        try:
            with scheduler.task(name="block", memory="1MiB"):
                failures.append(AssertionError("it was run"))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    pause = threading.Event()
    while not (waiting := [row for row in scheduler.status()["tasks"] if row["name"] == "block"]):
        pause.wait(0.001)
    while not scheduler.cancel(waiting[0]["id"]):
        pause.wait(0.001)
    thread.join(PATIENCE)
    assert [type(failure) for failure in failures] == [TaskCancelledError]
    assert "while it waited" in str(failures[0])

    full.set()
    x = gp.ones(10)
    with pytest.raises(TaskCancelledError), scheduler.task(name="inside") as task:  # noqa: PT012
        gp.tanh(x)
        assert task.cancel()
        gp.tanh(x)
    assert (task.state, current_task()) == ("cancelled", None)
    gp.tanh(x)


def test_blocks_wait_no_longer_than_they_say(scheduler: Scheduler, full: threading.Event) -> None:
    with (
        pytest.raises(TimeoutError, match=r"was not admitted in 0\.01 seconds: memory: 2\.0 MiB asked \+ 64\.0 MiB"),
        scheduler.task(memory="2MiB", timeout=0.01),
    ):
        pytest.fail("it was run")
    with (
        pytest.raises(AdmissionError, match=r"memory: 2\.0 MiB asked"),
        scheduler.task(memory="2MiB", on_full="reject"),
    ):
        pytest.fail("it was run")
    assert scheduler.status()["partitions"][0]["waiting"] == 0


def test_blocks_that_are_given_up_as_they_are_admitted(scheduler: Scheduler) -> None:
    # The holder ends in the moment in which the block loses patience: whoever wins, its memory comes back.
    for turn in range(50):
        go_on = threading.Event()
        holder = scheduler.submit(go_on.wait, memory="64MiB")
        threading.Timer(turn * 0.0002, go_on.set).start()
        try:
            with scheduler.task(memory="64MiB", timeout=turn * 0.0002) as task:
                assert task.state == "running"
        except TimeoutError:
            pass
        holder.result(PATIENCE)
        assert reserved(scheduler)[0]["memory_reserved"] == 0


def test_an_exception_in_a_block_is_the_callers(scheduler: Scheduler) -> None:
    with pytest.raises(ZeroDivisionError), scheduler.task(memory="1MiB") as task:
        1 / 0  # noqa: B018
    assert task.state == "failed"
    with scheduler.task(memory="1MiB") as task:
        assert current_task() is task
        assert use_device() == 1000
    assert task.state == "done"
    assert task.stats()["submissions"] >= 20


def test_tasks_inside_tasks(scheduler: Scheduler) -> None:
    def outer() -> tuple[float, Task[Any] | None]:
        own = current_task()
        inner = scheduler.submit(use_device, name="inner", memory="1MiB").result(PATIENCE)
        with scheduler.task(name="block") as block:
            assert current_task() is block
            use_device()
        assert current_task() is own
        use_device()
        return inner, own

    task = scheduler.submit(outer, memory="1MiB")
    assert task.result(PATIENCE) == (1000, task)


def test_a_stream_left_open_does_not_reach_the_next_task(scheduler: Scheduler) -> None:
    used: list[int] = []

    def careless() -> None:
        gp.Stream().__enter__()

    def next_task() -> None:
        used.append(gp.current_stream().id)
        task = current_task()
        assert task is not None
        assert task._lease is not None
        assert task._lease.stream.id == gp.current_stream().id

    for _ in range(5):
        assert isinstance(scheduler.submit(careless).exception(PATIENCE), gp.GraphError)
        scheduler.submit(next_task).result(PATIENCE)
    assert len(used) == 5


def test_admitted_tasks_are_starting_until_they_run(
    scheduler: Scheduler, full: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(scheduler._roster.workers, "run", started.append)
    waits = scheduler.submit(use_device, memory="1MiB")
    now = scheduler.submit(use_device)
    assert (waits.state, waits.stats()["state"]) == ("queued", "queued")
    assert (now.state, now.stats()["state"], now.done(), now.reason) == ("starting", "starting", False, None)
    full.set()
    await_state(waits, "starting")
    monkeypatch.undo()
    for start in started:
        scheduler._roster.workers.run(start)
    assert [task.result(PATIENCE) for task in (waits, now)] == [1000, 1000]


def test_a_task_does_not_wait_for_itself(scheduler: Scheduler) -> None:
    def wait() -> None:
        here = current_task()
        assert here is not None
        assert not here.wait(0.0)
        for waiting in (here.wait, here.result, here.exception):
            with pytest.raises(RuntimeError, match="'wait' cannot wait for its own end"):
                waiting()
        with scheduler.task(), pytest.raises(RuntimeError, match="cannot wait for its own end"):
            here.result()

    scheduler.submit(wait).result(PATIENCE)


def test_blocks_left_in_the_wrong_order(scheduler: Scheduler) -> None:
    first, second = scheduler.task(name="first"), scheduler.task(name="second")
    one, two = first.__enter__(), second.__enter__()
    with pytest.raises(RuntimeError, match="reverse order"):
        first.__exit__(None, None, None)
    assert one.state == "failed"
    assert current_task() is two
    assert use_device() == 1000
    second.__exit__(None, None, None)
    assert (two.state, current_task()) == ("done", None)
    # Its pool is closed: nothing could be allocated in it.
    assert use_device() == 1000


def test_the_switch_interval_of_somebody_else_stays(scheduler: Scheduler) -> None:
    before = sys.getswitchinterval()
    try:
        with scheduler.task(policy="guaranteed", memory="1MiB"):
            assert sys.getswitchinterval() < before
        assert sys.getswitchinterval() == before
        with scheduler.task(policy="guaranteed", memory="1MiB"):
            sys.setswitchinterval(0.25)
        assert sys.getswitchinterval() == pytest.approx(0.25)
    finally:
        sys.setswitchinterval(before)


def test_yielding(scheduler: Scheduler) -> None:
    yield_()

    def polite() -> int:
        for _ in range(100):
            use_device(2, 10)
            yield_()
        return 1

    assert [task.result(PATIENCE) for task in [scheduler.submit(polite) for _ in range(3)]] == [1, 1, 1]


def test_what_was_returned_is_not_kept(scheduler: Scheduler) -> None:
    class Thing:
        pass

    def make(argument: Thing) -> Thing:
        return Thing()

    argument = Thing()
    task = scheduler.submit(make, args=[argument])
    kept = [weakref.ref(task.result(PATIENCE)), weakref.ref(argument), weakref.ref(task)]
    number = task.id
    del task, argument
    # The thread that ran it may be on its way out of it.
    pause = threading.Event()
    for _ in range(int(PATIENCE * 100)):
        gc.collect()
        if not any(reference() for reference in kept):
            break
        pause.wait(0.01)
    assert [reference() for reference in kept] == [None, None, None]
    assert scheduler.stats(number)["state"] == "done"
    assert not scheduler.cancel(number)


def test_arrays_of_a_failed_task_go_with_its_exception(scheduler: Scheduler) -> None:
    def fail() -> None:
        x = gp.ones(1 << 20)
        raise ValueError(f"{x.size}")

    before = pools()
    task = scheduler.submit(fail, memory="8MiB")
    assert isinstance(task.exception(PATIENCE), ValueError)
    assert "fail" in pools()
    del task
    pause = threading.Event()
    for _ in range(int(PATIENCE * 100)):
        if pools() == before:
            break
        pause.wait(0.01)
    assert pools() == before


def test_figures_of_many_tasks(scheduler: Scheduler) -> None:
    first = scheduler.submit(use_device, name="first")
    first.result(PATIENCE)
    tasks = [scheduler.submit(int) for _ in range(1100)]
    assert [task.result(PATIENCE) for task in tasks] == [0] * 1100
    with pytest.raises(ValueError, match=f"there is no task {first.id}"):
        scheduler.stats(first.id)
    # Whoever has the task has its figures.
    assert first.stats()["submissions"] >= 20
    assert scheduler.stats(tasks[-1].id)["state"] == "done"


def test_tasks_for_which_there_is_no_thread(
    scheduler: Scheduler, full: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [scheduler.submit(use_device, memory="64MiB") for _ in range(3)]

    def refuse(function: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(scheduler._roster.workers, "run", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            scheduler.submit(use_device)
        full.set()
        assert [str(task.exception(PATIENCE)) for task in waiting] == ["can't start new thread"] * 3
    assert scheduler.submit(use_device, memory="64MiB").result(PATIENCE) == 1000


def test_a_block_whose_end_is_interrupted(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    core = scheduler._core
    interrupts = [KeyboardInterrupt]

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def finish(self, number: int) -> list[int]:
            if interrupts:
                raise interrupts.pop()
            return core.finish(number)

    monkeypatch.setattr(scheduler._roster, "_core", Interrupted())
    with scheduler.task(memory="64MiB") as block:
        waiting = scheduler.submit(use_device, memory="64MiB")
        assert waiting.decision == "queued"
    assert isinstance(block.exception(PATIENCE), KeyboardInterrupt)
    assert waiting.result(PATIENCE) == 1000


def test_a_task_does_not_wait_for_its_own_end(scheduler: Scheduler) -> None:
    for options in ({}, {"cancel": True}):
        with pytest.raises(RuntimeError, match="inside of one, 'suicide', which it would wait for"):
            scheduler.submit(scheduler.shutdown, kwargs=options, name="suicide").result(PATIENCE)
    # It has not been done by halves.
    assert scheduler.submit(use_device).result(PATIENCE) == 1000
    assert scheduler.submit(scheduler.shutdown, kwargs={"wait": False}).result(PATIENCE) is False
    assert scheduler.shutdown()


def test_the_interpreter_changes_hands_quickly_while_there_are_deadlines(scheduler: Scheduler) -> None:
    before = sys.getswitchinterval()
    task = scheduler.submit(sys.getswitchinterval, deadline=0.5, cost=0.001)
    assert task.result(30) <= 200e-6
    assert sys.getswitchinterval() == before
