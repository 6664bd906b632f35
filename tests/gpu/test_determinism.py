"""The same bits: from run to run, on any stream, beside other work, in a graph, and whatever the batch around a row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import op_cases
import pytest
from gpu_kernels import SPIN

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cuda")]

N = 300_007


def workload(name: str) -> Callable[[], list[gp.GPUArray]]:
    """A function that sums, multiplies and maps the same arrays."""
    rng = np.random.default_rng(11)
    kind = gp.to_numpy_dtype(name)
    flat = gp.from_numpy(rng.standard_normal(N).astype(kind))
    square = gp.from_numpy((rng.standard_normal((200, 200)) / 8).astype(kind))

    def run() -> list[gp.GPUArray]:
        return [
            gp.sum(flat),
            gp.sum(square, axis=0),
            gp.sum(square, axis=1),
            gp.argmax(flat),
            gp.var(flat),
            gp.mean(square, axis=0),
            gp.cumsum(flat),
            gp.cumsum(square, axis=0),
            gp.matmul(square, square.T),
            gp.tanh(flat) * gp.exp(flat),
            gp.gelu(square.T),
        ]

    return run


def bits(arrays: list[gp.GPUArray]) -> list[bytes]:
    return [x.to_numpy().tobytes() for x in arrays]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_runs_and_streams(name: str) -> None:
    run = workload(name)
    want = bits(run())
    gp.synchronize()
    spin = gp.jit(SPIN)
    streams = [gp.Stream(priority) for priority in ("high", "normal", "low")]
    # The other streams leave the SMs in turn, so that blocks are placed differently each time.
    for busy, stream in zip([*streams[1:], streams[0]], streams, strict=True):
        spin(2_000_000, grid=97, block=64, stream=busy)
        with stream:
            assert bits(run()) == want
    gp.synchronize()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_graphs(name: str) -> None:
    run = workload(name)
    want = bits(run())
    graph = gp.CudaGraph()
    with graph.capture():
        results = run()
    for _ in range(3):
        graph.replay()
        assert bits(results) == want


@pytest.mark.parametrize("n", [1, 100, 4096, 4097, 20_011])
def test_a_row_sum_does_not_depend_on_the_other_rows(n: int) -> None:
    host = np.random.default_rng(n).standard_normal((37, n)).astype(np.float32)
    x = gp.from_numpy(host)
    want = gp.sum(x, axis=1).to_numpy()
    for i in (0, 17, 36):
        assert gp.sum(x[i]).to_numpy().tobytes() == want[i].tobytes()
    # By columns and with other strides the numbers are added in the same order.
    assert gp.sum(gp.from_numpy(np.ascontiguousarray(host.T)), axis=0).to_numpy().tobytes() == want.tobytes()
    wider = gp.from_numpy(np.repeat(host, 2, axis=1))[:, ::2]
    assert gp.sum(wider, axis=1).to_numpy().tobytes() == want.tobytes()
    # Two reduced axes that are not one in memory, and every number of neighbours a block may have.
    padded = gp.zeros((37, 2, n + 1))
    padded[:, 0, :n] = x
    padded[:, 1, :n] = x
    doubled = gp.from_numpy(np.concatenate([host, host], axis=1))
    assert gp.sum(padded[:, :, :n], axis=(1, 2)).to_numpy().tobytes() == gp.sum(doubled, axis=1).to_numpy().tobytes()
    variances = gp.var(x, axis=1).to_numpy()
    for width in (1, 12, 13, 37):
        some = gp.from_numpy(np.ascontiguousarray(host[:width].T))
        assert gp.sum(some, axis=0).to_numpy().tobytes() == want[:width].tobytes()
        assert gp.var(some, axis=0).to_numpy().tobytes() == variances[:width].tobytes()


@pytest.mark.parametrize("n", [1, 200, 4097, 40_011])
def test_a_scan_does_not_depend_on_the_other_rows(n: int) -> None:
    host = np.random.default_rng(n).standard_normal((33, n)).astype(np.float32)
    x = gp.from_numpy(host)
    want = gp.cumsum(x, axis=1).to_numpy()
    assert gp.cumsum(x[7]).to_numpy().tobytes() == want[7].tobytes()
    columns = gp.cumsum(gp.from_numpy(np.ascontiguousarray(host.T)), axis=0).to_numpy()
    assert np.ascontiguousarray(columns.T).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_row_product_does_not_depend_on_the_batch(name: str) -> None:
    rng = np.random.default_rng(3)
    kind = gp.to_numpy_dtype(name)
    a, b = (gp.from_numpy((rng.standard_normal(shape) / 8).astype(kind)) for shape in ((150, 333), (333, 91)))
    want = gp.matmul(a, b).to_numpy()
    for rows in (slice(0, 1), slice(3, 67), slice(140, 150)):
        assert gp.matmul(a[rows], b).to_numpy().tobytes() == want[rows].tobytes()
    assert gp.matmul(a, b.T.copy().T).to_numpy().tobytes() == want.tobytes()


def test_an_element_does_not_depend_on_its_neighbours() -> None:
    """The last elements of a block take another path than those of a full vector."""
    for row in op_cases.rows_of("float32"):
        arrays = [gp.from_numpy(a) for a in op_cases.arguments(row, "float32", 4096 + 37)]
        whole = native.apply(row.name, arrays).to_numpy()
        for start, stop in ((0, 1), (5, 12), (4090, 4096 + 37)):
            part = native.apply(row.name, [x[start:stop] for x in arrays]).to_numpy()
            assert part.tobytes() == whole[start:stop].tobytes(), row.name
