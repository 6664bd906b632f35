"""Memory of a paged cache: the pages of all layers on the device, those moved to the host, and attention over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.core.memory import empty_pinned
from pygpukit.core.transfer import copy_to_device, copy_to_host
from pygpukit.errors import OutOfMemoryError
from pygpukit.llm import layers
from pygpukit.llm.config import TransformerConfig
from pygpukit.llm.decoder import Attention, Step

__all__ = ["PAGE_TOKENS", "PageMemory", "PagedCache"]

Moves = Sequence[tuple[int, int]]

PAGE_TOKENS = 16


class PageMemory:
    """Pages [pages, layers, 2, tokens of a page, heads of keys, dim]: a page has all layers in one piece.

    Parameters
    ----------
    config : TransformerConfig
    dtype : DataType
    pages, host_pages : int
        Memory on the host is taken when the first page moves there.
    """

    def __init__(self, config: TransformerConfig, dtype: Any, pages: int, host_pages: int) -> None:
        shape = (config.num_layers, 2, PAGE_TOKENS, config.num_kv_heads, config.head_dim)
        self._host_shape, self._dtype = (host_pages, *shape), dtype
        self._host: Any = None
        self.device = empty((pages, *shape), dtype)
        views = [self.device[:, layer] for layer in range(config.num_layers)]
        self.layers = [(view, view[:, 0], view[:, 1]) for view in views]

    def copy(self, pair: tuple[int, int]) -> None:
        """Copy a page to another."""
        self.device[pair[1]] = self.device[pair[0]]

    def to_host(self, moves: Moves) -> None:
        """Copy pages (page, page on the host), and wait for it."""
        if self._host is None:
            try:
                self._host = empty_pinned(self._host_shape, self._dtype)
            except OutOfMemoryError:
                # Copies from ordinary memory are slower, but they are copies.
                self._host = np.empty(self._host_shape, np.asarray(self.device[:0].to_numpy()).dtype)
        transfers = [copy_to_host(self.device[page], self._host[place]) for page, place in moves]
        for transfer in transfers:
            transfer.wait()

    def from_host(self, moves: Moves) -> None:
        """Copy pages (page on the host, page) back, and wait for it."""
        transfers = [copy_to_device(self._host[place], self.device[page]) for place, page in moves]
        for transfer in transfers:
            transfer.wait()


@dataclasses.dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of the sequences in one step, whose tokens lie one behind the other.

    Attributes
    ----------
    memory
    turns
        Rows of the tokens in the tables of cosines and sines.
    slots
        Where their keys and values go.
    table, lengths, starts
        Of the sequences, as `sdpa_paged` takes them.
    most
        The most tokens of one sequence where that is worth to know, else 0.
    """

    memory: PageMemory
    turns: GPUArray
    slots: GPUArray
    table: GPUArray
    lengths: GPUArray
    starts: GPUArray
    most: int = 0

    def attend(self, attn: Attention, q: GPUArray, k: GPUArray, v: GPUArray, step: Step) -> GPUArray:
        """Write keys and values of one layer to their pages, and return what queries see, [heads, tokens, dim]."""
        whole, *pair = self.memory.layers[attn.layer]
        if attn.rope is None:
            layers.paged_write(k, v, whole, self.slots)
        else:
            cos, sin = step.tables[attn.rope]
            q = layers.norm_rope_write(
                q, k, v, cos, sin, tuple(pair), self.slots, self.turns, *attn.norms, attn.eps, cast="after"
            )
        seen: GPUArray = layers.paged_attention(
            q, whole, self.table, self.lengths, self.starts, scale=attn.scale, window=attn.window, softcap=attn.softcap,
            max_queries=self.most,
        )  # fmt: skip
        return seen.transpose(1, 0, 2)
