"""Memory of a ring: pieces of device memory and of mapped host memory that stay where they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import zeros
from pygpukit.core.memory import empty_pinned

__all__ = ["DeviceMemory", "MappedMemory", "Piece", "power_of_two"]

_CHUNK = 1 << 20
_LINE = 256


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below `n`."""
    return 1 << max(0, n - 1).bit_length()


class Piece:
    """A part of a device array, and its address."""

    __slots__ = ("address", "array", "nbytes", "offset")

    def __init__(self, array: Any, offset: int, nbytes: int) -> None:
        self.array, self.offset, self.nbytes = array, offset, nbytes
        self.address = int(array.ptr) + offset

    def write(self, data: bytes | np.ndarray[Any, Any], at: int = 0) -> None:
        """Copy host bytes into it."""
        source = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
        begin = self.offset + at
        self.array[begin : begin + source.nbytes] = from_numpy(source)

    def read(self) -> np.ndarray[Any, Any]:
        """A copy of its bytes."""
        found: np.ndarray[Any, Any] = self.array[self.offset : self.offset + self.nbytes].to_numpy()
        return found

    def view(self, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """A typed view of a part of it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        begin = self.offset + at
        return self.array[begin : begin + nbytes].view(dtype).reshape(shape)


class DeviceMemory:
    """Pieces of zeroed device memory that are never evicted."""

    def __init__(self) -> None:
        self._chunks: list[Any] = []
        self._free = 0

    def take(self, nbytes: int) -> Piece:
        """A piece, aligned to 256 bytes."""
        nbytes = -(-max(nbytes, 1) // _LINE) * _LINE
        if not self._chunks or self._free + nbytes > self._chunks[-1].nbytes:
            chunk = zeros(max(_CHUNK, nbytes), dtype="uint8")
            chunk.pin()
            self._chunks.append(chunk)
            self._free = 0
        piece = Piece(self._chunks[-1], self._free, nbytes)
        self._free += nbytes
        return piece


class MappedMemory:
    """Pieces of zeroed host memory that the device sees at the same address."""

    def __init__(self) -> None:
        self.chunks: list[np.ndarray[Any, Any]] = []
        self._free = 0

    def take(self, nbytes: int) -> int:
        """Address of a piece, aligned to 256 bytes."""
        nbytes = -(-max(nbytes, 1) // _LINE) * _LINE
        if not self.chunks or self._free + nbytes > self.chunks[-1].nbytes:
            chunk = empty_pinned((max(_CHUNK, nbytes),), dtype="uint8")
            chunk[:] = 0
            self.chunks.append(chunk)
            self._free = -chunk.ctypes.data % _LINE
            if self._free + nbytes > chunk.nbytes:
                return self.take(nbytes + _LINE)
        address = self.chunks[-1].ctypes.data + self._free
        self._free += nbytes
        return int(address)
