"""Correct kernels, each with the ways of working together that a checker must understand."""

from __future__ import annotations

import numpy as np
from clean_grid import BETWEEN_BLOCKS, Clean

__all__ = ["CLEAN", "Clean"]

_HEAD = 'extern "C" __global__ void k(float* x, float* out, int n)'

CLEAN = [
    *BETWEEN_BLOCKS,
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
    Clean(
        "slot of a warp",
        _HEAD
        + """{
        __shared__ float s;
        float sum = 0;
        for (int j = 0; j < 4; ++j) {
            if (threadIdx.x == j) s = x[j] + j;
            __syncwarp();
            sum += s;
            if (j % 2) __syncwarp(); else __syncthreads();
        }
        out[threadIdx.x] = sum;
    }""",
        lambda x: np.full(32, x[:4].sum() + 6, dtype=np.float32),
        grid=1,
        block=32,
    ),
    Clean(
        "halves of words",
        _HEAD
        + """{
        __shared__ alignas(4) unsigned short s[256];
        int t = threadIdx.x;
        s[t] = (unsigned short)x[t];
        s[t] = s[t] * 2;
        __syncthreads();
        unsigned word = reinterpret_cast<unsigned*>(s)[t / 2];
        __syncthreads();
        if (t % 2) reinterpret_cast<unsigned*>(s)[t / 2] = word + 1;
        __syncthreads();
        s[t] += 1;
        unsigned short* h = reinterpret_cast<unsigned short*>(out) + 2 * t;
        h[0] = s[t];
        h[1] = 0;
        out[t] = (float)(h[0] + h[1]);
    }""",
        lambda x: 2 * x[:256] + 1 + (np.arange(256) % 2 == 0),
        grid=1,
    ),
    Clean(
        "bytes in place",
        _HEAD
        + """{
        __shared__ unsigned char s[256];
        unsigned char* bytes = reinterpret_cast<unsigned char*>(x);
        int t = threadIdx.x;
        s[t] = t;
        __syncthreads();
        s[255 - t] = s[255 - t] / 2;
        bytes[t] = bytes[t] / 2;
        __syncthreads();
        out[t] = s[t];
    }""",
        lambda x: np.arange(256, dtype=np.float32) // 2,
        grid=1,
    ),
    Clean(
        "vectors with padding",
        """
    struct alignas(16) Point { float x, y, z; };
    """
        + _HEAD
        + """{
        __shared__ Point points[256];
        __shared__ float4 pairs[256];
        int t = threadIdx.x;
        points[t].x = x[t];
        points[t].y = 1;
        points[t].z = 2;
        pairs[t].x = x[t];
        pairs[t].y = 3;
        __syncthreads();
        Point p = points[255 - t];
        float4 pair = pairs[255 - t];
        reinterpret_cast<Point*>(out + 256)[t] = points[t];
        out[t] = p.x + p.y + p.z + pair.x + pair.y;
    }""",
        lambda x: 2 * x[:256][::-1] + 6,
        grid=1,
    ),
    Clean(
        "pointers that are chosen",
        """
    __device__ __noinline__ float* other(float* a, float* b, int which) { return which ? a : b; }
    """
        + _HEAD
        + """{
        __shared__ float a[256], b[256];
        int t = threadIdx.x;
        float* p = t % 2 ? a : b;
        p[t] = x[t];
        float* q = other(out, x, t < 256);
        long long between = b - a;
        __syncthreads();
        (t % 2 ? a + between : b)[t] = p[t];
        q[t] = b[t];
    }""",
        lambda x: x[:256],
        grid=1,
    ),
]
