"""The decoder all architectures share: attention, MLP, block and model, and the keys and values of one sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.errors import ContextLengthError
from pygpukit.llm import layers, sampling
from pygpukit.llm.buffers import DecodeBuffers
from pygpukit.llm.config import TransformerConfig
from pygpukit.llm.fixed_cache import FixedCache, FixedCacheLayer, FixedCacheModel
from pygpukit.llm.layers import Linear, Norm
from pygpukit.llm.rope import Rope
from pygpukit.quant.tensor import QuantTensor

if TYPE_CHECKING:
    from pygpukit.llm.pages import PagedCache

__all__ = ["MLP", "Attention", "CausalTransformerModel", "KVCache", "TransformerBlock"]

Tables = tuple[GPUArray, GPUArray]

# Queries of a prompt that are computed at once: bounds the memory of their scores.
_CHUNK = 256
_FIRST_CAPACITY = 128
_FIRST_POSITIONS = 4096


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

    def attend(self, attn: Attention, q: GPUArray, k: GPUArray, v: GPUArray, step: Step) -> GPUArray:
        """Append keys and values of one layer, and return what its queries see, [heads, tokens, dim]."""
        cache, end = self.layers[attn.layer], step.start + step.tokens
        if attn.rope is None:
            layers.cache_write(k, v, *cache, step.start)
        else:
            cos, sin = step.tables[attn.rope]
            q = layers.norm_rope_write(
                q, k, v, cos, sin, cache, step.places, step.places, *attn.norms, attn.eps, cast="after"
            )
        return attn.see(q, cache[0][:, :end], cache[1][:, :end])

    def __len__(self) -> int:
        return self.length


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Where the tokens of one step are in their sequence.

    Attributes
    ----------
    cache
        Their sequence's, or that of the sequences in a batch.
    start, tokens
        Position of the first, and how many there are.
    places
        Positions on the device, which are the cache's places too.
    tables
        Cosines and sines by the rope that they are of.
    buffers
        Where results are written, with a row per token; new arrays by default.
    """

    cache: KVCache | FixedCache | PagedCache
    start: int
    tokens: int
    places: GPUArray
    tables: dict[Rope, Tables]
    buffers: DecodeBuffers | None = None


class Attention(FixedCacheLayer):
    """Attention of one layer, with its keys and values in a cache: a `KVCache`, or one of a fixed size.

    Parameters
    ----------
    qkv : Linear
        Queries, keys and values side by side.
    o : Linear
    config : TransformerConfig
    layer : int
    q_norm, k_norm : Norm, optional
        Of each head.
    """

    def __init__(
        self,
        qkv: Linear,
        o: Linear,
        config: TransformerConfig,
        layer: int,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
    ) -> None:
        self.qkv, self.o, self.q_norm, self.k_norm = qkv, o, q_norm, k_norm
        self.layer, self.window, self.rope = layer, config.windows[layer] or None, config.rope_of(layer)
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale, self.softcap, self.eps = config.scale, config.attention_softcap or None, config.norm_eps

    @property
    def norms(self) -> tuple[GPUArray | None, GPUArray | None]:
        """Weights of the norms of queries and keys."""
        q, k = (None if norm is None else norm.weight for norm in (self.q_norm, self.k_norm))
        return q, k

    def see(self, q: GPUArray, k: GPUArray, v: GPUArray, **more: Any) -> GPUArray:
        """Return attention of queries [tokens, heads, dim] to keys and values [heads of keys, positions, dim]."""
        seen: GPUArray = layers.attention(
            q.transpose(1, 0, 2), k, v, scale=self.scale, causal=True, window=self.window, softcap=self.softcap, **more
        )
        return seen

    def __call__(self, x: GPUArray, step: Step) -> GPUArray:
        turned, buffers = self.num_heads + self.num_kv_heads, step.buffers
        qkv = self.qkv(x, out=None if buffers is None else buffers.qkv)
        qkv = qkv.reshape(step.tokens, turned + self.num_kv_heads, self.head_dim)
        q, k, v = qkv[:, : self.num_heads], qkv[:, self.num_heads : turned], qkv[:, turned:]
        seen = step.cache.attend(self, q, k, v, step).transpose(1, 0, 2)
        out = None if buffers is None else buffers.o
        return self.o(seen.reshape(step.tokens, self.num_heads * self.head_dim), out=out)


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

    def __call__(self, x: GPUArray, buffers: DecodeBuffers | None = None) -> GPUArray:
        up, mlp, down = (None, None, None) if buffers is None else (buffers.up, buffers.mlp, buffers.down)
        return self.down(layers.activated(self.activation, self.up(x, out=up), self.gated, out=mlp), out=down)


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

    def __call__(self, x: GPUArray, more: GPUArray | None, step: Step) -> tuple[GPUArray, GPUArray]:
        """Return what passes by and what is to be added to it, which the next norm adds."""
        buffers = step.buffers

        def of_sum(norm: Norm, x: GPUArray, more: GPUArray) -> tuple[GPUArray, GPUArray]:
            return norm.of_sum(x, more) if buffers is None else norm.of_sum(x, more, buffers.normed, buffers.beside(x))

        if more is None:
            normed = self.attn_norm(x, None if buffers is None else buffers.normed)
        else:
            normed, x = of_sum(self.attn_norm, x, more)
        out = self.attn(normed, step)
        if self.attn_post_norm is not None:
            out = self.attn_post_norm(out, None if buffers is None else buffers.down)
        normed, x = of_sum(self.mlp_norm, x, out)
        out = self.mlp(normed, buffers)
        if self.mlp_post_norm is not None:
            out = self.mlp_post_norm(out, None if buffers is None else buffers.o)
        return x, out


