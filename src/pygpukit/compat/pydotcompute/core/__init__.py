"""Devices, memory, buffers and the orchestrator."""

from __future__ import annotations

from pygpukit.compat.pydotcompute.core.accelerator import Accelerator
from pygpukit.compat.pydotcompute.core.memory_pool import MemoryPool
from pygpukit.compat.pydotcompute.core.orchestrator import ComputeOrchestrator
from pygpukit.compat.pydotcompute.core.unified_buffer import BufferState, UnifiedBuffer

__all__ = ["Accelerator", "BufferState", "ComputeOrchestrator", "MemoryPool", "UnifiedBuffer"]
