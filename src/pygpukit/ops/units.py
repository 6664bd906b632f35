"""Every built-in kernel as a compilation unit, for ahead-of-time bundles."""

from __future__ import annotations

from collections.abc import Iterable

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.launch import Unit
from pygpukit.ops.registry import load
from pygpukit.ops.source import headers

__all__ = ["ALL_TYPES", "Unit", "builtin_units", "headers"]

ALL_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
)  # fmt: skip
"""Names of all element types, in the order units are listed."""


def builtin_units(dtypes: Iterable[DataType] | None = None) -> list[Unit]:
    """Return the kernels a bundle should hold, in a fixed order.

    Every elementwise operator on inputs of one type, the casts between all types, and what each other family names.

    Parameters
    ----------
    dtypes
        Restricts the types of inputs and outputs; all when not given.
    """
    types = tuple(dtype(name) for name in ALL_TYPES) if dtypes is None else tuple(dtypes)
    units: dict[str, Unit] = {}
    names = [kind.name for kind in types]
    registered = (unit for operator in load().values() for unit in operator.units(names))
    for unit in registered:
        units.setdefault(unit.name, unit)
    return list(units.values())
