"""`pygpukit cache`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pygpukit.cli.cache import add_parser, run
from pygpukit.jit.bundle import Bundle
from pygpukit.jit.cache import open_cache

cli: Any = importlib.import_module("pygpukit.cli.cache")


@pytest.fixture
def cache_command(native: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``pygpukit cache ...`` with three built-in kernels."""
    units = ModuleType("pygpukit.ops.units")
    names = ("add_f32", "add_f16", "mul_f32")
    source = 'extern "C" __global__ void {name}(float* x) {{}}'
    made = [SimpleNamespace(name=name, source=source.format(name=name)) for name in names]
    units.builtin_units = lambda: made  # type: ignore[attr-defined]
    units.headers = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pygpukit.ops.units", units)
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())

    def command(*arguments: str) -> int:
        args = parser.parse_args(["cache", *arguments])
        assert args.run is run
        return run(args)

    return command


def test_several_patterns(cache_command: Any, native: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_command("warm", "--jobs", "1", "--match", "add_f16", "--match", "add_f32") == 0
    assert "2 kernels" in capsys.readouterr().out
    assert len(native.compiled) == 2


def test_warm_list_clear(cache_command: Any, native: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_command("warm", "--jobs", "1", "--match", "add_*") == 0
    assert "2 kernels" in capsys.readouterr().out
    assert len(native.compiled) == 2
    assert native.compiled[0]["options"][0] == "--gpu-architecture=sm_90a"
    assert cache_command("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "arch", "size", "age", "last", "use"]
    assert sorted(line.split()[0] for line in lines[1:3]) == ["add_f16", "add_f32"]
    assert "sm_90a" in lines[1]
    assert lines[3].startswith("2 kernels, ")
    assert cache_command("clear") == 0
    assert capsys.readouterr().out.startswith("2 kernels removed, ")
    assert cache_command("list") == 0
    assert capsys.readouterr().out.startswith("0 kernels, 0 B of ")


def test_list_as_json(cache_command: Any, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_command("warm", "--jobs", "1")
    capsys.readouterr()
    assert cache_command("list", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["folder"] == str(cache_dir)
    assert content["limit"] == 512 * 10**6
    assert content["bundles"] == []
    assert {kernel["name"] for kernel in content["kernels"]} == {"add_f32", "add_f16", "mul_f32"}
    assert set(content["kernels"][0]) == {"key", "name", "arch", "size", "created", "used"}
    assert content["size"] == sum(kernel["size"] for kernel in content["kernels"])


def test_list_on_a_terminal(
    cache_command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_command("warm", "--jobs", "1", "--match", "add_f32")
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cache_command("list") == 0
    assert "add_f32" in capsys.readouterr().out


def test_export_import(cache_command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.zip"
    assert cache_command("export", str(path), "--arch", "80", "90", "9.0", "sm_90a", "--jobs", "1") == 0
    assert "6 kernels for sm_80, sm_90a, " in capsys.readouterr().out
    with Bundle(path) as bundle:
        assert bundle.check().arch == ("80", "90a")
    assert cache_command("import", str(path)) == 0
    assert "6 kernels for sm_80, sm_90a imported to" in capsys.readouterr().out
    cache_command("list", "--json")
    assert len(json.loads(capsys.readouterr().out)["bundles"]) == 1
    assert cache_command("clear", "--bundles") == 0
    assert "1 bundles removed" in capsys.readouterr().out
    cache_command("list", "--json")
    assert json.loads(capsys.readouterr().out)["bundles"] == []


def test_export_checks_its_target_before_it_compiles(
    cache_command: Any, native: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    # Nobody can make files in /proc, not even root.
    closed = [Path("/proc/b.zip")] if sys.platform == "linux" else []
    for path in (tmp_path / "none" / "b.zip", tmp_path / "file" / "b.zip", tmp_path, *closed):
        assert cache_command("export", str(path), "--arch", "90", "--jobs", "1") == 1
        assert f"cannot write bundle {path}: " in capsys.readouterr().err
    assert native.compiled == []
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith((".zip", ".tmp"))] == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_only_regular_files_are_imported(
    cache_command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    for path in (tmp_path / "pipe.zip", tmp_path, Path("/dev/zero")):
        assert cache_command("import", str(path)) == 1
        assert "not a regular file" in capsys.readouterr().err


def test_clear_keeps_imported_bundles(cache_command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_command("export", str(tmp_path / "b.zip"), "--jobs", "1")
    cache_command("import", str(tmp_path / "b.zip"))
    cache_command("clear")
    capsys.readouterr()
    cache_command("list", "--json")
    assert len(json.loads(capsys.readouterr().out)["bundles"]) == 1


def test_failures_are_one_message_and_status_1(
    cache_command: Any, native: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def message() -> str:
        output = capsys.readouterr()
        assert output.out == ""
        return output.err

    assert cache_command("import", str(tmp_path / "none.zip")) == 1
    assert "pygpukit cache import: bundle" in message()
    assert cache_command("warm", "--match", "nothing") == 1
    assert cache_command("warm", "--match", "add_*", "--match", "nothing") == 1
    assert "no built-in kernel has a name like 'nothing'" in message()
    native.missing = True
    assert cache_command("warm", "--jobs", "1") == 1
    assert "NVRTC JIT compiler not available" in message()
    native.device = SimpleNamespace(kind="cpu", index=0, _number=7, capability=(0, 0))
    assert cache_command("warm") == 1
    assert "--arch 90" in message()
    monkeypatch.setenv("PYGPUKIT_CACHE", "0")
    assert cache_command("list") == 1
    assert "PYGPUKIT_CACHE" in message()


@pytest.mark.parametrize(
    "arguments", [["warm", "--arch", "75"], ["warm", "--arch", "x"], ["warm", "--jobs", "0"], ["export"], []]
)
def test_wrong_arguments(cache_command: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cache_command(*arguments)
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert cli._age(seconds) == text


def test_a_hostile_name_is_shown_harmlessly(cache_command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from pygpukit.jit.entry import Entry

    cache = open_cache()
    assert cache is not None
    cache.put(Entry("0" * 64, "[red]\x1b[2Jk", "90a", "cubin", b"x", {}, "", 1.0))
    assert cache_command("list") == 0
    output = capsys.readouterr().out
    assert "[red]?[2Jk" in output
    assert "\x1b" not in output
