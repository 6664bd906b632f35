"""The reference is made of docstrings: every public name is on a page, with its text."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import pygpukit


@pytest.fixture(scope="module")
def reference() -> Any:
    path = Path(__file__).resolve().parents[2] / "docs" / "hooks" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_an_entry(reference: Any) -> None:
    pages = reference.pages()
    shown = [entry.name for path, (_, entries) in pages.items() if "module-" not in path for entry in entries]
    modules = {name for name in pygpukit.__all__ if type(getattr(pygpukit, name)) is type(pygpukit)}
    assert len(shown) == len(set(shown))
    assert set(shown) == set(pygpukit.__all__) - modules
    assert modules <= {*reference.MODULES, "errors"}


def test_pages_hold_signatures_sections_and_examples(reference: Any) -> None:
    for path, (title, entries) in reference.pages().items():
        page = reference.render(title, entries)
        assert page.startswith(f"# {title}\n"), path
        assert page.count("\n## ") == len(entries)
        assert page.count("```") % 2 == 0
        assert "-----" not in page
    _, entries = reference.pages()["reference/reduce.md"]
    page = reference.render("Reductions", [entry for entry in entries if entry.name == "sum"])
    assert "sum(x, axis=None, dtype=None, keepdims=False" in page
    assert "- `axis` (optional): Axis or axes that are reduced; all by default." in page
    assert "```pycon\n>>> import pygpukit as gp" in page
