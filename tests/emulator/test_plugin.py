"""The option of pytest that checks every kernel."""

from __future__ import annotations

import subprocess
import sys
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
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tmp_path)]
        if "pgk-check" not in subprocess.run([*command, "--help"], capture_output=True, text=True).stdout:
            # Installed without its entry points.
            command[3:3] = ["-p", "pygpukit.pytest_plugin"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout

    assert "1 passed" in run()
    checked = run("--pgk-check")
    assert "1 failed" in checked
    assert "uninitialised shared memory: read of s[63]" in checked
