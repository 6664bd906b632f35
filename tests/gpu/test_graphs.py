"""Graphs: replay gives the bits of eager work, whatever was captured, on any stream, with any parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import op_cases
import pytest
from gpu_kernels import SCALE, SPIN

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.units import ALL_TYPES

N = 10_007


def random(n: int = N, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def bits(arrays: list[gp.GPUArray]) -> list[bytes]:
    return [x.to_numpy().tobytes() for x in arrays]


def check(step: Callable[[], list[gp.GPUArray]], inputs: list[gp.GPUArray]) -> gp.CudaGraph:
    """Capture `step` and compare its replays with eager runs, before and after the inputs have changed."""
    eager = bits(step())
    graph = gp.CudaGraph()
    with graph.capture():
        results = step()
    assert graph.is_ready
    for _ in range(3):
        graph.replay()
        assert bits(results) == eager
    for x in inputs:
        x[:] = x[::-1].copy()
    graph.replay()
    assert bits(results) == bits(step())
    return graph


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_chain_of_every_unary_operator(name: str, device: gp.Device) -> None:
    if device.kind == "emulated" and name != "float32":
        pytest.skip("a graph holds kernels of any type, which would have to be compiled")
    kind = gp.to_numpy_dtype(name)
    x = gp.from_numpy(random().astype(kind))
    rows = [row for row in op_cases.rows_of(name) if row.arity == 1]

    def step() -> list[gp.GPUArray]:
        results, v = [], x
        for row in rows:
            result = native.apply(row.name, [v])
            results.append(result)
            if result.dtype is v.dtype:
                # The next operator depends on this one, and gets numbers most are defined for.
                v = gp.clamp(gp.where(gp.isfinite(result), result, x), 0.125, 0.875)
        return [*results, v]

    graph = check(step, [x])
    assert graph.num_nodes > 2 * len(rows)


def test_sums_products_fills_and_copies(device: gp.Device) -> None:
    host = random(200 * 150).reshape(200, 150)
    x = gp.from_numpy(host)
    constant = random(150, 1)

    def step() -> list[gp.GPUArray]:
        bias = gp.from_numpy(constant)
        room = gp.zeros((150, 150))
        gp.matmul(x.T, x, out=room)
        room += bias
        room[::3] = 1.5
        halves = gp.full(150, 0.5, "float64")
        return [room, gp.sum(room, axis=0), gp.sum(room), room.T.copy(), room.astype("float16"), halves, room.copy()]

    check(step, [x])


def test_branches_on_several_streams(device: gp.Device) -> None:
    x = gp.from_numpy(random())
    streams = [gp.Stream() for _ in range(3)]

    def step() -> list[gp.GPUArray]:
        here = gp.current_stream()
        start = x * 2.0
        ends = []
        for i, stream in enumerate(streams):
            stream.wait(here)
            with stream:
                # Temporaries of a branch must not be given to another one, which may run at the same time.
                y = start
                for _ in range(6):
                    y = gp.sin(y * (1.0 + i)) + start
                ends.append(y)
        for stream in streams:
            here.wait(stream)
        for _ in range(3):
            start = start + x
        return [gp.add(gp.add(ends[0], ends[1]), gp.add(ends[2], start))]

    gp.synchronize()
    graph = check(step, [])
    assert graph.num_nodes == 1 + 3 * 18 + 3 + 3


def test_events_make_the_edges(device: gp.Device) -> None:
    x = gp.from_numpy(random())
    side = gp.Stream()
    gp.synchronize()
    want = ((x + 1.0) * 3.0 + (x + 1.0)).to_numpy()
    graph = gp.CudaGraph()
    forked, joined = gp.Event(timing=False), gp.Event(timing=False)
    with graph.capture():
        a = x + 1.0
        forked.record()
        side.wait(forked)
        with side:
            b = a * 3.0
            joined.record()
        gp.current_stream().wait(joined)
        c = b + a
    for _ in range(10):
        graph.replay()
    np.testing.assert_array_equal(c.to_numpy(), want)


@pytest.mark.parametrize("name", [name for name in ALL_TYPES if name != "bool"])
def test_parameters_of_every_type(name: str, device: gp.Device) -> None:
    graph = gp.CudaGraph()
    value = graph.parameter("value", gp.dtype(name), 1)
    x = gp.ones(5, name)
    with graph.capture():
        y = x + value
    graph.replay()
    assert y.to_numpy().astype(np.complex128).tolist() == [2] * 5
    graph.replay(value=3)
    assert y.to_numpy().astype(np.complex128).tolist() == [4] * 5
    graph.replay()
    assert y.to_numpy().astype(np.complex128).tolist() == [4] * 5


def test_more_parameters_than_a_block_holds(device: gp.Device) -> None:
    graph = gp.CudaGraph()
    parameters = [graph.parameter(f"p{i}", gp.float32, float(i)) for i in range(300)]
    total = gp.zeros(1)
    with graph.capture():
        total.fill(0)
        for p in parameters:
            gp.add(total, p, out=total)
    graph.replay()
    assert total.item() == sum(range(300))
    graph.replay(p0=1000.0, p299=0.0)
    assert total.item() == sum(range(299)) + 1000
    with pytest.raises(gp.GraphError, match="p300"):
        graph.replay(p300=1.0)


def test_replays_in_order_on_any_stream(device: gp.Device) -> None:
    x = gp.zeros(N)
    graph = gp.CudaGraph()
    with graph.capture():
        gp.add(x, 1, out=x)
    streams = [gp.Stream() for _ in range(3)]
    gp.synchronize()
    for i in range(30):
        stream = streams[i % 3]
        stream.wait(streams[(i - 1) % 3])
        graph.replay(stream)
    assert (x.to_numpy(stream=streams[29 % 3]) == 30).all()


def test_reset_and_capture_again(device: gp.Device) -> None:
    x = gp.from_numpy(random())
    graph = gp.CudaGraph()
    for factor in (2.0, 3.0):
        with graph.capture():
            y = x * factor
        graph.replay()
        np.testing.assert_array_equal(y.to_numpy(), x.to_numpy() * np.float32(factor))
        graph.reset()
        assert not graph.is_ready


def test_a_graph_keeps_what_it_uses(device: gp.Device) -> None:
    host = random()
    x = gp.from_numpy(host)
    graph = gp.CudaGraph()
    with graph.capture():
        y = (x + 1.0) * 2.0
    del x
    others = [gp.full(N, -5.0, "float32") for _ in range(8)]
    graph.replay()
    np.testing.assert_array_equal(y.to_numpy(), (host + 1) * 2)
    assert all((other.to_numpy() == -5).all() for other in others)


def test_eager_work_of_other_threads_stays_out_of_a_capture(device: gp.Device) -> None:
    x = gp.from_numpy(random())
    gp.add(x, x)
    gp.synchronize()
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with gp.device(device), gp.Stream():
                while not stop.is_set():
                    assert (gp.add(x, x).to_numpy() == 2 * x.to_numpy()).all()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            graph = gp.CudaGraph()
            with graph.capture():
                y = x
                for _ in range(20):
                    y = y + x
            assert graph.num_nodes == 20
            graph.replay()
            graph.synchronize()
    finally:
        stop.set()
        thread.join()
    assert not failures


@pytest.mark.cuda
def test_own_kernels_and_shared_memory(cuda: gp.Device) -> None:
    scale = gp.jit(SCALE)
    reverse = gp.jit(
        """extern "C" __global__ void reverse(float* out, const float* x, int n) {
            extern __shared__ float kept[];
            for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = kept[n - 1 - i];
        }"""
    )
    n = 20_000
    x = gp.from_numpy(random(n))

    def step() -> list[gp.GPUArray]:
        y = gp.empty(n)
        reverse(y, x, n, grid=1, block=1024, shared=4 * n)
        scale(y, 3.0, n)
        return [y + x]

    check(step, [x])


@pytest.mark.cuda
def test_dropping_a_graph_while_it_runs(cuda: gp.Device) -> None:
    spin = gp.jit(SPIN)
    host = random(1_000_003)
    x = gp.from_numpy(host)
    for _ in range(5):
        graph = gp.CudaGraph()
        with graph.capture():
            spin(5_000_000, grid=1, block=1)
            y = gp.sin(x * 2.0) + x
        graph.replay()
        del graph
        # Memory of the same size, taken while the replay is still to come.
        others = [gp.full(host.size, -1.0, "float32") for _ in range(3)]
        got = y.to_numpy()
        np.testing.assert_array_equal(got, (gp.sin(x * 2.0) + x).to_numpy())
        del others


@pytest.mark.cuda
def test_a_replay_is_one_submission(cuda: gp.Device) -> None:
    x = gp.from_numpy(random())
    graph = gp.CudaGraph()
    with graph.capture():
        y = x
        for _ in range(100):
            y = y + x
    stream = gp.Stream()
    before = stream.sequence
    graph.replay(stream)
    assert stream.sequence == before + 1
    graph.synchronize()
    want = x.to_numpy()
    for _ in range(100):
        want = want + x.to_numpy()
    np.testing.assert_array_equal(y.to_numpy(), want)
