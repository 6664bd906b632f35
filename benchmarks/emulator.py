"""How fast the CPU device runs kernels, on one core, unchecked and checked.

    PYGPUKIT_DEVICE=cpu python benchmarks/emulator.py [--json FILE] [--rounds N]

Lane-instructions are instructions times the threads that execute them, as `kernel.profile` counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pygpukit as gp

SAXPY = """
extern "C" __global__ void saxpy(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
REDUCE = """
extern "C" __global__ void reduce(float* out, const float* x, int n) {
    __shared__ float part[8];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}
"""
SCAN = """
// Decoupled look-back: each block publishes its sum, then its prefix, and looks back over its predecessors.
extern "C" __global__ void scan(int* out, const int* x, unsigned long long* state, unsigned* ticket, int n) {
    __shared__ int warp_sum[8];
    __shared__ int before;
    __shared__ unsigned number;
    if (threadIdx.x == 0) number = atomicAdd(ticket, 1u);
    __syncthreads();
    int block = number, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int i = block * blockDim.x + threadIdx.x;
    int value = i < n ? x[i] : 0;
    for (int k = 1; k < 32; k *= 2) { int other = __shfl_up_sync(~0u, value, k); if (lane >= k) value += other; }
    if (lane == 31) warp_sum[warp] = value;
    __syncthreads();
    int offset = 0;
    for (int w = 0; w < warp; w++) offset += warp_sum[w];
    value += offset;
    if (threadIdx.x == blockDim.x - 1) {
        volatile unsigned long long* flags = state;
        flags[block] = (block == 0 ? 2ull : 1ull) << 32 | (unsigned)value;
        int sum = 0;
        for (int k = block - 1; k >= 0;) {
            unsigned long long seen = flags[k];
            if (seen >> 32 == 0) continue;
            sum += (int)(unsigned)seen;
            if (seen >> 32 == 2) break;
            k--;
        }
        if (block > 0) flags[block] = 2ull << 32 | (unsigned)(value + sum);
        before = sum;
    }
    __syncthreads();
    if (i < n) out[i] = value + before;
}
"""
TRANSPOSE = """
extern "C" __global__ void transpose(float* out, const float* x, int n) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32;
    for (int k = threadIdx.y; k < 32; k += 8) tile[k][threadIdx.x] = x[(r + k) * n + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32;
    for (int k = threadIdx.y; k < 32; k += 8) out[(r + k) * n + c] = tile[threadIdx.x][k];
}
"""
MATMUL = """
extern "C" __global__ void matmul(float* c, const float* a, const float* b, int n) {
    __shared__ float as[16][16], bs[16][17];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0;
    for (int t = 0; t < n; t += 16) {
        as[y][x] = a[row * n + t + x];
        bs[y][x] = b[(t + y) * n + col];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += as[y][k] * bs[k][x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
"""
ATTENTION = """
// One block of queries against all keys, with a running maximum and sum.
extern "C" __global__ void attention(float* o, const float* q, const float* k, const float* v, int keys, float scale) {
    const int D = 64, T = 32;
    __shared__ float ks[T][D + 1], vs[T][D];
    float query[D], acc[D], top = -1e30f, sum = 0;
    int row = threadIdx.x;
    for (int d = 0; d < D; d++) { query[d] = q[row * D + d] * scale; acc[d] = 0; }
    for (int start = 0; start < keys; start += T) {
        for (int i = threadIdx.x; i < T * D; i += blockDim.x) {
            ks[i / D][i % D] = k[start * D + i];
            vs[i / D][i % D] = v[start * D + i];
        }
        __syncthreads();
        for (int j = 0; j < T; j++) {
            float dot = 0;
            for (int d = 0; d < D; d++) dot += query[d] * ks[j][d];
            float most = fmaxf(top, dot), shrink = __expf(top - most), p = __expf(dot - most);
            sum = sum * shrink + p;
            for (int d = 0; d < D; d++) acc[d] = acc[d] * shrink + p * vs[j][d];
            top = most;
        }
        __syncthreads();
    }
    for (int d = 0; d < D; d++) o[row * D + d] = acc[d] / sum;
}
"""


class Case(NamedTuple):
    name: str
    source: str
    # Makes the arguments, launch keywords and the check of the result, freshly for each launch.
    make: Callable[[], tuple[list[Any], dict[str, Any], Callable[[], bool]]]
    limit: float


def cases() -> list[Case]:
    rng = np.random.default_rng(0)
    million = rng.standard_normal(1_000_000).astype(np.float32)
    square = rng.standard_normal((256, 256)).astype(np.float32)
    whole = rng.integers(-9, 9, 1_000_000).astype(np.int32)
    heads = [rng.standard_normal((256, 64)).astype(np.float32) for _ in range(3)]

    def saxpy() -> Any:
        y, x = gp.from_numpy(million), gp.from_numpy(million[::-1].copy())
        want = np.float32(0.5) * million[::-1] + million
        return [y, x, 0.5, y.size], {}, lambda: np.allclose(y.to_numpy(), want, atol=1e-6)

    def reduce() -> Any:
        out, x = gp.zeros(1), gp.from_numpy(million)
        keywords = {"grid": 64, "block": 256}
        return [out, x, x.size], keywords, lambda: abs(out.item() - million.astype(np.float64).sum()) < 0.5

    def scan() -> Any:
        x = gp.from_numpy(whole)
        out, blocks = gp.empty(x.size, "int32"), -(-x.size // 256)
        arguments = [out, x, gp.zeros(blocks, "uint64"), gp.zeros(1, "uint32"), x.size]
        return arguments, {"grid": blocks, "block": 256}, lambda: (out.to_numpy() == np.cumsum(whole)).all()

    def transpose() -> Any:
        x = gp.from_numpy(million[: 992 * 992].reshape(992, 992))
        out = gp.empty((992, 992))
        keywords = {"grid": (31, 31), "block": (32, 8)}
        return [out, x, 992], keywords, lambda: (out.to_numpy() == x.to_numpy().T).all()

    def matmul() -> Any:
        a, b, c = gp.from_numpy(square), gp.from_numpy(square.T.copy()), gp.empty((256, 256))
        keywords = {"grid": (16, 16), "block": (16, 16)}
        return [c, a, b, 256], keywords, lambda: np.allclose(c.to_numpy(), square @ square.T, atol=1e-3)

    def attention() -> Any:
        q, k, v = heads
        ours = [gp.empty((64, 64)), gp.from_numpy(q[:64]), gp.from_numpy(k), gp.from_numpy(v)]
        scores = (q[:64] @ k.T) / 8
        weights = np.exp(scores - scores.max(1, keepdims=True))
        want = weights @ v / weights.sum(1, keepdims=True)
        keywords = {"grid": 1, "block": 64}
        return [*ours, 256, 0.125], keywords, lambda: np.allclose(ours[0].to_numpy(), want, atol=1e-3)

    return [
        Case("saxpy", SAXPY, saxpy, 0.2),
        Case("reduce", REDUCE, reduce, 2.0),
        Case("scan", SCAN, scan, 2.0),
        Case("transpose", TRANSPOSE, transpose, 2.0),
        Case("matmul", MATMUL, matmul, 2.0),
        Case("attention", ATTENTION, attention, 2.0),
    ]


def seconds(case: Case, kernel: gp.Kernel, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        arguments, keywords, is_right = case.make()
        gp.synchronize()
        start = time.perf_counter()
        kernel(*arguments, **keywords)
        gp.synchronize()
        times.append(time.perf_counter() - start)
        if not is_right():
            sys.exit(f"{case.name}: the result is wrong")
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        # One core: the figures are per core.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results = []
    print(f"{'kernel':<10} {'ms':>9} {'limit':>7} {'M lane-instr/s':>15} {'checked ms':>11} {'times':>6}")
    with gp.device("cpu"):
        for case in cases():
            kernel, checked = gp.jit(case.source), gp.jit(case.source, check=True)
            arguments, keywords, _ = case.make()
            profile = kernel.profile(*arguments, **keywords)
            plain = seconds(case, kernel, args.rounds)
            slow = seconds(case, checked, max(1, args.rounds // 2))
            rate = profile.thread_instructions / plain
            results.append(
                {
                    "kernel": case.name,
                    "seconds": plain,
                    "limit": case.limit,
                    "lane_instructions": profile.thread_instructions,
                    "lane_instructions_per_second": rate,
                    "checked_seconds": slow,
                    "checked_over_plain": slow / plain,
                }
            )
            times = f"{plain * 1e3:>9.1f} {case.limit * 1e3:>7.0f} {rate / 1e6:>15,.0f}"
            print(f"{case.name:<10} {times} {slow * 1e3:>11.1f} {slow / plain:>6.1f}")
    if args.json:
        host = {"machine": platform.machine(), "python": sys.version.split()[0]}
        with gp.device("cpu") as device:
            host["processor"] = device.name
        commit = os.environ.get("PYGPUKIT_COMMIT", "")
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"host": host, "commit": commit, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
