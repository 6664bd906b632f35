"""What `Scheduler` takes and refuses: every refusal names the value, and nothing of a refused request stays."""

from __future__ import annotations

import asyncio
import math
import pickle
import re
from typing import Any

import pytest

import pygpukit as gp
from pygpukit.errors import AdmissionError, DeviceError
from pygpukit.scheduler import Scheduler, Task, current_task, scheduled, shutdown, submit


def nothing() -> None:
    return None


async def coroutine() -> None:
    return None


BAD_VALUES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bandwidth": -0.1}, ValueError, "bandwidth=-0.1 is not a share of the GPU: give a number from 0 to 1"),
    ({"bandwidth": 1.01}, ValueError, "bandwidth=1.01"),
    ({"bandwidth": math.nan}, ValueError, "bandwidth=NaN"),
    ({"bandwidth": math.inf}, ValueError, "bandwidth=inf"),
    ({"bandwidth": "half"}, TypeError, "submit(): 'bandwidth': must be real number, not str"),
    ({"bandwidth": 0.5, "bandwidth_limit": 0.2}, ValueError, "bandwidth_limit=20% is below bandwidth=50%"),
    ({"memory": -1}, ValueError, "-1 is out of range"),
    ({"memory": "lots"}, ValueError, "'lots' is not a memory size"),
    ({"memory": 1.5}, TypeError, "must be an int or a str such as '512MB', not float"),
    ({"memory": "2MiB", "memory_limit": "1MiB"}, ValueError, "memory_limit=1.0 MiB is below"),
    ({"memory": "2MiB", "memory_soft": "1MiB"}, ValueError, "memory_soft=1.0 MiB is below memory=2.0 MiB"),
    ({"policy": "fast"}, ValueError, "guaranteed, burstable, besteffort, priority, deadline, fair"),
    ({"policy": 3}, TypeError, "'policy'"),
    ({"policy": "besteffort", "memory": "1MiB"}, ValueError, "reserves nothing"),
    ({"policy": "priority"}, ValueError, "needs a priority"),
    ({"policy": "deadline"}, ValueError, "needs deadline="),
    ({"partition": "attic"}, ValueError, "there is no partition 'attic'; there is 'default'"),
    ({"partition": 3}, TypeError, "'partition'"),
    ({"isolation": "moon"}, ValueError, "auto, sm, time, process"),
    ({"isolation": "sm"}, ValueError, "use policy='guaranteed'"),
    ({"on_full": "cry"}, ValueError, "queue, reject"),
    ({"weight": 0}, ValueError, "weight=0"),
    ({"weight": 1.5}, TypeError, "'weight'"),
    ({"weight": 10**30}, OverflowError, "submit(): 'weight'"),
    ({"priority": "high"}, TypeError, "'priority'"),
    ({"priority": 10**12}, OverflowError, "'priority'"),
    ({"deadline": 0.1}, ValueError, "deadline=100 ms needs cost="),
    ({"deadline": -1.0, "cost": 0.1}, ValueError, "deadline=-1 is not a time"),
    ({"deadline": 0.1, "cost": 0.2}, ValueError, "cost=200 ms is more than deadline=100 ms"),
    ({"period": math.nan, "cost": 0.1}, ValueError, "period=NaN is not a time"),
    ({"jobs": 3}, ValueError, "jobs=3 needs a period"),
    ({"jobs": 0, "period": 0.1, "cost": 0.01}, ValueError, "jobs=0"),
    ({"jobs": -2, "period": 0.1, "cost": 0.01}, ValueError, "jobs=-2"),
    ({"jobs": 1.5, "period": 0.1, "cost": 0.01}, TypeError, "submit(): 'jobs': 1.5 is not an int"),
    ({"jobs": "3", "period": 0.1, "cost": 0.01}, TypeError, "submit(): 'jobs': '3' is not an int"),
    ({"jobs": True, "period": 0.1, "cost": 0.01}, TypeError, "submit(): 'jobs': True is not an int"),
    ({"sandbox": "no"}, TypeError, "submit(): 'sandbox': 'no' is not a bool"),
    *(
        ({name: True}, TypeError, f"submit(): '{name}': True is a bool, not a number")
        for name in ("bandwidth", "bandwidth_limit", "weight", "priority", "deadline", "period", "cost")
    ),
    ({"args": 3}, TypeError, "int"),
    ({"kwargs": 3}, TypeError, "int"),
    ({"name": 3}, TypeError, "submit(): 'name': 3 is not a str"),
    ({"colour": "red"}, TypeError, "submit(): got an unexpected keyword argument 'colour'"),
    ({"timeout": 1.0}, TypeError, "'timeout'"),
]


@pytest.mark.parametrize(("asked", "kind", "text"), BAD_VALUES, ids=lambda value: str(value)[:40])
def test_bad_values(scheduler: Scheduler, asked: dict[str, Any], kind: type[Exception], text: str) -> None:
    before = scheduler.status()["partitions"]
    with pytest.raises(kind, match=re.escape(text)):
        scheduler.submit(nothing, **asked)
    assert scheduler.status()["partitions"] == before
    assert scheduler.status()["tasks"] == []


