"""What variants of registered operators ask for: cooperative launches, clusters, early starts, constants, workspace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops import registry
from pygpukit.ops.launch import KernelLaunch, Launch, Number, Unit, Workspace, constant, i64, read, update, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import ceil_div

# Every block writes the sum of its part to workspace, waits for all blocks, and adds all sums and a weight to its part.
# `arrived` is zero at the start and at the end. The weight is read before the predecessor has ended.
SOURCE = """#include "pygpukit/elementwise.cuh"
extern "C" __global__ void shift_by_total(int* out, const int* x, const int* weight, int* sums, unsigned* arrived,
                                          int factor, long long n) {
    const int own = *weight;
    pgk::await_predecessor();
    __shared__ int part;
    if (threadIdx.x == 0) part = 0;
    __syncthreads();
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&part, i < n ? x[i] : 0);
    __syncthreads();
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = part;
        __threadfence();
        // The last block to leave makes the counter zero: arrivals count 1, departures 1024.
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) % 1024u < gridDim.x) {}
        __threadfence();
        int total = 0;
        for (int b = 0; b < gridDim.x; ++b) total += ((volatile int*)sums)[b];
        part = total;
        if (atomicAdd(arrived, 1024u) / 1024u == gridDim.x - 1) atomicExch(arrived, 0u);
    }
    __syncthreads();
    if (i < n) out[i] = x[i] + factor * (part + own);
}
"""
THREADS = 64
UNIT = Unit("shift_by_total", SOURCE, ("shift_by_total",))


def launch(p: Problem) -> Launch:
    work, blocks = Workspace(), ceil_div(p["x"].size, THREADS)
    sums, arrived = work.buffer(gp.int32, blocks), work.counters(gp.uint32, 1)
    arguments = (
        write(p.out), read(p["x"]), constant(p["weight"]), write(sums), write(arrived), Number("factor", gp.int32),
        i64(p["x"].size),
    )  # fmt: skip
    step = KernelLaunch(
        UNIT, UNIT.entries[0], (blocks,), (THREADS,), arguments, cooperative=True, programmatic=not p.options["ordered"]
    )
    return Launch((step,), tuple(work.pieces))


@pytest.fixture
def shift() -> Iterator[Any]:
    parameters = (
        Parameter("x"),
        Parameter("weight"),
        Parameter("factor", "number", 1),
        Parameter("ordered", "choice", False),
    )
    yield register(
        Operator(
            "shift_by_total", parameters, lambda p: [Result(p["x"].shape, gp.int32)], lambda x, *_: x,
            (Variant("blocks that meet", "run_to_run", lambda p: None, launch=launch),), "For the tests.", public=False,
        )
    )  # fmt: skip
    registry.OPERATORS.pop("shift_by_total")


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]
)
def kernels(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    with gp.device(request.param) as current:
        yield current


def test_a_variant_gets_what_it_asks_for_eager_in_graphs_and_under_eviction(kernels: gp.Device, shift: Any) -> None:
    with gp.memory.MemoryPool(enable_eviction=True):
        for n in (1, 63, 65, 500):
            host = np.arange(n, dtype=np.int32)
            x, weight = gp.from_numpy(host), gp.full((), 5, "int32")
            wanted = host + 3 * (host.sum(dtype=np.int32) + 5)
            for ordered in (False, True):
                np.testing.assert_array_equal(shift(x, weight, 3, ordered=ordered).to_numpy(), wanted)
            graph, out = gp.CudaGraph(), gp.empty_like(x)
            with graph.capture():
                shift(x, weight, 1, out=out)
                shift(out, weight, 2, out=out)
            once = host + (host.sum(dtype=np.int32) + 5)
            for _ in range(3):
                graph.replay()
                np.testing.assert_array_equal(out.to_numpy(), once + 2 * (once.sum(dtype=np.int32) + 5))
        large = gp.zeros(1 << 20, "int32")
        weight = gp.zeros(1 << 20, "int32")
        assert large.evict()
        assert weight.evict()
        np.testing.assert_array_equal(shift(large[:300], weight[:1]).to_numpy(), np.zeros(300))


def test_a_cooperative_grid_that_does_not_fit_is_refused(kernels: gp.Device, shift: Any) -> None:
    n = 64 * 32 * 1024
    with pytest.raises(gp.KernelLaunchError, match="cooperative"):
        shift(gp.zeros(n, "int32"), gp.zeros((), "int32"))


# Every block counts itself in one counter and twice in another; the last one writes both and makes them zero.
TWO = """#include "pygpukit/elementwise.cuh"
extern "C" __global__ void count_twice(int* out, unsigned* once, unsigned* twice, unsigned* other) {
    pgk::await_predecessor();
    atomicAdd(twice, 2u);
    __threadfence();
    if (atomicAdd(once, 1u) != gridDim.x - 1) return;
    out[0] = atomicExch(once, 0u);
    out[1] = atomicExch(twice, 0u);
    out[2] = other[0];
}
"""


def test_pieces_of_counters_of_one_call_are_buffers_of_their_own(kernels: gp.Device) -> None:
    unit = Unit("count_twice", TWO, ("count_twice",))

    def count(p: Problem) -> Launch:
        work = Workspace()
        # Two of one size, and one of another.
        pieces = [work.counters(gp.uint32, n) for n in (1, 1, 4096)]
        arguments = (write(p.out), *map(update, pieces))
        return Launch((KernelLaunch(unit, "count_twice", (p["x"].size,), (1,), arguments),), tuple(work.pieces))

    function = register(
        Operator(
            "count_twice", (Parameter("x"),), lambda p: [Result((3,), gp.int32)], lambda x: np.zeros(3, np.int32),
            (Variant("two counters", "batch_invariant", lambda p: None, launch=count),), "For the tests.", public=False,
        )
    )  # fmt: skip
    try:
        out, graph = gp.empty(3, "int32"), gp.CudaGraph()
        for n in (3, 5):
            assert function(gp.zeros(n)).tolist() == [n, 2 * n, 0]
        x = gp.zeros(7)
        with graph.capture():
            function(x, out=out)
        for _ in range(2):
            graph.replay()
            assert out.tolist() == [7, 14, 0]
            out.fill(0)
    finally:
        registry.OPERATORS.pop("count_twice")
