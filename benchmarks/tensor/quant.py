"""Products with quantised weights against our own with the decoded weight in bfloat16.

First values are compared: with float64 at odd sizes, and bit by bit with the product of the decoded weight for many
numbers of rows, by every shape of blocks, from run to run and in graphs. Then a row of x, and eight, by weights of more
than 256 MB in bfloat16, in graphs of ten calls over several copies; and many rows.

    python benchmarks/tensor/quant.py --json benchmarks/results/h200-tensor-quant.json
    python benchmarks/tensor/quant.py --only check
    python benchmarks/tensor/quant.py --sweep --only "gemm 512"        # every shape of blocks, and decoding first
    python benchmarks/tensor/quant.py --sweep --only "gemv 1"          # rings of several sizes, and without one
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.quant import stream, wgmma
from pygpukit.quant.formats import FORMATS, TILE, Rule, rule_of
from pygpukit.quant.kept import Kept
from pygpukit.quant.planes import shapes
from pygpukit.quant.stored import Stored

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "array"))
from harness import Bench

L2 = 60 << 20
NODES = 10
BF16 = gp.to_numpy_dtype("bfloat16")

WIDE = ((3584, 37888), (8192, 29568), (3584, 152064))
"""K and N of weights of more than 256 MB in bfloat16."""

SQUARE = ((4096, 4096), (8192, 8192), (3584, 18944))

# Rule, least speed against bfloat16 for one row, and the stretch; 0 for formats without a bar.
RULES = (
    ("e4m3_scale_f32_g0", 1.75, 1.9),
    ("e4m3_scale_f32_g128", 1.75, 1.9),
    ("i8_scale_f32_g0", 1.75, 1.9),
    ("i4_scale_bf16_g128", 3.0, 3.5),
    ("i4_zero_f16_g128", 3.0, 3.5),
    ("i4_scale_bf16_g32", 3.0, 3.5),
    ("i4_scale_f16_g32", 0.0, 0.0),
    ("i4_minimum_f16_g32", 0.0, 0.0),
    ("i4_super_f16_g32", 0.0, 0.0),
    ("i6_superscale_f16_g16", 0.0, 0.0),
    ("i8_scale_f16_g32", 0.0, 0.0),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--sweep", action="store_true", help="every shape of blocks, every ring, and decoding first")
    parser.add_argument("--m", type=int, nargs="*", default=[128, 256, 512, 1024, 2048, 4096], help="many rows")
    parser.add_argument("--few", type=int, nargs="*", default=[1, 8], help="few rows")


def weight(name: str, n: int, k: int, seed: int = 0) -> gp.quant.QuantTensor:
    """A weight of random codes, which repeat after 4 MB, made in the order of its planes; shape (k, n)."""
    rng = np.random.default_rng([seed, n, k])
    rule: Rule = rule_of(name)
    form = next(f for f in FORMATS.values() if f.code == rule.code and rule.kind in (f.kind, "zero"))
    planes: dict[str, gp.GPUArray] = {}
    for key, (shape, kind) in shapes(rule, n, k, TILE).items():
        some = min(int(np.prod(shape)), (1 << 22) - 3)
        if kind == np.uint8 and key in ("codes", "high"):
            plane = rng.integers(0, 256, some, np.uint8)
            if rule.code == "e4m3":
                # No NaN.
                plane[(plane & 0x7F) == 0x7F] = 0
        elif kind.kind in "iu":
            plane = rng.integers(0, 16, some).astype(kind)
        else:
            plane = (rng.uniform(0.5, 1.5, some) / 256).astype(kind)
        planes[key] = gp.from_numpy(np.resize(plane, shape))
        planes[key].setflags(write=False)
    return gp.quant.QuantTensor._make(Stored(form, rule, n, k, planes, TILE, None, "quantize", Kept()), True)


def rows(m: int, k: int, seed: int = 1) -> gp.GPUArray:
    """Normal numbers in bfloat16."""
    return gp.from_numpy(np.random.default_rng([seed, m, k]).standard_normal((m, k)).astype(BF16))


def bits(x: gp.GPUArray) -> bytes:
    return bytes(x.to_numpy().tobytes())


def check() -> None:
    """Compare values and bits; an error ends the run.

    Raises
    ------
    AssertionError
        If a product is not the one with the decoded weight.
    """
    for (name, _, _), (n, k) in itertools.product(RULES, ((517, 768), (33, 512), (4096, 1280))):
        q = weight(name, n, k)
        w = q.dequantize("bfloat16")
        x = rows(700, k)
        exact = x.to_numpy().astype(np.float64) @ w.to_numpy().astype(np.float64)
        reference = gp.matmul(x, w).to_numpy()
        for m in (1, 2, 3, 8, 9, 17, 33, 64, 65, 128, 257, 512, 513, 700):
            got = (x[:m] @ q).to_numpy()
            apart = np.linalg.norm(got.astype(np.float64) - exact[:m]) / np.linalg.norm(exact[:m])
            assert apart < 0.003, f"{name} {m} x {k} x {n}: {apart}"
            assert got.tobytes() == reference[:m].tobytes(), (
                f"{name} {m} x {k} x {n}: bits of the decoded product differ"
            )
    q, x = weight("i4_zero_f16_g128", 1000, 2048), rows(300, 2048)
    wanted = bits(x @ q)
    for shape in wgmma.SHAPES:
        wgmma.force(shape)
        assert bits(x @ q) == wanted, shape
    wgmma.force(None)
    for _ in range(50):
        assert bits(x @ q) == wanted
    for ring in (stream.Ring(18, 16, 8), stream.Ring(5, 2, 4), stream.Ring(1, 3, 8)):
        stream.force(ring)
        assert bits(x[:8] @ q) == bits(gp.from_numpy(x.to_numpy()[:8]) @ q) == wanted[: 8 * 2000], ring
    stream.force(None)
    one, out = x[:1], gp.empty((1, 1000), "bfloat16")
    graph = gp.CudaGraph()
    gp.matmul(one, q, out=out)
    with graph.capture():
        gp.matmul(one, q, out=out)
    out.fill(0.0)
    graph.replay()
    assert bits(out) == bits(one @ q)
    print("bits are those of the products with decoded weights")


def cycle(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a function that makes the next of these calls."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def few(bench: Bench, k: int, n: int) -> None:
    """A few rows by a large weight."""

    def what(m: int, name: str) -> str:
        return f"gemv {m} by {k}x{n} {name}"

    wanted = [r for r in RULES if any(bench.wanted(what(m, r[0])) for m in bench.options.few)]
    if not wanted:
        return
    dense = [weight("i8_scale_f32_g0", n, k, s).dequantize("bfloat16") for s in range(2)]
    for name, least, stretch in wanted:
        first = weight(name, n, k)
        weights = [first, *(weight(name, n, k, s) for s in range(1, max(2, -(-3 * L2 // first.nbytes))))]
        for m in bench.options.few:
            if not bench.wanted(what(m, name)):
                continue
            x = rows(m, k)
            plain = cycle([lambda x=x, w=w: gp.matmul(x, w) for w in dense])
            mine = cycle([lambda x=x, q=q: x @ q for q in weights])
            bar = 1 / least if least and m == 1 else 1.0
            if bench.options.sweep:
                sweep_rings(bench, what(m, name), m, rule_of(name), mine, plain, bar)
                continue
            ours, other = bench.against_ours(what(m, name), mine, plain, bar, repeat=NODES, other_repeat=NODES)
            bench.report.rows[-1]["read_rate"] = first.nbytes / ours / 1e9
            if stretch and m == 1:
                bench.report.add(f"{what(m, name)} (stretch)", ours, other, "ms", 1 / stretch)


def sweep_rings(
    bench: Bench, what: str, m: int, rule: Rule, mine: Callable[[], Any], plain: Callable[[], Any], bar: float
) -> None:
    """Rings with long and short pieces, most and few warps, wgmma, and the kernel without copies, as rows."""

    def row(text: str) -> None:
        bench.against_ours(f"{what}, {text}", mine, plain, bar, repeat=NODES, other_repeat=NODES)

    if m <= stream.MOST:
        for ring, (warps, stages) in itertools.product(stream.rings(rule), ((18, 16), (18, 2), (9, 16), (9, 2))):
            stream.force(stream.Ring(warps, stages, ring.span))
            row(f"{warps} warps, {stages} pieces of {ring.span}")
        stream.force(None)
    kept = stream.MOST, wgmma.MOST
    stream.MOST = 0
    for shape in wgmma.SHAPES:
        if shape.tokens < 2 * m or shape.tokens == 64:
            wgmma.force(shape)
            row(f"wgmma {shape.groups * 64} by {shape.tokens}")
    wgmma.MOST = 0
    wgmma.force(None)
    row("without bulk copies")
    stream.MOST, wgmma.MOST = kept
    wgmma.force(None)


def many(bench: Bench, k: int, n: int, m: int) -> None:
    """Many rows."""
    for name, least, _ in RULES:
        what = f"gemm {m} by {k}x{n} {name}"
        if not least or not bench.wanted(what):
            continue
        q, x = weight(name, n, k), rows(m, k)
        w = q.dequantize("bfloat16")
        out, plain = (gp.empty((m, n), "bfloat16") for _ in range(2))
        if bench.options.sweep:
            sweep(bench, what, x, q, w, out)
            continue
        ours, other = bench.against_ours(
            what,
            lambda x=x, q=q, out=out: gp.matmul(x, q, out=out),
            lambda x=x, w=w, out=plain: gp.matmul(x, w, out=out),
            1 / 0.75,
        )
        bench.report.add(f"{what} (stretch)", ours, other, "ms", 1 / 0.95)
        bench.report.rows[-1]["tflops"] = 2 * m * n * k / ours / 1e9


def sweep(bench: Bench, what: str, x: gp.GPUArray, q: gp.quant.QuantTensor, w: gp.GPUArray, out: gp.GPUArray) -> None:
    """Every shape of blocks, and decoding first, as rows."""
    most, wgmma.MOST = wgmma.MOST, 1 << 30
    for shape in wgmma.SHAPES:
        wgmma.force(shape)
        text = f"{what}, {shape.groups * 64} by {shape.tokens}"
        bench.against_ours(text, lambda: gp.matmul(x, q, out=out), lambda: gp.matmul(x, w, out=out), 1 / 0.75)
    wgmma.MOST = most
    wgmma.force(None)
    bench.against_ours(
        f"{what}, decoded first",
        lambda: gp.matmul(x, q.dequantize("bfloat16"), out=out),
        lambda: gp.matmul(x, w, out=out),
        1 / 0.75,
    )


def main() -> int:
    """Check, then measure."""
    bench = Bench(__doc__, arguments)
    if not bench.options.sweep:
        bench.check(check)
    for k, n in WIDE:
        bench.guarded(f"few rows by {k}x{n}", few, bench, k, n)
    for (k, n), m in itertools.product(SQUARE, bench.options.m):
        bench.guarded(f"{m} rows by {k}x{n}", many, bench, k, n, m)
    return bench.finish("python benchmarks/tensor/quant.py")


if __name__ == "__main__":
    sys.exit(main())
