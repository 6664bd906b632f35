"""Devices, and weights with every code, for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(
    params=[
        pytest.param("cuda", marks=pytest.mark.cuda),
        pytest.param("emulated", marks=pytest.mark.nvrtc),
        "cpu",
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    """The GPU; in runs without one its kernels on the emulator, and NumPy."""
    with gp.device(request.param) as current:
        yield current


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]
)
def kernels(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    """A device that runs kernels."""
    with gp.device(request.param) as current:
        yield current
