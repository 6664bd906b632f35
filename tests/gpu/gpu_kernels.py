"""CUDA sources that more than one test uses: kernels that last, that wait for each other, and that fault."""

from __future__ import annotations

_NOW = """
__device__ long long now() {
    long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
"""

# Keeps its stream busy for that long.
SPIN = f"""{_NOW}
extern "C" __global__ void spin(long long ns) {{
    const long long start = now();
    while (now() - start < ns) {{}}
}}
"""

# Copies x once *flag is set, by work on another stream; *seen stays 0 when it was not set within ten seconds.
COPY_WHEN_SET = f"""{_NOW}
extern "C" __global__ void copy_when_set(float* out, const float* x, int* seen, const int* flag, long long n) {{
    if (threadIdx.x == 0) {{
        const long long start = now();
        int set = 0;
        while (set == 0 && now() - start < 10000000000ll) set = *static_cast<const volatile int*>(flag);
        *seen = set;
    }}
    __syncthreads();
    for (long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = static_cast<const volatile float*>(x)[i];
}}
"""

# Writes one element, wherever that is.
WILD = """extern "C" __global__ void wild(float* x, long long at) {
    if (threadIdx.x == 0 && blockIdx.x == 0) x[at] = 1.0f;
}"""

TRAP = """extern "C" __global__ void stumble(float* x) {
    if (x[0] != 0.0f) asm volatile("trap;");
}"""

SCALE = """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}"""
