"""Tables of rotary embeddings: frequencies, how models of longer contexts change them, and ALiBi's slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import to_numpy_dtype
from pygpukit.ops.registry import export

KINDS = ("plain", "linear", "dynamic", "yarn", "llama3", "longrope")
"""Names as model files have them; theirs for ``plain`` is ``default``."""


def frequencies(
    dim: int,
    length: int,
    kind: str = "plain",
    *,
    base: float = 10000.0,
    factor: float = 1.0,
    original: int | None = None,
    low: float = 1.0,
    high: float = 4.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attention_factor: float | None = None,
    short: Sequence[float] | None = None,
    long: Sequence[float] | None = None,
    divisors: Sequence[float] | None = None,
) -> tuple[Any, float]:
    """Return the angle per position of each pair, float64 of ``dim / 2``, and the factor of cosines and sines.

    Parameters are those of `rope_tables`.

    Examples
    --------
    >>> frequencies(4, 16)[0].tolist()
    [1.0, 0.01]
    """
    _check(dim, length, kind, factor, original)
    powers = np.arange(0, dim, 2, dtype=np.float64) / dim
    first = original or length
    inverse = base**-powers
    if kind == "linear":
        inverse = inverse / factor
    elif kind == "dynamic":
        if dim == 2:
            raise ValueError("rope_tables: kind 'dynamic' needs dim over 2")
        stretched = factor * max(length, first) / first - (factor - 1)
        inverse = (base * stretched ** (dim / (dim - 2))) ** -powers
    elif kind == "yarn":
        inverse = _yarn(inverse, dim, base, factor, first, beta_fast, beta_slow, truncate)
        if attention_factor is None:
            if mscale and mscale_all_dim:
                attention_factor = _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
            else:
                attention_factor = _mscale(factor, 1.0)
    elif kind == "llama3":
        wave = 2 * math.pi / inverse
        blend = (first / wave - low) / (high - low)
        middle = (1 - blend) * inverse / factor + blend * inverse
        inverse = np.where(wave < first / high, inverse, np.where(wave > first / low, inverse / factor, middle))
    elif kind == "longrope":
        chosen = long if length > first else short
        if chosen is None or len(chosen) != dim // 2:
            name, have = ("long", long) if length > first else ("short", short)
            count = "none" if have is None else len(have)
            raise ValueError(f"rope_tables: longrope needs {dim // 2} factors in {name}, not {count}")
        inverse = inverse / np.asarray(chosen, np.float64)
        if attention_factor is None:
            by = factor if factor != 1.0 else length / first
            attention_factor = math.sqrt(1 + math.log(by) / math.log(first)) if by > 1 else 1.0
    if divisors is not None:
        if len(divisors) != dim // 2:
            raise ValueError(f"rope_tables: {len(divisors)} divisors for the {dim // 2} pairs of dim {dim}")
        inverse = inverse / np.asarray(divisors, np.float64)
    return inverse, 1.0 if attention_factor is None else attention_factor


def _check(dim: int, length: int, kind: str, factor: float, original: int | None) -> None:
    if kind not in KINDS and kind != "default":
        raise ValueError(f"rope_tables: kind is {kind!r}; use one of {', '.join(KINDS)}")
    if dim < 2 or dim % 2:
        raise ValueError(f"rope_tables: dim is {dim}; elements turn in pairs, so give an even number")
    if length < 1:
        raise ValueError(f"rope_tables: length is {length}; give the number of positions")
    if not factor > 0:
        raise ValueError(f"rope_tables: factor is {factor}; give a positive number")
    if original is None and kind in ("dynamic", "yarn", "llama3", "longrope"):
        raise ValueError(f"rope_tables: kind {kind!r} needs original, the positions the model was first trained on")


def _mscale(factor: float, by: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def _yarn(inverse: Any, dim: int, base: float, factor: float, first: int, fast: float, slow: float, cut: bool) -> Any:
    def pair_of(turns: float) -> float:
        return dim * math.log(first / (turns * 2 * math.pi)) / (2 * math.log(base))

    begin, end = pair_of(fast), pair_of(slow)
    if cut:
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, dim - 1)
    if begin == end:
        end += 0.001
    ramp = np.clip((np.arange(dim // 2) - begin) / (end - begin), 0, 1)
    return inverse / factor * ramp + inverse * (1 - ramp)


@export
def rope_tables(
    length: int,
    dim: int,
    kind: str = "plain",
    *,
    base: float = 10000.0,
    factor: float = 1.0,
    original: int | None = None,
    low: float = 1.0,
    high: float = 4.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    attention_factor: float | None = None,
    short: Sequence[float] | None = None,
    long: Sequence[float] | None = None,
    divisors: Sequence[float] | None = None,
    dtype: DataType | str = "float32",
) -> tuple[GPUArray, GPUArray]:
    """Cosines and sines of rotary embeddings, ``[length, dim / 2]`` each, for `rope_inplace`.

    Angles are computed in float64 and rounded once, as cosines and sines.

    Parameters
    ----------
    length : int
        Positions: the longest context. Kinds that change with it (``dynamic``, ``longrope``) are fixed by it, so that
        keys in a cache stay valid.
    dim : int
        Elements of a head that turn.
    kind : str
        ``"plain"`` (``"default"``), ``"linear"``, ``"dynamic"`` (NTK), ``"yarn"``, ``"llama3"`` or ``"longrope"``.
    base : float
        Called theta in model files.
    factor : float
        By how much the context was stretched.
    original : int, optional
        Positions before that.
    low, high : float
        llama3's factors of the wavelengths between which it blends.
    beta_fast, beta_slow : float
        YaRN's turns within ``original`` between which it blends.
    truncate : bool
        Whether YaRN rounds these borders to whole pairs.
    mscale, mscale_all_dim : float, optional
        YaRN's scale of the attention, as DeepSeek gives it.
    attention_factor : float, optional
        Factor of cosines and sines; the kind's own by default.
    short, long : sequence of float, optional
        longrope's factors per pair up to ``original`` positions, and beyond.
    divisors : sequence of float, optional
        Divide the angle of each pair, whatever the kind: GGUF's ``rope_freqs``.
    dtype
        Of the tables.

    Returns
    -------
    tuple of GPUArray

    Raises
    ------
    ValueError
        If the kind needs something that is not given.

    Examples
    --------
    >>> import pygpukit as gp
    >>> cos, sin = gp.rope_tables(8192, 128, "llama3", base=500000.0, factor=8.0, original=8192)
    >>> cos.shape, cos[0, 0].item()
    ((8192, 64), 1.0)
    """
    inverse, scale = frequencies(
        dim, length, kind, base=base, factor=factor, original=original, low=low, high=high, beta_fast=beta_fast,
        beta_slow=beta_slow, truncate=truncate, mscale=mscale, mscale_all_dim=mscale_all_dim,
        attention_factor=attention_factor, short=short, long=long, divisors=divisors,
    )  # fmt: skip
    return _tables(length, inverse, scale, dtype)


def _tables(length: int, inverse: Any, scale: float, dtype: DataType | str = "float32") -> tuple[GPUArray, GPUArray]:
    angles = np.arange(length, dtype=np.float64)[:, None] * inverse
    to = to_numpy_dtype(dtype)
    return from_numpy((np.cos(angles) * scale).astype(to)), from_numpy((np.sin(angles) * scale).astype(to))


def _doubled(length: int, inverse: Any, scale: float) -> tuple[GPUArray, GPUArray]:
    return _tables(length, np.concatenate([inverse, inverse]), scale)


@export
def rope_init_linear(
    max_seq_len: int, head_dim: int, base: float = 10000.0, scale: float = 1.0
) -> tuple[GPUArray, GPUArray]:
    """Tables with positions divided by ``scale``, ``[max_seq_len, head_dim]`` each: both halves of a head.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.rope_init_linear(16, 8, scale=2.0)[0].shape
    (16, 8)
    """
    return _doubled(max_seq_len, *frequencies(head_dim, max_seq_len, "linear", base=base, factor=scale))


@export
def rope_init_ntk_aware(
    max_seq_len: int, head_dim: int, base: float = 10000.0, scale: float = 1.0
) -> tuple[GPUArray, GPUArray]:
    """Tables with the base times ``scale ** (dim / (dim - 2))``, ``[max_seq_len, head_dim]`` each.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.rope_init_ntk_aware(16, 8, scale=2.0)[0].shape
    (16, 8)
    """
    base *= scale ** (head_dim / (head_dim - 2))
    return _doubled(max_seq_len, *frequencies(head_dim, max_seq_len, base=base))


@export
def rope_init_yarn(
    max_seq_len: int,
    head_dim: int,
    base: float = 10000.0,
    scale: float = 1.0,
    original_max_len: int = 4096,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale: float = 0.1,
) -> tuple[GPUArray, GPUArray]:
    """YaRN's tables, ``[max_seq_len, head_dim]`` each; cosines and sines times ``mscale * ln(scale) + 1``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.rope_init_yarn(16, 8, scale=2.0, original_max_len=8)[0].shape
    (16, 8)
    """
    attention = mscale * math.log(scale) + 1 if scale > 1 else 1.0
    made = frequencies(
        head_dim, max_seq_len, "yarn", base=base, factor=scale, original=original_max_len, beta_fast=beta_fast,
        beta_slow=beta_slow, attention_factor=attention,
    )  # fmt: skip
    return _doubled(max_seq_len, *made)


@export
def alibi_init_slopes(num_heads: int) -> GPUArray:
    """ALiBi's slope of each head, float32: ``2 ** (-8 h / heads)``, and those between for other than powers of two.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if num_heads < 1:
        raise ValueError(f"alibi_slopes: num_heads is {num_heads}; give a positive number")

    def of(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (h + 1) / n) for h in range(n)]

    whole = 1 << (num_heads.bit_length() - 1)
    slopes = of(whole) + of(2 * whole)[::2][: num_heads - whole]
    return from_numpy(np.asarray(slopes, np.float32))


