"""The bits of a row: the same beside any other rows, in any order, in a graph, on any number of SMs, in every run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from batches import MOST, all_digests, arguments, batched, on_device, results, row_digests, taken

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.registry import Case, Operator, load

BATCHED = [pytest.param(op, case, id=name) for op, case, name in batched()]


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with gp.device(request.param):
        yield request.param


def test_families_are_found() -> None:
    assert {"matmul", "softmax", "rmsnorm", "sdpa", "sample_rows"} <= {op.name for op, _, _ in batched()}


def test_declarations_name_arrays() -> None:
    for op in load().values():
        for case in op.cases:
            for name, axis in case.rows.items():
                assert 0 <= axis < len(case.arrays[name][1]), (op.name, name)


@pytest.mark.parametrize(("op", "case"), BATCHED)
def test_a_row_has_its_bits_in_every_batch(op: Operator, case: Case, device: str) -> None:
    most = 1024 if device == "cuda" else MOST
    arrays = arguments(case, most)
    want = row_digests(case, results(op, on_device(arrays), case))
    rng = np.random.default_rng(3)
    for count in (1, 2, 3, 17, 33, *((128, 257, 1024) if device == "cuda" else ())):
        rows = rng.permutation(most)[:count].tolist()
        got = row_digests(case, results(op, on_device(taken(case, arrays, rows)), case))
        assert got == [want[row] for row in rows], f"{count} rows"


@pytest.mark.parametrize(("op", "case"), BATCHED)
def test_a_graph_has_the_bits_of_calls(op: Operator, case: Case, device: str) -> None:
    arrays = on_device(arguments(case, 3))
    want = list(map(gp.fingerprint, results(op, arrays, case)))
    graph = gp.CudaGraph()
    with graph.capture():
        values = results(op, arrays, case)
    for _ in range(2):
        graph.replay()
        graph.synchronize()
        assert list(map(gp.fingerprint, values)) == want


@pytest.mark.nvrtc
def test_sms_change_no_bit() -> None:
    digests = []
    for sms in (1, 3, 132):
        with gp.device(native.open_cpu(1 << 28, emulated=True, sm_count=sms)):
            digests.append(all_digests(5))
    assert digests[0] == digests[1] == digests[2]


@pytest.mark.cuda
@pytest.mark.parametrize(("op", "case"), BATCHED)
def test_a_hundred_runs(op: Operator, case: Case) -> None:
    with gp.device("cuda"):
        arrays, noise = on_device(arguments(case, 257)), gp.ones(1 << 24)
        want = list(map(gp.fingerprint, results(op, arrays, case)))
        other = gp.Stream()
        for _ in range(100):
            # Another stream takes SMs and bandwidth meanwhile.
            gp.tanh(noise, out=noise, stream=other)
            assert list(map(gp.fingerprint, results(op, arrays, case))) == want


@pytest.mark.cuda
@pytest.mark.parametrize("bandwidth", [0.12, 0.5])
def test_lanes_change_no_bit(bandwidth: float) -> None:
    from pygpukit.scheduler import Scheduler

    with gp.device("cuda"):
        want = all_digests(257)
        with Scheduler() as scheduler:
            task = scheduler.submit(lambda: all_digests(257), policy="guaranteed", bandwidth=bandwidth)
            assert task.result(120) == want
