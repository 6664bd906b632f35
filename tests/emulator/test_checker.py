"""The checker finds planted bugs and says what they are; correct kernels give no report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).parent))

from clean import CLEAN, Clean
from planted import PLANTED, Planted

pytestmark = pytest.mark.nvrtc

Check = bool | Literal["fuzz"]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def report(bug: Planted, check: Check = True, seed: int | None = None) -> str:
    """What the checker says about a planted bug; empty when it finds nothing."""
    x = gp.from_numpy(np.arange(256, dtype=np.float32))
    out = gp.zeros(64, dtype=gp.float32)
    head = 'extern "C" __global__ void k(float* x, float* out, int n)'
    kernel = gp.jit(f"{bug.before}\n{head} {{\n{bug.body}\n}}", check=check, seed=seed)
    try:
        kernel(x, out, 256, grid=bug.grid, block=bug.block, shared=bug.shared)
        gp.synchronize()
    except gp.KernelFaultError as error:
        return str(error)
    return ""


def run_clean(kernel: Clean, check: Check, seed: int | None = None) -> None:
    values = np.random.default_rng(5).integers(0, 9, 4096).astype(np.float32)
    x, out = gp.from_numpy(values), gp.zeros(4096, dtype=gp.float32)
    compiled = gp.jit(kernel.source, check=check, seed=seed)
    compiled(x, out, 4096, grid=kernel.grid, block=kernel.block, shared=kernel.shared)
    want = kernel.want(values)
    np.testing.assert_array_equal(out.to_numpy()[: want.size], want)


@pytest.mark.parametrize("bug", PLANTED, ids=[bug.name for bug in PLANTED])
def test_planted_bugs_are_found_and_explained(bug: Planted) -> None:
    text = report(bug)
    for word in bug.words:
        assert word in text


@pytest.mark.parametrize("kernel", CLEAN, ids=[kernel.name for kernel in CLEAN])
def test_correct_kernels_give_no_report(kernel: Clean) -> None:
    run_clean(kernel, check=True)


@pytest.mark.parametrize("kernel", CLEAN, ids=[kernel.name for kernel in CLEAN])
@pytest.mark.parametrize("seed", [1, 2])
def test_correct_kernels_give_no_report_in_any_order(kernel: Clean, seed: int) -> None:
    run_clean(kernel, check="fuzz", seed=seed)


@pytest.mark.parametrize("bug", PLANTED, ids=[bug.name for bug in PLANTED])
def test_planted_bugs_are_found_in_random_orders(bug: Planted) -> None:
    texts = [report(bug, "fuzz", seed) for seed in range(8)]
    assert any(all(word in text for word in bug.words) for text in texts)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_flag_before_volatile_data_is_found_where_the_sum_alone_is_late(seed: int | None) -> None:
    source = """
    __device__ volatile float sums[16]; __device__ volatile int state[16];
    extern "C" __global__ void k(float* out, const float* x) {
        int b = blockIdx.x;
        if (threadIdx.x != 0) return;
        ORDER
        float sum = x[b];
        for (int j = b - 1; j >= 0; --j) {
            while (state[j] == 0) { }
            __threadfence();
            sum += sums[j];
        }
        out[b] = sum;
    }"""
    right = "sums[b] = x[b]; __threadfence(); state[b] = 1;"
    wrong = "state[b] = 1; __threadfence(); sums[b] = x[b];"
    check: Check = True if seed is None else "fuzz"
    x, out = gp.ones(16), gp.zeros(16)
    gp.jit(source.replace("ORDER", right), check=check, seed=seed)(out, x, grid=16, block=32)
    assert out.tolist() == list(range(1, 17))
    kernel = gp.jit(source.replace("ORDER", wrong), check=check, seed=seed)

    def run_wrong() -> None:
        kernel(out, x, grid=16, block=32)
        gp.synchronize()

    with pytest.raises(gp.KernelFaultError, match=r"missing order in global memory: read of sums\["):
        run_wrong()


@pytest.mark.parametrize(("block", "distance"), [(32, 1), (64, 1), (64, 32)])
def test_the_advice_on_a_race_depends_on_the_threads(block: int, distance: int) -> None:
    body = f"""
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x >= {distance}) out[threadIdx.x] = s[threadIdx.x - {distance}];
    """
    advice = report(Planted("neighbour", body, (), block=block)).splitlines()[-1]
    if block == 32:
        assert "put __syncwarp() between" in advice
        assert "__syncthreads" not in advice
    else:
        assert "put __syncthreads() between" in advice
        assert ("or __syncwarp() if" in advice) == (distance == 1)


def test_a_seed_gives_the_same_report_again() -> None:
    bug = next(bug for bug in PLANTED if bug.name == "sum without atomics")
    texts = {report(bug, "fuzz", 11) for _ in range(3)}
    assert len(texts) == 1
    assert "data race" in texts.pop()


def test_arrays_of_empty_have_no_value_before_they_are_written() -> None:
    source = 'extern "C" __global__ void k(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
    kernel = gp.jit(source, check=True)
    x, y = gp.empty(64, dtype=gp.float32), gp.empty(64, dtype=gp.float32)
    with pytest.raises(gp.KernelFaultError, match=r"uninitialised global memory: read of x\[0\]"):
        kernel(x, y, grid=1, block=64)
    x.fill(3)
    kernel(x, y, grid=1, block=64)
    # What a checked kernel wrote has a value, and so has what an operator or an unchecked kernel wrote.
    kernel(y, x, grid=1, block=64)
    z = x + y
    kernel(z, y, grid=1, block=64)
    w = gp.empty(64, dtype=gp.float32)
    gp.jit(source)(x, w, grid=1, block=64)
    kernel(w, y, grid=1, block=64)
    assert y.tolist() == [3.0] * 64


def test_a_part_of_an_array_is_named_by_its_own_index() -> None:
    x = gp.zeros((8, 32), dtype=gp.float32)
    kernel = gp.jit('extern "C" __global__ void k(float* row, int n) { row[n] = 1; }', check=True)
    kernel(x[2], 40, grid=1, block=1)
    with pytest.raises(
        gp.KernelFaultError, match=r"write of row\[192\], which has 32 elements \(4 bytes past its end\)"
    ):
        kernel(x[2], 192, grid=1, block=1)


_BEHIND = """extern "C" __global__ void k(float* out, const float* x, const float* y, int n) {
    int i = n - 1 - threadIdx.x;
    const float* p = n > 0 ? x : y;
    out[i] = POINTER[i + 1] + y[i];
}"""


@pytest.mark.parametrize("n", [64, 1024, 262144, 524288])
@pytest.mark.parametrize("pointer", ["x", "p"])
def test_what_lies_behind_an_array_is_out_of_bounds(n: int, pointer: str) -> None:
    kernel = gp.jit(_BEHIND.replace("POINTER", pointer), check=True)
    x = gp.ones(n)
    # The second launch finds both arrays in memory that was used before.
    for _ in range(2):
        y, out = gp.ones(n), gp.zeros(n)
        with pytest.raises(gp.KernelFaultError, match=rf"out of bounds: read of x\[{n}\], which has {n} elements"):
            kernel(out, x, y, n, grid=1, block=64)
        del y, out


def test_arrays_made_before_the_first_check_have_bounds_too() -> None:
    program = f"""
