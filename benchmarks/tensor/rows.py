"""Row operators and sampling on the GPU: norms, softmax, activations, rope, and a token per row, against torch.

First results of odd sizes are compared with float64 and with the CPU device. Large rows are given as a share of the
copy rate; small calls and sampling are repeated inside graphs on both sides.

    python benchmarks/tensor/rows.py --json benchmarks/results/h200-tensor-rows.json
    python benchmarks/tensor/rows.py --sweep --only sweep        # threads of a row of a norm, tokens of a block
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "array"))
from harness import Bench

import pygpukit as gp
from pygpukit.ops.nn import layout, rope
from pygpukit.ops.sampling import rows as sample

ROWS, N = 16384, 8192
SEQUENCES, VOCABULARY = 8, 152_064
INSIDE = 20


def check() -> None:
    """Compare with float64, rows with themselves in other company, and tokens with the CPU device's."""
    rng = np.random.default_rng(1)
    for kind, limit in (("bfloat16", 2**-7), ("float32", 4e-6)):
        for rows, n in ((7, 1001), (129, 128), (3, 3584), (2, 8192), (2, 16384), (5, 20001), (2, 32768), (3, 152064)):
            x = (rng.standard_normal((rows, n)) * 2).astype(gp.to_numpy_dtype(kind))
            w = rng.standard_normal(n).astype(gp.to_numpy_dtype(kind))
            ours, weights, wide = gp.from_numpy(x), gp.from_numpy(w), x.astype(np.float64)
            shifted = np.exp(wide - wide.max(1, keepdims=True))
            centred = wide - wide.mean(1, keepdims=True)
            wanted = {
                "softmax": (gp.softmax(ours), shifted / shifted.sum(1, keepdims=True)),
                "layernorm": (
                    gp.layernorm(ours, weights),
                    centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64),
                ),
                "rmsnorm": (
                    gp.rmsnorm(ours, weights),
                    wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w.astype(np.float64),
                ),
            }
            for name, (got, want) in wanted.items():
                error = np.abs(got.to_numpy().astype(np.float64) - want).max()
                if not error <= limit * max(1.0, np.abs(want).max()):
                    raise AssertionError(f"{name} of {rows} rows of {n} {kind}: off by {error}")
            alone = gp.rmsnorm(ours[1:2], weights).to_numpy()
            if alone.tobytes() != gp.rmsnorm(ours, weights)[1:2].to_numpy().tobytes():
                raise AssertionError(f"rmsnorm of {n} {kind}: a row alone has other bits")
    for kind in ("float32", "bfloat16"):
        logits = (rng.standard_normal((6, VOCABULARY)) * 3).astype(gp.to_numpy_dtype(kind))
        options: dict[str, Any] = {
            "temperature": np.float32([1, 0.7, 0, 2, 1, 1]), "top_k": np.int32([0, 50, 3, 100_000, 1, 20]),
            "top_p": np.float32([0.9, 1, 0.5, 0.95, 1, 0.3]), "min_p": np.float32([0, 0, 0, 1e-4, 0, 0.1]),
            "seeds": np.arange(6, dtype=np.uint64), "positions": np.arange(6) * 2**33,
        }  # fmt: skip
        tokens = gp.sample_rows(gp.from_numpy(logits), **{k: gp.from_numpy(v) for k, v in options.items()}).tolist()
        with gp.device("cpu"):
            want = gp.sample_rows(gp.from_numpy(logits), **{k: gp.from_numpy(v) for k, v in options.items()}).tolist()
        if tokens != want:
            raise AssertionError(f"tokens of {kind} logits are {tokens}, on the CPU device {want}")


