"""Attention on a GPU: prompts against torch's FlashAttention-2 and cuDNN, single tokens as a share of the read rate.

Odd sizes are first compared with float64 arithmetic, and each timed case with its peer.

    python benchmarks/tensor/attention.py --json benchmarks/results/h200-attention.json
    python benchmarks/tensor/attention.py --only token --sweep     # single tokens with every number of blocks
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ops.attention import kernels, reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "array"))
from harness import Bench

READ = """extern "C" __global__ void read_all(float* out, const float* from, long long n) {
    const float4* x = reinterpret_cast<const float4*>(from);
    float sum = 0;
    for (long long i = blockIdx.x * 256ll * 8 + threadIdx.x; i < n; i += gridDim.x * 256ll * 8) {
        float4 v[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = i + j * 256 < n ? __ldcs(x + i + j * 256) : make_float4(0, 0, 0, 0);
        #pragma unroll
        for (int j = 0; j < 8; ++j) sum += v[j].x + v[j].y + v[j].z + v[j].w;
    }
    if (sum == 1.2345f) out[0] = sum;
}"""


def normal(rng: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> Any:
    return rng.standard_normal(shape, np.float32).astype(gp.to_numpy_dtype(dtype))


def check() -> None:
    """Odd sizes against float64: the kernels that are timed, and those beside them."""
    rng = np.random.default_rng(0)
    for dim in (64, 80, 128, 256):
        for tokens, keys in ((1, 1), (1, 1000), (7, 129), (300, 333), (1025, 1025)):
            for options in ({}, {"causal": True}, {"causal": True, "window": 200}, {"softcap": 3.0}):
                q, k, v = (normal(rng, h, n, dim) for h, n in ((8, tokens), (2, keys), (2, keys)))
                got = gp.sdpa(*map(gp.from_numpy, (q, k, v)), **options).to_numpy().astype(np.float64)
                want = reference.sdpa(q, k, v, dtype=np.float64, **options)
                apart = float(np.abs(got - want).max())
                if not apart <= 2**-7 * max(1.0, float(np.abs(want).max())):
                    raise AssertionError(f"sdpa {dim=} {tokens=} {keys=} {options}: {apart} from the exact result")
    q, k, v = (normal(rng, h, 700, 128) for h in (8, 2, 2))
    arrays = [gp.from_numpy(x) for x in (q, k, v)]
    whole = gp.sdpa_causal(*arrays).to_numpy().view(np.uint16)
    for t in (0, 1, 127, 128, 300, 511, 699):
        one = gp.sdpa_causal(arrays[0][:, t : t + 1], arrays[1][:, : t + 1], arrays[2][:, : t + 1]).to_numpy()
        if (one.view(np.uint16) != whole[:, t : t + 1]).any():
            raise AssertionError(f"token {t} has other bits decoded than in a prompt")
    # Keys that a query does not see, with values so large that a product of zero with them could cut the others' bits.
    for dtype in ("bfloat16", "float16"):
        q, k, v = (normal(rng, h, 200, 128, dtype=dtype) for h in (8, 2, 2))
        v[:, 150:] *= 10000
        k *= 4
        arrays = [gp.from_numpy(x) for x in (q, k, v)]
        for options in ({}, {"window": 40}):
            whole = gp.sdpa(*arrays, causal=True, **options).to_numpy().view(np.uint16)
            for t in range(100, 200, 7):
                part = (arrays[0][:, t : t + 1], arrays[1][:, : t + 1], arrays[2][:, : t + 1])
                one = gp.sdpa(*part, causal=True, **options).to_numpy().view(np.uint16)
                if (one != whole[:, t : t + 1]).any():
                    raise AssertionError(f"{dtype}, {options}: hidden values change the bits of token {t}")
    print("correct on odd sizes; decoded tokens have the bits of prompts")


def peers(torch: Any) -> list[tuple[str, Any, float]]:
    """Backends of torch, and what our time may be of theirs."""
    from torch.nn.attention import SDPBackend

    return [("FlashAttention-2", SDPBackend.FLASH_ATTENTION, 1.0), ("cuDNN", SDPBackend.CUDNN_ATTENTION, 1 / 0.9)]


def prompts(bench: Bench) -> None:
    torch = bench.torch
    from torch.nn.attention import sdpa_kernel

    for batch, tokens in ((4, 2048), (1, 8192)):
        shape = (batch, 32, tokens, 128)
        theirs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        ours = [gp.from_dlpack(x) for x in theirs]
        flops = 2 * batch * 32 * tokens * tokens * 128
        out = gp.empty(shape, "bfloat16")
        print(gp.explain(gp.sdpa, *ours, causal=True))
        for name, backend, must in peers(torch):

            def peer(theirs: Any = theirs, backend: Any = backend) -> Any:
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True)

            what = f"causal prompt {batch} x 32 x {tokens} x 128 bf16, {name}" + (" (stretch)" if must > 1 else "")
            if not bench.wanted(what):
                continue
            try:
                want = peer()
            except RuntimeError as error:
                print(f"skipped {what}: {error}")
                continue
            gp.sdpa(*ours, causal=True, out=out)
            gp.synchronize()
            apart = float((torch.from_dlpack(out).float() - want.float()).abs().max())
            if apart > 0.05:
                raise AssertionError(f"{what}: {apart} apart")
            bench.against_torch(what, lambda ours=ours, out=out: gp.sdpa(*ours, causal=True, out=out), peer, must)
            row = bench.report.rows[-1]
            print(f"     {flops / row['ours'] / 1e9:.0f} against {flops / row['other'] / 1e9:.0f} TFLOPS")


def read_rate(bench: Bench) -> float:
    """Bytes per millisecond that a kernel reads."""
    x, out, kernel = gp.ones(1 << 30), gp.zeros(1), gp.jit(READ)
    return float(x.nbytes / bench.ours_ms(lambda: kernel(out, x, n=x.size // 4, grid=1056, block=256)))


def decoding(bench: Bench) -> None:
    """Eight sequences of 8192 tokens, 32 heads on 8: four layers in turn, so that no keys are left in the L2 cache."""
    batch, heads, kv_heads, keys, dim, layers, page = 8, 32, 8, 8192, 128, 4, 16
    nbytes = batch * keys * kv_heads * dim * 2 * 2
    read = read_rate(bench)
    print(f"read rate {read / 1e9:.2f} TB/s")
    torch = bench.torch

    def made(*shape: int) -> Any:
        return gp.from_dlpack(torch.randn(shape, device="cuda", dtype=torch.bfloat16))

    q = made(batch, heads, 1, dim)
    caches = [made(batch, kv_heads, keys, dim) for _ in range(2 * layers)]
    out = gp.empty(q.shape, "bfloat16")

    def contiguous() -> None:
        for i in range(layers):
            gp.sdpa(q, caches[2 * i], caches[2 * i + 1], causal=True, out=out)

    per = keys // page
    pages = batch * per
    cache = made(pages, layers, 2, page, kv_heads, dim)
    order = np.random.default_rng(0).permutation(pages).astype(np.int32).reshape(batch, per)
    table, lengths = gp.from_numpy(order), gp.full((batch,), keys, "int32")
    starts, rows = gp.arange(batch + 1, dtype="int32"), q[:, :, 0]
    paged_out = gp.empty((batch, heads, dim), "bfloat16")

    def paged() -> None:
        for i in range(layers):
            gp.sdpa_paged(rows, cache[:, i], table, lengths, starts, max_queries=1, out=paged_out)

    for name, call in (("contiguous", contiguous), ("paged", paged)):
        what = f"one token, 8 x 8192 keys, 32/8 heads, {name}"
        for shown in forced(bench, what):
            call()
            ms = bench.ours_ms(call, repeat=5) / layers
            print(f"     {ms * 1e3:.1f} us a layer{shown}")
            bench.report.add(what + shown, nbytes / ms / 1e6, read / 1e6, "GB/s", 0.80, at_least=True)
    short_contexts(bench, read)


def forced(bench: Bench, what: str) -> Iterator[str]:
    """Yield what is said of a row of single tokens: once, or for a sweep once for each launch of the kernel."""
    if not bench.wanted(what):
        return
    yield ""
    if bench.options.sweep:
        try:
            for blocks in (1, 2, 3):
                kernels.force(blocks)
                yield f", {blocks} blocks per SM"
        finally:
            kernels.force(None)


def short_contexts(bench: Bench, read: float) -> None:
    """Single tokens of a model with 28 heads on 4: its layers in turn, 20 in a graph.

    A row is microseconds per layer against what is allowed: 5, or reading at 0.80 of the read rate if that is more.
    """
    heads, kv_heads, dim, layers, page = 28, 4, 128, 20, 16
    torch = bench.torch
    for batch, keys in itertools.product((1, 8, 64), (50, 640, 4096)):
        what = f"one token, {batch} x {keys} keys, 28/4 heads, paged"
        if not bench.wanted(what):
            continue
        per = -(-keys // page)
        shape = (batch * per, layers, 2, page, kv_heads, dim)
        cache = gp.from_dlpack(torch.randn(shape, device="cuda", dtype=torch.bfloat16))
        q, out = (
            gp.from_dlpack(torch.randn((batch, heads, dim), device="cuda", dtype=torch.bfloat16)) for _ in range(2)
        )
        # Tables are as wide as the longest context would want.
        table = np.zeros((batch, 512), np.int32)
        table[:, :per] = np.random.default_rng(0).permutation(batch * per).reshape(batch, per)
        given = gp.from_numpy(table), gp.full((batch,), keys, "int32"), gp.arange(batch + 1, dtype="int32")
        views = [cache[:, i] for i in range(layers)]

        def step(q: Any = q, out: Any = out, given: Any = given, views: Any = views) -> None:
            for view in views:
                gp.sdpa_paged(q, view, *given, max_queries=1, out=out)

        nbytes = batch * keys * kv_heads * dim * 2 * 2
        allowed = max(5.0, nbytes / (0.80 * read) * 1e3)
        for shown in forced(bench, what):
            step()
            us = bench.ours_ms(in_graph(step)) * 1e3 / layers
            bench.report.add(what + shown, us, allowed, "us", 1.0)


def in_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    graph = gp.CudaGraph()
    with graph.capture():
        call()
    return graph.replay


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sweep", action="store_true", help="single tokens by every number of blocks")


def main() -> int:
    bench = Bench(__doc__, arguments)
    bench.check(check)
    bench.guarded("prompts", prompts, bench)
    bench.guarded("single tokens", decoding, bench)
    return bench.finish("python benchmarks/tensor/attention.py")


if __name__ == "__main__":
    sys.exit(main())
