"""The figures of the README and its picture are those of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def picture(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture", repository / "benchmarks" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_the_committed_results(picture: ModuleType) -> None:
    drawn = picture.draw(picture.panels())
    assert picture.PICTURE.read_text(encoding="utf-8") == drawn, "run: python benchmarks/picture.py"


def test_figures_of_the_readme_are_those_of_the_results(picture: ModuleType, repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    missing = [text for text in picture.readme_figures() if text not in readme]
    assert not missing, "the results say otherwise: mend the README"