def large(bench: Bench) -> None:
    """The issue's rows: 16384 x 8192 bfloat16, as a share of the copy rate and against torch."""
    torch: Any = bench.torch
    F = torch.nn.functional
    x, y = (torch.randn(ROWS, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w, b = (torch.randn(N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gx, gy, gw, gb = map(gp.from_dlpack, (x, y, w, b))
    out, other = gp.empty_like(gx), gp.empty_like(gx)
    one = gx.nbytes
    cases: list[tuple[str, Callable[[], Any], Callable[[], Any], int]] = [
        ("softmax", lambda: gp.softmax(gx, out=out), lambda: torch.softmax(x, -1), 2 * one),
        ("logsoftmax", lambda: gp.logsoftmax(gx, out=out), lambda: torch.log_softmax(x, -1), 2 * one),
        ("layernorm", lambda: gp.layernorm(gx, gw, gb, out=out), lambda: F.layer_norm(x, (N,), w, b), 2 * one),
        ("rmsnorm", lambda: gp.rmsnorm(gx, gw, out=out), lambda: F.rms_norm(x, (N,), w, 1e-5), 2 * one),
        ("rmsnorm, cast before", lambda: gp.rmsnorm(gx, gw, cast="before", out=out),
         lambda: F.rms_norm(x, (N,), w, 1e-5), 2 * one),
        ("rmsnorm with residual", lambda: gp.rmsnorm_residual(gx, gy, gw, out=(out, other)),
         lambda: F.rms_norm(x + y, (N,), w, 1e-5), 4 * one),
        ("gelu", lambda: gp.gelu(gx, out=out), lambda: F.gelu(x, approximate="tanh"), 2 * one),
        ("gelu, erf", lambda: gp.gelu(gx, approximate=False, out=out), lambda: F.gelu(x), 2 * one),
        ("swiglu", lambda: gp.swiglu(gx, gy, out=out), lambda: F.silu(x) * y, 3 * one),
    ]  # fmt: skip
    joined = torch.randn(ROWS, 2 * N, device="cuda", dtype=torch.bfloat16)
    gj = gp.from_dlpack(joined)
    cases.append(("swiglu of one array", lambda: gp.swiglu(gj, out=out),
                  lambda: F.silu(joined[:, :N]) * joined[:, N:], 3 * one))  # fmt: skip
    for name, ours, theirs, nbytes in cases:
        bench.of_copy_rate(f"{name} 16384x8192 bfloat16, of the copy rate", ours, nbytes, 0.85)
        bench.against_torch(f"{name} 16384x8192 bfloat16", ours, theirs, 1.0, nbytes=nbytes)


def small(bench: Bench) -> None:
    """Calls of a decode step, in graphs."""
    torch: Any = bench.torch
    F = torch.nn.functional
    for rows, n in ((1, 3584), (8, 4096), (64, 8192)):
        x, w = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((rows, n), (n,)))
        gx, gw = gp.from_dlpack(x), gp.from_dlpack(w)
        out, left = gp.empty_like(gx), gp.empty_like(gx)
        bench.against_torch(
            f"rmsnorm {rows}x{n} bfloat16, in a graph", lambda: gp.rmsnorm(gx, gw, out=out),  # noqa: B023
            lambda: F.rms_norm(x, (n,), w, 1e-5), 1.0, repeat=INSIDE,  # noqa: B023
        )  # fmt: skip
        bench.against_torch(
            f"rmsnorm with residual {rows}x{n} bfloat16, in a graph",
            lambda: gp.rmsnorm_residual(gx, gx, gw, out=(out, left)),  # noqa: B023
            lambda: F.rms_norm(x + x, (n,), w, 1e-5), 0.8, repeat=INSIDE,  # noqa: B023
        )  # fmt: skip
    for tokens, repeat in ((8, INSIDE), (8192, 1)):
        heads, kv, dim = 32, 8, 128
        qkv = gp.from_dlpack(torch.randn(tokens, heads + 2 * kv, dim, device="cuda", dtype=torch.bfloat16))
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv], qkv[:, heads + kv :]
        weight = gp.ones(dim, "bfloat16")
        cos, sin = gp.rope_tables(tokens, dim)
        cache = gp.zeros((tokens // 16 + 1, 2, 16, kv, dim), "bfloat16")
        slots, out = gp.arange(tokens, dtype="int64"), gp.empty((tokens, heads, dim), "bfloat16")

        def fused(
            q: Any = q, k: Any = k, v: Any = v, c: Any = cos, s: Any = sin, cache: Any = cache, slots: Any = slots,
            w: Any = weight, out: Any = out,
        ) -> Any:  # fmt: skip
            return gp.qk_norm_rope_cache(q, k, v, c, s, cache, slots, None, w, w, out=out)

        what = f"qk-norm, rope and cache of {tokens} tokens, 32/8 heads of 128"
        bench.of_copy_rate(
            f"{what}, of the copy rate", fused, 2 * qkv.nbytes, 0.6 if tokens > 1000 else 0, repeat=repeat
        )


def engine(bench: Bench) -> None:
    """The shapes of an engine of 3,584 channels: norms, a joined gate, and a bias, at 1 to 8,192 rows."""
    torch: Any = bench.torch
    F = torch.nn.functional
    n, hidden, joint = 3584, 18944, 4608
    w, bias = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in (n, joint))
    gw, gbias = gp.from_dlpack(w), gp.from_dlpack(bias)
    for rows in (1, 8, 64, 256, 2048, 8192):
        repeat = INSIDE if rows <= 256 else 1
        x, y, joined, qkv = (
            torch.randn(rows, size, device="cuda", dtype=torch.bfloat16) for size in (n, n, 2 * hidden, joint)
        )
        gx, gy, gj, gq = map(gp.from_dlpack, (x, y, joined, qkv))
        out, total, gated = gp.empty_like(gx), gp.empty_like(gx), gp.empty((rows, hidden), "bfloat16")
        cases: list[tuple[str, Callable[[], Any], Callable[[], Any], int]] = [
            ("rmsnorm with residual", lambda gx=gx, gy=gy, out=out, total=total: gp.rmsnorm_residual(
                gx, gy, gw, out=(out, total)), lambda x=x, y=y: F.rms_norm(x + y, (n,), w, 1e-5), 4 * gx.nbytes),
            ("swiglu of one array", lambda gj=gj, gated=gated: gp.swiglu(gj, out=gated),
             lambda joined=joined: F.silu(joined[:, :hidden]) * joined[:, hidden:], 3 * gated.nbytes),
            ("bias add", lambda gq=gq: gp.add(gq, gbias, out=gq), lambda qkv=qkv: qkv.add_(bias), 2 * gq.nbytes),
        ]  # fmt: skip
        for name, ours, theirs, nbytes in cases:
            what = f"{name} of {rows} rows of the engine"
            bench.against_torch(what, ours, theirs, 1.0, repeat=repeat, nbytes=nbytes)
            if rows >= 2048:
                bench.of_copy_rate(f"{what}, of the copy rate", ours, nbytes, 0.85)


def heads_of_tokens(bench: Bench) -> None:
    """Rope and the cache of an engine of 28 and 4 heads of 128; with --sweep by heads that threads take together."""
    torch: Any = bench.torch
    heads, kv, dim = 28, 4, 128
    for tokens in (1, 8, 64, 256, 2048, 8192):
        qkv = gp.from_dlpack(torch.randn(tokens, heads + 2 * kv, dim, device="cuda", dtype=torch.bfloat16))
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv], qkv[:, heads + kv :]
        cos, sin = gp.rope_tables(tokens, dim)
        cache = gp.zeros((tokens // 16 + 1, 2, 16, kv, dim), "bfloat16")
        slots, at, out = gp.arange(tokens, dtype="int32"), gp.arange(tokens, dtype="int32"), gp.empty_like(q)
        weight = gp.ones(dim, "bfloat16")
        for what, w in (("rope and cache", None), ("qk-norm, rope and cache", weight)):
            for together in (None, 1, 2, 4) if bench.options.sweep else (None,):
                text = f"{what} of {tokens} tokens, 28/4 heads of 128, against the copy rate"
                text = text if together is None else f"sweep: {text}, {together} heads together"
                if not bench.wanted(text):
                    continue
                rope.force(together)
                try:
                    mine = bench.ours_ms(
                        lambda: gp.qk_norm_rope_cache(q, k, v, cos, sin, cache, slots, at, w, w, out=out),  # noqa: B023
                        INSIDE if tokens <= 256 else 1,
                    )
                finally:
                    rope.force(None)
                bench.report.add(text, mine * 1000, 2 * qkv.nbytes / bench.copy_rate() * 1000, "us", 1000)


def sweep(bench: Bench) -> None:
    """Norms by other threads per row and numbers of blocks."""
    torch: Any = bench.torch
    for rows, n in ((1, 3584), (64, 3584), (8192, 3584), (1, 8192), (16384, 8192)):
        x, y, w = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((rows, n), (rows, n), (n,)))
        gx, gy, gw = map(gp.from_dlpack, (x, y, w))
        out, total = gp.empty_like(gx), gp.empty_like(gx)
        shapes = ((64, 8), (128, 4), (256, 2), (512, 1)) if n == 3584 else ((128, 8), (256, 4), (512, 2), (1024, 1))
        for shape in shapes:
            for blocks in (layout.NORM_BLOCKS,) if rows < 1000 else (528, 1056, 2048, 4096, 1 << 20):
                what = f"sweep: rmsnorm with residual {rows}x{n}, {shape[0]} threads, {blocks} blocks"
                if not bench.wanted(what):
                    continue
                layout.force(shape, blocks)
                try:
                    bench.of_copy_rate(
                        what, lambda: gp.rmsnorm_residual(gx, gy, gw, out=(out, total)),  # noqa: B023
                        4 * gx.nbytes, 0, repeat=INSIDE if rows < 1000 else 1,
                    )  # fmt: skip
                finally:
                    layout.force()


def sampling(bench: Bench) -> None:
    """A token for each of 8 rows of 152,064 logits, in graphs, beside torch's topk and softmax."""
    torch: Any = bench.torch
    for kind in ("bfloat16", "float32"):
        x = torch.randn(SEQUENCES, VOCABULARY, device="cuda", dtype=getattr(torch, kind)) * 3
        logits, out = gp.from_dlpack(x), gp.empty(SEQUENCES, "int32")
        heat, top_p = gp.full((SEQUENCES,), 0.8, "float32"), gp.full((SEQUENCES,), 0.9, "float32")
        top_k = gp.full((SEQUENCES,), 50, "int32")
        seeds, positions = gp.zeros(SEQUENCES, "uint64"), gp.zeros(SEQUENCES, "int64")
        greedy = gp.zeros(SEQUENCES, "float32")
        forms: list[tuple[str, dict[str, Any]]] = [
            ("top-k 50 and top-p", {"temperature": heat, "top_k": top_k, "top_p": top_p}),
            ("top-k 50", {"temperature": heat, "top_k": top_k}),
            ("top-p", {"temperature": heat, "top_p": top_p}),
            ("temperature alone", {"temperature": heat}),
            ("greedy", {"temperature": greedy}),
        ]
        for name, options in forms:
            what = f"{name} of 8 x 152,064 {kind} logits"
            if not bench.wanted(what):
                continue

            def draw(
                x: Any = logits, options: Any = options, out: Any = out, s: Any = seeds, p: Any = positions
            ) -> Any:
                return gp.sample_rows(x, seeds=s, positions=p, out=out, **options)

            def theirs(x: Any = x) -> Any:
                return torch.topk(x, 50), torch.softmax(x, -1)

            bench.against_torch(f"{what}, torch: topk and softmax", draw, theirs, 0.5, repeat=INSIDE)
            mine = bench.ours_ms(draw, INSIDE)
            bench.report.add(f"{what}, against 60 us", mine, 0.060, "ms", 1.0)
            bench.report.add(f"{what}, against 30 us (stretch)", mine, 0.030, "ms", 1.0)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sweep", action="store_true", help="measure what is chosen among, too")


def batches(bench: Bench) -> None:
    """A token per row of an engine's batch, bfloat16; with --sweep by the tokens of a block too."""
    torch: Any = bench.torch
    for rows_ in (1, 8, 64, 256):
        x = torch.randn(rows_, VOCABULARY, device="cuda", dtype=torch.bfloat16) * 3
        logits, out = gp.from_dlpack(x), gp.empty(rows_, "int32")
        heat, top_p = gp.full((rows_,), 0.8, "float32"), gp.full((rows_,), 0.9, "float32")
        top_k, cold = gp.full((rows_,), 50, "int32"), gp.zeros(rows_, "float32")
        seeds, positions = gp.zeros(rows_, "uint64"), gp.zeros(rows_, "int64")
        forms: list[tuple[str, dict[str, Any], int]] = [
            ("greedy", {"temperature": cold}, 1), ("temperature", {"temperature": heat}, 2),
            ("top-k 50", {"temperature": heat, "top_k": top_k}, 4),
            ("top-k 50 and top-p", {"temperature": heat, "top_k": top_k, "top_p": top_p}, 6),
        ]  # fmt: skip
        for name, options, passes in forms:
            for steps in (None, 1, 2, 4, 8, 16) if bench.options.sweep else (None,):
                what = f"{name} of {rows_} rows of 152,064 bfloat16 logits, against {passes} reads"
                what = what if steps is None else f"sweep: {what}, {steps} steps"
                if not bench.wanted(what) or (steps is not None and "top_p" in options and steps > 2):
                    continue
                sample.force(steps)
                try:
                    mine = bench.ours_ms(
                        lambda: gp.sample_rows(logits, seeds=seeds, positions=positions, out=out, **options),  # noqa: B023
                        INSIDE,
                    )  # fmt: skip
                finally:
                    sample.force(None)
                floor = passes * logits.nbytes / bench.copy_rate()
                bench.report.add(what, mine * 1000, floor * 1000, "us", 1000)


def main() -> int:
    bench = Bench(__doc__, arguments)
    bench.check(check)
    more = (sweep,) if bench.options.sweep else ()
    for measure in (large, small, engine, heads_of_tokens, sampling, batches, *more):
        bench.guarded(measure.__name__, measure, bench)
    return bench.finish("python benchmarks/tensor/rows.py")


if __name__ == "__main__":
    sys.exit(main())
