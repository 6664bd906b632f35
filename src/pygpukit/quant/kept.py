"""Decoded float32 copies of weights that products on the CPU device keep, up to a limit for all together."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.config import parse_size

__all__ = ["Kept", "keep_decoded"]

_lock = threading.Lock()
_limit = parse_size("2GiB")
_used = 0


def keep_decoded(limit: int | str | None = None) -> int:
    """Say how many bytes of decoded weights the CPU device may keep, and return how many it may.

    A product on the CPU device needs a weight as float32. The copy made for the first product is kept for the next ones
    while there is room, and goes with its weight; without room a product decodes the weight block by block, several
    times slower. Weights on a GPU are never kept decoded.

    Parameters
    ----------
    limit : int or str, optional
        Such as ``"4GiB"``; 0 keeps none that is not kept already. 2 GiB unless set.

    Returns
    -------
    int

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.quant.keep_decoded() == 2 << 30
    True
    """
    global _limit
    if limit is not None:
        _limit = parse_size(limit)
    return _limit


class Kept:
    """The decoded copies of one weight, by element type of the activations."""

    __slots__ = ("__weakref__", "_copies")

    def __init__(self) -> None:
        self._copies: dict[str, GPUArray] = {}

    def get(self, key: str, nbytes: int, make: Callable[[], GPUArray | None]) -> GPUArray | None:
        """Return the copy for a type, made now if there is room for it and it can be made; else None."""
        found = self._copies.get(key)
        if found is not None:
            return found
        with _lock:
            if key in self._copies:
                return self._copies[key]
            if not _reserve(nbytes):
                return None
            try:
                made = make()
            except BaseException:
                _release(nbytes)
                raise
            if made is None:
                _release(nbytes)
                return None
            weakref.finalize(self, _release_locked, nbytes)
            self._copies[key] = made
        return made


def _reserve(nbytes: int) -> bool:
    global _used
    if _used + nbytes > _limit:
        return False
    _used += nbytes
    return True


def _release(nbytes: int) -> None:
    global _used
    _used -= nbytes


def _release_locked(nbytes: int) -> None:
    # A plain subtraction: a collection may run this in a thread that holds the lock.
    _release(nbytes)
