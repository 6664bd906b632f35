"""The driver of the benchmarks of arrays: it goes on after what fails, keeps its time, and writes what was measured."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "array"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with a peer that does nothing, and families of its own."""
    torch = types.ModuleType("torch")
    torch.empty = lambda *a, **k: None  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms = lambda on: None  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace(empty_cache=lambda: None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "path", [str(FOLDER), str(FOLDER.parent), *sys.path])
    spec = importlib.util.spec_from_file_location("array_benchmarks", FOLDER / "all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import harness

    monkeypatch.setattr(harness, "FLUSH", 4096)
    monkeypatch.setattr(module, "FAMILIES", {})
    yield module
    sys.modules.pop("harness", None)
    sys.modules.pop("report", None)


def family(driver: Any, monkeypatch: pytest.MonkeyPatch, name: str, body: Any, part: float = 1.0) -> None:
    def main() -> int:
        from harness import Bench

        bench = Bench("A family.")
        body(bench)
        return int(bench.finish(f"python {name}.py"))

    module = types.ModuleType(name)
    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    driver.FAMILIES[name] = (name, part)


def refuse() -> None:
    raise ValueError("no such kernel")


def spin(bench: Any) -> None:
    bench.report.add("first", 1.0, 2.0, "ms", 1.0)
    while True:
        pass


def test_a_failure_ends_neither_a_family_nor_the_run(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(bench: Any) -> None:
        bench.check(refuse)
        bench.guarded("broken", refuse)
        bench.report.add("whole", 1.0, 2.0, "ms", 1.0)

    family(driver, monkeypatch, "rows_fail", rows)
    family(driver, monkeypatch, "family_fails", lambda bench: (bench.report.add("one", 1.0, 2.0, "ms", 1.0), refuse()))
    family(driver, monkeypatch, "fine", lambda bench: bench.report.add("row", 1.0, 2.0, "ms", 1.0))
    assert driver.main(["--out", str(tmp_path), "--seconds", "60"]) == 1
    said = capsys.readouterr().out
    assert "FAIL broken" in said
    assert "family_fails ValueError: no such kernel" in said.replace("  ", " ")
    found = {p.stem: json.loads(p.read_text())["rows"] for p in tmp_path.iterdir()}
    assert [(r["what"], r["held"]) for r in found["rows_fail"]] == [
        ("check of values", False), ("broken", False), ("whole", True),
    ]  # fmt: skip
    assert [r["what"] for r in found["family_fails"]] == ["one", "the family family_fails"]
    assert found["fine"][0]["held"]


def test_time_is_shared_and_kept(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(bench: Any) -> None:
        bench._began -= 3600
        bench.against_torch("skipped", refuse, refuse, 1.0)

    family(driver, monkeypatch, "endless", spin)
    family(driver, monkeypatch, "late", late)
    assert driver.main(["--out", str(tmp_path), "--seconds", "2"]) == 1
    said = capsys.readouterr().out
    assert "endless: at most 1 s" in said
    assert "late: at most 1 s" in said
    assert "OutOfTimeError: stopped after 1 s" in said
    assert "skip skipped" in said
    assert "every bar held, 1 rows skipped" in said
    rows = json.loads((tmp_path / "endless.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["first", "the family endless"]


def test_a_device_that_is_gone_moves_the_rest_to_another_process(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []

    def gone(path: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise SystemExit(3)

    monkeypatch.setattr(driver.os, "execv", gone)
    monkeypatch.setattr(driver, "tidy", refuse)
    for name in ("first", "second", "third"):
        family(driver, monkeypatch, name, lambda bench: None)
    with pytest.raises(SystemExit):
        driver.main(["--out", str(tmp_path), "--rounds", "5"])
    assert started[0][-3:] == ["--families", "second", "third"]
    assert started[0][started[0].index("--rounds") + 1] == "5"


def test_the_families_are_the_modules_that_are_there() -> None:
    spec = importlib.util.spec_from_file_location("array_benchmarks_plain", FOLDER / "all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {f"{name}.py" for name, _ in module.FAMILIES.values()} | {"all.py", "harness.py"} == {
        path.name for path in FOLDER.glob("*.py")
    }
    assert sum(part for _, part in module.FAMILIES.values()) == pytest.approx(1.0)


def test_a_stretch_is_a_row_of_its_own_that_may_be_missed(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rows(bench: Any) -> None:
        bench._ours = bench._theirs = lambda call, repeat: call
        bench._medians = lambda *runs: [1.0, 2.0][: len(runs)]
        bench.copy_rate = lambda: 4e6
        bench.against_torch("fast", refuse, refuse, 0.6, stretch=0.4)
        bench.of_copy_rate("wide", refuse, 3_000_000, 0.6, stretch=0.8)

    family(driver, monkeypatch, "stretched", rows)
    assert driver.main(["--out", str(tmp_path), "--seconds", "60"]) == 0
    found = json.loads((tmp_path / "stretched.json").read_text())["rows"]
    assert [(row["what"], row["ratio"], row["held"]) for row in found] == [
        ("fast", 0.5, True), ("fast (stretch)", 0.5, False), ("wide", 0.75, True), ("wide (stretch)", 0.75, False),
    ]  # fmt: skip
