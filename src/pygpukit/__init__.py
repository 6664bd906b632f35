"""PyGPUkit: a small GPU runtime for Python.

Arrays and operators, CUDA C++ kernels compiled at run time, streams, graphs and memory pools, with only the NVIDIA
driver installed. Without a GPU the same array program runs on the CPU device.

    >>> import pygpukit as gp
    >>> gp.add(gp.ones(3), 1).tolist()
    [2.0, 2.0, 2.0]
"""

from __future__ import annotations

import atexit as _atexit
import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from pygpukit import _pygpukit_rust as _native
from pygpukit import errors, fft, linalg, quant, random
from pygpukit._pygpukit_rust import (
    CudaGraph,
    DataType,
    Event,
    GPUArray,
    GraphPool,
    Kernel,
    Stream,
    TensorMap,
    current_stream,
    default_stream,
)
from pygpukit.array import methods as _methods
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import (
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from pygpukit.array.exchange import from_dlpack
from pygpukit.array.files import NpzFile, load, save, savez, savez_compressed
from pygpukit.core import memory
from pygpukit.core.context import with_context
from pygpukit.core.cublaslt import load_algorithms, save_algorithms
from pygpukit.core.determinism import deterministic, fingerprint, get_deterministic, set_deterministic
from pygpukit.core.device import (
    Device,
    current_device,
    device,
    device_count,
    get_device_capabilities,
    get_device_info,
    is_cuda_available,
    synchronize,
)
from pygpukit.core.files import load_raw
from pygpukit.core.info import info
from pygpukit.core.memory import empty_growable, empty_pinned, pinned
from pygpukit.core.stream import StreamManager
from pygpukit.core.transfer import Transfer, copy_many, copy_to_device, copy_to_host
from pygpukit.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    dtype,
    e,
    euler_gamma,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    inf,
    int8,
    int16,
    int32,
    int64,
    nan,
    newaxis,
    pi,
    to_numpy_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from pygpukit.errors import *  # noqa: F403
from pygpukit.jit import Module, get_nvrtc_path, get_nvrtc_version, is_nvrtc_available, jit, load_ptx, module, warmup
from pygpukit.ops import binding as _binding
from pygpukit.ops.explain import explain
from pygpukit.ops.registry import functions as _registered

if _TYPE_CHECKING:
    from pygpukit import ring, scheduler
    from pygpukit.ring import RingKernelRuntime, UnifiedBuffer, message, ring_kernel

__version__ = _native.__version__


def __getattr__(name: str) -> _Any:
    # Not every program needs these, and their imports take their time.
    if name in ("array_api", "ring", "scheduler"):
        return _importlib.import_module(f"pygpukit.{name}")
    if name in ("RingKernelRuntime", "UnifiedBuffer", "message", "ring_kernel"):
        return getattr(_importlib.import_module("pygpukit.ring"), name)
    raise AttributeError(f"module 'pygpukit' has no attribute '{name}'")


# Families of operators are found, not listed: each adds its names.
globals().update(_registered())
_methods.attach()
_binding.attach()
_atexit.register(_native.shutdown)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_native.forget_tasks)

__all__ = [
    "CudaGraph",
    "DataType",
    "Device",
    "Event",
    "GPUArray",
    "GraphPool",
    "Kernel",
    "Module",
    "NpzFile",
    "RingKernelRuntime",
    "Stream",
    "StreamManager",
    "TensorMap",
    "Transfer",
    "UnifiedBuffer",
    "array_api",  # noqa: F405
    "bfloat16",
    "bool_",
    "complex64",
    "complex128",
    "copy_many",
    "copy_to_device",
    "copy_to_host",
    "current_device",
    "current_stream",
    "default_stream",
    "deterministic",
    "device",
    "device_count",
    "dtype",
    "e",
    "empty",
    "empty_like",
    "empty_growable",
    "empty_pinned",
    "errors",
    "euler_gamma",
    "explain",
    "fft",
    "fingerprint",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "get_device_capabilities",
    "get_deterministic",
    "get_device_info",
    "get_nvrtc_path",
    "get_nvrtc_version",
    "inf",
    "info",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_cuda_available",
    "is_nvrtc_available",
    "jit",
    "linalg",
    "load",
    "load_algorithms",
    "load_ptx",
    "load_raw",
    "memory",
    "module",
    "message",
    "nan",
    "newaxis",
    "ones",
    "ones_like",
    "pi",
    "pinned",
    "quant",
    "random",
    "ring",
    "ring_kernel",
    "save",
    "save_algorithms",
    "savez",
    "savez_compressed",
    "scheduler",
    "set_deterministic",
    "synchronize",
    "to_numpy_dtype",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "warmup",
    "with_context",
    "zeros",
    "zeros_like",
    *errors.__all__,
    *_registered(),
]
