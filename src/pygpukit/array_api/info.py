"""What the namespace offers: `__array_namespace_info__` of the array API standard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pygpukit as gp
from pygpukit.array_api.creation import DEFAULT_REAL
from pygpukit.core.device import resolve_device

__all__ = ["__array_namespace_info__"]

MAX_DIMENSIONS = 8

_DTYPES = {
    "bool": gp.bool_,
    "int8": gp.int8,
    "int16": gp.int16,
    "int32": gp.int32,
    "int64": gp.int64,
    "uint8": gp.uint8,
    "uint16": gp.uint16,
    "uint32": gp.uint32,
    "uint64": gp.uint64,
    "float32": gp.float32,
    "float64": gp.float64,
    "complex64": gp.complex64,
    "complex128": gp.complex128,
}


class __array_namespace_info__:  # noqa: N801
    """Capabilities, devices and types of the namespace; every device has the same types.

    Examples
    --------
    >>> __array_namespace_info__().default_dtypes()["real floating"]
    pygpukit.float64
    """

    def capabilities(self) -> dict[str, Any]:
        """What the standard leaves to libraries: masks and results of a size that the data decides work."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_DIMENSIONS}

    def default_device(self) -> gp.Device:
        """The device on which arrays are made where none is given: the thread's current one."""
        return gp.current_device()

    def devices(self) -> list[gp.Device]:
        """All GPUs, the CPU device, and the current device if it is neither."""
        found = [resolve_device(f"cuda:{i}") for i in range(gp.device_count())] if gp.is_cuda_available() else []
        found.append(resolve_device("cpu"))
        current = gp.current_device()
        return found if current in found else [*found, current]

    def default_dtypes(self, *, device: Any = None) -> dict[str, gp.DataType]:
        """The types of arrays that are made without one."""
        return {
            "real floating": DEFAULT_REAL,
            "complex floating": gp.complex128,
            "integral": gp.int64,
            "indexing": gp.int64,
        }

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, gp.DataType]:
        """The standard's types by name, of one kind or several as `isdtype` names them."""
        is_kind: Callable[..., bool] = gp.isdtype
        return {name: d for name, d in _DTYPES.items() if kind is None or is_kind(d, kind)}
