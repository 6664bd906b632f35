"""Decoding over caches of a fixed size, which belong to the layers: steps, graphs, and guesses that are verified.

Programs written for the published model interface use these. `LLM` has caches of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import CudaGraph, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import zeros
from pygpukit.dtypes import dtype as _dtype
from pygpukit.errors import ContextLengthError
from pygpukit.llm import layers
from pygpukit.llm.arguments import positive
from pygpukit.llm.buffers import DecodeBuffers, PrefillBuffers
from pygpukit.llm.drafters import accepted
from pygpukit.llm.sampling import SamplingParams, best_tokens, no_token

if TYPE_CHECKING:
    from pygpukit.llm.decoder import Attention, CausalTransformerModel, Step

__all__ = ["FixedCache", "FixedCacheLayer", "FixedCacheModel"]

# What a graph cannot know when it is made.
_UNKNOWN = -1


class FixedCacheLayer:
    """What attention has for caches of a fixed size."""

    num_heads: int
    head_dim: int
    dtype: Any = None
    _k_cache: GPUArray | None = None
    _v_cache: GPUArray | None = None

    def init_fixed_cache(self, max_seq_len: int, dtype: Any = None) -> None:
        """Make empty caches ``_k_cache`` and ``_v_cache``, [heads, max_seq_len, dim] each, of the model's type.

        Raises
        ------
        ValueError
            If the model computes in another type than `dtype`.
        """
        positive("max_seq_len", max_seq_len)
        kind = (self.dtype or _dtype("float16")) if dtype is None else _dtype(dtype)
        if self.dtype is not None and kind is not self.dtype:
            raise ValueError(f"dtype is {kind.name}, and the model computes in {self.dtype.name}: give that")
        shape = (self.num_heads, max_seq_len, self.head_dim)
        self._k_cache, self._v_cache = zeros(shape, kind), zeros(shape, kind)


class FixedCache:
    """The caches of all layers: a place per position, with keys and values copied for every head of queries.

    Parameters
    ----------
    size : int
        Places of the caches.
    length : GPUArray, optional
        How many of them are in use, on the device, where that changes between replays.
    """

    def __init__(self, size: int, length: GPUArray | None = None) -> None:
        self.size, self.length = size, length

    def attend(self, attn: Attention, q: GPUArray, k: GPUArray, v: GPUArray, step: Step) -> GPUArray:
        """Write keys and values of one layer, and return what its queries see, [heads, tokens, dim]."""
        k_cache, v_cache = cast(GPUArray, attn._k_cache), cast(GPUArray, attn._v_cache)
        buffers, n = step.buffers, step.tokens
        if attn.rope is not None:
            cos, sin = step.tables[attn.rope]
            turned = zeros((2, attn.num_kv_heads, n, attn.head_dim), q.dtype) if buffers is None else buffers.turned
            rows = from_numpy(np.arange(n)) if buffers is None else buffers.rows
            q = layers.norm_rope_write(
                q, k, v, cos, sin, (turned[0], turned[1]), rows, step.places, *attn.norms, attn.eps, cast="after",
                out=None if buffers is None else buffers.q,
            )  # fmt: skip
            k, v = turned[0].transpose(1, 0, 2), turned[1].transpose(1, 0, 2)
        # One of the copies is read: what the heads of queries share is read once.
        group = attn.num_heads // attn.num_kv_heads
        if self.length is None:
            end = step.start + n
            layers.cache_write(k, v, k_cache, v_cache, step.start)
            more: dict[str, Any] = {}
        else:
            end = self.size
            layers.cache_write(k, v, k_cache, v_cache, step.places[:1])
            more = {"lengths": self.length}
        if buffers is not None:
            more["out"] = buffers.attn_out
        return attn.see(q, k_cache[::group, :end], v_cache[::group, :end], **more)


@dataclasses.dataclass
class _Graph:
    """A recorded step, and what is given to each replay."""

    graph: CudaGraph
    limit: int
    logits: GPUArray
    hidden: GPUArray
    caches: list[GPUArray | None]


class FixedCacheModel:
    """What a model has for caches of a fixed size.

    Attributes
    ----------
    draft_counts : dict
        Guesses that were computed, and those that were right: ``drafted`` and ``accepted``.
    """

    def _init_fixed(self) -> None:
        for block in self._self.blocks:
            # Asking a layer that is loaded later for more would load it.
            if block.attn.dtype is None:
                block.attn.dtype = self._self.dtype
        self.draft_counts = {"drafted": 0, "accepted": 0}
        self._graphs: dict[int, _Graph] = {}
        self._jacobi = 0
        self._confirmed = self._written = 0
        # Tokens by position, for guesses by what was there.
        self._seen: dict[int, int] = {}

    @property
    def _self(self) -> CausalTransformerModel:
        return cast("CausalTransformerModel", self)

    @property
    def _lm_head(self) -> Any:
        return self._self.lm_head.weight

    def _size(self) -> int:
        """Places of the caches."""
        sizes = {None if b.attn._k_cache is None else b.attn._k_cache.shape[1] for b in self._self.blocks}
        if None in sizes or len(sizes) != 1:
            raise ValueError(
                "the layers have no caches of one size: call block.attn.init_fixed_cache(max_seq_len, dtype) for every "
                "block of model.blocks"
            )
        return cast(int, sizes.pop())

    def _check(self, tokens: int, position: int, context_len: int) -> int:
        size = self._size()
        if position < 0 or tokens < 1:
            raise ValueError(f"{tokens} tokens from position {position} on: give at least one, at 0 or behind it")
        if context_len != position + tokens:
            raise ValueError(
                f"context_len is {context_len}, and must be {position + tokens}: {tokens} tokens follow {position}"
            )
        limit = min(size, self._self.max_positions)
        if context_len > limit:
            raise ContextLengthError(f"the sequence would have {context_len} positions, and there is room for {limit}")
        return size

    def _fixed_step(
        self,
        token_ids: Sequence[int],
        position: int,
        context_len: int,
        buffers: DecodeBuffers | None = None,
        depth: int | None = None,
    ) -> GPUArray:
        """Hidden states of tokens at a position, whose keys and values go to the caches."""
        from pygpukit.llm.decoder import Step

        model, n = self._self, len(token_ids)
        size = self._check(n, position, context_len)
        self._note(token_ids, position)
        if buffers is None:
            ids, places = (from_numpy(np.asarray(x, np.int64)) for x in (token_ids, range(position, position + n)))
        else:
            buffers = self._fitting(buffers, n)
            buffers.place(token_ids, position)
            ids, places = buffers.token_ids, buffers.positions
        step = Step(FixedCache(size), position, n, places, model._all_tables(self._positions_needed(size)), buffers)
        return model._through(ids, step, depth)

    def _fitting(self, buffers: DecodeBuffers, n: int) -> DecodeBuffers:
        """Rows of buffers for so many tokens, after a look at their type."""
        found, needed = buffers.hidden.dtype.name, self._self.dtype.name
        if found != needed:
            raise ValueError(
                f"the buffers are {found}, and the model computes in {needed}: allocate them with dtype={needed!r}"
            )
        return buffers.first(n)

    def _positions_needed(self, size: int) -> int:
        """For how many positions tables are made: those of the prefill, where frequencies depend on it."""
        config, most = self._self.config, self._self.max_positions
        by_length = any(rope is not None and rope.by_length for rope in (config.rope, config.local_rope))
        return most if by_length else min(size, most)

    def _note(self, token_ids: Sequence[int], position: int) -> None:
        for place, token in enumerate(token_ids, start=position):
            self._seen[place] = int(token)
        self._written = position + len(token_ids)

    def _decode_step_fixed_cache(self, token_id: int, position: int, context_len: int) -> GPUArray:
        """Return the hidden state [1, hidden] of a token, whose keys and values go to the caches."""
        return self._fixed_step([token_id], position, context_len)

    def _decode_step_fixed_cache_batch(
        self, token_ids: Sequence[int], start_position: int, context_len: int
    ) -> GPUArray:
        """Return the hidden states [tokens, hidden] of tokens one behind the other."""
        return self._fixed_step(token_ids, start_position, context_len)

    def _decode_step_zero_alloc(
        self, token_id: int, position: int, context_len: int, buffers: DecodeBuffers
    ) -> GPUArray:
        """Return the hidden state [1, hidden] of a token in ``buffers.hidden``; the step takes no device memory."""
        return self._fixed_step([token_id], position, context_len, buffers)

    def _prefill_with_buffers(
        self, input_ids: Sequence[int], buffers: PrefillBuffers, use_cache: bool = True
    ) -> tuple[GPUArray, list[tuple[GPUArray, GPUArray]] | None]:
        """The same as ``model(input_ids, use_cache=use_cache)``, with the results of layers in buffers."""
        from pygpukit.llm.decoder import Step

        model, n = self._self, len(input_ids)
        cache = model.new_cache()
        cache.reserve(n)
        fitting = self._fitting(buffers, n)
        fitting.place(input_ids, 0)
        step = Step(cache, 0, n, fitting.positions, model._all_tables(cache.limit), fitting)
        hidden = model._through(fitting.token_ids, step)
        cache.length = n
        return hidden, model._past(cache) if use_cache else None

    def snapshot_kv_cache(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Return copies of the caches of every layer, for `restore_kv_cache`."""
        self._size()
        return [(b.attn._k_cache.to_numpy(), b.attn._v_cache.to_numpy()) for b in self._self.blocks]  # type: ignore[union-attr]

    def restore_kv_cache(self, snapshot: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
        """Write what `snapshot_kv_cache` returned back to the same arrays.

        Raises
        ------
        ValueError
            If it is of another model, or the caches have another size now.
        """
        self._size()
        caches = [(b.attn._k_cache, b.attn._v_cache) for b in self._self.blocks]
        if len(snapshot) != len(caches):
            raise ValueError(f"the snapshot has {len(snapshot)} layers, and the model {len(caches)}")
        pairs = [
            (to, np.asarray(saved))
            for both in zip(caches, snapshot, strict=True)
            for to, saved in zip(*both, strict=True)
        ]
        for to, saved in pairs:
            assert to is not None
            if saved.shape != to.shape or saved.dtype.name != to.dtype.name:
                raise ValueError(
                    f"the snapshot has {saved.dtype.name}{list(saved.shape)}, and the caches are "
                    f"{to.dtype.name}{list(to.shape)}"
                )
        for to, saved in pairs:
            _native.write_buffer(cast(GPUArray, to), np.ascontiguousarray(saved).reshape(-1).view(np.uint8))

    def init_decode_graph(self, max_seq_len: int = 512) -> None:
        """Record a decode step over contexts of at most `max_seq_len` tokens, for `_decode_step_graph_replay`.

        Layers without caches get them. Nothing is computed and nothing is written to caches that are there.

        Raises
        ------
        ValueError
            If the caches are shorter.
        """
        self._need_caches(max_seq_len)
        self._graphs[1] = self._record(1, max_seq_len)

    def _need_caches(self, max_seq_len: int) -> None:
        for block in self._self.blocks:
            if block.attn._k_cache is None:
                block.attn.init_fixed_cache(max_seq_len, self._self.dtype)
        if self._size() < max_seq_len:
            raise ValueError(f"max_seq_len is {max_seq_len}, and the caches have {self._size()} places")

    def _record(self, n: int, max_seq_len: int) -> _Graph:
        from pygpukit.llm.decoder import Step

        model, graph = self._self, CudaGraph()
        ids = graph.parameter("tokens", zeros(n, "int64"))
        places = graph.parameter("positions", zeros(n, "int32"))
        length = graph.parameter("length", zeros(1, "int32"))
        # What does not change is made before, so that a replay does not make it again.
        tables = model._all_tables(self._positions_needed(max_seq_len))
        buffers = DecodeBuffers._of(model.config, model.dtype, n, None)
        step = Step(FixedCache(max_seq_len, length), _UNKNOWN, n, places, tables, buffers)
        with graph.capture():
            hidden = model._through(ids, step)
            logits = model.get_logits(hidden)
        return _Graph(graph, max_seq_len, logits, hidden, [block.attn._k_cache for block in model.blocks])

    def _replay(self, token_ids: Sequence[int], position: int, context_len: int) -> _Graph:
        n = len(token_ids)
        self._check(n, position, context_len)
        made = self._graphs.get(n)
        if made is None:
            raise ValueError("there is no graph: call init_decode_graph() first, or the strategy's init_graph()")
        if context_len > made.limit:
            raise ContextLengthError(
                f"the sequence would have {context_len} positions, and the graph takes {made.limit}"
            )
        now = [block.attn._k_cache for block in self._self.blocks]
        if any(a is not b for a, b in zip(made.caches, now, strict=True)):
            raise ValueError("the caches are other ones than the graph was made for: call init_decode_graph() again")
        self._note(token_ids, position)
        made.graph.replay(
            tokens=from_numpy(np.asarray(token_ids, np.int64)),
            positions=from_numpy(np.arange(position, position + n, dtype=np.int32)),
            length=from_numpy(np.asarray([context_len], np.int32)),
        )
        return made

    def _decode_step_graph_replay(self, token_id: int, position: int, context_len: int) -> GPUArray:
        """Return the scores [1, vocabulary] behind a token by the recorded step; the next replay overwrites them."""
        return self._replay([token_id], position, context_len).logits

    def _verify(self, token_ids: Sequence[int], position: int) -> list[int]:
        """What greedy decoding gives after a token, as far as the guesses behind it are right.

        The first token is known to be right. Keys and values of the tokens before the last returned one are in the
        caches then; those of wrong guesses lie behind them and are overwritten by the next step.
        """
        best = self._best_of(token_ids, position)
        right = accepted(token_ids[1:], best)
        self._count(len(token_ids) - 1, right, position + right + 1)
        return best[: right + 1]

    def _best_of(self, token_ids: Sequence[int], position: int) -> list[int]:
        """The best token behind each of these."""
        return self._argmax(self._fixed_step(token_ids, position, position + len(token_ids)))

    def _argmax(self, hidden: GPUArray) -> list[int]:
        tokens = [int(token) for token in best_tokens(self._self.get_logits(hidden, widen=False)).tolist()]
        if min(tokens) < 0:
            raise no_token(SamplingParams())
        return tokens

    def _count(self, drafted: int, accepted: int, written: int) -> None:
        """Count guesses; positions from `written` on hold what was guessed wrong."""
        self.draft_counts["drafted"] += drafted
        self.draft_counts["accepted"] += accepted
        self._written = written

    def init_jacobi_decode(self, lookahead_k: int = 4, max_seq_len: int = 512) -> None:
        """Allow `jacobi_decode_step` up to `lookahead_k` guesses; layers without caches get them."""
        positive("lookahead_k", lookahead_k)
        self._need_caches(max_seq_len)
        self._jacobi = lookahead_k

    def jacobi_decode_step(self, draft_tokens: Sequence[int], position: int) -> list[int]:
        """Return at least one id, each what greedy decoding gives; their context is in the caches.

        Parameters
        ----------
        draft_tokens : sequence of int
            The last accepted token, which is at `position`, then guesses of what follows.
        position : int
            The next step begins with the last returned id, at ``position`` plus how many were returned.
        """
        if not self._jacobi:
            raise ValueError("call init_jacobi_decode() first")
        if not 1 <= len(draft_tokens) <= self._jacobi + 1:
            raise ValueError(
                f"{len(draft_tokens)} draft tokens: give the last token and at most {self._jacobi} guesses"
            )
        return self._verify([int(token) for token in draft_tokens], position)

    def set_lookahead_confirmed_pos(self, position: int) -> None:
        """Say how many positions of the caches hold accepted tokens, such as after a prefill."""
        if not 0 <= position <= self._size():
            raise ValueError(f"the position is {position}, and the caches have {self._size()} places")
        self._confirmed = self._written = position

    def get_lookahead_confirmed_pos(self) -> int:
        """Return how many positions of the caches hold accepted tokens."""
        return self._confirmed

    def reset_lookahead_all(self) -> None:
        """Drop what was computed behind the accepted tokens: the next step overwrites it."""
        self._written = self._confirmed

    def commit_lookahead_all(self, n: int) -> None:
        """Accept the next `n` positions.

        Raises
        ------
        ValueError
            If they were not computed.
        """
        if not 0 <= n <= self._written - self._confirmed:
            raise ValueError(
                f"{n} positions cannot be accepted: {max(self._written - self._confirmed, 0)} were computed"
            )
        self._confirmed += n