class CausalTransformerModel(FixedCacheModel):
    """A decoder with its weights.

    Parameters
    ----------
    config : TransformerConfig
    embed_tokens : GPUArray
        [vocabulary, hidden].
    blocks : sequence of TransformerBlock
    final_norm : Norm
    lm_head : GPUArray or QuantTensor, optional
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
        lm_head: GPUArray | QuantTensor | None = None,
        position_embed: GPUArray | None = None,
        spec: Any = None,
    ) -> None:
        self.config, self.embed_tokens, self.blocks = config, embed_tokens, list(blocks)
        self.final_norm, self.position_embed, self.spec = final_norm, position_embed, spec
        self.lm_head = Linear(embed_tokens if lm_head is None else lm_head)
        self.dtype = embed_tokens.dtype
        # Of float8 keys and values in pages, where the checkpoint has some: [layers, 1, 2, 1, heads], NumPy.
        self.kv_scales: Any = None
        # Positions that any sequence may get, which the frequencies of some models depend on.
        self.max_positions = config.max_position_embeddings
        self._tables: dict[tuple[Any, bool], Tables] = {}
        self._init_fixed()

    def new_cache(self, limit: int | None = None) -> KVCache:
        """Return room for the keys and values of one sequence."""
        return KVCache(self.config, self.max_positions if limit is None else limit, self.dtype)

    def step(self, ids: Sequence[int], cache: KVCache) -> GPUArray:
        """Append tokens to a sequence and return their hidden states, [tokens, hidden], after the last norm."""
        cache.reserve(cache.length + len(ids))
        pieces = [self._chunk(ids[at : at + _CHUNK], cache) for at in range(0, len(ids), _CHUNK)]
        return pieces[0] if len(pieces) == 1 else layers.concatenate(pieces)

    def get_logits(self, hidden: GPUArray, out: GPUArray | None = None, *, widen: bool = True) -> GPUArray:
        """Return the scores of the vocabulary, in float32, for hidden states [tokens, hidden].

        ``out``, of the model's type, is where the product is written; it is the result where that needs nothing more.
        Without ``widen`` scores stay in the model's type where they are no more than the product: the same numbers.
        """
        logits = self.lm_head(hidden, out=out)
        if not widen and not self.config.logit_softcap:
            return logits
        logits = logits.astype("float32", copy=False)
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
        return hidden, self._past(cache) if use_cache else None

    forward = __call__

    def generate(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int = 20,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 0.9,
        eos_token_id: int | None = None,
        use_cache: bool = True,
        gpu_sampling: bool = False,
    ) -> list[int]:
        """Return the ids and those that follow; `LLM` does more.

        ``use_cache`` and ``gpu_sampling`` change nothing: keys and values are always kept, tokens are drawn where the
        scores are.
        """
        settings = max_new_tokens, temperature, top_k, top_p, eos_token_id
        return [*(int(token) for token in input_ids), *self.generate_stream(input_ids, *settings)]

    def generate_stream(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int = 20,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 0.9,
        eos_token_id: int | None = None,
        use_cache: bool = True,
        gpu_sampling: bool = False,
    ) -> Iterator[int]:
        """Return an iterator of the ids that follow."""
        ids = [int(token) for token in input_ids]
        cache = self.new_cache()
        for _ in range(max_new_tokens):
            token = sampling.sample_token(self.get_logits(self.step(ids, cache)[-1:]), temperature, top_k, top_p)
            yield token
            if token == eos_token_id:
                return
            ids = [token]

    @classmethod
    def from_safetensors(cls, path: str, dtype: str = "bfloat16", streaming: Any = None) -> CausalTransformerModel:
        """Load a folder, a file or an index.

        Parameters
        ----------
        path : str or path-like
        dtype : str
            Of the weights on the device.
        streaming : StreamingStrategy, optional
            When layers are loaded: all now by default, each when it is first used (`PROGRESSIVE`), or one at a time
            (`LAYER_BY_LAYER`), which reads the whole file for every step.
        """
        from pygpukit.llm.loading import load_model_from_safetensors
        from pygpukit.llm.streaming import StreamingStrategy

        when = StreamingStrategy.EAGER if streaming is None else StreamingStrategy(streaming)
        return load_model_from_safetensors(path, dtype, streaming=when)

    def _chunk(self, ids: Sequence[int], cache: KVCache) -> GPUArray:
        start, tokens = cache.length, len(ids)
        places = from_numpy(np.arange(start, start + tokens))
        step = Step(cache, start, tokens, places, self._all_tables(cache.limit))
        hidden = self._through(from_numpy(np.asarray(ids, np.int64)), step)
        cache.length += tokens
        return hidden

    def _past(self, cache: KVCache) -> list[tuple[GPUArray, GPUArray]]:
        """Keys and values of a sequence, [tokens, heads of keys, dim] per layer."""
        n = len(cache)
        return [(k[:, :n].transpose(1, 0, 2), v[:, :n].transpose(1, 0, 2)) for k, v in cache.layers]

    def _through(self, ids: GPUArray, step: Step, depth: int | None = None) -> GPUArray:
        """Hidden states after the last norm for ids on the device; with `depth` after so many layers only."""
        config, buffers = self.config, step.buffers
        scale = config.embed_scale if config.embed_scale != 1.0 else None
        x = layers.embedding(ids, self.embed_tokens, scale, out=None if buffers is None else buffers.residual)
        if self.position_embed is not None:
            place = None if buffers is None else buffers.normed
            x += layers.embedding(step.places, self.position_embed, out=place)
        more: GPUArray | None = None
        for block in self.blocks[:depth]:
            x, more = block(x, more, step)
        if more is None:
            return self.final_norm(x, None if buffers is None else buffers.hidden)
        places = (None, None) if buffers is None else (buffers.hidden, buffers.beside(x))
        return self.final_norm.of_sum(x, more, *places)[0]

    def _all_tables(self, length: int) -> dict[Rope, Tables]:
        """Cosines and sines of the ropes that layers have."""
        ropes = {rope for rope in (self.config.rope, self.config.local_rope) if rope is not None}
        return {rope: self._positions(rope, length) for rope in ropes}

    def _positions(self, rope: Rope, length: int) -> Tables:
        """Cosines and sines of positions, of at least so many, made once."""
        key = rope, rope.is_long(length)
        made = self._tables.get(key)
        if made is None or (made[0].shape[0] < length and not rope.by_length):
            enough = max(_FIRST_POSITIONS, 1 << (length - 1).bit_length())
            positions = self.max_positions if rope.by_length else min(self.max_positions, enough)
            made = self._tables[key] = rope.tables(positions, length)
        return made
