"""Products on the tensor cores of SM 90a: exact values under the emulator's checks, and the same bits by every tile."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.jit.compiler import compile_image
from pygpukit.ops import planner
from pygpukit.ops.gemm import mma, skinny, wgmma
from pygpukit.ops.gemm.boxes import SHARED_LIMIT, Operands, Side
from pygpukit.ops.gemm.layout import Matrices
from pygpukit.ops.gemm.reference import round_to_tf32
from pygpukit.ops.problem import Tensor
from pygpukit.ops.registry import OPERATORS, load, register
from pygpukit.ops.source import headers

pytestmark = pytest.mark.nvrtc

BF16 = gp.to_numpy_dtype("bfloat16")
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def chosen_by_size() -> Iterator[None]:
    """Leave nothing forced for the next test."""
    yield
    wgmma.force(None)
    skinny.force(None)


@pytest.fixture(scope="module")
def variants() -> Iterator[dict[str, Callable[..., gp.GPUArray]]]:
    """Matrix products by one variant each, by its name."""
    made = {}
    for i, variant in enumerate(wgmma.VARIANTS):
        name = f"test_wgmma_{i}"
        made[variant.name] = register(
            dataclasses.replace(load()["matmul"], name=name, variants=(variant,), cases=(), public=False)
        )
    yield made
    for i in range(len(wgmma.VARIANTS)):
        del OPERATORS[f"test_wgmma_{i}"]


@pytest.fixture
def product(variants: dict[str, Callable[..., gp.GPUArray]]) -> Callable[..., gp.GPUArray]:
    return variants["wgmma"]


@pytest.fixture
def few_rows(variants: dict[str, Callable[..., gp.GPUArray]]) -> Callable[..., gp.GPUArray]:
    return variants["wgmma, few rows"]


def integers(shape: tuple[int, ...], seed: int = 0, kind: Any = BF16) -> Array:
    """Integers whose sums of products float32 holds."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(kind)


def normal(shape: tuple[int, ...], seed: int = 0, kind: Any = BF16) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(kind)


def stored(x: Array, transposed: bool) -> gp.GPUArray:
    """An array whose matrices lie in memory as they are, or as their transposes."""
    if not transposed:
        return gp.from_numpy(x)
    last = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return gp.from_numpy(np.ascontiguousarray(x.transpose(last))).transpose(*last)


def exact(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)


def same(got: gp.GPUArray, want: Array) -> None:
    np.testing.assert_array_equal(got.to_numpy().astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("at", range(len(wgmma.TILES)))
def test_tiles_are_exact_at_odd_sizes(at: int, sm90: gp.Device, product: Callable[..., gp.GPUArray]) -> None:
    tile = wgmma.TILES[at]
    wgmma.force(tile)
    # Sizes that no tile divides, several stages around, and all four ways the operands lie.
    a_turned, b_turned = at % 3 == 0, at // 2 % 2 == 1 or not tile.takes(True)
    m, n, k = tile.m * tile.cluster + (8 if a_turned else 3), tile.n + (5 if b_turned else 8), 64 * tile.stages + 72
    a, b = integers((m, k)), integers((k, n), 1)
    got = product(stored(a, a_turned), stored(b, b_turned))
    same(got, exact(a, b))


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 17, 33, 64])
def test_few_rows_are_exact(tokens: int, kind: str, sm90: gp.Device, few_rows: Callable[..., gp.GPUArray]) -> None:
    if kind == "float16" and tokens not in (2, 17):
        pytest.skip("one dtype shows the rest")
    to = gp.to_numpy_dtype(kind)
    a, b = integers((tokens, 1096), kind=to), integers((1096, 200), 1, to)
    same(few_rows(stored(a, False), stored(b, True)), exact(a, b))
    same(few_rows(stored(a, False), stored(b, False)), exact(a, b))


