"""torch and CuPy in tasks of a real GPU: whose SMs, shares and memory they use, and that their results are right."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.scheduler import Scheduler, Task, current_task, external, yield_

pytestmark = pytest.mark.cuda

# Of a task that should take a second or two; none is waited for without a limit.
LIMIT = 30.0

MIB = 1 << 20

SMID = r"""
extern "C" __global__ void smid(unsigned* out) {
    unsigned own;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(own));
    const long long begin = clock64();
    while (clock64() - begin < 20000) { }
    if (threadIdx.x == 0) out[blockIdx.x] = own;
}
"""


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch cannot use the GPU")
    module.cuda.init()
    return module


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with gp.device("cuda"):
        made = Scheduler()
        yield made
        assert made.shutdown(cancel=True, timeout=10.0)


def lease_of_task() -> Any:
    task = current_task()
    assert task is not None
    return task._lease


def share_of(tasks: list[Task[Any]], stop: threading.Event, seconds: float) -> float:
    """The first task's part of what both have used in that time, after a moment to begin."""
    time.sleep(0.5)
    before = [task.stats()["gpu_seconds"] for task in tasks]
    time.sleep(seconds)
    used = [task.stats()["gpu_seconds"] - was for task, was in zip(tasks, before, strict=True)]
    stop.set()
    for task in tasks:
        assert task.result(LIMIT) > 0
    return float(used[0] / sum(used))


def test_kernels_run_on_the_lane_s_sms_only(scheduler: Scheduler, cupy: Any) -> None:
    kernel = cupy.RawKernel(SMID, "smid")

    def sms(in_block: bool) -> tuple[set[int], int]:
        out = cupy.zeros(20_000, dtype=cupy.uint32)
        cupy.cuda.Device().synchronize()
        lease = lease_of_task()
        if in_block:
            with external() as stream:
                assert cupy.cuda.get_current_stream().ptr == stream.handle
                kernel((out.size,), (128,), (out,))
                cupy.cuda.get_current_stream().synchronize()
        else:
            assert cupy.cuda.get_current_stream().ptr == lease.stream.handle
            kernel((out.size,), (128,), (out,))
            cupy.cuda.get_current_stream().synchronize()
        return set(np.unique(cupy.asnumpy(out)).tolist()), lease.stats()["sm_count"]

    with scheduler.task(policy="guaranteed", bandwidth=0.25):
        block, width = sms(True)
        body, _ = sms(False)
        others, rest = scheduler.submit(sms, args=[True]).result(LIMIT)
    assert len(block) == len(body) == width
    assert block == body
    assert len(others) == rest
    assert not block & others


def test_operators_of_torch_run_on_the_lane_s_stream(scheduler: Scheduler, torch: Any) -> None:
    def work() -> tuple[int, int]:
        x = torch.ones(1000, device="cuda")
        assert float((x + x).sum()) == 2000.0
        return torch.cuda.current_stream().cuda_stream, lease_of_task().stream.handle

    before = torch.cuda.current_stream().cuda_stream
    shared = scheduler.submit(work).result(LIMIT)
    with scheduler.task(policy="guaranteed", bandwidth=0.25):
        owned = work()
    assert torch.cuda.current_stream().cuda_stream == before
    assert shared[0] == shared[1]
    assert owned[0] == owned[1] != before


@pytest.mark.parametrize("blocks", [False, True])
def test_torch_tenants_share_by_weight(scheduler: Scheduler, torch: Any, blocks: bool) -> None:
    stop = threading.Event()

    def work() -> int:
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        count = 0
        while not stop.is_set():
            if blocks:
                with external():
                    for _ in range(4):
                        a @ a
            else:
                a @ a
            count += 1
        return count

    tasks = [scheduler.submit(work, name=f"weight {weight}", weight=weight) for weight in (3, 7)]
    assert abs(share_of(tasks, stop, 3.0) - 0.3) < 0.03
    assert [task.stats()["enforcement"] for task in tasks] == ["full", "full"]


def test_a_long_block_shares_where_it_gives_way(scheduler: Scheduler, torch: Any) -> None:
    stop = threading.Event()

    def work() -> int:
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        count = 0
        with external():
            while not stop.is_set():
                for _ in range(4):
                    a @ a
                yield_()
                count += 1
        return count

    tasks = [scheduler.submit(work, weight=weight) for weight in (3, 7)]
    assert abs(share_of(tasks, stop, 3.0) - 0.3) < 0.03


def test_torch_and_our_operators_share_by_weight(scheduler: Scheduler, torch: Any) -> None:
    stop = threading.Event()

    def theirs() -> int:
        a = torch.randn(1 << 22, device="cuda")
        count = 0
        while not stop.is_set():
            torch.tanh(a)
            count += 1
        return count

    def ours() -> int:
        a = gp.ones(1 << 22)
        count = 0
        while not stop.is_set():
            gp.tanh(a)
            count += 1
        return count

    tasks = [scheduler.submit(theirs, weight=3), scheduler.submit(ours, weight=7)]
    assert abs(share_of(tasks, stop, 3.0) - 0.3) < 0.03


