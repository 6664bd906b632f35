"""torch's memory in a task: torch's caching allocator takes it from the pool that is current in the thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pygpukit import _pygpukit_rust as _native

__all__ = ["TorchMemory", "pools_kept"]

# torch ends the process when a pool of its own goes while any thread uses one or captures a graph, so pools go when
# nobody does.
_lock = threading.Lock()
_users = 0
_dropped: list[Any] = []


@contextmanager
def pools_kept() -> Iterator[None]:
    """Let no pool of torch's go."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
        _let_go()


class TorchMemory:
    """A pool of torch's, over ours.

    Parameters
    ----------
    torch : module
        torch.
    index : int
        Number of the device.
    """

    def __init__(self, torch: Any, index: int) -> None:
        self._torch = torch
        self._index = index
        self._pool: Any = None

    @staticmethod
    def is_possible(torch: Any) -> bool:
        """Can this torch use a pool in one thread alone? It can since 2.8."""
        return hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have torch take memory for this thread from here."""
        if self._pool is None:
            with self._torch.cuda.device(self._index):
                self._pool = self._torch.cuda.MemPool(_allocator(self._torch).allocator())
        native, number = self._torch._C, self._pool.id
        with pools_kept():
            native._cuda_beginAllocateCurrentThreadToPool(self._index, number)
            try:
                yield
            finally:
                native._cuda_endAllocateToPool(self._index, number)
                native._cuda_releasePool(self._index, number)

    def run(self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator of torch with memory from here, if need be after torch has given back what it had cached."""
        try:
            with self.used():
                return operator(*args, **kwargs)
        except self._torch.OutOfMemoryError:
            # torch does not do so itself while a pool is used. What was half written cannot be run again.
            if not self.drop() or _writes(operator):
                raise
        with self.used():
            return operator(*args, **kwargs)

    def drop(self) -> bool:
        """Give back what torch keeps for later; tensors that live on keep theirs. False: when others have left."""
        with _lock:
            if self._pool is not None:
                _dropped.append(self._pool)
                self._pool = None
        return _let_go()


def _let_go() -> bool:
    with _lock:
        if _users == 0:
            _dropped.clear()
        return not _dropped


@functools.cache
def _allocator(torch: Any) -> Any:
    # Kept for good: tensors that outlive their task are freed through it.
    return torch.cuda.memory.CUDAPluggableAllocator(
        _native.__file__, "pygpukit_external_alloc", "pygpukit_external_free"
    )


def _writes(operator: Any) -> bool:
    """Does an operator write to its arguments?"""
    arguments = getattr(getattr(operator, "_schema", None), "arguments", ())
    return any(value.alias_info is not None and value.alias_info.is_write for value in arguments)
