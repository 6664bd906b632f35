"""Memory pools: quotas and statistics of the allocator behind every array."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Allocation, GPUArray, MemoryPool

__all__ = ["Allocation", "MemoryPool", "get_default_pool", "pinned", "set_default_pool", "stats", "trim"]


@contextmanager
def pinned(*arrays: GPUArray) -> Iterator[None]:
    """Keep arrays on the device inside a ``with`` block, whatever memory others need.

    Parameters
    ----------
    *arrays : GPUArray
        Arrays to bring to the device, if they are not there, and to keep there.

    Raises
    ------
    OutOfMemoryError
        If they do not fit at the same time; then none of them stays pinned.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.zeros(4)
    >>> with pinned(x):
    ...     x.is_resident
    True
    """
    with ExitStack() as stack:
        for array in arrays:
            array.pin()
            stack.callback(array.unpin)
        yield


def get_default_pool() -> MemoryPool:
    """The pool arrays come from in this thread.

    Examples
    --------
    >>> get_default_pool().used >= 0
    True
    """
    return _native.current_pool()


def set_default_pool(pool: MemoryPool) -> None:
    """Make a pool the one arrays come from in this thread, until the ``with`` block around the call ends, if any.

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
