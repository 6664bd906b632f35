"""Shared fixtures: the device the tests run on, and skips for what this machine lacks."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# A loaded machine is slow, not wrong.
hypothesis.settings.register_profile("pygpukit", deadline=None)
hypothesis.settings.load_profile("pygpukit")

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    # Without a request for CUDA the tests run on the CPU device, whatever the machine has.
    if "cuda" not in config.option.markexpr.replace("not cuda", ""):
        os.environ.setdefault("PYGPUKIT_DEVICE", "cpu")
    # Compiled kernels are kept between runs, but apart from the user's own.
    os.environ.setdefault("PYGPUKIT_CACHE_DIR", str(ROOT / ".pytest_cache" / "kernels"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What these fixtures run gets no variable of the package: with work put off here it would say the same again.
    if "PYGPUKIT_STREAMS" in os.environ:
        same = [item for item in items if {"run_python", "interrupted"} & {*getattr(item, "fixturenames", ())}]
        if same:
            config.hook.pytest_deselected(items=same)
            items[:] = [item for item in items if item not in {*same}]


def pytest_collection_finish(session: pytest.Session) -> None:
    # Many tests collect garbage, and what is there before the first of them is none.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("nvrtc") and not _has_nvrtc():
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    if item.get_closest_marker("cuda") and not _has_cuda():
        pytest.skip("no CUDA GPU here")


@functools.cache
def _has_nvrtc() -> bool:
    import pygpukit

    return bool(pygpukit.is_nvrtc_available())


@functools.cache
def _has_cuda() -> bool:
    import pygpukit

    return bool(pygpukit.is_cuda_available())


DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of a device that the test runs on: each there is. Folders of tests may have another."""
    import pygpukit as gp

    with gp.device(request.param):
        yield request.param


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc)]
)
def sm90(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An SM 90 GPU, or the emulator with all its checks and so few SMs that blocks take several tiles."""
    import pygpukit as gp
    from pygpukit import _pygpukit_rust as native

    if request.param == "emulated":
        with gp.device(native.open_cpu(1 << 26, emulated=True, capability=(9, 0), check=True, sm_count=2)) as device:
            yield device
        return
    with gp.device("cuda") as device:
        if device.capability != (9, 0):
            pytest.skip("no GPU of compute capability 9.0 here")
        yield device


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository root."""
    return ROOT


def _child_environment() -> dict[str, str]:
    """Variables of this process without the package's own, but with the folder of compiled kernels."""
    kept = "PYGPUKIT_CACHE_DIR"
    return {k: v for k, v in os.environ.items() if k == kept or not k.startswith("PYGPUKIT_")}


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a program in a fresh interpreter and return what it prints; keyword arguments are environment variables.

    The program is Python's text, or the path of a script. It shares the compiled kernels of this run.
    """

    def run(program: str, **environ: str) -> str:
        environment = {"PYGPUKIT_DEVICE": "cpu", **_child_environment(), **environ}
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), environment.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, *([program] if program.endswith(".py") else ["-c", program])],
            env=environment | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def interrupted() -> Callable[..., tuple[int, str, str]]:
    """Run a program, send it SIGINT `delay` seconds after it prints "waiting", and return its status and output."""

    def run(program: str, delay: float = 0.0, **environ: str) -> tuple[int, str, str]:
        environment = {**_child_environment(), "PYTHONPATH": str(ROOT / "src"), **environ}
        # A shell's background job ignores SIGINT, and children inherit that.
        restore = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", restore + program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "waiting\n", line + process.communicate(timeout=100)[1]
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
        return process.returncode, out, err

    return run
