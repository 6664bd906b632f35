"""Ring kernels: actors with typed mailboxes: coroutines, threads, and handlers in a persistent kernel on the device."""

from __future__ import annotations

from pygpukit.ring.accelerator import Accelerator, GPUInfo, GPUMonitor
from pygpukit.ring.buffer import BufferState, UnifiedBuffer
from pygpukit.ring.client import RingClient
from pygpukit.ring.context import ActorExit, KernelContext
from pygpukit.ring.kernel import RingKernel, ring_kernel
from pygpukit.ring.launchable import LaunchableKernel, cuda_source, gpu_kernel, kernel
from pygpukit.ring.message import Message, message
from pygpukit.ring.orchestrator import ComputeOrchestrator, KernelExecution, KernelLaunchConfig
from pygpukit.ring.post import DeadLetter
from pygpukit.ring.runtime import RingKernelRuntime
from pygpukit.ring.states import Backpressure, KernelState
from pygpukit.ring.telemetry import KernelTelemetry, Latency

__all__ = [
    "Accelerator",
    "ActorExit",
    "Backpressure",
    "BufferState",
    "ComputeOrchestrator",
    "DeadLetter",
    "GPUInfo",
    "GPUMonitor",
    "KernelContext",
    "KernelExecution",
    "KernelLaunchConfig",
    "KernelState",
    "KernelTelemetry",
    "Latency",
    "LaunchableKernel",
    "Message",
    "RingClient",
    "RingKernel",
    "RingKernelRuntime",
    "UnifiedBuffer",
    "cuda_source",
    "gpu_kernel",
    "kernel",
    "message",
    "ring_kernel",
]
