"""SafeTensors files, one or several with an index, read by mapping them.

A file is hostile until checked: the header's length, every shape, type and range, and that tensors cover the data
without holes or overlaps. `BF16` and 8-bit floats are NumPy arrays of ml_dtypes' types.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from pygpukit.errors import ModelFileError
from pygpukit.llm.mapped import MappedFile, TensorFile, can_be_shaped

__all__ = ["Dtype", "SafeTensorsFile", "ShardedSafeTensorsFile", "TensorInfo", "load_safetensors"]

Array = np.ndarray[Any, Any]

# What the makers of the format allow.
_LONGEST_HEADER = 100_000_000
_DIMENSIONS = 64
# Bits of an element, and NumPy's type where there is one.
_TYPES: dict[str, tuple[int, Any]] = {
    "BOOL": (8, np.dtype("?")),
    "U8": (8, np.dtype("u1")),
    "I8": (8, np.dtype("i1")),
    "F8_E5M2": (8, np.dtype(ml_dtypes.float8_e5m2)),
    "F8_E4M3": (8, np.dtype(ml_dtypes.float8_e4m3fn)),
    "F8_E8M0": (8, np.dtype(ml_dtypes.float8_e8m0fnu)),
    "I16": (16, np.dtype("<i2")),
    "U16": (16, np.dtype("<u2")),
    "F16": (16, np.dtype("<f2")),
    "BF16": (16, np.dtype(ml_dtypes.bfloat16)),
    "I32": (32, np.dtype("<i4")),
    "U32": (32, np.dtype("<u4")),
    "F32": (32, np.dtype("<f4")),
    "I64": (64, np.dtype("<i8")),
    "U64": (64, np.dtype("<u8")),
    "F64": (64, np.dtype("<f8")),
    "C64": (64, np.dtype("<c8")),
    "F4": (4, None),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
}


class Dtype:
    """Element types as files name them, under the published names.

    Examples
    --------
    >>> Dtype.BFloat16, Dtype.element_size(Dtype.BFloat16), Dtype.name(Dtype.BFloat16)
    ('BF16', 2, 'bfloat16')
    """

    Float64, Float32, Float16, BFloat16 = "F64", "F32", "F16", "BF16"
    Float8E4M3, Float8E5M2 = "F8_E4M3", "F8_E5M2"
    Int64, Int32, Int16, Int8, UInt8, Bool = "I64", "I32", "I16", "I8", "U8", "BOOL"

    @staticmethod
    def element_size(dtype: str) -> int:
        """Return the bytes of an element, 0 for less than one."""
        return _TYPES[dtype][0] // 8

    @staticmethod
    def name(dtype: str) -> str:
        """Return the name that NumPy and ml_dtypes have for it, or the file's where they have none."""
        element = _TYPES[dtype][1]
        return dtype if element is None else str(element.name)


class TensorInfo(NamedTuple):
    """Shape, type and place of a tensor; `offset` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: MappedFile

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

    @property
    def dtype_name(self) -> str:
        """Name of the element type, such as ``"bfloat16"``."""
        return Dtype.name(self.dtype)


class _Reader(TensorFile[TensorInfo]):
    """What one file and several have in common."""

    def tensor_view(self, name: str) -> Array:
        """Return a tensor as it is stored: a read-only view of the file, or a copy where it is not aligned.

        Types that NumPy has no elements of, of 4 and 6 bits, are bytes.
        """
        info = self.tensor_info(name)
        data = super().tensor_view(name)
        element = _TYPES[info.dtype][1]
        if element is None:
            return data
        if info.offset % element.itemsize:
            data = data.copy()
            data.flags.writeable = False
        shaped: Array = data.view(element).reshape(info.shape)
        return shaped

    def tensor_as_f32(self, name: str) -> Array:
        """Return the elements of a tensor in float32."""
        info = self.tensor_info(name)
        if _TYPES[info.dtype][1] is None:
            raise info.file.fail(f"tensor {name!r} is of {info.dtype}, whose elements cannot be read yet", info.offset)
        return self.tensor_view(name).astype(np.float32)


class SafeTensorsFile(_Reader):
    """One file of tensors.

    Parameters
    ----------
    path : str or path-like

    Attributes
    ----------
    metadata : mapping of str to str
        What the file says of itself.
    file_size : int
        Bytes of the file.

    Raises
    ------
    ModelFileError
        With offset and reason, if the file is cut off, damaged or of another kind.

    Examples
    --------
    >>> import tempfile
    >>> from pygpukit.llm.testing import tiny_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = SafeTensorsFile(tiny_model("llama", folder) / "model.safetensors")
    ...     file.tensor_info("model.norm.weight").shape, "lm_head.weight" in file
    ((48,), True)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        file = MappedFile(self.path)
        self._files = [file]
        length = int.from_bytes(file.read(0, 8), "little")
        if length > _LONGEST_HEADER:
            raise file.fail(f"the header is said to have {length} bytes; {_LONGEST_HEADER} are allowed", 0)
        if length > file.size - 8:
            raise file.fail(f"the header has {length} bytes, and {file.size - 8} follow: the file is cut off", 0)
        start = 8 + length
        header = _parse(file, file.read(8, length), 8)
        self.metadata: Mapping[str, str] = MappingProxyType(_metadata(file, header.pop("__metadata__", {})))
        self._tensors = {name: _info(file, name, entry, start) for name, entry in header.items()}
        end = start
        for info in sorted(self._tensors.values(), key=lambda i: (i.offset, i.nbytes)):
            if info.offset != end:
                what = "overlaps the one before it" if info.offset < end else "leaves a hole before it"
                raise file.fail(f"tensor {info.name!r} {what}", info.offset)
            end += info.nbytes
        if end != file.size:
            raise file.fail(f"tensors end here, and the file has {file.size} bytes", end)