@pytest.mark.parametrize("thing", [3, "text", None, [nothing]])
def test_only_functions_are_run(scheduler: Scheduler, thing: Any) -> None:
    with pytest.raises(TypeError, match=f"runs a function, not {type(thing).__name__}"):
        scheduler.submit(thing)


def test_an_array_is_not_a_function(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="runs a function, not GPUArray"):
        scheduler.submit(gp.ones(3))  # type: ignore[arg-type]


def test_a_coroutine_has_no_deadline(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="a coroutine cannot have a deadline"):
        scheduler.submit(coroutine, deadline=0.1, cost=0.01)


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"total_memory": 1 << 60}, ValueError, "total_memory=1152921504606846976 is more than the device has"),
        ({"total_memory": "heaps"}, ValueError, "'heaps' is not a memory size"),
        ({"total_memory": -1}, ValueError, "-1 is out of range"),
        ({"max_queue": -1}, ValueError, "max_queue=-1"),
        ({"max_queue": 1.5}, TypeError, "Scheduler(): 'max_queue': 1.5 is not an int"),
        ({"max_queue": True}, TypeError, "Scheduler(): 'max_queue': True is not an int"),
        ({"lending": "no"}, TypeError, "Scheduler(): 'lending': 'no' is not a bool"),
        ({"clusters": None}, TypeError, "Scheduler(): 'clusters': None is not a bool"),
        ({"device": "toaster"}, DeviceError, "'toaster' is not a device"),
        ({"speed": 3}, TypeError, "'speed'"),
    ],
)
def test_bad_schedulers(asked: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        Scheduler(**asked)


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"name": ""}, ValueError, "needs a name"),
        ({"name": 3}, TypeError, "create_partition(): 'name'"),
        ({"name": "default"}, ValueError, "'default' exists"),
        ({"memory": "65MiB"}, DeviceError, "'part' does not fit: memory: 65.0 MiB asked > 64.0 MiB"),
        ({"memory": "2MiB", "memory_limit": "1MiB"}, ValueError, "memory_limit=1.0 MiB of partition 'part' is below"),
        ({"compute": -0.5}, ValueError, "compute=-0.5"),
        ({"compute": 1.5}, ValueError, "compute=1.5"),
        ({"compute": 0.5, "compute_limit": 0.1}, ValueError, "compute_limit=10% of partition 'part' is below"),
        ({"compute_limit": 0}, ValueError, "compute_limit=0 of partition 'part' would never let a task run"),
        ({"isolation": "wall"}, ValueError, "auto, sm, time, process"),
        ({"priority_band": (3, 1)}, ValueError, "(3, 1)"),
        ({"priority_band": 3}, TypeError, "'priority_band'"),
        ({"priority_band": (1, 2, 3)}, ValueError, "create_partition(): 'priority_band': expected tuple of length 2"),
        ({"priority_band": (False, True)}, TypeError, "create_partition(): 'priority_band'"),
        ({"compute": True}, TypeError, "create_partition(): 'compute': True is a bool"),
        ({"queue_limit": True}, TypeError, "create_partition(): 'queue_limit': True is a bool"),
        ({"classes": ["fast"]}, ValueError, "class='fast' is not known"),
        ({"queue_limit": -1}, OverflowError, "'queue_limit'"),
        ({"colour": "red"}, TypeError, "create_partition(): got an unexpected keyword argument 'colour'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_partitions(scheduler: Scheduler, asked: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        scheduler.create_partition(**{"name": "part", **asked})
    assert [row["name"] for row in scheduler.status()["partitions"]] == ["default"]
    # What was refused has left nothing behind that a good request would meet.
    scheduler.create_partition("part", memory="64MiB").remove()


def test_more_memory_than_the_device_is_rejected(scheduler: Scheduler) -> None:
    task = scheduler.submit(nothing, memory="65MiB")
    assert (task.decision, task.state, task.done()) == ("rejected", "rejected", True)
    assert task.decision.reason == task.reason == "memory: 65.0 MiB asked > 64.0 MiB of partition 'default'"
    for wait in (task.result, lambda: task.result(timeout=0.0)):
        with pytest.raises(AdmissionError, match=r"task 'nothing' was rejected: memory: 65\.0 MiB asked"):
            wait()
    assert isinstance(task.exception(), AdmissionError)
    assert task.wait()
    assert not task.cancel()
    assert task.stats()["decision"] == "rejected"
    with pytest.raises(AdmissionError, match="task 'block' was rejected"), scheduler.task(memory="65MiB"):
        pytest.fail("a rejected block was run")
    assert scheduler.status()["tasks"] == []


def test_unknown_tasks_and_partitions(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="there is no task 77"):
        scheduler.stats(77)
    with pytest.raises(ValueError, match="there is no task 77"):
        scheduler.cancel(77)
    with pytest.raises(ValueError, match="there is no partition 'attic'; there is 'default'"):
        scheduler.partition("attic")
    part = scheduler.create_partition("part")
    assert scheduler.partition("part").name == "part"
    part.remove()
    with pytest.raises(ValueError, match="'part' was removed"):
        part.usage()
    with pytest.raises(ValueError, match="there is no partition 'part'"):
        part.submit(nothing)
    with pytest.raises(ValueError, match="there is no partition 'part'"):
        part.remove()


def test_a_partition_in_use_is_not_removed(scheduler: Scheduler) -> None:
    part = scheduler.create_partition("part", memory="8MiB")
    with part.task(memory="1MiB"):
        with pytest.raises(DeviceError, match=r"in use \(tasks: 1, waiting: 0\)"):
            part.remove()
        assert part.usage()["tasks"] == 1
    part.remove()


def test_a_partition_submits_to_itself(scheduler: Scheduler) -> None:
    part = scheduler.create_partition("part")
    for ask in (lambda: part.submit(nothing, partition="default"), lambda: part.task(partition="default")):
        with pytest.raises(TypeError, match="multiple values for keyword argument 'partition'"):
            ask()
    part.remove()


def test_nothing_is_taken_after_the_end() -> None:
    scheduler = Scheduler()
    task = scheduler.submit(lambda: 7)
    assert scheduler.shutdown()
    assert scheduler.shutdown()
    with pytest.raises(RuntimeError, match="was shut down and takes no more tasks"):
        scheduler.submit(nothing)
    with pytest.raises(RuntimeError, match="was shut down"), scheduler.task():
        pytest.fail("a block was run after the end")
    assert task.result() == 7
    assert task.stats()["state"] == "done"
    assert not task.cancel()


def test_names_arguments_and_the_current_task(scheduler: Scheduler) -> None:
    def add(a: int, b: int = 0) -> tuple[int, Task[Any] | None]:
        return a + b, current_task()

    task = scheduler.submit(add, args=[2], kwargs={"b": 3})
    assert task.result() == (5, task)
    assert (task.name, task.policy, task.partition) == ("add", "besteffort", "default")
    assert scheduler.submit(add, args=(1,), name="sum").name == "sum"
    assert scheduler.submit(type("Callable", (), {"__call__": lambda self: 1})()).name == "Callable"
    assert current_task() is None
    assert "'add' done" in repr(task)


def test_the_default_scheduler_begins_anew() -> None:
    assert shutdown()
    assert submit(lambda: 1).result() == 1
    assert shutdown()
    assert submit(lambda: 2).result() == 2
    assert shutdown()
    assert shutdown()


def test_decorated_functions(scheduler: Scheduler) -> None:
    @scheduled(scheduler=scheduler, memory="1MiB", name="double")
    def double(x: int) -> int:
        """Twice."""
        task = current_task()
        assert task is not None
        assert (task.name, task.policy) == ("double", "burstable")
        return 2 * x

    assert double(4) == 8
    assert double.__doc__ == "Twice."
    assert double.submit(5).result() == 10  # type: ignore[attr-defined]

    @scheduled(scheduler=scheduler, memory="1TiB")
    def huge() -> None:
        pytest.fail("it was run")

    with pytest.raises(AdmissionError, match=r"task 'huge' was rejected: memory: 1\.0 TiB asked"):
        huge()

    @scheduled(scheduler=scheduler)
    def faulty() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        faulty()


class Scaled:
    """With methods that are tasks."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @scheduled()
    def times(self, x: int, plus: int = 0) -> int:
        assert current_task() is not None
        return self.factor * x + plus

    @scheduled()
    async def soon(self, x: int) -> int:
        assert current_task() is not None
        return self.factor * x

    @staticmethod
    @scheduled(name="static")
    def static(x: int) -> int:
        assert current_task() is not None
        return x


def test_decorated_methods() -> None:
    scaled: Any = Scaled(3)
    assert scaled.times(4) == 12
    assert scaled.times.submit(4, plus=1).result() == 13
    assert Scaled.times(scaled, 5) == 15
    assert asyncio.iscoroutinefunction(scaled.soon)
    assert not asyncio.iscoroutinefunction(scaled.times)
    assert asyncio.run(scaled.soon(2)) == 6
    assert scaled.soon.submit(2).result() == 6
    assert (scaled.static(7), scaled.static.submit(8).result()) == (7, 8)
    assert pickle.loads(pickle.dumps(Scaled.times)) is Scaled.times
    assert pickle.loads(pickle.dumps(scaled.times))(4) == 12
    shutdown()


def test_bad_options_are_noticed_when_a_function_is_decorated() -> None:
    with pytest.raises(TypeError, match=re.escape("scheduled(): got an unexpected keyword argument 'memori'")):
        scheduled(memori="1MiB")
    with pytest.raises(ValueError, match=re.escape("bandwidth=2 is not a share")):
        scheduled(bandwidth=2)
    with pytest.raises(TypeError, match=re.escape("put @scheduled(...) below @staticmethod")):
        scheduled()(staticmethod(nothing))
