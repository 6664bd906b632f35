"""Cooperative launches: blocks of a grid that wait for each other."""

from __future__ import annotations

from typing import Any

import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

# What cooperative_groups::this_grid().sync() compiles to.
SYNC = """
__device__ void grid_sync() {
    unsigned hi, lo;
    asm("mov.u32 %0, %%envreg1;" : "=r"(hi));
    asm("mov.u32 %0, %%envreg2;" : "=r"(lo));
    unsigned* arrived = (unsigned*)(((unsigned long long)hi << 32) | lo) + 1;
    __barrier_sync(0);
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        unsigned blocks = gridDim.x * gridDim.y * gridDim.z, first = blockIdx.x + blockIdx.y + blockIdx.z == 0;
        unsigned nb = first ? 0x80000000 - (blocks - 1) : 1;
        unsigned old, now;
        asm volatile("atom.add.release.gpu.u32 %0,[%1],%2;" : "=r"(old) : "l"(arrived), "r"(nb) : "memory");
        do { asm volatile("ld.acquire.gpu.u32 %0,[%1];" : "=r"(now) : "l"(arrived) : "memory");
        } while (((old ^ now) & 0x80000000) == 0);
    }
    __barrier_sync(0);
}
"""
ROTATE = (
    SYNC
    + """
extern "C" __global__ void rotate(int* x, int rounds) {
    unsigned n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; r < rounds; ++r) {
        int next = x[(i + 1) % n];
        grid_sync();
        x[i] = next;
        grid_sync();
    }
}
"""
)


@pytest.mark.parametrize("options", [{}, {"check": True}, {"check": "fuzz", "seed": 3}])
def test_the_blocks_of_a_grid_wait_for_each_other(options: dict[str, Any]) -> None:
    kernel = gp.jit(ROTATE, **options)
    x = gp.arange(6 * 64, dtype="int32")
    for start in (3, 6):
        kernel(x, 3, grid=6, block=64, cooperative=True)
        assert x.tolist() == [(i + start) % 384 for i in range(384)]


def test_a_missing_barrier_is_still_a_race() -> None:
    source = ROTATE.replace("int next = x[(i + 1) % n];\n        grid_sync();", "int next = x[(i + 1) % n];")
    with pytest.raises(gp.KernelFaultError, match="data race in global memory"):
        gp.jit(source, check=True)(gp.arange(128, dtype="int32"), 1, grid=2, block=64, cooperative=True)


def test_without_the_flag_the_error_says_what_is_missing() -> None:
    with pytest.raises(gp.KernelFaultError, match=r"needs a cooperative launch: kernel.*cooperative=True"):
        gp.jit(ROTATE)(gp.arange(128, dtype="int32"), 1, grid=2, block=64)


def test_a_grid_that_does_not_fit_is_refused() -> None:
    kernel = gp.jit(ROTATE)
    most = kernel.resident_blocks(64)
    x = gp.arange((most + 1) * 64, dtype="int32")
    with pytest.raises(gp.KernelLaunchError, match=f"of the {most + 1} blocks of grid .* only {most} fit") as caught:
        kernel(x, 1, grid=most + 1, block=64, cooperative=True)
    assert "use at most" in str(caught.value)
    assert kernel.resident_blocks(1024) < most
    assert kernel.resident_blocks(64, shared=40_000) < most
    with pytest.raises(gp.KernelLaunchError, match="cooperative must be True or False, not 3"):
        kernel(x, 1, grid=1, cooperative=3)
    with pytest.raises(gp.KernelLaunchError, match="block must be between"):
        kernel.resident_blocks(0)


def test_in_a_graph_and_profiled() -> None:
    kernel = gp.jit(ROTATE)
    x = gp.arange(128, dtype="int32")
    graph = gp.CudaGraph()
    graph.begin_capture()
    kernel(x, 2, grid=2, block=64, cooperative=True)
    graph.end_capture()
    graph.replay()
    graph.replay()
    assert x.tolist() == [(i + 4) % 128 for i in range(128)]
    assert kernel.profile(x, 1, grid=2, block=64, cooperative=True).blocks == 2
