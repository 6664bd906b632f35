"""Attention against float64 arithmetic: shapes, masks, windows, caches, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops import planner
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
    x = np.where(seen, x, -np.inf)
    weights = np.exp(x - x.max(-1, keepdims=True, initial=-1e30))
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


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    with gp.device(request.param) as current:
        yield current


def check(
    dtype: str, heads: tuple[int, int], tokens: int, keys: int, dim: int, mask: Any = None, **options: Any
) -> None:
    q = normal(dtype, heads[0], tokens, dim, seed=1)
    k, v = (normal(dtype, heads[1], keys, dim, seed=s) for s in (2, 3))
    ours = None if mask is None else gp.from_numpy(mask)
    got = gp.sdpa(*map(gp.from_numpy, (q, k, v)), mask=ours, **options)
    full = None if mask is None else np.broadcast_to(mask, (heads[0], tokens, keys))
    assert_near(got, exact(q, k, v, mask=full, **options))


# Keys: one, a chunk and its neighbours. Rows: the kernel that splits keys (up to 64) and the one for many.
@pytest.mark.parametrize("keys", [1, 127, 128, 129, 257])
def test_lengths_around_chunks(keys: int, device: gp.Device) -> None:
    for tokens in (1, 7, 70):
        check("bfloat16", (2, 1), tokens, keys, 64)
        if tokens <= keys:
            check("bfloat16", (2, 1), tokens, keys, 64, causal=True)
        check("bfloat16", (1, 1), tokens, keys, 64, causal=True, window=100, start=keys // 2)


@pytest.mark.parametrize(
    ("dtype", "dim", "tokens"),
    [
        ("float16", 64, 3), ("bfloat16", 80, 70), ("bfloat16", 128, 20), ("bfloat16", 256, 65), ("bfloat16", 200, 9),
        ("bfloat16", 13, 5), ("float16", 300, 2), ("float32", 40, 3), ("float64", 7, 2),
    ],
)  # fmt: skip
def test_sizes_of_a_head(dtype: str, dim: int, tokens: int, device: gp.Device) -> None:
    check(dtype, (3, 1), tokens, 140, dim, causal=True)


def test_masks_of_every_kind(device: gp.Device) -> None:
    rng = np.random.default_rng(5)
    for dtype, tokens in (("bfloat16", 4), ("bfloat16", 70), ("float32", 4)):
        shape = (4, tokens, 150)
        seen = rng.random(shape) < 0.4
        seen[1, 2] = False
        check(dtype, (4, 2), tokens, 150, 64, mask=seen)
        check(dtype, (4, 2), tokens, 150, 64, mask=seen[0], causal=True, softcap=2.0)
        added = rng.standard_normal((1, tokens, 1)).astype(np.float32)
        added[0, 1] = -np.inf
        check(dtype, (4, 2), tokens, 150, 64, mask=added)
        check(dtype, (4, 2), tokens, 150, 64, mask=rng.standard_normal(shape).astype(gp.to_numpy_dtype(dtype)))


def test_a_mask_of_each_batch(device: gp.Device) -> None:
    q, k, v = (normal("bfloat16", 2, h, n, 64, seed=h) for h, n in ((2, 5), (1, 30), (1, 30)))
    mask = np.random.default_rng(1).random((2, 1, 5, 30)) < 0.5
    got = gp.sdpa(*map(gp.from_numpy, (q, k, v)), mask=gp.from_numpy(mask))
    assert_near(got, np.stack([exact(q[b], k[b], v[b], mask=np.repeat(mask[b], 2, axis=0)) for b in range(2)]))


def test_queries_that_see_nothing_give_zeros(device: gp.Device) -> None:
    for tokens in (3, 100):
        q, k = gp.ones((2, tokens, 64), "bfloat16"), gp.ones((2, 9, 64), "bfloat16")
        hidden = gp.zeros((tokens, 9), "bool")
        assert not gp.sdpa(q, k, k, mask=hidden).to_numpy().astype(np.float32).any()
        assert not gp.sdpa(q, k, k, window=2, start=50).to_numpy().astype(np.float32).any()
    empty = gp.zeros((2, 0, 64), "bfloat16")
    assert not gp.sdpa(q, empty, empty).to_numpy().astype(np.float32).any()
    assert gp.sdpa(empty, k, k).shape == (2, 0, 64)


def test_infinite_and_large_scores(device: gp.Device) -> None:
    q, k, v = (normal("bfloat16", 1, n, 64, seed=n) for n in (2, 40, 40))
    # Weights of all but the largest score vanish, and nothing overflows.
    got = gp.sdpa(*map(gp.from_numpy, (q, k, v)), scale=1e4).to_numpy()
    best = (q.astype(np.float32) @ k.astype(np.float32).swapaxes(1, 2)).argmax(-1)
    np.testing.assert_array_equal(got, v[0][best])
    k[0, 3] = np.nan
    assert np.isnan(gp.sdpa(*map(gp.from_numpy, (q, k, v))).to_numpy().astype(np.float32)).all()


def test_layouts(device: gp.Device) -> None:
    """Heads behind tokens, keys and values side by side, rows at odd distances, results into a part of an array."""
    q, k, v = (normal("bfloat16", n, h, 64, seed=n + h) for n, h in ((6, 4), (20, 2), (20, 2)))
    want = exact(*(x.swapaxes(0, 1) for x in (q, k, v)), causal=True)
    a = gp.from_numpy(q).transpose(1, 0, 2)
    both = gp.from_numpy(np.concatenate([k, v], axis=-1)).transpose(1, 0, 2)
    assert_near(gp.sdpa(a, both[..., :64], both[..., 64:], causal=True), want)
    room = gp.zeros((6, 4, 67), "bfloat16")
    gp.sdpa_causal(a, both[..., :64], both[..., 64:], out=room[..., 3:].transpose(1, 0, 2))
    assert_near(room[..., 3:].transpose(1, 0, 2), want)
    assert not room[..., :3].to_numpy().astype(np.float32).any()
    odd = gp.from_numpy(np.concatenate([k[..., :1], k, v], axis=-1)).transpose(1, 0, 2)
    assert_near(gp.sdpa(a, odd[..., 1:65], odd[..., 65:], causal=True), want)


def test_a_paged_cache_against_the_definition(device: gp.Device) -> None:
    for dtype, dim, page in (("bfloat16", 64, 16), ("float32", 24, 5), ("float16", 12, 1)):
        cache = normal(dtype, 40 // page + 1, 2, page, 2, dim)
        table = np.array([[1, 0, 2], [2, 1, 0]], np.int32) if page > 1 else np.arange(78, dtype=np.int32).reshape(2, 39)
        q = normal(dtype, 5, 4, dim, seed=4)
        lengths, starts = np.array([9, 11], np.int32), np.array([0, 3, 4], np.int32)
        if page == 1:
            table[1] = table[0, ::-1]
        got = gp.sdpa_paged(*map(gp.from_numpy, (q, cache, table, lengths, starts)), window=7)
        want = np.zeros(q.shape)
        for s, (first, end) in enumerate(((0, 3), (3, 4))):
            held = cache[table[s]].swapaxes(0, 1).reshape(2, -1, 2, dim)[:, : lengths[s]].swapaxes(1, 2)
            want[first:end] = exact(q[first:end].swapaxes(0, 1), *held, causal=True, window=7).swapaxes(0, 1)
        assert_near(got, want)


def test_what_does_not_fit_is_refused() -> None:
    q, k, length = gp.ones((4, 3, 8)), gp.ones((2, 5, 8)), gp.asarray([3], "int32")
    refused: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (gp.ShapeError, "4 heads of queries cannot share 3", (q, gp.ones((3, 5, 8)), gp.ones((3, 5, 8))), {}),
        (gp.ShapeError, "must have one shape", (q, k, gp.ones((2, 4, 8))), {}),
        (gp.ShapeError, "last axis of q", (q, gp.ones((2, 5, 4)), gp.ones((2, 5, 4))), {}),
        (gp.ShapeError, r"\[heads, tokens, dim\]", (gp.ones((3, 8)), k, k), {}),
        (gp.ShapeError, "different sizes", (gp.ones((2, 4, 3, 8)), gp.ones((3, 2, 5, 8)), gp.ones((3, 2, 5, 8))), {}),
        (gp.DTypeError, "q float32, k float16", (q, k.astype("float16"), k), {}),
        (gp.DTypeError, "not defined", (q.astype("int32"), k.astype("int32"), k.astype("int32")), {}),
        (gp.DTypeError, "written to float16", (q, k, k), {"out": gp.zeros((4, 3, 8), "float16")}),
        (ValueError, "scale is -1", (q, k, k), {"scale": -1}),
        (ValueError, "window is 0", (q, k, k), {"window": 0}),
        (ValueError, "softcap is nan", (q, k, k), {"softcap": float("nan")}),
        (ValueError, "start is -2", (q, k, k), {"start": -2}),
        (ValueError, "do not give start", (q, k, k), {"start": 1, "lengths": length}),
        (gp.ShapeError, "3 queries and 2 keys", (q, k[:, :2], k[:, :2]), {"causal": True}),
        (gp.ShapeError, "1 or 1 elements", (q, k, k), {"lengths": gp.zeros(2, "int32")}),
        (gp.DTypeError, "lengths is int64", (q, k, k), {"lengths": gp.zeros(1, "int64")}),
        (gp.ShapeError, "does not broadcast", (q, k, k), {"mask": gp.zeros((4, 5), "bool")}),
        (gp.DTypeError, "mask is int8", (q, k, k), {"mask": gp.zeros((3, 5), "int8")}),
    ]
    for error, text, arrays, options in refused:
        with pytest.raises(error, match=text):
            gp.sdpa(*arrays, **options)
    with pytest.raises(gp.ShapeError, match="a context of 6 tokens, but the cache holds 5"):
        gp.sdpa_causal_fixed_cache(q, k, k, q, 6)
    cache, table, starts = gp.ones((3, 2, 4, 2, 8)), gp.zeros((1, 2), "int32"), gp.zeros(2, "int32")
    rows = gp.ones((3, 4, 8))
    for error, text, given, options in [
        (gp.ShapeError, "one layer", (rows, gp.ones((3, 1, 2, 4, 2, 8)), table, length, starts), {}),
        (gp.ShapeError, "one element more", (rows, cache, table, length, length), {}),
        (gp.ShapeError, "as many sequences", (rows, cache, gp.zeros((2, 2), "int32"), length, starts), {}),
        (gp.DTypeError, "page_table is int64", (rows, cache, gp.zeros((1, 2), "int64"), length, starts), {}),
        (ValueError, "max_queries is -1", (rows, cache, table, length, starts), {"max_queries": -1}),
        (
            ValueError,
            "3 queries, but max_queries is 2",
            (rows, cache, table, length, gp.asarray([0, 3], "int32")),
            {"max_queries": 2},
        ),
        (IndexError, "page 7", (rows, cache, table + 7, length, gp.asarray([0, 3], "int32")), {}),
    ]:
        with pytest.raises(error, match=text):
            gp.sdpa_paged(*given, **options)


def test_a_new_length_does_not_ask_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    native.clear_plans()
    monkeypatch.setattr(planner, "choose", lambda *a, real=planner.choose: asked.append(1) or real(*a))
    with gp.device("emulated"):
        q, cache = gp.ones((4, 1, 64), "bfloat16"), gp.ones((2, 300, 64), "bfloat16")
        for n in (2, 17, 128, 129, 300):
            gp.sdpa(q, cache[:, :n], cache[:, :n], causal=True)
    assert len(asked) == 1
