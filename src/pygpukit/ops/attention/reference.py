"""Attention over NumPy arrays: what the CPU device runs, and what kernels are compared with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_SCORES = 1 << 21
"""Scores computed at a time: more would leave the caches of a core."""


def default_scale(dim: int) -> float:
    """Return what scores are multiplied by unless a scale is given: ``1 / sqrt(dim)``."""
    return 1.0 / math.sqrt(dim)


def widened(x: Any, dtype: Any = None) -> Any:
    """Return an array in the type that attention is computed in: float32, or float64 as it is."""
    if dtype is not None:
        return x.astype(dtype, copy=False)
    if x.dtype.name == "bfloat16":
        # The upper half of a float32: a shift is faster than the conversion of ml_dtypes.
        return np.left_shift(x.view(np.uint16).astype(np.uint32), 16).view(np.float32)
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    window: int | None = None,
    softcap: float | None = None,
    start: int | None = None,
    dtype: Any = None,
) -> Any:
    """Return the attention of queries ``[heads, tokens, dim]`` to keys and values ``[kv_heads, keys, dim]``.

    Parameters
    ----------
    q, k, v
        Heads of ``q`` are a multiple of those of ``k``; each group of neighbours shares a head of ``k``.
    scale, causal, mask, window, softcap, start
        As `pygpukit.sdpa` takes them; ``mask`` broadcasts to ``[heads, tokens, keys]``.
    dtype
        Type to compute in; that of `widened` by default.

    Returns
    -------
    numpy.ndarray
        ``[heads, tokens, dim]`` in the type it was computed in.
    """
    heads, tokens, dim = q.shape
    kv_heads, keys = k.shape[:2]
    group = heads // max(kv_heads, 1)
    q, k, v = (widened(x, dtype) for x in (q, k, v))
    out = np.zeros((heads, tokens, v.shape[-1]), q.dtype)
    if keys == 0 or out.size == 0:
        return out
    first = keys - tokens if start is None else start
    if mask is not None:
        mask = np.broadcast_to(mask, (heads, tokens, keys))
    step = max(1, _SCORES // max(1, heads * keys))
    for at in range(0, tokens, step):
        n = min(step, tokens - at)
        low, high = visible(first + at, first + at + n, keys, causal, window)
        if low >= high:
            continue
        # Queries that share a head of keys are rows of one product.
        rows = q[:, at : at + n].reshape(kv_heads, group * n, dim) * q.dtype.type(scale or default_scale(dim))
        x = rows @ k[:, low:high].swapaxes(-1, -2)
        if softcap:
            x = np.tanh(x / x.dtype.type(softcap)) * x.dtype.type(softcap)
        x = x.reshape(heads, n, high - low)
        part = None if mask is None else mask[:, at : at + n, low:high]
        if part is not None and part.dtype != np.bool_:
            x = x + widened(part, x.dtype)
        hidden = hidden_keys(first + at, n, low, high, causal, window)
        if part is not None and part.dtype == np.bool_:
            hidden = ~part if hidden is None else hidden | ~part
        if hidden is not None:
            np.putmask(x, np.broadcast_to(hidden, x.shape), -np.inf)
        out[:, at : at + n] = _weighted(x.reshape(kv_heads, group * n, -1), v[:, low:high]).reshape(heads, n, -1)
    return out


def _weighted(x: Any, v: Any) -> Any:
    """Values weighted by the softmax of scores; zeros where a row has no key."""
    largest = x.max(-1, keepdims=True)
    # Without a key the largest score is -inf: any finite number leaves the weights at zero.
    x -= np.where(largest == -np.inf, x.dtype.type(0), largest)
    np.exp(x, out=x)
    total = x.sum(-1, keepdims=True)
    made = x @ v
    made /= np.where(total == 0, total.dtype.type(1), total)
    return made


def visible(first: int, end: int, keys: int, causal: bool, window: int | None) -> tuple[int, int]:
    """Return the range outside of which no query at positions ``first`` to ``end - 1`` sees a key."""
    low = 0 if window is None else first - window + 1
    high = end if causal else keys if window is None else end - 1 + window
    return max(0, low), min(keys, high)


def hidden_keys(first: int, tokens: int, low: int, high: int, causal: bool, window: int | None) -> Any:
    """Return which of the keys ``low`` to ``high - 1`` each query does not see; None if each sees all."""
    sees_last = not causal or high <= first + 1
    sees_first = window is None or low > first + tokens - 1 - window
    if sees_last and sees_first and (causal or window is None or high <= first + window):
        return None
    back = np.arange(first, first + tokens)[:, None] - np.arange(low, high)
    hidden = back < 0 if causal else np.zeros(back.shape, bool)
    if window is not None:
        hidden |= np.abs(back) >= window
    return hidden


def sdpa(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    window: int | None = None,
    softcap: float | None = None,
    start: int | None = None,
    lengths: Any = None,
    dtype: Any = None,
) -> Any:
    """Return what `pygpukit.sdpa` gives, of NumPy arrays; in float32 or wider if ``dtype`` says so."""
    result = np.empty(q.shape, dtype or q.dtype)
    options = {"scale": scale, "causal": causal, "window": window, "softcap": softcap, "dtype": dtype}
    batched = q.ndim == 4
    for b in range(q.shape[0] if batched else 1):
        one, keys, values, to = (x[b] if batched else x for x in (q, k, v, result))
        part = mask
        if part is not None and part.ndim == 4:
            part = part[b if part.shape[0] > 1 else 0]
        at = start
        if lengths is not None:
            n = min(max(int(lengths[b if lengths.size > 1 else 0]), 0), keys.shape[1])
            keys, values, at = keys[:, :n], values[:, :n], n - one.shape[1]
            if part is not None and part.shape[-1] > 1:
                part = part[..., :n]
        to[...] = attend(one, keys, values, mask=part, start=at, **options)
    return result


def decoded(codes: Any, scales: Any, kind: Any) -> Any:
    """Return the numbers of codes: code times scale in float32, rounded once to a type."""
    with np.errstate(all="ignore"):
        values = codes.astype(np.float32)
        if scales is not None:
            values = values * scales[..., None]
        return values.astype(kind)


def encoded(numbers: Any, kind: Any, scales: Any) -> tuple[Any, Any]:
    """Return the codes of numbers in a type, and of int8 their scales: one per row of the last axis.

    float8 takes the scales that are given, or 1, and what is too large becomes the largest.
    """
    with np.errstate(all="ignore"):
        wide = numbers.astype(np.float32)
        if kind == np.int8:
            scales = np.abs(wide).max(-1) / np.float32(127)
            codes = np.rint(wide / np.where(scales == 0, np.float32(1), scales)[..., None])
            return np.where(np.isnan(codes), 0, np.clip(codes, -127, 127)).astype(np.int8), scales
        if scales is not None:
            wide = wide / scales[..., None]
        return np.clip(wide, -448, 448).astype(kind), scales


def gather_pages(cache: Any, pages: Any, length: int, scales: Any = None, kind: Any = None) -> tuple[Any, Any]:
    """Return the keys and values ``[kv_heads, length, dim]`` that pages of a layer's cache hold, codes as numbers."""
    page_tokens = cache.shape[2]
    used = pages[: -(-length // page_tokens)]
    count = len(used)
    if count and not 0 <= used.min() <= used.max() < len(cache):
        bad = used.min() if used.min() < 0 else used.max()
        raise IndexError(f"sdpa_paged(): page {bad} in a cache of {len(cache)} pages")
    held = cache[used]
    if kind is not None and held.dtype != kind:
        factors = None if scales is None else np.broadcast_to(scales, cache.shape[:-1])[used]
        held = decoded(held, factors, kind)
    keys, values = (held[:, i].reshape(count * page_tokens, *cache.shape[3:])[:length] for i in (0, 1))
    return keys.swapaxes(0, 1), values.swapaxes(0, 1)


def decoded_pages(cache: Any, page_table: Any, scales: Any, kind: Any) -> tuple[Any, Any]:
    """Return the numbers of the pages in a table, and the table of these; pages that are none stay as they are."""
    there = (page_table >= 0) & (page_table < len(cache))
    used = np.unique(page_table[there])
    factors = None if scales is None else np.broadcast_to(scales, cache.shape[:-1])[used]
    renamed = np.where(there, np.searchsorted(used, page_table), page_table).astype(np.int32)
    return decoded(cache[used], factors, kind), renamed


def check_queries(query_starts: Any, max_queries: int) -> None:
    """Refuse a sequence with more queries than the caller said."""
    counts = np.diff(query_starts)
    if counts.size and counts.max() > max_queries:
        s = int(counts.argmax())
        raise ValueError(f"sdpa_paged(): sequence {s} has {counts[s]} queries, but max_queries is {max_queries}")


def sdpa_paged(
    q: Any,
    cache: Any,
    page_table: Any,
    lengths: Any,
    query_starts: Any,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    max_queries: int = 0,
    kv_scales: Any = None,
    dtype: Any = None,
) -> Any:
    """Return what `pygpukit.sdpa_paged` gives, of NumPy arrays."""
    result = np.zeros(q.shape, dtype or q.dtype)
    if max_queries:
        check_queries(query_starts, max_queries)
    for s, length in enumerate(lengths.tolist()):
        first, end = int(query_starts[s]), int(query_starts[s + 1])
        if end <= first or length <= 0:
            continue
        length = min(length, page_table.shape[1] * cache.shape[2])
        keys, values = gather_pages(cache, page_table[s], length, kv_scales, q.dtype)
        made = attend(
            q[first:end].swapaxes(0, 1), keys, values,
            scale=scale, causal=True, window=window, softcap=softcap, start=length - (end - first), dtype=dtype,
        )  # fmt: skip
        result[first:end] = made.swapaxes(0, 1)
    return result
