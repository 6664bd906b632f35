"""Arrays that a decode step writes its results to, so that it takes no memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.llm.config import TransformerConfig

__all__ = ["DecodeBuffers", "PrefillBuffers"]


@dataclasses.dataclass
class DecodeBuffers:
    """Results of one step, shared by all layers, with a row per token.

    Attributes
    ----------
    hidden
        [1, hidden]: after the last norm.
    q, k, v
        [1, heads, dim] and [1, heads of keys, dim], turned by their position where the model does that.
    attn_out
        [heads, 1, dim]: what queries see.
    residual, other, normed
        [1, hidden]: what passes by the layers, in one of two places, and the norm of it.
    qkv, o
        Products of attention: [1, (heads + 2 * heads of keys) * dim] and [1, hidden].
    up, mlp, down
        Of the feed-forward part: the first product, what is left of it after the activation, the second product.
    turned
        [2, heads of keys, 1, dim]: memory of `k` and `v`.
    rows, token_ids, positions
        Numbers of the rows, and the step's tokens and positions, on the device.
    logits
        [1, vocabulary] where a size of the vocabulary was given: the product that scores are made of.
    batch
        The same for several tokens at once, where `max_batch_size` was given.

    Examples
    --------
    >>> config = TransformerConfig(vocab_size=320, hidden_size=48, num_layers=2, num_heads=6, intermediate_size=80)
    >>> buffers = DecodeBuffers.allocate(config, dtype="float32")
    >>> buffers.hidden.shape, buffers.q.shape, buffers.attn_out.shape
    ((1, 48), (1, 6, 8), (6, 1, 8))
    """

    hidden: GPUArray
    q: GPUArray
    k: GPUArray
    v: GPUArray
    attn_out: GPUArray
    residual: GPUArray
    other: GPUArray
    normed: GPUArray
    qkv: GPUArray
    o: GPUArray
    up: GPUArray
    mlp: GPUArray
    down: GPUArray
    turned: GPUArray
    rows: GPUArray
    token_ids: GPUArray
    positions: GPUArray
    logits: GPUArray | None = None
    batch: DecodeBuffers | None = None

    @classmethod
    def allocate(
        cls,
        config: TransformerConfig,
        dtype: Any = "float16",
        use_qk_norm: bool = False,
        vocab_size: int | None = None,
        max_batch_size: int = 0,
        moe_config: Any = None,
    ) -> DecodeBuffers:
        """Return buffers for a model.

        Parameters
        ----------
        config : TransformerConfig
        dtype : DTypeLike
            The model's.
        use_qk_norm : bool
            Changes nothing: heads are normalised where they are turned.
        vocab_size : int, optional
            For the scores too.
        max_batch_size : int
            Tokens that `DecodeBatch` computes at once; 0 for none.
        moe_config : optional
            Not available yet.
        """
        if moe_config is not None:
            raise ValueError("moe_config is given: layers of experts follow with the MoE operators")
        made = cls._of(config, dtype, 1, vocab_size)
        if max_batch_size:
            made.batch = cls._of(config, dtype, max_batch_size, vocab_size)
        return made

    @classmethod
    def _of(cls, config: TransformerConfig, dtype: Any, n: int, vocab_size: int | None) -> DecodeBuffers:
        heads, kv, dim, hidden = config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size

        def rows(*shape: int) -> GPUArray:
            return empty((n, *shape), dtype)

        qkv = rows((heads + 2 * kv) * dim)
        parts, turned = qkv.reshape(n, heads + 2 * kv, dim), empty((2, kv, n, dim), dtype)
        turns = config.rope is not None
        return cls(
            hidden=rows(hidden),
            q=rows(heads, dim) if turns else parts[:, :heads],
            k=turned[0].transpose(1, 0, 2) if turns else parts[:, heads : heads + kv],
            v=turned[1].transpose(1, 0, 2) if turns else parts[:, heads + kv :],
            # The order of memory is that of the product behind it.
            attn_out=rows(heads, dim).transpose(1, 0, 2),
            residual=rows(hidden),
            other=rows(hidden),
            normed=rows(hidden),
            qkv=qkv,
            o=rows(hidden),
            up=rows((1 + config.gated) * config.intermediate_size),
            mlp=rows(config.intermediate_size),
            down=rows(hidden),
            turned=turned,
            rows=from_numpy(np.arange(n)),
            token_ids=empty((n,), "int64"),
            positions=empty((n,), "int32"),
            logits=None if vocab_size is None else rows(vocab_size),
        )

    def beside(self, x: GPUArray) -> GPUArray:
        """Return the place of what passes by the layers that is not in use."""
        return self.other if x is self.residual else self.residual

    @property
    def size(self) -> int:
        """Rows."""
        return int(self.hidden.shape[0])

    def first(self, n: int) -> DecodeBuffers:
        """Return views of the first rows.

        Raises
        ------
        ValueError
            If there are not so many.
        """
        if n == self.size:
            return self
        if not 0 < n < self.size:
            raise ValueError(f"{n} tokens, and the buffers have rows for {self.size}")
        across = {"attn_out": 1, "turned": 2}
        views = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, GPUArray):
                views[field.name] = value[(slice(None),) * across.get(field.name, 0) + (slice(n),)]
        return dataclasses.replace(self, **views, batch=None)

    def place(self, token_ids: Sequence[int], start: int) -> None:
        """Write a step's tokens and positions to the device."""
        _native.write_buffer(self.token_ids, np.asarray(token_ids, np.int64).view(np.uint8))
        _native.write_buffer(self.positions, np.arange(start, start + self.size, dtype=np.int32).view(np.uint8))


@dataclasses.dataclass
class PrefillBuffers(DecodeBuffers):
    """`DecodeBuffers` with a row for every token of a prompt.

    Examples
    --------
    >>> config = TransformerConfig(vocab_size=320, hidden_size=48, num_layers=2, num_heads=6, intermediate_size=80)
    >>> PrefillBuffers.allocate(config, max_seq_len=16, dtype="float32").hidden.shape
    (16, 48)
    """

    @classmethod
    def allocate(  # type: ignore[override]
        cls, config: TransformerConfig, max_seq_len: int = 512, dtype: Any = "float16", use_qk_norm: bool = False
    ) -> PrefillBuffers:
        """Return buffers for prompts of at most `max_seq_len` tokens."""
        made: Any = cls._of(config, dtype, max_seq_len, None)
        return made  # type: ignore[no-any-return]
