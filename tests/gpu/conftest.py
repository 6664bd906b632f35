"""Devices and child processes for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pygpukit as gp

HERE = Path(__file__).resolve().parent

# Tests are imported by path: this folder's kernels, and the values and comparisons of the operator tests.
sys.path[:0] = [str(HERE), str(HERE.parent / "ops")]


@pytest.fixture(
    params=[
        pytest.param("cuda", marks=pytest.mark.cuda),
        pytest.param("emulated", marks=pytest.mark.nvrtc),
        "cpu",
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    """The GPU; in runs without one its kernels on the emulator, and NumPy: what such a test says holds on all."""
    with gp.device(request.param) as current:
        yield current


@pytest.fixture
def cuda() -> Iterator[gp.Device]:
    """The GPU, whatever PYGPUKIT_DEVICE says."""
    with gp.device("cuda") as current:
        yield current


@pytest.fixture
def start_cuda() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program on the GPU in a fresh interpreter; keyword arguments are environment variables.

    Kernels come from the cache of this run. A child still there at the end of the test is killed.
    """
    children = []

    def start(program: str, **environ: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYGPUKIT_")}
        environment |= {k: v for k, v in os.environ.items() if k in ("PYGPUKIT_CACHE_DIR", "PYGPUKIT_BUNDLE")}
        path = os.pathsep.join(filter(None, [str(HERE.parents[1] / "src"), str(HERE), environment.get("PYTHONPATH")]))
        environment |= {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_QUIET": "1", "PYTHONPATH": path, **environ}
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def run_cuda(start_cuda: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Run a program on the GPU to its end, which must come by itself and without an error; return what it printed."""

    def run(program: str, **environ: str) -> str:
        child = start_cuda(program, **environ)
        try:
            out, err = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            pytest.fail(f"the program did not end by itself\n{out}{err}")
        assert child.returncode == 0, f"exit status {child.returncode}\n{out}{err}"
        return out

    return run
