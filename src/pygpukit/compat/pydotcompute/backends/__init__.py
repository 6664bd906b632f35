"""Where arrays live and kernels run."""

from __future__ import annotations

from pygpukit.compat.pydotcompute.backends.base import Backend, BackendType, KernelExecutionResult
from pygpukit.compat.pydotcompute.backends.cpu import CPUBackend
from pygpukit.compat.pydotcompute.backends.cuda import CUDABackend
from pygpukit.compat.pydotcompute.backends.metal import MetalBackend

__all__ = ["Backend", "BackendType", "CPUBackend", "CUDABackend", "KernelExecutionResult", "MetalBackend"]
