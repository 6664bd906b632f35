"""Caches of keys and values: every layout and word size, on every device, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import op_cases
import pytest

import pygpukit as gp


@pytest.fixture(
    params=[
        pytest.param("cuda", marks=pytest.mark.cuda),
        pytest.param("emulated", marks=pytest.mark.nvrtc),
        "cpu",
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    with gp.device(request.param) as current:
        yield current


def rows(dtype: str, *shape: int) -> op_cases.Array:
    return np.random.default_rng(list(shape)).integers(-50, 50, shape).astype(gp.to_numpy_dtype(dtype))


@pytest.mark.parametrize(
    ("dtype", "dim"), [("bfloat16", 64), ("float16", 12), ("float32", 3), ("int8", 7), ("float64", 2), ("float32", 1)]
)
def test_tokens_are_written_to_their_positions(dtype: str, dim: int, device: gp.Device) -> None:
    k, v = rows(dtype, 5, 2, dim), rows(dtype, 5, 2, dim + 1)[..., :dim]
    caches = [rows(dtype, 6, 9, dim) for _ in range(2)]
    ours = [gp.from_numpy(x) for x in caches]
    gp.kv_cache_update(gp.from_numpy(k), gp.from_numpy(v), *ours, 3)
    for cache, new, got in zip(caches, (k, v), ours, strict=True):
        cache[:, 3:8] = np.repeat(new.swapaxes(0, 1), 3, axis=0)
        np.testing.assert_array_equal(got.to_numpy(), cache)


def test_a_position_on_the_device(device: gp.Device) -> None:
    k, cache = rows("bfloat16", 3, 1, 8), rows("bfloat16", 2, 6, 8)
    ours, at = gp.from_numpy(cache), gp.asarray([2], "int32")
    for position, kept in ((2, 3), (5, 1), (6, 0)):
        at[...] = position
        gp.kv_cache_update(gp.from_numpy(k), gp.from_numpy(k), ours, gp.zeros((2, 6, 8), "bfloat16"), at)
        cache[:, position : position + kept] = k[:kept, 0]
        np.testing.assert_array_equal(ours.to_numpy(), cache)


def test_a_cache_with_a_copy_for_every_head(device: gp.Device) -> None:
    new, cache = rows("float16", 4, 2, 16), rows("float16", 6, 10, 16)
    ours = gp.from_numpy(cache)
    gp.kv_cache_prefill_gqa(gp.from_numpy(new), ours, 6, start_pos=5)
    gp.kv_cache_prefill_gqa(gp.from_numpy(new), ours, 6)
    cache[:, 5:9] = cache[:, :4] = np.repeat(new.swapaxes(0, 1), 3, axis=0)
    np.testing.assert_array_equal(ours.to_numpy(), cache)


@pytest.mark.parametrize(("page_tokens", "dim"), [(16, 64), (4, 6), (1, 8)])
def test_slots_of_one_layer(page_tokens: int, dim: int, device: gp.Device) -> None:
    pages, tokens = 5, 7
    k, v = rows("bfloat16", tokens, 2, dim), rows("bfloat16", tokens, 2, dim + 2)[..., 2:]
    cache = rows("bfloat16", pages, 3, 2, page_tokens, 2, dim)
    slots = np.random.default_rng(3).permutation(max(tokens, pages * page_tokens))[:tokens].astype(np.int32)
    slots[slots >= pages * page_tokens] = -1
    slots[2] = -1
    ours = gp.from_numpy(cache)
    gp.kv_cache_write_paged(gp.from_numpy(k), gp.from_numpy(v), ours[:, 1], gp.from_numpy(slots))
    for t, slot in enumerate(slots):
        if slot >= 0:
            cache[slot // page_tokens, 1, :, slot % page_tokens] = k[t], v[t]
    np.testing.assert_array_equal(ours.to_numpy(), cache)


def test_kernels_leave_out_slots_that_do_not_exist() -> None:
    k, slots = gp.ones((2, 1, 8)), gp.asarray([3, 99], "int32")
    with pytest.raises(IndexError, match="slot 99 in a cache of 2 pages of 4 tokens"):
        gp.kv_cache_write_paged(k, k, gp.zeros((2, 2, 4, 1, 8)), slots)
    with gp.device("emulated"):
        cache = gp.zeros((2, 2, 4, 1, 8))
        gp.kv_cache_write_paged(gp.ones((2, 1, 8)), gp.ones((2, 1, 8)), cache, gp.asarray([3, 99], "int32"))
        assert cache.to_numpy().sum() == 16


def test_what_does_not_fit_is_refused() -> None:
    new, cache, slots = gp.ones((3, 2, 8)), gp.zeros((2, 4, 8)), gp.zeros(3, "int32")
    with pytest.raises(gp.ShapeError, match="3 tokens from position 2 on end at 5, but the cache holds 4"):
        gp.kv_cache_update(new, new, cache, cache, 2)
    with pytest.raises(gp.ShapeError, match="position -1"):
        gp.kv_cache_update(new, new, cache, cache, -1)
    with pytest.raises(gp.ShapeError, match="2 heads of 8"):
        gp.kv_cache_update(new, gp.ones((3, 1, 8)), cache, cache, 0)
    with pytest.raises(gp.DTypeError, match="k_new is float16, the cache float32"):
        gp.kv_cache_update(new.astype("float16"), new, cache, cache, 0)
    with pytest.raises(gp.DTypeError, match="int32"):
        gp.kv_cache_update(new, new, cache, cache, gp.zeros(1, "int64"))
    with pytest.raises(gp.ShapeError, match="one element"):
        gp.kv_cache_update(new, new, cache, cache, slots)
    with pytest.raises(gp.ShapeError, match="num_heads=4"):
        gp.kv_cache_prefill_gqa(new, cache, 4)
    with pytest.raises(gp.ShapeError, match="3 heads of queries cannot share 2"):
        gp.kv_cache_prefill_gqa(new, gp.zeros((3, 4, 8)), 3)
    with pytest.raises(gp.ShapeError, match=r"one layer, cache\[:, layer\]"):
        gp.kv_cache_write_paged(new, new, gp.zeros((2, 3, 2, 4, 2, 8)), slots)
    with pytest.raises(gp.ShapeError, match="as many tokens"):
        gp.kv_cache_write_paged(new, new, gp.zeros((2, 2, 4, 2, 8)), gp.zeros(4, "int32"))
    with pytest.raises(gp.DTypeError, match="slots is int64"):
        gp.kv_cache_write_paged(new, new, gp.zeros((2, 2, 4, 2, 8)), gp.zeros(3, "int64"))
