"""Workspace of kernels: counters that each launch finds zero, per stream and per graph, without a memset per launch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

pytestmark = pytest.mark.nvrtc

# The last block adds up what the others wrote, and returns the counter to zero.
SUM = """
extern "C" __global__ void total(double* out, double* parts, unsigned* counter, const double* x, int n) {
    double sum = 0.0;
    for (int i = blockIdx.x; i < n; i += gridDim.x) sum += x[i];
    parts[blockIdx.x] = sum;
    __threadfence();
    if (atomicAdd(counter, 1) == gridDim.x - 1) {
        __threadfence();
        double all = 0.0;
        for (int i = 0; i < gridDim.x; ++i) all += ((volatile double*)parts)[i];
        out[0] = all;
        *counter = 0;
    }
}
"""
DIRTY = 'extern "C" __global__ void dirty(unsigned* counter) { atomicAdd(counter + 3, 1); }'
BLOCKS = 16


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def room() -> tuple[gp.GPUArray, gp.GPUArray]:
    return gp.empty(1, "float64"), gp.empty(BLOCKS, "float64")


def sum_by_blocks(
    kernel: gp.Kernel, x: gp.GPUArray, into: tuple[gp.GPUArray, gp.GPUArray] | None = None
) -> gp.GPUArray:
    out, parts = into or room()
    kernel(out, parts, native._counters(4), x, x.size, grid=BLOCKS, block=1)
    return out


def test_launches_find_their_counters_zero() -> None:
    kernel = gp.jit(SUM)
    x = gp.from_numpy(np.arange(1000.0))
    stream = gp.Stream()
    # A launch that has to wait for another stream's array has a number more.
    gp.synchronize()
    with stream:
        sum_by_blocks(kernel, x)
        # Memory of another stream may have to be waited for, which has a number too.
        rooms = [room() for _ in range(20)]
        before = stream.sequence
        results = [sum_by_blocks(kernel, x, one) for one in rooms]
        # No fills between the kernels.
        assert stream.sequence == before + 20
        assert [result.item() for result in results] == [499500] * 20


def test_streams_and_sizes_have_counters_of_their_own() -> None:
    streams = [gp.Stream() for _ in range(3)]
    found: dict[int, set[int]] = {}
    for stream in streams:
        with stream:
            for nbytes in (4, 256, 257, 1000, 5000):
                counters = native._counters(nbytes)
                assert counters.nbytes >= nbytes
                assert counters.ptr == native._counters(nbytes).ptr
                assert not counters.to_numpy().any()
                found.setdefault(counters.nbytes, set()).add(counters.ptr)
    assert sorted(found) == [256, 512, 1024, 8192]
    assert all(len(addresses) == 3 for addresses in found.values())


def test_graphs_have_counters_of_their_own_that_are_zeroed_once() -> None:
    kernel = gp.jit(SUM)
    x = gp.from_numpy(np.arange(1000.0))
    eager = native._counters(4).ptr
    graphs, results, addresses = [], [], {eager}
    for _ in range(2):
        graph = gp.CudaGraph()
        with graph.capture():
            addresses.add(native._counters(4).ptr)
            results.append(sum_by_blocks(kernel, x))
            results.append(sum_by_blocks(kernel, x))
        assert graph.num_nodes == 2
        graphs.append(graph)
    assert len(addresses) == 3
    streams = [gp.Stream() for _ in range(3)]
    gp.synchronize()
    for i in range(6):
        graphs[i % 2].replay(streams[i % 3])
    gp.synchronize()
    assert [result.item() for result in results] == [499500] * 4


def test_branches_of_a_graph_do_not_share_counters() -> None:
    here, side = gp.current_stream(), gp.Stream()
    with gp.CudaGraph().capture():
        first = native._counters(4)
        side.wait(here)
        with side:
            second = native._counters(4)
        here.wait(side)
        assert first.ptr != second.ptr


def test_counters_of_an_evicting_pool_come_back_zero() -> None:
    kernel = gp.jit(SUM)
    pool = gp.memory.MemoryPool(quota=32 << 20, enable_eviction=True, name="counted")
    with pool:
        x = gp.from_numpy(np.arange(1 << 18, dtype=np.float64))
        graph = gp.CudaGraph()
        with graph.capture():
            counters = native._counters(4)
            result = sum_by_blocks(kernel, x)
        want = (1 << 18) * ((1 << 18) - 1) / 2
        for _ in range(3):
            graph.replay()
            assert result.item() == want
            counters.evict()
            x.evict()
            assert sum_by_blocks(kernel, x).item() == want


def test_the_checker_finds_counters_that_are_left_nonzero(device: gp.Device) -> None:
    if device.kind == "cuda":
        pytest.skip("the GPU checks nothing")
    kernel = gp.jit(DIRTY, check=True)
    for place in ("eager", "graph"):
        with pytest.raises(gp.KernelFaultError, match=r"leaves its counters \('counter'\) nonzero: word 3 is 2"):
            run(place, lambda: kernel(native._counters(64), grid=2, block=1))
        # The next one starts with zero all the same.
        assert not native._counters(64).to_numpy().any()
    clean = gp.jit(SUM, check=True)
    assert sum_by_blocks(clean, gp.ones(100, "float64")).item() == 100


def run(place: str, launch: Callable[[], None]) -> None:
    graph = gp.CudaGraph()
    if place == "eager":
        launch()
    else:
        with graph.capture():
            launch()
        graph.replay()
    gp.synchronize()
