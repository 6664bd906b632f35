"""Steps of one token per reply as graphs, one per number of replies and pages, captured when they are needed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit._pygpukit_rust import CudaGraph, GPUArray, GraphPool
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.errors import GraphError

__all__ = ["StepGraphs", "bucket"]

# Of NumPy.
Array = Any

# Replies of the largest step that is captured.
_MOST = 256


def bucket(replies: int) -> int | None:
    """Return how many replies the graph has that computes so many; None where there is none.

    Examples
    --------
    >>> [bucket(n) for n in (1, 3, 9, 100, 1000)]
    [1, 4, 16, 104, None]
    """
    if replies > _MOST:
        return None
    return 1 << (replies - 1).bit_length() if replies <= 16 else -(-replies // 8) * 8


class StepGraphs:
    """Graphs of steps, which share their memory.

    Parameters
    ----------
    forward : callable
        Makes the scores of a step: of its words on the device, how many replies, how many pages each.

    Attributes
    ----------
    refused
        Why steps of this model cannot be captured, if so.
    """

    def __init__(self, forward: Callable[[GPUArray, int, int], GPUArray]) -> None:
        self._forward = forward
        self.refused = ""
        self._pool = GraphPool()
        self._seen: set[tuple[int, int]] = set()
        self._made: dict[tuple[int, int], tuple[CudaGraph, GPUArray, GPUArray]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        """Forget the graphs: what they read has moved."""
        self._made.clear()

    def run(self, words: Array, ids: GPUArray | None, replies: int, pages: int) -> GPUArray:
        """Return the scores of a step, valid until the next one.

        Parameters
        ----------
        words : numpy.ndarray
            int32, all that the step reads beside the cache; its first elements are the tokens.
        ids : GPUArray, optional
            The tokens, where the host does not know them.
        replies, pages : int
        """
        key = replies, pages
        if key not in self._made:
            sent = from_numpy(words)
            if ids is not None:
                sent[:replies] = ids
            if key not in self._seen:
                # The first time makes what a capture must find: compiled kernels, plans.
                self._seen.add(key)
                return self._forward(sent, replies, pages)
            place = empty(words.shape, "int32")
            graph = CudaGraph(pool=self._pool)
            try:
                with graph.capture():
                    scores = self._forward(place, replies, pages)
            except GraphError as error:
                self.refused = str(error)
                return self._forward(sent, replies, pages)
            except MemoryError:
                # A graph keeps its memory, and there is none for another one now.
                self._seen.discard(key)
                return self._forward(sent, replies, pages)
            self._made[key] = graph, place, scores
        graph, place, scores = self._made[key]
        place[...] = from_numpy(words)
        if ids is not None:
            place[:replies] = ids
        graph.replay()
        return scores
