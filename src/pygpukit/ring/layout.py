"""Fixed layouts: one arrangement of bytes as a C struct, a NumPy structured dtype and a packing format."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pygpukit.dtypes import to_numpy_dtype
from pygpukit.ring.kinds import Kind

__all__ = ["FixedField", "Layout", "offset_assertions"]

ALIGNMENT = 16
"""Sizes of messages are multiples of this, so that arrays of them can be copied in the widest words."""

# struct's code and CUDA's type by name. bfloat16 is packed by its bits; headers of ours have the 16-bit types.
_CODES = {
    "bool": ("?", "bool"),
    "int8": ("b", "signed char"),
    "int16": ("h", "short"),
    "int32": ("i", "int"),
    "int64": ("q", "long long"),
    "uint8": ("B", "unsigned char"),
    "uint16": ("H", "unsigned short"),
    "uint32": ("I", "unsigned int"),
    "uint64": ("Q", "unsigned long long"),
    "float16": ("e", "pgk::f16"),
    "bfloat16": ("H", "pgk::bf16"),
    "float32": ("f", "float"),
    "float64": ("d", "double"),
}


_OFFSETS_KNOWN = "#if __CUDACC_VER_MAJOR__ > 13 || (__CUDACC_VER_MAJOR__ == 13 && __CUDACC_VER_MINOR__ >= 4)"

_HEADERS = {"float16": "f16.cuh", "bfloat16": "bf16.cuh"}


def offset_assertions(struct: str, offsets: dict[str, int]) -> str:
    """CUDA C++ that does not compile unless a struct's fields are there; older compilers cannot tell."""
    lines = [
        f'static_assert(__builtin_offsetof({struct}, {name}) == {offset}, "{struct}.{name}");'
        for name, offset in offsets.items()
    ]
    return "\n".join([_OFFSETS_KNOWN, *lines, "#endif", ""])


def bfloat16_bits(value: float) -> int:
    """The 16 bits of a float rounded to bfloat16."""
    return int(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))


def from_bfloat16_bits(bits: int) -> float:
    """The float that 16 bits of a bfloat16 are."""
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return float(value)


@dataclass(frozen=True)
class FixedField:
    """One field and where it lies."""

    name: str
    kind: Kind
    offset: int
    numpy_type: np.dtype[Any]
    nbytes: int


class Layout:
    """Where the fields of a fixed message lie.

    Fields keep their order; each is aligned to its element type, and the whole to 16 bytes.

    Parameters
    ----------
    name : str
        Of the struct.
    kinds : dict of str to Kind
        The fields, all of fixed kinds.
    """

    def __init__(self, name: str, kinds: dict[str, Kind]) -> None:
        self.name = name
        self.fields: list[FixedField] = []
        at = 0
        for field, kind in kinds.items():
            assert kind.dtype is not None
            element = to_numpy_dtype(kind.dtype)
            at += -at % element.itemsize
            nbytes = element.itemsize * int(np.prod(kind.shape, dtype=np.int64))
            self.fields.append(FixedField(field, kind, at, element, nbytes))
            at += nbytes
        self.itemsize = max(ALIGNMENT, at + -at % ALIGNMENT)
        self.dtype: np.dtype[Any] = np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": [(field.numpy_type, field.kind.shape) for field in self.fields],
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.itemsize,
            }
        )
        self.struct = struct.Struct(self._format(with_arrays=True))
        self.scalars = struct.Struct(self._format(with_arrays=False))

    def _format(self, with_arrays: bool) -> str:
        parts = ["<"]
        at = 0
        for field in self.fields:
            assert field.kind.dtype is not None
            parts.append("x" * (field.offset - at))
            if field.kind.shape:
                parts.append(f"{field.nbytes}{'s' if with_arrays else 'x'}")
            else:
                parts.append(_CODES[field.kind.dtype.name][0])
            at = field.offset + field.nbytes
        return "".join([*parts, "x" * (self.itemsize - at)])

    def source(self) -> str:
        """The layout as CUDA C++, with assertions that the compiler arranges it in the same way."""
        used = {field.kind.dtype.name for field in self.fields if field.kind.dtype is not None}
        lines = [f'#include "pygpukit/{header}"' for name, header in _HEADERS.items() if name in used]
        lines.append(f"struct __align__({ALIGNMENT}) {self.name} {{")
        for field in self.fields:
            assert field.kind.dtype is not None
            sizes = "".join(f"[{size}]" for size in field.kind.shape)
            lines.append(f"    {_CODES[field.kind.dtype.name][1]} {field.name}{sizes};")
        lines += ["};", f'static_assert(sizeof({self.name}) == {self.itemsize}, "{self.name}");']
        return "\n".join(lines) + "\n" + offset_assertions(self.name, {one.name: one.offset for one in self.fields})
