"""Kernels with one planted bug each, and what the checker must say about it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PLANTED", "Planted"]


class Planted(NamedTuple):
    """A kernel ``k`` that takes ``float* x`` (256 values), ``float* out`` (64 values, zeros) and ``int n`` (256).

    Attributes
    ----------
    name : str
        What is wrong, in a word or two.
    body : str
        Statements of the kernel; `before` stands in front of it.
    words : tuple of str
        What the report must contain.
    grid, block : int
        The launch.
    """

    name: str
    body: str
    words: tuple[str, ...]
    grid: int = 1
    block: int = 64
    before: str = ""
    shared: int = 0


_FENCES = "__device__ unsigned flag, ticket; __device__ float value;"

PLANTED = [
    # Out of bounds and misaligned.
    Planted(
        "off by one",
        """
        int i = blockIdx.x * 64 + threadIdx.x;
        if (i <= n) x[i] = 1;
        """,
        (
            "out of bounds",
            "write of x[256]",
            "256 elements",
            "4 bytes past its end",
            "thread [0, 0, 0] of block [4, 0, 0]",
            "k.cu",
        ),
        grid=5,
    ),
    Planted(
        "before the start",
        """
        out[threadIdx.x] = x[(int)threadIdx.x - 1];
        """,
        ("out of bounds", "read of x[-1]", "4 bytes before its start"),
    ),
    Planted(
        "wrong array",
        """
        out[threadIdx.x + blockIdx.x * 64] = x[threadIdx.x];
        """,
        ("out of bounds", "write of out[64]", "64 elements"),
        grid=4,
    ),
    Planted(
        "vector over the end",
        """
        float4 v = reinterpret_cast<float4*>(x)[threadIdx.x + 1];
        out[threadIdx.x] = v.x + v.w;
        """,
        ("out of bounds", "read of x[256]", "16 bytes past its end"),
    ),
    Planted(
        "stride",
        """
        for (int i = threadIdx.x; i < n; i += 64) out[i % 65] = x[i];
        """,
        ("out of bounds", "write of out[64]"),
    ),
    Planted(
        "module variable",
        """
        table[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = table[threadIdx.x];
        """,
        ("out of bounds", "write of table[32]", "32 elements"),
        before="__device__ float table[32];",
    ),
    Planted(
        "atomic out of bounds",
        """
        atomicAdd(&out[(int)x[threadIdx.x + 64]], 1.0f);
        """,
        ("out of bounds", "atomic operation on out[64]"),
    ),
    Planted(
        "far away",
        """
        x[100000] = 1;
        """,
        ("out of bounds", "write of x[100000]"),
    ),
    Planted(
        "null",
        """
        float** p = reinterpret_cast<float**>(&x[2]);
        if (threadIdx.x == 0) *reinterpret_cast<long long*>(p) = 0;
        __syncthreads();
        (*p)[threadIdx.x] = 1;
        """,
        ("write of 4 bytes at 0x", "a null pointer", "thread ["),
    ),
    Planted(
        "misaligned",
        """
        float2 v = *reinterpret_cast<float2*>(x + 1);
        out[threadIdx.x] = v.x + v.y;
        """,
        ("misaligned", "x[1]", "multiple of 8"),
    ),
    Planted(
        "misaligned shared",
        """
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        if (threadIdx.x < 8) {
            double v = *reinterpret_cast<double*>(&s[2 * threadIdx.x + 1]);
            out[threadIdx.x] = (float)v;
        }
        """,
        ("misaligned", "shared"),
    ),
    Planted(
        "shared out of bounds",
        """
        extern __shared__ float d[];
        d[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = d[threadIdx.x];
        """,
        ("write of 4 bytes", "shared memory", "128 bytes"),
        shared=128,
    ),
    # Values that are missing.
    Planted(
        "shared not written",
        """
        __shared__ float s[64];
        if (threadIdx.x < 63) s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x];
        """,
        ("uninitialised shared memory", "read of s[63]", "thread [0, 0, 0]"),
    ),
    Planted(
        "shared counter",
        """
        __shared__ int c[32];
        atomicAdd(&c[threadIdx.x % 32], 1);
        __syncthreads();
        if (threadIdx.x < 32) out[threadIdx.x] = c[threadIdx.x];
        """,
        ("uninitialised shared memory", "atomic operation on c[0]"),
    ),
    Planted(
        "dynamic shared",
        """
        extern __shared__ float d[];
        if (threadIdx.x > 0) d[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = d[0];
        """,
        ("uninitialised shared memory", "dynamic shared memory"),
        shared=256,
    ),
    Planted(
        "local array",
        """
        float a[8];
        a[(int)x[1]] = 1;
        out[threadIdx.x] = a[(int)x[threadIdx.x % 8]];
        """,
        ("uninitialised local memory", "thread [0, 0, 0]"),
    ),
    # Races in shared memory.
    Planted(
        "no barrier",
        """
        __shared__ float s[64];
        s[threadIdx.x] = 0;
        __syncthreads();
        s[threadIdx.x] = x[threadIdx.x];
        out[threadIdx.x] = s[63 - threadIdx.x];
        """,
        ("data race in shared memory", "s[", "__syncthreads()", "k.cu"),
    ),
    Planted(
        "no second barrier",
        """
        __shared__ float s[64];
        for (int i = 0; i < 2; ++i) {
            s[threadIdx.x] = x[threadIdx.x + i];
            __syncthreads();
            out[threadIdx.x] += s[63 - threadIdx.x];
        }
        """,
        ("data race in shared memory", "not ordered with"),
    ),
    Planted(
        "tree without barrier",
        """
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        for (int k = 32; k > 0; k /= 2) {
            if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
            if (k > 32) __syncthreads();
        }
        if (threadIdx.x == 0) out[0] = s[0];
        """,
        ("data race in shared memory", "__syncwarp()"),
    ),
    Planted(
        "warp exchange",
        """
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        __syncwarp();
        s[threadIdx.x ^ 1] = s[threadIdx.x] + 1;
        __syncwarp();
        out[threadIdx.x] = s[threadIdx.x];
        """,
        ("data race in shared memory", "__syncwarp()"),
    ),
    Planted(
        "two writers",
        """
        __shared__ int w;
        w = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = w;
        """,
        ("data race in shared memory", "different values", " w"),
    ),
    Planted(
        "count without atomics",
        """
        __shared__ int c;
        if (threadIdx.x == 0) c = 0;
        __syncthreads();
        c += 1;
        __syncthreads();
        out[threadIdx.x] = c;
        """,
        ("data race in shared memory", " c"),
    ),
    Planted(
        "atomic and plain",
        """
        __shared__ int c;
        if (threadIdx.x == 0) c = 0;
        __syncthreads();
        if (threadIdx.x < 32) atomicAdd(&c, 1);
        else out[threadIdx.x] = c;
        """,
        ("data race in shared memory", "atomic operation"),
    ),
    Planted(
        "named barrier of the wrong warps",
        """
        __shared__ float s[32];
        if (threadIdx.x < 64) {
            if (threadIdx.x < 32) s[threadIdx.x] = x[threadIdx.x];
            asm volatile("bar.sync 1, 64;" ::: "memory");
        } else out[threadIdx.x - 64] = s[threadIdx.x - 64];
        """,
        ("shared memory", "s["),
        block=96,
    ),
    Planted(
        "copy not waited for",
        """
        __shared__ float s[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + threadIdx.x) : "memory");
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x];
        """,
        ("data race in shared memory", "read of s[", "asynchronous copy", "issued by thread ["),
    ),
    Planted(
        "copy not synchronised",
        """
        __shared__ float zero[64];
        zero[threadIdx.x] = 0;
        __shared__ float s[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + threadIdx.x) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        out[threadIdx.x] = s[63 - threadIdx.x];
        """,
        ("shared memory", "s["),
    ),
    Planted(
        "copy forgotten",
        """
        __shared__ float s[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + threadIdx.x) : "memory");
        out[threadIdx.x] = 1;
        """,
        ("without having waited for its asynchronous copy to s[0]",),
    ),
    Planted(
        "copy over what is read",
        """
        __shared__ float s[64];
        for (int i = 0; i < 2; ++i) {
            unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + threadIdx.x) : "memory");
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            out[threadIdx.x] += s[63 - threadIdx.x];
        }
        """,
        ("data race in shared memory", "s["),
    ),
    Planted(
        "barrier object not waited for",
        """
        __shared__ alignas(8) unsigned long long full;
        __shared__ float s[32];
        unsigned at = (unsigned)__cvta_generic_to_shared(&full);
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at) : "memory");
        if (threadIdx.x < 32) s[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x < 32) {
            s[threadIdx.x] = x[threadIdx.x];
            asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(at) : "memory");
        } else {
            out[threadIdx.x - 32] = s[63 - threadIdx.x];
        }
        """,
        ("data race in shared memory", "s["),
    ),
    Planted(
        "barrier object not shared yet",
        """
        __shared__ alignas(8) unsigned long long full;
        unsigned at = (unsigned)__cvta_generic_to_shared(&full);
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at) : "memory");
        asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(at) : "memory");
        """,
        ("data race in shared memory", " full", "atomic operation"),
    ),
    # Races in global memory.
    Planted(
        "blocks write one element",
        """
        out[0] = x[blockIdx.x] + 1;
        """,
        ("data race in global memory", "write of out[0]", "block ["),
        grid=2,
        block=1,
    ),
    Planted(
        "sum without atomics",
        """
        out[threadIdx.x] += x[threadIdx.x + 64 * blockIdx.x];
        """,
        ("data race in global memory", "out["),
        grid=2,
    ),
    Planted(
        "neighbour block",
        """
        int i = 64 * blockIdx.x + threadIdx.x;
        float left = x[(i + 255) % 256];
        x[i] = left;
        """,
        ("data race in global memory", "x["),
        grid=4,
    ),
    Planted(
        "flag without fence",
        """
        if (blockIdx.x == 0) {
            if (threadIdx.x == 0) {
                value = 7;
                atomicExch(&flag, 1u);
            }
        } else if (threadIdx.x == 0) {
            while (atomicAdd(&flag, 0u) == 0) {
            }
            __threadfence();
            out[0] = value;
        }
        """,
        ("data race in global memory", " value", "__threadfence()"),
        grid=2,
        before=_FENCES,
    ),
    Planted(
        "flag without reader's fence",
        """
        if (blockIdx.x == 0) {
            if (threadIdx.x == 0) {
                value = 7;
                __threadfence();
                atomicExch(&flag, 1u);
            }
        } else if (threadIdx.x == 0) {
            while (atomicAdd(&flag, 0u) == 0) {
            }
            out[0] = value;
        }
        """,
        ("data race in global memory", " value", "__threadfence()"),
        grid=2,
        before=_FENCES,
    ),
    Planted(
        "flag with the fence of a block",
        """
        if (blockIdx.x == 0) {
            if (threadIdx.x == 0) {
                value = 7;
                __threadfence_block();
                atomicExch(&flag, 1u);
            }
        } else if (threadIdx.x == 0) {
            while (atomicAdd(&flag, 0u) == 0) {
            }
            __threadfence();
            out[0] = value;
        }
        """,
        ("data race in global memory", " value"),
        grid=2,
        before=_FENCES,
    ),
    Planted(
        "plain flag",
        """
        if (blockIdx.x == 0) {
            value = 7;
            __threadfence();
            flag = 1;
        } else {
            if (*(volatile unsigned*)&flag) out[0] = value;
        }
        """,
        ("data race in global memory", " flag"),
        grid=2,
        block=1,
        before=_FENCES,
    ),
    Planted(
        "atomics of block scope",
        """
        atomicAdd_block(&ticket, 1u);
        """,
        ("data race in global memory", " ticket"),
        grid=2,
        block=1,
        before=_FENCES,
    ),
    Planted(
        "lock without fences",
        """
        if (threadIdx.x == 0) {
            while (atomicCAS(&flag, 0u, 1u) != 0) {
            }
            value += 1;
            atomicExch(&flag, 0u);
        }
        """,
        ("data race in global memory", " value"),
        grid=2,
        before=_FENCES,
    ),
    Planted(
        "last block",
        """
        out[blockIdx.x * 16 + threadIdx.x % 16] = x[threadIdx.x % 16];
        __syncthreads();
        if (threadIdx.x == 0 && atomicAdd(&ticket, 1u) == gridDim.x - 1) {
            float s = 0;
            for (int i = 0; i < 64; ++i) s += out[i];
            x[0] = s;
        }
        """,
        ("data race in global memory", "out["),
        grid=4,
        before=_FENCES,
    ),
    # Barriers and deadlocks.
    Planted(
        "divergent barrier",
        """
        if (threadIdx.x % 32 < 16) __syncthreads();
        else asm volatile("bar.sync 1;");
        out[threadIdx.x] = 1;
        """,
        ("divergent barrier", "16 of 32 lanes"),
    ),
    Planted(
        "missing warp",
        """
        if (threadIdx.x < 32) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 2, 64;" ::: "memory");
        }
        """,
        ("deadlock", "waits at barrier 1", "waits at barrier 2"),
    ),
    Planted(
        "shuffle of absent lanes",
        """
        if (threadIdx.x % 32 < 8) out[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], 3);
        else {
            while (*(volatile float*)x < 0) {
            }
            __syncwarp();
        }
        """,
        ("deadlock in a warp",),
    ),
]