@pytest.mark.parametrize("rows", [16, 24, 32, 40, 48, 56, 64])
def test_strips_of_every_height_are_exact(rows: int, sm90: gp.Device, few_rows: Callable[..., gp.GPUArray]) -> None:
    for tokens in (3, 40):
        skinny.force(rows, 8 if rows < 32 else 4 if tokens == 3 else 1)
        a, b = integers((tokens, 520)), integers((520, 3 * rows + 8), 1)
        same(few_rows(stored(a, False), stored(b, True)), exact(a, b))
        if rows % 32 == 0:
            same(few_rows(stored(a, False), stored(b, False)), exact(a, b))


@pytest.mark.parametrize("transposed", [True, False])
def test_parts_of_k_are_added_in_order(transposed: bool, variants: dict[str, Callable[..., gp.GPUArray]]) -> None:
    op, n = variants["wgmma, few rows, k in parts"], 60 if transposed else 56
    emulator = native.open_cpu(1 << 26, emulated=True, capability=(9, 0), check=True, sm_count=5)
    with gp.device(emulator), gp.deterministic("run_to_run"):
        a, b = integers((11, 2056)), integers((2056, n), 1)
        x, w = stored(a, False), stored(b, transposed)
        bias = integers((n,), 2)
        for _ in range(2):
            same(op(x, w), exact(a, b))
        same(op(x, w, bias=gp.from_numpy(bias)), (exact_float(a, b) + bias.astype(np.float32)).astype(BF16))
        # The sum of what the parts give by themselves, in order.
        a, b = normal((11, 2056)), normal((2056, n), 1)
        x, w = stored(a, False), stored(b, transposed)
        whole = op(x, w, out=gp.empty((11, n), "float32")).to_numpy()
    with gp.device(native.open_cpu(1 << 26, emulated=True, capability=(9, 0))):
        # Two strips on five SMs: two parts of whole stages of 256.
        part = 1280
        parts = [
            gp.matmul(stored(a[:, at : at + part], False), stored(b[at : at + part], transposed),
                      out=gp.empty((11, n), "float32")).to_numpy()
            for at in range(0, 2056, part)
        ]  # fmt: skip
    want = parts[0]
    for part_sum in parts[1:]:
        want = want + part_sum
    assert whole.tobytes() == want.tobytes()


def test_one_hot_rows_and_columns_pick_elements(
    sm90: gp.Device, product: Callable[..., gp.GPUArray], few_rows: Callable[..., gp.GPUArray]
) -> None:
    k = 136
    wgmma.force(wgmma.TILES[-1])
    rng = np.random.default_rng(3)
    for m, n, run in ((72, 80, product), (40, 80, few_rows)):
        b = normal((k, n))
        picked = rng.permutation(k)[:m]
        a = np.zeros((m, k), BF16)
        a[np.arange(m), picked] = 1
        for turned in (False, True):
            same(run(stored(a, False), stored(b, turned)), b[picked])
        a = normal((m, k))
        picked = rng.permutation(k)[:n]
        b = np.zeros((k, n), BF16)
        b[picked, np.arange(n)] = 1
        for turned in (False, True):
            same(run(stored(a, False), stored(b, turned)), a[:, picked])


def test_a_row_has_the_same_bits_by_every_tile(
    sm90: gp.Device, product: Callable[..., gp.GPUArray], few_rows: Callable[..., gp.GPUArray]
) -> None:
    a, b = normal((72, 712)), normal((712, 136), 1)
    results = []
    for tile in wgmma.TILES:
        wgmma.force(tile)
        for a_turned, b_turned in (
            ((False, True), (True, False)) if tile.n == 64 and tile.takes(True) else ((False, True),)
        ):
            results.append(product(stored(a, a_turned), stored(b, b_turned)).to_numpy())
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    for tokens in (1, 3, 17, 33):
        for first in (0, 5):
            part = few_rows(stored(a[first : first + tokens], False), stored(b, tokens != 17))
            assert part.to_numpy().tobytes() == results[0][first : first + tokens].tobytes(), tokens


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_the_order_is_that_of_mma_sync(
    kind: str, sm90: gp.Device, product: Callable[..., gp.GPUArray], few_rows: Callable[..., gp.GPUArray]
) -> None:
    to = gp.to_numpy_dtype(kind)
    # Exponents far apart, so that another order of sums shows.
    rng = np.random.default_rng(5)
    a, b = (
        (normal(shape, i, np.float32) * 2.0 ** rng.integers(-8, 9, shape)).astype(to)
        for i, shape in enumerate(((40, 600), (600, 48)))
    )
    x, y = stored(a, False), stored(b, True)
    op = register(
        dataclasses.replace(load()["matmul"], name="test_mma", variants=mma.VARIANTS[:1], cases=(), public=False)
    )
    want = op(x, y, out=gp.empty((40, 48), "float32")).to_numpy()
    del OPERATORS["test_mma"]
    wgmma.force(wgmma.TILES[-1])
    for run in (product, few_rows):
        assert run(x, y, out=gp.empty((40, 48), "float32")).to_numpy().tobytes() == want.tobytes()
    # Another order has other bits: the test can fail.
    back = np.ascontiguousarray(a[:, ::-1]), np.ascontiguousarray(b[::-1])
    got = product(stored(back[0], False), stored(back[1], True), out=gp.empty((40, 48), "float32"))
    assert got.to_numpy().tobytes() != want.tobytes()


