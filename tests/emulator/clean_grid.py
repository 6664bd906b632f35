"""What a correct kernel is, and those whose blocks work together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BETWEEN_BLOCKS", "Clean"]

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


BETWEEN_BLOCKS = [
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
        "versions around volatile data",
        """
    __device__ volatile unsigned version;
    __device__ volatile float first, second;
    """
        + _HEAD
        + """{
        if (threadIdx.x != 0) return;
        if (blockIdx.x == 0) {
            for (int i = 0; i < 20; ++i) {
                version = 2 * i + 1;
                __threadfence();
                first = i;
                second = 2 * i;
                __threadfence();
                version = 2 * i + 2;
            }
        } else {
            float sum = 0;
            unsigned before;
            do {
                before = version;
                __threadfence();
                float a = first, b = second;
                __threadfence();
                if ((before & 1) == 0 && version == before) sum = b - 2 * a;
            } while (before < 40);
            out[blockIdx.x] = sum;
        }
    }""",
        lambda x: np.zeros(4, dtype=np.float32),
        grid=4,
        block=32,
    ),
    Clean(
        "relaxed counter after a flag",
        """
    __device__ unsigned flag, counter;
    """
        + _HEAD
        + """{
        if (threadIdx.x != 0) return;
        unsigned seen = 0;
        if (blockIdx.x == 0) {
            asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(&flag) : "memory");
            asm volatile("st.relaxed.gpu.global.u32 [%0], 2;" :: "l"(&counter) : "memory");
        } else {
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&flag) : "memory");
            } while (seen == 0);
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&counter) : "memory");
        }
        out[blockIdx.x] = 0.0f * seen;
    }""",
        lambda x: np.zeros(4, dtype=np.float32),
        grid=4,
        block=32,
    ),
    Clean(
        "volatile flags without data",
        """
    __device__ volatile int turn, done[8];
    """
        + _HEAD
        + """{
        if (threadIdx.x != 0) return;
        int b = blockIdx.x;
        while (turn != b) { }
        done[b] = 1;
        turn = b + 1;
        int count = 0;
        while (count < gridDim.x) {
            count = 0;
            for (int j = 0; j < gridDim.x; ++j) count += done[j];
        }
        out[b] = 1;
    }""",
        lambda x: np.ones(4, dtype=np.float32),
        grid=4,
        block=32,
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
        "one flag from all blocks",
        _HEAD
        + """{
        if (x[blockIdx.x * 256 + threadIdx.x] >= 0) out[0] = 1;
    }""",
        lambda x: _one(1),
    ),
    Clean(
        "slot that lanes read by turns",
        """
    __device__ unsigned lock, reads;
    __device__ float slot;
    """
        + _HEAD
        + """{
        // All lanes read under the lock; the last of them writes, which their flags order.
        bool done = false;
        while (!done) {
            if (atomicCAS(&lock, 0u, 1u) == 0) {
                __threadfence();
                out[1 + threadIdx.x] = slot;
                if (++reads == 32) slot = x[0], out[0] = slot;
                __threadfence();
                atomicExch(&lock, 0u);
                done = true;
            }
        }
    }""",
        lambda x: np.concatenate([x[:1], np.zeros(32, dtype=np.float32)]),
        grid=1,
        block=32,
    ),
    Clean(
        "ticket, barrier, fence",
        """
    __device__ float part[16];
    __device__ unsigned ticket;
    """
        + _HEAD
        + """{
        __shared__ bool last;
        int t = threadIdx.x;
        if (t == 0) part[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        if (t == 0) last = atomicInc(&ticket, gridDim.x) == gridDim.x - 1;
        __syncthreads();
        if (last) {
            __threadfence();
            if (t < 16) out[t] = part[15 - t];
        }
    }""",
        lambda x: x[:16][::-1],
    ),
]
