"""The bits of a token: the same alone and in any batch, from any pages, in prompts, in parts of them, and decoded.

Kernels run on the emulator, whose products of matrices are added in the order of the instructions: what is equal here
is the order of everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit.ops.attention import kernels, reference

DIM, HEADS, KV_HEADS, PAGE = 64, 4, 2, 16
GROUP = HEADS // KV_HEADS


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    with gp.device(request.param) as current:
        yield current


def normal(*shape: int, seed: int = 0, dtype: str = "bfloat16") -> op_cases.Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(gp.to_numpy_dtype(dtype))


class Paged:
    """Sequences in a paged cache of three layers, with NaN wherever no token is."""

    def __init__(
        self, keys: list[op_cases.Array], values: list[op_cases.Array], *, seed: int = 0, spare: int = 3
    ) -> None:
        rng = np.random.default_rng(seed)
        counts = [-(-k.shape[1] // PAGE) for k in keys]
        order = rng.permutation(sum(counts) + spare)
        self.cache = np.full((len(order), 3, 2, PAGE, *keys[0].shape[::2]), np.nan, keys[0].dtype)
        self.table = np.full((len(keys), max(counts, default=0) + 1), -1, np.int32)
        at = 0
        for s, (k, v, count) in enumerate(zip(keys, values, counts, strict=True)):
            self.table[s, :count] = order[at : at + count]
            at += count
            for j in range(k.shape[1]):
                self.cache[self.table[s, j // PAGE], 1, 0, j % PAGE] = k[:, j]
                self.cache[self.table[s, j // PAGE], 1, 1, j % PAGE] = v[:, j]

    def __call__(
        self, parts: list[op_cases.Array], lengths: list[int], pad: int = 0, **options: Any
    ) -> list[op_cases.Array]:
        """Attention of queries ``[heads, tokens, dim]`` per sequence, the last tokens of so many in the cache."""
        starts = np.concatenate([[0], np.cumsum([p.shape[1] for p in parts])]).astype(np.int32)
        q = np.concatenate([*(p.swapaxes(0, 1) for p in parts), normal(pad, *parts[0].shape[::2], seed=9)])
        given = (q, self.cache, self.table, np.asarray(lengths, np.int32), starts)
        arrays = [gp.from_numpy(x) for x in given]
        arrays[1] = arrays[1][:, 1]
        out = gp.full(q.shape, 7, "bfloat16")
        got = gp.sdpa_paged(*arrays, out=out, **options).to_numpy()
        assert not got[starts[-1] :].astype(np.float32).any()
        return [got[a:b].swapaxes(0, 1) for a, b in pairwise(starts)]


def tokens_of(keys: int, seed: int) -> tuple[op_cases.Array, op_cases.Array, op_cases.Array]:
    q, k, v = (normal(h, keys, DIM, seed=seed + i) for i, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    return q, k, v


def bits(x: op_cases.Array) -> op_cases.Array:
    return np.ascontiguousarray(x).view(np.uint16)


def dense(q: op_cases.Array, k: op_cases.Array, v: op_cases.Array, **options: Any) -> op_cases.Array:
    result: op_cases.Array = gp.sdpa(*map(gp.from_numpy, (q, k, v)), causal=True, **options).to_numpy()
    return result


@pytest.mark.parametrize("options", [{}, {"window": 77}, {"softcap": 5.0, "scale": 0.4}], ids=str)
def test_prompts_parts_and_single_tokens_give_the_same_bits(options: dict[str, Any], device: gp.Device) -> None:
    keys = 300
    q, k, v = tokens_of(keys, 1)
    whole = dense(q, k, v, **options)
    wanted = reference.sdpa(q, k, v, causal=True, dtype=np.float64, **options)
    assert np.abs(whole.astype(np.float64) - wanted).max() < 2**-7
    # One token at a time, around the borders of chunks and at both ends.
    for t in (0, 1, 126, 127, 128, 129, 255, 256, 299):
        one = dense(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], **options)
        np.testing.assert_array_equal(bits(one), bits(whole[:, t : t + 1]), f"token {t}")
    # Parts of a prompt: few rows (split keys) and many.
    for first, end in ((90, 98), (0, 31), (40, 300)):
        part = dense(q[:, first:end], k[:, :end], v[:, :end], **options)
        np.testing.assert_array_equal(bits(part), bits(whole[:, first:end]), f"tokens {first} to {end}")
        later = dense(q[:, first:end], k, v, start=first, **options)
        np.testing.assert_array_equal(bits(later), bits(whole[:, first:end]), f"tokens {first} to {end} of all keys")


def test_mixed_batches_of_a_paged_cache(device: gp.Device) -> None:
    sizes = [300, 1, 129, 16, 128, 260]
    given = [tokens_of(n, 10 * n) for n in sizes]
    whole = [dense(*x) for x in given]
    takes = [1, 1, 129, 5, 40, 100]

    def check(order: list[int], seed: int, takes: list[int], **options: Any) -> None:
        cache = Paged([given[i][1] for i in order], [given[i][2] for i in order], seed=seed)
        parts = [given[i][0][:, sizes[i] - takes[i] :] for i in order]
        for i, got in zip(order, cache(parts, [sizes[i] for i in order], **options), strict=True):
            np.testing.assert_array_equal(bits(got), bits(whole[i][:, sizes[i] - takes[i] :]), f"{order}, sequence {i}")

    check([0, 1, 2, 3, 4, 5], 0, takes)
    check([5, 3, 0, 4, 2, 1], 1, takes, pad=3)
    check([2], 2, takes)
    check([4, 0, 1], 3, [1] * 6, max_queries=1)
    check([0, 3, 5], 4, [2, 0, 0, 4, 0, 3], max_queries=4, pad=1)
    # A sequence that takes no part in the step.
    check([0, 2, 5], 5, [3, 0, 0, 0, 0, 33])


def test_blocks_that_take_parts_of_several_heads(device: gp.Device) -> None:
    """A block with the end of one head, all of others and the beginning of a third; the bits are those of alone."""
    sizes = [390, 20, 257, 0, 300, 1]
    given = [tokens_of(max(n, 1), 10 * n) for n in sizes]
    cache = Paged([x[1] for x in given], [x[2] for x in given])
    kernels.force(1)
    try:
        got = cache([x[0][:, -1:] for x in given], sizes, max_queries=1)
    finally:
        kernels.force(None)
    for i, (q, k, v) in enumerate(given):
        wanted = dense(q[:, -1:], k, v) if sizes[i] else np.zeros_like(got[i])
        np.testing.assert_array_equal(bits(got[i]), bits(wanted), f"sequence {i}")


def test_sequences_that_share_pages_are_not_split(device: gp.Device) -> None:
    """More chunks than the pages could hold: no slots for partial results, and the same bits."""
    q, k, v = tokens_of(250, 3)
    cache = Paged([k], [v], spare=0)
    (wanted,) = cache([q[:, -1:]], [250])
    cache.table = np.repeat(cache.table, 12, axis=0)
    for got in cache([q[:, -1:]] * 12, [250] * 12, max_queries=1):
        np.testing.assert_array_equal(bits(got), bits(wanted))
    np.testing.assert_array_equal(bits(wanted), bits(dense(q[:, -1:], k, v)))


def test_pages_that_are_none_read_as_zeros(device: gp.Device) -> None:
    q, k, v = tokens_of(200, 6)
    cache = Paged([k], [v])
    cache.table[0, 3], cache.table[0, 9] = 999, -1
    for x in (k, v):
        x[:, 48:64] = x[:, 144:160] = 0
    (got,) = cache([q[:, -1:]], [200], max_queries=1)
    np.testing.assert_array_equal(bits(got), bits(dense(q[:, -1:], k, v)))


def test_more_queries_than_were_promised_touch_nothing_else(device: gp.Device) -> None:
    given = [tokens_of(n, n) for n in (300, 200)]
    cache = Paged([x[1] for x in given], [x[2] for x in given])
    _, second = cache([given[0][0][:, -9:], given[1][0][:, -1:]], [300, 200], max_queries=1)
    (wanted,) = Paged([given[1][1]], [given[1][2]])([given[1][0][:, -1:]], [200])
    np.testing.assert_array_equal(bits(second), bits(wanted))


def test_lengths_on_the_device(device: gp.Device) -> None:
    """Caches of fixed size, and what lies behind the length in them."""
    q, k, v = tokens_of(200, 5)
    k_cache, v_cache = (np.full((KV_HEADS, 256, DIM), np.nan, k.dtype) for _ in range(2))
    k_cache[:, :200], v_cache[:, :200] = k, v
    ours = [gp.from_numpy(x) for x in (k_cache, v_cache)]
    length, out = gp.asarray([0], "int32"), gp.zeros((HEADS, 2, DIM), "bfloat16")
    for n in (200, 129, 128, 127, 2):
        wanted = dense(q[:, n - 2 : n], k[:, :n], v[:, :n])
        length[...] = n
        gp.sdpa_causal_fixed_cache_ptr(gp.from_numpy(q[:, n - 2 : n]), *ours, out, length, 256)
        np.testing.assert_array_equal(bits(out.to_numpy()), bits(wanted))
        gp.sdpa_causal_fixed_cache(gp.from_numpy(q[:, n - 2 : n]), *ours, out, n)
        np.testing.assert_array_equal(bits(out.to_numpy()), bits(wanted))
    # The first of two queries has no key at length 1, none has one at 0, and more than there are counts as all.
    for n, rows in ((1, 1), (0, 2)):
        length[...] = n
        gp.sdpa_causal_fixed_cache_ptr(gp.from_numpy(q[:, :2]), *ours, out, length, 256)
        assert not out.to_numpy()[:, :rows].astype(np.float32).any()
    np.testing.assert_array_equal(
        bits(
            gp.sdpa(gp.from_numpy(q[:, :2]), *map(gp.from_numpy, (k, v)), lengths=gp.asarray([900], "int32")).to_numpy()
        ),
        bits(gp.sdpa(*map(gp.from_numpy, (q[:, :2], k, v))).to_numpy()),
    )


def test_batches_and_lengths_of_each(device: gp.Device) -> None:
    q, k, v = (normal(3, h, n, DIM, seed=n) for h, n in ((HEADS, 3), (KV_HEADS, 140), (KV_HEADS, 140)))
    lengths = [140, 3, 77]
    got = gp.sdpa(*map(gp.from_numpy, (q, k, v)), causal=True, lengths=gp.asarray(lengths, "int32")).to_numpy()
    for b, n in enumerate(lengths):
        np.testing.assert_array_equal(bits(got[b]), bits(dense(q[b], k[b, :, :n], v[b, :, :n])))


def test_one_graph_for_every_length(device: gp.Device) -> None:
    q, k, v = tokens_of(150, 8)
    ours = [gp.from_numpy(x) for x in (k, v)]
    length, out = gp.asarray([150], "int32"), gp.zeros((HEADS, 1, DIM), "bfloat16")
    query = gp.from_numpy(q[:, :1])
    gp.sdpa_causal_fixed_cache_ptr(query, *ours, out, length, 150)
    graph = gp.CudaGraph()
    with graph.capture():
        gp.sdpa_causal_fixed_cache_ptr(query, *ours, out, length, 150)
    for n in (150, 20, 129, 150):
        length[...] = n
        graph.replay()
        np.testing.assert_array_equal(bits(out.to_numpy()), bits(dense(q[:, :1], k[:, :n], v[:, :n])))


def test_more_chunks_than_are_folded_at_a_time(device: gp.Device) -> None:
    q, k, v = (normal(1, n, DIM, seed=n) for n in (70, 2200, 2200))
    whole = dense(q, k, v)
    wanted = reference.sdpa(q, k, v, causal=True, dtype=np.float64)
    assert np.abs(whole.astype(np.float64) - wanted).max() < 2**-7
    for t in (0, 35, 69):
        one = dense(q[:, t : t + 1], k[:, : 2131 + t], v[:, : 2131 + t])
        np.testing.assert_array_equal(bits(one), bits(whole[:, t : t + 1]))
    # Of more rows than there are warps each folds two at a time.
    for first in (30, 67):
        few = dense(q[:, first:], k, v)
        np.testing.assert_array_equal(bits(few), bits(whole[:, first:]))
