"""`CPUBackend`: NumPy arrays and Python functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pygpukit.compat.pydotcompute.backends.base import Backend, BackendType

__all__ = ["CPUBackend", "matrix_multiply_cpu", "vector_add_cpu"]


class CPUBackend(Backend):
    """The host itself."""

    @property
    def backend_type(self) -> BackendType:
        """Its kind."""
        return BackendType.CPU

    @property
    def is_available(self) -> bool:
        """Always."""
        return True

    @property
    def device_count(self) -> int:
        """One."""
        return 1

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array without content."""
        return np.empty(shape, dtype)

    def allocate_zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros."""
        return np.zeros(shape, dtype)

    def free(self, array: Any) -> None:
        """Python frees it."""

    def copy_to_device(self, host_array: Any) -> Any:
        """A copy."""
        return np.array(host_array)

    def copy_to_host(self, device_array: Any) -> Any:
        """A copy."""
        return np.array(device_array)

    def synchronize(self) -> None:
        """Functions have ended when they return."""

    def compile_kernel(self, func: Callable[..., Any], signature: str | None = None) -> Callable[..., Any]:
        """The function itself."""
        return func

    def parallel_for(self, start: int, end: int, func: Callable[[int], None]) -> None:
        """Call a function for each int from `start` to `end`, in order."""
        for index in range(start, end):
            func(index)


def vector_add_cpu(a: Any, b: Any) -> Any:
    """The sum of two arrays."""
    return np.add(a, b)


def matrix_multiply_cpu(a: Any, b: Any) -> Any:
    """The product of two matrices."""
    return np.matmul(a, b)
