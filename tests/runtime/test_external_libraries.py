"""torch and CuPy in tasks of a GPU: on which streams and in whose memory their work is. All three are stand-ins."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="there is no fake CUDA driver")

PRELUDE = """
import asyncio, sys
import pygpukit as gp
from pygpukit.scheduler import *
from stand_ins import *

scheduler = Scheduler()
def result_of(work, **request):
    return scheduler.submit(work, **request).result(60)

class Operator:
    def __call__(self, *args):
        self.used = list(torch.cuda.used)
        return torch.cuda.stream.handle

def add(*args):
    # What torch does when a mode is there.
    mode = sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode()
    return mode.__torch_dispatch__(operator, (), args) if mode is not None else operator(*args)

operator = Operator()
own = dict(policy="guaranteed", bandwidth=0.25)
"""


@pytest.fixture
def on_gpu(fake_cuda: str, run_python: Callable[..., str]) -> Callable[[str], Any]:
    """Run a program that prints a value; returns the value."""
    path = str(Path(__file__).resolve().parents[1] / "scheduler")

    def run(program: str) -> Any:
        environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda, "PYTHONPATH": path}
        return ast.literal_eval(run_python(PRELUDE + program, **environ))

    return run


def test_operators_of_torch_run_on_the_tasks_lane(on_gpu: Callable[[str], Any]) -> None:
    shared, again, owned, after, same = on_gpu("""
torch = load("torch")
def work():
    stream = current_task()._lease.stream
    first = add(Tensor())
    return first, first == add(Tensor()) == stream.handle == stream.__cuda_stream__()[1]
print([*result_of(work), *result_of(work, **own), torch.cuda.stream.handle])
""")
    assert (again, after) == (True, True)
    assert len({0, shared, owned}) == 3
    assert same == 0


def test_a_block_sets_the_streams_of_both_and_puts_them_back(on_gpu: Callable[[str], Any]) -> None:
    inside, handle, outside, stack = on_gpu("""
torch = load("torch", "cupy")
def work():
    seen = []
    with external() as stream:
        seen.append([torch.cuda.stream.handle, CupyStream.current.handle, add(Tensor())])
        yield_()
        seen += [stream.handle]
    seen.append([torch.cuda.stream.handle, CupyStream.current.handle])
    return [*seen, len(sys.modules["torch.utils._python_dispatch"].stack)]
print(result_of(work))
""")
    assert inside == [handle] * 3
    assert handle != 0
    assert outside == [0, 0]
    assert stack == 1, "operators take turns again"


def test_streams_follow_a_lane_that_changes_in_a_block(on_gpu: Callable[[str], Any]) -> None:
    first, second, current = on_gpu("""
import threading
torch = load("torch", "cupy")
begun, go_on = threading.Event(), threading.Event()
def work():
    with external() as stream:
        first = stream.handle
        begun.set()
        while not go_on.wait(0.001):
            yield_()
        yield_()
        return first, stream.handle, [torch.cuda.stream.handle, CupyStream.current.handle]
task = scheduler.submit(work)
begun.wait(60)
with scheduler.task(**own):
    go_on.set()
    print(task.result(60))
""")
    assert first != second
    assert current == [second, second]


def test_a_task_inside_of_another_has_turns_of_its_own(on_gpu: Callable[[str], Any]) -> None:
    outer, inner, again, counts = on_gpu("""
torch = load("torch")
with scheduler.task() as first:
    outer = add(Tensor())
    with scheduler.task(**own) as second:
        inner = add(Tensor())
        counts = [task.stats()["submissions"] for task in (first, second)]
    again = add(Tensor()) == first._lease.stream.handle
print([outer, inner, again, counts])
""")
    assert outer != inner
    assert again
    # On a lane of its own the stream was set in a turn before.
    assert counts == [1, 2]


def test_cupy_has_the_lane_of_a_task_that_is_alone_on_it(on_gpu: Callable[[str], Any]) -> None:
    owned, shared, after = on_gpu("""
torch = load("cupy")
def work():
    task = current_task()
    return CupyStream.current.handle, task._lease.stream.handle, task.stats()["enforcement"]
print([result_of(work, **own), result_of(work), CupyStream.current.handle])
""")
    assert owned[0] == owned[1] != 0
    assert owned[2] == "sm-only"
    assert shared[0] == 0
    assert shared[2] == "full"
    assert after == 0


def test_streams_of_the_code_s_own_choice_are_said(on_gpu: Callable[[str], Any]) -> None:
    assert on_gpu("""
torch = load("torch")
def work():
    torch.cuda.set_stream(Stream(5))
    return add(Tensor())
task = scheduler.submit(work)
print([task.result(60), task.stats()["enforcement"], torch.cuda.stream.handle])
""") == [5, "none", 0]


@pytest.mark.parametrize("block", [False, True])
def test_memory_of_torch_is_the_tasks(on_gpu: Callable[[str], Any], block: bool) -> None:
    with_limit, without, used, gone = on_gpu(f"""
from contextlib import nullcontext
torch = load("torch")
kept = []
def work():
    task = current_task()
    with external() if {block} else nullcontext():
        handle = add(Tensor())
        if not operator.used:
            return False
        pool = torch.cuda.allocator
        first = pool.allocate(4 << 20, 0, handle)
        used = task.stats()["memory"]
        refused = pool.allocate(8 << 20, 0, handle)
        second = pool.allocate(2 << 20, 0, handle)
        pool.free(first, 4 << 20, 0, handle)
    kept.append((pool, second, handle))
    return bool(first), used, refused, task.stats()["memory"]
limited = result_of(work, memory_limit="8MiB")
free = result_of(work)
for pool, address, handle in kept:
    pool.free(address, 2 << 20, 0, handle)
print([limited, free, torch.cuda.used, torch.cuda.gone])
""")
    assert with_limit == (True, 4 << 20, None, 2 << 20)
    assert without is False
    assert used == []
    assert gone == [(0, 1)]


def test_coroutines_have_it_in_blocks(on_gpu: Callable[[str], Any]) -> None:
    inside, pools, outside = on_gpu("""
torch = load("torch")
async def work():
    with external() as stream:
        inside = add(Tensor()) == stream.handle != 0
        pools = len(operator.used)
    await asyncio.sleep(0)
    return inside, pools, torch.cuda.stream.handle
async def main():
    return await scheduler.submit(work, memory_limit="8MiB")
print(asyncio.run(main()))
""")
    assert (inside, pools, outside) == (True, 1, 0)
