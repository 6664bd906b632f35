"""`UnifiedBuffer`: one array on the host and on the device, copied when the other side is behind."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Sequence
from enum import Enum
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import dimensions, empty
from pygpukit.core.memory import empty_pinned
from pygpukit.core.transfer import copy_to_device, copy_to_host
from pygpukit.dtypes import DataType, DTypeLike, dtype, float32, to_numpy_dtype
from pygpukit.errors import RingError, ShapeError

__all__ = ["BufferState", "UnifiedBuffer"]


class BufferState(Enum):
    """Which side of a buffer has the content."""

    UNINITIALIZED = "uninitialized"
    """There is no memory yet."""
    HOST_ONLY = "host_only"
    """There is memory on the host alone."""
    DEVICE_ONLY = "device_only"
    """There is memory on the device alone."""
    SYNCHRONIZED = "synchronized"
    """Both sides have the same."""
    HOST_DIRTY = "host_dirty"
    """The host has something newer."""
    DEVICE_DIRTY = "device_dirty"
    """The device has something newer."""


class _Done(Coroutine[None, None, None]):
    """A coroutine of a copy that has already ended: awaiting it is allowed, and not needed."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()

    def send(self, value: None) -> None:
        raise StopIteration

    def throw(self, *error: Any) -> None:
        raise error[0] if isinstance(error[0], BaseException) else error[0]()

    def close(self) -> None:
        """Nothing is open."""


_DONE = _Done()


