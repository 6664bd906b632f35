"""The decoder all architectures share: attention, MLP, block and model, and the keys and values of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.errors import ContextLengthError
from pygpukit.llm import layers
from pygpukit.llm.config import TransformerConfig
from pygpukit.llm.layers import Linear, Norm

__all__ = ["MLP", "Attention", "CausalTransformerModel", "KVCache", "TransformerBlock"]

Tables = tuple[GPUArray, GPUArray]

# Queries of a prompt that are computed at once: bounds the memory of their scores.
_CHUNK = 256
_FIRST_CAPACITY = 128


class KVCache:
    """Keys and values of one sequence in every layer, [heads of keys, capacity, dim] each.

    Parameters
    ----------
    config : TransformerConfig
    limit : int
        Positions it may get.
    dtype : DataType
    """

    def __init__(self, config: TransformerConfig, limit: int, dtype: Any) -> None:
        self.config, self.limit, self.dtype = config, limit, dtype
        self.length = 0
        self.capacity = 0
        self.layers: list[tuple[GPUArray, GPUArray]] = []

    def reserve(self, length: int) -> None:
        """Make room for so many positions.

        Raises
        ------
        ContextLengthError
            If they are more than the sequence may get.
        """
        if length > self.limit:
            raise ContextLengthError(f"the sequence would have {length} positions, and there is room for {self.limit}")
        if length <= self.capacity:
            return
        self.capacity = min(self.limit, max(_FIRST_CAPACITY, 2 * self.capacity, length))
        shape = (self.config.num_kv_heads, self.capacity, self.config.head_dim)
        made = []
        for layer in range(self.config.num_layers):
            new = empty(shape, self.dtype), empty(shape, self.dtype)
            if self.length:
                for target, source in zip(new, self.layers[layer], strict=True):
                    target[:, : self.length] = source[:, : self.length]
            made.append(new)
        self.layers = made

    def __len__(self) -> int:
        return self.length


class Attention:
    """Attention of one layer, with its keys and values in a `KVCache`.

    Parameters
    ----------
    qkv : Linear
        Queries, keys and values side by side.
    o : Linear
    config : TransformerConfig
    layer : int
    qk_norm : Norm, optional
        With a row of weights for each head of queries, then of keys.
    """

    def __init__(
        self, qkv: Linear, o: Linear, config: TransformerConfig, layer: int, qk_norm: Norm | None = None
    ) -> None:
        self.qkv, self.o, self.qk_norm = qkv, o, qk_norm
        self.layer, self.window = layer, config.windows[layer]
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._scale, self._softcap = config.scale, config.attention_softcap

    def __call__(self, x: GPUArray, tables: Tables | None, cache: KVCache, added: GPUArray | None) -> GPUArray:
        tokens = x.shape[0]
        turned = self.num_heads + self.num_kv_heads
        qkv = self.qkv(x).reshape(tokens, turned + self.num_kv_heads, self.head_dim)
        qk = qkv[:, :turned]
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        if tables is not None:
            qk = layers.rotate(qk, *tables)
        start, end = cache.length, cache.length + tokens
        k, v = cache.layers[self.layer]
        k[:, start:end] = qk[:, self.num_heads :].transpose(1, 0, 2)
        v[:, start:end] = qkv[:, turned:].transpose(1, 0, 2)
        first = first_seen(start, self.window)
        seen = layers.attention(
            qk[:, : self.num_heads], k[:, first:end], v[:, first:end], self._scale, self._softcap, added
        )
        return self.o(seen)


class MLP:
    """The feed-forward part of a layer; with a gate, gate and what passes are rows of one matrix.

    Parameters
    ----------
    up, down : Linear
    activation : str
    gated : bool
    """

    def __init__(self, up: Linear, down: Linear, activation: str = "silu", gated: bool = True) -> None:
        self.up, self.down, self.activation, self.gated = up, down, activation, gated

    def __call__(self, x: GPUArray) -> GPUArray:
        hidden = self.up(x)
        if self.gated:
            half = hidden.shape[-1] // 2
            return self.down(layers.gated(self.activation, hidden[:, :half], hidden[:, half:]))
        return self.down(layers.activated(self.activation, hidden))


class TransformerBlock:
    """One layer; Gemma normalises what comes out of attention and MLP too."""

    def __init__(
        self,
        attn_norm: Norm,
        attn: Attention,
        mlp_norm: Norm,
        mlp: MLP,
        attn_post_norm: Norm | None = None,
        mlp_post_norm: Norm | None = None,
    ) -> None:
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = attn_norm, attn, mlp_norm, mlp
        self.attn_post_norm, self.mlp_post_norm = attn_post_norm, mlp_post_norm

    def __call__(self, x: GPUArray, tables: Tables | None, cache: KVCache, added: GPUArray | None) -> GPUArray:
        out = self.attn(self.attn_norm(x), tables, cache, added)
        x = x + (out if self.attn_post_norm is None else self.attn_post_norm(out))
        out = self.mlp(self.mlp_norm(x))
        return x + (out if self.mlp_post_norm is None else self.mlp_post_norm(out))


class CausalTransformerModel:
    """A decoder with its weights.

    Parameters
    ----------
    config : TransformerConfig
    embed_tokens : GPUArray
        [vocabulary, hidden].
    blocks : sequence of TransformerBlock
    final_norm : Norm
    lm_head : GPUArray, optional
        [vocabulary, hidden]; the embedding by default.
    position_embed : GPUArray, optional
        [positions, hidden], of models that learn them.
    spec : optional
        The architecture it was made by.
    """

    def __init__(
        self,
        config: TransformerConfig,
        embed_tokens: GPUArray,
        blocks: Sequence[TransformerBlock],
        final_norm: Norm,
        lm_head: GPUArray | None = None,
        position_embed: GPUArray | None = None,
        spec: Any = None,
    ) -> None:
        self.config, self.embed_tokens, self.blocks = config, embed_tokens, list(blocks)
        self.final_norm, self.position_embed, self.spec = final_norm, position_embed, spec
        self.lm_head = Linear(embed_tokens if lm_head is None else lm_head)
        self.dtype = embed_tokens.dtype
        # Positions that any sequence may get, which the frequencies of some models depend on.
        self.max_positions = config.max_position_embeddings
        self._tables: dict[tuple[Any, bool], Tables] = {}

    def new_cache(self, limit: int | None = None) -> KVCache:
        """Return room for the keys and values of one sequence."""
        return KVCache(self.config, self.max_positions if limit is None else limit, self.dtype)

    def step(self, ids: Sequence[int], cache: KVCache) -> GPUArray:
        """Append tokens to a sequence and return their hidden states, [tokens, hidden], after the last norm."""
        cache.reserve(cache.length + len(ids))
        pieces = [self._chunk(ids[at : at + _CHUNK], cache) for at in range(0, len(ids), _CHUNK)]
        return self.final_norm(pieces[0] if len(pieces) == 1 else layers.concatenate(pieces))

    def get_logits(self, hidden: GPUArray) -> GPUArray:
        """Return the scores of the vocabulary, in float32, for hidden states [tokens, hidden]."""
        logits = self.lm_head(hidden).astype("float32", copy=False)
        return layers.softcapped(logits, self.config.logit_softcap)

    def __call__(
        self,
        input_ids: Sequence[int],
        position_ids: Sequence[int] | None = None,
        past_key_values: Sequence[tuple[GPUArray, GPUArray]] | None = None,
        use_cache: bool = False,
    ) -> tuple[GPUArray, list[tuple[GPUArray, GPUArray]] | None]:
        """Return the hidden states of tokens that follow `past_key_values`, and the keys and values if `use_cache`.

        Keys and values are [tokens, heads of keys, dim] per layer.
        """
        ids = [int(token) for token in np.asarray(input_ids).reshape(-1)]
        past = 0 if past_key_values is None else past_key_values[0][0].shape[0]
        if position_ids is not None and list(position_ids) != list(range(past, past + len(ids))):
            raise ValueError(f"position_ids must be {past} to {past + len(ids) - 1}: they follow past_key_values")
        cache = self.new_cache()
        if past_key_values is not None:
            cache.reserve(past + len(ids))
            for target, source in zip(cache.layers, past_key_values, strict=True):
                for to, given in zip(target, source, strict=True):
                    to[:, :past] = given.transpose(1, 0, 2)
            cache.length = past
        hidden = self.step(ids, cache)
        if not use_cache:
            return hidden, None
        return hidden, [
            (k[:, : len(cache)].transpose(1, 0, 2), v[:, : len(cache)].transpose(1, 0, 2)) for k, v in cache.layers
        ]

    forward = __call__

    def _chunk(self, ids: Sequence[int], cache: KVCache) -> GPUArray:
        config, start, tokens = self.config, cache.length, len(ids)
        if tokens == 1:
            x = self.embed_tokens[ids[0] : ids[0] + 1]
        else:
            x = self.embed_tokens[from_numpy(np.asarray(ids, np.int64))]
        if config.embed_scale != 1.0:
            x = x * config.embed_scale
        if self.position_embed is not None:
            x = x + self.position_embed[start : start + tokens]
        tables: dict[Any, Tables | None] = {None: None}
        masks: dict[int, GPUArray | None] = {}
        for layer, block in enumerate(self.blocks):
            rope, window = config.rope_of(layer), config.windows[layer]
            if rope not in tables:
                cos, sin = self._positions(rope, cache.limit)
                tables[rope] = cos[start : start + tokens], sin[start : start + tokens]
            if window not in masks:
                masks[window] = layers.mask(start, tokens, first_seen(start, window), window) if tokens > 1 else None
            x = block(x, tables[rope], cache, masks[window])
        cache.length += tokens
        return x

    def _positions(self, rope: Any, length: int) -> Tables:
        """Cosines and sines of all positions, [positions, 1, pairs], made once."""
        key = rope, rope.is_long(length)
        if key not in self._tables:
            # What decides between short and long is the length that the sequence may get.
            cos, sin = rope.tables(self.max_positions, length, self.max_positions)
            made = [from_numpy(np.ascontiguousarray(table[:, None, :])) for table in (cos, sin)]
            self._tables[key] = made[0], made[1]
        return self._tables[key]


def first_seen(start: int, window: int) -> int:
    """Return the first position that a query at `start` sees."""
    return max(0, start - window + 1) if window else 0
