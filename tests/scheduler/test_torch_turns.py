"""Turns of torch's operators: with stand-ins for torch everywhere, and with torch itself where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from checks import PATIENCE
from stand_ins import ELSEWHERE, HERE, ON_CPU, Cuda, Modes, Tensor, torch_module

from pygpukit.errors import TaskCancelledError
from pygpukit.scheduler import Scheduler, Task, current_task, torch_turns
from pygpukit.scheduler.torch_memory import TorchMemory
from pygpukit.scheduler.torch_turns import OperatorTurns, Torch, operators_in_turns


class Operator:
    """Remembers on which streams it ran."""

    def __init__(self, side: Side, *, alias: str | None = None) -> None:
        self.side = side
        self.ran: list[int] = []
        self.pools: list[list[tuple[int, int]]] = []
        info = None if alias is None else SimpleNamespace(is_write=alias == "write")
        self._schema = SimpleNamespace(returns=[SimpleNamespace(alias_info=info)])

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self.ran.append(self.side.current())
        self.pools.append(list(self.side.cuda.used))
        return "result"


class Side(Torch):
    """torch, as a stand-in."""

    def __init__(self) -> None:
        super().__init__(torch_module(), HERE)

    @property
    def cuda(self) -> Cuda:
        return self.module.cuda


class Lease:
    """A task's, whose lane may change."""

    bounds_memory = False

    def __init__(self) -> None:
        self.handle = 77
        self.kinds: list[int] = []
        self.depth = 0

    def begin_external(self, kind: int) -> int:
        self.kinds.append(kind)
        self.depth += 1
        return self.handle

    def end_external(self, measured: bool) -> None:
        assert not measured
        self.depth -= 1


@pytest.fixture
def lease() -> Iterator[Lease]:
    made = Lease()
    yield made
    assert made.depth == 0


def turns_of(lease: Any, side: Side) -> OperatorTurns:
    return OperatorTurns(lease, side, None)


def run(turns: OperatorTurns, operator: Operator, *args: Any, **kwargs: Any) -> None:
    assert turns.__torch_dispatch__(operator, (), args, kwargs) == "result"


def test_an_operator_runs_on_the_lane_in_a_turn(lease: Lease) -> None:
    side = Side()
    turns, add = turns_of(lease, side), Operator(side)
    run(turns, add, Tensor(), Tensor())
    lease.handle = 78
    run(turns, add, Tensor(), Tensor())
    assert add.ran == [77, 78]
    assert len(lease.kinds) == 2
    assert not turns.has_strayed


def test_operators_of_one_kind_cost_the_same(lease: Lease) -> None:
    side = Side()
    turns, add, multiply = turns_of(lease, side), Operator(side), Operator(side)
    for _ in range(2):
        run(turns, add, Tensor(), 2)
    run(turns, add, Tensor(shape=(4, 3)), 2)
    run(turns, add, Tensor(dtype="float16"), 2)
    run(turns, add, Tensor(), 3)
    run(turns, add, Tensor(), [4, 4])
    run(turns, multiply, Tensor(), 2)
    assert lease.kinds[0] == lease.kinds[1] == lease.kinds[4], "a number is a value, not a size"
    assert len(set(lease.kinds)) == 5


def test_shapes_that_are_symbols_have_the_operator_s_kind(lease: Lease) -> None:
    side = Side()
    turns, add = turns_of(lease, side), Operator(side)
    for size in ([1], [2]):
        run(turns, add, Tensor(shape=(size,)))  # type: ignore[arg-type]
    assert lease.kinds[0] == lease.kinds[1]


def test_what_needs_no_part_of_the_lane_takes_no_turn(lease: Lease) -> None:
    side = Side()
    turns = turns_of(lease, side)
    run(turns, Operator(side, alias="read"), Tensor())
    for device in (ELSEWHERE, ON_CPU):
        run(turns, Operator(side), Tensor(device), 1.0)
    run(turns, Operator(side), [2, 3], device="cpu")
    assert lease.kinds == []
    assert side.current() == 0


def test_tensors_are_found_wherever_they_are(lease: Lease) -> None:
    side = Side()
    turns = turns_of(lease, side)
    run(turns, Operator(side, alias="write"), Tensor())
    run(turns, Operator(side), Tensor(ON_CPU), Tensor())
    run(turns, Operator(side), [Tensor(ON_CPU), Tensor()])
    run(turns, Operator(side), 3, out=Tensor())
    run(turns, Operator(side), [2, 3], device="cuda")
    assert len(lease.kinds) == 5


def test_a_stream_of_the_task_s_own_choice_is_left_alone(lease: Lease) -> None:
    side = Side()
    turns, add = turns_of(lease, side), Operator(side)
    run(turns, add, Tensor())
    side.set(5)
    run(turns, add, Tensor())
    side.set(0)
    run(turns, add, Tensor())
    assert add.ran == [77, 5, 77]
    assert turns.has_strayed
    assert len(lease.kinds) == 2


