"""The runtime as Python sees it: devices, streams, events, graphs and memory."""

from __future__ import annotations

from typing import Any

# What programs import from here that were written for this path; submodules are found without.
_PUBLISHED = ("GPUArray", "Stream", "default_stream", "empty", "from_numpy", "ones", "zeros")


def __getattr__(name: str) -> Any:
    if name not in _PUBLISHED:
        raise AttributeError(f"module 'pygpukit.core' has no attribute {name!r}")
    import pygpukit

    return getattr(pygpukit, name)
