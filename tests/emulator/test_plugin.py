"""The option of pytest that checks every kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

TEST = '''
import pygpukit as gp

def test_kernel():
    with gp.device("cpu"):
        x = gp.ones(64)
        gp.jit("""extern "C" __global__ void k(float* x) {
            __shared__ float s[64];
            s[threadIdx.x] = x[threadIdx.x];
            x[threadIdx.x] = s[63 - threadIdx.x];
        }""")(x, grid=1, block=64)
        gp.synchronize()
'''


@pytest.mark.nvrtc
def test_pgk_check(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)

    def run(*options: str) -> str:
        # Other packages' plugins are none of this test's business; without entry points ours is asked for by name too.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        ours = [point.value for point in entry_points(group="pytest11", name="pygpukit")]
        assert ours in ([], ["pygpukit.pytest_plugin"])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pygpukit.pytest_plugin"]
        done = subprocess.run(
            [*command, *options, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        return done.stdout

    assert "1 passed" in run()
    checked = run("--pgk-check")
    assert "1 failed" in checked
    assert "uninitialised shared memory: read of s[63]" in checked
