"""Arrays to other libraries and from them, in the same memory: DLPack and the CUDA array interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray, Stream
from pygpukit.array import bridge
from pygpukit.core.device import current_device, resolve_device
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DeviceError, DriverError, DTypeError

__all__ = ["from_dlpack"]

# Of DLPack's device types, those whose memory the host or a CUDA device reaches.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
# The newest version of DLPack that is understood.
_VERSION = (1, 1)


def dlpack_device(self: GPUArray) -> tuple[int, int]:
    """DLPack's type and number of the array's device: ``(1, 0)`` for the CPU device, ``(2, n)`` for a GPU."""
    return _native.dlpack_device(self)


def dlpack(
    self: GPUArray,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The array as a DLPack capsule, for the ``from_dlpack`` of another library.

    The memory stays where it is, and as it is, until the consumer gives it back.

    Parameters
    ----------
    stream : int, optional
        The consumer's stream, which waits on the device for all work that uses the array so far: its handle, 1 (CUDA's
        legacy default stream, meant by None too), 2 (the per-thread default stream), -1 (nothing waits). On the CPU
        device this call waits for that work.
    max_version : tuple of int, optional
        The newest DLPack the consumer understands. From 1.0 on the capsule says whether the array is read-only.
    dl_device : tuple of int, optional
        Where the consumer wants it. The host, ``(1, 0)``, means a copy of an array on a GPU.
    copy : bool, optional
        True gives a copy, False refuses where one is needed.

    Raises
    ------
    BufferError
        If the array cannot be given in that way.
    """
    source, copied = self, False
    own = _native.dlpack_device(self)
    wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted != own:
        if wanted != (_CPU, 0):
            raise BufferError(
                f"an array on {self.device.name} cannot be given to DLPack device {wanted}, only to its own, {own}, "
                "and to the host, (1, 0)"
            )
        if copy is False:
            raise BufferError("an array on a GPU is given to the host as a copy only, and copy=False forbids that")
        source, stream, copied = to_device(self, "cpu"), None, True
    elif copy:
        source, copied = self.copy(), True
    return _native.export_dlpack(source, stream, max_version is not None and max_version[0] >= 1, copied)


def _host() -> Device:
    """The CPU device that takes memory of the host: the current one, if it is one."""
    here = current_device()
    return here if here.kind != "cuda" else resolve_device("cpu")


def _source(kind: int, index: int, what: str) -> Device:
    if kind in (_CPU, _CUDA_HOST):
        return _host()
    if kind in (_CUDA, _CUDA_MANAGED):
        try:
            return resolve_device(f"cuda:{index}")
        except (DeviceError, DriverError) as error:
            raise BufferError(f"{what} lies on GPU {index}, which cannot be used here: {error}") from error
    raise BufferError(
        f"{what} lies on a device of DLPack's type {kind}; only memory of the host and of CUDA can be used"
    )


def _capsule(x: Any, stream: int | None, copy: bool | None) -> Any:
    given = {} if stream is None else {"stream": stream}
    try:
        return x.__dlpack__(**given, max_version=_VERSION, copy=copy)
    except TypeError:
        # Producers from before DLPack 1.0 know neither.
        return x.__dlpack__(**given)


def _whole(array: GPUArray, kind: DataType) -> GPUArray:
    """Elements of an array of their bytes, as a copy."""
    return array.copy()._reinterpret(kind).reshape(array.shape[:-1])


def from_dlpack(x: Any, /, *, device: Device | str | None = None, copy: bool | None = None) -> GPUArray:
    """Make an array of one of another library, in the same memory.

    The memory stays the other library's, which keeps it until the array is gone and work that uses it has ended.
    Writing to one of the two arrays changes the other; a read-only one gives a read-only array.

    Parameters
    ----------
    x : object
        With ``__dlpack__`` (NumPy, torch, CuPy, JAX, ...) or ``__cuda_array_interface__``.
    device : Device or str, optional
        Where the array shall be, in a copy if it is not there; by default where it is. Arrays of the host lie on the
        CPU device.
    copy : bool, optional
        True makes a copy. False raises where one is needed. None makes one where it is needed.

    Returns
    -------
    GPUArray

    Raises
    ------
    BufferError
        If the array cannot be taken: an element type, a device or strides that arrays here cannot have, or a copy that
        `copy` forbids.

    Notes
    -----
    On a GPU the current stream waits for the other library's work on the array, and nothing else waits. On the CPU
    device the other library must not write while deferred work reads.

    Examples
    --------
    >>> host = np.arange(3)
    >>> x = from_dlpack(host, device="cpu")
    >>> host[0] = 7
    >>> x.tolist()
    [7, 1, 2]
    """
    wanted = None if device is None else resolve_device(device)
    if isinstance(x, GPUArray):
        array, copied = x[...], False
    elif hasattr(x, "__dlpack__"):
        array, copied = _take(x, wanted, copy)
    elif hasattr(x, "__cuda_array_interface__"):
        array, copied = from_interface(x, wanted, copy)
    else:
        raise TypeError(
            f"from_dlpack() takes an object with __dlpack__ or __cuda_array_interface__, not {type(x).__name__}; "
            "asarray() takes lists, numbers and buffers"
        )
    if wanted is not None and wanted._number != array.device._number:
        if copy is False:
            raise BufferError(f"the array is on {array.device!r}, and copy=False forbids a copy on {wanted!r}")
        return to_device(array, wanted)
    return array.copy() if copy and not copied else array


