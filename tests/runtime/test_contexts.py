"""Where work goes: devices, streams and pools per thread and across await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native


def where() -> tuple[int, str]:
    return gp.current_stream().id, gp.memory.get_default_pool().name


def test_a_new_thread_starts_with_the_defaults() -> None:
    seen: list[Any] = []
    with gp.Stream(), gp.memory.MemoryPool(name="mine"):
        thread = threading.Thread(target=lambda: seen.append(where()))
        thread.start()
        thread.join()
        assert where()[1] == "mine"
    assert seen == [(gp.default_stream().id, "default")]


def test_threads_do_not_disturb_each_other() -> None:
    barrier = threading.Barrier(4)

    def work(i: int) -> bool:
        stream, pool = gp.Stream(), gp.memory.MemoryPool(name=f"pool {i}")
        for _ in range(30):
            with stream, pool:
                barrier.wait(30)
                x = gp.full(10, float(i))
                if where() != (stream.id, f"pool {i}") or gp.add(x, 1.0).tolist() != [i + 1.0] * 10:
                    return False
            barrier.wait(30)
        return True

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4)))


def test_devices() -> None:
    other = native.open_cpu(1 << 24, None, True)
    before = where()
    with gp.device(other) as entered:
        assert entered is other
        x = gp.zeros(3)
        assert x.device.kind == "cpu"
        assert gp.get_device_info()["total_memory"] == 1 << 24
        with gp.memory.MemoryPool(name="there"):
            assert where()[1] == "there"
    assert where() == before
    # Work goes to the device of its arrays, whichever is current.
    assert gp.add(x, 1.0).tolist() == [1] * 3
    with pytest.raises(gp.DeviceError, match="another device"):
        gp.add(x, gp.zeros(3))
    with gp.device(other):
        s = gp.Stream()
    with pytest.raises(gp.DeviceError, match="another device"):
        gp.add(gp.zeros(3), 1.0, stream=s)
    with gp.device("cpu") as cpu:
        assert cpu.kind == "cpu"
    for wrong in ("gpu", "cuda:x", "cuda:-1", ""):
        with pytest.raises(gp.DeviceError, match="is not a device"), gp.device(wrong):
            pass


def test_an_exception_leaves_everything_as_it_was() -> None:
    before = where()
    with pytest.raises(KeyError), gp.Stream(), gp.memory.MemoryPool(), gp.device("cpu"):
        raise KeyError
    assert where() == before


def test_coroutines_keep_their_own_context() -> None:
    async def task(i: int) -> list[tuple[int, str]]:
        seen = []
        stream, pool = gp.Stream(), gp.memory.MemoryPool(name=f"pool {i}")
        seen.append(where())
        with stream:
            await asyncio.sleep(0)
            seen.append((gp.current_stream().id - stream.id, ""))
            with pool:
                for _ in range(5):
                    await asyncio.sleep(0)
                    seen.append((gp.current_stream().id - stream.id, gp.memory.get_default_pool().name))
                x = gp.full(4, float(i))
                await asyncio.sleep(0)
                assert gp.add(x, 1.0).tolist() == [i + 1.0] * 4
        seen.append(where())
        return seen

    async def main() -> list[Any]:
        before = where()
        results = await asyncio.gather(*(gp.with_context(task(i)) for i in range(6)))
        assert where() == before
        return list(results)

    default = where()
    for i, seen in enumerate(asyncio.run(main())):
        assert seen == [default, (0, ""), *[(0, f"pool {i}")] * 5, default]


def test_without_it_a_context_leaks_which_is_why_it_exists() -> None:
    async def task() -> None:
        with gp.Stream():
            await asyncio.sleep(0)

    async def main() -> bool:
        before = where()
        running = asyncio.ensure_future(task())
        await asyncio.sleep(0)
        leaked = where() != before
        await running
        return leaked

    assert asyncio.run(main())


def test_results_exceptions_and_cancellation_pass_through() -> None:
    async def fails() -> None:
        with gp.Stream():
            await asyncio.sleep(0)
            raise LookupError("inside")

    async def catches() -> str:
        with gp.Stream():
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
            except TimeoutError:
                return "timed out"
        return "never"

    async def waits(started: asyncio.Event) -> None:
        with gp.Stream():
            started.set()
            await asyncio.Event().wait()

    async def main() -> None:
        before = where()
        with pytest.raises(LookupError, match="inside"):
            await gp.with_context(fails())
        assert await gp.with_context(catches()) == "timed out"
        started = asyncio.Event()
        running = asyncio.ensure_future(gp.with_context(waits(started)))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert where() == before

    asyncio.run(main())


def test_a_coroutine_starts_with_the_context_of_its_caller() -> None:
    async def inner() -> tuple[int, str]:
        await asyncio.sleep(0)
        return where()

    async def main() -> None:
        with gp.Stream(), gp.memory.MemoryPool(name="callers"):
            assert await gp.with_context(inner()) == where()

    asyncio.run(main())


def test_nested_coroutines_and_captures() -> None:
    async def record(graph: gp.CudaGraph, x: gp.GPUArray) -> None:
        with graph.capture():
            gp.add(x, 1.0, out=x)
            await asyncio.sleep(0)
            gp.mul(x, 2.0, out=x)

    async def disturb(y: gp.GPUArray) -> None:
        for _ in range(3):
            gp.add(y, 1.0, out=y)
            await asyncio.sleep(0)

    async def main() -> None:
        graphs = [gp.CudaGraph() for _ in range(3)]
        arrays = [gp.zeros(2) for _ in range(3)]
        y = gp.zeros(2)
        jobs = [gp.with_context(record(g, x)) for g, x in zip(graphs, arrays, strict=True)]
        await asyncio.gather(*jobs, gp.with_context(disturb(y)))
        assert y.tolist() == [3, 3]
        for graph, x in zip(graphs, arrays, strict=True):
            assert graph.num_nodes == 2
            graph.replay()
            assert x.tolist() == [2, 2]

    asyncio.run(main())


def test_work_in_an_executor() -> None:
    def work(i: int) -> Any:
        return gp.sum(gp.full(10, float(i))).item()

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(None, work, i) for i in range(8))))

    assert asyncio.run(main()) == [10.0 * i for i in range(8)]


def test_the_fallback_warns_once(run_python: Callable[..., str]) -> None:
    program = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import pygpukit as gp
    assert not caught
    gp.zeros(2); gp.zeros(2); gp.Stream(); gp.synchronize()
    import threading
    t = threading.Thread(target=lambda: gp.zeros(2)); t.start(); t.join()
print(len(caught), caught[0].category.__name__, str(caught[0].message))
print(gp.current_device().kind, gp.is_cuda_available(), gp.device_count())
"""
    first, second = run_python(program, PYGPUKIT_DEVICE="", PYGPUKIT_LIBCUDA="/nonexistent/libcuda.so.1").splitlines()
    assert first.startswith("1 FallbackWarning Falling back to CPU simulation backend: CUDA driver not detected")
    assert second == "cpu False 0"