class ShardedSafeTensorsFile(_Reader):
    """Tensors in several files, found by their index.

    Parameters
    ----------
    index : str or path-like
        ``model.safetensors.index.json``; the files lie beside it.

    Raises
    ------
    ModelFileError
        If the index or a file is damaged, or they do not agree.
    """

    def __init__(self, index: str | os.PathLike[str]) -> None:
        self.path = os.fspath(index)
        file = MappedFile(self.path)
        document = _parse(file, file.read(0, file.size), 0)
        places = document.get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
            raise file.fail("weight_map is missing, or does not map names to files")
        folder = Path(self.path).parent
        shards: dict[str, SafeTensorsFile] = {}
        for shard in sorted(set(places.values())):
            if not shard or shard in (".", "..") or Path(shard).name != shard or "\\" in shard or "\0" in shard:
                raise file.fail(f"the index names the file {shard!r}, which is not in its folder")
            if not (folder / shard).exists():
                raise file.fail(f"the index names the file {shard!r}, which is not there")
            shards[shard] = SafeTensorsFile(folder / shard)
        self._tensors = {}
        for name, shard in places.items():
            if name not in shards[shard]:
                raise file.fail(f"the index says that {shard!r} has the tensor {name!r}, and it has not")
            self._tensors[name] = shards[shard].tensor_info(name)
        for shard, opened in shards.items():
            for name in opened:
                if places.get(name) != shard:
                    raise opened.tensor_info(name).file.fail(
                        f"tensor {name!r} is not where the index says, in {places.get(name)!r}"
                    )
        self._files = [file for shard in shards.values() for file in shard._files]


def load_safetensors(path: str | os.PathLike[str]) -> SafeTensorsFile | ShardedSafeTensorsFile:
    """Open a file of tensors, or the index of several."""
    return ShardedSafeTensorsFile(path) if os.fspath(path).endswith(".json") else SafeTensorsFile(path)


def _parse(file: MappedFile, text: bytes, offset: int) -> dict[str, Any]:
    """The JSON object in a header or an index."""
    if text[:1] != b"{":
        raise file.fail(f"a JSON object begins with '{{', and this with {text[:1]!r}", offset)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            # Readers differ in which of the two they take.
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise file.fail(f"{twice!r} is there twice", offset)
        return found

    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise file.fail(f"this is not JSON: {error}", offset) from error
    if not isinstance(parsed, dict):
        raise file.fail("this is not a JSON object", offset)
    return parsed


def _metadata(file: MappedFile, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise file.fail("__metadata__ does not map texts to texts", 8)
    return found


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _info(file: MappedFile, name: str, entry: Any, start: int) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise file.fail(f"tensor {name!r} must have dtype, shape and data_offsets, and has {entry!r:.200}", 8)
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise file.fail(f"tensor {name!r} has the unknown type {kind!r:.50}; known are {', '.join(_TYPES)}", 8)
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS or not all(map(_whole, shape)):
        raise file.fail(f"the shape of tensor {name!r} is {shape!r:.100}", 8)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)):
        raise file.fail(f"data_offsets of tensor {name!r} are {offsets!r:.100}", 8)
    first, last = offsets
    if first > last or last > file.size - start:
        raise file.fail(
            f"tensor {name!r} is said to lie at {first} to {last} of {file.size - start} bytes of data: the file is "
            "cut off or damaged",
            8,
        )
    bits = math.prod(shape) * _TYPES[kind][0]
    if bits != 8 * (last - first):
        raise file.fail(f"tensor {name!r} of {kind}{shape} has {bits / 8:g} bytes, and {last - first} are given", 8)
    if not can_be_shaped(shape):
        raise file.fail(f"tensor {name!r} of {kind}{shape!r:.100} has more bytes than are given", 8)
    return TensorInfo(name, kind, tuple(shape), start + first, last - first, file)
