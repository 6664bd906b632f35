"""What a launch may ask for: clusters, a start before the predecessor has ended, and what it does with its arrays."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

# Each block adds up its part; the first of a cluster adds up the parts, through the others' shared memory.
CLUSTER_SUM = """
__device__ void meet() {
    asm volatile("barrier.cluster.arrive.aligned;\\n\\tbarrier.cluster.wait.aligned;" ::: "memory");
}
extern "C" __global__ void cluster_sum(int* out, const int* x) {
    __shared__ int part;
    unsigned rank, size, here = (unsigned)__cvta_generic_to_shared(&part);
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    if (threadIdx.x == 0) part = 0;
    __syncthreads();
    atomicAdd(&part, x[blockIdx.x * blockDim.x + threadIdx.x]);
    meet();
    if (rank == 0 && threadIdx.x == 0) {
        int total = 0;
        for (unsigned i = 0; i < size; ++i) {
            unsigned there;
            int value;
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(i));
            asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
            total += value;
        }
        out[blockIdx.x / size] = total;
    }
    meet();
}
"""

# Reads `w` before it waits, as weights may be, and `x` after. A slow one lets its successor start before it writes.
EARLY = """
__device__ void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ void let_go() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
extern "C" __global__ void step(float* out, const float* x, const float* w, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    let_go();
    float weight = i < n ? w[i] : 0.0f;
    wait();
    float value = i < n ? x[i] : 0.0f;
    for (int r = 0; r < rounds; ++r) asm volatile("nanosleep.u32 1000;");
    if (i < n) out[i] = value * 2.0f + weight;
}
"""
N = 4096
T = TypeVar("T")


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def test_a_cluster_is_asked_for_by_the_launch(device: gp.Device) -> None:
    x, out = gp.arange(8 * 64, dtype="int32"), gp.zeros(8, "int32")
    if device.capability < (9, 0):
        kernel = gp.jit('extern "C" __global__ void one(int* out) { *out = 1; }')
        with pytest.raises(gp.KernelLaunchError, match=r"clusters need compute capability 9\.0"):
            kernel(out, grid=2, block=1, cluster=2)
        return
    kernel = gp.jit(CLUSTER_SUM)
    parts = np.arange(8 * 64).reshape(8, 64).sum(axis=1)
    for cluster in (1, (2, 1, 1), 4, 8):
        kernel(out, x, grid=8, block=64, cluster=cluster)
        size = cluster if isinstance(cluster, int) else cluster[0]
        assert out.tolist()[: 8 // size] == parts.reshape(-1, size).sum(axis=1).tolist()
    graph = gp.CudaGraph()
    with graph.capture():
        kernel(out, x, grid=8, block=64, cluster=4)
    out.fill(0)
    graph.replay()
    assert out.tolist()[:2] == parts.reshape(-1, 4).sum(axis=1).tolist()
    with pytest.raises(gp.KernelLaunchError, match=r"grid \[6, 1, 1\] is not made of whole clusters"):
        kernel(out, x, grid=6, block=64, cluster=4)
    with pytest.raises(gp.KernelLaunchError, match=r"a cluster of .* has 16 blocks; the most is 8"):
        kernel(out, x, grid=16, block=64, cluster=16)


def weight_of(results: list[T], i: int, w: T) -> T:
    """Some weights are what the predecessor writes, or the kernel before it, which may still run too."""
    return results[-2] if i % 4 == 3 else results[-1] if i % 4 == 1 else w


def chain(kernel: gp.Kernel, rounds: int, steps: int = 12) -> list[gp.GPUArray]:
    """Each step reads the result of the one before."""
    w = gp.full(N, 0.5, "float32")
    results = [gp.ones(N)]
    uses = {"out": "write", "w": "constant"}
    for i in range(steps):
        out = gp.empty(N)
        weight = weight_of(results, i, w)
        kernel(out, results[-1], weight, N, rounds, block=256, programmatic=True, uses=uses)
        results.append(out)
    return results[1:]


def wanted(steps: int = 12) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    half = np.full(N, 0.5, np.float32)
    values = [np.ones(N, np.float32)]
    for i in range(steps):
        values.append(values[-1] * 2 + weight_of(values, i, half))
    return values[1:]


def test_a_chain_of_kernels_that_start_early_has_the_bits_of_one_in_order(device: gp.Device) -> None:
    rounds = 20 if device.kind == "cuda" else 0
    kernel = gp.jit(EARLY)
    for _ in range(3 if device.kind == "cuda" else 1):
        for got, want in zip(chain(kernel, rounds), wanted(), strict=True):
            np.testing.assert_array_equal(got.to_numpy(), want)
    graph = gp.CudaGraph()
    with graph.capture():
        results = chain(kernel, rounds)
    for _ in range(3):
        graph.replay()
        for got, want in zip(results, wanted(), strict=True):
            np.testing.assert_array_equal(got.to_numpy(), want)


def test_early_kernels_behind_evicted_memory(device: gp.Device) -> None:
    pool = gp.memory.MemoryPool(quota=16 << 20, enable_eviction=True, name="early")
    n = 1 << 20
    kernel = gp.jit(EARLY)
    with pool:
        w, x, out = gp.full(n, 0.5, "float32"), gp.ones(n), gp.zeros(n)
        for _ in range(2):
            assert w.evict()
            kernel(out, x, w, n, 0, programmatic=True, uses={"w": "constant"})
            assert (out.to_numpy() == 2.5).all()


def test_uses_are_checked() -> None:
    kernel = gp.jit(EARLY)
    x = gp.ones(N)
    frozen = gp.ones(N)
    frozen.setflags(write=False)
    for uses, text in (
        ({"y": "read"}, r"uses names 'y', but the parameters are \(float\* out"),
        ({"n": "read"}, "uses names 'n', which is int and no pointer"),
        ({"w": "write"}, "uses says that 'w' is written, but it is declared const float"),
        ({"w": "weights"}, "uses of 'w' must be 'read', 'write', 'readwrite' or 'constant', not weights"),
        (["w"], r"uses must be a dict such as \{\"w\": \"constant\"\}"),
    ):
        with pytest.raises(gp.KernelLaunchError, match=text):
            kernel(gp.empty(N), x, x, N, 0, uses=uses)
    with pytest.raises(gp.KernelLaunchError, match="programmatic must be True or False"):
        kernel(gp.empty(N), x, x, N, 0, programmatic="yes")
    with pytest.raises(gp.KernelLaunchError, match="cluster must be a number of blocks"):
        kernel(gp.empty(N), x, x, N, 0, cluster=0)
    # A pointer that is not const, of a kernel that only reads it: the caller says so, and read-only arrays are taken.
    reader = gp.jit('extern "C" __global__ void reader(float* out, float* x) { out[0] = x[0]; }')
    out = gp.zeros(1)
    with pytest.raises(gp.KernelLaunchError, match=r"'x' .* may be written, but the array of shape .* is read-only"):
        reader(out, frozen, grid=1, block=1)
    for access in ("read", "constant"):
        reader(out, frozen, grid=1, block=1, uses={"x": access})
        assert out.item() == 1
