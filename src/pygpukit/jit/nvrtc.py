"""The NVRTC library: found and opened at the first compile, once per process."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.libraries import missing_hint, nvrtc_candidates
from pygpukit.errors import NvrtcNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Nvrtc", "expected_version", "get_nvrtc_path", "get_nvrtc_version", "is_nvrtc_available", "open_nvrtc"]

# The library of built-in functions stands beside NVRTC and carries the full version in its name.
_BUILTINS = re.compile(r"libnvrtc-builtins\.so\.([0-9]{1,3})\.([0-9]{1,3})|nvrtc-builtins64_([0-9]{2})([0-9])\.dll")

_lock = threading.Lock()
_opened: Nvrtc | None = None


class Nvrtc(NamedTuple):
    """The opened library.

    Attributes
    ----------
    path : str
        The file, or the bare name under which the system found it.
    version : tuple of int
        Major and minor version.
    """

    path: str
    version: tuple[int, int]


def open_nvrtc() -> Nvrtc:
    """Open NVRTC, or return the one that is open.

    Raises
    ------
    NvrtcNotFoundError
        If none can be opened; the text lists what was tried and how to install it.
    """
    global _opened
    if _opened is not None:
        return _opened
    with _lock:
        if _opened is None:
            major = _driver_major()
            try:
                path, version = _native.nvrtc_open(nvrtc_candidates(major))
            except NvrtcNotFoundError as error:
                raise NvrtcNotFoundError(f"{error}{_other_major(major)}") from None
            _opened = Nvrtc(path, version)
        return _opened


def expected_version() -> tuple[int, int]:
    """Version of the NVRTC that `open_nvrtc` finds, told from file names where possible.

    Opening takes tens of milliseconds, more than a kernel that is already in the cache should cost.

    Raises
    ------
    NvrtcNotFoundError
        If there is none.
    """
    from pathlib import Path

    if _opened is None:
        for candidate in nvrtc_candidates(_driver_major()):
            if os.path.isabs(candidate) and os.path.isfile(candidate):
                version = _version_beside(Path(candidate))
                if version is not None:
                    return version
                break
    return open_nvrtc().version


def is_nvrtc_available() -> bool:
    """Whether kernels can be compiled at run time.

    Examples
    --------
    >>> isinstance(is_nvrtc_available(), bool)
    True
    """
    try:
        open_nvrtc()
    except NvrtcNotFoundError:
        return False
    return True


def get_nvrtc_version() -> tuple[int, int] | None:
    """Major and minor version of NVRTC; None where it is not there."""
    return open_nvrtc().version if is_nvrtc_available() else None


def get_nvrtc_path() -> str | None:
    """The NVRTC library in use; None where it is not there."""
    return open_nvrtc().path if is_nvrtc_available() else None


def _driver_major() -> int | None:
    version = _native.driver_version()
    return None if version is None else version // 1000


def _version_beside(library: Path) -> tuple[int, int] | None:
    """Version told by the built-ins library in the same folder; None unless there is exactly one."""
    try:
        names = os.listdir(library.parent)
    except OSError:
        return None
    versions = set()
    for name in names:
        match = _BUILTINS.match(name)
        if match is not None:
            versions.add((int(match[1] or match[3]), int(match[2] or match[4])))
    return versions.pop() if len(versions) == 1 else None


def _other_major(major: int | None) -> str:
    """A remark for a machine whose NVRTC is newer than its driver."""
    if major is None:
        return ""
    wanted = set(nvrtc_candidates(major))
    newer = [path for path in nvrtc_candidates(None) if path not in wanted and os.path.isfile(path)]
    if not newer:
        return ""
    return (
        f"\n{newer[0]} is there, but its code does not run on this driver (CUDA {major}.x): update the driver, or "
        f"{missing_hint('nvrtc', major)}"
    )
