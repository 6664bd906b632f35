"""Attention against float64 arithmetic: shapes, masks, windows, caches, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit.ops.registry import load


def normal(dtype: str, *shape: int, seed: int = 0) -> op_cases.Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(gp.to_numpy_dtype(dtype))


def exact(
    q: op_cases.Array,
    k: op_cases.Array,
    v: op_cases.Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    window: int | None = None,
    softcap: float | None = None,
    start: int | None = None,
) -> op_cases.Array:
    """The definition in float64, for one batch, with every key of every head written out."""
    heads, tokens, dim = q.shape
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, heads // len(x), axis=0) for x in (k, v))
    keys = k.shape[1]
    at = np.arange(tokens)[:, None] + (keys - tokens if start is None else start)
    back = at - np.arange(keys)
    seen = np.ones((heads, tokens, keys), bool)
    if causal:
        seen &= back >= 0
    if window is not None:
        seen &= np.abs(back) < window
    x = q @ k.swapaxes(1, 2) * (dim**-0.5 if scale is None else scale)
    if softcap is not None:
        x = softcap * np.tanh(x / softcap)
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        x = x + mask.astype(np.float64)
    weights = np.where(seen, np.exp(x - np.where(seen, x, -np.inf).max(-1, keepdims=True, initial=-1e30)), 0)
    total = weights.sum(-1, keepdims=True)
    result: op_cases.Array = weights / np.where(total > 0, total, 1) @ v
    return result


def assert_near(got: gp.GPUArray, want: op_cases.Array) -> None:
    limit = load()["sdpa"].tolerance[got.dtype.name] * max(1.0, float(np.abs(want).max(initial=0)))
    assert np.abs(got.to_numpy().astype(np.float64) - want).max(initial=0) <= limit


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window": 7},
    {"window": 5, "scale": 0.2},
    {"causal": True, "softcap": 3.0, "window": 100},
    {"causal": True, "start": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numpy_gives_the_definition(dtype: str, options: dict[str, Any]) -> None:
    for tokens, keys, heads, kv_heads, dim in ((5, 9, 4, 2, 16), (1, 1, 1, 1, 1), (9, 9, 3, 3, 8), (40, 200, 6, 2, 24)):
        q, k, v = (normal(dtype, h, n, dim, seed=h) for h, n in ((heads, tokens), (kv_heads, keys), (kv_heads, keys)))
        with gp.device("cpu"):
            got = gp.sdpa(*map(gp.from_numpy, (q, k, v)), **options)
        assert_near(got, exact(q, k, v, **options))
