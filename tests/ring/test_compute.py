"""Buffers with two sides, kernels from functions, the orchestrator, devices and their figures."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.errors import DeviceError, KernelCompileError, MissingPackageError, RingError, ShapeError
from pygpukit.ring import (
    Accelerator,
    BufferState,
    ComputeOrchestrator,
    GPUMonitor,
    KernelLaunchConfig,
    UnifiedBuffer,
    cuda_source,
    gpu_kernel,
    kernel,
)

ADD = """
__global__ void add(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""


@cuda_source(ADD)
def add(x: Any, y: Any, out: Any, n: Any) -> None:
    """Stands for the kernel."""


@kernel
def triple() -> None:
    """
    __global__ void triple(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] *= 3.0f;
    }
    """


def test_the_states_of_a_buffer() -> None:
    buffer = UnifiedBuffer((2, 3), gp.int32)
    assert (buffer.state, buffer.is_allocated) == (BufferState.UNINITIALIZED, False)
    assert (buffer.shape, buffer.size, buffer.nbytes, len(buffer)) == ((2, 3), 6, 24, 2)
    assert buffer.host.tolist() == [[0] * 3] * 2
    assert buffer.state is BufferState.HOST_ONLY
    buffer.host[0] = [1, 2, 3]
    buffer.mark_host_dirty()
    assert buffer.state is BufferState.HOST_ONLY
    assert buffer.device.tolist() == [[1, 2, 3], [0, 0, 0]]
    assert buffer.state is BufferState.SYNCHRONIZED
    buffer.host[1] = 5
    buffer.mark_host_dirty()
    assert buffer.state is BufferState.HOST_DIRTY
    with pytest.raises(RingError, match="both sides of the buffer were written: it is HOST_DIRTY"):
        buffer.mark_device_dirty()
    buffer.synchronize()
    assert (buffer.state, buffer.device.tolist()[1]) == (BufferState.SYNCHRONIZED, [5, 5, 5])
    buffer.device.fill(7)
    buffer.mark_device_dirty()
    assert buffer.state is BufferState.DEVICE_DIRTY
    with pytest.raises(RingError, match="it is DEVICE_DIRTY"):
        buffer.mark_host_dirty()
    assert buffer.host.tolist() == [[7] * 3] * 2
    buffer.free()
    assert buffer.state is BufferState.UNINITIALIZED


@pytest.mark.parametrize("pinned", [True, False])
def test_where_a_buffer_is_allocated(pinned: bool) -> None:
    assert UnifiedBuffer(3, pinned=pinned).allocate().state is BufferState.SYNCHRONIZED
    assert UnifiedBuffer(3, pinned=pinned).allocate(device=False).state is BufferState.HOST_ONLY
    with UnifiedBuffer(3, pinned=pinned).allocate(host=False) as buffer:
        assert buffer.state is BufferState.DEVICE_ONLY
        with pytest.raises(RingError, match="the host's side of the buffer has no memory"):
            buffer.mark_host_dirty()
        assert buffer.fill(2).host.tolist() == [2, 2, 2]
    assert not buffer.is_allocated
    with pytest.raises(RingError, match="on the host, on the device, or on both"):
        buffer.allocate(host=False, device=False)
    with pytest.raises(ShapeError):
        UnifiedBuffer((2, -1))


def test_copies_of_a_buffer() -> None:
    buffer = UnifiedBuffer.from_numpy(np.arange(4.0))
    assert buffer.dtype is gp.float64
    out = np.empty(4)
    buffer.copy_to(out)
    assert out.tolist() == [0, 1, 2, 3]
    assert buffer.zeros().device.tolist() == [0] * 4
    buffer.copy_from([4, 3, 2, 1])
    assert buffer.device.tolist() == [4, 3, 2, 1]
    assert repr(buffer) == "UnifiedBuffer(shape=(4,), dtype=pygpukit.float64, state=SYNCHRONIZED)"


@pytest.mark.nvrtc
def test_kernels_take_buffers_and_mark_what_they_write() -> None:
    x, y, out = UnifiedBuffer(100).fill(1.5), UnifiedBuffer.from_numpy(np.arange(100, dtype="f4")), UnifiedBuffer(100)
    add(x, y, out, 100, grid=1, block=128)
    assert (x.state, y.state) == (BufferState.SYNCHRONIZED, BufferState.SYNCHRONIZED)
    assert out.state is BufferState.DEVICE_DIRTY
    assert np.array_equal(out.host, np.arange(100, dtype="f4") + 1.5)
    triple[1, 128](out, 100)
    assert np.array_equal(out.host, 3 * (np.arange(100, dtype="f4") + 1.5))
    array = gp.ones(10)
    triple[(1,), (32,), gp.Stream(), 0](array, 10)
    gp.synchronize()
    assert array.tolist() == [3.0] * 10


def test_what_is_no_kernel_is_said() -> None:
    @gpu_kernel(fastmath=True)
    def plain(x: Any) -> None:
        x[0] = 1

    with pytest.raises(KernelCompileError, match="plain is a Python function"):
        plain.compile()
    with pytest.raises(TypeError, match=r"launch add as \[grid, block\]"):
        add[1]
    with pytest.raises(KernelCompileError):
        cuda_source("__global__ void broken(float* x) { x[0] = ; }")(lambda: None)(gp.ones(1), grid=1, block=1)


def test_python_functions_need_numba() -> None:
    import importlib.util

    if importlib.util.find_spec("numba") is not None:
        pytest.skip("numba is installed")

    @kernel
    def plain(x: Any) -> None:
        x[0] = 1

    with pytest.raises(MissingPackageError, match=r"pip install 'numba-cuda\[cu13\]'"):
        plain(gp.ones(1))


def test_python_functions_with_numba() -> None:
    cuda = pytest.importorskip("numba.cuda")

    @kernel
    def axpy(x: Any, y: Any, out: Any, by: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] * by + y[i]

    @kernel
    def transpose(a: Any, b: Any) -> None:
        i, j = cuda.grid(2)
        if i < a.shape[0] and j < a.shape[1]:
            b[j, i] = a[i, j]

    x, y, out = UnifiedBuffer.from_numpy(np.arange(1000, dtype="f4")), UnifiedBuffer(1000).fill(1), UnifiedBuffer(1000)
    axpy(x, y, out, 2.0)
    assert np.array_equal(out.host, 2 * np.arange(1000) + 1)
    a, b = gp.from_numpy(np.arange(12.0).reshape(3, 4)), gp.zeros((4, 3), gp.float64)
    transpose[1, (8, 8)](a, b)
    assert np.array_equal(b.to_numpy(), a.to_numpy().T)
    with pytest.raises(TypeError, match="takes arrays, buffers"):
        axpy("x", y, out, 2.0)


@pytest.mark.nvrtc
def test_the_orchestrator_launches_and_remembers() -> None:
    async def main() -> None:
        async with ComputeOrchestrator() as orchestrator:
            assert orchestrator.is_active
            orchestrator.register_kernel("triple", triple)
            x = UnifiedBuffer(64).fill(2)
            config = KernelLaunchConfig(grid_size=(1,), block_size=(64,), stream=orchestrator.create_stream())
            done = await orchestrator.launch_kernel("triple", config, x, 64)
            assert (done.success, done.kernel_name, done.error) == (True, "triple", None)
            assert done.duration_ms >= 0
            assert x.host.tolist() == [6.0] * 64
            failed = await orchestrator.launch_kernel(triple, KernelLaunchConfig(1, 2048), x, 64)
            assert not failed.success
            assert "2048" in str(failed.error)
            called = await orchestrator.launch_kernel(lambda a: a.fill(1), KernelLaunchConfig(), x.device)
            assert called.success
            assert [one.success for one in orchestrator.get_execution_history()] == [True, False, True]
            assert [one.success for one in orchestrator.get_execution_history(1, "triple")] == [False]
            with pytest.raises(RingError, match="no kernel 'other'; registered are: triple"):
                orchestrator.get_kernel("other")
            await orchestrator.synchronize()
            orchestrator.clear_execution_history()
            assert orchestrator.get_execution_history() == []
        with pytest.raises(RingError, match="not open"):
            await orchestrator.launch_kernel("triple", config, x, 64)

    asyncio.run(main())


def test_the_orchestrator_calls_functions_in_a_thread() -> None:
    """On the stream and from the pool, while the event loop goes on."""
    goes_on = threading.Event()
    pool = gp.memory.MemoryPool(quota=1 << 20)
    seen: list[tuple[str, int | None]] = []

    def function() -> None:
        seen.append((repr(gp.current_stream()), gp.memory.get_default_pool().quota))
        assert goes_on.wait(60)

    async def coroutine() -> None: ...

    async def main() -> None:
        async with ComputeOrchestrator() as orchestrator:
            stream = orchestrator.create_stream()
            with pool:
                launch = asyncio.ensure_future(orchestrator.launch_kernel(function, KernelLaunchConfig(stream=stream)))
                while not seen:
                    await asyncio.sleep(0.001)
            goes_on.set()
            assert (await launch).success
            assert seen == [(repr(stream), 1 << 20)]
            assert repr(stream) != repr(gp.current_stream())
            for one in (coroutine, lambda: coroutine()):
                failed = await orchestrator.launch_kernel(one)
                assert not failed.success
                assert "is a coroutine function, and cannot be launched" in str(failed.error)

    asyncio.run(main())


@pytest.mark.parametrize("name", [None, "", 5])
def test_names_of_kernels(name: Any) -> None:
    orchestrator = ComputeOrchestrator()
    with pytest.raises(RingError, match=f"name of a kernel must be a str, not {name!r}"):
        orchestrator.register_kernel(name, print)
    with pytest.raises(RingError, match="registered are: none"):
        orchestrator.get_kernel("other")


@pytest.mark.parametrize("shape", [1.5, "ab", -1, (2, -1), (2, 1.5), None])
def test_shapes_of_buffers(shape: Any) -> None:
    with pytest.raises((ShapeError, TypeError), match=rf"shape must be .*ints.*, not {re.escape(repr(shape))}"):
        UnifiedBuffer(shape)
    assert UnifiedBuffer(np.int64(4)).shape == (4,)


@pytest.mark.parametrize(
    "options",
    [
        *({"grid_size": size} for size in (0, 1.5, (1.5,), "4", True)),
        {"block_size": (1, 2, 3, 4)},
        *({"shared_memory_bytes": size} for size in (-1, 1.5, None)),
        {"stream": "x"},
    ],
)
def test_wrong_launch_configurations(options: dict[str, Any]) -> None:
    with pytest.raises(RingError, match=next(iter(options))):
        KernelLaunchConfig(**options)


def test_devices() -> None:
    accelerator = Accelerator()
    assert accelerator.device_count == len(accelerator.devices) >= 1
    before = accelerator.current_device
    accelerator.set_device(0)
    accelerator.set_device(0)
    assert accelerator.current_device.kind == before.kind
    accelerator.synchronize()
    memory = accelerator.get_memory_info()
    assert memory["free"] + memory["used"] == memory["total"]
    with pytest.raises(DeviceError, match="there is no device 99"):
        accelerator.get_device(99)
    with pytest.raises(TypeError, match="must be an int, not '0'"):
        accelerator.get_device("0")


def test_figures_without_a_gpu() -> None:
    monitor = GPUMonitor()
    if monitor.is_available:
        assert monitor.get_memory_info()["total"] > 0
        return
    assert monitor.get_all_gpu_info() == []
    with pytest.raises(DeviceError, match="there is no GPU 0"):
        monitor.get_utilization()


def test_copies_of_buffers_can_be_awaited_and_are_over_without() -> None:
    async def main() -> None:
        buffer = UnifiedBuffer(4).fill(3.0)
        copied = buffer.ensure_on_device()
        assert buffer.state is BufferState.SYNCHRONIZED
        assert (await copied) is None
        buffer.device.fill(5.0)
        buffer.mark_device_dirty()
        assert (await buffer.ensure_on_host()) is None
        assert buffer.state is BufferState.SYNCHRONIZED
        assert buffer.host.tolist() == [5.0] * 4
        assert (await buffer.ensure_on_host()) is None
        assert (await UnifiedBuffer(2).ensure_on_host()) is None
        assert await asyncio.gather(buffer.ensure_on_device(), asyncio.create_task(buffer.ensure_on_host())) == [
            None,
            None,
        ]

    asyncio.run(main())
    assert asyncio.run(UnifiedBuffer(2).ensure_on_device()) is None
