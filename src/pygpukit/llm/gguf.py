"""GGUF files, version 3: metadata, a tokenizer and tensors in one file, read by mapping it.

The file is hostile until checked: every count, length and offset is compared with the bytes that are there before it
is used, and a tensor's elements are decoded when they are asked for.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pygpukit.llm.blocks import TYPES, BlockType, decode
from pygpukit.llm.mapped import MappedFile, TensorFile, can_be_shaped

__all__ = ["GGUFFile", "GGUFTensor"]

# Of NumPy.
Array = Any

_MAGIC = b"GGUF"
_DIMENSIONS = 4
_LONGEST_NAME = 1 << 16
# What llama.cpp reads at most in one text or one array.
_LONGEST = 1 << 30
# A key, its type and the shortest value; a name, its dimensions, one size, a type and an offset.
_LEAST_KEY, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _TEXT, _ARRAY = 7, 8, 9
_SPLIT = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$", re.DOTALL)


class GGUFTensor(NamedTuple):
    """Where a tensor lies; `shape` is as NumPy has it, the last axis contiguous."""

    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int
    nbytes: int
    file: MappedFile

    @property
    def dtype(self) -> str:
        """Name of the element type, such as ``"Q4_1"``."""
        return self.kind.name

    @property
    def dtype_name(self) -> str:
        """The same as `dtype`."""
        return self.kind.name

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def numel(self) -> int:
        """The same as `size`."""
        return self.size

    @property
    def size_bytes(self) -> int:
        """The same as `nbytes`."""
        return self.nbytes


class GGUFFile(TensorFile[GGUFTensor]):
    """A model in GGUF format.

    Parameters
    ----------
    path : str or path-like
        Of a model in several files the first: the others are found beside it.

    Attributes
    ----------
    metadata : mapping
        What the file says of the model, by key; arrays of numbers are NumPy's, of texts lists.

    Raises
    ------
    ModelFileError
        With offset and reason, if the file is cut off, damaged or of another kind.

    Examples
    --------
    >>> import tempfile
    >>> from pygpukit.llm.testing import tiny_gguf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = GGUFFile(tiny_gguf(f"{folder}/tiny.gguf"))
    ...     file.metadata["general.architecture"], "output_norm.weight" in file
    ('llama', True)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        first = _Part(self.path)
        self.metadata: Mapping[str, Any] = MappingProxyType(first.metadata)
        parts = [first, *_others(first)]
        self._files = [part.file for part in parts]
        self._tensors = {}
        for part in parts:
            for tensor in part.tensors:
                if tensor.name in self._tensors:
                    raise part.file.fail(f"tensor {tensor.name!r} is there twice")
                self._tensors[tensor.name] = tensor
        expected = self.metadata.get("split.tensors.count")
        if len(parts) > 1 and expected is not None and expected != len(self._tensors):
            raise first.file.fail(f"{expected} tensors are announced, and the files have {len(self._tensors)}")

    def tensor_as_f32(self, name: str) -> Array:
        """Return the elements of a tensor in float32, decoded if they are quantised."""
        info = self.tensor_info(name)
        return decode(info.kind, self.tensor_view(name)).reshape(info.shape)


def _others(first: _Part) -> list[_Part]:
    """The other files of a model that is in several."""
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return []
    name = _SPLIT.match(os.path.basename(first.file.path))
    number = first.metadata.get("split.no", 0)
    if name is None or int(name[3]) != count or int(name[2]) != number + 1:
        raise first.file.fail(
            f"this is file {number} of a model in {count} files, which are named like model-00001-of-{count:05}.gguf"
        )
    if number != 0:
        raise first.file.fail(
            f"this is file {number + 1} of {count}: open the first, {name[1]}-00001-of-{name[3]}.gguf"
        )
    folder = Path(first.file.path).parent
    parts = []
    for index in range(2, count + 1):
        path = folder / f"{name[1]}-{index:05}-of-{count:05}.gguf"
        if not path.exists():
            raise first.file.fail(f"the model is in {count} files, and {path.name} is not there")
        part = _Part(str(path))
        if part.metadata.get("split.count") != count or part.metadata.get("split.no") != index - 1:
            raise part.file.fail(f"this is not file {index} of {count} by its own account")
        parts.append(part)
    return parts


