"""Fixtures of the JIT tests: a private cache folder, and a native module that compiles nothing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pygpukit.errors import KernelCompileError, NvrtcNotFoundError

# By name, because the package's attribute `jit` is the function.
compiler: Any = importlib.import_module("pygpukit.jit.compiler")
build: Any = importlib.import_module("pygpukit.jit.build")
kernel: Any = importlib.import_module("pygpukit.jit.kernel")
nvrtc: Any = importlib.import_module("pygpukit.jit.nvrtc")
bundle: Any = importlib.import_module("pygpukit.jit.bundle")
toolkit: Any = importlib.import_module("pygpukit.jit.toolkit")
cli: Any = importlib.import_module("pygpukit.cli.cache")


@pytest.fixture(autouse=True)
def cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder and an environment without our variables; nothing is remembered between tests."""
    for name in list(os.environ):
        if name.startswith("PYGPUKIT_") and name not in ("PYGPUKIT_DEVICE", "PYGPUKIT_NVRTC"):
            monkeypatch.delenv(name)
    folder = tmp_path / "cache"
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(folder))
    monkeypatch.setenv("PYGPUKIT_QUIET", "1")
    # A bundle that was built into the package must not answer for the compiler.
    monkeypatch.setattr(bundle, "_PACKAGE_BUNDLES", tmp_path / "no bundles")
    compiler.forget_images()
    bundle.forget_bundles()
    kernel._kernels.clear()
    yield folder
    compiler.forget_images()
    bundle.forget_bundles()
    kernel._kernels.clear()


@dataclass
class FakeNative:
    """Stands for the native module: counts calls and gives the source back as the image."""

    version: tuple[int, int] = (13, 4)
    driver: int | None = 13000
    missing: bool = False
    device: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(kind="cuda", index=0, _number=0, capability=(9, 0))
    )
    opened: int = 0
    # Headers that the compiler carries, and how often they were unpacked.
    bundled: dict[str, str] = field(default_factory=dict)
    unpacked: int = 0
    compiled: list[dict[str, Any]] = field(default_factory=list)
    loaded: list[dict[str, Any]] = field(default_factory=list)

    def driver_version(self) -> int | None:
        return self.driver

    def nvrtc_open(self, candidates: list[str]) -> tuple[str, tuple[int, int]]:
        self.opened += 1
        if self.missing:
            raise NvrtcNotFoundError("NVRTC JIT compiler not available: tried " + ", ".join(candidates))
        return candidates[-1], self.version

    def nvrtc_compile(
        self,
        source: str,
        name: str,
        options: list[str],
        headers: dict[str, str],
        expressions: list[str],
        kind: str,
    ) -> SimpleNamespace:
        self.compiled.append(
            {
                "source": source,
                "name": name,
                "options": options,
                "headers": headers,
                "expressions": expressions,
                "kind": kind,
            }
        )
        if "syntax error" in source:
            line = 1 + source[: source.index("syntax error")].count("\n")
            raise KernelCompileError(f'{name}({line}): error: expected a ";"\n')
        lowered = {expression: f"_Z{len(expression)}{expression}" for expression in expressions}
        return SimpleNamespace(image=f"{kind}:{source}".encode(), log="", lowered=lowered)

    def nvrtc_install_headers(self, folder: str) -> bool:
        if not self.bundled:
            return False
        for name, text in {**self.bundled, ".nvrtc_headers_version": ""}.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.unpacked += 1
        return True

    def current_device(self) -> SimpleNamespace:
        return self.device

    def load_kernel(
        self, image: bytes, entry: str, name: str, params: Any, *, arch: str = "", source: str, **options: Any
    ) -> SimpleNamespace:
        loaded = {"image": image, "entry": entry, "name": name, "params": params, "arch": arch, "source": source}
        self.loaded.append(loaded | options)
        return SimpleNamespace(**self.loaded[-1])


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> FakeNative:
    """The native module replaced by one that compiles nothing and has a device of capability 9.0."""
    fake = FakeNative()
    for module in (build, compiler, kernel, nvrtc, toolkit, cli):
        monkeypatch.setattr(module, "_native", fake)
    monkeypatch.setattr(nvrtc, "_opened", None)
    # Which files lie on this machine must not matter.
    monkeypatch.setattr(nvrtc, "_version_beside", lambda library: None)
    return fake
