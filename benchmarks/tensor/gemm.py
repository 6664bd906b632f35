"""Our tensor core products against torch: large ones, a few rows by weights, and the products of a layer in a chain.

First results are compared: with exact integers at sizes that no tile divides, in all layouts, and bit by bit between
tiles and with cuBLASLt. Small calls are repeated in graphs of 20 nodes on both sides; successive calls take other
weights, more than the L2 cache holds. All data is normal.

    python benchmarks/tensor/gemm.py --json benchmarks/results/h200-tensor-gemm.json
    python benchmarks/tensor/gemm.py --only check
    python benchmarks/tensor/gemm.py --sweep --only 4096           # every tile, cluster and depth at each size
    python benchmarks/tensor/gemm.py --tile 128x256x3c2 --only gemm
    python benchmarks/tensor/gemm.py --strip 48x4 --only rows
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ops.gemm import skinny, wgmma
from pygpukit.ops.gemm.reference import round_to_tf32
from pygpukit.ops.registry import load, register

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "array"))
from harness import Bench

L2 = 60 << 20
READ_RATE = 4.56e12
"""Bytes per second that reading alone reaches on an H200."""

LAYER = {"qkv": (3584, 4608), "o": (3584, 3584), "gate and up": (3584, 37888), "down": (18944, 3584)}
"""K and N of the products of a Qwen2.5-7B layer."""

WEIGHTS = (*LAYER.values(), (4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (8192, 29568), (3584, 152064))
CHAIN_US = {1: (120.0, 110.0), 8: (122.0, 112.0)}
NODES = 20
BF16 = gp.to_numpy_dtype("bfloat16")

product = register(
    dataclasses.replace(load()["matmul"], name="bench_wgmma", variants=wgmma.VARIANTS, cases=(), public=False)
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--sweep", action="store_true", help="measure every tile, or every height and depth of strips")
    parser.add_argument("--tile", help="m x n x stages c cluster of large products, such as 128x256x4c2")
    parser.add_argument("--strip", help="rows x depth of products of few rows, such as 48x4")
    parser.add_argument("--sizes", type=int, nargs="*", default=[2048, 4096, 8192], help="of large products")
    parser.add_argument("--m", type=int, nargs="*", default=[1, 8, 32, 64], help="rows of products of few rows")


def tile_of(text: str) -> wgmma.Tile:
    """Return the tile a text such as ``128x256x4c2`` names."""
    sides, _, cluster = text.partition("c")
    m, n, stages = (int(part) for part in sides.split("x"))
    return wgmma.Tile(m, n, stages, int(cluster or 1), 0)


def normal(bench: Bench, *shape: int, dtype: str = "bfloat16") -> tuple[Any, Any]:
    """Return an array of normal numbers, and the same memory as torch sees it."""
    theirs = bench.torch.randn(shape, device="cuda", dtype=getattr(bench.torch, dtype))
    bench.torch.cuda.synchronize()
    return gp.from_dlpack(theirs), theirs


def copies(nbytes: int) -> int:
    """How many copies of weights it takes to leave the L2 behind; at least 2."""
    return max(2, min(NODES, -(-4 * L2 // nbytes)))


def cycle(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a function that makes the next of these calls."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


# --- Values ---


def bits(x: Any) -> bytes:
    return bytes(x.to_numpy().tobytes())


def check_exact(tile: wgmma.Tile) -> None:
    """Integers, in all layouts, at sizes that no tile divides."""
    wgmma.force(tile)
    rng = np.random.default_rng(0)
    for turned_a, turned_b in itertools.product((False, True), repeat=2):
        if not tile.takes(not turned_b):
            continue
        m, n, k = 8 * 37 + (0 if turned_a else 5), 8 * 67 + (3 if turned_b else 0), 8 * 331
        a, b = (rng.integers(-4, 5, shape).astype(BF16) for shape in ((m, k), (k, n)))
        x = gp.from_numpy(np.ascontiguousarray(a.T)).T if turned_a else gp.from_numpy(a)
        y = gp.from_numpy(np.ascontiguousarray(b.T)).T if turned_b else gp.from_numpy(b)
        want = (a.astype(np.float64) @ b.astype(np.float64)).astype(BF16)
        if product(x, y).to_numpy().tobytes() != want.tobytes():
            raise AssertionError(f"{tile} is wrong at {m} x {n} x {k}, transposed: {turned_a}, {turned_b}")


def check_kinds() -> None:
    """Integers as float8 and int8, and tf32 against NumPy's rounding and float64."""
    rng = np.random.default_rng(2)
    m, n, k = 301, 203, 1040
    a, b = (rng.integers(-4, 5, shape) for shape in ((m, k), (n, k)))
    for kind, precision in (("float8_e4m3fn", "fp8"), ("int8", "int32"), ("float32", "tf32")):
        x, y = (gp.from_numpy(v.astype(gp.to_numpy_dtype(kind))) for v in (a, b))
        out = gp.empty((m, n), "int32" if kind == "int8" else "float32")
        assert (product(x, y.T, precision=precision, out=out).to_numpy() == a @ b.T).all(), f"{kind} is wrong"
    p, q = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k)))
    got = product(gp.from_numpy(p), gp.from_numpy(q).T, precision="tf32").to_numpy()
    exact = round_to_tf32(p).astype(np.float64) @ round_to_tf32(q).astype(np.float64).T
    assert np.abs(got - exact).max() < 1e-4 * np.abs(exact).max(), "tf32 is wrong"


