"""Memory of a ring: pieces of device memory and of mapped host memory that stay where they are."""

from __future__ import annotations

import ctypes
import math
from collections import defaultdict
from typing import Any

import numpy as np

from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import zeros
from pygpukit.core.memory import empty_pinned

__all__ = ["DeviceMemory", "MappedMemory", "Piece", "power_of_two"]

_CHUNK = 1 << 20
_LINE = 256

# Pieces from this size on are allocations of their own, and can be given back.
_LARGE = 64 << 10


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below `n`."""
    return 1 << max(0, n - 1).bit_length()


class Piece:
    """A part of a device array, and its address."""

    __slots__ = ("address", "array", "nbytes", "offset")

    def __init__(self, array: Any, offset: int, nbytes: int) -> None:
        self.array, self.offset, self.nbytes = array, offset, nbytes
        self.address = int(array.ptr) + offset

    @property
    def is_own(self) -> bool:
        """Is it all of its array?"""
        return bool(self.nbytes == self.array.nbytes)

    def write(self, data: bytes | np.ndarray[Any, Any], at: int = 0) -> None:
        """Copy host bytes into it."""
        source = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
        begin = self.offset + at
        self.array[begin : begin + source.nbytes] = from_numpy(source)

    def read(self, at: int = 0, nbytes: int | None = None) -> np.ndarray[Any, Any]:
        """A copy of its bytes, or of some of them."""
        begin = self.offset + at
        found: np.ndarray[Any, Any] = self.array[begin : begin + (self.nbytes if nbytes is None else nbytes)].to_numpy()
        return found

    def view(self, at: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """A typed view of a part of it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        begin = self.offset + at
        return self.array[begin : begin + nbytes].view(dtype).reshape(shape)


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // _LINE) * _LINE


class DeviceMemory:
    """Pieces of zeroed device memory that are never evicted, aligned to 256 bytes.

    What is given is taken again for pieces of the same size; large ones that nobody took are freed by `trim`.
    """

    def __init__(self) -> None:
        # The ring's kernel uses what is in here.
        self._held: dict[int, Any] = {}
        self._chunk: Any = None
        self._free = 0
        # By size, and whether they are arrays of their own.
        self._spare: defaultdict[tuple[int, bool], list[Piece]] = defaultdict(list)

    @property
    def nbytes(self) -> int:
        """Bytes of all allocations."""
        return sum(int(array.nbytes) for array in self._held.values())

    def take(self, nbytes: int, own: int = _LARGE) -> Piece:
        """A piece; with so many bytes or more it is an array of its own."""
        nbytes = _rounded(nbytes)
        spare = self._spare[nbytes, nbytes >= own]
        if spare:
            piece = spare.pop()
            piece.write(np.zeros(nbytes, np.uint8))
            return piece
        if nbytes >= own:
            return Piece(self._allocate(nbytes), 0, nbytes)
        if self._chunk is None or self._free + nbytes > self._chunk.nbytes:
            self._chunk, self._free = self._allocate(_CHUNK), 0
        piece = Piece(self._chunk, self._free, nbytes)
        self._free += nbytes
        return piece

    def give(self, *pieces: Piece | None) -> None:
        """These are not used any more, here or on the device."""
        for piece in pieces:
            if piece is not None:
                self._spare[piece.nbytes, piece.is_own].append(piece)

    def let_go(self, piece: Piece) -> None:
        """The device does not use a piece any more; if it is an array of its own, who has it keeps it alive."""
        if piece.is_own:
            self._held.pop(piece.address, None)

    def trim(self) -> None:
        """Free what was given and not taken again."""
        for size in [one for one in self._spare if one[1]]:
            for piece in self._spare.pop(size):
                del self._held[piece.address]

    def _allocate(self, nbytes: int) -> Any:
        array = zeros(nbytes, dtype="uint8")
        array.pin()
        self._held[int(array.ptr)] = array
        return array


class MappedMemory:
    """Pieces of zeroed host memory that the device sees at the same address, as `DeviceMemory`."""

    def __init__(self) -> None:
        # By the addresses of their first pieces.
        self._held: dict[int, np.ndarray[Any, Any]] = {}
        self._sizes: dict[int, int] = {}
        self._free = self._end = 0
        self._spare: defaultdict[int, list[int]] = defaultdict(list)

    @property
    def nbytes(self) -> int:
        """Bytes of all allocations."""
        return sum(array.nbytes for array in self._held.values())

    def take(self, nbytes: int) -> int:
        """Address of a piece."""
        nbytes = _rounded(nbytes)
        if self._spare[nbytes]:
            address = self._spare[nbytes].pop()
            ctypes.memset(address, 0, nbytes)
        elif nbytes >= _LARGE:
            address = self._allocate(nbytes)
        else:
            if self._free + nbytes > self._end:
                self._free = self._allocate(_CHUNK)
                self._end = self._free + _CHUNK
            address = self._free
            self._free += nbytes
        self._sizes[address] = nbytes
        return address

    def give(self, *addresses: int) -> None:
        """These pieces are not used any more, here or on the device."""
        for address in addresses:
            self._spare[self._sizes.pop(address)].append(address)

    def trim(self) -> None:
        """Free what was given and not taken again. No ring may be on the device: the driver would wait for it."""
        for nbytes in [one for one in self._spare if one >= _LARGE]:
            for address in self._spare.pop(nbytes):
                del self._held[address]

    def _allocate(self, nbytes: int) -> int:
        array = empty_pinned((nbytes + _LINE,), dtype="uint8")
        array[:] = 0
        address = _rounded(array.ctypes.data)
        self._held[address] = array
        return address
