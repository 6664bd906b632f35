"""Products of a few rows through rings of bulk copies (SM 90a), under the emulator's checks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from weights import bits, random_parts, small, weight

import pygpukit as gp
from pygpukit.quant import stream, wgmma
from pygpukit.quant.formats import rule_of


@pytest.fixture(autouse=True)
def chosen_rings() -> Iterator[None]:
    yield
    stream.force(None)


def activations(m: int, k: int) -> gp.GPUArray:
    return gp.from_numpy(np.random.default_rng([m, k]).standard_normal((m, k)).astype(small("bfloat16")))


# A rule of every way scales and high bits lie in a piece; k ends inside of one.
@pytest.mark.parametrize(
    ("name", "k"),
    [
        ("e4m3_scale_f32_g0", 456),
        ("e4m3_scale_f32_g128", 640),
        ("i8_scale_bf16_g64", 320),
        ("i4_zero_f16_g64", 448),
        ("i4_scale_f16_g0", 600),
        ("i5_super_f16_g32", 768),
        ("i6_superscale_f16_g16", 768),
    ],
)
def test_streamed_products_have_the_bits_of_the_decoded_weight(name: str, k: int, sm90: gp.Device) -> None:
    n = 85
    q = weight(name, random_parts(rule_of(name), n, k, spread=1))
    x = activations(16, k)
    wanted = bits(gp.matmul(x, q.dequantize("bfloat16")))
    for m in (1, 8, 9, 16):
        assert gp.explain(gp.matmul, x[:m], q).variant == stream.VARIANT.name
        np.testing.assert_array_equal(bits(x[:m] @ q), wanted[:m], f"{m} rows")


@pytest.mark.parametrize("ring", [stream.Ring(1, 2, 4), stream.Ring(2, 3, 8)], ids=str)
def test_rings_that_turn_over_many_tiles(ring: stream.Ring, sm90: gp.Device) -> None:
    name, n, k = "i4_zero_f16_g64", 150, 704
    q = weight(name, random_parts(rule_of(name), n, k, spread=1))
    room = gp.zeros((3, k + 8), "bfloat16")
    x = activations(3, k)
    room[:, 1 : k + 1] = x
    end = {"bias": gp.ones(n, "bfloat16"), "activation": "relu", "residual": gp.ones((3, n), "bfloat16")}
    wanted = bits(gp.matmul(x, q.dequantize("bfloat16"), **end))
    stream.force(ring)
    # The second rows lie at no multiple of 16 bytes.
    for rows in (x, room[:, 1 : k + 1]):
        assert f"_8x{ring.span}_" in gp.explain(gp.matmul, rows, q, **end).launches[0]
        np.testing.assert_array_equal(bits(gp.matmul(rows, q, **end)), wanted)


@pytest.mark.parametrize(("name", "k"), [("i4_zero_f16_g64", 704), ("e4m3_scale_f32_g0", 320)])
def test_pieces_of_x_beside_those_of_the_weight(
    name: str, k: int, sm90: gp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MOST_OF_X", 0)
    stream.force(stream.Ring(2, 2, 4))
    q = weight(name, random_parts(rule_of(name), 150, k, spread=1))
    x = activations(16, k)
    wanted = bits(gp.matmul(x, q.dequantize("bfloat16")))
    for m in (1, 7, 16):
        assert "_beside" in gp.explain(gp.matmul, x[:m], q).launches[0]
        np.testing.assert_array_equal(bits(x[:m] @ q), wanted[:m], f"{m} rows")


def test_what_does_not_fit_is_left_to_other_kernels(sm90: gp.Device) -> None:
    k = 16384
    wide = weight("i8_scale_f32_g0", random_parts(rule_of("i8_scale_f32_g0"), 16, k))
    assert "_beside" in gp.explain(gp.matmul, activations(8, k), wide).launches[0]
    assert "_beside" not in gp.explain(gp.matmul, activations(1, k), wide).launches[0]
    # Rows of x at no multiple of 16 bytes are copied as a whole, or not at all.
    rows = activations(8, k + 1)[:, :k]
    assert dict(gp.explain(gp.matmul, rows, wide).refused)[stream.VARIANT.name] == "x does not fit shared memory"
    tall = weight("i8_scale_f32_g0", random_parts(rule_of("i8_scale_f32_g0"), 37 * 16 * 132, 64))
    assert "in a warp" in gp.explain(gp.matmul, activations(1, 64), tall).variant


@pytest.mark.parametrize("name", ["e4m3_scale_f32_g128", "e4m3_scale_f32_g0"])
def test_tiles_that_share_a_scale(name: str, sm90: gp.Device) -> None:
    k = 320
    q = weight(name, random_parts(rule_of(name), 85, k, spread=1, tiles=True))
    x = activations(66, k)
    w = q.dequantize("bfloat16")
    for rows, variant in ((x[:3], stream.VARIANT), (x, wgmma.VARIANT)):
        assert gp.explain(gp.matmul, rows, q).variant == variant.name
        np.testing.assert_array_equal(bits(rows @ q), bits(gp.matmul(rows, w)))
