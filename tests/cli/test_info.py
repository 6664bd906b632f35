"""`pygpukit info`: the report is whole on a terminal and elsewhere, whatever is missing."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pygpukit import _pygpukit_rust as native
from pygpukit.cli import main
from pygpukit.core import info as info_module
from pygpukit.errors import DriverNotFoundError, NvrtcNotFoundError

command: Any = importlib.import_module("pygpukit.cli.info")
MISSING = {
    "what": "cublaslt",
    "why": "cuBLASLt was not found. Searched:\n  /a/lib.so.13: no such file\n  /b/[red]/lib.so.13: no such file",
    "fix": 'pip install "pygpukit[cublas]"',
}
REPORT = {
    "pygpukit": "1",
    "python": "3",
    "platform": "p [bold]",
    "packages": {},
    "settings": {},
    "driver": None,
    "devices": [],
    "nvrtc": None,
    "cublaslt": None,
    "current_device": "none: no driver\n  /c/libcuda.so.1: no such file",
    "missing": [MISSING],
}


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool) -> None:
    monkeypatch.setattr(command, "info", lambda: REPORT)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["info"]) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in text.splitlines()]
    assert '  fix: pip install "pygpukit[cublas]"' in lines
    assert "p [bold]" in text
    for line in MISSING["why"].splitlines():
        assert f"  {line}" in lines
    (place,) = (line for line in lines if "libcuda" in line)
    assert place.startswith(" " * len("current device  "))


@pytest.mark.parametrize(("major", "fix"), [(12, 'pip install "pygpukit[cuda12]"'), (13, "nvidia-cuda-nvrtc")])
def test_the_fix_suits_the_driver(monkeypatch: pytest.MonkeyPatch, major: int, fix: str) -> None:
    def absent(candidates: list[str]) -> None:
        raise NvrtcNotFoundError(f"none of {candidates}")

    monkeypatch.setattr(native, "driver_path", lambda: "/libcuda.so.1")
    monkeypatch.setattr(native, "driver_version", lambda: major * 1000 + 40)
    monkeypatch.setattr(native, "nvrtc_open", absent)
    report = info_module.info()
    (found,) = (item for item in report["missing"] if item["what"] == "nvrtc")
    assert fix in found["fix"]


def test_a_device_that_cannot_be_opened_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DriverNotFoundError("CUDA driver not detected")

    monkeypatch.setattr(info_module._device, "current_device", fail)
    assert info_module.info()["current_device"] == "none: CUDA driver not detected"


def test_the_report_is_printed_without_the_driver_asked_for(run_python: Callable[..., str]) -> None:
    text = run_python(
        "from pygpukit.cli import main\nassert main(['info']) == 0",
        PYGPUKIT_DEVICE="cuda",
        PYGPUKIT_LIBCUDA="/nonexistent/libcuda.so.1",
    )
    assert "current device  none: CUDA driver not detected" in text
    assert text.count("/nonexistent/libcuda.so.1: no such file") == 2
    assert "settings" in text