import pygpukit as gp
with gp.device("cpu"):
    x, y, out = gp.ones(64), gp.ones(64), gp.zeros(64)
    try:
        gp.jit({_BEHIND.replace("POINTER", "x")!r}, check=True)(out, x, y, 64, grid=1, block=64)
    except gp.KernelFaultError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "out of bounds: read of x[64], which has 64 elements" in done.stdout


def test_pointers_in_memory_reach_other_arrays() -> None:
    x = gp.zeros(16, dtype=gp.float32)
    table = gp.from_numpy(np.array([x.ptr], dtype=np.int64))
    kernel = gp.jit('extern "C" __global__ void k(long long* t) { ((float*)t[0])[threadIdx.x] = 2; }', check=True)
    kernel(table, grid=1, block=16)
    assert x.tolist() == [2.0] * 16
    with pytest.raises(gp.KernelFaultError, match="out of bounds: write of"):
        kernel(table, grid=1, block=32)


def test_replays_of_a_graph_are_checked_in_its_own_memory() -> None:
    kernel = gp.jit('extern "C" __global__ void k(float* x, int n) { x[n] = threadIdx.x; }', check=True)
    x = gp.zeros(64, dtype=gp.float32)
    graph = gp.CudaGraph()
    with graph.capture():
        between = x + 1  # freed at the end of the capture, and still written by every replay
        kernel(between, 63, grid=1, block=1)
        result = between * 2
        del between
    for _ in range(2):
        graph.replay()
        assert result.tolist() == [2.0] * 63 + [0.0]
    wrong = gp.CudaGraph()
    with wrong.capture():
        kernel(gp.zeros(64, dtype=gp.float32), 64, grid=1, block=1)

    def run_wrong() -> None:
        wrong.replay()
        gp.synchronize()

    with pytest.raises(gp.KernelFaultError, match="out of bounds"):
        run_wrong()
