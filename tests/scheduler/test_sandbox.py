"""Arrays of sandboxed tasks: nobody else may use them while the task runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import pygpukit as gp
from pygpukit.scheduler import Scheduler


def hold_array(shared: dict[str, Any], ready: threading.Event, go: threading.Event) -> gp.GPUArray:
    shared["array"] = gp.ones(16)
    ready.set()
    assert go.wait(30)
    graph = gp.CudaGraph()
    with graph.capture():
        inside = shared["array"] + 1
    graph.replay()
    graph.synchronize()
    return inside * 2


TOUCHES: list[Callable[[gp.GPUArray], Any]] = [
    lambda array: array + 1,
    lambda array: array.to_numpy(),
    lambda array: gp.sum(array),
    lambda array: gp.jit('extern "C" __global__ void zero(float* x) { x[threadIdx.x] = 0; }')(array, block=(16,)),
]


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("inside_another_task", [False, True])
def test_arrays_of_a_sandboxed_task_are_out_of_reach(
    scheduler: Scheduler, touch: Callable[[gp.GPUArray], Any], inside_another_task: bool
) -> None:
    shared: dict[str, Any] = {}
    ready, go = threading.Event(), threading.Event()
    task = scheduler.submit(hold_array, args=(shared, ready, go), name="secret", sandbox=True)
    assert ready.wait(30)

    def attempt() -> None:
        if inside_another_task:
            scheduler.submit(touch, args=(shared["array"],)).result(30)
        else:
            touch(shared["array"])

    with pytest.raises(ValueError, match=r"belongs to task 'secret', which is sandboxed.*sandbox=False"):
        attempt()
    go.set()
    assert task.result(30).tolist() == [4.0] * 16
    # When the task has ended its arrays are everybody's.
    assert (shared["array"] + 1).tolist() == [2.0] * 16


def test_without_a_sandbox_arrays_are_shared(scheduler: Scheduler) -> None:
    shared: dict[str, Any] = {}
    ready, go = threading.Event(), threading.Event()
    task = scheduler.submit(hold_array, args=(shared, ready, go))
    assert ready.wait(30)
    assert (shared["array"] + 1).tolist() == [2.0] * 16
    go.set()
    task.result(30)
