"""What a backend offers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Backend", "BackendType", "KernelExecutionResult"]


class BackendType(Enum):
    """Kinds of backends."""

    CPU = 1
    CUDA = 2
    METAL = 3


@dataclass
class KernelExecutionResult:
    """What came of one launch."""

    success: bool
    execution_time_ms: float
    error: Exception | None = None


class Backend(ABC):
    """Memory and kernels of one kind of device."""

    @property
    @abstractmethod
    def backend_type(self) -> BackendType:
        """Its kind."""

    @property
    @abstractmethod
    def is_available(self) -> bool:
        """Can it be used on this machine?"""

    @property
    @abstractmethod
    def device_count(self) -> int:
        """Number of its devices."""

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array without content."""

    @abstractmethod
    def free(self, array: Any) -> None:
        """An array is not used any more."""

    @abstractmethod
    def copy_to_device(self, host_array: Any) -> Any:
        """A copy of a NumPy array on the device."""

    @abstractmethod
    def copy_to_host(self, device_array: Any) -> Any:
        """A copy of a device's array as a NumPy array."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything the device was given."""

    @abstractmethod
    def compile_kernel(self, func: Callable[..., Any], signature: str | None = None) -> Callable[..., Any]:
        """What is launched for a function."""

    def execute_kernel(
        self,
        kernel: Callable[..., Any],
        grid_size: tuple[int, ...],
        block_size: tuple[int, ...],
        *args: Any,
        **kwargs: Any,
    ) -> KernelExecutionResult:
        """Launch a kernel and wait for it; what it raises is in the result."""
        start = time.perf_counter()
        error: Exception | None = None
        try:
            self._launch(kernel, grid_size, block_size, args, kwargs)
            self.synchronize()
        except Exception as raised:
            error = raised
        return KernelExecutionResult(error is None, (time.perf_counter() - start) * 1e3, error)

    def _launch(self, kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], args: Any, kwargs: Any) -> None:
        kernel(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(available={self.is_available}, devices={self.device_count})"
