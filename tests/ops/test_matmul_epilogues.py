"""Bias, activation and residual of matrix products: a fused form has the bits of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops import planner
from pygpukit.ops.gemm.epilogue import ACTIVATIONS
from pygpukit.ops.gemm.rows import reference
from pygpukit.ops.launch import Unit

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc)]
PARTS = {"relu": gp.relu, "gelu": gp.gelu, "silu": gp.silu, "relu2": lambda x: gp.square(gp.relu(x))}


def arrays(kind: str, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(shape).astype(gp.to_numpy_dtype(kind)) for shape in shapes]


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_float32_has_the_bits_of_the_parts(activation: str | None, where: str) -> None:
    with gp.device(where):
        x, w, bias, residual = (gp.from_numpy(v) for v in arrays("float32", (5, 33), (33, 18), (18,), (5, 18)))
        got = gp.matmul(x, w, bias=bias, activation=activation, residual=residual).to_numpy()
        plain = gp.matmul(x, w) + bias
        if activation in PARTS:
            parts = (PARTS[activation](plain) + residual).to_numpy()
            np.testing.assert_array_equal(got.view(np.uint32), parts.view(np.uint32))
        want = reference(*(v.to_numpy() for v in (x, w)), None, bias.to_numpy(), activation, residual.to_numpy())
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_small_floats_round_once(kind: str, where: str) -> None:
    with gp.device(where):
        x, w, bias, residual = (gp.from_numpy(v) for v in arrays(kind, (3, 40), (40, 10), (10,), (3, 10)))
        got = gp.matmul(x, w, bias=bias, activation="gelu", residual=residual)
        total = gp.matmul(x, w, out=gp.empty((3, 10), "float32"))
        assert total.dtype is gp.float32
        parts = (gp.gelu(total + bias.astype("float32")) + residual.astype("float32")).astype(kind)
        np.testing.assert_array_equal(got.to_numpy().view(np.uint16), parts.to_numpy().view(np.uint16))


@pytest.mark.parametrize("where", DEVICES)
def test_strided_and_stacked_residuals(where: str) -> None:
    a, b, bias, residual = arrays("float32", (2, 3, 4, 9), (9, 5), (10,), (5, 2, 3, 4))
    want = reference(a, b, None, bias[::2], "relu", residual.transpose(1, 2, 3, 0))
    with gp.device(where):
        x, w, c, r = (gp.from_numpy(v) for v in (a, b, bias, residual))
        got = gp.matmul(x, w, bias=c[::2], activation="relu", residual=r.transpose(1, 2, 3, 0))
        np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-5, atol=1e-6)
        out = gp.zeros((2, 3, 4, 5))
        assert gp.matmul(x, w, bias=c[::2].contiguous(), out=out) is out
        np.testing.assert_allclose(out.to_numpy(), a @ b + bias[::2], rtol=1e-5, atol=1e-6)
        row = gp.matmul(x[0, 0, 0], w, bias=c[:5], residual=c[5:])
        np.testing.assert_allclose(row.to_numpy(), a[0, 0, 0] @ b + bias[:5] + bias[5:], rtol=1e-5, atol=1e-6)


@pytest.mark.nvrtc
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_without_a_kernel_the_parts_have_the_same_bits(activation: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with gp.device("emulated"):
        x, w, bias, residual = (gp.from_numpy(v) for v in arrays("bfloat16", (3, 40), (40, 10), (10,), (3, 10)))
        want = gp.matmul(x, w, bias=bias, activation=activation, residual=residual)

        def missing(unit: Unit, device: gp.Device, real: Any = planner._loadable) -> str | None:
            return "it is in no bundle" if unit.name.endswith(("identity", *ACTIVATIONS)) else real(unit, device)

        native.clear_plans()
        monkeypatch.setattr(planner, "_loadable", missing)
        try:
            options = {"bias": bias, "activation": activation, "residual": residual}
            assert gp.explain(gp.matmul, x, w, **options).variant == "the product, then its parts"
            got = gp.matmul(x, w, **options)
        finally:
            native.clear_plans()
        assert got.to_numpy().tobytes() == want.to_numpy().tobytes()


@pytest.mark.parametrize("where", DEVICES)
def test_an_absent_part_changes_no_bit(where: str) -> None:
    with gp.device(where):
        x, w = (
            gp.from_numpy(np.float32([[-0.0, 1.0], [np.inf, 2.0]])),
            gp.from_numpy(np.float32([[1.0, -1.0], [-0.0, 0]])),
        )
        plain, ended = gp.matmul(x, w), gp.matmul(x, w, activation="none")
        assert plain.to_numpy().tobytes() == ended.to_numpy().tobytes()


def test_what_does_not_fit_is_named() -> None:
    x, w = gp.ones((2, 3)), gp.ones((3, 4))
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ShapeError, r"bias has shape \(3,\); for this product it needs \(4,\)", {"bias": gp.ones(3)}),
        (ShapeError, r"residual has shape \(4,\); for this product it needs \(2, 4\)", {"residual": gp.ones(4)}),
        (DTypeError, "bias is float16, and the result float32", {"bias": gp.ones(4, "float16")}),
        (ValueError, "no activation 'tanh'; use None or one of none, relu", {"activation": "tanh"}),
        (ValueError, "no precision 'fp4'; use None or one of float64", {"precision": "fp4"}),
        (ValueError, "contradict each other", {"precision": "bf16", "use_tf32": True}),
        (DTypeError, "precision='int32' multiplies int8", {"precision": "int32"}),
        (DTypeError, "precision='fp8' multiplies float8_e4m3fn", {"precision": "fp8"}),
    ]
    for kind, text, options in cases:
        with pytest.raises(kind, match=text):
            gp.matmul(x, w, **options)
    with pytest.raises(DTypeError, match="floating-point result, not int8"):
        gp.matmul(gp.ones((2, 3), "int8"), gp.ones((3, 4), "int8"), activation="relu")
    with pytest.raises(DTypeError, match="precision='tf32' rounds float32 operands"):
        gp.matmul(gp.ones((2, 3), "float16"), gp.ones((3, 4), "float16"), precision="tf32")