@pytest.mark.parametrize("name", ["wgmma", "wgmma, few rows"])
def test_batches_strides_and_ends(name: str, sm90: gp.Device, variants: dict[str, Callable[..., gp.GPUArray]]) -> None:
    run = variants[name]
    wgmma.force(wgmma.TILES[-1])
    m, n, k = 21, 72, 40
    a, b, shared = integers((2, 3, m, k)), integers((2, 3, k, n), 1), integers((k, n), 2)
    x, y, w = stored(a, False), stored(b, True), stored(shared, True)
    same(run(x, y), exact(a, b))
    # One matrix for all of the batch, in steps of the batch's rows and not.
    same(run(x[0], w), exact(a[0], shared))
    same(run(x[0, :, :19], w), exact(a[0, :, :19], shared))
    same(run(x[0, :, 0], w), exact(a[0, :, 0], shared))
    same(run(x[0, 0, 0], w), exact(a[0, 0, 0], shared))
    same(run(x[0, 0], w[:, 0]), exact(a[0, 0], shared[:, 0]))
    # Parts of longer rows, and results that bulk copies cannot write.
    wide = stored(integers((m, k + 24), 4), False)
    same(run(wide[:, 8 : 8 + k], w), exact(wide.to_numpy()[:, 8 : 8 + k], shared))
    out = gp.zeros((n + 1, m), "bfloat16")
    run(x[0, 0], w, out=out[:n].T)
    same(out[:n].T, exact(a[0, 0], shared))
    assert not out[n].to_numpy().any()
    same(run(x[0, 0], w[:, :67]), exact(a[0, 0], shared[:, :67]))
    single = run(x[0, 0], w, out=gp.empty((m, n), "float32"))
    np.testing.assert_array_equal(single.to_numpy(), a[0, 0].astype(np.float32) @ shared.astype(np.float32))
    # The end of a product: integers, so exact.
    bias, residual = integers((n,), 5), integers((3, m, n), 6)
    total = np.matmul(a[0].astype(np.float32), shared.astype(np.float32)) + bias.astype(np.float32)
    want = (np.maximum(total, 0) + residual.astype(np.float32)).astype(BF16)
    got = run(x[0], w, bias=gp.from_numpy(bias), activation="relu", residual=gp.from_numpy(residual))
    same(got, want)
    turned = stored(residual, True)
    same(run(x[0], w, bias=gp.from_numpy(bias), activation="relu", residual=turned), want)
    got = run(x[0], w[:, :67], bias=gp.from_numpy(bias)[:67], activation="relu", residual=turned[..., :67])
    same(got, want[..., :67])
    got = run(x[0], y[0], bias=gp.from_numpy(bias), residual=gp.from_numpy(residual))
    same(got, (exact_float(a[0], b[0]) + bias.astype(np.float32) + residual.astype(np.float32)).astype(BF16))


def exact_float(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float32), b.astype(np.float32))


