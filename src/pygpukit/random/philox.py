"""Philox4x32-10 in NumPy, as kernels/common/philox.cuh computes it: blocks of four words, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

CHUNK = 8192
"""Blocks computed at a time: their words stay in the processor's second cache."""

_MASK, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_FACTORS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = 0x9E3779B9, 0xBB67AE85


@lru_cache(256)
def _schedule(key: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the two words of the key in each round."""
    low, high = key & 0xFFFFFFFF, key >> 32
    rounds = [[[low + i * _WEYL[0]], [high + i * _WEYL[1]]] for i in range(10)]
    return np.array(rounds, np.uint64) & _MASK


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
    # Words 0 and 2 are rows of one array, words 1 and 3 of the other: a round is five operations.
    even, odd, product = (np.empty((2, blocks.size), np.uint64) for _ in range(3))
    np.bitwise_and(blocks, _MASK, even[0])
    np.right_shift(blocks, _SHIFT, odd[0])
    even[1], odd[1] = attempt, stream
    swapped = product[::-1]
    for keys in _schedule(key):
        np.multiply(even, _FACTORS, product)
        np.right_shift(swapped, _SHIFT, even)
        np.bitwise_xor(even, odd, even)
        np.bitwise_xor(even, keys, even)
        np.bitwise_and(swapped, _MASK, odd)
    out = np.empty((blocks.size, 2), np.uint64)
    np.left_shift(odd, _SHIFT, odd)
    np.bitwise_or(even, odd, out.T)
    return out.view(np.uint32)


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
