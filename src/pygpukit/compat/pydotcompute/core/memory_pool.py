"""`MemoryPool`: the pool behind every array, under PyDotCompute's names."""

from __future__ import annotations

from dataclasses import dataclass

from pygpukit.compat.pydotcompute.core.accelerator import is_on_gpu
from pygpukit.core import memory

__all__ = ["MemoryPool", "PoolStatistics", "configure_memory_pool", "get_memory_pool"]

_MB = 2**20


@dataclass
class PoolStatistics:
    """Bytes of a pool."""

    used_bytes: int
    total_bytes: int
    n_free_blocks: int
    """0 of pools here, whose free memory is not in blocks of one size."""

    @property
    def free_bytes(self) -> int:
        """Bytes that the pool keeps and nothing uses."""
        return self.total_bytes - self.used_bytes

    @property
    def utilization(self) -> float:
        """Used part of the pool."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def used_mb(self) -> float:
        """Used bytes in units of 2**20."""
        return self.used_bytes / _MB

    @property
    def total_mb(self) -> float:
        """All bytes in units of 2**20."""
        return self.total_bytes / _MB


class MemoryPool:
    """The default pool. There is one object of it, and the first one's arguments count.

    The pool always serves arrays; `enable` and `disable` only note what was asked for.

    Parameters
    ----------
    initial_size_mb : int
        Noted; memory is taken when it is needed.
    max_size_mb : int, optional
        Quota of the pool, as `set_limit` sets it.
    """

    _instance: MemoryPool | None = None

    def __new__(cls, initial_size_mb: int = 0, max_size_mb: int | None = None) -> MemoryPool:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __init__(self, initial_size_mb: int = 0, max_size_mb: int | None = None) -> None:
        if getattr(self, "_initialized", False):
            return
        self._initialized = True
        self._enabled = False
        self._initial_size_mb = initial_size_mb
        self._max_size_mb: int | None = None
        self._cuda_available = is_on_gpu()
        if max_size_mb is not None:
            self.set_limit(max_size_mb)

    @property
    def enabled(self) -> bool:
        """Was it enabled?"""
        return self._enabled

    def enable(self) -> None:
        """Note that it is to be used."""
        self._enabled = True

    def disable(self) -> None:
        """Note that it is not to be used."""
        self._enabled = False

    def get_stats(self) -> PoolStatistics:
        """Bytes of the GPU's pool; zeros without a GPU."""
        if not self._cuda_available:
            return PoolStatistics(0, 0, 0)
        pool = memory.get_default_pool()
        return PoolStatistics(pool.used, pool.used + pool.cached, 0)

    def get_pinned_stats(self) -> PoolStatistics:
        """Bytes of page-locked memory; zeros without a GPU."""
        if not self._cuda_available:
            return PoolStatistics(0, 0, 0)
        known = memory.pinned_stats()
        used, cached = int(known.get("used", 0)), int(known.get("cached", 0))
        return PoolStatistics(used, used + cached, 0)

    def free_all_blocks(self) -> None:
        """Give memory that nothing uses back to the device."""
        memory.trim()

    def free_all_free(self) -> None:
        """As `free_all_blocks`, and page-locked memory too."""
        memory.trim()
        memory.trim_pinned()

    def set_limit(self, size_mb: int | None) -> None:
        """Set the quota of the pool; None, 0 and less for none."""
        self._max_size_mb = size_mb
        memory.get_default_pool().set_quota(size_mb * _MB if size_mb is not None and size_mb > 0 else None)

    def __repr__(self) -> str:
        known = self.get_stats()
        sizes = f"used={known.used_mb:.2f}MB, total={known.total_mb:.2f}MB"
        return f"MemoryPool(enabled={self._enabled}, {sizes}, cuda={self._cuda_available})"


def get_memory_pool() -> MemoryPool:
    """The one `MemoryPool`."""
    return MemoryPool()


def configure_memory_pool(_initial_size_mb: int = 0, max_size_mb: int | None = None, enable: bool = True) -> MemoryPool:
    """Set the limit of the one `MemoryPool`, if one is given, and enable or disable it."""
    pool = get_memory_pool()
    if max_size_mb is not None:
        pool.set_limit(max_size_mb)
    if enable:
        pool.enable()
    else:
        pool.disable()
    return pool
