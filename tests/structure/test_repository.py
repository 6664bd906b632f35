"""The project's files agree with each other: commands, dependencies, versions, environment variables."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pygpukit import errors

BASE_DEPENDENCIES = {"numpy", "ml_dtypes", "msgpack", "rich", "nvidia-cuda-nvrtc"}


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cargo(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "Cargo.toml").read_text(encoding="utf-8"))


def package_names(requirements: list[str]) -> set[str]:
    return {match[0] for text in requirements if (match := re.match(r"[\w.-]+", text))}


def pages(repository: Path) -> list[Path]:
    return [*sorted(repository.glob("*.md")), *sorted((repository / "docs").rglob("*.md"))]


def test_base_dependencies_are_the_allowed_five(project: dict[str, Any]) -> None:
    assert package_names(project["project"]["dependencies"]) == BASE_DEPENDENCIES


def test_dependencies_are_explained(project: dict[str, Any], cargo: dict[str, Any], repository: Path) -> None:
    page = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = package_names(project["project"]["dependencies"]) | set(cargo["workspace"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        names |= package_names(extra)
    assert not sorted(name for name in names if f"`{name}`" not in page)


def test_versions_agree(project: dict[str, Any], cargo: dict[str, Any], repository: Path) -> None:
    version = project["project"]["version"]
    assert cargo["workspace"]["package"]["version"] == version
    assert f"## [{version}]" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_the_architecture_names_exists(repository: Path) -> None:
    page = (repository / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tests = [*(repository / "tests").rglob("*.py"), *(repository / "rust").rglob("*.rs")]
    functions = set(re.findall(r"\b(?:def|fn) (\w+)", "\n".join(path.read_text(encoding="utf-8") for path in tests)))
    missing = []
    for name in re.findall(r"`([^`\n]+)`", page):
        path, _, function = name.partition("::")
        if re.match(r"(tests|rust|src|benchmarks)/", path):
            here = repository / path
            found = here.exists() and (not function or f"def {function}(" in here.read_text(encoding="utf-8"))
        else:
            # The long names without a file are those of tests.
            found = not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){3,}", name) or name in functions
        missing += [] if found else [name]
    assert not missing


def test_commands_in_the_documentation_exist(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert targets >= {"demo", "test", "test-gpu", "gpu-bundle", "bench", "wheel", "docs", "clean"}
    unknown = []
    for path in pages(repository):
        used = re.findall(r"(?:`|^\s*|&& )make ([a-z][a-z-]*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        unknown += [f"{path.name}: make {name}" for name in used if name not in targets]
    assert not unknown


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_target(repository: Path) -> None:
    shown = subprocess.run(["make", "help"], cwd=repository, capture_output=True, text=True, check=True).stdout
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    assert set(re.findall(r"^  make (\S+)", shown, re.MULTILINE)) == phony - {"force", "\\"}


def test_every_environment_variable_is_documented_and_read(repository: Path) -> None:
    page = (repository / "docs" / "environment.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(PYGPUKIT_[A-Z0-9_]+)`", page, re.MULTILINE))
    settings = (repository / "src" / "pygpukit" / "config.py").read_text(encoding="utf-8")
    assert documented == {f"PYGPUKIT_{suffix}" for suffix in re.findall(r'read\(\s*"([A-Z0-9_]+)"', settings)}
    used = set()
    for path in [*(repository / "src").rglob("*.py"), *(repository / "rust").glob("pygpukit-*/src/**/*.rs")]:
        used |= set(re.findall(r"\bPYGPUKIT_[A-Z0-9_]*[A-Z0-9]\b", path.read_text(encoding="utf-8")))
    assert not sorted(used - documented)


def test_every_error_is_documented(repository: Path) -> None:
    page = (repository / "docs" / "errors.md").read_text(encoding="utf-8")
    assert not [name for name in errors.__all__ if f"`{name}`" not in page]


def test_links_between_pages_lead_somewhere(repository: Path) -> None:
    broken = []
    for path in pages(repository):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.name}: {target}")
    assert not broken


def test_files_named_in_the_documentation_exist(repository: Path) -> None:
    missing = []
    for path in pages(repository):
        for name in re.findall(r"`((?:rust|src|tests|benchmarks)/[\w./-]+)`", path.read_text(encoding="utf-8")):
            if not (repository / name).exists():
                missing.append(f"{path.name}: {name}")
    assert not missing


def test_every_page_is_in_the_navigation(repository: Path) -> None:
    navigation = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r":\s*([\w/-]+\.md)\s*$", navigation, re.MULTILINE))
    docs = repository / "docs"
    assert listed == {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
