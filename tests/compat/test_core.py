"""Buffers, devices, the pool and the orchestrator."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Iterator
from dataclasses import fields
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pygpukit.compat.pydotcompute.core.accelerator import (
    Accelerator,
    DeviceProperties,
    DeviceType,
    cuda_available,
    get_accelerator,
    is_on_gpu,
    metal_available,
)
from pygpukit.compat.pydotcompute.core.memory_pool import (
    MemoryPool,
    PoolStatistics,
    configure_memory_pool,
    get_memory_pool,
)
from pygpukit.compat.pydotcompute.core.orchestrator import ComputeOrchestrator, KernelExecution, KernelLaunchConfig
from pygpukit.compat.pydotcompute.core.unified_buffer import BufferState, UnifiedBuffer
from pygpukit.compat.pydotcompute.decorators.kernel import cuda_source
from pygpukit.compat.pydotcompute.exceptions import (
    BufferNotAllocatedError,
    CUDAError,
    KernelCompilationError,
    MetalError,
)
from pygpukit.core import memory


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.cuda)], autouse=True)
def where(request: pytest.FixtureRequest) -> str:
    """Every test runs on a GPU too when those are asked for."""
    return str(request.param)


has_gpu = functools.cache(is_on_gpu)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main)


def test_states_of_buffers() -> None:
    assert [one.name for one in BufferState] == [
        *("UNINITIALIZED", "HOST_ONLY", "DEVICE_ONLY", "SYNCHRONIZED", "HOST_DIRTY", "DEVICE_DIRTY")
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.complex64, "float64"])
def test_a_new_buffer(dtype: Any) -> None:
    buffer: UnifiedBuffer[Any] = UnifiedBuffer((4, 5), dtype)
    assert (buffer.shape, buffer.size, len(buffer)) == ((4, 5), 20, 4)
    assert buffer.dtype == np.dtype(dtype)
    assert buffer.nbytes == 20 * np.dtype(dtype).itemsize
    assert (buffer.state, buffer.is_allocated) == (BufferState.UNINITIALIZED, False)
    assert "UNINITIALIZED" in repr(buffer)
    assert str(np.dtype(dtype)) in repr(buffer)
    assert UnifiedBuffer(50).shape == (50,)
    assert UnifiedBuffer(50).dtype == np.float32


@pytest.mark.parametrize("name", ["host", "device", "metal"])
def test_sides_need_memory(name: str) -> None:
    with pytest.raises(BufferNotAllocatedError):
        getattr(UnifiedBuffer(4), name)


@pytest.mark.parametrize("name", ["mark_host_dirty", "mark_device_dirty", "mark_metal_dirty"])
def test_marks_need_memory(name: str) -> None:
    with pytest.raises(BufferNotAllocatedError):
        getattr(UnifiedBuffer(4), name)()


@pytest.mark.parametrize("name", ["ensure_on_device", "ensure_on_host"])
def test_copies_need_memory(name: str) -> None:
    with pytest.raises(BufferNotAllocatedError):
        run(getattr(UnifiedBuffer(4), name)())


def test_items_need_memory() -> None:
    buffer: UnifiedBuffer[Any] = UnifiedBuffer(4)
    with pytest.raises(BufferNotAllocatedError):
        buffer[0]
    with pytest.raises(BufferNotAllocatedError):
        buffer[0] = 1
    with pytest.raises(BufferNotAllocatedError):
        buffer.copy_to(np.zeros(4))
    buffer.synchronize()
    assert buffer.state is BufferState.UNINITIALIZED


@pytest.mark.parametrize("pinned", [False, True])
def test_allocate_and_free(pinned: bool) -> None:
    buffer: UnifiedBuffer[Any] = UnifiedBuffer(4, pinned=pinned)
    assert buffer.allocate() is buffer
    assert buffer.state is (BufferState.SYNCHRONIZED if has_gpu() else BufferState.HOST_ONLY)
    assert buffer.host.tolist() == [0.0] * 4
    buffer.free()
    assert (buffer.state, buffer.is_allocated) == (BufferState.UNINITIALIZED, False)
    buffer.allocate(host=True, device=False)
    assert buffer.state is BufferState.HOST_ONLY
    assert UnifiedBuffer(4).allocate(host=False).is_allocated


def test_marks_say_who_has_the_content() -> None:
    buffer: UnifiedBuffer[Any] = UnifiedBuffer(4).allocate()
    buffer.mark_host_dirty()
    assert buffer.state is BufferState.HOST_DIRTY
    buffer.mark_device_dirty()
    assert buffer.state is BufferState.DEVICE_DIRTY
    buffer.mark_host_dirty()
    assert buffer.state is BufferState.HOST_DIRTY
    buffer.synchronize()
    assert buffer.state is BufferState.SYNCHRONIZED
    buffer.mark_metal_dirty()
    assert buffer.state is BufferState.DEVICE_DIRTY
    with pytest.raises(MetalError):
        _ = buffer.metal


def test_content() -> None:
    buffer: UnifiedBuffer[Any] = UnifiedBuffer(4)
    for make in (lambda: buffer.copy_from(np.arange(4.0)), buffer.zeros, lambda: buffer.fill(7)):
        buffer.free()
        make()
        assert buffer.state is BufferState.HOST_DIRTY
    assert buffer.host.tolist() == [7.0] * 4
    assert buffer.zeros() is buffer is buffer.fill(2)
    buffer[1:3] = 5
    assert buffer[1] == 5.0
    assert buffer[0:3].tolist() == [2.0, 5.0, 5.0]
    assert buffer.state is BufferState.HOST_DIRTY
    out = np.zeros(4, np.float32)
    buffer.copy_to(out)
    assert out.tolist() == [2.0, 5.0, 5.0, 2.0]
    with pytest.raises(ValueError, match="shape"):
        buffer.copy_from(np.zeros(5))


def test_the_way_to_the_device_and_back() -> None:
    async def main() -> None:
        buffer: UnifiedBuffer[Any] = UnifiedBuffer(4).allocate()
        buffer.host[:] = 1.5
        buffer.mark_host_dirty()
        await buffer.ensure_on_device()
        assert buffer.state is BufferState.SYNCHRONIZED
        if has_gpu():
            buffer.device.fill(3.0)
        else:
            np.testing.assert_array_equal(buffer.device, buffer.host)
            buffer.device[:] = 3.0
        buffer.mark_device_dirty()
        assert buffer.state is BufferState.DEVICE_DIRTY
        await buffer.ensure_on_host()
        assert buffer.host.tolist() == [3.0] * 4
        buffer.synchronize()
        assert buffer.state is BufferState.SYNCHRONIZED

    run(main())


def test_kinds_of_devices() -> None:
    assert [one.name for one in DeviceType] == ["CPU", "CUDA", "METAL"]
    names = ["device_id", "device_type", "name", "compute_capability", "total_memory", "multiprocessor_count"]
    names += ["max_threads_per_block", "max_block_dims", "max_grid_dims", "warp_size", "is_available"]
    assert [one.name for one in fields(DeviceProperties)] == names


@pytest.mark.parametrize(("capability", "text"), [(None, "N/A"), ((8, 9), "8.9"), ((12, 0), "12.0")])
def test_properties_in_words(capability: Any, text: str) -> None:
    ones = (1, 1, 1)
    made = DeviceProperties(0, DeviceType.CUDA, "G", capability, 8 * 1024**3, 60, 1024, ones, ones, 32, True)
    assert (made.compute_capability_str, made.total_memory_gb) == (text, 8.0)


def test_devices() -> None:
    # In a thread of its own, which alone works on what set_device() chose.
    run(asyncio.to_thread(check_devices))


def check_devices() -> None:
    accelerator = Accelerator()
    assert accelerator is Accelerator() is get_accelerator()
    assert accelerator.cuda_available is cuda_available()
    assert accelerator.metal_available is metal_available() is False
    assert accelerator.device_count == len(accelerator.devices) >= 1
    assert accelerator.devices is not accelerator.devices
    assert accelerator.current_device.device_type is (DeviceType.CUDA if has_gpu() else DeviceType.CPU)
    first = accelerator.get_device(0)
    accelerator.set_device(0)
    assert first == accelerator.current_device == accelerator.devices[0]
    assert first.is_available
    assert (first.compute_capability is None) == (not cuda_available())
    accelerator.synchronize()
    for number in (-1, 1000):
        for use in (accelerator.get_device, accelerator.set_device):
            with pytest.raises(ValueError, match=str(number)):
                use(number)
    found = accelerator.get_memory_info()
    assert found["free"] + found["used"] == found["total"]
    assert f"devices={accelerator.device_count}" in repr(accelerator)


def test_statistics_of_a_pool() -> None:
    found = PoolStatistics(used_bytes=2**20, total_bytes=4 * 2**20, n_free_blocks=5)
    assert (found.free_bytes, found.utilization, found.used_mb, found.total_mb) == (3 * 2**20, 0.25, 1.0, 4.0)
    assert found.n_free_blocks == 5
    assert PoolStatistics(0, 0, 0).utilization == 0.0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryPool]:
    monkeypatch.setattr(MemoryPool, "_instance", None)
    yield MemoryPool()
    memory.get_default_pool().set_quota(None)


def test_the_pool(pool: MemoryPool) -> None:
    assert pool is MemoryPool() is get_memory_pool()
    assert pool.enabled is False
    pool.enable()
    assert pool.enabled is True
    pool.disable()
    assert pool.enabled is False
    assert isinstance(pool.get_stats(), PoolStatistics)
    assert isinstance(pool.get_pinned_stats(), PoolStatistics)
    if not has_gpu():
        assert pool.get_stats() == pool.get_pinned_stats() == PoolStatistics(0, 0, 0)
    pool.free_all_blocks()
    pool.free_all_free()
    assert "enabled=False" in repr(pool)


def test_the_limit_is_the_quota_of_the_default_pool(pool: MemoryPool) -> None:
    pool.set_limit(512)
    assert memory.get_default_pool().quota == 512 * 2**20
    pool.set_limit(None)
    assert memory.get_default_pool().quota is None
    assert configure_memory_pool(1, 256) is pool
    assert pool.enabled is True
    assert memory.get_default_pool().quota == 256 * 2**20
    assert configure_memory_pool(enable=False).enabled is False
    assert memory.get_default_pool().quota == 256 * 2**20


def test_launch_configurations() -> None:
    config = KernelLaunchConfig()
    assert (config.grid_size, config.block_size, config.shared_memory_bytes, config.stream) == ((1,), (256,), 0, None)
    config = KernelLaunchConfig(grid_size=8, block_size=(4, 4), shared_memory_bytes=16)
    assert (config.grid_size, config.block_size, config.shared_memory_bytes) == ((8,), (4, 4), 16)


def test_executions() -> None:
    made = KernelExecution()
    assert isinstance(made.execution_id, UUID)
    assert (made.kernel_name, made.config, made.success, made.error) == ("", KernelLaunchConfig(), False, None)
    assert KernelExecution(start_time=1.0, end_time=1.5).duration_ms == 500.0
    assert KernelExecution().execution_id != made.execution_id


def test_an_orchestrator_begins_and_ends() -> None:
    async def main() -> None:
        orchestrator = ComputeOrchestrator()
        assert (orchestrator.is_active, orchestrator.accelerator, orchestrator.memory_pool) == (False, None, None)
        for _ in range(2):
            await orchestrator.initialize()
        assert orchestrator.is_active
        assert orchestrator.accelerator is get_accelerator()
        assert orchestrator.memory_pool is get_memory_pool()
        for _ in range(2):
            await orchestrator.shutdown()
        assert not orchestrator.is_active
        async with orchestrator as same, ComputeOrchestrator() as other:
            assert same is orchestrator
            assert other.is_active
            assert "active=True" in repr(other)
            other.synchronize()
            async with other.stream_context() as stream:
                assert (stream is None) == (not has_gpu())
            assert (other.create_stream() is None) == (not has_gpu())

    run(main())


def test_launches_of_functions() -> None:
    calls: list[Any] = []

    def add(x: int, *, y: int = 0) -> None:
        calls.append(x + y)

    async def add_later(x: int) -> None:
        calls.append(x)

    def fail() -> None:
        raise RuntimeError("on purpose")

    async def main() -> None:
        async with ComputeOrchestrator() as orchestrator:
            assert orchestrator.get_kernel("add") is None
            orchestrator.register_kernel("add", add)
            assert orchestrator.get_kernel("add") is add
            config = KernelLaunchConfig()
            done = await orchestrator.launch_kernel("add", config, 1, y=2)
            assert (done.success, done.kernel_name, done.config, done.error) == (True, "add", config, None)
            assert done.duration_ms >= 0
            assert (await orchestrator.launch_kernel(add_later, config, 5)).kernel_name == "add_later"
            with pytest.raises(RuntimeError, match="on purpose"):
                await orchestrator.launch_kernel(fail, config)
            with pytest.raises(ValueError, match="not registered"):
                await orchestrator.launch_kernel("missing", config)
            history = orchestrator.get_execution_history()
            assert [one.kernel_name for one in history] == ["add", "add_later", "fail"]
            assert (history[2].success, str(history[2].error)) == (False, "on purpose")
            assert [one.kernel_name for one in orchestrator.get_execution_history(limit=2)] == ["add_later", "fail"]
            assert orchestrator.get_execution_history(kernel_name="add") == history[:1]
            orchestrator.clear_execution_history()
            assert orchestrator.get_execution_history() == []

    run(main())
    assert calls == [3, 5]


SCALE = """
extern "C" __global__ void scale(float* x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
"""


@pytest.mark.nvrtc
def test_launches_of_cuda_source_on_buffers() -> None:
    @cuda_source(SCALE)
    def scale(x: Any, by: Any, n: Any) -> str:
        return "called"

    async def main() -> None:
        buffer: UnifiedBuffer[Any] = UnifiedBuffer(100).fill(2.0)
        async with ComputeOrchestrator() as orchestrator:
            config = KernelLaunchConfig(grid_size=1, block_size=128)
            assert (await orchestrator.launch_kernel(scale, config, buffer, 3.0, 100)).success
            assert buffer.host.tolist() == [6.0] * 100
            scale[1, 128](buffer, 0.5, 100)
            assert buffer.state is BufferState.DEVICE_DIRTY
            assert buffer.host.tolist() == [3.0] * 100

    run(main())
    assert scale.__cuda_source__ == SCALE
    assert scale(1, 2, 3) == "called"


@pytest.mark.nvrtc
def test_what_the_device_refuses_is_an_error_of_pydotcompute() -> None:
    @cuda_source("__global__ void wrong(float* x) { x[0] = y; }")
    def wrong(x: Any) -> None: ...

    @cuda_source(SCALE)
    def scale(x: Any, by: Any, n: Any) -> None: ...

    async def main() -> None:
        buffer: UnifiedBuffer[Any] = UnifiedBuffer(4).allocate()
        async with ComputeOrchestrator() as orchestrator:
            with pytest.raises(KernelCompilationError) as caught:
                await orchestrator.launch_kernel(wrong, KernelLaunchConfig(), buffer)
            assert caught.value.kernel_name == "wrong"
            with pytest.raises(KernelCompilationError):
                wrong[1, 32](buffer)
            with pytest.raises(CUDAError):
                scale[1, 4096](buffer, 1.0, 4)
            with pytest.raises(CUDAError):
                await orchestrator.launch_kernel(scale, KernelLaunchConfig(block_size=4096), buffer, 1.0, 4)
            assert [one.success for one in orchestrator.get_execution_history()] == [False, False]

    run(main())
