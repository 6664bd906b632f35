"""Words of Philox4x32-10, as kernels/common/philox.cuh computes them: blocks of four, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native

CHUNK = 8192
"""Blocks computed at a time: their words stay in the processor's second cache."""


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
    out = np.empty((blocks.size, 2), np.uint64)
    _native.philox_words(key, np.ascontiguousarray(blocks), attempt, stream, out)
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