@pytest.mark.parametrize("name", ["wgmma", "wgmma after copies with lines along k"])
def test_float8_and_int8(name: str, sm90: gp.Device, variants: dict[str, Callable[..., gp.GPUArray]]) -> None:
    run = variants[name]
    k = 264 + 16 * (name == "wgmma") - 8
    for tile in (wgmma.Tile(128, 128, 3, 2, 0), wgmma.Tile(64, 64, 2, 1, 0)):
        wgmma.force(tile)
        e4m3 = gp.to_numpy_dtype("float8_e4m3fn")
        a, b = integers((67, k), kind=e4m3), integers((k, 45), 1, e4m3)
        want = np.matmul(a.astype(np.float32), b.astype(np.float32))
        x, y = stored(a, False), stored(b, name == "wgmma")
        np.testing.assert_array_equal(run(x, y, precision="fp8", out=gp.empty((67, 45), "float32")).to_numpy(), want)
        same(run(x, y, precision="fp8"), want.astype(BF16))
        if name == "wgmma":
            rng = np.random.default_rng(2)
            c, d = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((67, k), (k, 45)))
            got = run(stored(c, False), stored(d, True), precision="int32").to_numpy()
            np.testing.assert_array_equal(got, c.astype(np.int32) @ d.astype(np.int32))


