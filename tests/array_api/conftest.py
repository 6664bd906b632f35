"""The device of a test; makes the helper module of this folder importable, since tests are imported by path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).parent))

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with gp.device(request.param):
        yield request.param