class UnifiedBuffer:
    """An array with a side on the host and a side on the device.

    `host` and `device` bring their side up to date first. Nobody sees what is written through them: say so with
    `mark_host_dirty` and `mark_device_dirty`. Kernels of `kernel` and `cuda_source` take buffers, and mark those that
    they may write.

    Parameters
    ----------
    shape : int or sequence of int
        Its shape.
    dtype : DTypeLike
        Type of the elements; float32 by default.
    pinned : bool
        Whether the host's side is page-locked, which makes copies faster.

    Examples
    --------
    >>> buffer = UnifiedBuffer(4)
    >>> buffer.host[:] = [1, 2, 3, 4]
    >>> buffer.mark_host_dirty()
    >>> gp.sum(buffer.device).item()
    10.0
    >>> buffer.state
    <BufferState.SYNCHRONIZED: 'synchronized'>
    """

    def __init__(self, shape: int | Sequence[int], dtype: DTypeLike = float32, *, pinned: bool = True) -> None:
        self._shape = tuple(dimensions(shape))
        if any(size < 0 for size in self._shape):
            raise ShapeError(f"shape must be ints from 0, not {shape!r}")
        self._dtype = _dtype(dtype)
        self._pinned = pinned
        self._host: np.ndarray[Any, Any] | None = None
        self._device: GPUArray | None = None
        self._state = BufferState.UNINITIALIZED

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any], *, pinned: bool = True) -> UnifiedBuffer:
        """A buffer with a copy of an array, on the host."""
        made = cls(array.shape, array.dtype, pinned=pinned)
        made.copy_from(array)
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self._shape

    @property
    def dtype(self) -> DataType:
        """Type of the elements."""
        return self._dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of one side."""
        return self.size * self._dtype.itemsize

    @property
    def state(self) -> BufferState:
        """Which side has the content."""
        return self._state

    @property
    def is_allocated(self) -> bool:
        """Is there memory on either side?"""
        return self._state is not BufferState.UNINITIALIZED

    def allocate(self, *, host: bool = True, device: bool = True) -> UnifiedBuffer:
        """Make the memory of one or both sides, filled with zeros where the buffer had none.

        Returns
        -------
        UnifiedBuffer
            This one.
        """
        if not (host or device):
            raise RingError("allocate() makes memory on the host, on the device, or on both")
        if host and self._host is None:
            self.ensure_on_host() if self._device is not None else self._make_host()
        if device and self._device is None:
            if self._host is not None:
                self.ensure_on_device()
            else:
                self._device = empty(self._shape, self._dtype).fill(0)
                self._state = BufferState.DEVICE_ONLY
        return self

    @property
    def host(self) -> np.ndarray[Any, Any]:
        """The host's side, up to date. After writing to it call `mark_host_dirty`."""
        self.ensure_on_host()
        assert self._host is not None
        return self._host

    @property
    def device(self) -> GPUArray:
        """The device's side, up to date. After writing to it call `mark_device_dirty`."""
        self.ensure_on_device()
        assert self._device is not None
        return self._device

    def mark_host_dirty(self) -> None:
        """The host's side was written.

        Raises
        ------
        RingError
            If the host's side has no memory, or the device's side was written too: one of them would be lost.
        """
        self._mark("host", self._host is not None, BufferState.DEVICE_DIRTY)
        self._state = BufferState.HOST_ONLY if self._device is None else BufferState.HOST_DIRTY

    def mark_device_dirty(self) -> None:
        """The device's side was written.

        Raises
        ------
        RingError
            If the device's side has no memory, or the host's side was written too: one of them would be lost.
        """
        self._mark("device", self._device is not None, BufferState.HOST_DIRTY)
        self._state = BufferState.DEVICE_ONLY if self._host is None else BufferState.DEVICE_DIRTY

    def ensure_on_device(self) -> Awaitable[None]:
        """Bring the device's side up to date. It is when this returns; ``await`` may stand before it."""
        if self._state in (BufferState.SYNCHRONIZED, BufferState.DEVICE_ONLY, BufferState.DEVICE_DIRTY):
            return _DONE
        if self._host is None:
            self._make_host()
        assert self._host is not None
        if self._device is None:
            self._device = empty(self._shape, self._dtype)
        copy_to_device(self._host, self._device).wait()
        self._state = BufferState.SYNCHRONIZED
        return _DONE

    def ensure_on_host(self) -> Awaitable[None]:
        """Bring the host's side up to date, after the device where needed; ``await`` may stand before it."""
        if self._state in (BufferState.SYNCHRONIZED, BufferState.HOST_ONLY, BufferState.HOST_DIRTY):
            return _DONE
        if self._device is None:
            self._make_host()
            return _DONE
        if self._host is None:
            self._host = self._host_memory()
        copy_to_host(self._device, self._host).wait()
        self._state = BufferState.SYNCHRONIZED
        return _DONE

    def synchronize(self) -> None:
        """Make both sides the same."""
        self.ensure_on_device()
        self.ensure_on_host()

    def copy_from(self, data: Any) -> None:
        """Write an array to the host's side; whatever the buffer held is gone."""
        if self._host is None:
            self._host = self._host_memory()
        self._host[...] = data
        self._state = BufferState.HOST_ONLY if self._device is None else BufferState.HOST_DIRTY

    def copy_to(self, out: np.ndarray[Any, Any]) -> None:
        """Copy the content to an array."""
        out[...] = self.host

    def fill(self, value: complex) -> UnifiedBuffer:
        """Fill the buffer, on the device when it has memory there."""
        if self._device is not None:
            self._device.fill(value)
            self._state = BufferState.DEVICE_ONLY if self._host is None else BufferState.DEVICE_DIRTY
        else:
            self.copy_from(value)
        return self

    def zeros(self) -> UnifiedBuffer:
        """Fill the buffer with zeros."""
        return self.fill(0)

    def close(self) -> None:
        """Let the memory go."""
        self._host = self._device = None
        self._state = BufferState.UNINITIALIZED

    def free(self) -> None:
        """Let the memory go."""
        self.close()

    def __enter__(self) -> UnifiedBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a buffer without axes has no length")
        return self._shape[0]

    def __repr__(self) -> str:
        return f"UnifiedBuffer(shape={self._shape}, dtype={self._dtype!r}, state={self._state.name})"

    def _for_kernel(self) -> GPUArray:
        """The array that a kernel gets."""
        return self.device

    def _written_by_kernel(self) -> None:
        """A kernel may have written the array it got."""
        self.mark_device_dirty()

    def _host_memory(self) -> np.ndarray[Any, Any]:
        if self._pinned:
            return empty_pinned(self._shape, self._dtype)
        return np.empty(self._shape, to_numpy_dtype(self._dtype))

    def _make_host(self) -> None:
        self._host = self._host_memory()
        self._host[...] = 0
        self._state = BufferState.HOST_ONLY

    def _mark(self, side: str, has_memory: bool, conflict: BufferState) -> None:
        if not has_memory:
            raise RingError(f"the {side}'s side of the buffer has no memory; call allocate() or use .{side} first")
        if self._state is conflict:
            raise RingError(
                f"both sides of the buffer were written: it is {conflict.name}, and one of them would be lost; call "
                "synchronize() between the two"
            )


def _dtype(given: DTypeLike) -> DataType:
    return dtype(given)
