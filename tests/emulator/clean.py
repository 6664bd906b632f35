"""Correct kernels, each with the ways of working together that a checker must understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLEAN", "Clean"]

Floats = NDArray[np.float32]


class Clean(NamedTuple):
    """A kernel ``k`` that takes ``float* x`` (4096 small whole numbers), ``float* out`` (4096 zeros) and ``int n``.

    Attributes
    ----------
    name : str
        What it does.
    source : str
        The whole text.
    want : callable
        The result it should leave in `out`, from `x`; shorter ones are compared with its beginning.
    grid, block, shared : int
        The launch.
    """

    name: str
    source: str
    want: Callable[[Floats], Floats]
    grid: int = 16
    block: int = 256
    shared: int = 0


_HEAD = 'extern "C" __global__ void k(float* x, float* out, int n)'


def _one(value: float) -> Floats:
    return np.array([value], dtype=np.float32)


CLEAN = [
    Clean(
        "tree reduction",
        _HEAD
        + """{
        __shared__ float s[256];
        int t = threadIdx.x;
        s[t] = x[blockIdx.x * 256 + t];
        __syncthreads();
        for (int k = 128; k > 0; k /= 2) {
            if (t < k) s[t] += s[t + k];
            __syncthreads();
        }
        if (t == 0) out[blockIdx.x] = s[0];
    }""",
        lambda x: x.reshape(16, 256).sum(axis=1),
    ),
    Clean(
        "shuffle reduction",
        _HEAD
        + """{
        __shared__ float s[8];
        int t = threadIdx.x;
        float v = x[blockIdx.x * 256 + t];
        for (int k = 16; k > 0; k /= 2) v += __shfl_down_sync(0xffffffffu, v, k);
        if (t % 32 == 0) s[t / 32] = v;
        __syncthreads();
        if (t < 32) {
            v = t < 8 ? s[t] : 0;
            for (int k = 4; k > 0; k /= 2) v += __shfl_down_sync(0xffffffffu, v, k);
            if (t == 0) atomicAdd(out, v);
        }
    }""",
        lambda x: _one(x.sum()),
    ),
    Clean(
        "warp reduction in shared memory",
        _HEAD
        + """{
        __shared__ float s[256];
        int t = threadIdx.x, lane = t % 32;
        s[t] = x[blockIdx.x * 256 + t];
        __syncwarp();
        for (int k = 16; k > 0; k /= 2) {
            float v = lane < k ? s[t + k] : 0;
            __syncwarp();
            s[t] += v;
            __syncwarp();
        }
        if (lane == 0) out[blockIdx.x * 8 + t / 32] = s[t];
    }""",
        lambda x: x.reshape(128, 32).sum(axis=1),
    ),
    Clean(
        "parts of a warp",
        _HEAD
        + """{
        __shared__ float s[256];
        int t = threadIdx.x, i = blockIdx.x * 256 + t;
        if (t % 32 < 12) {
            s[t] = x[i];
            __syncwarp(0xfffu);
            out[i] = s[t - t % 32 + 11 - t % 32];
        } else {
            s[t] = x[i];
            __syncwarp(0xfffff000u);
            out[i] = s[t - t % 32 + 31 - (t % 32 - 12)];
        }
    }""",
        lambda x: np.concatenate([np.concatenate([w[:12][::-1], w[12:][::-1]]) for w in x.reshape(-1, 32)]),
    ),
    Clean(
        "look-back scan",
        """
    __device__ volatile float sums[16];
    __device__ volatile float prefixes[16];
    __device__ volatile int state[16];
    """
        + _HEAD
        + """{
        __shared__ float s[256];
        __shared__ float before;
        int t = threadIdx.x, b = blockIdx.x;
        s[t] = x[b * 256 + t];
        __syncthreads();
        for (int k = 1; k < 256; k *= 2) {
            float v = t >= k ? s[t - k] : 0;
            __syncthreads();
            s[t] += v;
            __syncthreads();
        }
        if (t == 255) {
            sums[b] = s[255];
            __threadfence();
            state[b] = 1;
            float sum = 0;
            for (int j = b - 1; j >= 0; --j) {
                int seen;
                while ((seen = state[j]) == 0) { }
                __threadfence();
                if (seen == 2) { sum += prefixes[j]; break; }
                sum += sums[j];
            }
            prefixes[b] = sum + s[255];
            __threadfence();
            state[b] = 2;
            before = sum;
        }
        __syncthreads();
        out[b * 256 + t] = before + s[t];
    }""",
        lambda x: np.cumsum(x),
    ),
    Clean(
        "histogram",
        _HEAD
        + """{
        __shared__ int bins[16];
        int t = threadIdx.x;
        if (t < 16) bins[t] = 0;
        __syncthreads();
        for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) atomicAdd(&bins[(int)x[i] & 15], 1);
        __syncthreads();
        if (t < 16) atomicAdd(&out[t], (float)bins[t]);
    }""",
        lambda x: np.bincount(x.astype(np.int64) & 15, minlength=16).astype(np.float32),
        grid=5,
    ),
    Clean(
        "lock between blocks",
        """
    __device__ unsigned lock;
    __device__ float total;
    __device__ int count;
    """
        + _HEAD
        + """{
        if (threadIdx.x == 0) {
            while (atomicCAS(&lock, 0u, 1u) != 0) { }
            __threadfence();
            total += x[blockIdx.x];
            count += 1;
            if (count == gridDim.x) out[0] = total;
            __threadfence();
            atomicExch(&lock, 0u);
        }
    }""",
        lambda x: _one(x[:16].sum()),
    ),
    Clean(
        "lock inside a warp",
        """
    __device__ unsigned lock;
    """
        + _HEAD
        + """{
        bool done = false;
        while (!done) {
            if (atomicCAS(&lock, 0u, 1u) == 0) {
                __threadfence();
                out[0] = out[0] + x[threadIdx.x];
                __threadfence();
                atomicExch(&lock, 0u);
                done = true;
            }
        }
    }""",
        lambda x: _one(x[:64].sum()),
        grid=1,
        block=64,
    ),
    Clean(
        "double-buffered matmul",
        _HEAD
        + """{
        // out = x * x for 64 x 64 matrices.
        __shared__ float a[2][16][16], b[2][16][17];
        int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
        int row = blockIdx.x / 4 * 16 + ty, col = blockIdx.x % 4 * 16 + tx;
        a[0][ty][tx] = x[row * 64 + tx];
        b[0][ty][tx] = x[ty * 64 + col];
        __syncthreads();
        float sum = 0;
        for (int step = 0; step < 4; ++step) {
            int now = step % 2, next = 1 - now;
            if (step < 3) {
                a[next][ty][tx] = x[row * 64 + (step + 1) * 16 + tx];
                b[next][ty][tx] = x[((step + 1) * 16 + ty) * 64 + col];
            }
            for (int k = 0; k < 16; ++k) sum += a[now][ty][k] * b[now][k][tx];
            __syncthreads();
        }
        out[row * 64 + col] = sum;
    }""",
        lambda x: (x.reshape(64, 64) @ x.reshape(64, 64)).reshape(-1),
    ),
    Clean(
        "transpose",
        _HEAD
        + """{
        __shared__ float tile[16][17];
        int tx = threadIdx.x % 16, ty = threadIdx.x / 16, bx = blockIdx.x % 4, by = blockIdx.x / 4;
        tile[ty][tx] = x[(by * 16 + ty) * 64 + bx * 16 + tx];
        __syncthreads();
        out[(bx * 16 + ty) * 64 + by * 16 + tx] = tile[tx][ty];
    }""",
        lambda x: x.reshape(64, 64).T.reshape(-1),
    ),
    Clean(
        "asynchronous copies",
        _HEAD
        + """{
        __shared__ alignas(16) float s[2][256];
        int t = threadIdx.x;
        auto fetch = [&](int stage, int from) {
            unsigned to = (unsigned)__cvta_generic_to_shared(&s[stage][t]);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + from + t) : "memory");
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        fetch(0, 0);
        for (int i = 0; i < 16; ++i) {
            if (i < 15) {
                fetch((i + 1) % 2, (i + 1) * 256);
                asm volatile("cp.async.wait_group 1;" ::: "memory");
            } else {
                asm volatile("cp.async.wait_group 0;" ::: "memory");
            }
            __syncthreads();
            out[i * 256 + t] = s[i % 2][255 - t];
            __syncthreads();
        }
    }""",
        lambda x: x.reshape(16, 256)[:, ::-1].reshape(-1),
        grid=1,
    ),
    Clean(
        "ring between blocks",
        """
    __device__ float slots[4 * 64];
    __device__ unsigned head, tail;
    __device__ unsigned load(unsigned* p) {
        unsigned v;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return v;
    }
    __device__ void store(unsigned* p, unsigned v) {
        asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
    }
    """
        + _HEAD
        + """{
        int t = threadIdx.x;
        if (blockIdx.x == 0) {
            for (unsigned i = 0; i < 16; ++i) {
                if (t == 0) while (i - load(&tail) >= 4) { }
                __syncthreads();
                slots[i % 4 * 64 + t] = x[i * 64 + t];
                __syncthreads();
                if (t == 0) store(&head, i + 1);
            }
        } else {
            for (unsigned i = 0; i < 16; ++i) {
                if (t == 0) while (load(&head) <= i) { }
                __syncthreads();
                out[i * 64 + t] = 2 * slots[i % 4 * 64 + t];
                __syncthreads();
                if (t == 0) store(&tail, i + 1);
            }
        }
    }""",
        lambda x: 2 * x[:1024],
        grid=2,
        block=64,
    ),
    Clean(
        "named barriers",
        _HEAD
        + """{
        // Warp 0 fills a buffer, warps 1 and 2 read it: full is barrier 1, empty is barrier 2.
        __shared__ float s[2][32];
        int lane = threadIdx.x % 32;
        if (threadIdx.x < 32) {
            for (int i = 0; i < 16; ++i) {
                if (i >= 2) asm volatile("bar.sync %0, 96;" :: "r"(3 + i % 2) : "memory");
                s[i % 2][lane] = x[i * 32 + lane];
                asm volatile("bar.arrive %0, 96;" :: "r"(1 + i % 2) : "memory");
            }
        } else {
            for (int i = 0; i < 16; ++i) {
                asm volatile("bar.sync %0, 96;" :: "r"(1 + i % 2) : "memory");
                float v = s[i % 2][31 - lane];
                if (threadIdx.x < 64) out[i * 32 + lane] = v;
                if (i < 14) asm volatile("bar.arrive %0, 96;" :: "r"(3 + i % 2) : "memory");
            }
        }
    }""",
        lambda x: x[:512].reshape(16, 32)[:, ::-1].reshape(-1),
        grid=1,
        block=96,
    ),
    Clean(
        "grid barrier",
        """
    __device__ unsigned arrived;
    __device__ float part[8];
    __device__ void grid_sync(unsigned goal) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&arrived, 1u);
            while (*(volatile unsigned*)&arrived < goal) { }
            __threadfence();
        }
        __syncthreads();
    }
    """
        + _HEAD
        + """{
        int b = blockIdx.x, t = threadIdx.x;
        for (int round = 0; round < 3; ++round) {
            if (t == 5) part[b] = x[b + round];
            grid_sync(gridDim.x * (2 * round + 1));
            if (t == 9) out[b] += part[(b + 1) % gridDim.x];
            grid_sync(gridDim.x * (2 * round + 2));
        }
    }""",
        lambda x: np.array([sum(x[(b + 1) % 8 + r] for r in range(3)) for b in range(8)], dtype=np.float32),
        grid=8,
        block=64,
    ),
    Clean(
        "last block",
        """
    __device__ float part[16];
    __device__ unsigned ticket;
    """
        + _HEAD
        + """{
        __shared__ bool last;
        __shared__ float s[256];
        int t = threadIdx.x;
        s[t] = x[blockIdx.x * 256 + t];
        __syncthreads();
        for (int k = 128; k > 0; k /= 2) {
            if (t < k) s[t] += s[t + k];
            __syncthreads();
        }
        if (t == 0) {
            part[blockIdx.x] = s[0];
            __threadfence();
            last = atomicAdd(&ticket, 1u) == gridDim.x - 1;
            __threadfence();
        }
        __syncthreads();
        if (last && t == 0) {
            float sum = 0;
            for (int i = 0; i < gridDim.x; ++i) sum += part[i];
            out[0] = sum;
        }
    }""",
        lambda x: _one(x.sum()),
    ),
    Clean(
        "bytes of a word",
        _HEAD
        + """{
        __shared__ unsigned char bytes[256];
        int t = threadIdx.x;
        bytes[t] = (unsigned char)x[t];
        __syncthreads();
        unsigned char v = bytes[255 - t];
        __syncthreads();
        bytes[t] = v;
        __syncthreads();
        unsigned word = reinterpret_cast<unsigned*>(bytes)[t / 4];
        out[t] = (float)(word >> 8 * (t % 4) & 255);
    }""",
        lambda x: x[:256][::-1],
        grid=1,
    ),
    Clean(
        "same value from all",
        _HEAD
        + """{
        __shared__ int found;
        if (threadIdx.x == 0) found = 0;
        __syncthreads();
        if (threadIdx.x < 32 && x[threadIdx.x] >= 0) found = 1;
        __syncthreads();
        out[threadIdx.x] = found;
    }""",
        lambda x: np.ones(256, dtype=np.float32),
        grid=1,
    ),
    Clean(
        "calls and local arrays",
        """
    struct Pair { double a; int b; };
    __device__ __noinline__ float pick(const float* values, Pair p, int i) {
        float copy[4];
        for (int k = 0; k < 4; ++k) copy[k] = values[3 - k];
        return copy[i & 3] + (float)p.a + p.b;
    }
    """
        + _HEAD
        + """{
        int i = blockIdx.x * 256 + threadIdx.x;
        float values[4];
        for (int k = 0; k < 4; ++k) values[k] = x[(i + k) % n];
        Pair p; p.a = 1; p.b = 2;
        out[i] = pick(values, p, i);
    }""",
        lambda x: np.array([x[(i + 3 - (i & 3)) % x.size] + 3 for i in range(x.size)], dtype=np.float32),
    ),
    Clean(
        "bitonic sort",
        _HEAD
        + """{
        __shared__ float s[512];
        int t = threadIdx.x;
        s[t] = x[t];
        s[t + 256] = x[t + 256];
        for (int size = 2; size <= 512; size *= 2) {
            for (int k = size / 2; k > 0; k /= 2) {
                __syncthreads();
                int i = 2 * t - (t & (k - 1)), j = i + k;
                bool up = (i & size) == 0;
                float a = s[i], b = s[j];
                if ((a > b) == up) { s[i] = b; s[j] = a; }
            }
        }
        __syncthreads();
        out[t] = s[t];
        out[t + 256] = s[t + 256];
    }""",
        lambda x: np.sort(x[:512]),
        grid=1,
    ),
    Clean(
        "one flag from all blocks",
        _HEAD
        + """{
        if (x[blockIdx.x * 256 + threadIdx.x] >= 0) out[0] = 1;
    }""",
        lambda x: _one(1),
    ),
    Clean(
        "barrier object",
        _HEAD
        + """{
        __shared__ alignas(8) unsigned long long full;
        __shared__ float s[64];
        unsigned at = (unsigned)__cvta_generic_to_shared(&full), t = threadIdx.x;
        if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at) : "memory");
        __syncthreads();
        if (t < 32) {
            s[t] = x[t];
            s[t + 32] = x[t + 32];
            asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(at) : "memory");
        } else {
            unsigned over = 0;
            while (!over)
                asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                             : "=r"(over) : "r"(at) : "memory");
            out[t - 32] = s[95 - t];
        }
    }""",
        lambda x: x[:64][::-1],
        grid=1,
        block=96,
    ),
    Clean(
        "copies that a barrier object tracks",
        _HEAD
        + """{
        __shared__ alignas(8) unsigned long long full;
        __shared__ float s[32];
        unsigned at = (unsigned)__cvta_generic_to_shared(&full), t = threadIdx.x;
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[t % 32]);
        if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at) : "memory");
        __syncthreads();
        if (t < 32) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + t) : "memory");
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at) : "memory");
        } else {
            unsigned over = 0;
            while (!over)
                asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                             : "=r"(over) : "r"(at) : "memory");
            out[t - 32] = s[63 - t];
        }
    }""",
        lambda x: x[:32][::-1],
        grid=1,
        block=64,
    ),
]