export(alibi_init_slopes, "alibi_slopes")


@export
def alibi_compute_bias(seq_len: int, num_heads: int, slopes: GPUArray | None = None, causal: bool = True) -> GPUArray:
    """ALiBi's bias of attention scores, float32 ``[num_heads, seq_len, seq_len]``: ``-slope * |i - j|``.

    Parameters
    ----------
    seq_len, num_heads : int
    slopes : GPUArray, optional
        ``[num_heads]``; those of `alibi_slopes` by default.
    causal : bool
        Keys after the query get ``-inf``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.alibi_bias(2, 1)[0].tolist()
    [[0.0, -inf], [-0.00390625, 0.0]]
    """
    chosen = alibi_init_slopes(num_heads) if slopes is None else slopes
    if chosen.shape != (num_heads,):
        raise ValueError(f"alibi_bias: slopes have shape {chosen.shape}; {num_heads} heads need ({num_heads},)")
    at = np.arange(seq_len, dtype=np.float32)
    apart = from_numpy(-np.abs(at[:, None] - at))
    bias = chosen.astype("float32")[:, None, None] * apart
    if causal:
        bias += from_numpy(np.where(at > at[:, None], -np.inf, 0).astype(np.float32))
    return bias


export(alibi_compute_bias, "alibi_bias")


@export
def alibi_add_bias(scores: GPUArray, slopes: GPUArray, start_pos: int = 0) -> GPUArray:
    """Add ALiBi's bias to attention scores in place, and return them: no mask, only ``-slope * |i - j|``.

    Parameters
    ----------
    scores : GPUArray
        ``[..., heads, queries, keys]``, updated.
    slopes : GPUArray
        ``[heads]``.
    start_pos : int
        Position of the first query; that of the first key is 0.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.alibi_add_bias(gp.zeros((1, 1, 1, 3)), gp.ones(1), start_pos=2)[0, 0].tolist()
    [[-2.0, -1.0, 0.0]]
    """
    if scores.ndim < 3 or slopes.shape != (scores.shape[-3],):
        raise ValueError(f"alibi_add_bias: scores {scores.shape} and slopes {slopes.shape} do not fit")
    i, j = (np.arange(n, dtype=np.float32) for n in scores.shape[-2:])
    apart = from_numpy(-np.abs(i[:, None] + np.float32(start_pos) - j))
    scores += (slopes.astype("float32")[:, None, None] * apart).astype(scores.dtype)
    return scores
