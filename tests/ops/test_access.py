"""What a plan says of its arguments: in-place and two-output kernels keep their data when memory is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.launch import KernelLaunch, Launch, Workspace, blocks_for, i64, read, update, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import OPERATORS, Operator, Parameter, Variant, register
from pygpukit.ops.source import Unit

MIB = 1 << 20
DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]

SPLIT = Unit(
    "pgk_test_split",
    """#include "pygpukit/elementwise.cuh"
extern "C" __global__ void pgk_test_split(float* high, float* low, const float* x, float* work, long long n) {
    pgk::await_predecessor();
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    work[i] = truncf(x[i]);
    high[i] = work[i];
    low[i] = x[i] - work[i];
}
""",
    ("pgk_test_split",),
)
SCALE = Unit(
    "pgk_test_scale",
    """#include "pygpukit/elementwise.cuh"
extern "C" __global__ void pgk_test_scale(float* x, float factor, long long n) {
    pgk::await_predecessor();
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) x[i] *= factor;
}
""",
    ("pgk_test_scale",),
)


def launch_split(p: Problem) -> Launch:
    n, work = p["x"].size, Workspace()
    space = work.buffer(p["x"].dtype, n)
    high, low = p.outputs
    arguments = (write(high), write(low), read(p["x"]), update(space), i64(n))
    step = KernelLaunch(SPLIT, "pgk_test_split", (blocks_for(n, 256, "split"),), (256,), arguments)
    return Launch((step,), tuple(work.pieces))


def launch_scale(p: Problem) -> Launch:
    from pygpukit.ops.launch import Number

    n = p["x"].size
    arguments = (update(p["x"]), Number("factor", gp.float32), i64(n))
    return Launch((KernelLaunch(SCALE, "pgk_test_scale", (blocks_for(n, 256, "scale"),), (256,), arguments),))


def accept(p: Problem) -> str | None:
    return None if p["x"].is_contiguous() else "not contiguous"


def made(name: str, parameters: Sequence[Parameter], results: int, launch: Any) -> Any:
    def infer(p: Problem) -> list[Result]:
        return [Result(p["x"].shape, p["x"].dtype)] * results

    variant = Variant("only", "batch_invariant", accept, launch=launch)
    return register(Operator(name, tuple(parameters), infer, lambda *a: None, (variant,), "For tests.", public=False))


@pytest.fixture(scope="module")
def split() -> Iterator[Any]:
    yield made("test_split", [Parameter("x")], 2, launch_split)
    del OPERATORS["test_split"]


@pytest.fixture(scope="module")
def scale_inplace() -> Iterator[Any]:
    yield made("test_scale", [Parameter("x"), Parameter("factor", "number")], 0, launch_scale)
    del OPERATORS["test_scale"]


@pytest.fixture(params=DEVICES)
def pool(request: pytest.FixtureRequest) -> Iterator[gp.memory.MemoryPool]:
    with gp.device(request.param):
        yield gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="small")


def clean(pool: gp.memory.MemoryPool, n: int = MIB // 2) -> tuple[gp.GPUArray, Any]:
    """An array whose copy on the host is good: evicted as it is, it would come back as it was."""
    host = np.random.default_rng(3).uniform(-9, 9, n).astype(np.float32)
    with pool:
        x = gp.from_numpy(host)
    assert x.evict()
    x.prefetch()
    return x, host


def test_what_an_operator_writes_in_place_survives_an_eviction(pool: gp.memory.MemoryPool, scale_inplace: Any) -> None:
    x, host = clean(pool)
    assert scale_inplace(x, 0.5) is None
    assert x.evict()
    np.testing.assert_array_equal(x.to_numpy(), host * np.float32(0.5))


def test_both_results_survive_an_eviction(pool: gp.memory.MemoryPool, split: Any) -> None:
    x, host = clean(pool)
    high, _ = clean(pool)
    low, _ = clean(pool)
    with pool:
        assert split(x, out=(high, low)) == (high, low)
    for array in (x, high, low):
        assert array.evict()
    np.testing.assert_array_equal(high.to_numpy(), np.trunc(host))
    np.testing.assert_array_equal(low.to_numpy(), host - np.trunc(host))
    np.testing.assert_array_equal(x.to_numpy(), host)


def test_a_read_only_array_is_not_written_in_place(scale_inplace: Any) -> None:
    with gp.device("emulated"):
        x = gp.ones(5)
        x.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            scale_inplace(x, 2.0)
        assert x.tolist() == [1.0] * 5


def test_a_number_is_given_at_each_call_and_refused_where_it_does_not_fit(scale_inplace: Any) -> None:
    with gp.device("emulated"):
        x = gp.ones(5)
        for factor in (2.0, 3, np.float32(0.5)):
            scale_inplace(x, factor)
        assert x.tolist() == [3.0] * 5
        with pytest.raises(ValueError, match="does not fit"):
            scale_inplace(x, 1e300)


def test_plans_run_in_graphs(split: Any, scale_inplace: Any) -> None:
    with gp.device("emulated"):
        x = gp.full(1000, 2.5, "float32")
        stream, graph = gp.Stream(), gp.CudaGraph()
        with graph.capture(stream):
            scale_inplace(x, 3.0)
            high, low = split(x)
        for power in (1, 2):
            graph.replay()
            graph.synchronize()
            want = np.full(1000, 2.5 * 3**power, np.float32)
            np.testing.assert_array_equal(high.to_numpy(), np.trunc(want))
            np.testing.assert_array_equal(low.to_numpy(), want - np.trunc(want))
