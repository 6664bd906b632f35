"""Which tasks have their long kernels launched in ranges of blocks, and what they see of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.scheduler import Scheduler

pytestmark = pytest.mark.nvrtc

# By name, because the package's attribute `jit` is the function.
build: Any = importlib.import_module("pygpukit.jit.build")

SOURCE = """
extern "C" __global__ void burn(float* out, int rounds) {
    float a = threadIdx.x + blockIdx.x;
    for (int i = 0; i < rounds; i++) a = fmaf(a, 0.999f, 0.5f);
    out[blockIdx.x * blockDim.x + threadIdx.x] += a;
}
"""
LAUNCHES = 12


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with gp.device("cpu"):
        made = Scheduler()
        yield made
        made.shutdown()


def grid() -> int:
    """Many times what runs at once."""
    return 16 * int(gp.get_device_info()["sm_count"])


def burn(kernel: gp.Kernel, rounds: int = 4000) -> Callable[[], Any]:
    """What a task does: long launches, each waited for so that the next one's cost is known."""

    def run() -> np.ndarray[Any, Any]:
        blocks = grid()
        out = gp.zeros(blocks * 1024, dtype="float32")
        for _ in range(LAUNCHES):
            kernel(out, rounds, grid=blocks, block=1024)
            gp.current_stream().synchronize()
        return out.to_numpy()

    return run


def test_besteffort_tasks_give_way_within_a_kernel(scheduler: Scheduler) -> None:
    task = scheduler.submit(burn(gp.jit(SOURCE)), policy="besteffort")
    found = task.result(timeout=120)
    stats = task.stats()
    assert stats["slices"] > LAUNCHES
    assert stats["submissions"] > stats["slices"]
    whole = scheduler.submit(burn(gp.jit(SOURCE, sliceable=False)), policy="besteffort")
    assert whole.result(timeout=120).tobytes() == found.tobytes()
    assert whole.stats()["slices"] == 0


def test_short_kernels_are_launched_whole(scheduler: Scheduler) -> None:
    def run() -> None:
        out = gp.zeros(32, dtype="float32")
        kernel = gp.jit(SOURCE)
        for _ in range(LAUNCHES):
            kernel(out, 1, grid=32, block=1)
            gp.current_stream().synchronize()

    task = scheduler.submit(run, policy="besteffort")
    task.result(timeout=60)
    assert task.stats()["slices"] == 0


@pytest.mark.parametrize("policy", ["guaranteed", "burstable"])
def test_tasks_that_need_not_give_way_are_left_alone(scheduler: Scheduler, policy: str) -> None:
    request: dict[str, Any] = {"bandwidth": 0.5, "isolation": "time"} if policy == "guaranteed" else {}
    task = scheduler.submit(burn(gp.jit(SOURCE)), policy=policy, **request)
    task.result(timeout=120)
    assert task.stats()["slices"] == 0


def test_burstable_tasks_give_way_to_who_is_promised_something(scheduler: Scheduler) -> None:
    with scheduler.task(policy="guaranteed", bandwidth=0.25, isolation="time"):
        task = scheduler.submit(burn(gp.jit(SOURCE)), policy="burstable")
        task.result(timeout=120)
        assert task.stats()["slices"] > LAUNCHES


def test_recorded_kernels_are_launched_whole(scheduler: Scheduler) -> None:
    kernel = gp.jit(SOURCE)

    def run() -> Any:
        blocks = grid()
        out = gp.zeros(blocks * 1024, dtype="float32")
        graph = gp.CudaGraph()
        with graph.capture():
            kernel(out, 4000, grid=blocks, block=1024)
        for _ in range(LAUNCHES):
            graph.replay()
            graph.synchronize()
        return out.to_numpy()

    task = scheduler.submit(run, policy="besteffort")
    assert task.result(timeout=120).any()
    assert task.stats()["slices"] == 0


def test_a_kernel_that_cannot_be_sliced_is_tried_once_and_launched_whole(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    made = build._sliced_or_none
    monkeypatch.setattr(build, "_sliced_or_none", lambda *args: tried.append(made(*args)))
    function = "__device__ unsigned here() { return blockIdx.x; }\n"
    kernel = gp.jit(function + SOURCE.replace("blockIdx.x *", "here() *"))
    task = scheduler.submit(burn(kernel), policy="besteffort")
    assert task.result(timeout=120).any()
    assert task.stats()["slices"] == 0
    assert tried == [None]


def test_an_interrupt_while_the_variant_is_made_reaches_the_caller(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    kernel = gp.jit(SOURCE + "// interrupted")
    monkeypatch.setattr(build, "_sliced_or_none", interrupted)
    task = scheduler.submit(burn(kernel), policy="besteffort")
    with pytest.raises(KeyboardInterrupt):
        task.result(timeout=120)
    # It is not held against the kernel.
    monkeypatch.undo()
    again = scheduler.submit(burn(kernel), policy="besteffort")
    again.result(timeout=120)
    assert again.stats()["slices"] > 0


def test_tasks_that_slice_the_same_kernel_do_not_wait_for_each_other(scheduler: Scheduler) -> None:
    kernel = gp.jit(SOURCE + "// shared")
    tasks = [scheduler.submit(burn(kernel, 1500), policy="besteffort") for _ in range(3)]
    found = [task.result(timeout=120) for task in tasks]
    assert all((out == found[0]).all() for out in found)
