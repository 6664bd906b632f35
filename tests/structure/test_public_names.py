"""Public names have docstrings, are listed in docs/api.md, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit
from pygpukit.ops.registry import functions

CLASSES = sorted(name for name in pygpukit.__all__ if isinstance(getattr(pygpukit, name, None), type))


def modules() -> list[str]:
    return sorted(
        info.name
        for info in pkgutil.walk_packages(pygpukit.__path__, "pygpukit.")
        if "_pygpukit_rust" not in info.name and not info.name.endswith("__main__")
    )


def test_public_names_are_unique_and_there() -> None:
    names = list(pygpukit.__all__)
    assert len(set(names)) == len(names)
    missing = [name for name in names if not hasattr(pygpukit, name)]
    assert not missing


def test_public_names_have_docstrings() -> None:
    # None is newaxis, and has no docstring before Python 3.13.
    bare = [name for name in pygpukit.__all__ if name != "newaxis" and not inspect.getdoc(getattr(pygpukit, name))]
    assert not bare


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_have_docstrings(name: str) -> None:
    cls: Any = getattr(pygpukit, name)
    own = {m for base in cls.__mro__ if base.__module__.startswith("pygpukit") for m in vars(base)}
    bare = [m for m in sorted(own) if not m.startswith("_") and not inspect.getdoc(inspect.getattr_static(cls, m))]
    assert not bare


def test_public_names_are_in_the_api_page(repository: Path) -> None:
    page = (repository / "docs" / "api.md").read_text(encoding="utf-8")
    documented = {match[1] for span in re.findall(r"`([^`\n]+)`", page) if (match := re.match(r"(?:gp\.)?(\w+)", span))}
    # Operators are on pages made of their docstrings (test_reference.py).
    assert not sorted(set(pygpukit.__all__) - documented - set(functions()))


def test_names_in_the_glossary_exist(repository: Path) -> None:
    page = (repository / "docs" / "glossary.md").read_text(encoding="utf-8")
    names = re.findall(r"`gp\.([A-Za-z][\w.]*)`", page)
    assert len(names) > 30
    unknown = []
    for name in names:
        thing: Any = pygpukit
        for part in name.split("."):
            thing = getattr(thing, part, None)
        if thing is None:
            unknown.append(f"gp.{name}")
    assert not unknown


def test_names_used_in_the_documentation_exist(repository: Path) -> None:
    unknown = []
    for path in [*repository.glob("*.md"), *sorted((repository / "docs").rglob("*.md"))]:
        for name in sorted(set(re.findall(r"\bgp\.([A-Za-z]\w*)", path.read_text(encoding="utf-8")))):
            if not hasattr(pygpukit, name):
                unknown.append(f"{path.name}: gp.{name}")
    assert not unknown


@pytest.mark.parametrize("name", ["pygpukit", *modules()])
def test_module_docstrings_and_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring that says its job"
    results = doctest.testmod(
        module,
        extraglobs={"gp": pygpukit, "np": np},
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert results.failed == 0