def test_a_limit_refuses_torch_and_the_task_goes_on(scheduler: Scheduler, torch: Any) -> None:
    def work() -> tuple[int, int, int]:
        small = torch.full((16 * MIB,), 2, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
        more = torch.full((64 * MIB,), 3, dtype=torch.uint8, device="cuda")
        task = current_task()
        assert task is not None
        row = task.stats()
        # A sum of bytes would be made of larger numbers, which do not fit.
        return row["memory"], row["memory_peak"], int(small.max()) * small.numel() + int(more.min()) * more.numel()

    used, peak, total = scheduler.submit(work, memory_limit="256MiB").result(LIMIT)
    assert 80 * MIB <= used <= peak <= 256 * MIB
    assert total == (2 * 16 + 3 * 64) * MIB
    outside = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert outside.numel() == 512 * MIB


def test_torch_gives_back_its_cache_before_a_task_is_refused(scheduler: Scheduler, torch: Any) -> None:
    def work() -> int:
        total = 0
        # Each fits, and needs what the others have left in torch's cache.
        for size in (100, 140, 180, 220):
            x = torch.full((size * MIB,), 1, dtype=torch.uint8, device="cuda")
            total += int(x.max()) * size
            del x
        return total

    assert scheduler.submit(work, memory_limit="256MiB").result(LIMIT) == 640


def test_tenants_with_limits_end_while_others_run(scheduler: Scheduler, torch: Any) -> None:
    stop = threading.Event()

    def steady() -> int:
        count = 0
        while not stop.is_set():
            count += int(torch.ones(1000, device="cuda").sum())
        return count

    def short() -> int:
        return int(torch.ones(1 << 20, device="cuda").sum())

    runner = scheduler.submit(steady, memory_limit="64MiB")
    for _ in range(20):
        assert scheduler.submit(short, memory_limit="64MiB").result(LIMIT) == 1 << 20
    with scheduler.task(policy="guaranteed", bandwidth=0.25, memory="64MiB"):
        assert short() == 1 << 20
    stop.set()
    assert runner.result(LIMIT) > 0


def test_a_backward_pass_is_the_task_s_too(scheduler: Scheduler, torch: Any) -> None:
    def step() -> tuple[list[Any], int]:
        torch.manual_seed(1)
        x = torch.randn(64, 256, device="cuda")
        layers = [torch.nn.Linear(256, 256, device="cuda") for _ in range(3)]
        with torch.no_grad():
            for number, layer in enumerate(layers):
                layer.weight.copy_(torch.linspace(-1, 1, 256 * 256, device="cuda").view(256, 256) / (number + 10))
                layer.bias.zero_()
        model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
        model(x).square().mean().backward()
        task = current_task()
        used = 0 if task is None else task.stats()["memory"]
        return [layer.weight.grad.cpu().numpy() for layer in layers], used

    expected, _ = step()
    for request in ({"memory_limit": "512MiB"}, {"policy": "guaranteed", "bandwidth": 0.25, "memory": "512MiB"}):
        grads, used = scheduler.submit(step, **request).result(LIMIT)
        assert used > 0
        for grad, wanted in zip(grads, expected, strict=True):
            np.testing.assert_allclose(grad, wanted, rtol=1e-3, atol=1e-5)


def test_a_tensor_outlives_its_task_and_its_memory_comes_back(scheduler: Scheduler, torch: Any) -> None:
    def work() -> Any:
        return torch.full((32 * MIB,), 5, dtype=torch.uint8, device="cuda")

    made = scheduler.submit(work, name="maker", memory_limit="128MiB").result(LIMIT)
    assert int(made.sum()) == 5 * 32 * MIB

    def maker_is_there() -> bool:
        return any(pool["name"] == "maker" for pool in gp.memory.snapshot().pools)

    assert maker_is_there()
    del made
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert _soon(lambda: not maker_is_there())


def test_a_cancelled_task_stops_at_its_next_operator(scheduler: Scheduler, torch: Any) -> None:
    begun = threading.Event()

    def work() -> None:
        x = torch.ones(1000, device="cuda")
        while True:
            x = torch.tanh(x)
            begun.set()

    task = scheduler.submit(work)
    assert begun.wait(LIMIT)
    task.cancel()
    assert task.wait(LIMIT)
    assert task.cancelled()


def test_streams_of_the_code_s_own_choice_are_said(scheduler: Scheduler, torch: Any) -> None:
    def work() -> float:
        side = torch.cuda.Stream()
        x = torch.ones(1000, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return float((x + y).sum())

    task = scheduler.submit(work)
    assert task.result(LIMIT) == 3000.0
    assert task.stats()["enforcement"] == "none"


def test_a_captured_graph_is_replayed_in_a_block(scheduler: Scheduler, torch: Any) -> None:
    def work() -> float:
        x = torch.zeros(1000, device="cuda")
        with external():
            graph = torch.cuda.CUDAGraph()
            here = torch.cuda.current_stream()
            with torch.cuda.graph(graph, stream=here, capture_error_mode="thread_local"):
                x.add_(1.0)
            for _ in range(10):
                graph.replay()
        return float(x.sum())

    assert scheduler.submit(work).result(LIMIT) == 10_000.0


def _soon(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return True
        gp.synchronize()
        pause.wait(0.01)
    return False
