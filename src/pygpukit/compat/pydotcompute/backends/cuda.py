"""`CUDABackend`: arrays and kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit import ring
from pygpukit.compat.pydotcompute.backends.base import Backend, BackendType
from pygpukit.compat.pydotcompute.core.accelerator import get_accelerator
from pygpukit.compat.pydotcompute.decorators.kernel import DecoratedKernel, gpu_kernel
from pygpukit.compat.pydotcompute.exceptions import BackendNotAvailableError
from pygpukit.core.device import device_count, is_cuda_available

__all__ = ["CUDABackend"]


class CUDABackend(Backend):
    """One GPU.

    Parameters
    ----------
    device_id : int
        Which.
    """

    def __init__(self, device_id: int = 0) -> None:
        self._device_id = device_id
        if is_cuda_available():
            self.set_device(device_id)

    @property
    def backend_type(self) -> BackendType:
        """Its kind."""
        return BackendType.CUDA

    @property
    def is_available(self) -> bool:
        """Is there a usable GPU?"""
        return is_cuda_available()

    @property
    def device_count(self) -> int:
        """Number of GPUs."""
        return device_count() if self.is_available else 0

    @property
    def device_id(self) -> int:
        """Number of the GPU."""
        return self._device_id

    def set_device(self, device_id: int) -> None:
        """Work on another GPU in this thread."""
        self._check()
        get_accelerator().set_device(device_id)
        self._device_id = device_id

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array without content."""
        self._check()
        return gp.empty(shape, np.dtype(dtype))

    def allocate_zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros."""
        self._check()
        return gp.zeros(shape, np.dtype(dtype))

    def free(self, array: Any) -> None:
        """Its memory is free when no name is left for it."""

    def copy_to_device(self, host_array: Any) -> Any:
        """A copy on the GPU."""
        self._check()
        return gp.from_numpy(host_array)

    def copy_to_host(self, device_array: Any) -> Any:
        """A copy as a NumPy array."""
        return device_array.to_numpy()

    def synchronize(self) -> None:
        """Wait for everything the GPU was given."""
        if self.is_available:
            get_accelerator().synchronize()

    def compile_kernel(self, func: Callable[..., Any], signature: str | None = None) -> Callable[..., Any]:
        """A kernel of a function, as `gpu_kernel` makes it."""
        self._check()
        made: Callable[..., Any] = gpu_kernel(signature=signature)(func)
        return made

    def get_memory_info(self) -> dict[str, int]:
        """Bytes of the GPU: ``free``, ``total`` and ``used``."""
        self._check()
        return get_accelerator().get_memory_info()

    def create_stream(self) -> Any:
        """A stream."""
        self._check()
        return gp.Stream()

    def _launch(self, kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], args: Any, kwargs: Any) -> None:
        self._check()
        if isinstance(kernel, DecoratedKernel | ring.LaunchableKernel):
            kernel[grid, block](*args, **kwargs)
        else:
            kernel(*args, **kwargs)

    def _check(self) -> None:
        if not self.is_available:
            raise BackendNotAvailableError("cuda", "this machine has no usable GPU; see 'pygpukit info'")
