"""The kernels of SM 90a, and all others under the emulator's checks for races, bounds and missing fences."""

from __future__ import annotations

import numpy as np
import pytest
from weights import bits, random_parts, small, weight

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.jit.compiler import compile_image
from pygpukit.quant import wgmma
from pygpukit.quant.decode import product
from pygpukit.quant.formats import rule_of


@pytest.mark.parametrize("shape", wgmma.SHAPES, ids=lambda s: f"{s.groups}x{s.tokens}")
def test_every_shape_has_the_bits_of_the_decoded_weight(
    shape: wgmma.Shape, sm90: gp.Device, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: wgmma.force(None))
    wgmma.force(shape)
    # More chunks than any ring has places.
    n, k = 85, 704
    q = weight("i4_zero_f16_g64", random_parts(rule_of("i4_zero_f16_g64"), n, k, spread=1))
    rng = np.random.default_rng(0)
    x = gp.from_numpy(rng.standard_normal((70, k)).astype(small("bfloat16")))
    assert gp.explain(gp.matmul, x, q).variant == wgmma.VARIANT.name
    np.testing.assert_array_equal(bits(x @ q), bits(gp.matmul(x, q.dequantize("bfloat16"))))


@pytest.mark.parametrize("name", ["e4m3_scale_f32_g128", "i5_super_f16_g32"])
def test_rules_and_epilogues(name: str, sm90: gp.Device) -> None:
    n, k = 32, 256
    q = weight(name, random_parts(rule_of(name), n, k, spread=1))
    rng = np.random.default_rng(1)
    x, residual = (gp.from_numpy(rng.standard_normal((66, s)).astype(small("float16"))) for s in (k, n))
    end = {"bias": residual[0], "activation": "relu", "residual": residual}
    got = gp.matmul(x, q, **end)
    assert "wgmma" in gp.explain(gp.matmul, x, q).variant
    np.testing.assert_array_equal(bits(got), bits(gp.matmul(x, q.dequantize("float16"), **end)))
    few = gp.matmul(x[:9], q, **end | {"residual": residual[:9]})
    np.testing.assert_array_equal(bits(few), bits(got)[:9])


@pytest.mark.nvrtc
def test_kernels_for_sm_80_pass_the_checks() -> None:
    with gp.device(native.open_cpu(1 << 26, emulated=True, check=True, sm_count=2)):
        for name, n, k in (("i6_superscale_f16_g16", 20, 512), ("i8_scale_f32_g0", 33, 71)):
            q = weight(name, random_parts(rule_of(name), n, k, spread=1))
            host, _ = q._stored.host()
            for m in (3, 70):
                x = np.random.default_rng(m).standard_normal((m, k)).astype(small("bfloat16"))
                got = (gp.from_numpy(x) @ q).to_numpy().astype(np.float32)
                np.testing.assert_allclose(got, product(rule_of(name), host, n, x), rtol=0.01, atol=0.05)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ["i4_scale_bf16_g128", "i6_superscale_f16_g16"])
def test_products_are_not_serialised(name: str) -> None:
    """ptxas says so in its log (C7513 and its neighbours) where fragments are made in the wrong place."""
    for shape in wgmma.SHAPES[:2]:
        made = wgmma.unit(rule_of(name), gp.bfloat16, shape)
        log = compile_image(made.source, name=made.name, arch="90a", kind="cubin").log or ""
        assert "C75" not in log
