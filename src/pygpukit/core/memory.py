"""Memory pools: quotas and statistics of the allocator behind every array."""

from __future__ import annotations

from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Allocation
from pygpukit._pygpukit_rust import MemoryPool as _NativePool
from pygpukit.config import parse_size

__all__ = ["Allocation", "MemoryPool", "get_default_pool", "set_default_pool", "stats", "trim"]


def MemoryPool(  # noqa: N802 - it makes the native class and is used like one
    quota: int | str | None = None, enable_eviction: bool = False, name: str = "pool"
) -> _NativePool:
    """Make a pool inside the current one.

    Parameters
    ----------
    quota : int or str, optional
        Most bytes in use at a time, as a number or a text such as ``"512MB"``; None sets no limit of its own.
    enable_eviction : bool
        Kept for the pool's owner to read; arrays are not moved to the host by this version.
    name : str
        Shown in errors and statistics.

    Returns
    -------
    pygpukit._pygpukit_rust.MemoryPool
        A context manager: arrays made inside ``with pool:`` come from it.

    Examples
    --------
    >>> with MemoryPool("1MiB") as pool:
    ...     pool.quota
    1048576
    """
    return _NativePool(None if quota is None else parse_size(quota), enable_eviction, name)


def get_default_pool() -> _NativePool:
    """The pool arrays come from in this thread.

    Examples
    --------
    >>> get_default_pool().used >= 0
    True
    """
    return _native.current_pool()


def set_default_pool(pool: _NativePool) -> None:
    """Make a pool the one arrays come from in this thread from now on.

    Examples
    --------
    >>> set_default_pool(get_default_pool())
    """
    _native.set_default_pool(pool)


def stats() -> dict[str, Any]:
    """Statistics of the current pool, with the device's free and total bytes.

    Examples
    --------
    >>> sorted(stats())[:3]
    ['allocations', 'available', 'cached']
    """
    free, total = _native.current_device().memory_info()
    return {**_native.current_pool().stats(), "device_free": free, "device_total": total}


def trim() -> None:
    """Return cached memory that no stream uses to the device.

    Examples
    --------
    >>> trim()
    """
    _native.current_pool().trim()
