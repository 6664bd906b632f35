"""The programs in examples/ run, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(repository: Path, name: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    command = [sys.executable, str(repository / "examples" / name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("suffix", ["html", "png", "json"])
def test_memory_timeline(repository: Path, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"timeline.{suffix}"
    said = run(repository, "memory_timeline.py", str(picture), "--turns", "2")
    assert "4 equal answers" in said
    first = next(line.split() for line in said.splitlines() if line.startswith("first model"))
    allocated, freed, evicted, restored, _, refused = map(int, first[-6:])
    assert (allocated, freed, refused) == (6, 0, 0)
    assert evicted >= restored > 0
    assert picture.stat().st_size > 1000


def test_scheduler_tenants(repository: Path) -> None:
    said = run(repository, "scheduler_tenants.py", "--seconds", "0.3")
    assert "late: rejected, memory: 64.0 MiB asked + 16.0 MiB reserved > 64.0 MiB" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line}
    assert rows["requests"][1] == "guaranteed"
    assert rows["hog"][1] == "besteffort"
    assert "requests: median" in said


@pytest.mark.nvrtc
def test_vector_add(repository: Path) -> None:
    assert "equal to NumPy: True; out is SYNCHRONIZED" in run(repository, "vector_add.py", "--size", "5000")


def test_host_actors(repository: Path) -> None:
    said = run(repository, "host_actors.py", "--lines", "3000", "--workers", "3")
    assert "as expected: True" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line}
    assert rows["total"][1:] == ["received", "31", "processed", "31", "TERMINATED"]
    assert sum(int(rows[f"worker-{number}"][4]) for number in range(3)) == 30
