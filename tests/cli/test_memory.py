"""`pygpukit info memory`: limits and settings, and what saved snapshots and recordings tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pygpukit as gp
from pygpukit.cli import main
from pygpukit.core import info as info_module
from pygpukit.errors import DriverNotFoundError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The file of a recording."""
    with gp.memory.record() as recording, gp.memory.MemoryPool(name="recorded"):
        gp.zeros((1024, 1024))
    path = tmp_path / "recording.json"
    recording.to_json(path)
    return path


def test_limits_and_settings(run_python: Callable[..., str]) -> None:
    text = run_python(
        "from pygpukit.cli import main\nassert main(['info', 'memory']) == 0",
        PYGPUKIT_CPU_MEMORY="64MiB",
        PYGPUKIT_PINNED_LIMIT="3MiB",
        PYGPUKIT_SPILL_LIMIT="5MiB",
        PYGPUKIT_EVICTION="1",
    )
    values = {" ".join(line.split()[:-2]): " ".join(line.split()[-2:]) for line in text.splitlines()}
    assert values["page-locked limit"] == values["PYGPUKIT_PINNED_LIMIT"] == "3.0 MiB"
    assert values["spill limit"] == values["PYGPUKIT_SPILL_LIMIT"] == "5.0 MiB"
    assert "64.0 MiB free of 64.0 MiB" in text
    assert "PYGPUKIT_EVICTION       1" in text
    assert "possible" in text


def test_without_virtual_memory_management(run_python: Callable[..., str]) -> None:
    program = "from pygpukit.cli import main\nassert main(['info', 'memory', '--json']) == 0"
    report = json.loads(run_python(program, PYGPUKIT_POOL="none"))
    assert report["devices"][0]["can_evict"] is False
    assert report["settings"]["PYGPUKIT_POOL"] == "none"
    assert "not possible" in run_python(program.replace(", '--json'", ""), PYGPUKIT_POOL="none")


@pytest.mark.parametrize("command", [["info", "memory", "--json"], ["info", "--json", "memory"]])
def test_json(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    (device,) = (device for device in report["devices"] if device["device"] == "cpu")
    assert device["total"] >= device["free"] > 0
    assert report["host_memory"] > 0
    assert set(report["settings"]) == {
        f"PYGPUKIT_{name}" for name in ("POOL", "EVICTION", "PINNED_LIMIT", "SPILL_LIMIT", "CPU_MEMORY")
    }


def test_a_device_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise DriverNotFoundError("CUDA driver not detected. Searched:\n  /a/libcuda.so.1")

    monkeypatch.setattr(info_module._device, "current_device", fail)
    monkeypatch.setattr(info_module._device, "device_count", lambda: 0)
    assert main(["info", "memory"]) == 0
    assert "error               CUDA driver not detected" in capsys.readouterr().out


def test_a_saved_recording(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "picture.html"
    assert main(["info", "memory", str(saved), "--plot", str(picture)]) == 0
    assert "recorded" in capsys.readouterr().out
    assert "<svg" in picture.read_text()
    assert main(["info", "memory", "--json", str(saved)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(saved.read_text())


def test_a_saved_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "snapshot.json"
    taken = gp.memory.snapshot()
    taken.to_json(path)
    assert main(["info", "memory", str(path)]) == 0
    assert capsys.readouterr().out == taken.table() + "\n"
    assert main(["info", "memory", str(path), "--plot", str(tmp_path / "x.html")]) == 1
    assert "--plot draws recordings" in capsys.readouterr().err


def test_what_cannot_be_done_is_one_line(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for arguments, status, reason in (
        ([str(broken)], 1, f"{broken} is not a snapshot or a recording"),
        ([str(tmp_path / "absent")], 1, "cannot read"),
        (["--plot", "x.html"], 2, "--plot needs the file"),
        ([str(saved), "--plot", str(tmp_path / "no" / "folder.html")], 1, "cannot write"),
        ([str(saved), "--plot", str(tmp_path / "x.unknown")], 1, ""),
    ):
        assert main(["info", "memory", *arguments]) == status
        output = capsys.readouterr()
        assert output.out == ""
        (line,) = output.err.splitlines()
        assert line.startswith("pygpukit: ")
        assert reason in line
