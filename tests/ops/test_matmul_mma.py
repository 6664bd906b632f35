"""Products by mma.sync on the emulator: exact values for every layout, and the same bits for every tile and layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.gemm import mma
from pygpukit.ops.gemm.reference import round_to_tf32

pytestmark = pytest.mark.nvrtc

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("bfloat16", {}),
    ("float32", {"precision": "tf32"}),
    ("int8", {"precision": "int32"}),
]


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    with gp.device("emulated"):
        yield


def stored(x: Any, order: str, pad: int = 0) -> gp.GPUArray:
    """An operand stored as it is ("n"), as its transpose ("t"), each with longer rows, or by every second element."""
    if order == "n":
        return gp.from_numpy(np.pad(x, ((0, 0), (0, pad))))[:, : x.shape[1]]
    if order == "t":
        return gp.from_numpy(np.pad(x.T, ((0, 0), (0, pad))).copy())[:, : x.shape[0]].T
    return gp.from_numpy(np.repeat(x, 2, axis=1))[:, ::2]


def numbers(kind: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    """Random operands whose sums depend on their order."""
    rng = np.random.default_rng([m, n, k])
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "int8":
        a, b = a * 60, b * 60
    return a.astype(gp.to_numpy_dtype(kind)), b.astype(gp.to_numpy_dtype(kind))


def product(x: gp.GPUArray, y: gp.GPUArray, options: dict[str, Any]) -> Any:
    """The unrounded sums."""
    shape = (x.shape[0], y.shape[1])
    out = gp.empty(shape, "int32" if x.dtype is gp.int8 else "float32")
    return gp.matmul(x, y, out=out, **options).to_numpy()


def variant(x: gp.GPUArray, y: gp.GPUArray, options: dict[str, Any]) -> str:
    return gp.explain(gp.matmul, x, y, **options).variant


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("orders", ["nn", "nt", "tn", "tt", "sn", "ns"])
def test_integers_are_exact_in_every_layout(kind: str, options: dict[str, Any], orders: str) -> None:
    rng = np.random.default_rng(1)
    for m, n, k, pad in (
        (33, 40, 64, 0),
        (70, 9, 144, 16),
        (5, 7, 13, 0),
        (1, 72, 160, 32),
        (3, 1, 1, 0),
        (2, 3, 0, 0),
    ):
        a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
        x, y = (stored(v.astype(gp.to_numpy_dtype(kind)), o, pad) for v, o in zip((a, b), orders, strict=True))
        np.testing.assert_array_equal(product(x, y, options), a @ b, f"{m} {n} {k} {orders}")
        assert variant(x, y, options).startswith("mma.sync")


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_ones_and_zeros_find_their_places(kind: str, options: dict[str, Any]) -> None:
    a = np.eye(40, 96, 7).astype(gp.to_numpy_dtype(kind))
    b = (np.arange(96 * 40).reshape(96, 40) % 101).astype(gp.to_numpy_dtype(kind))
    want = b[7:47].astype(np.float32)
    for order in "nt":
        np.testing.assert_array_equal(product(stored(a, "n"), stored(b, order), options), want)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_tiles_and_layouts_change_no_bit(kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    m, n, k = 130, 72, 208
    a, b = numbers(kind, m, n, k)
    x, y = stored(a, "n"), stored(b, "t")
    native.clear_plans()
    try:
        results = {}
        for tile in (mma.LARGE, mma.MEDIUM, mma.SMALL, mma.ROWS):
            monkeypatch.setattr(mma, "tile_of", lambda *_, tile=tile: tile)
            native.clear_plans()
            assert tile.name in gp.explain(gp.matmul, x, y, **options).launches[0]
            results[tile.name] = product(x, y, options)
        monkeypatch.undo()
        native.clear_plans()
        for orders in ("nn", "tt", "sn", "ns"):
            results[orders] = product(stored(a, orders[0]), stored(b, orders[1]), options)
        for rows in (1, 2, 3, 17, 33, 128):
            results[f"{rows} rows"] = np.concatenate([product(x[:rows], y, options), results["64x64"][rows:]])
        results["shuffled"] = np.empty_like(results["64x64"])
        order = np.random.default_rng(3).permutation(m)
        results["shuffled"][order] = product(stored(a[order], "n"), y, options)
        for name, got in results.items():
            assert got.tobytes() == results["64x64"].tobytes(), name
    finally:
        monkeypatch.undo()
        native.clear_plans()


def test_tf32_rounds_its_operands_to_nearest() -> None:
    a, b = numbers("float32", 20, 24, 40)
    got = gp.matmul(gp.from_numpy(a), gp.from_numpy(b), precision="tf32").to_numpy()
    exact = round_to_tf32(a).astype(np.float64) @ round_to_tf32(b).astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    assert np.abs(got - a.astype(np.float64) @ b).max() > 1e-5
    same = gp.matmul(gp.from_numpy(a), gp.from_numpy(b), use_tf32=True).to_numpy()
    assert same.tobytes() == got.tobytes()
    assert gp.matmul(gp.from_numpy(a), gp.from_numpy(b), use_tf32=False).to_numpy().tobytes() != got.tobytes()


def test_int8_is_exact_at_the_ends_of_its_range() -> None:
    a, b = np.full((17, 300), -128, np.int8), np.full((300, 9), -128, np.int8)
    got = gp.matmul(gp.from_numpy(a), gp.from_numpy(b), precision="int32")
    assert got.dtype is gp.int32
    assert (got.to_numpy() == 300 * 128 * 128).all()
    plain = gp.matmul(gp.from_numpy(a), gp.from_numpy(b), out=gp.empty((17, 9), "int32"))
    np.testing.assert_array_equal(plain.to_numpy(), np.matmul(a, b), "without it products wrap as NumPy's")


def test_batches_and_rounding() -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(-3, 4, (2, 1, 20, 48)).astype(gp.to_numpy_dtype("bfloat16"))
    b = rng.integers(-3, 4, (3, 24, 48)).astype(a.dtype)
    bias, residual = (rng.integers(-9, 9, s).astype(a.dtype) for s in ((24,), (2, 3, 20, 24)))
    x, y = gp.from_numpy(a), gp.from_numpy(b).mT
    assert variant(x, y, {}) == "mma.sync"
    want = a.astype(np.float32) @ b.astype(np.float32).swapaxes(1, 2)
    np.testing.assert_array_equal(gp.matmul(x, y).to_numpy(), want.astype(a.dtype))
    want = np.maximum(want + bias, 0) + residual
    got = gp.matmul(x, y, bias=gp.from_numpy(bias), activation="relu", residual=gp.from_numpy(residual))
    np.testing.assert_array_equal(got.to_numpy(), want.astype(a.dtype))
    out = gp.zeros((2, 3, 24, 20), "bfloat16")
    gp.matmul(x, y, out=out.mT)
    np.testing.assert_array_equal(out.to_numpy(), gp.matmul(x, y).mT.to_numpy())


def test_a_copy_first_is_said_and_changes_no_bit() -> None:
    a, b = numbers("float32", 70, 20, 40)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    walk = gp.explain(gp.matmul, x, y, precision="tf32")
    assert walk.variant == "mma.sync after a copy with lines along k"
    assert ("mma.sync", "b does not lie in lines along k at multiples of 16 bytes") in walk.refused
    want = gp.matmul(x, gp.from_numpy(b.T.copy()).T, precision="tf32").to_numpy()
    assert gp.matmul(x, y, precision="tf32").to_numpy().tobytes() == want.tobytes()


def test_operands_of_other_types_are_cast_first() -> None:
    a, b = numbers("float32", 6, 8, 16)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    got = gp.matmul(x, y, precision="bf16")
    assert got.dtype is gp.float32
    parts = gp.matmul(x.astype("bfloat16"), y.astype("bfloat16"), out=gp.empty((6, 8)))
    assert got.to_numpy().tobytes() == parts.to_numpy().tobytes()
    small = x.astype("float8_e4m3fn")
    exact = gp.matmul(small, y.astype("float8_e4m3fn"), precision="bfloat16", out=gp.empty((6, 8))).to_numpy()
    want = small.to_numpy().astype(np.float64) @ y.astype("float8_e4m3fn").to_numpy().astype(np.float64)
    np.testing.assert_allclose(exact, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(gp.errors.DeviceError, match="precision='bfloat16' holds it exactly"):
        gp.matmul(small, y.astype("float8_e4m3fn"), precision="fp8")


def test_the_checker_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with gp.device(native.open_cpu(1 << 26, emulated=True, check=True)):
        a, b = numbers("bfloat16", 33, 40, 200)
        x, y = stored(a, "n"), stored(b, "n")
        assert variant(x, y, {}) == "mma.sync"
        np.testing.assert_allclose(gp.matmul(x, y, out=gp.empty((33, 40))).to_numpy(), a.astype("f4") @ b.astype("f4"),
                                   rtol=1e-5, atol=1e-4)  # fmt: skip
