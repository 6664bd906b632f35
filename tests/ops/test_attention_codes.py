"""Paged caches of codes, float8 and int8: writes, and attention with the bits of that over the decoded cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit.errors import DTypeError, ShapeError

PAGE, KV_HEADS, PAGES = 8, 2, 24
CODES = ("float8_e4m3fn", "int8")


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


def normal(*shape: int, seed: int = 0, dtype: str = "bfloat16") -> op_cases.Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(gp.to_numpy_dtype(dtype))


def coded(x: op_cases.Array, kind: str) -> tuple[op_cases.Array, op_cases.Array]:
    """Codes of rows and the scale of each, by their definition, one row at a time."""
    codes = np.empty(x.shape, gp.to_numpy_dtype(kind))
    scales = np.ones(x.shape[:-1], np.float32)
    for at in np.ndindex(x.shape[:-1]):
        row = x[at].astype(np.float32)
        if kind == "int8":
            scales[at] = np.abs(row).max() / np.float32(127)
            codes[at] = [round(float(n / scales[at])) if scales[at] else 0 for n in row]
        else:
            codes[at] = np.clip(row, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes, scales


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_written_numbers_become_codes(kind: str, dtype: str, device: gp.Device) -> None:
    tokens, dim = 5, 40
    k, v = normal(tokens, KV_HEADS, dim, dtype=dtype), normal(tokens, KV_HEADS, dim + 3, seed=1, dtype=dtype)[..., 3:]
    k[1, 0] = 0
    k[2, 1, 7] = 1000
    v[3, 0, :2] = -1e-6
    layers = np.zeros((4, 2, 2, PAGE, KV_HEADS, dim), gp.to_numpy_dtype(kind))
    cache, scales = gp.from_numpy(layers), gp.full((4, 2, 2, PAGE, KV_HEADS), 7, "float32")
    slots = np.array([9, -1, 3, 30, 31], np.int32)
    arguments = gp.from_numpy(k), gp.from_numpy(v), cache[:, 1], gp.from_numpy(slots)
    gp.kv_cache_write_paged(*arguments, kv_scales=scales[:, 1] if kind == "int8" else None)
    wanted, factors = layers.copy(), np.full(layers.shape[:-1], 7, np.float32)
    for token, slot in enumerate(slots):
        if slot >= 0:
            for part, x in enumerate((k, v)):
                at = (slot // PAGE, 1, part, slot % PAGE)
                wanted[at], factors[at] = coded(x[token], kind)
    np.testing.assert_array_equal(cache.to_numpy().view(np.uint8), wanted.view(np.uint8))
    if kind == "int8":
        np.testing.assert_array_equal(scales.to_numpy(), factors)


def test_float8_with_a_scale_per_head(device: gp.Device) -> None:
    k, v = normal(3, KV_HEADS, 16), normal(3, KV_HEADS, 16, seed=1)
    k[0, 0, :3] = np.nan, np.inf, -np.inf
    cache = gp.zeros((2, 2, PAGE, KV_HEADS, 16), "float8_e4m3fn")
    scales = np.array([[[0.5, 2.0]], [[0.01, 3.0]]], np.float32)[None]
    slots = gp.asarray([0, 1, 9], "int32")
    gp.kv_cache_write_paged(gp.from_numpy(k), gp.from_numpy(v), cache, slots, kv_scales=gp.from_numpy(scales))
    got = cache.to_numpy()
    for token, (page, step) in enumerate([(0, 0), (0, 1), (1, 1)]):
        for part, x in enumerate((k, v)):
            exact = x[token].astype(np.float32) / scales[0, part, 0][:, None]
            wanted = np.clip(exact, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            np.testing.assert_array_equal(got[page, part, step].view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("kind", CODES)
def test_rows_that_are_not_finite_stay_so(kind: str, device: gp.Device) -> None:
    k = normal(3, 1, 32)
    k[0, 0, 4], k[1, 0, 5] = np.nan, np.inf
    cache, scales = gp.zeros((1, 2, PAGE, 1, 32), kind), gp.ones((1, 2, PAGE, 1))
    ours = gp.from_numpy(k)
    gp.kv_cache_write_paged(ours, ours, cache, gp.asarray([0, 1, 2], "int32"), kv_scales=scales)
    with np.errstate(invalid="ignore"):
        values = cache.to_numpy().astype(np.float32) * scales.to_numpy()[..., None]
    assert np.isnan(values[0, 0, 0, 0, 4])
    assert np.isnan(values[0, 0, 1, 0, 5]) or values[0, 0, 1, 0, 5] == 448
    assert np.isfinite(values[0, 0, 2]).all()


@pytest.mark.parametrize("kind", CODES)
def test_turned_keys_become_codes(kind: str, device: gp.Device) -> None:
    q, k, v = (gp.from_numpy(normal(4, heads, 16, seed=heads)) for heads in (4, KV_HEADS, KV_HEADS))
    cos, sin = gp.rope_tables(32, 16)
    slots, at = gp.asarray([1, 20, -1, 5], "int64"), gp.asarray([3, 4, 5, 6], "int64")
    norms = [gp.from_numpy(normal(16, seed=i, dtype="float32")) for i in range(2)]
    plain, cache = gp.zeros((3, 2, PAGE, KV_HEADS, 16), "bfloat16"), gp.zeros((3, 2, PAGE, KV_HEADS, 16), kind)
    scales = gp.zeros((3, 2, PAGE, KV_HEADS)) if kind == "int8" else gp.full((1, 2, 1, 1), 0.02, "float32")
    wanted = gp.qk_norm_rope_cache(q, k, v, cos, sin, plain, slots, at, *norms)
    made = gp.qk_norm_rope_cache(q, k, v, cos, sin, cache, slots, at, *norms, kv_scales=scales)
    np.testing.assert_array_equal(made.to_numpy().view(np.uint16), wanted.to_numpy().view(np.uint16))
    numbers, codes, factors = plain.to_numpy(), cache.to_numpy(), scales.to_numpy()
    for slot in (1, 20, 5):
        place = slot // PAGE, slice(None), slot % PAGE
        if kind == "int8":
            expected, factor = coded(numbers[place], kind)
            np.testing.assert_array_equal(factors[place], factor)
        else:
            expected, _ = coded(numbers[place].astype(np.float32) / np.float32(0.02), kind)
        np.testing.assert_array_equal(codes[place].view(np.uint8), expected.view(np.uint8))


class Paged:
    """A cache of codes with sequences in it, and the same cache decoded."""

    def __init__(self, kind: str, dim: int, dtype: str, lengths: list[int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        shape = (PAGES, 2, PAGE, KV_HEADS, dim)
        numbers = rng.standard_normal(shape).astype(np.float32)
        if kind == "int8":
            codes, scales = coded(numbers, kind)
        else:
            scales = np.abs(rng.standard_normal((1, 2, 1, KV_HEADS)).astype(np.float32)) + np.float32(0.1)
            codes = (numbers / scales[..., None]).astype(ml_dtypes.float8_e4m3fn)
        self.codes, self.scales = codes, scales
        every = np.broadcast_to(scales, shape[:-1])
        self.numbers = (codes.astype(np.float32) * every[..., None]).astype(gp.to_numpy_dtype(dtype))
        order = rng.permutation(PAGES)
        self.table = np.full((len(lengths), 12), -1, np.int32)
        at = 0
        for s, n in enumerate(lengths):
            count = -(-n // PAGE)
            self.table[s, :count] = order[at : at + count]
            at += count
        self.lengths = np.array(lengths, np.int32)

    def both(self, q: op_cases.Array, starts: list[int], **options: Any) -> tuple[op_cases.Array, op_cases.Array]:
        """Attention over codes, and over the numbers that they stand for."""
        rest = [gp.from_numpy(x) for x in (self.table, self.lengths, np.array(starts, np.int32))]
        ours = gp.from_numpy(q)
        made = gp.sdpa_paged(ours, gp.from_numpy(self.codes), *rest, kv_scales=gp.from_numpy(self.scales), **options)
        wanted = gp.sdpa_paged(ours, gp.from_numpy(self.numbers), *rest, **options)
        return made.to_numpy(), wanted.to_numpy()


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize(
    ("dtype", "dim", "options"),
    [("bfloat16", 64, {}), ("float16", 40, {"window": 20, "softcap": 3.0}), ("float32", 24, {"scale": 0.3})],
    ids=["bfloat16", "float16", "float32"],
)
def test_attention_has_the_bits_of_the_decoded_cache(
    kind: str, dtype: str, dim: int, options: dict[str, Any], device: gp.Device
) -> None:
    cache = Paged(kind, dim, dtype, [83, 1, 30])
    # Few queries, one token, and more rows than the kernel for few takes.
    takes = [3, 1, 0] if dtype == "float32" else [36, 1, 3]
    starts = [0, *np.cumsum(takes).tolist()]
    q = normal(starts[-1], 2 * KV_HEADS, dim, dtype=dtype)
    made, wanted = cache.both(q, starts, **options)
    assert np.isfinite(made.astype(np.float32)).all()
    assert made.astype(np.float32).any()
    np.testing.assert_array_equal(made.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("kind", CODES)
def test_layouts_that_tensor_cores_do_not_take(kind: str, device: gp.Device) -> None:
    cache = Paged(kind, 12, "bfloat16", [20])
    made, wanted = cache.both(normal(2, 2 * KV_HEADS, 12), [0, 2])
    np.testing.assert_array_equal(made.view(np.uint8), wanted.view(np.uint8))
    cache = Paged(kind, 260, "bfloat16", [4])
    made, wanted = cache.both(normal(1, 2 * KV_HEADS, 260), [0, 1])
    np.testing.assert_array_equal(made.view(np.uint8), wanted.view(np.uint8))


def test_float8_without_scales(device: gp.Device) -> None:
    cache = Paged("float8_e4m3fn", 16, "bfloat16", [9])
    rest = [gp.from_numpy(x) for x in (cache.table, cache.lengths, np.array([0, 1], np.int32))]
    q, codes = gp.from_numpy(normal(1, 2, 16)), gp.from_numpy(cache.codes)
    made = gp.sdpa_paged(q, codes, *rest)
    wanted = gp.sdpa_paged(q, codes.astype("bfloat16"), *rest)
    np.testing.assert_array_equal(made.to_numpy().view(np.uint16), wanted.to_numpy().view(np.uint16))


def test_what_does_not_fit_is_said(device: gp.Device) -> None:
    q, rest = gp.ones((1, 2, 16), "bfloat16"), [gp.asarray(x, "int32") for x in ([[0]], [1], [0, 1])]
    cache, scales = gp.zeros((2, 2, PAGE, KV_HEADS, 16), "int8"), gp.ones((2, 2, PAGE, KV_HEADS))
    slots = gp.asarray([0], "int32")

    with pytest.raises(ValueError, match=r"a cache of int8 needs kv_scales: .*\(2, 2, 8, 2\)"):
        gp.sdpa_paged(q, cache, *rest)
    with pytest.raises(ShapeError, match=r"kv_scales of shape \(2, 2, 8, 1, 1\) must be"):
        gp.sdpa_paged(q, cache, *rest, kv_scales=scales[..., :1, None])
    with pytest.raises(ShapeError, match=r"kv_scales of shape \(2, 2, 3, 2\) must be"):
        gp.sdpa_paged(q, cache, *rest, kv_scales=scales[:, :, :3])
    with pytest.raises(DTypeError, match="kv_scales are bfloat16; they must be float32"):
        gp.sdpa_paged(q, cache, *rest, kv_scales=scales.astype("bfloat16"))
    with pytest.raises(ValueError, match="kv_scales are for a cache of float8_e4m3fn or int8, not bfloat16"):
        gp.sdpa_paged(q, cache.astype("bfloat16"), *rest, kv_scales=scales)
    with pytest.raises(DTypeError, match="takes arrays of one type, not q bfloat16, cache int16"):
        gp.sdpa_paged(q, cache.astype("int16"), *rest)
    k = gp.ones((1, KV_HEADS, 16), "bfloat16")
    with pytest.raises(DTypeError, match="k is bfloat16, the cache int8"):
        gp.kv_cache_write_paged(k, k, cache, slots)
    with pytest.raises(ShapeError, match="the scale of each token and head is written there"):
        gp.kv_cache_write_paged(k, k, cache, slots, kv_scales=scales[:1, :, :1])
    with pytest.raises(DTypeError, match="k is bfloat16 and v float32: use one type"):
        gp.kv_cache_write_paged(k, k.astype("float32"), cache, slots, kv_scales=scales)
