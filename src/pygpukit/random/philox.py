"""Philox4x32-10 in NumPy, as kernels/common/philox.cuh computes it: blocks of four words, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

CHUNK = 4096
"""Blocks computed at a time: their words stay in the processor's second cache."""

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85


def words(key: int, blocks: Any, attempt: int, stream: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the words of blocks, uint32 of shape (number of blocks, 4).

    Parameters
    ----------
    key : int
        64 bits.
    blocks : numpy.ndarray
        Block numbers, uint64.
    attempt, stream : int
        The upper words of the counter, 32 bits each.
    """
    c0, c1 = blocks & _MASK, blocks >> _SHIFT
    c2, c3 = np.full_like(c0, attempt), np.full_like(c0, stream)
    p0, p1 = np.empty_like(c0), np.empty_like(c0)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        np.multiply(c0, _FACTORS[0], p0)
        np.multiply(c2, _FACTORS[1], p1)
        np.right_shift(p1, _SHIFT, c0)
        c0 ^= c1
        c0 ^= np.uint64(k0)
        np.right_shift(p0, _SHIFT, c2)
        c2 ^= c3
        c2 ^= np.uint64(k1)
        np.bitwise_and(p1, _MASK, c1)
        np.bitwise_and(p0, _MASK, c3)
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    out = np.empty((c0.size, 4), np.uint32)
    for i, word in enumerate((c0, c1, c2, c3)):
        out[:, i] = word
    return out


def chunks(
    key: int, first: int, stream: int, n: int, per_block: int
) -> Iterator[tuple[int, int, np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.uint32]]]]:
    """Yield for `n` elements, `per_block` of a block: where a chunk begins and ends, its blocks and their words."""
    step = CHUNK * per_block
    for start in range(0, n, step):
        stop = min(start + step, n)
        count = -(-(stop - start) // per_block)
        blocks = np.arange(count, dtype=np.uint64)
        blocks += np.uint64((first + start // per_block) & 0xFFFFFFFFFFFFFFFF)
        yield start, stop, blocks, words(key, blocks, 0, stream)