def check() -> None:
    """Compare results, before anything is timed; raise where they differ."""
    for tile in wgmma.TILES:
        check_exact(tile)
    wgmma.force(None)
    check_kinds()
    rng = np.random.default_rng(1)
    for k, n in ((3584, 4608), (18944, 3584)):
        a, w = (gp.from_numpy(rng.standard_normal(shape).astype(BF16)) for shape in ((257, k), (n, k)))
        exact = a.to_numpy().astype(np.float64) @ w.to_numpy().astype(np.float64).T
        rows = None
        for tile in wgmma.TILES:
            wgmma.force(tile)
            found = product(a, w.T).to_numpy()
            rows = found if rows is None else rows
            assert found.tobytes() == rows.tobytes(), f"{tile} has other bits at K {k}"
        assert rows is not None
        far = np.abs(rows.astype(np.float64) - exact).max() / np.abs(exact).max()
        assert far < 4e-3, f"K {k}: {far} from float64"
        assert bits(gp.matmul(a, w.T)) == rows.tobytes(), f"gp.matmul has other bits than wgmma at K {k}"
        for m, height in itertools.product((1, 2, 3, 17, 33, 64), (32, 40, 48, 56, 64)):
            skinny.force(height, 4 if m <= 16 else 2)
            part = product(a[5 : 5 + m], w.T).to_numpy()
            assert part.tobytes() == rows[5 : 5 + m].tobytes(), f"strips of {height} have other bits, M {m}, K {k}"
        skinny.force(None)
    wgmma.force(None)
    print("values: exact at odd sizes; the same bits by every tile, by every strip, and by gp.matmul")


# --- Times ---


def tiles(bench: Bench) -> Iterator[tuple[str, wgmma.Tile | None]]:
    """Return the tiles to measure, with what a row's name says of them."""
    if bench.options.sweep:
        for tile in wgmma.TILES:
            yield f" tile {tile.m}x{tile.n}x{tile.stages}c{tile.cluster}", tile
    else:
        chosen = bench.options.tile
        yield (f" tile {chosen}", tile_of(chosen)) if chosen else ("", None)


