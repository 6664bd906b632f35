"""Rotary embedding, its tables, the fused form, embedding and ALiBi, on kernels and on NumPy."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.nn import rope
from pygpukit.ops.nn.tables import frequencies

BF16 = np.dtype(ml_dtypes.bfloat16)


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


def normal(shape: tuple[int, ...], kind: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def turned(x: Any, cos: Any, sin: Any, at: Any, pairs: bool = False) -> Any:
    """The formula, in float64 and by complex numbers."""
    half = x.shape[-1] // 2 if cos.shape[1] == x.shape[-1] else cos.shape[1]
    w = (cos + 1j * sin)[at][:, None, :half]
    y = x.astype(np.float64).copy()
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if pairs else (slice(half), slice(half, 2 * half))
    z = (y[..., a] + 1j * y[..., b]) * w
    y[..., a], y[..., b] = z.real, z.imag
    return y


@pytest.mark.parametrize(
    ("dim", "rotary", "kind"),
    [(64, 64, np.float32), (128, 128, BF16), (40, 16, np.float32), (10, 6, np.float32), (256, 256, BF16)],
)
@pytest.mark.parametrize("pairs", [False, True])
def test_heads_turn_by_their_positions(dim: int, rotary: int, kind: Any, pairs: bool, device: gp.Device) -> None:
    q, k = normal((5, 3, dim), kind), normal((5, 1, dim), kind, 1)
    at = np.int64([7, 0, 31, 3, 3])
    cos, sin = gp.rope_tables(32, rotary)
    arrays = gp.from_numpy(q), gp.from_numpy(k)
    gp.rope_inplace(*arrays, cos, sin, gp.from_numpy(at), interleaved=pairs)
    limit = 0.03 if kind is BF16 else 1e-6
    for got, x in zip(arrays, (q, k), strict=True):
        want = turned(x, cos.to_numpy().astype(np.float64), sin.to_numpy(), at, pairs)
        assert np.abs(got.to_numpy().astype(np.float64) - want).max() < limit
        assert got[..., rotary:].to_numpy().tobytes() == x[..., rotary:].tobytes()


def test_kernels_have_the_bits_of_numpy() -> None:
    bits = []
    for kind in ("cpu", "emulated"):
        with gp.device(kind):
            q = gp.from_numpy(normal((4, 2, 64), BF16))
            gp.rope_inplace(q, None, *gp.rope_tables(4, 64, "llama3", factor=8.0, original=2))
            bits.append(q.to_numpy().tobytes())
    assert bits[0] == bits[1]


@pytest.mark.nvrtc
@pytest.mark.parametrize(("dim", "rotary", "kind"), [(128, 128, BF16), (64, 32, BF16), (128, 128, np.float32)])
@pytest.mark.parametrize("pairs", [False, True])
def test_heads_taken_together_have_the_bits_of_single_ones(dim: int, rotary: int, kind: Any, pairs: bool) -> None:
    tokens, found = 3, {}
    with gp.device("emulated"):
        cos, sin = gp.rope_tables(16, rotary)
        at, slots = gp.asarray([3, -1, 20], "int32"), gp.asarray([6, 0, -1], "int32")
        weight = gp.from_numpy(normal((dim,), kind, 9))
        for heads, kv in ((8, 4), (6, 2), (3, 1)):
            joined = gp.from_numpy(normal((tokens, heads + 2 * kv, dim), kind))
            q, k, v = joined[:, :heads], joined[:, heads : heads + kv], joined[:, heads + kv :]
            for weights in ((None, None), (weight, weight), (weight, None)):
                for together in (1, 2, 4):
                    rope.force(together)
                    cache = gp.zeros((3, 2, 4, kv, dim), gp.dtype(kind))
                    try:
                        out = gp.qk_norm_rope_cache(
                            q, k, v, cos, sin, cache, slots, at, *weights, interleaved=pairs, plus_one=heads == 6
                        )
                    finally:
                        rope.force(None)
                    bits = out.to_numpy().tobytes() + cache.to_numpy().tobytes()
                    assert found.setdefault((heads, weights[0] is None, weights[1] is None), bits) == bits


def test_tables_of_the_width_of_a_head_and_views(device: gp.Device) -> None:
    joined = normal((3, 6, 32))
    cos, sin = gp.rope_tables(3, 32)
    wide = [gp.concatenate([t, t], axis=1) for t in (cos, sin)]
    x, y = gp.from_numpy(joined), gp.from_numpy(joined)
    gp.rope_inplace(x[:, :4], x[:, 4:], cos, sin)
    gp.rope_inplace(y[:, :4], y[:, 4:], *wide)
    assert x.to_numpy().tobytes() == y.to_numpy().tobytes()
    spread = gp.from_numpy(np.ascontiguousarray(joined.transpose(0, 2, 1))).transpose((0, 2, 1))
    gp.rope_inplace(spread, None, cos, sin)
    assert spread.to_numpy().tobytes() == x.to_numpy().tobytes()


def test_positions_out_of_the_tables(device: gp.Device) -> None:
    x = normal((3, 1, 8))
    q = gp.from_numpy(x)
    tables = gp.rope_tables(4, 8)
    gp.rope_inplace(q, None, *tables, gp.asarray([-1, -7, 2], "int32"))
    assert q.to_numpy()[:2].tobytes() == x[:2].tobytes()
    if device.kind == "cpu":
        with pytest.raises(IndexError, match="position 4"):
            gp.rope_inplace(q, None, *tables, gp.asarray([0, 4, 0]))
    else:
        gp.rope_inplace(q, None, *tables, gp.asarray([0, 4, 0]))
        assert np.isnan(q.to_numpy()).any(axis=(1, 2)).tolist() == [False, True, False]


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("dim", "kind"), [(64, BF16), (20, np.float32)])
def test_the_fused_form_has_the_bits_of_its_parts(
    norms: bool, paged: bool, dim: int, kind: Any, device: gp.Device
) -> None:
    tokens, heads, kv = 5, 4, 2
    joined = gp.from_numpy(normal((tokens, (heads + 2 * kv) * dim), kind)).reshape((tokens, heads + 2 * kv, dim))
    q, k, v = joined[:, :heads], joined[:, heads : heads + kv], joined[:, heads + kv :]
    weights = [gp.from_numpy(normal((dim,), kind, seed)) for seed in (1, 2)] if norms else [None, None]
    at = gp.asarray([3, 0, 9, 1, 2], "int32")
    slots = gp.asarray([6, 0, 11, -1, 2], "int64")
    cos, sin = gp.rope_tables(16, dim)
    parts = [x.copy() for x in (q, k)]
    if norms:
        parts = [gp.rmsnorm(x, w, 1e-6, cast="before") for x, w in zip(parts, weights, strict=True)]
    gp.rope_inplace(*parts, cos, sin, at)
    if paged:
        cache = gp.zeros((3, 2, 4, kv, dim), gp.dtype(kind))
        got = gp.qk_norm_rope_cache(q, k, v, cos, sin, cache, slots, at, *weights)
        keys, values = (cache.to_numpy()[:, i].reshape(12, kv, dim) for i in (0, 1))
    else:
        pair = tuple(gp.zeros((kv, 12, dim), gp.dtype(kind)) for _ in range(2))
        got = gp.qk_norm_rope_cache(q, k, v, cos, sin, pair, slots, at, *weights, out=q)
        keys, values = (x.to_numpy().swapaxes(0, 1) for x in pair)
    assert got.to_numpy().tobytes() == parts[0].to_numpy().tobytes()
    for cached, new in ((keys, parts[1]), (values, v)):
        want = np.zeros_like(cached)
        want[[6, 0, 11, 2]] = new.to_numpy()[[0, 1, 2, 4]]
        assert cached.tobytes() == want.tobytes()


def hf(kind: str, dim: int, length: int, config: dict[str, Any]) -> tuple[Any, float]:
    """The formulas of the model files, written out once more with loops."""
    base, factor, first = config.get("base", 10000.0), config.get("factor", 1.0), config.get("original", length)
    plain = [base ** (-2 * i / dim) for i in range(dim // 2)]
    if kind == "linear":
        return [f / factor for f in plain], 1.0
    if kind == "dynamic":
        base *= ((factor * length / first) - (factor - 1)) ** (dim / (dim - 2))
        return [base ** (-2 * i / dim) for i in range(dim // 2)], 1.0
    if kind == "llama3":
        found = []
        for f in plain:
            wave = 2 * math.pi / f
            smooth = (first / wave - 1) / (4 - 1)
            blended = (1 - smooth) * f / factor + smooth * f
            found.append(f if wave < first / 4 else f / factor if wave > first / 1 else blended)
        return found, 1.0
    if kind == "longrope":
        factors = config["long"] if length > first else config["short"]
        scale = math.sqrt(1 + math.log(length / first) / math.log(first)) if length > first else 1.0
        return [f / e for f, e in zip(plain, factors, strict=True)], scale
    if kind == "yarn":
        low, high = (dim * math.log(first / (r * 2 * math.pi)) / (2 * math.log(base)) for r in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
        ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(dim // 2)]
        return [f / factor * r + f * (1 - r) for f, r in zip(plain, ramps, strict=True)], 0.1 * math.log(factor) + 1
    return plain, 1.0


@pytest.mark.parametrize(
    ("kind", "length", "config"),
    [
        ("plain", 50, {}),
        ("linear", 50, {"factor": 4.0}),
        ("dynamic", 64, {"factor": 2.0, "original": 32}),
        ("yarn", 64, {"factor": 4.0, "original": 4096, "base": 1e6}),
        ("llama3", 64, {"factor": 8.0, "original": 8192, "base": 5e5}),
        ("longrope", 40, {"original": 32, "short": [1.0] * 16, "long": [1.0 + i for i in range(16)]}),
        ("longrope", 30, {"original": 32, "short": [1.5] * 16, "long": [9.0] * 16}),
    ],
)
def test_tables_follow_the_formulas(kind: str, length: int, config: dict[str, Any]) -> None:
    inverse, scale = hf(kind, 32, length, config)
    cos, sin = (t.to_numpy() for t in gp.rope_tables(length, 32, kind, **config))
    angles = np.arange(length)[:, None] * np.float64(inverse)
    np.testing.assert_allclose(cos, np.cos(angles) * scale, atol=1e-7)
    np.testing.assert_allclose(sin, np.sin(angles) * scale, atol=1e-7)


def test_divisors_of_each_pair() -> None:
    # llama3's scaling, as GGUF files carry it.
    options: dict[str, Any] = {"factor": 8.0, "original": 8192, "base": 5e5}
    plain, scaled = (frequencies(64, 16, kind, **options)[0] for kind in ("plain", "llama3"))
    got = gp.rope_tables(16, 64, base=5e5, divisors=list(plain / scaled))[0].to_numpy()
    np.testing.assert_allclose(got, gp.rope_tables(16, 64, "llama3", **options)[0].to_numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="3 divisors for the 32 pairs"):
        gp.rope_tables(16, 64, divisors=[1.0, 2.0, 3.0])


def test_published_table_makers() -> None:
    plain = gp.rope_init_linear(16, 8)[0].to_numpy()
    assert plain.shape == (16, 8)
    assert plain[:, :4].tobytes() == plain[:, 4:].tobytes() == gp.rope_tables(16, 8)[0].to_numpy().tobytes()
    assert gp.rope_init_linear(16, 8, scale=2.0)[0].to_numpy()[8].tolist() == plain[4].tolist()
    ntk = gp.rope_init_ntk_aware(16, 8, scale=2.0)[0].to_numpy()
    np.testing.assert_allclose(ntk[5, 1], math.cos(5 * (10000 * 2 ** (8 / 6)) ** (-2 / 8)), atol=1e-6)
    yarn = gp.rope_init_yarn(16, 8, scale=4.0, original_max_len=8)[0].to_numpy()
    np.testing.assert_allclose(yarn[0, 0], 0.1 * math.log(4) + 1, rtol=1e-6)


def test_the_published_import_path() -> None:
    nn = importlib.import_module("pygpukit.ops.nn")
    for name in nn.NAMES:
        assert not hasattr(gp, name) or getattr(nn, name) is getattr(gp, name), name
    assert nn.rope_inplace_f32table is gp.rope_inplace
    with pytest.raises(AttributeError, match="no attribute 'spiral'"):
        _ = nn.spiral


def test_embedding(device: gp.Device) -> None:
    table = normal((20, 36), BF16)
    ids = np.int32([[3, 0, 19], [3, 7, 1]])
    got = gp.embedding(gp.from_numpy(ids), gp.from_numpy(table))
    assert got.to_numpy().tobytes() == table[ids].tobytes()
    scaled = gp.embedding(gp.from_numpy(ids), gp.from_numpy(table), math.sqrt(36.3)).to_numpy()
    factor = np.float32(BF16.type(math.sqrt(36.3)))
    assert scaled.tobytes() == (table[ids].astype(np.float32) * factor).astype(BF16).tobytes()
    view = gp.from_numpy(table)[:, 1:4]
    assert gp.embedding(gp.asarray([5], "int64"), view).to_numpy().tobytes() == table[5:6, 1:4].tobytes()
    if device.kind == "cpu":
        for bad in (20, -1):
            with pytest.raises(IndexError, match=f"id {bad} in a table of 20 rows"):
                gp.embedding(gp.asarray([0, bad]), gp.from_numpy(table))
    else:
        got = gp.embedding(gp.asarray([20, 0, -1]), gp.from_numpy(table)).to_numpy()
        assert got[[0, 2]].tobytes() == bytes(2 * 36 * 2)
        assert got[1].tobytes() == table[0].tobytes()


def test_alibi(device: gp.Device) -> None:
    slopes = gp.alibi_slopes(6).to_numpy()
    np.testing.assert_allclose(slopes, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    bias = gp.alibi_bias(5, 6).to_numpy()
    for h, i, j in np.ndindex(bias.shape):
        assert bias[h, i, j] == (-np.inf if j > i else -slopes[h] * (i - j))
    scores = gp.zeros((2, 6, 2, 5), "float32")
    gp.alibi_add_bias(scores, gp.from_numpy(slopes), start_pos=3)
    np.testing.assert_array_equal(scores.to_numpy()[1], gp.alibi_bias(5, 6, causal=False).to_numpy()[:, 3:])


X = ((4, 2, 8), "float32")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gp.rope_inplace(gp.ones((4, 8)), None, *gp.rope_tables(4, 8)), gp.ShapeError, "tokens, heads, dim"),
        (lambda: gp.rope_inplace(gp.ones(*X), None, *gp.rope_tables(4, 10)), gp.ShapeError, "width 5 do not fit"),
        (lambda: gp.rope_inplace(gp.ones(*X), None, *gp.rope_tables(3, 8)), gp.ShapeError, "tables of 3 positions"),
        (
            lambda: gp.rope_inplace(gp.ones(*X), None, *gp.rope_tables(4, 8), gp.ones(4)),
            gp.DTypeError,
            "positions are float32",
        ),
        (
            lambda: gp.rope_inplace(gp.ones(*X), gp.ones((3, 2, 8)), *gp.rope_tables(4, 8)),
            gp.ShapeError,
            "differ in tokens",
        ),
        (lambda: gp.rope_tables(4, 7), ValueError, "dim is 7"),
        (lambda: gp.rope_tables(4, 8, "spiral"), ValueError, "kind is 'spiral'"),
        (lambda: gp.rope_tables(4, 8, "yarn", factor=2.0), ValueError, "needs original"),
        (lambda: gp.rope_tables(4, 8, "longrope", original=2), ValueError, "4 factors in long, not none"),
        (lambda: gp.embedding(gp.ones(3), gp.ones((2, 2))), gp.DTypeError, "ids are float32"),
        (lambda: gp.embedding(gp.asarray([0]), gp.ones(2)), gp.ShapeError, r"\[rows, n\]"),
        (
            lambda: gp.qk_norm_rope_cache(
                *[gp.ones(*X)] * 3, *gp.rope_tables(4, 8), gp.zeros((1, 2, 4, 1, 8)), gp.asarray([0, 1, 2, 3])
            ),
            gp.ShapeError,
            "k_cache has shape",
        ),
    ],
)
def test_bad_input_is_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
