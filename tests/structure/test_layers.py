"""The layer rule: a module imports only from its own layer or one below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

LAYERS = {
    "native": ("_pygpukit_rust",),
    "base": ("errors", "dtypes", "config"),
    "runtime": ("core", "jit", "memory"),
    "array": ("array",),
    "ops": ("ops", "kernels", "random", "fft", "linalg", "lib", "quant"),
    "domains": ("llm", "asr", "tts", "audio", "ring", "scheduler", "triton"),
    "apps": ("array_api", "cli", "benchmark", "monitor", "server", "cluster", "compat", "pytest_plugin", "__main__"),
}
RANK = {module: rank for rank, modules in enumerate(LAYERS.values()) for module in modules}
# The package's own __init__ gathers the public names, so importing from it is importing everything.
ROOT = len(LAYERS)

# Imports of a higher layer inside a function or for type checkers only: (module, imported module) -> reason.
ALLOWED_LATE: dict[tuple[str, str], str] = {
    ("pygpukit.core", ""): "published programs import arrays and streams from pygpukit.core",
    ("pygpukit.ops.audio", "audio"): "published programs import functions from there that stand on the domain",
}


class Import(NamedTuple):
    """One import of a pygpukit module."""

    importer: str
    target: str
    line: int
    top_level: bool


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """Imports of our own package in one file, named by the module they reach below ``pygpukit``."""
    package = module.split(".") if is_package else module.split(".")[:-1]

    def visit(node: ast.AST, top_level: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            names: list[str] = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                source = ".".join([*base, *(child.module.split(".") if child.module else [])])
                names = [f"{source}.{alias.name}" if source == "pygpukit" else source for alias in child.names]
            for name in names:
                if name.split(".")[0] == "pygpukit":
                    yield Import(module, name.partition(".")[2], child.lineno, top_level)
            late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from visit(child, top_level and not late)

    yield from visit(tree, True)


def rank(module: str) -> int:
    """Layer of a module named below ``pygpukit``; a name that is no module is one of the root's public names."""
    return RANK.get(module.split(".")[0], ROOT)


def upward(found: Import) -> bool:
    importer = found.importer.partition(".")[2]
    # Applications use the package as its users do.
    is_application = rank(importer) == ROOT - 1
    return bool(importer) and rank(found.target) > rank(importer) and not (is_application and not found.target)


@pytest.fixture(scope="module")
def all_imports(repository: Path) -> list[Import]:
    source = repository / "src"
    found: list[Import] = []
    for path in sorted((source / "pygpukit").rglob("*.py")):
        parts = list(path.relative_to(source).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found += imports_of(ast.parse(path.read_text(encoding="utf-8"), str(path)), module, is_package)
    return found


def test_every_module_has_a_layer(repository: Path) -> None:
    package = repository / "src" / "pygpukit"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert modules <= set(RANK), "add the new module to LAYERS, and to the picture in ARCHITECTURE.md"


def test_no_module_imports_from_a_higher_layer(all_imports: list[Import]) -> None:
    wrong = [f"{i.importer}:{i.line} imports {i.target}" for i in all_imports if i.top_level and upward(i)]
    assert not wrong, "\n".join(wrong)


def test_late_imports_of_a_higher_layer_are_listed_with_a_reason(all_imports: list[Import]) -> None:
    late = {(i.importer, i.target) for i in all_imports if not i.top_level and upward(i)}
    assert late == set(ALLOWED_LATE)
    assert all(ALLOWED_LATE.values())


@pytest.mark.parametrize(
    ("text", "module", "is_package", "expected"),
    [
        ("from pygpukit import _pygpukit_rust as n", "pygpukit.jit.cache", False, [("_pygpukit_rust", True)]),
        ("from pygpukit import zeros", "pygpukit.jit.cache", False, [("zeros", True)]),
        ("import pygpukit.ops.table, os", "pygpukit.array", False, [("ops.table", True)]),
        ("from ..ops import table", "pygpukit.jit.cache", False, [("ops", True)]),
        ("from . import cache", "pygpukit.jit", True, [("jit", True)]),
        ("from .. import ops", "pygpukit.jit", True, [("ops", True)]),
        ("def f():\n    import pygpukit.cli", "pygpukit.core", False, [("cli", False)]),
        ("if TYPE_CHECKING:\n    from pygpukit.ops import x", "pygpukit.core", False, [("ops", False)]),
        ("try:\n    import pygpukit.ops\nexcept ImportError:\n    pass", "pygpukit.core", False, [("ops", True)]),
        ("class A:\n    import pygpukit.ops", "pygpukit.core", False, [("ops", True)]),
        ("import numpy\nfrom os import path", "pygpukit.core", False, []),
    ],
)
def test_imports_are_found(text: str, module: str, is_package: bool, expected: list[tuple[str, bool]]) -> None:
    assert [(i.target, i.top_level) for i in imports_of(ast.parse(text), module, is_package)] == expected


def test_the_rule_itself() -> None:
    assert upward(Import("pygpukit.jit.cache", "ops", 1, True))
    assert upward(Import("pygpukit.jit.cache", "zeros", 1, True))
    assert not upward(Import("pygpukit.ops.table", "array", 1, True))
    assert not upward(Import("pygpukit.jit.cache", "core.libraries", 1, True))
    assert not upward(Import("pygpukit", "cli", 1, True))
