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

from numpy import (
    complexfloating,
    errstate,
    floating,
    generic,
    get_printoptions,
    geterr,
    index_exp,
    inexact,
    integer,
    iterable,
    ndindex,
    number,
    printoptions,
    s_,
    set_printoptions,
    seterr,
    signedinteger,
    unsignedinteger,
)

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
from pygpukit.array.texts import frombuffer, fromfile, fromiter, genfromtxt, loadtxt, savetxt
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
    byte,
    cdouble,
    complex64,
    complex128,
    csingle,
    double,
    dtype,
    e,
    euler_gamma,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    half,
    inf,
    int8,
    int16,
    int32,
    int64,
    int_,
    intc,
    intp,
    longlong,
    nan,
    newaxis,
    pi,
    short,
    single,
    to_numpy_dtype,
    ubyte,
    uint,
    uint8,
    uint16,
    uint32,
    uint64,
    uintc,
    uintp,
    ulonglong,
    ushort,
)
from pygpukit.errors import *  # noqa: F403
from pygpukit.jit import Module, get_nvrtc_path, get_nvrtc_version, is_nvrtc_available, jit, load_ptx, module, warmup
from pygpukit.ops import binding as _binding
from pygpukit.ops.explain import explain
from pygpukit.ops.registry import functions as _registered
from pygpukit.ops.shape.grids import c_, mgrid, ogrid, r_

if _TYPE_CHECKING:
    from pygpukit import lib, ring, scheduler
    from pygpukit.ring import RingKernelRuntime, UnifiedBuffer, message, ring_kernel

__version__ = _native.__version__

# NumPy's name of the class of arrays, and of bool.
ndarray = GPUArray
bool = bool_


def __getattr__(name: str) -> _Any:
    # Not every program needs these, and their imports take their time.
    if name in ("array_api", "audio", "lib", "llm", "ring", "scheduler"):
        return _importlib.import_module(f"pygpukit.{name}")
    if name in ("RingKernelRuntime", "UnifiedBuffer", "message", "ring_kernel"):
        return getattr(_importlib.import_module("pygpukit.ring"), name)
    raise AttributeError(f"module 'pygpukit' has no attribute '{name}'{_advice(name)}")


def _advice(name: str) -> str:
    import numpy

    if name.startswith("_") or name not in dir(numpy):
        return ""
    return f", which NumPy has: numpy.{name} works on x.to_numpy(); docs/coming-from-numpy.md lists what is not here"


# Families of operators are found, not listed: each adds its names.
globals().update(_registered())
_methods.attach()
_binding.attach()
_atexit.register(_native.shutdown)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_native.forget_tasks)

__all__ = [
    "array_api",  # noqa: F405
    "bfloat16",
    "bool_",
    "byte",
    "c_",
    "cdouble",
    "complex128",
    "complex64",
    "complexfloating",
    "copy_many",
    "copy_to_device",
    "copy_to_host",
    "csingle",
    "CudaGraph",
    "current_device",
    "current_stream",
    "DataType",
    "default_stream",
    "deterministic",
    "device",
    "Device",
    "device_count",
    "double",
    "dtype",
    "e",
    "empty",
    "empty_growable",
    "empty_like",
    "empty_pinned",
    "errors",
    "errstate",
    "euler_gamma",
    "Event",
    "explain",
    "fft",
    "fingerprint",
    "float16",
    "float32",
    "float64",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "floating",
    "from_dlpack",
    "from_numpy",
    "frombuffer",
    "fromfile",
    "fromiter",
    "full",
    "full_like",
    "generic",
    "genfromtxt",
    "get_deterministic",
    "get_device_capabilities",
    "get_device_info",
    "get_nvrtc_path",
    "get_nvrtc_version",
    "get_printoptions",
    "geterr",
    "GPUArray",
    "GraphPool",
    "half",
    "index_exp",
    "inexact",
    "inf",
    "info",
    "int16",
    "int32",
    "int64",
    "int8",
    "int_",
    "intc",
    "integer",
    "intp",
    "is_cuda_available",
    "is_nvrtc_available",
    "iterable",
    "jit",
    "Kernel",
    "lib",
    "linalg",
    "load",
    "load_algorithms",
    "load_ptx",
    "load_raw",
    "loadtxt",
    "longlong",
    "memory",
    "message",
    "mgrid",
    "module",
    "Module",
    "nan",
    "ndarray",
    "ndindex",
    "newaxis",
    "NpzFile",
    "number",
    "ogrid",
    "ones",
    "ones_like",
    "pi",
    "pinned",
    "printoptions",
    "quant",
    "r_",
    "random",
    "ring",
    "ring_kernel",
    "RingKernelRuntime",
    "s_",
    "save",
    "save_algorithms",
    "savetxt",
    "savez",
    "savez_compressed",
    "scheduler",
    "set_deterministic",
    "set_printoptions",
    "seterr",
    "short",
    "signedinteger",
    "single",
    "Stream",
    "StreamManager",
    "synchronize",
    "TensorMap",
    "to_numpy_dtype",
    "Transfer",
    "ubyte",
    "uint",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "uintc",
    "uintp",
    "ulonglong",
    "UnifiedBuffer",
    "unsignedinteger",
    "ushort",
    "warmup",
    "with_context",
    "zeros",
    "zeros_like",
    *errors.__all__,
    *_registered(),
]
