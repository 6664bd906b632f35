"""Folders with the CUDA toolkit's headers: those bundled in NVRTC, then pip wheels, then toolkits."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.libraries import header_folders
from pygpukit.jit.cache import cache_folder, open_cache
from pygpukit.jit.headers import included_names
from pygpukit.jit.nvrtc import expected_version, open_nvrtc

__all__ = ["FolderSet", "find_headers", "folders_in_options", "install_hint", "missing_headers"]

# The first NVRTC that carries its headers with it.
_BUNDLED_SINCE = (13, 3)
_MARKER = ".nvrtc_headers_version"
_FOLDER_OPTION = re.compile(r"(?:-I|--?include-path(?:=|$))\s*(.*)")

_install_lock = threading.Lock()

# Beginnings of header names, and what has them beside the extra.
_PACKAGES = (
    ("curand", "nvidia-curand"),
    ("cublas", "nvidia-cublas"),
    ("cufft", "nvidia-cufft"),
    ("cusparse", "nvidia-cusparse"),
)
# Headers of the C++ library that CCCL has for kernels.
_STANDARD_NAMES = (
    "algorithm array atomic barrier bit chrono complex concepts functional initializer_list iterator latch limits "
    "mdspan numeric optional ratio semaphore span tuple type_traits utility variant version "
)
_STANDARD = frozenset(_STANDARD_NAMES.split())


class FolderSet(NamedTuple):
    """Folders that belong together.

    Attributes
    ----------
    folders : tuple of Path
        What the compiler gets, in this order.
    identity : str
        Changes when a header in them changes.
    """

    folders: tuple[Path, ...]
    identity: str


def find_headers(names: Iterable[str]) -> list[FolderSet]:
    """Folders that have these headers; a name that is nowhere adds none.

    Parameters
    ----------
    names : iterable of str
        Names as ``#include`` gives them.
    """
    found: list[FolderSet] = []
    missing = [name for name in names if not os.path.isabs(name)]
    for source in (_bundled, _installed):
        for candidate in source() if missing else ():
            here = [name for name in missing if any((folder / name).is_file() for folder in candidate)]
            if here:
                found.append(FolderSet(candidate, "bundled" if source is _bundled else _identity(candidate)))
                missing = [name for name in missing if name not in here]
    return found


def folders_in_options(options: Sequence[str]) -> list[Path]:
    """Folders that options for the compiler name.

    Examples
    --------
    >>> [str(folder) for folder in folders_in_options(["-I/a", "-G", "--include-path=/b", "-I", "/c"])]
    ['/a', '/b', '/c']
    """
    folders = []
    rest = iter(options)
    for option in rest:
        match = _FOLDER_OPTION.fullmatch(option)
        if match is not None:
            folders.append(Path(match[1] or next(rest, "")))
    return folders


def install_hint(name: str, major: int) -> str:
    """What to do for a header that was not found.

    Examples
    --------
    >>> install_hint("type_traits", 13)
    'include <cuda/std/type_traits> and use cuda::std instead of std'
    """
    if name in _STANDARD:
        return f"include <cuda/std/{name}> and use cuda::std instead of std"
    suffix = "-cu12" if major == 12 else ""
    package = next((package + suffix for start, package in _PACKAGES if name.startswith(start)), None)
    if package is None:
        package = f'"pygpukit[headers{suffix}]"'
    return (
        f"if it belongs to CUDA: pip install {package}, or set CUDA_PATH to a toolkit. If it is yours: give its text "
        f'with headers={{"{name}": ...}}, or name its folder with options=["-I/path"]'
    )


def _bundled() -> Iterator[tuple[Path, ...]]:
    """The headers that the NVRTC in use carries, unpacked once per version."""
    version = expected_version()
    if version < _BUNDLED_SINCE:
        return
    folder = _unpacked(version)
    if folder is not None:
        yield folder, folder / "cccl"


def _unpacked(version: tuple[int, int]) -> Path | None:
    name = f"headers-{version[0]}.{version[1]}"
    with _install_lock:
        base = cache_folder() if open_cache() is not None else None
        if base is not None:
            folder = base / name
            # The compiler writes the marker last.
            if (folder / _MARKER).is_file() or _unpack(folder):
                return folder
        folder = _temporary() / name
        return folder if (folder / _MARKER).is_file() or _unpack(folder) else None


def _unpack(folder: Path) -> bool:
    open_nvrtc()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return _native.nvrtc_install_headers(str(folder)) and (folder / _MARKER).is_file()


@functools.cache
def _temporary() -> Path:
    """Where the headers are while this process lives, if the cache is off or cannot be written."""
    folder = tempfile.mkdtemp(prefix="pygpukit-headers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _installed() -> Iterator[tuple[Path, ...]]:
    yield from header_folders(expected_version()[0])


@functools.cache
def _identity(folders: tuple[Path, ...]) -> str:
    """Digest of names, sizes and times of all files: reading some thousand headers would cost more than a compile."""
    digest = hashlib.sha256()
    for folder in folders:
        for root, inner, names in os.walk(folder):
            inner.sort()
            for name in sorted(names):
                path = os.path.join(root, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue
                line = f"{os.path.relpath(path, folder)}\0{status.st_size}\0{status.st_mtime_ns}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def missing_headers(source: str, headers: Mapping[str, str], folders: Sequence[Path]) -> list[str]:
    """Names that a source or a header it uses includes, and that are neither texts nor in these folders."""
    names: dict[str, None] = {}
    for text in (source, *headers.values()):
        names.update(dict.fromkeys(included_names(text)))
    return [name for name in names if name not in headers and not any((folder / name).is_file() for folder in folders)]
