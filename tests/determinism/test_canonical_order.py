"""Products of 16-bit matrices by every kernel have the bits of one chain: groups of 16 along k, ascending."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.core import cublaslt

# The model of the tensor core in integers, which the emulator's own tests hold to recorded vectors.
sys.path.append(str(Path(__file__).resolve().parents[1] / "emulator" / "differential"))
from tensor_core import add_group, numbers, rounded

pytestmark = pytest.mark.nvrtc
KINDS = {"bfloat16": "bf16", "float16": "f16"}


def operands(kind: str, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers whose exponents lie apart and whose products cancel: a result is what roundings on the way have left.

    Without that the last rounding would hide the order of a sum.
    """
    rng = np.random.default_rng([m, n, k])
    to = gp.to_numpy_dtype(kind)
    a, b = (rng.standard_normal(s) * 2.0 ** rng.integers(-6, 7, s) for s in ((m, k // 2), (k // 2, n)))
    return np.concatenate([a, a], 1).astype(to), np.concatenate([b, -b]).astype(to)


def chain(a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    """The product as one float32 accumulator gives it."""
    k = a.shape[1]
    tail = -k % 16
    left = np.pad(a.view(np.uint16), ((0, 0), (0, tail)))
    right = np.pad(b.view(np.uint16), ((0, tail), (0, 0))).T
    sums = np.zeros((len(left), len(right)), np.int64)
    for first in range(0, k, 16):
        x, y = (numbers(z[:, first : first + 16], KINDS[kind]) for z in (left, right))
        group = add_group(numbers(sums, "f32"), x.take(slice(None), None), y.take(None, slice(None)), 25)
        sums = rounded(group, "f32")
    return sums.astype(np.uint32).view(np.float32).astype(a.dtype)


ROUTES = [
    pytest.param((8, 0), id="sm_80"),
    pytest.param((9, 0), id="sm_90a"),
    pytest.param("library", id="cuda", marks=pytest.mark.cuda),
    pytest.param("own", id="cuda-own-kernels", marks=pytest.mark.cuda),
]


@pytest.fixture(params=ROUTES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[gp.Device]:
    """Emulated devices of two architectures; a GPU with cuBLASLt, if that is there, and without."""
    if request.param == "own":
        monkeypatch.setattr(cublaslt, "missing", lambda: "left out by the test")
    native.clear_plans()
    emulated = isinstance(request.param, tuple)
    chosen = native.open_cpu(1 << 28, emulated=True, capability=request.param) if emulated else "cuda"
    with gp.device(chosen) as current:
        yield current
    native.clear_plans()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 72, 136), (17, 72, 136), (70, 136, 72), (3, 16, 600), (70, 85, 320)])
def test_every_kernel_has_the_bits_of_the_chain(device: gp.Device, kind: str, m: int, n: int, k: int) -> None:
    a, b = operands(kind, m, n, k)
    want = chain(a, b, kind)
    x, w = gp.from_numpy(a), gp.from_numpy(np.ascontiguousarray(b.T))
    # Weights as models keep them, [n, k], and as matrices.
    for y in (w.T, gp.from_numpy(b)):
        assert gp.explain(gp.matmul, x, y).variant.startswith(("wgmma", "mma.sync", "cuBLASLt"))
        np.testing.assert_array_equal(gp.matmul(x, y).to_numpy().view(np.uint16), want.view(np.uint16))


def test_another_order_has_other_bits() -> None:
    """The control: sums of the same groups from the last to the first."""
    a, b = operands("bfloat16", 3, 16, 600)
    other = chain(a[:, ::-1], b[::-1], "bfloat16")
    assert (other.view(np.uint16) != chain(a, b, "bfloat16").view(np.uint16)).mean() > 0.9
