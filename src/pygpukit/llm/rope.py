"""Rotary position embedding: the frequencies of every kind of scaling, and tables of cosines and sines.

Dimension pair i of a head turns by ``position * inv_i`` where ``inv_i = theta ** (-2 i / dim)``. Scaled kinds change
the frequencies so that positions beyond those of the training stay in a range the model knows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

__all__ = ["KINDS", "Rope"]

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
    >>> Rope(dim=4, theta=100.0).frequencies(8)[0].tolist()
    [1.0, 0.1]
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

    def is_long(self, length: int) -> bool:
        """Whether a sequence of this length needs other frequencies than a short one, for all of its positions."""
        return self.kind == "longrope" and length > self.original

    def frequencies(self, length: int, limit: int | None = None) -> tuple[Array, float]:
        """Return the frequency of each pair, and the factor of cosines and sines.

        Parameters
        ----------
        length : int
            Positions of the sequence, all that it may get; for ``longrope``.
        limit : int, optional
            Positions that any sequence may get; for ``dynamic``, whose frequencies would else change within a sequence.
        """
        exponents = np.arange(0, self.dim, 2, dtype=np.float64) / self.dim
        plain = self.theta**-exponents
        if self.divisors:
            return plain / np.array(self.divisors), 1.0
        if self.kind == "linear":
            return plain / self.factor, 1.0
        if self.kind == "dynamic":
            ratio = max(length if limit is None else limit, self.original) / self.original
            base = self.theta * (self.factor * ratio - (self.factor - 1)) ** (self.dim / (self.dim - 2))
            return base**-exponents, 1.0
        if self.kind == "yarn":
            return self._yarn(plain)
        if self.kind == "llama3":
            return self._llama3(plain), 1.0
        if self.kind == "longrope":
            factors = self.long_factor if self.is_long(length) else self.short_factor
            scale = self.attention_factor
            if scale is None:
                scale = 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.original))
            return plain / np.array(factors), scale
        return plain, 1.0

    def tables(self, positions: int, length: int | None = None, limit: int | None = None) -> tuple[Array, Array]:
        """Return cosines and sines in float32, for positions from 0 on and each pair."""
        inverse, scale = self.frequencies(positions if length is None else length, limit)
        # As in models' own code the frequencies are float32 and so are the angles.
        angles = np.arange(positions, dtype=np.float32)[:, None] * inverse.astype(np.float32)
        return (np.cos(angles) * np.float32(scale)), (np.sin(angles) * np.float32(scale))

    def _yarn(self, plain: Array) -> tuple[Array, float]:
        def pair_of(turns: float) -> float:
            return self.dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        ramp = np.clip((np.arange(self.dim // 2) - low) / max(high - low, 0.001), 0, 1)
        scale = self.attention_factor
        if scale is None:
            if self.mscale and self.mscale_all_dim:
                scale = self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
            else:
                scale = self._mscale(1.0)
        return plain / self.factor * ramp + plain * (1 - ramp), scale

    def _mscale(self, times: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * times * math.log(self.factor) + 1.0

    def _llama3(self, plain: Array) -> Array:
        wavelength = 2 * math.pi / plain
        smooth = (self.original / wavelength - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        between = plain / self.factor * (1 - smooth) + plain * smooth
        kept = np.where(wavelength > self.original / self.low_freq_factor, plain / self.factor, between)
        return np.where(wavelength < self.original / self.high_freq_factor, plain, kept)
