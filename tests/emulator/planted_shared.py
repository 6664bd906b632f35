"""What a planted bug is, and those that are races in shared memory."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SHARED_RACES", "Planted"]


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


SHARED_RACES = [
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
    Planted(
        "slot reused in a warp",
        """
        __shared__ float s;
        float sum = 0;
        for (int j = 0; j < 4; ++j) {
            if (threadIdx.x == 0) s = x[j] + j;
            __syncthreads();
            sum += s;
        }
        out[threadIdx.x] = sum;
        """,
        ("data race in shared memory", "write of s", "a read by thread ["),
        block=32,
    ),
    Planted(
        "slot of a warp changed by its last reader",
        """
        __shared__ float s[2];
        if (threadIdx.x == 0) s[0] = x[5];
        __syncthreads();
        float v = s[0];
        if (threadIdx.x == 31) s[0] = v + 1;
        out[threadIdx.x] = v;
        """,
        ("data race in shared memory", "write of s", "a read by thread [", "__syncwarp()"),
        block=32,
    ),
    Planted(
        "slot read twice by its writer",
        """
        __shared__ volatile float s;
        if (threadIdx.x == 0) *(float*)&s = x[5];
        __syncthreads();
        out[threadIdx.x] = *(float*)&s;
        if (threadIdx.x == 7) *(float*)&s = s + 1;
        """,
        ("data race in shared memory", "write of s", "a read by thread ["),
        block=32,
    ),
    Planted(
        "halves of words",
        """
        __shared__ unsigned short s[64];
        s[threadIdx.x] = 0;
        __syncthreads();
        s[threadIdx.x] = (unsigned short)x[threadIdx.x];
        if (threadIdx.x < 32) out[threadIdx.x] = s[32 + 2 * (threadIdx.x & 15)];
        """,
        ("data race in shared memory", "s[", "a write by thread ["),
    ),
    Planted(
        "bytes of words",
        """
        __shared__ unsigned char s[64];
        s[threadIdx.x] = 0;
        __syncthreads();
        s[threadIdx.x] = (unsigned char)x[threadIdx.x];
        if (threadIdx.x < 32) out[threadIdx.x] = s[32 + ((4 * threadIdx.x + 1) & 31)];
        """,
        ("data race in shared memory", "s[", "a write by thread ["),
    ),
    Planted(
        "a word of halves",
        """
        __shared__ alignas(4) unsigned short s[64];
        s[threadIdx.x] = 0;
        __syncthreads();
        s[threadIdx.x] = (unsigned short)x[threadIdx.x];
        if (threadIdx.x % 2) out[threadIdx.x] = reinterpret_cast<unsigned*>(s)[threadIdx.x / 2];
        """,
        ("data race in shared memory", "s[", "__syncwarp()"),
    ),
]
