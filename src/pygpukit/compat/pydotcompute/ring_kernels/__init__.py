"""Actors, their messages, queues and telemetry."""

from __future__ import annotations

from pygpukit.compat.pydotcompute.ring_kernels.fast_queue import (
    FastMessageQueue,
    PriorityBand,
    QueueStats,
    get_priority_band,
)
from pygpukit.compat.pydotcompute.ring_kernels.lifecycle import (
    KernelContext,
    KernelState,
    RingKernel,
    RingKernelConfig,
    managed_kernel,
)
from pygpukit.compat.pydotcompute.ring_kernels.message import (
    RingKernelMessage,
    deserialize_message,
    get_message_type,
    message,
)
from pygpukit.compat.pydotcompute.ring_kernels.queue import BackpressureStrategy, MessageQueue
from pygpukit.compat.pydotcompute.ring_kernels.runtime import (
    RingKernelRuntime,
    get_registered_kernel,
    register_ring_kernel,
)
from pygpukit.compat.pydotcompute.ring_kernels.telemetry import (
    GPUInfo,
    GPUMonitor,
    RingKernelTelemetry,
    TelemetryCollector,
)

__all__ = [
    "BackpressureStrategy",
    "FastMessageQueue",
    "GPUInfo",
    "GPUMonitor",
    "KernelContext",
    "KernelState",
    "MessageQueue",
    "PriorityBand",
    "QueueStats",
    "RingKernel",
    "RingKernelConfig",
    "RingKernelMessage",
    "RingKernelRuntime",
    "RingKernelTelemetry",
    "TelemetryCollector",
    "deserialize_message",
    "get_message_type",
    "get_priority_band",
    "get_registered_kernel",
    "managed_kernel",
    "message",
    "register_ring_kernel",
]
