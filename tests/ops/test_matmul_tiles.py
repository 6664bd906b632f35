"""Large products on CUDA cores: the bits of the general kernel, in every layout and at every edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

pytestmark = pytest.mark.nvrtc


def stored(x: Any, order: str) -> gp.GPUArray:
    return gp.from_numpy(x) if order == "n" else gp.from_numpy(x.T.copy()).T


def general(x: gp.GPUArray) -> gp.GPUArray:
    """The same operand by every second element, which large tiles do not take."""
    return gp.from_numpy(np.repeat(x.to_numpy(), 2, axis=1))[:, ::2]


F32, F64 = ("float32", (76, 132, 36)), ("float64", (70, 34, 18))


@pytest.mark.parametrize(
    ("kind", "shape", "orders"), [(*F32, "nn"), (*F32, "nt"), (*F32, "tn"), (*F32, "tt"), (*F64, "nt")]
)
def test_layouts_and_edges_have_the_bits_of_the_general_kernel(
    kind: str, shape: tuple[int, int, int], orders: str
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
    with gp.device("emulated"):
        x, y = stored(a, orders[0]), stored(b, orders[1])
        assert gp.explain(gp.matmul, x, y).variant == "CUDA cores, large tiles"
        assert gp.explain(gp.matmul, general(x), y).variant == "CUDA cores"
        got = gp.matmul(x, y).to_numpy()
        assert got.tobytes() == gp.matmul(general(x), y).to_numpy().tobytes()
        np.testing.assert_allclose(got, a @ b, rtol=1e-4 if kind == "float32" else 1e-12, atol=1e-5)


@pytest.mark.parametrize("order", ["n", "t"])
def test_few_rows_have_the_bits_of_the_general_kernel(order: str) -> None:
    rng = np.random.default_rng(4)
    with gp.device(native.open_cpu(1 << 26, emulated=True, check=True)):
        for m, n, k in ((1, 72, 300), (3, 36, 64), (16, 8, 13)):
            a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
            # Rows of 16 bytes, whatever k is.
            x = gp.from_numpy(np.pad(a, ((0, 0), (0, -k % 4))))[:, :k]
            y = gp.from_numpy(b) if order == "n" else gp.from_numpy(np.pad(b.T, ((0, 0), (0, -k % 4))))[:, :k].T
            assert gp.explain(gp.matmul, x, y).variant == "CUDA cores, few rows"
            got = gp.matmul(x, y).to_numpy()
            assert got.tobytes() == gp.matmul(general(x), y).to_numpy().tobytes(), (m, n, k)
            np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-5)


def test_rows_stacks_and_epilogues_change_no_bit() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 66, 20), (20, 68)))
    bias, residual = (rng.standard_normal(s).astype(np.float32) for s in ((68,), (2, 66, 68)))
    with gp.device("emulated"):
        x, y, c, r = (gp.from_numpy(v) for v in (a, b, bias, residual))
        assert gp.explain(gp.matmul, x, y).variant == "CUDA cores, large tiles"
        whole = gp.matmul(x, y)
        for rows in (1, 3, 33, 66):
            part = gp.matmul(x[1, :rows], y)
            assert part.to_numpy().tobytes() == whole[1, :rows].to_numpy().tobytes()
        ended = gp.matmul(x, y, bias=c, activation="silu", residual=r)
        parts = gp.silu(whole + c) + r
        assert ended.to_numpy().tobytes() == parts.to_numpy().tobytes()
        # Products of zeros beyond the end of k must not turn a negative zero that underflow left.
        tiny = np.full((66, 17), -1e-30, np.float32)
        left, right = (
            gp.from_numpy(np.pad(tiny, ((0, 0), (0, 3))))[:, :17],
            gp.from_numpy(np.full((17, 68), 1e-30, "f4")),
        )
        assert gp.explain(gp.matmul, left, right).variant == "CUDA cores, large tiles"
        got = gp.matmul(left, right).to_numpy()
        assert got.tobytes() == gp.matmul(general(left), right).to_numpy().tobytes()
