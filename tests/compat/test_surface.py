"""Every published name is at its path with its arguments; importing changes nothing."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

ROOT = "pygpukit.compat.pydotcompute"
TOP = "__version__ Accelerator UnifiedBuffer BufferState MemoryPool ComputeOrchestrator RingKernelRuntime"
TOP += " RingKernelMessage kernel gpu_kernel ring_kernel message"

# Arguments by name; "=" marks those with a default and "*" begins those by keyword.
ARGUMENTS = {
    "decorators.ring_kernel": """
        ring_kernel func= * kernel_id= input_type= output_type= queue_size= input_queue_size= output_queue_size= \
            grid_size= block_size= backpressure= auto_register=
        get_ring_kernel_meta func
        is_ring_kernel func
        RingKernelBuilder kernel_id
        RingKernelBuilder.build""",
    "decorators.kernel": """
        kernel func= * name= device= fastmath= cache=
        gpu_kernel func= * name= signature= fastmath= debug= cache=
        cuda_source source
        KernelRegistry
        KernelRegistry.register name kernel * overwrite=
        KernelRegistry.get name
        KernelRegistry.list
        KernelRegistry.clear
        get_kernel_registry""",
    "ring_kernels.runtime": """
        register_ring_kernel kernel_id func input_type= output_type= config
        get_registered_kernel kernel_id
        RingKernelRuntime * enable_telemetry= use_uvloop= use_eager_tasks=
        RingKernelRuntime.start
        RingKernelRuntime.shutdown timeout=
        RingKernelRuntime.launch kernel_id kernel_func= * config= input_type= output_type=
        RingKernelRuntime.activate kernel_id
        RingKernelRuntime.deactivate kernel_id
        RingKernelRuntime.reactivate kernel_id
        RingKernelRuntime.terminate kernel_id timeout=
        RingKernelRuntime.send kernel_id message * timeout=
        RingKernelRuntime.receive kernel_id * timeout=
        RingKernelRuntime.send_and_receive kernel_id message * timeout=
        RingKernelRuntime.get_kernel_state kernel_id
        RingKernelRuntime.get_telemetry kernel_id
        RingKernelRuntime.get_all_telemetry
        RingKernelRuntime.get_summary
        RingKernelRuntime.kernel_scope kernel_id kernel_func= kwargs
        RingKernelRuntime.get_loop_info""",
    "ring_kernels.lifecycle": """
        RingKernel kernel_id kernel_func * config= input_type= output_type=
        RingKernel.terminate timeout=
        RingKernel.send message timeout=
        RingKernel.receive timeout=
        KernelContext kernel_id input_queue output_queue
        KernelContext.receive timeout=
        KernelContext.send message
        KernelContext.wait_active
        managed_kernel kernel_id kernel_func kwargs""",
    "ring_kernels.message": """
        RingKernelMessage message_id= priority= correlation_id=
        RingKernelMessage.serialize
        RingKernelMessage.deserialize data
        RingKernelMessage.with_correlation correlation_id
        RingKernelMessage.reply kwargs
        message cls=
        get_message_type name
        deserialize_message data""",
    "ring_kernels.queue": """
        MessageQueue maxsize= * backpressure= use_priority= kernel_id=
        MessageQueue.put message * timeout=
        MessageQueue.get * timeout=
        MessageQueue.put_nowait message
        MessageQueue.get_nowait
        MessageQueue.clear
        MessageQueue.get_stats
        PriorityItem priority sequence message""",
    "ring_kernels.telemetry": """
        RingKernelTelemetry.record_message latency_ns
        RingKernelTelemetry.record_error error
        GPUMonitor
        GPUMonitor.get_gpu_info device_index=
        GPUMonitor.get_utilization device_index=
        GPUMonitor.get_memory_info device_index=
        TelemetryCollector.register_kernel kernel_id""",
    "core.unified_buffer": """
        UnifiedBuffer shape dtype= * pinned=
        UnifiedBuffer.allocate * host= device=
        UnifiedBuffer.copy_from data
        UnifiedBuffer.copy_to data
        UnifiedBuffer.fill value""",
    "core.memory_pool": """
        MemoryPool initial_size_mb= max_size_mb=
        MemoryPool.set_limit size_mb
        get_memory_pool
        configure_memory_pool _initial_size_mb= max_size_mb= enable=
        PoolStatistics used_bytes total_bytes n_free_blocks""",
    "core.accelerator": """
        Accelerator
        Accelerator.get_device device_id
        Accelerator.set_device device_id
        get_accelerator
        cuda_available
        metal_available""",
    "core.orchestrator": """
        KernelLaunchConfig grid_size= block_size= shared_memory_bytes= stream=
        KernelExecution execution_id= kernel_name= config= start_time= end_time= success= error=
        ComputeOrchestrator
        ComputeOrchestrator.register_kernel name kernel_func
        ComputeOrchestrator.launch_kernel kernel config args kwargs
        ComputeOrchestrator.get_execution_history limit= kernel_name=""",
}


def arguments(thing: Any) -> list[str]:
    found: list[str] = []
    for one in inspect.signature(thing).parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        found.append(one.name + ("" if one.default is one.empty else "="))
    return found


@pytest.mark.parametrize("path", ARGUMENTS)
def test_arguments(path: str) -> None:
    module = importlib.import_module(f"{ROOT}.{path}")
    for line in ARGUMENTS[path].strip().splitlines():
        name, *expected = line.split()
        thing: Any = module
        for part in name.split("."):
            thing = getattr(thing, part)
        assert arguments(thing) == expected, name


def test_names_at_the_top() -> None:
    package = importlib.import_module(ROOT)
    assert set(package.__all__) == set(TOP.split())
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("path", ["core", "decorators", "ring_kernels", "backends", "compilation", "exceptions"])
def test_packages_gather_their_names(path: str) -> None:
    module = importlib.import_module(f"{ROOT}.{path}")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_backends_and_compilation() -> None:
    import numpy as np

    from pygpukit.compat.pydotcompute.backends import BackendType, CPUBackend, CUDABackend, MetalBackend
    from pygpukit.compat.pydotcompute.compilation import CompilationOptions, KernelCompiler, compile_kernel
    from pygpukit.compat.pydotcompute.exceptions import BackendNotAvailableError

    backend = CPUBackend()
    assert (backend.backend_type, backend.is_available, backend.device_count) == (BackendType.CPU, True, 1)
    array = backend.copy_to_device(np.arange(3))
    assert backend.execute_kernel(np.negative, (1,), (1,), array, out=array).success
    assert backend.copy_to_host(array).tolist() == [0, -1, -2]
    failed = backend.execute_kernel(np.negative, (1,), (1,))
    assert (failed.success, type(failed.error)) == (False, TypeError)
    with pytest.raises(BackendNotAvailableError, match="metal"):
        MetalBackend()
    if not CUDABackend().is_available:
        with pytest.raises(BackendNotAvailableError, match="cuda"):
            CUDABackend().allocate((2,), np.float32)

    def double(x: float) -> float:
        return 2 * x

    compiler = KernelCompiler(CompilationOptions(device="cpu"))
    made = compiler.compile(double)
    assert compiler.compile(double) is made is compiler.get_cached_kernel(made.source_hash)
    assert (made.name, made.kernel(2.0), compiler.get_cache_stats()) == ("double", 4.0, {"cached_kernels": 1})
    assert compiler.clear_cache() == 1
    assert compile_kernel(double, device="cpu", signature="f8(f8)").signature == "f8(f8)"


PROGRAM = f"""
import asyncio, json, sys, threading
policy = type(asyncio.get_event_loop_policy())
import pygpukit
early = [name for name in sys.modules if "compat" in name and name.startswith("pygpukit")]
import {ROOT}.ring_kernels
print(json.dumps({{
    "early": early,
    "uvloop": "uvloop" in sys.modules,
    "same": type(asyncio.get_event_loop_policy()) is policy,
    "threads": threading.active_count(),
}}))
"""


def test_importing_changes_nothing() -> None:
    shown = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == {"early": [], "uvloop": False, "same": True, "threads": 1}
