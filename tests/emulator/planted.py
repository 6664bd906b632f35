"""Kernels with one planted bug each, and what the checker must say about it."""

from __future__ import annotations

from planted_shared import SHARED_RACES, Planted

__all__ = ["PLANTED", "Planted"]

_LOOK_BACK = "__device__ volatile float sums[16], prefixes[16]; __device__ volatile int state[16];"


def _look_back(publish: str, read: str, finish: str) -> str:
    """A scan over blocks with look-back: how a block's sum and prefix are published, and how they are read."""
    return f"""
        int b = blockIdx.x;
        if (threadIdx.x == 0) {{
            float own = x[b], before = 0;
            {publish}
            for (int j = b - 1; j >= 0; --j) {{
                int seen;
                while ((seen = state[j]) == 0) {{ }}
                {read}
                if (seen == 2) {{ before += prefixes[j]; break; }}
                before += sums[j];
            }}
            {finish}
            out[b] = before + own;
        }}
    """


_PUBLISH = "sums[b] = own; __threadfence(); state[b] = 1;"
_FINISH = "prefixes[b] = before + own; __threadfence(); state[b] = 2;"
_STALE = ("missing order in global memory", "a flag of its block was read before", "__threadfence()", "k.cu")

_FENCES = "__device__ unsigned flag, ticket; __device__ float value;"

PLANTED = [
    *SHARED_RACES,
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
        "index far",
        """
        long long far = (long long)x[1] << 30;
        x[far] = 1;
        """,
        ("out of bounds", "write of x[1073741824]", "256 elements"),
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
        ("out of bounds", "write of d[32]", "32 elements"),
        shared=128,
    ),
    Planted(
        "past the end of all shared memory",
        """
        __shared__ float s[32];
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = s[threadIdx.x % 32];
        """,
        ("out of bounds", "write of s[32]", "32 elements", "4 bytes past its end", "thread [32, 0, 0]"),
    ),
    Planted(
        "shared variables side by side",
        """
        __shared__ float a[64], b[64];
        a[threadIdx.x] = x[threadIdx.x];
        b[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = a[threadIdx.x + 1] + b[threadIdx.x];
        """,
        ("out of bounds", "read of a[64]", "64 elements", "thread [63, 0, 0]"),
    ),
    Planted(
        "into another array",
        """
        long long between = out - x;
        __shared__ int index;
        if (threadIdx.x == 0) index = (int)between;
        __syncthreads();
        x[index + threadIdx.x] = 1;
        """,
        ("out of bounds", "write of x[", "256 elements"),
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
    Planted(
        "part of a vector",
        """
        __shared__ int4 s[64];
        s[threadIdx.x].x = threadIdx.x;
        __syncthreads();
        int4 v = s[threadIdx.x ^ 1];
        out[threadIdx.x] = v.x + v.y + v.z + v.w;
        """,
        ("uninitialised shared memory", "read of s[", "(byte 4 of it)"),
    ),
    # Races in global memory.
    Planted(
        "word of all changed by one",
        """
        float v = x[0];
        if (threadIdx.x == 31) x[0] = v + 1;
        out[threadIdx.x] = v;
        """,
        ("data race in global memory", "write of x[0]", "a read by thread ["),
        block=32,
    ),
    Planted(
        "halves of words between blocks",
        """
        unsigned short* h = reinterpret_cast<unsigned short*>(x);
        h[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
        if (blockIdx.x == 1) out[threadIdx.x] = h[0];
        """,
        ("data race in global memory", "x[0]"),
        grid=2,
        block=32,
    ),
    Planted(
        "ticket without a fence after it",
        """
        __shared__ bool last;
        if (threadIdx.x == 0) x[blockIdx.x] = blockIdx.x;
        __threadfence();
        if (threadIdx.x == 0) last = atomicAdd(&ticket, 1u) == gridDim.x - 1;
        __syncthreads();
        if (last && threadIdx.x < gridDim.x) out[threadIdx.x] = x[threadIdx.x];
        """,
        ("data race in global memory", "read of x[", "no __threadfence() followed"),
        grid=4,
        before=_FENCES,
    ),
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
        "look-back over volatile arrays without fences",
        _look_back("sums[b] = own; state[b] = 1;", "", "prefixes[b] = before + own; state[b] = 2;"),
        (*_STALE, "read of prefixes["),
        grid=8,
        block=32,
        before=_LOOK_BACK,
    ),
    Planted(
        "look-back over volatile arrays with the flag before the prefix",
        _look_back(_PUBLISH, "__threadfence();", "state[b] = 2; __threadfence(); prefixes[b] = before + own;"),
        (*_STALE, "read of prefixes["),
        grid=8,
        block=32,
        before=_LOOK_BACK,
    ),
    Planted(
        "look-back over volatile arrays without the reader's fence",
        _look_back(_PUBLISH, "", _FINISH),
        (*_STALE, "put __threadfence() after the flag is read"),
        grid=8,
        block=32,
        before=_LOOK_BACK,
    ),
    Planted(
        "volatile sum behind its flag",
        """
        if (threadIdx.x == 0) {
            if (blockIdx.x == 0) {
                flag = 1;
                __threadfence();
                *(volatile float*)&value = x[3];
            } else {
                while (*(volatile unsigned*)&flag == 0) { }
                __threadfence();
                out[0] = *(volatile float*)&value;
            }
        }
        """.replace("flag = 1", "*(volatile unsigned*)&flag = 1"),
        (*_STALE, "read of value"),
        grid=2,
        block=32,
        before=_FENCES,
    ),
    Planted(
        "volatile data behind an atomic flag",
        """
        if (threadIdx.x == 0) {
            if (blockIdx.x == 0) {
                *(volatile float*)&value = x[3];
                atomicExch(&flag, 1u);
            } else {
                while (atomicAdd(&flag, 0u) == 0) { }
                __threadfence();
                out[0] = *(volatile float*)&value;
            }
        }
        """,
        (*_STALE, "read of value"),
        grid=2,
        block=32,
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
