"""CUDA C++ to kernels at run time: signatures, compiler, disk cache, bundles."""

from __future__ import annotations

from pygpukit.jit.kernel import jit, load_ptx, warmup
from pygpukit.jit.modules import Module, module
from pygpukit.jit.nvrtc import get_nvrtc_path, get_nvrtc_version, is_nvrtc_available

__all__ = [
    "Module",
    "get_nvrtc_path",
    "get_nvrtc_version",
    "is_nvrtc_available",
    "jit",
    "load_ptx",
    "module",
    "warmup",
]