def test_a_wrong_variable_is_named(run_python: Callable[..., str]) -> None:
    wrong = [
        ("DEVICE", "gpu"), ("POOL", "big"), ("SYNC", "2"), ("STREAMS", "deferred:x"), ("CPU_MEMORY", "0"),
        ("CPU_MEMORY", "x"), ("CPU_SMS", "0"),
    ]  # fmt: skip
    program = f"""
import os
import pygpukit as gp
for variable, value in {wrong}:
    os.environ["PYGPUKIT_" + variable] = value
    try:
        gp.zeros(2)
    except ValueError as error:
        print(str(error).splitlines()[0])
    del os.environ["PYGPUKIT_" + variable]
"""
    lines = run_python(program).splitlines()
    assert len(lines) == len(wrong)
    for (variable, value), line in zip(wrong, lines, strict=True):
        assert line.startswith(f"PYGPUKIT_{variable}='{value}' is not valid: use ")


@pytest.mark.parametrize(("sms", "divisible"), [(1, False), (12, True)])
def test_the_cpu_device_has_the_sms_asked_for(run_python: Callable[..., str], sms: int, divisible: bool) -> None:
    program = """
import pygpukit as gp
properties = gp.current_device().properties()
print(properties["sm_count"], "lanes" in properties["features"])
"""
    assert run_python(program, PYGPUKIT_DEVICE="cpu", PYGPUKIT_CPU_SMS=str(sms)) == f"{sms} {divisible}\n"


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_the_emulated_device_runs_operators_by_their_kernels(run_python: Callable[..., str], arch: str) -> None:
    program = """
import pygpukit as gp
x = gp.arange(5, dtype="float32") * 2
print(x.device, x.device.capability, x.tolist())
"""
    text = run_python(program, PYGPUKIT_DEVICE="emulated", PYGPUKIT_EMULATED_ARCH=arch, PYGPUKIT_QUIET="1")
    assert text.split(" ", 2)[0] == "<Device"
    assert f"({arch[0]}, 0) [0.0, 2.0, 4.0, 6.0, 8.0]" in text
