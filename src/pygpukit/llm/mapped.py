"""Files mapped into memory, of which every range is checked before it is read, and the tensors in them."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from pygpukit.errors import ModelFileError

__all__ = ["MappedFile", "TensorFile", "can_be_shaped", "file_error"]

# What NumPy counts elements with, with room for their bytes.
_MOST_ELEMENTS = 1 << 58


def can_be_shaped(shape: Sequence[int]) -> bool:
    """Whether an array can have these sizes: also one of no elements cannot have any others beside the 0.

    Examples
    --------
    >>> can_be_shaped([0, 4]), can_be_shaped([0, 1 << 64])
    (True, False)
    """
    return math.prod(max(n, 1) for n in shape) <= _MOST_ELEMENTS


def file_error(path: str, reason: str, offset: int | None = None) -> ModelFileError:
    """Return the error that says what is wrong with a file, and where.

    Examples
    --------
    >>> print(file_error("m.gguf", "the file ends inside of a text", 24))
    m.gguf, byte 24: the file ends inside of a text
    """
    where = path if offset is None else f"{path}, byte {offset}"
    return ModelFileError(f"{where}: {reason}", path=path, offset=offset)


class MappedFile:
    """The bytes of a file, read-only.

    Parameters
    ----------
    path : str or path-like

    Raises
    ------
    FileNotFoundError
        If there is none.
    ModelFileError
        If it is empty or no regular file.

    Examples
    --------
    >>> MappedFile(__file__).read(0, 3)
    b'\"\"\"'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        # Without O_NONBLOCK, opening a pipe that nobody writes to waits for ever.
        descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            self.size = os.fstat(descriptor).st_size
            if self.size == 0:
                raise self.fail("the file is empty, or no regular file", 0)
            try:
                self._map: mmap.mmap | None = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise self.fail(f"the file cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)

    def fail(self, reason: str, offset: int | None = None) -> ModelFileError:
        """Return the error that says what is wrong with the file, and where."""
        return file_error(self.path, reason, offset)

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of some bytes; the error names what is beyond the end."""
        self._check(offset, size)
        return self._open[offset : offset + size]

    def array(self, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a read-only view of some bytes, which stays valid when the file is closed."""
        self._check(offset, size)
        return np.frombuffer(self._open, np.uint8, size, offset)

    def close(self) -> None:
        """Give up the mapping; arrays that view it keep it."""
        self._map = None

    @property
    def _open(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        return self._map

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or size > self.size - offset:
            raise self.fail(f"{size} bytes are wanted here, and the file has {self.size}: it is cut off", offset)


class _Placed(Protocol):
    """Where a tensor lies."""

    @property
    def offset(self) -> int:
        """Of its first byte in the file."""

    @property
    def nbytes(self) -> int:
        """How many there are."""

    @property
    def file(self) -> MappedFile:
        """Which file has them."""


_Info = TypeVar("_Info", bound=_Placed)


class TensorFile(Generic[_Info]):
    """What files of tensors have in common, whatever their format."""

    path: str
    _files: list[MappedFile]
    _tensors: dict[str, _Info]

    @property
    def tensor_names(self) -> list[str]:
        """Names in the order of the file."""
        return list(self._tensors)

    @property
    def num_tensors(self) -> int:
        """How many tensors there are."""
        return len(self._tensors)

    @property
    def file_size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)

    def tensor_info(self, name: str) -> _Info:
        """Return shape, type and place of a tensor."""
        try:
            return self._tensors[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor {name!r}") from None

    def tensor_view(self, name: str) -> np.ndarray[Any, Any]:
        """Return the bytes of a tensor as they are stored, a read-only view of the file."""
        info = self.tensor_info(name)
        return info.file.array(info.offset, info.nbytes)

    def tensor_bytes(self, name: str) -> bytes:
        """Return a copy of the bytes of a tensor as they are stored."""
        info = self.tensor_info(name)
        return info.file.read(info.offset, info.nbytes)

    def tensor_data_ptr(self, name: str) -> tuple[int, int]:
        """Return address and bytes of a tensor in the mapped file, valid until `close`."""
        info = self.tensor_info(name)
        return int(info.file.array(info.offset, info.nbytes).ctypes.data), info.nbytes

    def close(self) -> None:
        """Give up the mapping; arrays that view it keep it."""
        for file in self._files:
            file.close()

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {len(self)} tensors, {self.file_size} bytes>"
