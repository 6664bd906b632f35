"""The checker finds planted bugs and says what they are; correct kernels give no report."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp

from .clean import CLEAN, Clean
from .planted import PLANTED, Planted

pytestmark = pytest.mark.skipif(not gp.is_nvrtc_available(), reason="needs NVRTC")


def _kernel(before: str, body: str, **options: object) -> gp.Kernel:
    return gp.jit(f'{before}\nextern "C" __global__ void k(float* x, float* out, int n) {{\n{body}\n}}', **options)


@pytest.mark.parametrize("bug", PLANTED, ids=[bug.name for bug in PLANTED])
def test_planted(bug: Planted) -> None:
    x = gp.from_numpy(np.arange(256, dtype=np.float32))
    out = gp.zeros(64, dtype=gp.float32)
    kernel = _kernel(bug.before, bug.body, check=True)
    with pytest.raises(gp.KernelFaultError) as caught:
        kernel(x, out, 256, grid=bug.grid, block=bug.block, shared=bug.shared)
        gp.synchronize()
    for word in bug.words:
        assert word in str(caught.value)


@pytest.mark.parametrize("kernel", CLEAN, ids=[kernel.name for kernel in CLEAN])
def test_clean(kernel: Clean) -> None:
    run_clean(kernel, check=True)


def run_clean(kernel: Clean, **options: object) -> None:
    values = np.random.default_rng(5).integers(0, 9, 4096).astype(np.float32)
    x, out = gp.from_numpy(values), gp.zeros(4096, dtype=gp.float32)
    compiled = gp.jit(kernel.source, **options)
    compiled(x, out, 4096, grid=kernel.grid, block=kernel.block, shared=kernel.shared)
    want = kernel.want(values)
    np.testing.assert_array_equal(out.to_numpy()[: want.size], want)
