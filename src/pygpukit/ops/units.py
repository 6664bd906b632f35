"""Every built-in kernel as a compilation unit, for ahead-of-time bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.launch import Unit
from pygpukit.ops.plan import plan
from pygpukit.ops.registry import load
from pygpukit.ops.source import headers
from pygpukit.ops.table import TABLE, Row

__all__ = ["ALL_TYPES", "Unit", "builtin_units", "headers", "supported"]

ALL_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
)  # fmt: skip
"""Names of all element types, in the order units are listed."""


def supported(row: Row) -> tuple[DataType, ...]:
    """Return the types the operator is defined for with all inputs of that type."""
    found = []
    for name in ALL_TYPES:
        try:
            plan(row.name, _same(row, dtype(name)))
        except DTypeError:
            continue
        found.append(dtype(name))
    return tuple(found)


def builtin_units(dtypes: Iterable[DataType] | None = None) -> list[Unit]:
    """Return the kernels a bundle should hold, in a fixed order.

    Every operator on inputs of one type, the casts between all types, and what every registered family names.

    Parameters
    ----------
    dtypes
        Restricts the types of inputs and outputs; all when not given.
    """
    types = tuple(dtype(name) for name in ALL_TYPES) if dtypes is None else tuple(dtypes)
    units: dict[str, Unit] = {}
    names = [kind.name for kind in types]
    registered = (unit for operator in load().values() for unit in operator.units(names))
    for unit in (*_elementwise(types), *registered):
        units.setdefault(unit.name, unit)
    return list(units.values())


def _same(row: Row, kind: DataType) -> tuple[DataType, ...]:
    return (dtype("bool"), kind, kind) if row.rule == "where" else (kind,) * row.arity


def _elementwise(types: tuple[DataType, ...]) -> Iterator[Unit]:
    for row in TABLE.values():
        for kind in supported(row):
            if all(kind.name != t.name for t in types):
                continue
            for target in types if row.rule == "cast" else (None,):
                made = plan(row.name, _same(row, kind), target)
                yield Unit(made.entry, made.source, (made.entry, made.entry_nd))
