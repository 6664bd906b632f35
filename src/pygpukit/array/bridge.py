"""Between NumPy and the device: copies both ways, and NumPy views of arrays on the CPU device."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray, Stream
from pygpukit.dtypes import DTypeLike, dtype, to_numpy_dtype
from pygpukit.errors import DeviceError

__all__ = ["asarray", "from_numpy", "host_view", "to_numpy"]

# What NumPy makes an array of by itself.
_PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


def host_view(array: GPUArray) -> np.ndarray[Any, Any]:
    """The NumPy view of an array on the CPU device, sharing its memory; read-only where the array is. For use in stream
    order only, and as it is: the array keeps it."""
    return array._host_view()


def _bytes_of(host: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return host.reshape(-1).view(np.uint8)


def from_numpy(
    a: np.ndarray[Any, Any] | np.generic, *, device: Device | None = None, stream: Stream | None = None
) -> GPUArray:
    """Copy a NumPy array to the device.

    Parameters
    ----------
    a : numpy.ndarray
        Any of the supported element types; ml_dtypes' bfloat16 and float8 included.
    device : Device, optional
        The current one by default.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray
        A contiguous copy.

    Examples
    --------
    >>> from_numpy(np.arange(3)).tolist()
    [0, 1, 2]
    """
    if not isinstance(a, np.ndarray | np.generic):
        raise TypeError(
            f"from_numpy() takes a NumPy array, not {type(a).__name__}; asarray() accepts lists and numbers"
        )
    host = np.asarray(a)
    kind = dtype(host.dtype)
    return _native.from_buffer(_bytes_of(np.ascontiguousarray(host)), list(host.shape), kind, device, stream)


def asarray(a: Any, dtype: DTypeLike | None = None, *, device: Device | None = None) -> GPUArray:
    """Make an array of anything NumPy understands; a GPUArray of the right type passes unchanged.

    Memory of the host is always copied. An array of another library on a GPU is taken as it is, as by `from_dlpack`.

    Parameters
    ----------
    a : array_like
        A GPUArray, a NumPy array, a number, nested lists of them, an object with ``__dlpack__`` or
        ``__cuda_array_interface__``, or one with a buffer.
    dtype : DataType, str or numpy.dtype, optional
        Element type; what NumPy would choose by default.
    device : Device, optional
        The current one by default.

    Returns
    -------
    GPUArray

    Examples
    --------
    >>> asarray([1.5, 2.5], dtype="bfloat16").dtype
    pygpukit.bfloat16
    """
    if isinstance(a, GPUArray):
        if device is not None and device._number != a.device._number:
            raise DeviceError("the array lives on another device; copy it with from_numpy(x.to_numpy(), device=...)")
        return a if dtype is None else a.astype(dtype, copy=False)
    if not isinstance(a, _PLAIN) and (hasattr(a, "__dlpack__") or hasattr(a, "__cuda_array_interface__")):
        # Imported here: that module takes copies by way of this one.
        from pygpukit.array import exchange

        taken = exchange.taken(a, device)
        return taken if dtype is None else taken.astype(dtype, copy=False)
    return from_numpy(np.asarray(a, None if dtype is None else to_numpy_dtype(dtype)), device=device)


def to_numpy(self: GPUArray, *, stream: Stream | None = None) -> np.ndarray[Any, Any]:
    """Copy the array to the host and wait for it.

    Parameters
    ----------
    stream : Stream, optional
        The stream the copy is ordered on; the current one by default.

    Returns
    -------
    numpy.ndarray
        bfloat16 and float8 arrive as ml_dtypes' types.
    """
    source = self if self.is_contiguous else _native.apply("copy", (self,), None, stream)
    host = np.empty(self.shape, to_numpy_dtype(self.dtype))
    _native.read_buffer(source, _bytes_of(host), stream)
    return host
