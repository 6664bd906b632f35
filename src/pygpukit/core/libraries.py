"""Where the CUDA libraries may be: names and folders to try, in order, without opening anything."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pygpukit.config import read_settings

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["cublaslt_candidates", "cusolver_candidates", "header_folders", "missing_hint", "nvrtc_candidates"]

# Newest first: the order for a machine without a driver.
_MAJORS = (13, 12)


class _Library(NamedTuple):
    """File names of one library ({major} is filled in), the folder of its CUDA 12 wheel, what pip calls it, and by how
    much its number is behind CUDA's."""

    linux: str
    windows: str
    wheel_folder: str
    pip: str
    pip_cuda12: str
    behind: int = 0


_LIBRARIES = {
    "nvrtc": _Library(
        linux="libnvrtc.so.{major}",
        windows="nvrtc64_{major}0_0.dll",
        wheel_folder="cuda_nvrtc",
        pip='"nvidia-cuda-nvrtc>=13.3"',
        pip_cuda12='"pygpukit[cuda12]"',
    ),
    "cublaslt": _Library(
        linux="libcublasLt.so.{major}",
        windows="cublasLt64_{major}.dll",
        wheel_folder="cublas",
        pip='"pygpukit[cublas]"',
        pip_cuda12="nvidia-cublas-cu12",
    ),
    # Its number is one less than that of the CUDA it belongs to.
    "cusolver": _Library(
        linux="libcusolver.so.{major}",
        windows="cusolver64_{major}.dll",
        wheel_folder="cusolver",
        pip='"pygpukit[cusolver]"',
        pip_cuda12="nvidia-cusolver-cu12",
        behind=1,
    ),
}


def nvrtc_candidates(major: int | None = None) -> list[str]:
    """Paths and names under which NVRTC may be found, best first.

    Parameters
    ----------
    major : int, optional
        CUDA major version of the driver. Code of an older major runs on it, code of a newer one does not, so newer
        libraries are left out. None means that there is no driver: the newest library is best.

    Returns
    -------
    list of str
        PYGPUKIT_NVRTC alone when it is set; otherwise absolute paths in pip wheels, then below CUDA_PATH and
        CUDA_HOME, then bare names for the system's loader. A path in the list need not exist.

    Examples
    --------
    >>> nvrtc_candidates(13)[-1].startswith(("libnvrtc", "nvrtc64"))
    True
    """
    return _candidates("nvrtc", major)


def cublaslt_candidates(major: int | None = None) -> list[str]:
    """Paths and names under which cuBLASLt may be found, best first; see `nvrtc_candidates`."""
    return _candidates("cublaslt", major)


def cusolver_candidates(major: int | None = None) -> list[str]:
    """Paths and names under which cuSOLVER may be found, best first; see `nvrtc_candidates`."""
    return _candidates("cusolver", major)


def header_folders(major: int) -> list[tuple[Path, ...]]:
    """Folders with the headers of a CUDA major version, each with the folders that belong to it, best first.

    Parameters
    ----------
    major : int
        CUDA major version of the compiler.

    Returns
    -------
    list of tuple of Path
        Those of pip wheels, beside PYGPUKIT_NVRTC, below CUDA_PATH and CUDA_HOME, and of the system.
    """
    from pathlib import Path

    found: list[tuple[Path, ...]] = []
    for root in _wheel_roots():
        # From CUDA 13 on wheels share one folder; before, each has its own.
        owners = (f"cu{major}",) if major >= 13 else ("cuda_runtime", "cuda_nvcc", "cuda_cccl", "curand", "cublas")
        folders = [root / name / "include" for name in owners]
        found.append(tuple(path for folder in folders for path in (folder, folder / "cccl")))
    forced = read_settings().nvrtc
    roots = [] if forced is None else [Path(forced).resolve().parent.parent]
    roots += [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.path.isabs(os.environ.get(name, ""))]
    if sys.platform != "win32":
        roots += [Path(f"/usr/local/cuda-{major}"), Path("/usr/local/cuda")]
    found += [(root / "include", root / "include" / "cccl") for root in roots]
    existing = (tuple(folder for folder in folders if folder.is_dir()) for folders in found)
    return list(dict.fromkeys(folders for folders in existing if folders))


def missing_hint(library: str, major: int | None = None) -> str:
    """The pip line that adds a library.

    Parameters
    ----------
    library : str
        ``"nvrtc"``, ``"cublaslt"`` or ``"cusolver"``.
    major : int, optional
        CUDA major version of the driver; None means the newest.

    Examples
    --------
    >>> missing_hint("nvrtc", 12)
    'pip install "pygpukit[cuda12]"'
    """
    entry = _LIBRARIES[library]
    return f"pip install {entry.pip_cuda12 if major == 12 else entry.pip}"


def _candidates(library: str, major: int | None) -> list[str]:
    settings = read_settings()
    forced = {"nvrtc": settings.nvrtc, "cublaslt": settings.cublaslt, "cusolver": settings.cusolver}[library]
    if forced is not None:
        return [str(forced)]
    majors = _MAJORS if major is None else tuple(range(major, min(_MAJORS) - 1, -1))
    names = {number: _file_name(library, number) for number in majors}
    places = [(number, folder) for number in majors for folder in _wheel_folders(library, number)]
    places += [(number, folder) for number in majors for folder in _toolkit_folders()]
    paths = [str(folder / names[number]) for number, folder in places]
    # Two variables often name the same folder.
    return list(dict.fromkeys([*paths, *names.values()]))


def _file_name(library: str, major: int) -> str:
    entry = _LIBRARIES[library]
    return (entry.windows if sys.platform == "win32" else entry.linux).format(major=major - entry.behind)


def _wheel_folders(library: str, major: int) -> Iterator[Path]:
    """Library folders of the NVIDIA wheels on sys.path: one per CUDA major from 13 on, one per library before."""
    inner = f"cu{major}" if major >= 13 else _LIBRARIES[library].wheel_folder
    for root in _wheel_roots():
        base = root / inner
        if base.is_dir():
            # Windows wheels of CUDA 13 keep the libraries of each processor apart.
            yield from [base / "bin" / "x86_64", base / "bin"] if sys.platform == "win32" else [base / "lib"]


def _wheel_roots() -> list[Path]:
    """Folders of the namespace package that NVIDIA's wheels share, spread over sys.path."""
    from pathlib import Path

    # find_spec of a top-level name imports nothing.
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    return [Path(root) for root in (spec.submodule_search_locations if spec is not None else None) or []]


def _toolkit_folders() -> Iterator[Path]:
    from pathlib import Path

    for variable in ("CUDA_PATH", "CUDA_HOME"):
        root = os.environ.get(variable, "").strip()
        if root and os.path.isabs(root):
            # A toolkit on an aarch64 server may have its libraries only in the target folder "sbsa-linux".
            subfolders = ("bin/x64", "bin") if sys.platform == "win32" else ("lib64", "lib", "targets/sbsa-linux/lib")
            yield from (Path(root) / sub for sub in subfolders)
