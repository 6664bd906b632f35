"""Controls: these tests can see a difference. Sums split by the shape differ in bits, and so do sums in no order."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp

# C = A B by `splits` partial sums over k, added in order: what a library does that has few tiles for many SMs.
SPLIT = """
__global__ void product(float* c, const float* a, const float* b, int n, int k, int splits) {
    int row = blockIdx.x, column = threadIdx.x;
    float sum = 0.0f;
    for (int s = 0; s < splits; ++s) {
        float part = 0.0f;
        for (int i = s * (k / splits); i < (s + 1) * (k / splits); ++i)
            part = fmaf(a[row * k + i], b[i * n + column], part);
        sum += part;
    }
    if (column < n) c[row * n + column] = sum;
}
"""

# A sum in the order in which blocks happen to run.
ATOMIC = """
__global__ void total(float* sum, const float* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(sum, x[i]);
}
"""


@pytest.mark.nvrtc
def test_splits_that_follow_the_batch_change_the_bits_of_a_row() -> None:
    rng = np.random.default_rng(1)
    m, n, k = 17, 32, 256
    a, b = (gp.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((m, k), (k, n)))
    kernel = gp.jit(SPLIT)

    def first_row(rows: int, splits: int) -> str:
        c = gp.zeros((rows, n))
        kernel(c, a[:rows].contiguous(), b, n, k, splits, grid=rows, block=n)
        return gp.fingerprint(c[0])

    # A split that is fixed is invariant; one that follows the number of rows is not.
    assert {first_row(rows, 4) for rows in (1, 2, 17)} == {first_row(1, 4)}
    assert len({first_row(rows, 8 if rows < 4 else 1) for rows in (1, 2, 17)}) == 2


@pytest.mark.cuda
def test_atomic_sums_differ_from_run_to_run() -> None:
    with gp.device("cuda"):
        x = gp.from_numpy(np.random.default_rng(2).standard_normal(1 << 20).astype(np.float32))
        kernel, seen = gp.jit(ATOMIC), set()
        for _ in range(100):
            total = gp.zeros(1)
            kernel(total, x, x.size, grid=528, block=256)
            seen.add(gp.fingerprint(total))
        ordered = {gp.fingerprint(gp.sum(x)) for _ in range(100)}
    assert len(seen) > 1
    assert len(ordered) == 1
