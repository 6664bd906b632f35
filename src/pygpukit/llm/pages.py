"""Memory of a paged cache: the pages of all layers on the device, those moved to the host, and attention over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.core.memory import empty_pinned
from pygpukit.core.transfer import copy_to_device, copy_to_host
from pygpukit.dtypes import to_numpy_dtype
from pygpukit.errors import OutOfMemoryError
from pygpukit.llm import layers
from pygpukit.llm.config import TransformerConfig
from pygpukit.llm.decoder import Attention, Step
from pygpukit.llm.kv_types import KVType

__all__ = ["PAGE_TOKENS", "PageMemory", "PagedCache"]

Moves = Sequence[tuple[int, int]]

PAGE_TOKENS = 16


class Layer(NamedTuple):
    """Pages of one layer: as attention reads them, as they are written, and the scales of codes."""

    whole: GPUArray
    written: GPUArray | tuple[GPUArray, GPUArray]
    scales: GPUArray | None


class PageMemory:
    """Pages [pages, layers, 2, tokens of a page, heads of keys, dim]: a page has all layers in one piece.

    Parameters
    ----------
    config : TransformerConfig
    kv : KVType
        With scales every page has those of its codes too, [pages, layers, 2, tokens of a page, heads of keys].
    pages, host_pages : int
        Memory on the host is taken when the first page moves there.
    fixed_scales : ndarray, optional
        What codes without scales of their own stand for multiples of, [layers, 1, 2, 1, heads of keys]; 1 by default.
    """

    def __init__(
        self, config: TransformerConfig, kv: KVType, pages: int, host_pages: int, fixed_scales: Any = None
    ) -> None:
        shape = (config.num_layers, 2, PAGE_TOKENS, config.num_kv_heads, config.head_dim)
        self._host_pages = host_pages
        self._host: list[Any] = []
        self.device = empty((pages, *shape), kv.stored)
        self.scales = empty((pages, *shape[:-1]), "float32") if kv.is_scaled else None
        self._arrays = [x for x in (self.device, self.scales) if x is not None]
        is_fixed = kv.is_coded and not kv.is_scaled and fixed_scales is not None
        self._fixed = from_numpy(fixed_scales) if is_fixed else None
        self.layers = [self._layer(layer, kv) for layer in range(config.num_layers)]

    def _layer(self, layer: int, kv: KVType) -> Layer:
        whole = self.device[:, layer]
        # Codes are written to both at once, numbers where they lie.
        written = whole if kv.is_coded else (whole[:, 0], whole[:, 1])
        if self.scales is not None:
            return Layer(whole, written, self.scales[:, layer])
        return Layer(whole, written, None if self._fixed is None else self._fixed[layer])

    def copy(self, pair: tuple[int, int]) -> None:
        """Copy a page to another."""
        for array in self._arrays:
            array[pair[1]] = array[pair[0]]

    def read(self, page: int) -> list[Any]:
        """Return what a page holds: NumPy arrays, of codes the scales too."""
        return [array[page].to_numpy() for array in self._arrays]

    def write(self, page: int, contents: Sequence[Any]) -> None:
        """Write what `read` has returned."""
        for array, content in zip(self._arrays, contents, strict=True):
            array[page] = from_numpy(np.ascontiguousarray(content))

    @property
    def forms(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and NumPy type of what a page holds."""
        return [(array.shape[1:], to_numpy_dtype(array.dtype)) for array in self._arrays]

    def to_host(self, moves: Moves) -> None:
        """Copy pages (page, page on the host), and wait for it."""
        if not self._host:
            self._host = [_on_host(array, self._host_pages) for array in self._arrays]
        pairs = list(zip(self._arrays, self._host, strict=True))
        transfers = [copy_to_host(array[page], host[place]) for page, place in moves for array, host in pairs]
        for transfer in transfers:
            transfer.wait()

    def from_host(self, moves: Moves) -> None:
        """Copy pages (page on the host, page) back, and wait for it."""
        pairs = list(zip(self._arrays, self._host, strict=True))
        transfers = [copy_to_device(host[place], array[page]) for place, page in moves for array, host in pairs]
        for transfer in transfers:
            transfer.wait()


def _on_host(array: GPUArray, pages: int) -> Any:
    shape = (pages, *array.shape[1:])
    try:
        return empty_pinned(shape, array.dtype)
    except OutOfMemoryError:
        # Copies from ordinary memory are slower, but they are copies.
        return np.empty(shape, array[:0].to_numpy().dtype)


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
        whole, written, scales = self.memory.layers[attn.layer]
        if attn.rope is None:
            layers.paged_write(k, v, whole, self.slots, kv_scales=scales)
        else:
            cos, sin = step.tables[attn.rope]
            q = layers.norm_rope_write(
                q, k, v, cos, sin, written, self.slots, self.turns, *attn.norms, attn.eps, cast="after",
                kv_scales=scales,
            )  # fmt: skip
        seen: GPUArray = layers.paged_attention(
            q, whole, self.table, self.lengths, self.starts, scale=attn.scale, window=attn.window, softcap=attn.softcap,
            max_queries=self.most, kv_scales=scales,
        )  # fmt: skip
        return seen.transpose(1, 0, 2)
