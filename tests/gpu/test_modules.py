"""Kernels that share variables, and cooperative launches, on the GPU and on the emulator."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import pygpukit as gp

pytestmark = [pytest.mark.nvrtc, pytest.mark.usefixtures("device")]

SOURCE = """
namespace dsp { __constant__ float taps[2][4]; }
__device__ unsigned int counter = 7;
static __device__ int hidden;
__device__ double unused[16];
extern "C" __global__ void bump(int n) { atomicAdd(&counter, n); hidden = 3; }
__global__ void filter(float* x) { x[threadIdx.x] *= dsp::taps[1][threadIdx.x]; }
template <class T> __global__ void read(T* out) { out[0] = counter; out[1] = hidden; }
"""
ROTATE = """
extern "C" __global__ void rotate(int* x, unsigned* arrived, int rounds) {
    unsigned n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x, goal = 0;
    for (int r = 0; r < 2 * rounds; ++r) {
        int next = r % 2 ? 0 : *(volatile int*)&x[(i + 1) % n];
        static __shared__ int kept[64];
        if (r % 2) x[i] = kept[threadIdx.x]; else kept[threadIdx.x] = next;
        __syncthreads();
        goal += gridDim.x;
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1);
            while (*(volatile unsigned*)arrived < goal) {}
            __threadfence();
        }
        __syncthreads();
    }
}
"""
WORKSPACE = """
extern "C" __global__ void workspace(unsigned long long* out) {
    unsigned hi, lo;
    asm("mov.u32 %0, %%envreg1;" : "=r"(hi));
    asm("mov.u32 %0, %%envreg2;" : "=r"(lo));
    out[0] = ((unsigned long long)hi << 32) | lo;
}
"""


def test_variables_are_shared_set_and_read() -> None:
    module = gp.module(SOURCE, kernels=["read<int>"])
    module["taps"] = np.arange(8, dtype=np.float32).reshape(2, 4)
    x, out = gp.ones(4), gp.zeros(2, "int32")
    module.filter(x, grid=1, block=4)
    module.bump(2, grid=3, block=1)
    module.kernel("read<int>")(out, grid=1, block=1)
    assert (x.tolist(), out.tolist()) == ([4, 5, 6, 7], [13, 3])
    counter = module["counter"]
    assert (counter.item(), module["hidden"].item()) == (13, 3)
    module["unused"] = np.arange(16.0)
    assert module["unused"].tolist() == list(range(16))
    gp.add(counter, 1, out=counter)
    assert gp.module(SOURCE)["counter"].item() == 7
    del module
    gc.collect()
    assert counter.item() == 14


def test_variables_in_a_graph() -> None:
    module = gp.module(SOURCE)
    graph, counter = gp.CudaGraph(), module["counter"]
    graph.begin_capture()
    module.bump(1, grid=4, block=1)
    gp.add(counter, 10, out=counter)
    graph.end_capture()
    graph.replay()
    graph.replay()
    assert counter.item() == 7 + 28


def test_cooperative_launches() -> None:
    kernel = gp.jit(ROTATE)
    blocks = min(kernel.resident_blocks(64), 64)
    x, arrived = gp.arange(blocks * 64, dtype="int32"), gp.zeros(1, "uint32")
    kernel(x, arrived, 3, grid=blocks, block=64, cooperative=True)
    assert x.tolist() == [(i + 3) % (blocks * 64) for i in range(blocks * 64)]
    most = kernel.resident_blocks(64)
    with pytest.raises(gp.KernelLaunchError, match="a cooperative launch runs all its blocks at the same time"):
        kernel(x, arrived, 1, grid=most + 1, block=64, cooperative=True)


def test_a_cooperative_launch_has_a_workspace() -> None:
    out = gp.zeros(1, "uint64")
    gp.jit(WORKSPACE)(out, grid=1, block=1, cooperative=True)
    assert out.item() != 0
