"""Where libraries are searched."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pygpukit.core import libraries
from pygpukit.core.libraries import cublaslt_candidates, cusolver_candidates, missing_hint, nvrtc_candidates

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="file names of Linux")


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A site folder with the CUDA 13 and CUDA 12 wheels, and no toolkit."""
    root = tmp_path / "site" / "nvidia"
    for folder in ("cu13/lib", "cuda_nvrtc/lib", "cublas/lib"):
        (root / folder).mkdir(parents=True)
    spec = SimpleNamespace(submodule_search_locations=[str(root)])
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: spec if name == "nvidia" else None)
    for variable in ("CUDA_PATH", "CUDA_HOME", "PYGPUKIT_NVRTC", "PYGPUKIT_CUBLASLT", "PYGPUKIT_CUSOLVER"):
        monkeypatch.delenv(variable, raising=False)
    return root


def test_without_a_driver_the_newest_library_comes_first(wheels: Path) -> None:
    assert nvrtc_candidates(None) == [
        str(wheels / "cu13/lib/libnvrtc.so.13"),
        str(wheels / "cuda_nvrtc/lib/libnvrtc.so.12"),
        "libnvrtc.so.13",
        "libnvrtc.so.12",
    ]


def test_a_library_newer_than_the_driver_is_left_out(wheels: Path) -> None:
    assert nvrtc_candidates(12) == [str(wheels / "cuda_nvrtc/lib/libnvrtc.so.12"), "libnvrtc.so.12"]
    assert nvrtc_candidates(13) == nvrtc_candidates(None)
    assert nvrtc_candidates(14)[-3:] == ["libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12"]


def test_the_toolkit_stands_between_wheels_and_system(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PATH", "/opt/cuda")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    found = nvrtc_candidates(12)
    assert found[:2] == [str(wheels / "cuda_nvrtc/lib/libnvrtc.so.12"), "/opt/cuda/lib64/libnvrtc.so.12"]
    assert found[-1] == "libnvrtc.so.12"
    assert len(found) == len(set(found))


def test_a_relative_toolkit_path_is_ignored(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PATH", "cuda")
    assert not any(path.startswith("cuda/") for path in nvrtc_candidates(None))


def test_a_forced_library_is_the_only_candidate(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGPUKIT_NVRTC", "/x/libnvrtc.so")
    monkeypatch.setenv("PYGPUKIT_CUBLASLT", "/y/libcublasLt.so")
    assert nvrtc_candidates(13) == ["/x/libnvrtc.so"]
    assert cublaslt_candidates(None) == ["/y/libcublasLt.so"]


def test_cublaslt_has_its_own_folders(wheels: Path) -> None:
    assert cublaslt_candidates(None) == [
        str(wheels / "cu13/lib/libcublasLt.so.13"),
        str(wheels / "cublas/lib/libcublasLt.so.12"),
        "libcublasLt.so.13",
        "libcublasLt.so.12",
    ]


def test_cusolver_is_numbered_behind_its_cuda(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheels / "cusolver/lib").mkdir(parents=True)
    assert cusolver_candidates(None) == [
        str(wheels / "cu13/lib/libcusolver.so.12"),
        str(wheels / "cusolver/lib/libcusolver.so.11"),
        "libcusolver.so.12",
        "libcusolver.so.11",
    ]
    monkeypatch.setenv("PYGPUKIT_CUSOLVER", "/y/libcusolver.so")
    assert cusolver_candidates(None) == ["/y/libcusolver.so"]
    assert missing_hint("cusolver") == 'pip install "pygpukit[cusolver]"'


def test_no_wheels_leave_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("PYGPUKIT_NVRTC", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert nvrtc_candidates(13) == ["libnvrtc.so.13", "libnvrtc.so.12"]


def test_windows_names(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.sys, "platform", "win32")
    found = nvrtc_candidates(13)
    assert found[-2:] == ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    assert found[0] == str(wheels / "cu13" / "bin" / "x86_64" / "nvrtc64_130_0.dll")
    assert cublaslt_candidates(12)[-1] == "cublasLt64_12.dll"


def test_hints_are_pip_lines() -> None:
    assert missing_hint("nvrtc") == 'pip install "nvidia-cuda-nvrtc>=13.3"'
    assert missing_hint("nvrtc", 12) == 'pip install "pygpukit[cuda12]"'
    assert missing_hint("cublaslt") == 'pip install "pygpukit[cublas]"'
