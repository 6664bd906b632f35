"""Counters: facts that are the same in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

COPY = """
extern "C" __global__ void copy(float* y, const float* x, int n, int stride) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * stride;
    if (i < n) y[i] = x[i];
}"""


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def test_coalescing() -> None:
    kernel = gp.jit(COPY)
    x, y = gp.ones(4096), gp.zeros(4096)
    dense = kernel.profile(y, x, 4096, 1, grid=16, block=256)
    assert (y.to_numpy() == 1).all()
    assert (dense.blocks, dense.warps, dense.threads) == (16, 128, 4096)
    assert dense.loads == (128, 512, 16384)
    assert dense.stores == dense.loads
    assert dense.loads.efficiency == 1.0
    assert dense.divergent == 0
    strided = kernel.profile(y, x, 4096, 8, grid=2, block=256)
    assert strided.loads == (16, 512, 2048)
    assert strided.loads.efficiency == 0.125


def test_bank_conflicts_and_divergence() -> None:
    kernel = gp.jit("""
extern "C" __global__ void k(float* x, int stride) {
    __shared__ float s[32 * 33];
    s[threadIdx.x * stride] = threadIdx.x;
    __syncwarp();
    float v = s[threadIdx.x * stride];
    if (threadIdx.x % 2) v = __sinf(v) * x[0]; else v = v * 2 + x[1];
    x[threadIdx.x] = v;
}""")
    x = gp.ones(32)
    free = kernel.profile(x, 33, grid=1, block=32)
    assert (free.shared_accesses, free.shared_passes, free.shared_conflicts) == (2, 2, 0)
    bad = kernel.profile(x, 32, grid=1, block=32)
    assert (bad.shared_accesses, bad.shared_passes, bad.shared_conflicts) == (2, 64, 62)
    assert bad.divergent == 1
    assert 0.5 < bad.lane_efficiency < 1


def test_the_table_and_its_repetition() -> None:
    kernel = gp.jit(COPY)
    x, y = gp.ones(1000), gp.zeros(1000)
    first, second = (kernel.profile(y, x, n=1000, stride=1) for _ in range(2))
    assert str(first) == str(second)
    text = str(first)
    assert text.startswith("copy: 4 blocks, 32 warps, 1024 threads")
    assert "global loads: 32 accesses, 125 sectors of 32 bytes, 100% of them used" in text
    assert first.classes["global memory"] == (64, 2000)
    assert first.instructions == sum(issued for issued, _ in first.classes.values())
    assert repr(first).startswith("<Profile of copy: ")


def test_faults_are_raised_here_too() -> None:
    kernel = gp.jit('extern "C" __global__ void k(int* x, long long far) { x[far] = 1; }')
    with pytest.raises(gp.KernelFaultError, match="in no allocation"):
        kernel.profile(gp.zeros(1, "int32"), 1 << 40, grid=1, block=1)
