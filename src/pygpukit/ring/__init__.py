"""Ring kernels: actors with typed mailboxes, as coroutines, threads and, later, persistent kernels on the device."""

from __future__ import annotations

from pygpukit.ring.client import RingClient
from pygpukit.ring.context import ActorExit, KernelContext
from pygpukit.ring.kernel import RingKernel, ring_kernel
from pygpukit.ring.message import Message, message
from pygpukit.ring.post import DeadLetter
from pygpukit.ring.runtime import RingKernelRuntime
from pygpukit.ring.states import Backpressure, KernelState
from pygpukit.ring.telemetry import KernelTelemetry, Latency

__all__ = [
    "ActorExit",
    "Backpressure",
    "DeadLetter",
    "KernelContext",
    "KernelState",
    "KernelTelemetry",
    "Latency",
    "Message",
    "RingClient",
    "RingKernel",
    "RingKernelRuntime",
    "message",
    "ring_kernel",
]