def test_an_operator_that_fails_has_had_its_turn(lease: Lease) -> None:
    side = Side()

    def fails(*_args: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns_of(lease, side).__torch_dispatch__(fails, (), (Tensor(),))
    assert len(lease.kinds) == 1


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> Modes:
    made = Modes()
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", made)
    torch_turns._mode_class.cache_clear()
    monkeypatch.setattr(torch_turns, "_mode_class", torch_turns._mode_class.__wrapped__)
    return made


def test_the_mode_is_there_for_the_task_alone(lease: Any, modes: Modes) -> None:
    modes.stack.append("before")
    with operators_in_turns(lease, Side()) as turns:
        assert modes.stack == ["before", turns]
        with turns.paused():
            assert modes.stack == ["before"]
            assert turns.is_paused
        assert modes.stack == ["before", turns]
        modes.stack.append("left behind")
        with turns.paused():
            assert modes.stack == ["before", turns, "left behind"]
            add = Operator(Side())
            run(turns, add, Tensor())
            assert lease.kinds == []
    assert modes.stack == ["before"]


def test_stream_device_and_memory_are_the_task_s_and_then_as_before(lease: Any, modes: Modes) -> None:
    side = Side()
    side.set(4)
    side.cuda.set_device(2)
    lease.bounds_memory = True
    with operators_in_turns(lease, side) as turns:
        add = Operator(side)
        for _ in range(2):
            run(turns, add, Tensor())
        assert add.ran == [77, 77], "the stream the thread had before is not the task's choice"
        assert add.pools == [[(0, 1)]] * 2
        assert side.cuda.used == side.cuda.gone == []
    assert modes.stack == []
    assert (side.current(), side.cuda.current_device()) == (4, 2)
    assert side.cuda.gone == [(0, 1)]


def test_pools_of_torch_go_when_nobody_uses_one() -> None:
    side = Side()
    memories = [TorchMemory(side.module, HERE) for _ in range(2)]
    with memories[0].used():
        with memories[1].used():
            pass
        assert not memories[1].drop()
        assert side.cuda.gone == []
    assert side.cuda.gone == [(0, 2)]
    assert memories[0].drop()
    assert side.cuda.gone == [(0, 2), (0, 1)]


def test_what_torch_has_cached_goes_before_the_task_is_refused() -> None:
    side = Side()
    memory = TorchMemory(side.module, HERE)
    tries: list[list[Any]] = []

    def full(times: int) -> str:
        tries.append(list(side.cuda.used))
        if len(tries) <= times:
            raise side.module.OutOfMemoryError
        return "result"

    assert memory.run(full, (1,), {}) == "result"
    assert tries == [[(0, 1)], [(0, 2)]]
    assert side.cuda.gone == [(0, 1)]
    with pytest.raises(side.module.OutOfMemoryError):
        memory.run(full, (9,), {})
    assert len(tries) == 4, "once more, and then never again"
    assert side.cuda.used == []


def test_what_an_operator_has_half_written_is_not_written_again() -> None:
    side = Side()
    memory = TorchMemory(side.module, HERE)

    class Adds(Operator):
        def __call__(self, *args: Any, **kwargs: Any) -> str:
            super().__call__(*args)
            raise side.module.OutOfMemoryError

    add = Adds(side)
    add._schema.arguments = [SimpleNamespace(alias_info=SimpleNamespace(is_write=True))]
    with pytest.raises(side.module.OutOfMemoryError):
        memory.run(add, (Tensor(),), {})
    assert len(add.ran) == 1
    assert side.cuda.gone == [(0, 1)]


def test_turns_are_those_of_the_scheduler(scheduler: Scheduler, modes: Modes) -> None:
    side = Side()
    add = Operator(side)

    def work() -> None:
        task = torch_task()
        assert task._lease is not None
        with operators_in_turns(task._lease, side) as turns:
            for _ in range(20):
                run(turns, add, Tensor())
            task.cancel()
            run(turns, add, Tensor())

    task = scheduler.submit(work)
    assert isinstance(task.exception(PATIENCE), TaskCancelledError)
    assert len(add.ran) == 20
    assert task.stats()["submissions"] == 20


def torch_task() -> Task[Any]:
    task = current_task()
    assert task is not None
    return task


def test_with_torch_itself(scheduler: Scheduler) -> None:
    torch = pytest.importorskip("torch")

    class OnCpu(Torch):
        """Tensors of the CPU are those of the device."""

        is_ready = False
        handle = 0

        def current(self) -> int:
            return self.handle

        def set(self, handle: int) -> None:
            self.handle = handle

    def work() -> float:
        lease = torch_task()._lease
        assert lease is not None
        with operators_in_turns(lease, OnCpu(torch, ON_CPU)) as turns:
            x = torch.ones(4, 4, requires_grad=True)
            (x @ x).relu().sum().backward()
            count = lease.stats()["submissions"]
            assert count >= 6
            x.view(16)
            with turns.paused():
                torch.ones(3) + 1
            assert lease.stats()["submissions"] == count
            return float(x.grad.sum())

    assert scheduler.submit(work).result(PATIENCE) == 128.0
