"""Operators from a bundle on the device, without NVRTC: the bits are those of kernels compiled for the very types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.cuda

# Equal types and casts only: nothing that mixes types, no output of another type but a cast's.
PATTERNS = (
    "pgk_add_[fi][36][24]",
    "pgk_where_f64",
    "pgk_less_f64",
    "pgk_copy_[fi]*_to_f64",
    "pgk_copy_f64_to_f[13]*",
    "pgk_copy_f16_to_f32",
    "pgk_copy_f32_to_f16",
    "pgk_copy_[fi]32_to_b1",
    "pgk_copy_i32",
    "pgk_sum_f*",
    "pgk_matmul_f*",
)
WITHOUT_NVRTC = {"PYGPUKIT_NVRTC": "/nonexistent/libnvrtc.so", "PYGPUKIT_CACHE": "0"}


def work() -> dict[str, np.ndarray]:
    """Results of what the bundle has kernels for, and of what it has not but can cast."""
    rng = np.random.default_rng(7)
    host = rng.standard_normal((65, 33)) * 100
    f, h, d = (gp.from_numpy(host.astype(kind)) for kind in (np.float32, np.float16, np.float64))
    i = gp.from_numpy(host.astype(np.int32))
    narrow = gp.zeros(f.shape, "float16")
    stream = gp.Stream()
    stream.wait(gp.current_stream())
    results = {
        "add": gp.add(f, f),
        "add number": gp.add(i, 1.5),
        "add mixed": gp.add(i, f),
        "add views": gp.add(i.T[::2], h[0, :1]),
        "add wide": gp.add(f, h, out=gp.zeros(f.shape, "float64")),
        "add narrow": gp.add(d, i, out=narrow),
        "add stream": gp.add(h, i, stream=stream),
        "less": gp.less(i, f),
        "where": gp.where(i, f, d),
        "sum": gp.sum(f, axis=0),
        "sum wide": gp.sum(h, axis=1, dtype="float64"),
        "sum long": gp.sum(gp.add(gp.zeros(100_000, "float32"), f[0, 0]), dtype="float16"),
        "matmul": gp.matmul(f, f.T),
        "matmul mixed": gp.matmul(f.T, h),
        "matmul int": gp.matmul(i, d.T),
        "matmul wide": gp.matmul(h, h.T, out=gp.zeros((65, 65), "float64")),
    }
    stream.synchronize()
    x, graph = gp.zeros((65, 33), "int32"), gp.CudaGraph()
    with graph.capture():
        y = gp.add(gp.add(x, f), h)
    x[:] = i
    for _ in range(2):
        graph.replay()
    results["graph"] = y
    return {name: array.to_numpy() for name, array in results.items()}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bundles for this GPU, exported as a user would."""
    folder = tmp_path_factory.mktemp("bundles")
    chosen = [part for pattern in PATTERNS for part in ("--match", pattern)]
    command = [sys.executable, "-m", "pygpukit", "cache", "export", str(folder / "some.zip"), "--jobs", "2", *chosen]
    subprocess.run(command, check=True, env=os.environ | {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_QUIET": "1"})
    return folder


@pytest.mark.usefixtures("cuda")
def test_results_are_those_of_compiled_kernels(bundles: Path, tmp_path: Path, run_cuda: Callable[..., str]) -> None:
    program = f"""
import numpy as np
import pygpukit as gp
import test_bundle
assert not gp.is_nvrtc_available()
np.savez({str(tmp_path / "results.npz")!r}, **test_bundle.work())
"""
    run_cuda(program, PYGPUKIT_BUNDLE=str(bundles), **WITHOUT_NVRTC)
    expected = work()
    with np.load(tmp_path / "results.npz") as results:
        assert set(results) == set(expected)
        for name, want in expected.items():
            assert results[name].dtype == want.dtype, name
            assert results[name].tobytes() == want.tobytes(), name


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        ("gp.sin(x)", "pgk_sin_f32"),
        ("gp.mul(x, gp.zeros(3, 'int32'))", "pgk_mul_f64"),
        ("gp.add(gp.zeros(3, 'uint8'), x)", "pgk_copy_u8_to_f32"),
        ("gp.sum(gp.zeros(3, 'int16'))", "pgk_sum_i16"),
    ],
)
def test_what_is_not_in_the_bundle_is_named(
    bundles: Path, run_cuda: Callable[..., str], call: str, kernel: str
) -> None:
    # Without the bundles that may lie in the package.
    program = f"""
import pathlib
import pygpukit as gp
from pygpukit.jit import bundle
bundle._PACKAGE_BUNDLES = pathlib.Path("/nonexistent")
x = gp.zeros(3)
try:
    {call}
except gp.NvrtcNotFoundError as error:
    print(error)
assert gp.add(x, 1).tolist() == [1, 1, 1]
"""
    text = run_cuda(program, PYGPUKIT_BUNDLE=str(bundles), **WITHOUT_NVRTC)
    assert text.startswith("NVRTC JIT compiler not available")
    assert f"'{kernel}'" in text
    assert "pygpukit cache import" in text