def _take(x: Any, wanted: Device | None, copy: bool | None) -> tuple[GPUArray, bool]:
    what = f"the {type(x).__name__}"
    kind, index = (int(number) for number in x.__dlpack_device__())
    source = _source(kind, index, what)
    if wanted is not None and wanted.kind != "cuda" and source.kind != "cuda":
        source = wanted
    capsule = _native.with_stream_handle(lambda stream: _capsule(x, stream, copy), source)
    array, element, copied = _native.import_dlpack(capsule, source, copy is not False)
    if array.dtype is not element:
        return _whole(array, element), True
    return array, copied


def from_interface(x: Any, wanted: Device | None, copy: bool | None) -> tuple[GPUArray, bool]:
    """An array of an object with ``__cuda_array_interface__``, and whether it is a copy."""
    given = x.__cuda_array_interface__
    if given.get("mask") is not None:
        raise BufferError("a masked array cannot be taken: fill it first")
    try:
        element = dtype(np.dtype(given["typestr"]))
    except (DTypeError, TypeError) as error:
        raise BufferError(f"the elements cannot be taken: {error}") from error
    device = wanted if wanted is not None and wanted.kind == "cuda" else current_device()
    if device.kind != "cuda":
        device = resolve_device("cuda:0")
    stream = given.get("stream")
    if stream is not None:
        _native.wait_for_stream(int(stream), device)
    address, read_only = given["data"]
    array = _native.import_memory(
        int(address),
        [int(n) for n in given["shape"]],
        None if given.get("strides") is None else [int(n) for n in given["strides"]],
        element,
        bool(read_only),
        x,
        device,
        copy is not False,
    )
    return (_whole(array, element), True) if array.dtype is not element else (array, False)


def taken(x: Any, device: Device | None) -> GPUArray:
    """What `asarray` makes of another library's array: a copy of host memory, and one on a GPU in its own memory."""
    if not hasattr(x, "__dlpack__") or int(x.__dlpack_device__()[0]) not in (_CPU, _CUDA_HOST):
        return from_dlpack(x, device=device)
    host = from_dlpack(x, device=_host())
    return bridge.from_numpy(bridge.host_view(host), device=device)


def cuda_array_interface(self: GPUArray) -> dict[str, Any]:
    """The array for other libraries on the same GPU, by version 3 of the CUDA array interface.

    It is on the device and stays there for the array's life, as with `ptr`. The consumer waits for ``stream``.
    """
    if self.device.kind != "cuda":
        raise AttributeError("__cuda_array_interface__ is of arrays on a GPU; use np.from_dlpack(x) on the CPU device")
    described = to_numpy_dtype(self.dtype)
    if described.kind == "V":
        raise DTypeError(f"the CUDA array interface has no type for {self.dtype.name}; give the array by DLPack")
    return {
        "shape": self.shape,
        "typestr": described.str,
        "data": (self.ptr if self.size else 0, not self.flags.writeable),
        "version": 3,
        "strides": None if self.is_contiguous else self.strides,
        "mask": None,
        "stream": _native.gather_uses(self),
    }


def to_device(self: GPUArray, device: Device | str, /, *, stream: Stream | None = None) -> GPUArray:
    """The array on a device: itself where it is there already, else a copy made through the host.

    Parameters
    ----------
    device : Device or str
        As of `pygpukit.device`.
    stream : Stream, optional
        The stream of the array's own device that the copy is ordered on; the current one by default.
    """
    target = resolve_device(device)
    if target._number == self.device._number:
        return self
    return bridge.from_numpy(self.to_numpy(stream=stream), device=target)