class _Part:
    """One file: its metadata and where its tensors lie."""

    def __init__(self, path: str) -> None:
        self.file = MappedFile(path)
        self._data = self.file.array(0, self.file.size).data
        self._at = 0
        if bytes(self._data[:4]) != _MAGIC:
            raise self.file.fail(f"the file begins with {bytes(self._data[:4])!r}, and GGUF with {_MAGIC!r}", 0)
        self._at = 4
        version = self._number("<I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "it is of a big-endian machine" if swapped in (2, 3) else "versions 2 and 3 are known"
            raise self.file.fail(f"the version is {version}: {why}", 4)
        tensors = self._count("<Q", "tensors", _LEAST_TENSOR)
        keys = self._count("<Q", "keys", _LEAST_KEY)
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            here = self._at
            key = self._text("a key", _LONGEST_NAME)
            if key in self.metadata:
                raise self.file.fail(f"key {key!r} is there twice", here)
            self.metadata[key] = self._value(key)
        self._alignment = self.metadata.get("general.alignment", 32)
        a = self._alignment
        if type(a) is not int or a < 1 or a & (a - 1) or a > 1 << 30:
            raise self.file.fail(f"general.alignment is {a!r}, and must be a power of two")
        found = [self._tensor() for _ in range(tensors)]
        start = -(-self._at // a) * a
        self.tensors = [self._placed(tensor, start) for tensor in found]
        self._refuse_overlaps()
        # The file is read; what was parsed from is not kept.
        del self._data

    def _take(self, size: int, what: str) -> memoryview:
        if size > self.file.size - self._at:
            raise self.file.fail(
                f"{what} has {size} bytes, and {self.file.size - self._at} are left: the file is cut off or damaged",
                self._at,
            )
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout), "a number"))[0])

    def _count(self, layout: str, what: str, least: int) -> int:
        here = self._at
        count = self._number(layout)
        if count > (self.file.size - self._at) // least:
            raise self.file.fail(f"{count} {what} are announced, more than the file has room for", here)
        return count

    def _text(self, what: str, longest: int = _LONGEST) -> str:
        here = self._at
        size = self._number("<Q")
        if size > longest:
            raise self.file.fail(f"{what} is said to have {size} bytes; {longest} are allowed", here)
        try:
            return str(self._take(size, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.file.fail(f"{what} is not UTF-8: {error}", here) from error

    def _value(self, key: str) -> Any:
        here = self._at
        kind = self._number("<I")
        if kind == _TEXT:
            return self._text(f"the value of {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self.file.fail(f"the value of {key!r} has the unknown type {kind}", here)
        value = np.frombuffer(self._take(np.dtype(layout).itemsize, f"the value of {key!r}"), layout)[0].item()
        return self._bool(value, key) if kind == _BOOL else value

    def _bool(self, value: int, key: str) -> bool:
        if value > 1:
            raise self.file.fail(f"the value of {key!r} is {value}, neither true nor false", self._at - 1)
        return bool(value)

    def _array(self, key: str) -> Any:
        here = self._at
        kind = self._number("<I")
        what = f"the array {key!r}"
        if kind == _TEXT:
            count = self._count("<Q", f"texts of {key!r}", 8)
            return [self._text(what) for _ in range(count)]
        layout = _SCALARS.get(kind)
        if layout is None:
            reason = "arrays in arrays are not read" if kind == _ARRAY else f"type {kind} is unknown"
            raise self.file.fail(f"{what}: {reason}", here)
        element = np.dtype(layout)
        count = self._count("<Q", f"elements of {key!r}", element.itemsize)
        values = np.frombuffer(self._take(count * element.itemsize, what), element)
        # A copy, so that what the metadata says does not hold the file.
        return values.astype(bool) if kind == _BOOL else values.copy()

    def _tensor(self) -> tuple[int, str, tuple[int, ...], BlockType, int]:
        here = self._at
        name = self._text("the name of a tensor", _LONGEST_NAME)
        dimensions = self._number("<I")
        if not 0 <= dimensions <= _DIMENSIONS:
            raise self.file.fail(
                f"tensor {name!r} has {dimensions} dimensions; at most {_DIMENSIONS} are allowed", here
            )
        # Stored with the fastest axis first.
        shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
        if not can_be_shaped(shape):
            raise self.file.fail(f"tensor {name!r} is said to be {list(shape)}, which ends beyond the file", here)
        number = self._number("<I")
        kind = TYPES.get(number)
        if kind is None:
            known = ", ".join(known.name for known in TYPES.values())
            raise self.file.fail(f"tensor {name!r} has the unknown element type {number}; known are {known}", here)
        if (shape[-1] if shape else 1) % kind.elements:
            raise self.file.fail(
                f"tensor {name!r} has rows of {shape[-1] if shape else 1} elements, and blocks of {kind.name} have "
                f"{kind.elements}",
                here,
            )
        return here, name, shape, kind, self._number("<Q")

    def _placed(self, found: tuple[int, str, tuple[int, ...], BlockType, int], start: int) -> GGUFTensor:
        here, name, shape, kind, offset = found
        nbytes = math.prod(shape) // kind.elements * kind.bytes
        if offset % self._alignment:
            raise self.file.fail(f"tensor {name!r} begins at {offset}, not at a multiple of {self._alignment}", here)
        if start + offset + nbytes > self.file.size:
            raise self.file.fail(
                f"tensor {name!r} with {nbytes} bytes at {start + offset} ends beyond the file, which has "
                f"{self.file.size}: it is cut off or damaged",
                here,
            )
        return GGUFTensor(name, shape, kind, start + offset, nbytes, self.file)

    def _refuse_overlaps(self) -> None:
        end, last = 0, ""
        for tensor in sorted(self.tensors, key=lambda t: (t.offset, t.nbytes)):
            if tensor.nbytes and tensor.offset < end:
                raise self.file.fail(f"tensors {last!r} and {tensor.name!r} overlap", tensor.offset)
            if tensor.nbytes:
                end, last = tensor.offset + tensor.nbytes, tensor.name
