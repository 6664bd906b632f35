"""All operators by name: the published import path, ``from pygpukit.ops.basic import matmul``."""

from __future__ import annotations

from typing import Any

from pygpukit.ops.registry import functions

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    found = functions().get(name)
    if found is None:
        raise AttributeError(f"module 'pygpukit.ops.basic' has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *functions()})
