"""Products with quantised weights: bits against the product with the decoded weight, rows apart, errors, refusals."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from weights import bits, random_parts, small, weight

import pygpukit as gp
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.quant import kept, wgmma
from pygpukit.quant.formats import rule_of
from pygpukit.quant.rows import quant_matmul

Array = np.ndarray[Any, Any]


def activations(m: int, k: int, kind: str = "bfloat16", seed: int = 3) -> Array:
    rng = np.random.default_rng([seed, k])
    return rng.standard_normal((m, k)).astype(small(kind))


def wide_product(x: Array, q: gp.quant.QuantTensor, kind: str) -> Array:
    return x.astype(np.float64) @ q.dequantize(kind).to_numpy().astype(np.float64)


def apart(got: gp.GPUArray, wanted: Array) -> float:
    return float(np.linalg.norm(got.to_numpy().astype(np.float64) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("form", "options", "limit"),
    [("fp8_e4m3", {"group": 128}, 0.01), ("int8", {}, 0.01), ("int4", {"group": 32}, 0.05), ("q4_1", {}, 0.05)],
)
def test_errors_against_float64(form: str, options: dict[str, Any], limit: float, kind: str, device: gp.Device) -> None:
    rng = np.random.default_rng(5)
    w = rng.standard_normal((512, 77)).astype(np.float32)
    q = gp.quant.quantize(w, form, **options)
    x = activations(3, 512, kind)
    assert apart(gp.from_numpy(x) @ q, wide_product(x, q, "float32")) < limit


@pytest.mark.parametrize(
    ("form", "options", "least", "most"),
    [
        ("int8", {}, 0.005, 0.01), ("int8", {"group": 32}, 0.004, 0.0065), ("fp8_e4m3", {}, 0.02, 0.03),
        ("int4", {"group": 32}, 0.06, 0.1), ("int4", {"group": 32, "symmetric": False}, 0.06, 0.09),
        ("int4", {}, 0.08, 0.125), ("q5_1", {}, 0.03, 0.042),
    ],
)  # fmt: skip
def test_errors_of_the_formats_themselves(form: str, options: dict[str, Any], least: float, most: float) -> None:
    w = np.random.default_rng(6).standard_normal((1024, 64)).astype(np.float32)
    q = gp.quant.quantize(w, form, **options)
    assert least < q.error(w) < most
    assert q.error(gp.from_numpy(w)) == q.error(w)
    other = gp.quant.quantize(np.ascontiguousarray(w.T), form, axis=1, **options)
    np.testing.assert_array_equal(other.dequantize().to_numpy(), q.T.dequantize().to_numpy())
    assert other.error(w.T) == pytest.approx(q.error(w))


@pytest.mark.parametrize("name", ["i4_zero_f16_g64", "e4m3_scale_f32_g0"])
def test_rows_do_not_depend_on_each_other(name: str, kernels: gp.Device) -> None:
    """Rows alone, in any batch up to the one whose weight is decoded first, at any place: the same bits."""
    n, k = 35, 192
    q = weight(name, random_parts(rule_of(name), n, k, spread=2))
    x = activations(130, k)
    ours = gp.from_numpy(x)
    wanted = bits(ours @ q)
    for m in (1, 2, 3, 17, 33, 65):
        np.testing.assert_array_equal(bits(ours[:m] @ q), wanted[:m], f"{m} rows")
    order = np.random.default_rng(0).permutation(130)
    np.testing.assert_array_equal(bits(gp.from_numpy(x[order[:20]]) @ q), wanted[order[:20]])
    few, wide = ("wgmma", "wgmma") if kernels.capability == (9, 0) else ("in a warp", "blocks of rows")
    assert few in gp.explain(gp.matmul, ours[:64], q).variant
    assert wide in gp.explain(gp.matmul, ours, q).variant


def test_many_rows_decode_the_weight_first(kernels: gp.Device) -> None:
    q = weight("i8_scale_f32_g0", random_parts(rule_of("i8_scale_f32_g0"), 16, 32, spread=1))
    x = gp.from_numpy(activations(wgmma.MOST + 1, 32))
    assert "workspace" in gp.explain(gp.matmul, x, q).variant
    got = x @ q
    assert apart(got, wide_product(x.to_numpy(), q, "bfloat16")) < 0.004
    np.testing.assert_array_equal(bits(got), bits(gp.matmul(x, q.dequantize("bfloat16"))))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 2, 33), (2, 17, 40), (9, 50, 7), (3, 16, 321)])
def test_odd_sizes(m: int, n: int, k: int, device: gp.Device) -> None:
    q = weight("i8_scale_f32_g0", random_parts(rule_of("i8_scale_f32_g0"), n, k, spread=1))
    x = activations(m, k)
    assert apart(gp.from_numpy(x) @ q, wide_product(x, q, "bfloat16")) < 0.004


def test_shapes_strides_and_outputs(device: gp.Device) -> None:
    n, k = 20, 64
    q = gp.quant.quantize(np.random.default_rng(1).standard_normal((k, n)).astype(np.float32), "int4", group=32)
    x = activations(6, k)
    ours = gp.from_numpy(x)
    wanted = (ours @ q).to_numpy()
    assert (ours[0] @ q).shape == (n,)
    np.testing.assert_array_equal((ours[0] @ q).to_numpy(), wanted[0])
    np.testing.assert_array_equal((ours.reshape(2, 3, k) @ q).to_numpy().reshape(6, n), wanted)
    np.testing.assert_array_equal((ours[::2] @ q).to_numpy(), wanted[::2])
    flipped = gp.from_numpy(np.ascontiguousarray(x[:, ::-1]))[:, ::-1]
    np.testing.assert_array_equal((flipped @ q).to_numpy(), wanted)
    room = gp.zeros((6, 2 * n), "bfloat16")
    gp.matmul(ours, q, out=room[:, n:])
    np.testing.assert_array_equal(room.to_numpy()[:, n:], wanted)
    room = gp.zeros((n, 6), "bfloat16")
    gp.matmul(ours, q, out=room.T)
    np.testing.assert_array_equal(room.to_numpy().T, wanted)
    assert (gp.zeros((0, k), "bfloat16") @ q).shape == (0, n)
    # A plain product where groups lie along the other axis, or the weight is on the left.
    y = gp.from_numpy(activations(2, n))
    assert apart(y @ q.T, y.to_numpy().astype(np.float64) @ q.T.dequantize().to_numpy().astype(np.float64)) < 0.01
    np.testing.assert_allclose(
        (q.T @ ours.T).to_numpy().T.astype(np.float32), wanted.astype(np.float32), rtol=0.02, atol=0.05
    )


def test_float32_activations(device: gp.Device) -> None:
    w = np.random.default_rng(1).standard_normal((96, 40)).astype(np.float32)
    q = gp.quant.quantize(w, "q8_0")
    x = np.random.default_rng(2).standard_normal((5, 96)).astype(np.float32)
    assert apart(gp.from_numpy(x) @ q, wide_product(x, q, "float32")) < 1e-6


def test_columns_sorted_by_group(device: gp.Device) -> None:
    """GPTQ's desc_act: x is permuted as the columns were."""
    rng = np.random.default_rng(8)
    k, n = 128, 16
    tensors = {
        "qweight": rng.integers(0, 2**32, (k // 8, n), np.uint32).view(np.int32),
        "qzeros": np.full((4, n // 8), 0x77777777, np.int32),
        "scales": (rng.standard_normal((4, n)) / 16).astype(np.float16),
        "g_idx": rng.permutation(np.arange(k) // 32),
    }
    q = gp.quant.QuantTensor.from_checkpoint("gptq", tensors)
    assert q.symmetric
    x = activations(3, k, "float16")
    assert apart(gp.from_numpy(x) @ q.T, wide_product(x, q.T, "float32")) < 0.002
    assert q.to_device(q.device).dequantize().shape == (n, k)
    np.testing.assert_array_equal(q.rows(gp.asarray([5, 2]), "float32").to_numpy(), q.dequantize().to_numpy()[[5, 2]])


def test_named_products() -> None:
    four, eight = (gp.quant.quantize(gp.ones((64, 8)), form) for form in ("q4_0", "int8"))
    x = gp.ones((1, 64), "bfloat16")
    for function, q in ((gp.gemv_w4a16, four), (gp.gemm_w4a16, four), (gp.gemv_w8a16, eight), (gp.gemm_w8a16, eight)):
        out = gp.zeros((1, 8), "bfloat16")
        assert function(x, q, out=out) is out
        assert out.tolist() == [[64.0] * 8]
        assert "decoded" in gp.explain(function, x, q).variant
        assert gp.explain(gp.matmul, x, b=q).variant == gp.explain(function, x=x, q=q).variant
        assert gp.matmul(x, b=q).tolist() == [[64.0] * 8]
    with pytest.raises(TypeError, match="two operands"):
        gp.explain(gp.matmul, four)
    with pytest.raises(DTypeError, match="8 bits, not q4_0 of 4"):
        gp.gemv_w8a16(x, four)
    with pytest.raises(DTypeError, match="16 bits, not float32"):
        gp.gemm_w8a16(gp.ones((1, 64)), eight)
    with pytest.raises(ShapeError, match="gemm_w4a16"):
        gp.gemv_w4a16(gp.ones((2, 64), "bfloat16"), four)
    with pytest.raises(TypeError, match="quantize"):
        gp.gemv_w4a16(x, x)


def test_refusals(device: gp.Device) -> None:
    q = gp.quant.quantize(gp.ones((64, 8)), "int8")
    with pytest.raises(ShapeError, match=r"inner sizes 8 and 64 differ; the weight's transpose q.T fits"):
        gp.ones((2, 8), "bfloat16") @ q
    with pytest.raises(DTypeError, match="int32"):
        gp.ones((2, 64), "int32") @ q
    with pytest.raises(DTypeError, match="cannot be written to float32"):
        gp.matmul(gp.ones((2, 64), "bfloat16"), q, out=gp.zeros((2, 8)))
    with pytest.raises(TypeError, match="dequantize"):
        gp.add(gp.ones(8), q)
    with pytest.raises(TypeError, match="two weights"):
        gp.matmul(q, q)
    with pytest.raises(TypeError, match="takes no QuantTensor"):
        gp.explain(gp.add, gp.ones(8), q)


def test_what_quantize_refuses() -> None:
    w = np.ones((64, 8), np.float32)
    for arguments, options, error, text in (
        ((w, "int3"), {}, ValueError, "unknown format 'int3'"),
        ((w, "q4_k"), {}, ValueError, "from_checkpoint"),
        ((w, "int4"), {"group": 48}, ValueError, "use one of 128, 64, 32, row"),
        ((w, "int4"), {}, ShapeError, "64 values: give group= one of 64, 32, row"),
        ((w, "int4"), {"group": 32, "axis": 2}, ValueError, "axis 2"),
        ((w, "int8"), {"symmetric": False}, ValueError, "symmetric=False is for int4"),
        ((w, "int4"), {"group": 32, "scale_dtype": "float32"}, DTypeError, "bfloat16 or float16"),
        ((w[0], "int8"), {}, ShapeError, "takes a matrix"),
        ((w[:0], "int8"), {}, ShapeError, "at least one value"),
        ((w.astype(np.int32), "int8"), {}, DTypeError, "int32"),
        (([[1.0]], "int8"), {}, TypeError, "list"),
        ((w * np.nan, "int8"), {}, ValueError, r"NaN or infinity at \[0, 0\]"),
        ((w * 1e30, "int4"), {"group": 32, "scale_dtype": "float16"}, ValueError, "not finite"),
    ):
        with pytest.raises(error, match=text):
            gp.quant.quantize(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["fp8_e4m3", "int8", "int4", "q4_0", "q5_1"])
def test_weights_of_zeros_and_of_tiny_numbers(form: str) -> None:
    assert not gp.quant.quantize(np.zeros((128, 4), np.float32), form).dequantize().to_numpy().any()
    tiny = gp.quant.quantize(np.full((128, 4), 1e-42, np.float32), form)
    assert np.isfinite(tiny.dequantize().to_numpy()).all()


def test_decoded_copies_are_kept_up_to_a_limit() -> None:
    gc.collect()
    before, used = gp.quant.keep_decoded(), kept._used
    q = gp.quant.quantize(gp.ones((256, 64)), "int4")
    x = gp.ones((1, 256), "bfloat16")
    with gp.device("cpu"):
        try:
            gp.quant.keep_decoded(used + 1000)
            assert "blocks" in gp.explain(gp.matmul, x, q).variant
            alone = (x @ q).tolist()
            gp.quant.keep_decoded("1GiB")
            assert "kept" in gp.explain(gp.matmul, x, q).variant
            assert kept._used == used + 4 * q.size
            assert (x @ q).tolist() == alone == (x @ q.T.T).tolist()
            assert kept._used == used + 4 * q.size
        finally:
            gp.quant.keep_decoded(before)
    del q
    gc.collect()
    assert kept._used == used


def test_plans_serve_other_sizes(kernels: gp.Device) -> None:
    from pygpukit.ops import planner

    asked = []
    real = planner.choose
    planner.choose = lambda *a: asked.append(1) or real(*a)  # type: ignore[assignment,func-returns-value]
    try:
        for n, k in ((40, 256), (24, 128), (56, 384)):
            q = gp.quant.quantize(np.eye(k, n, dtype=np.float32), "int4")
            got = gp.ones((3, k), "bfloat16") @ q
            np.testing.assert_array_equal(
                got.to_numpy().astype(np.float32), q.dequantize().to_numpy().sum(0)[None].repeat(3, 0)
            )
    finally:
        planner.choose = real
    assert quant_matmul.__name__ == "quant_matmul"
    assert len(asked) <= 4


@pytest.mark.parametrize("name", ["i4_zero_f16_g64", "i5_minimum_f16_g32", "e4m3_scale_f32_g128"])
def test_bits_are_those_of_the_decoded_weight(name: str, kernels: gp.Device) -> None:
    n, k = 40, 192
    q = weight(name, random_parts(rule_of(name), n, k, spread=2))
    w = q.dequantize("bfloat16")
    x = gp.from_numpy(activations(70, k))
    assert "CUDA cores" not in gp.explain(gp.matmul, x, w).variant
    wanted = bits(gp.matmul(x, w))
    for m in (1, 3, 17, 33, 70):
        np.testing.assert_array_equal(bits(x[:m] @ q), wanted[:m], f"{m} rows")


def test_bias_activation_and_residual(device: gp.Device) -> None:
    n, k = 33, 64
    q = gp.quant.quantize(np.random.default_rng(1).standard_normal((k, n)).astype(np.float32), "q4_1")
    w = q.dequantize("bfloat16")
    x, bias, residual = (gp.from_numpy(activations(*shape, seed=s)) for s, shape in enumerate(((5, k), (1, n), (5, n))))
    for options in (
        {"bias": bias[0]},
        {"activation": "silu"},
        {"bias": bias[0], "activation": "gelu", "residual": residual},
        {"residual": residual[::-1], "bias": bias[0, ::-1]},
    ):
        got, wanted = gp.matmul(x, q, **options), gp.matmul(x, w, **options)
        if device.kind == "cpu":
            np.testing.assert_allclose(*(y.to_numpy().astype(np.float32) for y in (got, wanted)), rtol=0.02, atol=1e-3)
        else:
            np.testing.assert_array_equal(bits(got), bits(wanted))
    with pytest.raises(ShapeError, match="bias has shape"):
        gp.matmul(x, q, bias=bias)
    with pytest.raises(ValueError, match="type of x"):
        gp.matmul(x, q, precision="fp8")
    with pytest.raises(ValueError, match="activation"):
        gp.matmul(x, q, activation="tanh")
    assert gp.matmul(x, q, precision="bfloat16").shape == (5, n)


def test_products_in_graphs(device: gp.Device) -> None:
    """Also the first product of a weight, whose decoded copy others use before the graph has run."""
    q = gp.quant.quantize(np.random.default_rng(0).standard_normal((64, 40)).astype(np.float32), "q4_1")
    x, out = gp.ones((2, 64), "bfloat16"), gp.zeros((2, 40), "bfloat16")
    if device.kind != "cpu":
        x @ q
    graph = gp.CudaGraph()
    with graph.capture():
        gp.matmul(x, q, out=out)
    wanted = (x @ q).to_numpy()
    assert wanted.any()
    assert not out.to_numpy().any()
    graph.replay()
    np.testing.assert_array_equal(out.to_numpy(), wanted)
