"""PyDotCompute's module paths and names over `pygpukit.ring`: its programs run by changing the name they import.

Importing it changes nothing in the process; no event loop is installed. docs/compat.md says what is different.
"""

from __future__ import annotations

from pygpukit.compat.pydotcompute.core.accelerator import Accelerator
from pygpukit.compat.pydotcompute.core.memory_pool import MemoryPool
from pygpukit.compat.pydotcompute.core.orchestrator import ComputeOrchestrator
from pygpukit.compat.pydotcompute.core.unified_buffer import BufferState, UnifiedBuffer
from pygpukit.compat.pydotcompute.decorators.kernel import gpu_kernel, kernel
from pygpukit.compat.pydotcompute.decorators.ring_kernel import ring_kernel
from pygpukit.compat.pydotcompute.ring_kernels.message import RingKernelMessage, message
from pygpukit.compat.pydotcompute.ring_kernels.runtime import RingKernelRuntime

__version__ = "0.2.0"
"""The version of PyDotCompute whose names these are."""

__all__ = [
    "Accelerator",
    "BufferState",
    "ComputeOrchestrator",
    "MemoryPool",
    "RingKernelMessage",
    "RingKernelRuntime",
    "UnifiedBuffer",
    "__version__",
    "gpu_kernel",
    "kernel",
    "message",
    "ring_kernel",
]
