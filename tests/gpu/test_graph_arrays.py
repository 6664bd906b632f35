"""Array parameters of graphs: a replay on other arrays gives the bits of a graph captured with them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from gpu_kernels import SCALE

import pygpukit as gp

ROWS, COLUMNS = 48, 64


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def matrix(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).integers(-8, 8, (ROWS, COLUMNS)).astype(np.float32)


def copies(x: gp.GPUArray) -> gp.GPUArray:
    out = gp.empty(x.shape)
    out[:] = x
    return out


CASES: dict[str, Callable[[gp.GPUArray], gp.GPUArray]] = {
    "elementwise": lambda x: gp.mul(x, 2.0) + x,
    "a row and a column": lambda x: x[3] + x[:, :1],
    "strides": lambda x: x[::2, ::-1] - x.T[:ROWS:2, :1],
    "sum": lambda x: gp.sum(x, axis=0),
    "total": lambda x: gp.sum(x),
    "matmul": lambda x: gp.matmul(x, x.T),
    "copy": lambda x: x.copy(),
    "assignment": copies,
    "cast": lambda x: x.astype("float64"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replay_on_another_array_is_a_graph_captured_with_it(case: str) -> None:
    step = CASES[case]
    x = gp.from_numpy(matrix(0))
    graph = gp.CudaGraph()
    assert graph.parameter("x", x) is x
    with graph.capture():
        result = step(x)
    wants = [step(gp.from_numpy(matrix(seed))).to_numpy() for seed in range(3)]
    graph.replay()
    np.testing.assert_array_equal(result.to_numpy(), wants[0])
    others = [gp.from_numpy(matrix(seed)) for seed in range(3)]
    for seed in (1, 2, 1, 0):
        graph.replay(x=others[seed])
        np.testing.assert_array_equal(result.to_numpy(), wants[seed])
    # A parameter that is not named keeps its last value, also when nothing else holds it.
    graph.replay(x=gp.from_numpy(matrix(2)))
    gc.collect()
    filler = [gp.full((ROWS, COLUMNS), -1.0, "float32") for _ in range(4)]
    graph.replay()
    np.testing.assert_array_equal(result.to_numpy(), wants[2])
    np.testing.assert_array_equal(x.to_numpy(), matrix(0))
    assert all((f.to_numpy() == -1).all() for f in filler)


def test_an_array_that_is_written() -> None:
    x, y = gp.zeros(1000), gp.ones(1000)
    graph = gp.CudaGraph()
    graph.parameter("x", x)
    with graph.capture():
        gp.add(x, y, out=x)
        x[:10] = 7.0
    outs = [gp.full(1000, float(i), "float32") for i in range(3)]
    for out in outs:
        graph.replay(x=out)
    for i, out in enumerate(outs):
        assert out.tolist() == [7.0] * 10 + [i + 1.0] * 990
    assert not x.to_numpy().any()
    frozen = gp.zeros(1000)
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match="the graph writes this parameter, but the array is read-only"):
        graph.replay(x=frozen)
    # What was refused changes nothing.
    graph.replay()
    assert outs[2].tolist()[10:] == [4.0] * 990


def test_read_only_arrays_are_taken_where_they_are_read() -> None:
    x = gp.ones(64)
    graph = gp.CudaGraph()
    graph.parameter("x", x)
    with graph.capture():
        y = x * 3.0
    frozen = gp.full(64, 2.0, "float32")
    frozen.setflags(write=False)
    graph.replay(x=frozen)
    assert y.tolist() == [6.0] * 64


@pytest.mark.nvrtc
def test_own_kernels_and_several_parameters() -> None:
    scale = gp.jit(SCALE)
    add = gp.jit(
        """extern "C" __global__ void add(float* out, const float* x, const float* y, long long n) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < n) out[i] = x[i] + y[i];
        }"""
    )
    x, y, out = gp.ones(100), gp.ones(100), gp.zeros(100)
    graph = gp.CudaGraph()
    graph.parameter("x", x)
    graph.parameter("y", y)
    graph.parameter("out", out)
    factor = graph.parameter("factor", gp.float32, 1.0)
    with graph.capture():
        # y twice in one kernel, x and out by their parts.
        add(out, x, y, 100)
        add(out[50:], y[:50], y[50:], 50)
        scale(out, 2.0, 100)
        result = out * factor
    fives, sevens = gp.full(100, 5.0, "float32"), gp.full(100, 7.0, "float32")
    target = gp.zeros(100)
    graph.replay(x=fives)
    assert out.tolist() == [12.0] * 50 + [4.0] * 50
    graph.replay(y=sevens, out=target, factor=10.0)
    assert out.tolist() == [12.0] * 50 + [4.0] * 50
    assert target.tolist() == [24.0] * 50 + [28.0] * 50
    assert result.tolist() == [240.0] * 50 + [280.0] * 50


def test_replays_are_queued_on_other_arrays_and_numbers_without_a_wait(device: gp.Device) -> None:
    x = gp.zeros(256)
    graph, total = gp.CudaGraph(), gp.zeros(256, "float64")
    graph.parameter("x", x)
    scale = graph.parameter("scale", gp.float32)
    shift = graph.parameter("shift", gp.float64)
    with graph.capture():
        gp.add(total, x * scale + shift, out=total)
    inputs = [gp.full(256, float(i), "float32") for i in range(20)]
    streams = [gp.Stream() for _ in range(3)]
    gp.synchronize()
    for i, array in enumerate(inputs):
        # No stream waits for another: replays of one graph are in order.
        graph.replay(streams[i % 3], x=array, scale=float(i), shift=0.5)
    gp.synchronize()
    assert total.tolist() == [sum(i * i + 0.5 for i in range(20))] * 256


def test_arrays_of_an_evicting_pool() -> None:
    pool = gp.memory.MemoryPool(quota=14 << 20, enable_eviction=True, name="exchanged")
    n = 1 << 20
    with pool:
        x = gp.zeros(n)
        graph = gp.CudaGraph()
        graph.parameter("x", x)
        with graph.capture():
            gp.add(x, 1.0, out=x)
        # More arrays than there is room for.
        others = [gp.full(n, 10.0 * i, "float32") for i in range(4)]
        for _ in range(2):
            for other in others:
                graph.replay(x=other)
        for i, other in enumerate(others):
            assert (other.to_numpy() == 10 * i + 2).all()
        assert not x.to_numpy().any()


def test_a_graph_with_parameters_inside_another_one() -> None:
    x = gp.ones(8)
    inner = gp.CudaGraph()
    inner.parameter("x", x)
    scale = inner.parameter("scale", gp.float32, 2.0)
    with inner.capture():
        y = x * scale
    outer = gp.CudaGraph()
    fives = gp.full(8, 5.0, "float32")
    with outer.capture():
        inner.replay(x=fives, scale=3.0)
        z = y + 1.0
    inner.replay(x=gp.ones(8), scale=100.0)
    outer.replay()
    assert z.tolist() == [16.0] * 8


def test_arrays_that_do_not_fit() -> None:
    x = gp.zeros((4, 4))
    graph = gp.CudaGraph()
    graph.parameter("x", x)
    graph.parameter("n", gp.int32)
    with pytest.raises(gp.GraphError, match="parameter 'part' has memory in common with parameter 'x'"):
        graph.parameter("part", x[1])
    with pytest.raises(gp.GraphError, match="without elements"):
        graph.parameter("nothing", gp.zeros(0))
    with pytest.raises(gp.GraphError, match=r"must be a contiguous array; the one of shape \(4,\) is not"):
        graph.parameter("column", gp.zeros((4, 4))[:, 0])
    with pytest.raises(gp.GraphError, match="leave 'value' out"):
        graph.parameter("y", gp.zeros(3), 1.0)
    with pytest.raises(gp.GraphError, match=r"with a type such as gp\.float32, or with an array"):
        graph.parameter("y", "float32")  # type: ignore[arg-type]
    with graph.capture():
        y = x + 1.0
    for wrong, text in (
        (gp.zeros((4, 5)), r"captured with float32 of shape \(4, 4\).* not with float32 of shape \(4, 5\)"),
        (gp.zeros((4, 4), "int32"), r"not with int32 of shape \(4, 4\)"),
        (gp.zeros((4, 4)).T, "the array is not contiguous"),
        (gp.zeros(17)[1:].reshape(4, 4), r"not a multiple of 128, as that of the captured one is; pass x\.copy"),
        (3.0, "parameter 'x' is an array; its value must be a GPUArray, not <class 'float'>"),
    ):
        with pytest.raises(gp.GraphError, match=text):
            graph.replay(x=wrong)
    with pytest.raises(gp.GraphError, match="parameter 'n' is a number; its value must be a Python number"):
        graph.replay(n=gp.zeros(()))
    graph.replay()
    assert y.tolist() == [[1.0] * 4] * 4
