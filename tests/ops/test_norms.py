"""Softmax and norms on kernels and on NumPy: accuracy, rows that do not depend on what is around them, bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp

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


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, w: gp.softmax(x),
    "logsoftmax": lambda x, w: gp.logsoftmax(x),
    "layernorm": lambda x, w: gp.layernorm(x, w, w),
    "rmsnorm": lambda x, w: gp.rmsnorm(x, w, cast="before"),
    "rmsnorm_residual": lambda x, w: gp.rmsnorm_residual(x, x, w)[0],
}


def exact(name: str, x: Any, w: Any) -> Any:
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    if "softmax" in name:
        shifted = x - x.max(-1, keepdims=True)
        log = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return log if name == "logsoftmax" else np.exp(log)
    if name == "layernorm":
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w + w
    x = x + x if name == "rmsnorm_residual" else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


# One length per way a row is dealt to threads, and each beside one that is no multiple of a vector.
@pytest.mark.parametrize(
    ("n", "kind"),
    [(1, "f4"), (63, "f4"), (252, "f4"), (1024, "bf"), (1025, "bf"), (3072, "bf"), (3584, "bf"), (5001, "bf"),
     (9000, "bf"), (20001, "bf"), (20000, "f4"), (26001, "f4")],
)  # fmt: skip
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_its_bits_whatever_is_around_it(name: str, n: int, kind: str, device: gp.Device) -> None:
    if device.kind == "emulated" and name in ("logsoftmax", "rmsnorm_residual") and n not in (63, 1024, 5001, 26001):
        pytest.skip("rows are dealt to threads as in softmax and rmsnorm, and each length is a kernel to compile")
    dtype = BF16 if kind == "bf" else np.dtype(np.float32)
    x, w = normal((3, n), dtype), normal((n,), dtype, 1)
    run, weights = FUNCTIONS[name], gp.from_numpy(w)
    together = run(gp.from_numpy(x), weights).to_numpy()
    wanted = exact(name, x, w)
    limit = (0.02 if kind == "bf" else 1e-5) * max(1.0, float(np.abs(wanted).max()))
    assert np.abs(together.astype(np.float64) - wanted).max() <= limit
    alone = run(gp.from_numpy(x[1:2]), weights).to_numpy()
    # The same row at an address and a distance from the next that no vector has.
    wide = np.zeros((3, n + 3), dtype)
    wide[:, 1 : n + 1] = x
    apart = run(gp.from_numpy(wide)[:, 1 : n + 1], weights).to_numpy()
    assert together[1:2].tobytes() == alone.tobytes()
    if device.kind != "cpu":
        assert together.tobytes() == apart.tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_number_of_rows_in_any_order_eager_or_in_a_graph(name: str, device: gp.Device) -> None:
    n, run = 8192 if device.kind == "cuda" else 136, FUNCTIONS[name]
    x, weights = normal((1024, n), BF16), gp.from_numpy(normal((n,), BF16, 1))
    wanted = run(gp.from_numpy(x), weights).to_numpy()
    order = np.random.default_rng(5).permutation(1024)
    for m in (1, 2, 3, 17, 33, 128, 257):
        assert run(gp.from_numpy(x[order[:m]]), weights).to_numpy().tobytes() == wanted[order[:m]].tobytes(), m
    given = gp.from_numpy(x[order])
    graph = gp.CudaGraph()
    with graph.capture():
        made = run(given, weights)
    graph.replay()
    assert made.to_numpy().tobytes() == wanted[order].tobytes()


def test_an_axis_that_is_not_the_last_has_the_same_bits(device: gp.Device) -> None:
    x = normal((2, 300, 3))
    across = gp.softmax(gp.from_numpy(x), axis=1).to_numpy()
    along = gp.softmax(gp.from_numpy(np.ascontiguousarray(x.swapaxes(1, 2)))).to_numpy().swapaxes(1, 2)
    if device.kind != "cpu":
        assert across.tobytes() == np.ascontiguousarray(along).tobytes()
    np.testing.assert_allclose(across, along, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"cast": "before"}, {"plus_one": True}])
@pytest.mark.parametrize("n", [96, 1001, 9000])
def test_a_fused_norm_has_the_bits_of_its_parts(n: int, options: dict[str, Any], device: gp.Device) -> None:
    x, r, w = (gp.from_numpy(normal(shape, BF16, i)) for i, shape in enumerate([(3, n), (3, n), (n,)]))
    total = gp.add(x, r)
    normed = gp.rmsnorm(total, w, 1e-6, **options)
    fused, left = gp.rmsnorm_residual(x, r, w, 1e-6, **options)
    assert left.to_numpy().tobytes() == total.to_numpy().tobytes()
    assert fused.to_numpy().tobytes() == normed.to_numpy().tobytes()
    gp.rmsnorm_residual(x, r, w, 1e-6, **options, out=(x, r))
    assert r.to_numpy().tobytes() == left.to_numpy().tobytes()
    assert x.to_numpy().tobytes() == fused.to_numpy().tobytes()


def test_roundings_are_where_they_are_said_to_be(device: gp.Device) -> None:
    x, w = normal((4, 64), BF16), normal((64,), BF16, 1)
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    twice = (normed.astype(BF16).astype(np.float32) * w.astype(np.float32)).astype(BF16)
    got = gp.rmsnorm(gp.from_numpy(x), gp.from_numpy(w), cast="before").to_numpy()
    assert (got == twice).mean() > 0.99
    gemma = (normed * (1 + w.astype(np.float64))).astype(BF16)
    got = gp.rmsnorm(gp.from_numpy(x), gp.from_numpy(w), plus_one=True).to_numpy()
    assert (got == gemma).mean() > 0.99


def test_a_large_mean_does_not_cancel(device: gp.Device) -> None:
    x = (normal((2, 4096)) + 1e4).astype(np.float32)
    one = gp.ones(4096)
    got = gp.layernorm(gp.from_numpy(x), one).to_numpy()
    assert np.abs(got - exact("layernorm", x, np.ones(4096)) + 1).max() < 2e-3


def test_special_values(device: gp.Device) -> None:
    rows = np.float32([[0, np.nan, 1], [np.inf, 0, 0], [-np.inf, -np.inf, -np.inf], [-np.inf, 0, 0]])
    got = gp.softmax(gp.from_numpy(rows)).to_numpy()
    assert np.isnan(got[:3]).any(1).all()
    assert got[3].tolist() == [0, 0.5, 0.5]
    assert gp.softmax(gp.empty((0, 5))).shape == (0, 5)
    assert gp.rmsnorm(gp.empty((0, 5)), gp.ones(5)).shape == (0, 5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gp.rmsnorm(gp.ones((2, 4)), gp.ones(3)), gp.ShapeError, r"gamma has shape \(3,\).*\(4,\)"),
        (lambda: gp.rmsnorm(gp.ones((2, 4), "int32"), gp.ones(4)), gp.DTypeError, "int32"),
        (lambda: gp.rmsnorm(gp.ones((2, 4)), gp.ones(4, "float16")), gp.DTypeError, "gamma is float16"),
        (lambda: gp.rmsnorm(gp.ones((2, 4)), gp.ones(4), cast="never"), ValueError, "'after' or 'before'"),
        (lambda: gp.layernorm(gp.ones((2, 4)), gp.ones(4), gp.ones(5)), gp.ShapeError, "beta"),
        (lambda: gp.rmsnorm_residual(gp.ones((2, 4)), gp.ones((3, 4)), gp.ones(4)), gp.ShapeError, "must be equal"),
        (lambda: gp.rmsnorm(gp.ones(()), gp.ones(1)), gp.ShapeError, "no axes"),
        (lambda: gp.swiglu(gp.ones((2, 3))), gp.ShapeError, "gate first"),
        (lambda: gp.bias_add_inplace(gp.ones((2, 4)), gp.ones(3)), gp.ShapeError, "bias"),
        (lambda: gp.linear_bias_gelu(gp.ones((2, 4)), gp.ones((4, 3)), gp.ones(3)), gp.ShapeError, "do not fit"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_gated_units_have_the_bits_of_their_parts(kind: str, device: gp.Device) -> None:
    joined = gp.from_numpy(normal((5, 64), gp.to_numpy_dtype(kind)) * gp.to_numpy_dtype(kind).type(4))
    gate, up = joined[:, :32], joined[:, 32:]
    pairs = [
        (gp.swiglu(joined), gp.mul(gp.silu(gate), up)),
        (gp.geglu(joined), gp.mul(gp.gelu(gate), up)),
        (gp.geglu(gate, up, approximate=False), gp.mul(gp.gelu(gate, approximate=False), up)),
    ]
    for fused, parts in pairs:
        assert fused.to_numpy().tobytes() == parts.to_numpy().tobytes()


def test_linear_bias_gelu(device: gp.Device) -> None:
    x, w, b = (normal(shape, np.float32, i) for i, shape in enumerate([(3, 8), (5, 8), (5,)]))
    got = gp.linear_bias_gelu(*map(gp.from_numpy, (x, w, b)), False)
    want = gp.gelu(gp.from_numpy(x @ w.T + b), approximate=False).to_numpy()
    np.testing.assert_allclose(got.to_numpy(), want, atol=1e-5)
