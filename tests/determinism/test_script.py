"""The script that reproduces what goes wrong: what it sees without a GPU, and what it leaves out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest


@pytest.mark.nvrtc
def test_causes_are_seen_or_left_out(run_python: Callable[..., str], repository: object) -> None:
    out = run_python(
        str(repository / "benchmarks" / "determinism.py"),  # type: ignore[operator]
        PYGPUKIT_CACHE_DIR=os.environ["PYGPUKIT_CACHE_DIR"],
        PYGPUKIT_QUIET="1",
    )
    assert re.search(r"splits k by the rows: row 0 has [2-5] kinds of bits", out), out
    assert "gp.matmul's kernel: row 0 has one kind of bits" in out
    assert int(re.findall(r"12 runs: (\d+) different sums", out)[0]) > 1
    assert "gp.sum: 1 kind of bits" in out
    assert int(re.findall(r"another one in (\d+) of 128 rows", out)[0]) > 0
    assert "given the address reads 0, where 1 was" in out
    assert "given the array reads 1, where 1 was" in out
    assert out.count("left out: needs a GPU") == 2
