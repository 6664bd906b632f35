"""Memory pools, and page-locked host memory: quotas, statistics, and giving back."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, SupportsIndex

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Allocation, Device, GPUArray, GrowableBuffer, MemoryPool
from pygpukit.config import format_size, parse_size
from pygpukit.core.recording import Event, Recording, record
from pygpukit.core.snapshot import Snapshot, follow, snapshot
from pygpukit.dtypes import DTypeLike, float32, to_numpy_dtype
from pygpukit.dtypes import dtype as _dtype
from pygpukit.errors import OutOfMemoryError

__all__ = [
    "Allocation",
    "Event",
    "GrowableBuffer",
    "MemoryPool",
    "Recording",
    "Snapshot",
    "empty_growable",
    "empty_pinned",
    "follow",
    "get_default_pool",
    "pinned",
    "pinned_stats",
    "prepin",
    "record",
    "reset_peak",
    "set_default_pool",
    "snapshot",
    "stats",
    "trim",
    "trim_pinned",
]


# Evicted arrays are kept in pieces of at most this size.
_PIECE = 64 << 20


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
    for array in arrays:
        if not isinstance(array, GPUArray):
            raise TypeError(f"pinned() takes GPUArrays, not {type(array).__name__}")
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


def reset_peak() -> None:
    """Make what the current pool uses now its peak, to measure that of what comes.

    Examples
    --------
    >>> reset_peak()
    >>> stats()["peak"] == stats()["used"]
    True
    """
    _native.current_pool().reset_peak()


def trim() -> None:
    """Return cached memory that no stream uses to the device.

    Examples
    --------
    >>> trim()
    """
    _native.current_pool().trim()


def empty_growable(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: DTypeLike = float32,
    *,
    capacity: SupportsIndex,
    device: Device | None = None,
) -> GrowableBuffer:
    """Rows of memory that grow in place, such as a cache of keys and values; not set.

    Parameters
    ----------
    shape : int or sequence of int
        Rows at the start, and the shape of a row.
    dtype : DataType, str or numpy.dtype
    capacity : int
        Most rows there can be. Addresses are reserved for all of them, memory only for the rows there are.
    device : Device, optional
        The current one by default.

    Returns
    -------
    GrowableBuffer
        `grow`, `shrink` and `reserve` change it, `array` gives its rows as an array at an address that stays.

    Examples
    --------
    >>> cache = empty_growable((4, 8), "float16", capacity=1 << 20)
    >>> before = cache.array()
    >>> cache.grow(1000)
    >>> cache.array().shape, cache.array().ptr == before.ptr
    ((1000, 8), True)
    """
    dims = [shape] if isinstance(shape, SupportsIndex) else list(shape)
    return GrowableBuffer([operator.index(dim) for dim in dims], _dtype(dtype), operator.index(capacity), device)


def empty_pinned(shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = float32) -> np.ndarray[Any, Any]:
    """A NumPy array in page-locked memory, which the device copies from and to without a detour; not set.

    The memory goes back to a pool when the array and its views are gone.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : DataType, str or numpy.dtype

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    OutOfMemoryError
        If the device's page-locked memory would exceed PYGPUKIT_PINNED_LIMIT.

    Examples
    --------
    >>> a = empty_pinned((2, 3), "float16")
    >>> a.shape, a.dtype
    ((2, 3), dtype('float16'))
    """
    kind = to_numpy_dtype(dtype)
    dims = (shape,) if isinstance(shape, SupportsIndex) else tuple(shape)
    sizes = tuple(operator.index(dim) for dim in dims)
    nbytes = math.prod(sizes) * kind.itemsize
    if nbytes <= 0:
        # NumPy says what is wrong with a negative one.
        return np.empty(sizes, kind)
    # More than fits a machine's word is above every limit too.
    return np.asarray(_native.PinnedMemory(min(nbytes, sys.maxsize))).view(kind).reshape(sizes)


def pinned_stats() -> dict[str, int]:
    """Statistics of the page-locked memory of the current device.

    Returns
    -------
    dict
        Bytes `used`, `cached` (kept for reuse), `peak` and `limit`; requests that were `hits` and `misses`.

    Examples
    --------
    >>> sorted(pinned_stats())
    ['cached', 'hits', 'limit', 'misses', 'peak', 'used']
    """
    return _native.pinned_stats()


def prepin(nbytes: int | str, progress: bool | None = None) -> int:
    """Page-lock host memory ahead of need: what evictions and transfers take later is then there at once.

    Locking pages costs more time than copying them. The memory stays with the current device's pool of page-locked
    memory until `trim_pinned`.

    Parameters
    ----------
    nbytes : int or str
        Bytes that are to be held, those in use and those kept from before included.
    progress : bool, optional
        Show a bar: by default when it takes long and stderr is a terminal.

    Returns
    -------
    int
        Bytes that were locked now.

    Raises
    ------
    OutOfMemoryError
        If PYGPUKIT_PINNED_LIMIT does not allow it, or the system has no more; what was locked so far stays.

    Examples
    --------
    >>> prepin("1MiB") >= 0
    True
    """
    from pygpukit.jit.progress import progress_bar

    wanted = parse_size(nbytes)
    limit = pinned_stats()["limit"]
    if wanted > limit:
        raise OutOfMemoryError(
            f"cannot page-lock {format_size(wanted)}: PYGPUKIT_PINNED_LIMIT allows {format_size(limit)}; raise it"
        )
    start = total = _page_locked()
    # Held until the end: otherwise the next request would get the same piece again.
    pieces: list[_native.PinnedMemory] = []
    text = f"locking {format_size(max(wanted - start, 0))} of host memory"
    with progress_bar(text, max(wanted - start, 0), always=progress is True) as show:
        while total < wanted:
            pieces.append(_native.PinnedMemory(min(_PIECE, wanted - total)))
            total = _page_locked()
            if progress is not False:
                show(total - start)
    return total - start


def _page_locked() -> int:
    stats = pinned_stats()
    return stats["used"] + stats["cached"]


def trim_pinned() -> int:
    """Give page-locked memory that nobody uses back to the system. This may wait for all work on the device.

    Returns
    -------
    int
        Bytes given back.

    Examples
    --------
    >>> trim_pinned() >= 0
    True
    """
    return _native.trim_pinned()