def test_tf32_operands_rounded_first_have_the_same_bits(
    sm90: gp.Device, product: Callable[..., gp.GPUArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    for batch, m, n, k in (((), 70, 65, 98), ((2,), 67, 129, 36)):
        width = -(-k // 4) * 4
        x, y = (gp.from_numpy(rng.standard_normal((*batch, rows, width), np.float32))[..., :k] for rows in (m, n))
        ways = []
        for least in (1 << 20, 32):
            monkeypatch.setattr(wgmma, "_ROUNDED_FROM", least)
            native.clear_plans()
            assert ("first" in gp.explain(gp.matmul, x, y.mT, precision="tf32").variant) == (least == 32)
            ways.append(product(x, y.mT, precision="tf32").to_numpy().tobytes())
        assert ways[0] == ways[1]
    native.clear_plans()


def test_tf32_is_rounded_as_everywhere(sm90: gp.Device, product: Callable[..., gp.GPUArray]) -> None:
    op = register(
        dataclasses.replace(load()["matmul"], name="test_mma", variants=mma.VARIANTS[:1], cases=(), public=False)
    )
    for tile in (wgmma.Tile(128, 64, 3, 2, 0), wgmma.Tile(64, 64, 2, 1, 0)):
        wgmma.force(tile)
        a, b = normal((150, 204), kind=np.float32), normal((204, 83), 1, np.float32)
        x, y = stored(a, False), stored(b, True)
        got = product(x, y, precision="tf32").to_numpy()
        assert got.tobytes() == op(x, y, precision="tf32").to_numpy().tobytes()
    # Ties, overflow, and numbers that are none.
    edges = np.array([1 + 2**-11, -1 - 2**-11, 1 + 3 * 2**-12, 3.4e38, np.inf, -np.inf, np.nan, 0.0], np.float32)
    edges = np.concatenate(
        [edges, np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F7FEFFF], np.uint32).view(np.float32)]
    )
    one = np.zeros((edges.size, 4), np.float32)
    one[:, 0] = edges
    unit = np.zeros((4, 4), np.float32)
    unit[0] = 1
    got = product(stored(one, False), stored(unit, True), precision="tf32").to_numpy()
    np.testing.assert_array_equal(got, np.repeat(round_to_tf32(edges)[:, None], 4, 1))
    del OPERATORS["test_mma"]


def test_sums_of_float8_are_added_every_128(sm90: gp.Device, product: Callable[..., gp.GPUArray]) -> None:
    """The parts are those that products of 128 columns give, added in float32 in ascending order."""
    e4m3, k = gp.to_numpy_dtype("float8_e4m3fn"), 640
    a, b = normal((20, k), kind=e4m3), normal((k, 24), 1, e4m3)
    x, y = stored(a, False), stored(b, True)

    def single(part: slice) -> Array:
        out = gp.empty((20, 24), "float32")
        return product(x[:, part], y[part], precision="fp8", out=out).to_numpy()

    want = np.zeros((20, 24), np.float32)
    for at in range(0, k, 128):
        want += single(slice(at, at + 128))
    np.testing.assert_array_equal(single(slice(0, k)), want)


def test_matmul_takes_it_and_leaves_the_rest(sm90: gp.Device) -> None:
    if sm90.kind == "cuda":
        pytest.skip("cuBLASLt may be asked first on a GPU")
    a, b = integers((65, 40)), integers((40, 24), 1)
    x, y = stored(a, False), stored(b, True)
    assert gp.explain(gp.matmul, x, y).variant == "wgmma"
    assert gp.explain(gp.matmul, x[:64], y).variant == "wgmma, few rows"
    same(gp.matmul(x, y), exact(a, b))
    text = str(gp.explain(gp.matmul, x[:, 1:], y[1:]))
    assert "the address of an operand is not a multiple of 16 bytes" in text
    same(gp.matmul(x[:, 1:], y[1:]), exact(a[:, 1:], b[1:]))
    odd = stored(integers((9, 41)), False)
    assert "rows of an operand do not lie at multiples of 16 bytes" in str(gp.explain(gp.matmul, odd, odd.T))
    same(gp.matmul(odd, odd.T), exact(odd.to_numpy(), odd.to_numpy().T))


def test_every_choice_can_be_compiled() -> None:
    """Tiles of a cluster of which no box of b can be shared are not chosen."""
    for b_mn in (False, True):
        seen = set()
        for m, n, sms in itertools.product(
            (65, 130, 300, 700, 2048, 5000), (64, 200, 700, 3584, 4608, 9000), (16, 132)
        ):
            side = Side(Tensor("input", 0, gp.bfloat16, (n, 64)), n, 64, b_mn, 64, 1, 0)
            left = Side(Tensor("input", 0, gp.bfloat16, (m, 64)), m, 64, False, 64, 1, 0)
            tile = wgmma.choose(Operands((), m, n, 64, 1, left, side, Matrices(m, n, n, 1), None), sms)
            assert tile.takes(b_mn)
            assert tile.shared <= SHARED_LIMIT
            assert tile.cluster == 1 or sms == 132
            seen.add(tile)
        assert len(seen) > 4


def test_a_new_shape_does_not_ask_python(
    sm90: gp.Device, product: Callable[..., gp.GPUArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    native.clear_plans()
    monkeypatch.setattr(planner, "choose", lambda *a, real=planner.choose: asked.append(1) or real(*a))
    w = stored(integers((40, 48)), True)
    for m in (66, 70, 90, 65):
        a = integers((m, 40))
        got = product(stored(a, False), w)
        assert got.shape == (m, 48)
    assert len(asked) == 1


def test_compilers_do_not_serialise_the_products() -> None:
    """ptxas says in its log where it waits for wgmma by itself, or ignores setmaxnreg; a spoiled kernel shows that."""
    bf16 = gp.dtype("bfloat16")
    units = [
        wgmma.unit(bf16, bf16, tile, i % 3 == 0, i // 2 % 2 == 0 and tile.takes(True))
        for i, tile in enumerate(wgmma.TILES)
    ]
    units += [
        wgmma.unit(gp.dtype("float8_e4m3fn"), bf16, tile, False, False)
        for tile in (wgmma.Tile(128, 192, 4, 2, 0), wgmma.Tile(128, 128, 6, 1, 0))
    ]
    units.append(wgmma.unit(gp.float32, gp.float32, wgmma.TILES[0], False, False))
    units += [skinny.unit(bf16, bf16, skinny.strip(*strip), strip[1] == 32) for strip in ((32, 8), (32, 32), (64, 64))]
    for unit in units:
        log = log_of(unit.source, unit.name)
        assert "C75" not in log, f"{unit.name}: {log}"
        assert "0 bytes spill stores, 0 bytes spill loads" in log, f"{unit.name}: {log}"
    early = units[-1].source.replace("wgmma_commit();", "wgmma_commit(); wgmma_ready(d); d[0] += 1.0f;")
    assert "C75" in log_of(early, "spoiled")


def log_of(source: str, name: str) -> str:
    return compile_image(source, name=name, arch="90a", options=["-Xptxas=-v"], headers=headers()).log
