"""What a bug report needs: versions, devices, libraries, settings, and what is missing."""

from __future__ import annotations

import os
import sys
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.config import read_settings
from pygpukit.core import device as _device
from pygpukit.core.libraries import cublaslt_candidates, missing_hint, nvrtc_candidates
from pygpukit.errors import GPUKitError

__all__ = ["info", "memory_info"]

_PACKAGES = ("numpy", "ml_dtypes", "msgpack", "rich", "nvidia-cuda-nvrtc", "nvidia-cublas", "torch", "cupy-cuda13x")


def info() -> dict[str, Any]:
    """Everything a bug report needs, as plain values.

    Returns
    -------
    dict
        ``pygpukit``, ``python``, ``platform``, ``packages``, ``driver``, ``devices``, ``nvrtc``, ``cublaslt``,
        ``current_device`` (or why it cannot be opened),
        ``settings`` (the PYGPUKIT_* variables that are set) and ``missing`` (what, and the line that adds it).

    Examples
    --------
    >>> sorted(info())[:3]
    ['cublaslt', 'current_device', 'devices']
    """
    import platform

    missing: list[dict[str, str]] = []
    report: dict[str, Any] = {
        "pygpukit": _native.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith("PYGPUKIT_")},
        "driver": _driver(missing),
        "devices": [],
        "missing": missing,
    }
    for index in range(_device.device_count()):
        try:
            report["devices"].append(_device.get_device_info(index))
        except GPUKitError as error:
            report["devices"].append({"index": index, "error": str(error)})
    major = report["driver"]["version"][0] if report["driver"] else None
    report["nvrtc"] = _library("nvrtc", _native.nvrtc_open, nvrtc_candidates(major), major, missing)
    report["cublaslt"] = _library("cublaslt", _native.cublaslt_open, cublaslt_candidates(major), major, missing)
    report["current_device"] = _current()
    return report


def memory_info() -> dict[str, Any]:
    """What there is of memory, and what bounds it, as plain values.

    Returns
    -------
    dict
        ``devices`` (each with ``device``, and its free and total bytes, limits of host memory, size of a page and
        whether arrays can be evicted, or an ``error``), ``host_memory`` and ``settings``: the values in force, None
        for what depends on the machine.

    Examples
    --------
    >>> sorted(memory_info())
    ['devices', 'host_memory', 'settings']
    """
    settings = read_settings()
    names = [f"cuda:{index}" for index in range(_device.device_count())]
    devices: list[dict[str, Any]] = []
    try:
        current = _device.current_device()
        if current.kind != "cuda":
            names.insert(0, current.kind)
    except GPUKitError as error:
        devices.append({"device": settings.device or "default", "error": str(error)})
    host_memory = None
    for name in names:
        try:
            with _device.device(name) as opened:
                free, total = opened.memory_info()
                limits = _native.memory_limits(opened)
        except GPUKitError as error:
            devices.append({"device": name, "error": str(error)})
            continue
        host_memory = limits.pop("host_memory")
        devices.append({"device": name, "name": opened.name, "free": free, "total": total, **limits})
    fields = ("pool", "eviction", "pinned_limit", "spill_limit", "cpu_memory")
    return {
        "devices": devices,
        "host_memory": host_memory,
        "settings": {f"PYGPUKIT_{field.upper()}": getattr(settings, field) for field in fields},
    }


def _current() -> str:
    # A device that cannot be opened is what a report is often about.
    try:
        return repr(_device.current_device())
    except GPUKitError as error:
        return f"none: {error}"


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _driver(missing: list[dict[str, str]]) -> dict[str, Any] | None:
    try:
        path = _native.driver_path()
        version = _native.driver_version() or 0
        return {"version": (version // 1000, version % 1000 // 10), "path": path}
    except GPUKitError as error:
        missing.append({"what": "CUDA driver", "why": str(error), "fix": "install the NVIDIA driver for your GPU"})
        return None


def _library(
    name: str, opener: Any, candidates: list[str], major: int | None, missing: list[dict[str, str]]
) -> dict[str, Any] | None:
    try:
        path, version = opener(candidates)
        return {"path": path, "version": version}
    except GPUKitError as error:
        missing.append({"what": name, "why": str(error), "fix": missing_hint(name, major)})
        return None
