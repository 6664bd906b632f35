"""The figures of the README, its picture and the tables of the docs are those of the committed results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def script(repository: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, repository / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def picture(repository: Path) -> ModuleType:
    return script(repository, "picture")


@pytest.fixture
def tables(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script of the tables, with results of its own."""
    module = script(repository, "tables")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def row(what: str, ours: float, other: float, must: str, held: bool = True, unit: str = "ms") -> dict[str, Any]:
    return {"what": what, "ours": ours, "other": other, "unit": unit, "ratio": ours / other, "must": must, "held": held}


def write(folder: Path, stem: str, *rows: dict[str, Any]) -> None:
    environment = {
        "commit": "abc1234",
        "date": "2026-01-02",
        "command": "python b.py --json /tmp/x.json",
        "torch": "2.0",
    }
    (folder / f"{stem}.json").write_text(json.dumps({"environment": environment, "rows": list(rows)}))


def test_the_picture_shows_the_committed_results(picture: ModuleType) -> None:
    drawn = picture.draw(picture.panels())
    assert picture.PICTURE.read_text(encoding="utf-8") == drawn, "run: python benchmarks/picture.py"


def test_figures_of_the_readme_are_those_of_the_results(picture: ModuleType, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    missing = [text for text in picture.readme_figures() if text not in readme]
    assert not missing, "the results say otherwise: mend the README"


def test_tables_of_the_docs_show_the_committed_results(repository: Path) -> None:
    tables = script(repository, "tables")
    assert tables.DOCS / "performance.md" in tables.pages()
    for page in tables.pages():
        text = page.read_text(encoding="utf-8")
        assert tables.updated(text) == text, f"{page.name}: run: python benchmarks/tables.py"


def test_a_table_says_bars_and_who_is_faster(tables: ModuleType, tmp_path: Path) -> None:
    write(
        tmp_path,
        "h200-tensor-gemm",
        row("gemm 4096", 2.0, 1.0000001, "<= 2.5"),
        row("gemm 4096 (stretch)", 2.0, 1.0000001, "<= 1.5", False),
        row("chain, bound", 0.05, 0.04, "<= 1.0", False),
        row("prompt, cuDNN (stretch)", 3.0, 4.0, "<= 1.1"),
        row("sweep: tile 1", 3.0, 4.0, "<= 1.1"),
        row("no bar", 3.0, 4.0, ">= 0"),
        row("gemm 4096, of the copy rate", 0.9, 1.1, ">= 0.5"),
        row("rate", 1500.0, 3000.0, ">= 0.8", False, "GB/s"),
        row("p99 (us)", 7.0, 1.0, "<= 12.0", unit="us"),
        {"what": "check | all", "error": "ValueError: no", "held": False},
    )
    text = tables.updated("<!-- table: products -->\nold\n<!-- end -->\n\n<!-- table: slower -->\n<!-- end -->\n")
    assert "### Matrix products" in text
    assert "| gemm 4096 | 2 ms | 1 ms | **2.000** | <= 2.5 | yes |" in text
    assert "| chain, bound | 50 us | 40 us | 1.250 | <= 1 | no |" in text, "a bound of ours is no peer"
    assert "| prompt, cuDNN (stretch) | 3 ms | 4 ms | 0.750 | <= 1.1 | yes |" in text, "the only row with that peer"
    assert "| rate | 1,500 GB/s | 3,000 GB/s | **0.500** | >= 0.8 | no |" in text
    assert "| p99 | 7 us |  |  | <= 12 us | yes |" in text
    assert "| check \\| all | failed: ValueError: no |  |  |  | no |" in text
    assert "`h200-tensor-gemm.json`: commit abc1234, 2026-01-02, `python b.py`, torch 2.0. 4 of 7 bars held." in text
    assert not [word for word in ("old", "sweep", "no bar", "gemm 4096 (stretch)", "copy rate") if word in text]
    assert "| gemm 4096 (`h200-tensor-gemm`) | 2 ms | 1 ms | 2.00 times as fast |" in text
    assert "| rate (`h200-tensor-gemm`) | 1,500 GB/s | 3,000 GB/s | 2.00 times as fast |" in text
    assert tables.updated(text) == text


def test_repetitions_are_shown_by_the_worst(tables: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "h200-slicing", row("wait", 2.0, 4.0, "<= 1.0"), row("wait", 5.0, 4.0, "<= 1.0", False))
    assert "| wait (worst of 2) | 5 ms | 4 ms | 1.250 | <= 1 | no |" in tables.updated(
        "<!-- table: h200-slicing -->\n<!-- end -->"
    )


def test_saved_runs_of_the_benchmark_are_tables(tables: ModuleType, tmp_path: Path) -> None:
    from pygpukit.benchmark.results import Measurement, Run

    rows = (
        Measurement("gemv 64", "gemv", "float32", (2e-3, 2e-3), (1e-3, 1e-3), nbytes=10**9, variant="v"),
        Measurement("llm decode 8", "llm", "float32", (4e-3,), nbytes=10**9, tokens=8),
        Measurement("llm prefill 9", "llm", "float32", failure="wrong result"),
    )
    Run({"date": "2026-01-02", "command": "pygpukit bench --llm --save x"}, {"read": 1e12, "copy": 1e12}, rows).save(
        tmp_path / "h200-llm.json"
    )
    text = tables.updated("<!-- table: llm -->\n<!-- end -->")
    assert "| gemv 64 | 2 ms | 500 GB/s | 50 % | 1 ms | **2.000** |" in text
    assert "| llm decode 8 | 4 ms | 2,000 tokens/s | 25 % |  |  |" in text
    assert "| llm prefill 9 | failed: wrong result |" in text
    assert "`h200-llm.json`: commit not recorded, 2026-01-02, `pygpukit bench --llm`." in text
    tables.record(tmp_path / "h200-llm.json", commit="abc1234", date="2026-02-03")
    assert "commit abc1234, 2026-01-02," in tables.updated(text), "a date that is there stays"


def test_areas_without_results_are_left_empty(tables: ModuleType) -> None:
    empty = "<!-- table: audio -->\n<!-- end -->\n"
    assert tables.updated(empty) == empty
    with pytest.raises(ValueError, match="no table 'sound'"):
        tables.updated("<!-- table: sound -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match="has no end"):
        tables.updated("<!-- table: audio -->\n")


def test_results_belong_to_an_area(tables: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "h200-unknown", row("x", 1.0, 2.0, "<= 1.0"))
    with pytest.raises(ValueError, match=r"h200-unknown\.json is in no area"):
        tables.updated("<!-- table: slower -->\n<!-- end -->\n")
