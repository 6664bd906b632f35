"""Matrix products on a GPU: every route to a product gives the same bits, for every number of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.core import cublaslt
from pygpukit.ops.gemm import mma
from pygpukit.ops.registry import OPERATORS, load, register

pytestmark = pytest.mark.cuda

Routes = dict[str, Callable[..., gp.GPUArray]]
ROWS = (1, 2, 3, 17, 33, 128, 257, 1024)


@pytest.fixture(scope="module")
def routes() -> Iterator[Routes]:
    """Products by one variant each, by its name."""
    made = {}
    for i, variant in enumerate(load()["matmul"].variants):
        name = f"test_routes_{i}"
        operator = dataclasses.replace(load()["matmul"], name=name, variants=(variant,), cases=(), public=False)
        made[variant.name] = register(operator)
    yield made
    for i in range(len(made)):
        del OPERATORS[f"test_routes_{i}"]


def normal(kind: str, *shape: int) -> gp.GPUArray:
    values = np.random.default_rng(list(shape)).standard_normal(shape)
    return gp.from_numpy((values * (40 if kind == "int8" else 1)).astype(gp.to_numpy_dtype(kind)))


def bits(x: gp.GPUArray) -> bytes:
    return bytes(x.to_numpy().tobytes())


def needs_library() -> None:
    missing = cublaslt.missing()
    if missing is not None or gp.current_device().capability != (9, 0):
        pytest.skip(missing or "the order of the library's sums is known on sm_90 only")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("bfloat16", {}), ("float16", {}), ("float32", {"precision": "tf32"}), ("int8", {"precision": "int32"})],
)
@pytest.mark.parametrize("turned", [False, True])
def test_rows_and_routes_have_the_same_bits(
    cuda: gp.Device, routes: Routes, kind: str, options: dict[str, Any], turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, k = 776, 1504
    x = normal(kind, max(ROWS), k)
    w = normal(kind, n, k).T if turned else normal(kind, k, n)
    whole = gp.matmul(x, w, **options)
    for rows in ROWS:
        assert bits(gp.matmul(x[:rows], w, **options)) == bits(whole[:rows]), f"{rows} rows"
    any_strides = routes["mma.sync, element by element"](x, w, **options)
    assert bits(any_strides) == bits(whole)
    if kind in ("bfloat16", "float16") or turned:
        for tile in (mma.LARGE, mma.MEDIUM, mma.SMALL, mma.ROWS):
            monkeypatch.setattr(mma, "tile_of", lambda *_, tile=tile: tile)
            native.clear_plans()
            assert bits(routes["mma.sync"](x, w, **options)) == bits(whole), tile.name
        monkeypatch.undo()
        native.clear_plans()


def test_a_pass_after_the_library_has_the_bits_of_our_epilogue(cuda: gp.Device, routes: Routes) -> None:
    needs_library()
    x, w, bias, residual = (normal("bfloat16", *s) for s in ((130, 520), (776, 520), (776,), (130, 776)))
    for activation in (None, "relu", "gelu", "gelu_erf", "silu", "relu2"):
        options = {"bias": bias, "activation": activation, "residual": residual}
        ours = routes["mma.sync"](x, w.T, **options)
        assert bits(routes["cuBLASLt, then a pass"](x, w.T, **options)) == bits(ours), activation
        assert bits(gp.matmul(x, w.T, **options)) == bits(ours), activation


@pytest.mark.parametrize(("kind", "limit"), [("float32", 2e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("orders", ["nn", "nt", "tn", "tt"])
def test_large_tiles_have_the_bits_of_the_general_kernel(
    cuda: gp.Device, routes: Routes, kind: str, limit: float, orders: str
) -> None:
    m, n, k = 1300, 1100, 516
    x = normal(kind, m, k) if orders[0] == "n" else normal(kind, k, m).T
    w = normal(kind, k, n) if orders[1] == "n" else normal(kind, n, k).T
    large = routes["CUDA cores, large tiles"](x, w)
    assert bits(large) == bits(routes["CUDA cores"](x, w)) == bits(gp.matmul(x, w))
    exact = x.to_numpy().astype(np.float64) @ w.to_numpy().astype(np.float64)
    np.testing.assert_allclose(large.to_numpy(), exact, rtol=limit, atol=limit * 30)


@pytest.mark.parametrize("order", ["n", "t"])
def test_few_rows_have_the_bits_of_the_general_kernel(cuda: gp.Device, routes: Routes, order: str) -> None:
    w = normal("float32", 1500, 776) if order == "n" else normal("float32", 776, 1500).T
    for rows in (1, 2, 7, 16):
        x = normal("float32", rows, 1500)
        assert bits(routes["CUDA cores, few rows"](x, w)) == bits(routes["CUDA cores"](x, w)), rows


def test_int8_by_the_library_is_ours(cuda: gp.Device, routes: Routes) -> None:
    missing = cublaslt.missing()
    if missing is not None:
        pytest.skip(missing)
    x, w = normal("int8", 300, 1024), normal("int8", 528, 1024)
    want = x.to_numpy().astype(np.int64) @ w.to_numpy().T.astype(np.int64)
    for name in ("cuBLASLt, int8", "mma.sync", "CUDA cores"):
        np.testing.assert_array_equal(routes[name](x, w.T, precision="int32").to_numpy(), want, name)
