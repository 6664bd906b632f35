"""`gp.jit` and `gp.load_ptx`: source text to a kernel that can be launched."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import DeviceError, KernelCompileError
from pygpukit.jit.nvrtc import is_nvrtc_available

__all__ = ["check_arguments", "jit", "load_ptx", "warmup"]

_MAX_KERNELS = 512
_MAX_PTX = 256 << 20
# How text in one line begins: with a comment or a directive. Paths such as ./k.ptx or .cache/k.ptx do not.
_PTX_START = re.compile(r"\s*(?:$|//|/\*|\.\w+(?:\s|$))")
_WARMUP = 'extern "C" __global__ void pgk_warmup() {}'

_kernels: OrderedDict[Hashable, _native.Kernel] = OrderedDict()
_kernels_lock = threading.Lock()


def jit(
    src: str,
    func: str | None = None,
    options: Sequence[str] = (),
    defines: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    check: bool | Literal["fuzz"] = False,
    seed: int | None = None,
    sliceable: bool | None = None,
) -> _native.Kernel:
    """Compile a CUDA C++ kernel for the current device.

    The same source and options give the same object. Compiled images are kept on disk, so that a program compiles
    its kernels once and not once per run.

    Parameters
    ----------
    src : str
        CUDA C++ text. It may include the C library's headers, the CUDA toolkit's where they are found, and
        ``"pygpukit/f16.cuh"`` and its neighbours.
    func : str, optional
        Name of the kernel, with template arguments where it has them: ``"add<float>"``. May be left out when the
        source has one kernel.
    options : sequence of str, optional
        Options for NVRTC, such as ``["--use_fast_math"]``.
    defines : mapping of str to object, optional
        Macros.
    headers : mapping of str to str, optional
        Name to text of headers the source includes.
    check : bool or "fuzz", optional
        On the CPU device, look for errors while it runs: accesses outside of arrays, reads of what was never written,
        data races, divergent barriers. The first one found raises `KernelFaultError`. ``"fuzz"`` also runs warps and
        blocks in a random order, drawn from `seed`.
    seed : int, optional
        For ``check="fuzz"``; 0 by default. The same seed gives the same order.
    sliceable : bool, optional
        Whether a scheduled task that has to give way to others may launch it in ranges of blocks. By default it is
        where the source shows that it can be; True makes it an error where it cannot. Use False where the order of
        blocks matters beyond what a grid promises, or where blocks wait for each other.

    Returns
    -------
    Kernel
        Called as ``kernel(x, 0.5, n)`` or by name, with ``grid``, ``block``, ``shared``, ``stream`` and ``cooperative``
        where wanted.

    Raises
    ------
    KernelCompileError
        If the source does not compile or has no such kernel; the text shows the lines.
    NvrtcNotFoundError
        If it must be compiled and NVRTC is not there.

    Examples
    --------
    >>> import pygpukit as gp
    >>> kernel = gp.jit("__global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }")  # doctest: +SKIP
    """
    if sliceable not in (None, True, False):
        raise ValueError(f"sliceable={sliceable!r} is not valid: use True, False or None")
    check_arguments(src, options, defines, headers, check, seed)
    device = _native.current_device()
    order = (seed or 0) if check == "fuzz" else None
    key = (
        (device._number, src, func, tuple(options), check, order, sliceable),
        tuple(sorted((name, type(value).__name__, str(value)) for name, value in (defines or {}).items())),
        tuple(sorted((headers or {}).items())),
    )
    kernel = _known(key)
    if kernel is not None:
        return kernel
    # Only who compiles pays for the import.
    from pygpukit.jit.build import kernel_from_source

    made = kernel_from_source(device, src, func, options, defines, headers, check is not False, order, sliceable)
    return _remember(key, made)


def check_arguments(
    src: str,
    options: Sequence[str],
    defines: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    check: bool | Literal["fuzz"],
    seed: int | None,
) -> None:
    """Refuse what no compile takes, and checks that the current device does not have."""
    if check not in (False, True, "fuzz"):
        raise ValueError(f"check={check!r} is not valid: use True, False or 'fuzz'")
    if seed is not None and check != "fuzz":
        raise ValueError(f"seed={seed!r} is for check='fuzz'")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"seed={seed!r} is not valid: use an integer from 0 to 2**64 - 1")
    if not isinstance(src, str):
        raise TypeError(f"src must be CUDA C++ text, not {type(src).__name__}")
    if isinstance(options, str):
        raise TypeError(f"options must be a sequence of texts, not one text: use options=[{options!r}]")
    _check_texts("options", options)
    _check_texts("the names in defines", defines or ())
    _check_texts("the names in headers", headers or ())
    _check_texts("the contents of headers", (headers or {}).values())
    device = _native.current_device()
    if check is not False and device.kind == "cuda":
        raise DeviceError(
            f"check={check!r} runs on the CPU device: use `with gp.device('cpu'):` or PYGPUKIT_DEVICE=cpu; on a "
            "GPU, compute-sanitizer with PYGPUKIT_POOL=none checks accesses"
        )


def _check_texts(what: str, texts: Iterable[object]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{what} must be texts, not {text!r} of type {type(text).__name__}")


def load_ptx(path_or_text: str | os.PathLike[str], func: str | None = None) -> _native.Kernel:
    """Load a kernel from PTX.

    PTX keeps no parameter names: they are ``arg0``, ``arg1``, ... The driver compiles the text for the device, and
    refuses text of a newer version than its own.

    Parameters
    ----------
    path_or_text : str or path
        PTX text, or the file that holds it. A `str` is text when it has more than one line, or begins with a comment
        or a directive such as ``.version``; a `pathlib.Path` is always a file.
    func : str, optional
        The entry point; may be left out when there is one.

    Raises
    ------
    KernelCompileError
        If there is no such entry point, or no text at all.
    OSError
        If the file cannot be read.
    """
    text = _ptx_text(path_or_text)
    device = _native.current_device()
    key = (device._number, "ptx", text, func)
    kernel = _known(key)
    if kernel is not None:
        return kernel
    from pygpukit.jit.build import kernel_from_ptx

    return _remember(key, kernel_from_ptx(text, func))


def warmup() -> None:
    """Open the device and the compiler now, so that the first kernel does not pay for it.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.warmup()
    """
    _native.current_device()
    if is_nvrtc_available():
        # Past every cache: it is the compiler's first run in a process that takes long.
        _native.nvrtc_compile(_WARMUP, "pgk_warmup.cu", ["--gpu-architecture=sm_80"], {}, [], "cubin")


def _known(key: Hashable) -> _native.Kernel | None:
    with _kernels_lock:
        kernel = _kernels.get(key)
        if kernel is not None:
            _kernels.move_to_end(key)
        return kernel


def _remember(key: Hashable, kernel: _native.Kernel) -> _native.Kernel:
    with _kernels_lock:
        # Two threads may have made the same kernel: both get the first.
        kernel = _kernels.setdefault(key, kernel)
        while len(_kernels) > _MAX_KERNELS:
            _kernels.popitem(last=False)
        return kernel


def _ptx_text(path_or_text: str | os.PathLike[str]) -> str:
    if isinstance(path_or_text, str):
        text = path_or_text.rstrip("\0")
        # No path has a zero inside.
        if "\n" in text or "\0" in text or _PTX_START.match(text):
            return _not_empty(text, "the PTX text")
    from pathlib import Path

    path = Path(path_or_text)
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_PTX + 1)
    except OSError as error:
        if isinstance(path_or_text, str):
            shown = path_or_text if len(path_or_text) <= 200 else path_or_text[:200] + "..."
            remark = "no PTX text either, which begins with a comment or a directive such as .version"
            raise type(error)(error.errno, f"{error.strerror}, and {remark}", shown) from None
        raise
    if len(data) > _MAX_PTX:
        raise KernelCompileError(f"{path} is larger than {_MAX_PTX} bytes: it is no PTX text")
    try:
        text = data.decode("utf-8").rstrip("\0")
    except UnicodeDecodeError:
        raise KernelCompileError(f"{path} is not text: load_ptx takes PTX, not a cubin") from None
    return _not_empty(text, path)


def _not_empty(text: str, what: object) -> str:
    if not text.strip():
        raise KernelCompileError(f"{what} is empty: load_ptx takes PTX text, or the path of a file that holds it")
    return text
