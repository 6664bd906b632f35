"""Layers of a model whose weights come to the device when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.core.device import current_device, device
from pygpukit.llm.config import TransformerConfig
from pygpukit.llm.decoder import Attention, Step, TransformerBlock
from pygpukit.llm.fixed_cache import FixedCacheLayer
from pygpukit.llm.streaming import StreamingStrategy

__all__ = ["StreamedBlock", "streamed"]


def streamed(
    load: Callable[[int], TransformerBlock], config: TransformerConfig, dtype: Any, strategy: StreamingStrategy
) -> list[TransformerBlock]:
    """Return the layers of a model, each loaded by its number when it is used.

    `LAYER_BY_LAYER` drops a layer when another one is used; its caches of a fixed size stay.
    """
    home = current_device()

    def on_device(layer: int) -> TransformerBlock:
        with device(home):
            return load(layer)

    residents: list[StreamedBlock] | None = [] if strategy is StreamingStrategy.LAYER_BY_LAYER else None
    return [StreamedBlock(layer, on_device, config, dtype, residents) for layer in range(config.num_layers)]


class StreamedBlock(TransformerBlock):
    """A layer whose parts are loaded when they are asked for.

    Attributes
    ----------
    attn
        Its attention; the caches of a fixed size are there without the weights.
    """

    def __init__(
        self,
        layer: int,
        load: Callable[[int], TransformerBlock],
        config: TransformerConfig,
        dtype: Any,
        residents: list[StreamedBlock] | None,
    ) -> None:
        self._layer, self._load, self._residents = layer, load, residents
        self._loaded: TransformerBlock | None = None
        self.attn: Any = _StreamedAttention(self, config, dtype)

    @property
    def is_loaded(self) -> bool:
        """Whether its weights are on the device."""
        return self._loaded is not None

    def block(self) -> TransformerBlock:
        """Return the layer with its weights, loaded now if they are not there."""
        if self._loaded is None:
            if self._residents is not None:
                for other in self._residents:
                    other._loaded = None
                self._residents[:] = [self]
            self._loaded = self._load(self._layer)
        return self._loaded

    def __call__(self, x: GPUArray, more: GPUArray | None, step: Step) -> tuple[GPUArray, GPUArray]:
        block = self.block()
        block.attn._k_cache, block.attn._v_cache = self.attn._k_cache, self.attn._v_cache
        return block(x, more, step)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.block(), name)


class _StreamedAttention(FixedCacheLayer):
    def __init__(self, block: StreamedBlock, config: TransformerConfig, dtype: Any) -> None:
        self._block, self.dtype = block, dtype
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found: Attention = self._block.block().attn
        return getattr(found, name)
