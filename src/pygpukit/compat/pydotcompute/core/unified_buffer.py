"""`UnifiedBuffer` with PyDotCompute's states and errors, over the ring's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from pygpukit import ring
from pygpukit.compat.pydotcompute.core.accelerator import is_on_gpu
from pygpukit.compat.pydotcompute.exceptions import BufferNotAllocatedError, BufferSyncError, MetalError
from pygpukit.dtypes import to_numpy_dtype
from pygpukit.errors import GPUKitError

__all__ = ["BufferState", "UnifiedBuffer"]

T = TypeVar("T")


class BufferState(Enum):
    """Which side of a buffer has the content."""

    UNINITIALIZED = 1
    HOST_ONLY = 2
    DEVICE_ONLY = 3
    SYNCHRONIZED = 4
    HOST_DIRTY = 5
    DEVICE_DIRTY = 6


class UnifiedBuffer(ring.UnifiedBuffer, Generic[T]):
    """An array with a side on the host and a side on the device.

    Without a GPU `device` is the array of the host, as in PyDotCompute; kernels of this package get an array of the CPU
    device all the same.

    Parameters
    ----------
    shape : int or tuple of int
        Its shape.
    dtype : DTypeLike
        Type of the elements; float32 by default.
    pinned : bool
        Whether the host's side is page-locked.

    Examples
    --------
    >>> buffer = UnifiedBuffer(4).allocate()
    >>> buffer[1:3] = 2.0
    >>> buffer.state.name, buffer.host.sum()
    ('HOST_DIRTY', np.float32(4.0))
    """

    def __init__(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32, *, pinned: bool = False) -> None:
        super().__init__(shape, np.dtype(dtype), pinned=pinned)
        self._cuda_available = is_on_gpu()
        self._shown: BufferState | None = None

    @property
    def dtype(self) -> Any:
        """NumPy's type of the elements."""
        return np.dtype(to_numpy_dtype(self._dtype))

    @property
    def state(self) -> Any:
        """Which side has the content."""
        return BufferState[self._state.name] if self._shown is None else self._shown

    def allocate(self, *, host: bool = True, device: bool = True) -> UnifiedBuffer[T]:
        """Make the memory of one or both sides; without a GPU that of the host."""
        wants_device = device and self._cuda_available
        super().allocate(host=host or not wants_device, device=wants_device)
        return self

    @property
    def host(self) -> Any:
        """The host's side, up to date."""
        self._check()
        return ring.UnifiedBuffer.host.__get__(self)

    @property
    def device(self) -> Any:
        """The device's side, up to date; without a GPU the host's."""
        return self._for_kernel() if self._cuda_available else self.host

    @property
    def metal(self) -> Any:
        """There is no Metal here."""
        self._check()
        raise MetalError("Metal cannot be used: this runtime has CUDA and a CPU device")

    def mark_host_dirty(self) -> None:
        """The host's side was written; what was written on the device's before is given up."""
        self._check()
        self._written(ring.BufferState.HOST_DIRTY)

    def mark_device_dirty(self) -> None:
        """The device's side was written; what was written on the host's before is given up."""
        self._check()
        if self._cuda_available:
            self._written(ring.BufferState.DEVICE_DIRTY)
        else:
            # What `device` gave is the host's side.
            self._written(ring.BufferState.HOST_DIRTY)
            self._shown = BufferState.DEVICE_DIRTY

    def mark_metal_dirty(self) -> None:
        """As `mark_device_dirty`."""
        self.mark_device_dirty()

    def synchronize(self) -> None:
        """Make both sides the same; nothing where there is no memory yet."""
        if self.is_allocated:
            self.ensure_on_device()
            self.ensure_on_host()

    def ensure_on_device(self) -> Awaitable[None]:
        """Bring the device's side up to date. It is when this returns; ``await`` may stand before it."""
        self._check()
        return self._copied("to the device", super().ensure_on_device)

    def ensure_on_host(self) -> Awaitable[None]:
        """Bring the host's side up to date. It is when this returns; ``await`` may stand before it."""
        self._check()
        return self._copied("to the host", super().ensure_on_host)

    def copy_from(self, data: Any) -> None:
        """Write an array to the host's side."""
        if not self.is_allocated:
            self.allocate()
        super().copy_from(data)
        self._written(ring.BufferState.HOST_DIRTY)

    def copy_to(self, data: Any) -> None:
        """Copy the content to an array."""
        data[...] = self.host

    def zeros(self) -> UnifiedBuffer[T]:
        """Fill the buffer with zeros."""
        return self.fill(0)

    def fill(self, value: Any) -> UnifiedBuffer[T]:
        """Fill the host's side."""
        self.copy_from(value)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self.host[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = value
        self.mark_host_dirty()

    def __repr__(self) -> str:
        return f"UnifiedBuffer(shape={self.shape}, dtype={self.dtype}, state={self.state.name})"

    def _check(self) -> None:
        if not self.is_allocated:
            raise BufferNotAllocatedError

    def _for_kernel(self) -> Any:
        self._check()
        return ring.UnifiedBuffer.device.__get__(self)

    def _written_by_kernel(self) -> None:
        self._written(ring.BufferState.DEVICE_DIRTY)

    def _written(self, state: ring.BufferState) -> None:
        # The side that is copied from later must have memory.
        if state is ring.BufferState.HOST_DIRTY and self._host is None:
            self.ensure_on_host()
        if state is ring.BufferState.DEVICE_DIRTY and self._device is None:
            self.ensure_on_device()
        self._state, self._shown = state, None

    def _copied(self, direction: str, copy: Callable[[], Awaitable[None]]) -> Awaitable[None]:
        try:
            done = copy()
        except GPUKitError as error:
            raise BufferSyncError(direction, error) from error
        self._shown = None
        return done
