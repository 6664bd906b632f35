"""The header of NumPy's file format: written as NumPy does, and read as something hostile."""

from __future__ import annotations

import ast
import io
import math
import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError

__all__ = ["MAGIC", "Header", "header_bytes", "read_header"]

MAGIC = b"\x93NUMPY"
# As NumPy's own limit for headers of files that are not trusted.
_MAX_HEADER = 10_000
_EXTENSION = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its array.

    Attributes
    ----------
    shape
        Lengths of the axes.
    fortran
        Is the first axis the fastest?
    element
        Type of the elements; None for bytes that have none.
    stored
        NumPy's type of the bytes, perhaps of a foreign byte order.
    """

    shape: tuple[int, ...]
    fortran: bool
    element: DataType | None
    stored: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.stored.itemsize


def header_bytes(shape: tuple[int, ...], fortran: bool, element: DataType) -> bytes:
    """Magic and header, to the byte what NumPy writes.

    Types that NumPy does not have are a structure with one field of the type's name, which `numpy.load` reads as such.
    """
    plain = element.name not in _EXTENSION
    described: Any = to_numpy_dtype(element).str if plain else [(element.name, f"|V{element.itemsize}")]
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": described, "fortran_order": fortran, "shape": shape})
    return file.getvalue()


def _exactly(file: Any, count: int, what: str) -> bytes:
    parts: list[bytes] = []
    missing = count
    while missing:
        part = file.read(missing)
        if not part:
            raise ValueError(f"the file ends inside {what}: {count} bytes are wanted and {count - missing} are there")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def read_header(file: Any) -> Header:
    """Read the header, after the magic.

    Raises
    ------
    ValueError
        If it is no header of an array that can be loaded.
    DTypeError
        If the elements have a type that arrays here do not have.
    """
    major, minor = _exactly(file, 2, "the version")
    if (major, minor) not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {major}.{minor} of NumPy's file format is not known: 1.0, 2.0 and 3.0 are")
    size = "<H" if major == 1 else "<I"
    (length,) = struct.unpack(size, _exactly(file, struct.calcsize(size), "the length of the header"))
    if length > _MAX_HEADER:
        raise ValueError(f"the header has {length} bytes, and more than {_MAX_HEADER} are not read")
    text = _exactly(file, length, "the header").decode("utf-8" if major == 3 else "latin1", "replace")
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(f"the header is no description of an array: {text.strip()[:200]!r}") from error
    if not isinstance(values, dict) or set(values) != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"the header is no description of an array: {text.strip()[:200]!r}")
    shape, fortran = values["shape"], values["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n <= sys.maxsize for n in shape):
        raise ValueError(f"the header has the shape {str(shape)[:200]}, which is none")
    if not isinstance(fortran, bool):
        raise ValueError(f"the header has fortran_order {str(fortran)[:200]!r}, which is neither True nor False")
    element, stored = _element(values["descr"])
    return Header(shape, fortran, element, stored)


def _element(described: Any) -> tuple[DataType | None, np.dtype[Any]]:
    if isinstance(described, str) and described in ("<f1", "|f1"):
        # What NumPy writes of ml_dtypes' float8_e5m2, and does not read.
        return dtype("float8_e5m2"), np.dtype("V1")
    if isinstance(described, list) and len(described) == 1 and isinstance(described[0], tuple):
        for name in _EXTENSION:
            if described[0] == (name, f"|V{dtype(name).itemsize}"):
                return dtype(name), np.dtype(f"V{dtype(name).itemsize}")
    try:
        stored = np.lib.format.descr_to_dtype(described)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise ValueError(f"the header has the element type {str(described)[:200]}, which is none") from error
    if stored.hasobject:
        raise ValueError(
            "the file holds Python objects, which are stored by pickle: that may run any code, and is never loaded here"
        )
    if stored.kind == "V" and stored.names is None and stored.subdtype is None:
        return None, stored
    try:
        return dtype(stored.newbyteorder("=")), stored
    except DTypeError as error:
        raise DTypeError(f"the file cannot be loaded: {error}") from error
