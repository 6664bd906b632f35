"""Where the device actors of this folder run: on the emulator, and with `-m cuda` on the GPU."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pygpukit as gp
from pygpukit.ring import device as ring_device

HERE = Path(__file__).resolve().parent

sys.path.insert(0, str(HERE))


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("cpu", marks=pytest.mark.nvrtc)], autouse=True
)
def device(request: pytest.FixtureRequest) -> str:
    """The device of the process."""
    if gp.current_device().kind != request.param:
        pytest.skip(f"this process runs on {gp.current_device().kind}")
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["dedicated", "shared"])
def dedicated(request: pytest.FixtureRequest) -> bool:
    """Does the actor have a block of its own?"""
    return bool(request.param)


@pytest.fixture(params=range(3), ids="seed {}".format)
def schedule(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A seed for the order of warps and blocks of the test's rings, whose races are found too."""
    if device != "cpu":
        pytest.skip("a GPU has its own order")
    seed, compiled = int(request.param), []

    def fuzzed(source: str, **options: Any) -> Any:
        compiled.append(source)
        return gp.jit(source, **options, check="fuzz", seed=seed)

    monkeypatch.setattr(ring_device, "jit", fuzzed)
    yield seed
    assert compiled, "the rings of this test did not run in a random order"


@pytest.fixture
def start_child(device: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program on this device in a fresh interpreter; one that is still there at the end is killed."""
    children = []

    def start(program: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYGPUKIT_")}
        environment |= {k: v for k, v in os.environ.items() if k == "PYGPUKIT_CACHE_DIR"}
        paths = [str(HERE.parents[2] / "src"), str(HERE), environment.get("PYTHONPATH")]
        environment |= {
            "PYGPUKIT_DEVICE": device,
            "PYGPUKIT_QUIET": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        # A shell's background job ignores SIGINT, and children inherit that.
        restore = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", restore + program],
            env=environment,
            stdin=subprocess.PIPE,
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
def quiet() -> Iterator[None]:
    """Log nothing: that a worker is lost is an error."""
    logger = logging.getLogger("pygpukit.ring")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)
