"""Arrays from text files, raw files, buffers and iterators, and back: by NumPy's readers, then a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import DTypeLike, to_numpy_dtype

__all__ = ["frombuffer", "fromfile", "fromiter", "genfromtxt", "loadtxt", "savetxt"]


def loadtxt(fname: Any, dtype: DTypeLike = float, *, device: Device | None = None, **options: Any) -> GPUArray:
    """Read an array from a text file; the options are those of `numpy.loadtxt`.

    Examples
    --------
    >>> import io
    >>> loadtxt(io.StringIO("1 2\\n3 4")).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return from_numpy(np.loadtxt(fname, to_numpy_dtype(dtype), **options), device=device)


def genfromtxt(fname: Any, dtype: DTypeLike = float, *, device: Device | None = None, **options: Any) -> GPUArray:
    """Read an array from a text file in which numbers may be missing; the options are those of `numpy.genfromtxt`.

    Examples
    --------
    >>> import io
    >>> genfromtxt(io.StringIO("1,2\\n,4"), delimiter=",", filling_values=0).tolist()
    [[1.0, 2.0], [0.0, 4.0]]
    """
    return from_numpy(np.genfromtxt(fname, to_numpy_dtype(dtype), **options), device=device)


def savetxt(fname: Any, X: Any, *args: Any, **options: Any) -> None:
    """Write a vector or a matrix to a text file; the options are those of `numpy.savetxt`.

    Examples
    --------
    >>> import io
    >>> file = io.StringIO()
    >>> savetxt(file, gp.asarray([[1, 2]]), fmt="%d")
    >>> file.getvalue()
    '1 2\\n'
    """
    np.savetxt(fname, X.to_numpy() if isinstance(X, GPUArray) else X, *args, **options)


def fromfile(file: Any, dtype: DTypeLike = float, *args: Any, device: Device | None = None, **options: Any) -> GPUArray:
    """Read the raw elements of a file; the options are those of `numpy.fromfile`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(bytes([1, 0, 2, 0]))
    ...     _ = file.seek(0)
    ...     fromfile(file, "uint16").tolist()
    [1, 2]
    """
    return from_numpy(np.fromfile(file, to_numpy_dtype(dtype), *args, **options), device=device)


def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0, *,
               device: Device | None = None) -> GPUArray:  # fmt: skip
    """Copy the elements of a bytes-like object.

    Examples
    --------
    >>> frombuffer(bytes([1, 0, 2, 0]), "uint16").tolist()
    [1, 2]
    """
    return from_numpy(np.frombuffer(buffer, to_numpy_dtype(dtype), count, offset), device=device)


def fromiter(iter: Iterable[Any], dtype: DTypeLike, count: int = -1, *, device: Device | None = None) -> GPUArray:
    """Make a vector of what an iterable gives.

    Examples
    --------
    >>> fromiter((i * i for i in range(4)), int).tolist()
    [0, 1, 4, 9]
    """
    return from_numpy(np.fromiter(iter, to_numpy_dtype(dtype), count), device=device)
