"""First contact on a CUDA device: arrays, operators, kernels, graphs and pools against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.cuda

SCALE = """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= factor; }"""


def test_first_contact() -> None:
    x = gp.zeros((1024, 1024), dtype="float32")
    y = gp.ones((1024, 1024), dtype="float32")
    z = gp.add(x, y)
    w = gp.matmul(y, y)
    np.testing.assert_array_equal(z.to_numpy(), np.ones((1024, 1024), "f"))
    np.testing.assert_array_equal(w.to_numpy(), np.full((1024, 1024), 1024, "f"))
    kernel = gp.jit(SCALE, func="scale")
    kernel(y, factor=0.5, n=y.size)
    with gp.Stream() as s:
        s.wait(gp.default_stream())
        kernel(y, 0.5, y.size, grid=(4096,), block=(256,), shared=0, stream=s)
        np.testing.assert_array_equal(y.to_numpy(), np.full((1024, 1024), 0.25, "f"))
    assert kernel.registers > 0
    assert 0 < kernel.occupancy(256) <= 1


@pytest.mark.parametrize("n", [1, 3, 255, 256, 257, 4095, 4096, 4097, 100_003])
def test_dense_sizes(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal(n, "f"), rng.standard_normal(n, "f")
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    np.testing.assert_array_equal(gp.add(x, y).to_numpy(), a + b)
    np.testing.assert_array_equal((x[1:] * y[:-1]).to_numpy(), a[1:] * b[:-1])
    np.testing.assert_array_equal((x * 2.5).to_numpy(), a * np.float32(2.5))


def test_strided_and_broadcast() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((7, 5, 33)).astype("f")
    x = gp.from_numpy(a)
    np.testing.assert_array_equal((x.T + x.T).to_numpy(), a.T + a.T)
    np.testing.assert_array_equal((x[::2, ::-1] + x[0, 0]).to_numpy(), a[::2, ::-1] + a[0, 0])
    np.testing.assert_array_equal((x[:, :1] - x).to_numpy(), a[:, :1] - a)


def test_graph_replay_is_bit_equal_to_eager() -> None:
    rng = np.random.default_rng(1)
    x = gp.from_numpy(rng.standard_normal(10_007).astype("f"))

    def step(v: gp.GPUArray) -> gp.GPUArray:
        for _ in range(5):
            v = gp.tanh(v * 1.5) + gp.exp(-v)
        return v

    eager = step(x).to_numpy()
    graph = gp.CudaGraph()
    with graph.capture():
        y = step(x)
    assert graph.num_nodes == 20 + 5
    for _ in range(3):
        graph.replay()
    np.testing.assert_array_equal(y.to_numpy(), eager)
    x[:] = 0.5
    graph.replay()
    np.testing.assert_array_equal(y.to_numpy(), step(x).to_numpy())


def test_graph_parameters_change_between_replays() -> None:
    graph = gp.CudaGraph()
    bias = graph.parameter("bias", gp.float32, 1.0)
    x = gp.zeros(100)
    with graph.capture():
        y = x + bias
    graph.replay()
    assert y.to_numpy().max() == 1
    graph.replay(bias=3.5)
    np.testing.assert_array_equal(y.to_numpy(), np.full(100, 3.5, "f"))


def test_sum_and_matmul() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((65, 130)).astype("f"), rng.standard_normal((130, 67)).astype("f")
    np.testing.assert_allclose(gp.matmul(gp.from_numpy(a), gp.from_numpy(b)).to_numpy(), a @ b, rtol=1e-4, atol=1e-4)
    big = rng.standard_normal(1_000_003).astype("f")
    np.testing.assert_allclose(gp.sum(gp.from_numpy(big)).item(), big.sum(dtype="d"), rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(gp.sum(gp.from_numpy(a), axis=0).to_numpy(), a.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.pool
def test_pool_reuses_without_the_driver() -> None:
    pool = gp.memory.MemoryPool("64MiB", name="test")
    with pool:
        for _ in range(100):
            gp.empty(1000)
    stats = pool.stats()
    assert stats["misses"] == 1
    assert stats["used"] == 0
    with pool, pytest.raises(gp.OutOfMemoryError, match="quota"):
        gp.empty(1 << 26)
