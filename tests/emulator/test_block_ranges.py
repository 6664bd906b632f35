"""Kernels launched in ranges of blocks give the bits they give whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.errors import KernelFaultError, KernelLaunchError

pytestmark = pytest.mark.nvrtc

# Everything a block knows of its place.
PLACE = """
extern "C" __global__ void place(unsigned* out, unsigned salt) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
    unsigned* mine = out + 8 * (block * blockDim.x * blockDim.y + thread);
    mine[0] += blockIdx.x; mine[1] += blockIdx.y; mine[2] += blockIdx.z;
    mine[3] += gridDim.x; mine[4] += gridDim.y; mine[5] += gridDim.z;
    mine[6] += thread; mine[7] += salt;
}
"""
# Shared memory, barriers, an early return, and floating point in a fixed order.
ROWS = """
template <typename T, int WIDTH>
__global__ void rows(T* out, const T* in, int n) {
    __shared__ T part[WIDTH];
    extern __shared__ T kept[];
    int row = blockIdx.x + blockIdx.y * gridDim.x;
    if (row % 5 == 3) return;
    T sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[row * n + i] * T(row + 1);
    part[threadIdx.x] = sum;
    kept[threadIdx.x] = sum / 3;
    __syncthreads();
    for (int step = WIDTH / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step] / kept[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[row] = part[0];
}
"""
# The last block to end adds up what the others left.
LAST = """
extern "C" __global__ void total(float* parts, unsigned* count, float* out, const float* in) {
    unsigned blocks = gridDim.x * gridDim.y;
    unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    parts[block] = in[block] * 0.1f;
    __threadfence();
    if (atomicInc(count, blocks - 1) == blocks - 1) {
        float sum = 0;
        for (unsigned i = 0; i < blocks; i++) sum += parts[i];
        *out = sum;
    }
}
"""
side = st.integers(1, 9)


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> object:
    with gp.device("cpu"):
        yield


@given(grid=st.one_of(st.tuples(side), st.tuples(side, side), st.tuples(side, side, side)), blocks=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_block_knows_its_place(grid: tuple[int, ...], blocks: int) -> None:
    with gp.device("cpu"):
        kernel = gp.jit(PLACE)
        size = 8 * 6 * int(np.prod(grid))
        whole, sliced = gp.zeros(size, dtype="uint32"), gp.zeros(size, dtype="uint32")
        kernel(whole, 7, grid=grid, block=(3, 2))
        kernel._call_in_slices(blocks, sliced, 7, grid=grid, block=(3, 2))
        assert (sliced.to_numpy() == whole.to_numpy()).all()


@given(grid=st.tuples(side, side), blocks=st.integers(1, 30), columns=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_rows(dtype: str, grid: tuple[int, int], blocks: int, columns: int) -> None:
    with gp.device("cpu"):
        ctype = {"float32": "float", "float64": "double"}[dtype]
        kernel = gp.jit(ROWS, func=f"rows<{ctype}, 16>")
        rows = grid[0] * grid[1]
        data = gp.from_numpy(np.random.default_rng(rows).standard_normal((rows, columns)).astype(dtype))
        whole, sliced = gp.zeros(rows, dtype=dtype), gp.zeros(rows, dtype=dtype)
        shared = 16 * np.dtype(dtype).itemsize
        kernel(whole, data, columns, grid=grid, block=16, shared=shared)
        kernel._call_in_slices(blocks, sliced, data, columns, grid=grid, block=16, shared=shared)
        assert sliced.to_numpy().tobytes() == whole.to_numpy().tobytes()


@pytest.mark.parametrize("blocks", [1, 4, 15, 100])
def test_the_last_block_is_the_last_of_all(blocks: int) -> None:
    kernel = gp.jit(LAST)
    data = gp.from_numpy(np.arange(15, dtype=np.float32))
    found = []
    for launch in (kernel, lambda *args, **kw: kernel._call_in_slices(blocks, *args, **kw)):
        parts, count, out = gp.zeros(15), gp.zeros(1, dtype="uint32"), gp.zeros(1)
        launch(parts, count, out, data, grid=(5, 3), block=1)
        found.append((out.item(), count.item()))
    assert found[0] == found[1]


def test_a_kernel_without_parameters_or_with_odd_ones() -> None:
    gp.jit("__global__ void k() { }")._call_in_slices(2, grid=5, block=1)
    out = gp.zeros(7, dtype="int32")
    kernel = gp.jit("__global__ void k(int* out, char a, double b, char c) { out[blockIdx.x] = a + b + c; }")
    kernel._call_in_slices(3, out, 1, 2.0, 3, grid=7, block=1)
    assert out.to_numpy().tolist() == [6] * 7


def test_refused_kernels_are_launched_whole_but_not_in_ranges() -> None:
    kernel = gp.jit("__device__ int f() { return blockIdx.x; } __global__ void k(int* x) { x[f()] = f(); }")
    out = gp.zeros(5, dtype="int32")
    kernel(out, grid=5, block=1)
    assert out.to_numpy().tolist() == [0, 1, 2, 3, 4]
    for refused in (kernel, gp.jit(PLACE, sliceable=False)):
        with pytest.raises(KernelLaunchError, match="cannot be launched in ranges"):
            refused._call_in_slices(2, *([out] if refused is kernel else [gp.zeros(40, dtype="uint32"), 1]), grid=5)


def test_reports_quote_the_source() -> None:
    source = "__global__ void k(int* x) {\n    if (blockIdx.x == 4)\n        x[100000000] = 1;\n}"
    kernel = gp.jit(source)
    with pytest.raises(KernelFaultError, match=r"k\.cu:3[\s\S]*x\[100000000\] = 1"):
        kernel._call_in_slices(2, gp.zeros(5, dtype="int32"), grid=5, block=1)