def strips(bench: Bench) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Return the heights and depths of strips to measure."""
    if bench.options.sweep:
        for rows, depth in itertools.product((16, 24, 32, 40, 48, 56, 64), (1, 2, 4, 8)):
            yield f" strip {rows}x{depth}", (rows, depth)
    else:
        chosen = bench.options.strip
        rows, depth = map(int, chosen.split("x")) if chosen else (0, 0)
        yield (f" strip {chosen}", (rows, depth)) if chosen else ("", None)


def large(bench: Bench, n: int, dtype: str, transposed: bool) -> None:
    """A square product; b as it is, or as the transpose of what lies in memory."""
    (a, ta), (b, tb) = normal(bench, n, n, dtype=dtype), normal(bench, n, n, dtype=dtype)
    if transposed:
        b, tb = b.T, tb.T
    out, theirs = gp.empty((n, n), dtype), bench.torch.empty_like(ta)
    repeat = NODES if n <= 2048 else 1
    for text, tile in tiles(bench):
        wgmma.force(tile)
        what = f"gemm {dtype} {n} {'nt' if transposed else 'nn'}{text}"
        if bench.wanted(what) and (tile is None or tile.takes(not transposed)):
            bench.against_torch(
                what, lambda: product(a, b, out=out), lambda: bench.torch.matmul(ta, tb, out=theirs), 1 / 0.9,
                repeat=repeat, tflops=2 * n**3 / 1e12,
            )  # fmt: skip
    wgmma.force(None)


def other_kinds(bench: Bench, n: int) -> None:
    """Square products of float32 as tf32, of float8 and of int8, b as the transpose of what lies in memory."""
    torch = bench.torch
    torch.backends.cuda.matmul.allow_tf32 = True
    (a, ta), (b, tb) = normal(bench, n, n, dtype="float32"), normal(bench, n, n, dtype="float32")
    tf32 = torch.empty_like(ta)
    small = [x.to(torch.float8_e4m3fn) for x in (ta, tb)]
    c, d = (gp.from_dlpack(x.view(torch.uint8)).view("float8_e4m3fn") for x in small)
    whole = [torch.randint(-128, 128, (n, n), device="cuda", dtype=torch.int8) for _ in range(2)]
    torch.cuda.synchronize()
    e, f = (gp.from_dlpack(x) for x in whole)
    one = torch.ones((), device="cuda")
    outs = {name: gp.empty((n, n), name) for name in ("float32", "bfloat16", "int32")}
    calls = {
        "tf32": (
            lambda: product(a, b.T, precision="tf32", out=outs["float32"]),
            lambda: torch.matmul(ta, tb.T, out=tf32),
            1 / 0.8,
        ),
        "float8": (
            lambda: product(c, d.T, precision="fp8", out=outs["bfloat16"]),
            lambda: torch._scaled_mm(small[0], small[1].T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
            1 / 0.8,
        ),
        "int8": (
            lambda: product(e, f.T, precision="int32", out=outs["int32"]),
            lambda: torch._int_mm(whole[0], whole[1].T),
            1 / 1.2,
        ),
    }
    for (name, (ours, theirs, must)), (text, tile) in itertools.product(calls.items(), tiles(bench)):
        what = f"gemm {name} {n} nt{text}"
        # Sums of float8 are kept twice: a wider tile would have no registers for them.
        if bench.wanted(what) and (tile is None or name != "float8" or tile.n <= 192):
            wgmma.force(tile)
            bench.against_torch(what, ours, theirs, must, repeat=NODES if n <= 2048 else 1, tflops=2 * n**3 / 1e12)
    wgmma.force(None)


def few_rows(bench: Bench, k: int, n: int, m: int) -> None:
    """Rows by weights stored as [N, K]; against torch, and as a share of the rate of reading."""
    nbytes = 2 * k * n
    x, tx = normal(bench, m, k)
    weights = [normal(bench, n, k) for _ in range(copies(nbytes))]
    out, theirs = gp.empty((m, n), "bfloat16"), bench.torch.empty(m, n, device="cuda", dtype=bench.torch.bfloat16)
    bar = 1 / 1.25 if (k, n) in ((3584, 3584), (4096, 4096)) else 1.0
    for text, strip in strips(bench):
        if strip is not None and 64 - strip[0] > strip[1] * next(t for t in (8, 16, 32, 64) if m <= t):
            continue
        skinny.force(*(strip or (None,)))
        what = f"rows {m} by {k}x{n}{text}"
        if not bench.wanted(what):
            continue
        ours = cycle([lambda w=w: product(x, w.T, out=out) for w, _ in weights])  # type: ignore[misc]
        other = cycle([lambda w=w: bench.torch.matmul(tx, w.T, out=theirs) for _, w in weights])  # type: ignore[misc]
        bench.against_torch(what, ours, other, bar, repeat=NODES)
        row = bench.report.rows[-1]
        row["of_read_rate"] = nbytes / (row["ours"] * 1e-3) / READ_RATE
        print(f"     {row['ours'] * 1e3:.2f} us, {row['of_read_rate']:.3f} of the rate of reading")
    skinny.force(None)


def chain(bench: Bench, m: int) -> None:
    """The products of a layer, each of the one before, in a graph of five layers."""
    layers = [{name: normal(bench, n, k) for name, (k, n) in LAYER.items()} for _ in range(3)]
    x, tx = normal(bench, m, 3584)
    outs = {name: gp.empty((m, n), "bfloat16") for name, (_, n) in LAYER.items()}
    touts = {name: bench.torch.empty(m, n, device="cuda", dtype=bench.torch.bfloat16) for name, (_, n) in LAYER.items()}

    def run(multiply: Callable[..., Any], first: Any, results: dict[str, Any], side: int, layer: Any) -> None:
        given = first
        for name, (k, _) in LAYER.items():
            multiply(given[:, :k], layer[name][side].T, out=results[name])
            given = results[name]

    ours = cycle([lambda layer=layer: run(product, x, outs, 0, layer) for layer in layers])  # type: ignore[misc]
    other = cycle(
        [lambda layer=layer: run(bench.torch.matmul, tx, touts, 1, layer) for layer in layers]  # type: ignore[misc]
    )
    what = f"chain of a layer, M {m}"
    if bench.wanted(what):
        bench.against_torch(what, ours, other, 1.0, repeat=NODES // len(LAYER))
        mine = bench.report.rows[-1]["ours"] * 1e3
        must, stretch = CHAIN_US[m]
        bench.report.add(f"{what}, bound", mine, must, "us", 1.0)
        bench.report.add(f"{what}, bound (stretch)", mine, stretch, "us", 1.0)


def main() -> int:
    """Check, then measure."""
    bench = Bench(__doc__, arguments)
    bench.check(check)
    options = bench.options
    for m in CHAIN_US:
        bench.guarded(f"chain {m}", chain, bench, m)
    for (k, n), m in itertools.product(WEIGHTS, options.m):
        if any(bench.wanted(f"rows {m} by {k}x{n}{text}") for text, _ in strips(bench)):
            bench.guarded(f"rows {m} by {k}x{n}", few_rows, bench, k, n, m)
            bench.torch.cuda.empty_cache()
    for n, dtype, transposed in itertools.product(options.sizes, ("bfloat16", "float16"), (True, False)):
        bench.guarded(f"gemm {dtype} {n}", large, bench, n, dtype, transposed)
    for n in options.sizes:
        bench.guarded(f"other types {n}", other_kinds, bench, n)
    return bench.finish("python benchmarks/tensor/gemm.py")


if __name__ == "__main__":
    sys.exit(main())
