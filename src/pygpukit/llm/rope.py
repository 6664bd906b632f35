"""How a model embeds positions: the settings of its files, and tables of cosines and sines made by them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops.nn.tables import frequencies, rope_tables

__all__ = ["KINDS", "Rope", "apply_rotary_pos_emb_numpy", "precompute_freqs_cis"]

Array = np.ndarray[Any, Any]

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


@dataclasses.dataclass(frozen=True, slots=True)
class Rope:
    """How positions are embedded.

    Attributes
    ----------
    dim
        Dimensions of a head that turn; the others pass.
    theta
        The base.
    kind
        One of `KINDS`.
    factor
        How many times longer the context is than in training.
    original
        Positions of the training.
    low_freq_factor, high_freq_factor
        Of ``llama3``: wavelengths that divide the training's positions more often than this are kept, or are not.
    beta_fast, beta_slow, truncate, attention_factor, mscale, mscale_all_dim
        Of ``yarn``; `attention_factor` also of ``longrope``.
    short_factor, long_factor
        Of ``longrope``, a divisor per pair.
    divisors
        A divisor per pair that a GGUF file brings in place of its kind.

    Examples
    --------
    >>> Rope(dim=4, theta=100.0).tables(8)[0].shape
    (8, 2)
    """

    dim: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        pairs = self.dim // 2
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"rotary dimensions come in pairs, and there are {self.dim}")
        if self.kind == "dynamic" and self.dim == 2:
            raise ValueError("rope type 'dynamic' needs more than 2 dimensions")
        if self.kind not in KINDS:
            raise ValueError(f"rope type {self.kind!r} is unknown; known are {', '.join(KINDS)}")
        positive = {"theta": self.theta, "factor": self.factor, "original positions": self.original}
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"the {name} of rope must be a positive number, not {value!r}")
        lists = {"short_factor": self.short_factor, "long_factor": self.long_factor, "divisors": self.divisors}
        for name, values in lists.items():
            needed = self.kind == "longrope" and name != "divisors"
            if (values or needed) and (len(values) != pairs or not all(v > 0 for v in values)):
                raise ValueError(f"{name} of rope must be {pairs} positive numbers, and there are {len(values)}")

    @property
    def by_length(self) -> bool:
        """Whether frequencies depend on how many positions there may be."""
        return self.kind in ("dynamic", "longrope")

    def is_long(self, length: int) -> bool:
        """Whether a sequence of this length needs other frequencies than a short one, for all of its positions."""
        return self.kind == "longrope" and length > self.original

    def tables(self, positions: int, length: int | None = None) -> tuple[GPUArray, GPUArray]:
        """Return cosines and sines on the device, [positions, pairs] each.

        Parameters
        ----------
        positions : int
            All that any sequence may get: what frequencies depend on must not change within one.
        length : int, optional
            Positions that the sequence may get, `positions` by default.
        """
        if self.divisors:
            return rope_tables(
                positions, self.dim, "longrope", base=self.theta, original=positions, short=self.divisors,
                attention_factor=1.0,
            )  # fmt: skip
        if self.kind == "longrope" and not self.is_long(positions if length is None else length):
            positions = min(positions, self.original)
        return rope_tables(
            positions, self.dim, self.kind, base=self.theta, factor=self.factor, original=self.original,
            low=self.low_freq_factor, high=self.high_freq_factor, beta_fast=self.beta_fast, beta_slow=self.beta_slow,
            truncate=self.truncate, mscale=self.mscale, mscale_all_dim=self.mscale_all_dim,
            attention_factor=self.attention_factor, short=self.short_factor, long=self.long_factor,
        )  # fmt: skip


def precompute_freqs_cis(head_dim: int, max_seq_len: int, theta: float = 10000.0) -> tuple[Array, Array]:
    """Return cosines and sines as NumPy arrays, float32 [max_seq_len, head_dim]; both halves of a row are the same.

    Models make their own tables, by the settings of their files.

    Examples
    --------
    >>> cos, sin = precompute_freqs_cis(4, 8)
    >>> cos.shape, sin[0].tolist()
    ((8, 4), [0.0, 0.0, 0.0, 0.0])
    """
    inverse, _ = frequencies(head_dim, max_seq_len, base=theta)
    angles = np.outer(np.arange(max_seq_len), inverse)
    twice = np.concatenate((angles, angles), axis=1)
    return np.cos(twice).astype(np.float32), np.sin(twice).astype(np.float32)


def apply_rotary_pos_emb_numpy(q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Return queries and keys [tokens, heads, dim] turned by rows of `precompute_freqs_cis`, a row per token.

    Examples
    --------
    >>> cos, sin = precompute_freqs_cis(2, 2)
    >>> apply_rotary_pos_emb_numpy(np.ones((2, 1, 2)), np.ones((2, 1, 2)), cos, sin)[0][0].tolist()
    [[1.0, 1.0]]
    """

    def turned(x: Array) -> Array:
        first, second = np.split(x, 2, axis=-1)
        result: Array = x * cos[:, None] + np.concatenate((-second, first), axis=-1) * sin[:, None]
        return result

    return turned(q), turned(k)
