"""Files straight to the device, without a copy of the whole in host memory."""

from __future__ import annotations

import math
import operator
import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray, Stream
from pygpukit.config import format_size
from pygpukit.dtypes import DTypeLike, dtype
from pygpukit.errors import LoadError
from pygpukit.jit.progress import progress_bar

__all__ = ["load_raw"]

# How often the progress is reported, in seconds.
_STEP = 0.1

# The parameter is named `dtype`, as in NumPy, which hides the function of that name.
_dtype = dtype


def load_raw(
    path: str | os.PathLike[str],
    offset: SupportsIndex,
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: DTypeLike,
    *,
    device: Device | None = None,
    stream: Stream | None = None,
    writeable: bool = False,
    progress: bool | Callable[[int, int], Any] | None = None,
) -> GPUArray:
    """Load an array from its bytes in a file.

    The file is read in pieces, by several threads, straight into memory that the device copies from. Pieces the system
    has in its cache are taken from there; others are read past it where the file system allows.

    Parameters
    ----------
    path : str or path-like
    offset : int
        Where the first element starts, in bytes.
    shape : int or sequence of int
    dtype : DataType, str or numpy.dtype
        Element type; the bytes are taken as they are, in the machine's order.
    device : Device, optional
        The current one by default.
    stream : Stream, optional
        The array belongs to this stream; the current one by default.
    writeable : bool
        May the array be written? Loaded weights are read-only, as of `GPUArray.setflags`, unless this is True.
    progress : bool or callable, optional
        A bar on stderr: by default when it takes long and stderr is a terminal. A callable gets the bytes that have
        arrived and those in all.

    Returns
    -------
    GPUArray

    Raises
    ------
    LoadError
        If the file is too short, becomes too short meanwhile, cannot be read, or is no regular file.
    OSError
        If it cannot be opened, as by `open`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(bytes(16) + np.arange(3, dtype="int32").tobytes())
    ...     _ = file.flush()
    ...     load_raw(file.name, 16, 3, "int32").tolist()
    [0, 1, 2]
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress must be None, False, True or a function of two numbers, but it is {progress!r}")
    kind = _dtype(dtype)
    dims = _dimensions(shape)
    start = operator.index(offset)
    # As text that can be printed, whatever bytes the name has.
    name = os.fsencode(path).decode(errors="backslashreplace")
    wanted = math.prod(dims) * kind.itemsize
    if start < 0:
        raise ValueError(f"the offset must not be negative, but it is {start}")
    # Without O_NONBLOCK a pipe is waited for until somebody writes to it.
    flags = (getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))
    descriptor = os.open(path, os.O_RDONLY | sum(flags))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LoadError(f"'{name}' is no regular file; only those can be loaded")
        there = found.st_size
        # Asked before memory is taken for it.
        if start + wanted > there:
            raise LoadError(
                f"'{name}' is too short for {kind.name}{tuple(dims)} at offset {start}: {wanted} bytes are wanted, but "
                f"the file has {there} bytes, so {max(there - start, 0)} are there. Check offset, shape and dtype, and "
                "whether the file is complete"
            )
        chosen = stream.device if device is None and stream is not None else device
        array = _native.empty(dims, kind, chosen)
        handle = _native.start_load(array, descriptor, name, start, stream)
    finally:
        os.close(descriptor)
    try:
        _follow(handle, f"loading {os.path.basename(name)} ({format_size(wanted)})", progress)
    except BaseException:
        handle.cancel()
        raise
    if not writeable:
        array.setflags(write=False)
    return array


def _follow(handle: _native.TransferHandle, text: str, progress: bool | Callable[[int, int], Any] | None) -> None:
    if callable(progress):
        while not handle.wait(_STEP):
            progress(handle.bytes_done, handle.bytes)
        progress(handle.bytes_done, handle.bytes)
    elif progress is False:
        handle.wait()
    else:
        with progress_bar(text, handle.bytes, always=progress is True) as show:
            while not handle.wait(_STEP):
                show(handle.bytes_done)


def _dimensions(shape: SupportsIndex | Sequence[SupportsIndex]) -> list[int]:
    dims = [shape] if isinstance(shape, SupportsIndex) else list(shape)
    sizes = [operator.index(dim) for dim in dims]
    if any(not 0 <= size <= sys.maxsize for size in sizes):
        raise ValueError(f"dimensions must be from 0 to {sys.maxsize}, but the shape is {tuple(sizes)}")
    return sizes
