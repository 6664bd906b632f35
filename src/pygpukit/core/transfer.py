"""Transfers between host and device that go on while the program does something else."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError

__all__ = ["Transfer", "copy_many", "copy_to_device", "copy_to_host"]

# How often an awaited transfer is looked at, in seconds.
_LOOK = 0.0005


class Transfer:
    """A copy on its way between host and device.

    Made by `copy_to_device` and `copy_to_host`. Until it is done the array and the host memory belong to it: the
    target is not to be read and the source not to be changed. ``await transfer`` waits in a coroutine.

    Examples
    --------
    >>> transfer = copy_to_device(np.arange(3))
    >>> transfer.wait()
    True
    >>> transfer.array.tolist()
    [0, 1, 2]
    """

    __slots__ = ("__weakref__", "_array", "_handle", "_host")

    def __init__(self, handle: _native.TransferHandle, array: GPUArray, host: np.ndarray[Any, Any]) -> None:
        self._handle = handle
        self._array = array
        self._host = host

    @property
    def array(self) -> GPUArray:
        """The array on the device."""
        return self._array

    @property
    def host(self) -> np.ndarray[Any, Any]:
        """The array on the host."""
        return self._host

    @property
    def bytes(self) -> int:
        """Bytes to copy."""
        return self._handle.bytes

    @property
    def bytes_done(self) -> int:
        """Bytes that have arrived."""
        return self._handle.bytes_done

    @property
    def seconds(self) -> float:
        """Seconds since the start, or those it took."""
        return self._handle.seconds

    @property
    def bandwidth(self) -> float:
        """Gigabytes (powers of 1000) that arrived per second, so far or in all."""
        seconds = self.seconds
        return self.bytes_done / seconds / 1e9 if seconds > 0 else 0.0

    @property
    def priority(self) -> str:
        """``"high"`` or ``"normal"``."""
        return self._handle.priority

    @property
    def done(self) -> bool:
        """Is it over: arrived, failed or cancelled? `wait` tells which."""
        return self._handle.done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over.

        Parameters
        ----------
        timeout : float, optional
            Most seconds to wait; no limit by default.

        Returns
        -------
        bool
            False when the time was over first.

        Raises
        ------
        TransferCancelledError
            If it was cancelled.
        """
        return self._handle.wait(timeout)

    def cancel(self) -> bool:
        """Drop what is not on its way to the other side yet; what the target holds is then undefined.

        Returns
        -------
        bool
            False when everything was on its way already: the transfer then goes on to its end.
        """
        return self._handle.cancel()

    def __await__(self) -> Generator[Any, None, Transfer]:
        import asyncio

        pause = 0.0
        while not self._handle.done:
            yield from asyncio.sleep(pause).__await__()
            # Short copies are over soon; for long ones a look now and then is enough.
            pause = min(1.5 * pause + 1e-6, _LOOK)
        self._handle.wait()
        return self

    def __repr__(self) -> str:
        return f"<Transfer {self.bytes_done} of {self.bytes} bytes, priority={self.priority}>"


def copy_to_device(
    host: np.ndarray[Any, Any], out: GPUArray | None = None, *, stream: Stream | None = None, priority: str = "normal"
) -> Transfer:
    """Start to copy a NumPy array to the device.

    Parameters
    ----------
    host : numpy.ndarray
        Not to be changed before the transfer is done. Memory of `empty_pinned` is copied without a detour.
    out : GPUArray, optional
        A contiguous array of the same shape and type to copy to; a new one by default.
    stream : Stream, optional
        The copy starts after what this stream has been given so far; the current one by default.
    priority : {"normal", "high"}
        High ones go before the rest of all others.

    Returns
    -------
    Transfer
        Its `array` holds the data when it is done.

    Examples
    --------
    >>> transfer = copy_to_device(np.ones(4, "float32"), priority="high")
    >>> transfer.wait(), transfer.bytes
    (True, 16)
    """
    source = _contiguous(host, "copy_to_device")
    if out is None:
        out = _native.empty(list(source.shape), dtype(source.dtype), None if stream is None else stream.device)
    else:
        _check_fit(out, source)
    return Transfer(_native.start_upload(out, _bytes_of(source), stream, priority), out, source)


def copy_to_host(
    array: GPUArray,
    out: np.ndarray[Any, Any] | None = None,
    *,
    stream: Stream | None = None,
    priority: str = "normal",
) -> Transfer:
    """Start to copy an array to the host.

    Parameters
    ----------
    array : GPUArray
        Not to be changed before the transfer is done.
    out : numpy.ndarray, optional
        A contiguous array of the same shape and type to copy to, such as one of `empty_pinned`; a new one by default.
    stream : Stream, optional
        The copy starts after what this stream has been given so far; the current one by default.
    priority : {"normal", "high"}
        High ones go before the rest of all others.

    Returns
    -------
    Transfer
        Its `host` holds the data when it is done.

    Examples
    --------
    >>> transfer = copy_to_host(copy_to_device(np.arange(3)).array)
    >>> transfer.wait()
    True
    """
    if not isinstance(array, GPUArray):
        raise TypeError(f"copy_to_host() takes a GPUArray, not {type(array).__name__}")
    source = array if array.is_contiguous else _native.apply("copy", (array,), None, stream)
    if out is None:
        out = np.empty(array.shape, to_numpy_dtype(array.dtype))
    else:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"the host's side of a copy is a NumPy array, not {type(out).__name__}")
        if not out.flags.c_contiguous:
            raise ValueError("the host array must be contiguous; copy into a contiguous one and assign from it")
        _check_fit(array, out)
    return Transfer(_native.start_download(source, _bytes_of(out), stream, priority), array, out)


def copy_many(pairs: Iterable[tuple[np.ndarray[Any, Any], GPUArray]], *, stream: Stream | None = None) -> None:
    """Copy many NumPy arrays over arrays on the device, the small ones packed together.

    Parameters
    ----------
    pairs : iterable of (numpy.ndarray, GPUArray)
        Source and target of each copy, of the same shape and type. The targets are contiguous and on one device.
    stream : Stream, optional
        The stream the copies are ordered on; the current one by default.

    Examples
    --------
    >>> targets = [copy_to_device(np.zeros(2)).array for _ in range(2)]
    >>> copy_many([(np.ones(2), targets[0]), (np.full(2, 7.0), targets[1])])
    >>> targets[1].tolist()
    [7.0, 7.0]
    """
    checked = []
    for host, array in pairs:
        source = _contiguous(host, "copy_many")
        _check_fit(array, source)
        checked.append((_bytes_of(source), array))
    _native.upload_many(checked, stream)


def _contiguous(host: Any, function: str) -> np.ndarray[Any, Any]:
    if not isinstance(host, np.ndarray | np.generic):
        raise TypeError(f"{function}() takes NumPy arrays, not {type(host).__name__}")
    # ascontiguousarray gives an array without dimensions one.
    return np.asarray(host) if np.asarray(host).flags.c_contiguous else np.ascontiguousarray(host)


def _bytes_of(host: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return host.reshape(-1).view(np.uint8)


def _check_fit(array: GPUArray, host: np.ndarray[Any, Any]) -> None:
    if not isinstance(array, GPUArray):
        raise TypeError(f"the device's side of a copy is a GPUArray, not {type(array).__name__}")
    if array.shape != host.shape:
        raise ShapeError(f"the array on the device has shape {array.shape}, the one on the host {host.shape}")
    if to_numpy_dtype(array.dtype) != host.dtype:
        raise DTypeError(f"the array on the device holds {array.dtype.name}, the one on the host {host.dtype}")
