"""NumPy's files: arrays in `.npy` and `.npz`, written and read in pieces of bounded host memory."""

from __future__ import annotations

import contextlib
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array import bridge
from pygpukit.array.npy import MAGIC, Header, header_bytes, read_header
from pygpukit.core.device import resolve_device
from pygpukit.dtypes import DataType, DTypeLike, dtype
from pygpukit.errors import DTypeError

__all__ = ["NpzFile", "load", "save", "savez", "savez_compressed"]

# Host memory that a file passes through.
_PIECE = 16 << 20
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
# No member of an archive is longer than this times its compressed bytes: deflate cannot do more.
_MOST_DEFLATED = 1100

# The parameter of `load` is named `dtype`, which hides the function of that name.
_dtype = dtype


def _pieces(x: GPUArray) -> Iterator[Any]:
    """The bytes of the elements in row-major order."""
    if x.is_contiguous:
        flat = x.reshape(-1)
        step = max(1, _PIECE // x.itemsize)
        for start in range(0, x.size, step):
            yield bridge.to_numpy(flat[start : start + step]).view(np.uint8).data
    elif x.size * x.itemsize <= _PIECE or (x.ndim == 1 and x.shape[0] <= 1):
        yield np.ascontiguousarray(bridge.to_numpy(x)).reshape(-1).view(np.uint8).data
    else:
        rows = max(1, _PIECE // max(1, x.nbytes // x.shape[0]))
        for start in range(0, x.shape[0], rows):
            if rows > 1:
                yield bridge.to_numpy(x[start : start + rows]).reshape(-1).view(np.uint8).data
            else:
                yield from _pieces(x[start])


def _write(file: Any, array: Any) -> None:
    x = bridge.asarray(array)
    # As NumPy does: the transpose of an array in row-major order is stored as it lies.
    fortran = not x.is_contiguous and x.T.is_contiguous
    file.write(header_bytes(x.shape, fortran, x.dtype))
    for piece in _pieces(x.T if fortran else x):
        file.write(piece)


@contextlib.contextmanager
def _opened(file: Any, mode: str, ending: str) -> Iterator[Any]:
    if hasattr(file, "write" if mode == "wb" else "read"):
        yield file
        return
    path = os.fspath(file)
    if mode == "wb" and not os.fsdecode(path).endswith(ending):
        path = path + (ending if isinstance(path, str) else ending.encode())
    with open(path, mode) as opened:
        yield opened


def save(file: str | os.PathLike[str] | Any, arr: Any) -> None:
    """Save an array to a file in NumPy's format, ``.npy``.

    The file is what `numpy.save` writes of ``arr.to_numpy()``, except for bfloat16 and float8: NumPy's format has no
    names for them, so they are a structure with one field named after the type.

    Parameters
    ----------
    file : str, path-like or file object
        ``.npy`` is added to a name without it. A file object is written to at its place.
    arr : GPUArray or array_like

    Examples
    --------
    >>> file = io.BytesIO()
    >>> save(file, bridge.asarray([1.5, 2.5]))
    >>> _ = file.seek(0)
    >>> np.load(file).tolist()
    [1.5, 2.5]
    """
    with _opened(file, "wb", ".npy") as opened:
        _write(opened, arr)


def savez(file: str | os.PathLike[str] | Any, *args: Any, **kwds: Any) -> None:
    """Save arrays to an archive in NumPy's format, ``.npz``, without compression.

    Parameters
    ----------
    file : str, path-like or file object
        ``.npz`` is added to a name without it.
    *args, **kwds : GPUArray or array_like
        Arrays without a name are ``arr_0``, ``arr_1``, and so on.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> savez(file, bridge.asarray([1, 2]), bias=bridge.asarray([0.5]))
    >>> _ = file.seek(0)
    >>> sorted(np.load(file).files)
    ['arr_0', 'bias']
    """
    _savez(file, args, kwds, zipfile.ZIP_STORED)


def savez_compressed(file: str | os.PathLike[str] | Any, *args: Any, **kwds: Any) -> None:
    """Save arrays to an archive in NumPy's format, ``.npz``, compressed; otherwise as `savez`."""
    _savez(file, args, kwds, zipfile.ZIP_DEFLATED)


def _savez(file: Any, args: tuple[Any, ...], kwds: dict[str, Any], compression: int) -> None:
    named = dict(kwds)
    for index, array in enumerate(args):
        if f"arr_{index}" in named:
            raise ValueError(f"two arrays are named 'arr_{index}': arrays without a name get such names")
        named[f"arr_{index}"] = array
    with (
        _opened(file, "wb", ".npz") as opened,
        zipfile.ZipFile(opened, "w", compression, allowZip64=True) as archive,
    ):
        for name, array in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write(member, array)


def load(
    file: str | os.PathLike[str] | Any, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> GPUArray | NpzFile:
    """Load an array, or an archive of arrays, that `save`, `savez` or NumPy has written.

    Python objects in a file are never loaded: that would run code of the file. What a file says of its size is compared
    with the bytes that are there before memory is taken.

    Parameters
    ----------
    file : str, path-like or file object
        A file object is read from its place, and is behind the array afterwards.
    dtype : DataType, str or numpy.dtype, optional
        What bytes without a type are: NumPy stores ml_dtypes' bfloat16 as ``V2``, and float8_e4m3fn as ``V1``.
    device : Device or str, optional
        The current one by default.

    Returns
    -------
    GPUArray or NpzFile
        Of an archive a mapping of names to arrays, each of which is read when asked for.

    Raises
    ------
    ValueError
        If it is no such file, is cut off, or holds objects.
    DTypeError
        If the elements have a type that arrays here do not have.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(3))
    >>> _ = file.seek(0)
    >>> load(file).tolist()
    [0, 1, 2]
    """
    kind = None if dtype is None else _dtype(dtype)
    target = None if device is None else resolve_device(device)
    with contextlib.ExitStack() as stack:
        owned = not hasattr(file, "read")
        opened: Any = stack.enter_context(open(os.fspath(file), "rb")) if owned else file
        magic = opened.read(len(MAGIC))
        if magic == MAGIC:
            return _read(opened, kind, target, None)
        if magic[:4] in _ZIP:
            archive = NpzFile(opened, kind, target, opened if owned else None)
            stack.pop_all()
            return archive
    if not magic:
        raise EOFError("the file is empty")
    raise ValueError(
        f"the file begins with {magic!r}, and is neither .npy nor .npz; pickled objects are never loaded, because that "
        "runs code of the file"
    )


def _room(file: Any) -> int | None:
    """Bytes from the place of a file to its end, where that can be asked."""
    try:
        if not file.seekable():
            return None
        here = file.tell()
        end = file.seek(0, io.SEEK_END)
        file.seek(here)
    except (AttributeError, OSError):
        return None
    return int(end) - here if isinstance(end, int) else None


def _read(file: Any, kind: DataType | None, device: Device | None, room: int | None) -> GPUArray:
    """The array after the magic; `room` is what bytes there are at most, None where the file can be asked."""
    header = read_header(file)
    element = header.element or kind
    if element is None:
        raise DTypeError(
            f"the file holds elements of {header.stored.itemsize} bytes without a type, as NumPy stores those of "
            "ml_dtypes; say what they are: load(file, dtype='bfloat16')"
        )
    if element.itemsize != header.stored.itemsize:
        raise DTypeError(
            f"the file holds elements of {header.stored.itemsize} bytes, and {element.name} has {element.itemsize}"
        )
    room = _room(file) if room is None else room
    if room is not None and header.nbytes > room:
        raise ValueError(
            f"the file is cut off or its header is wrong: an array of {element.name}{header.shape} has {header.nbytes} "
            f"bytes, and {room} are there"
        )
    shape = header.shape[::-1] if header.fortran else header.shape
    if header.stored.isnative and _is_plain(file):
        array = _native.empty(list(shape), element, device)
        start = file.tell()
        handle = _native.start_load(array, file.fileno(), str(getattr(file, "name", "file")), start, None)
        try:
            handle.wait()
        except BaseException:
            handle.cancel()
            raise
        file.seek(start + header.nbytes)
    else:
        array = _read_pieces(file, list(shape), element, header, device)
    return array.transpose() if header.fortran else array


def _is_plain(file: Any) -> bool:
    """Is it a regular file, whose bytes are what `read` gives?"""
    if type(file) not in (io.BufferedReader, io.BufferedRandom) or type(file.raw) is not io.FileIO:
        return False
    if type(file) is io.BufferedRandom:
        file.flush()
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _read_pieces(file: Any, shape: list[int], element: DataType, header: Header, device: Device | None) -> GPUArray:
    step = max(1, _PIECE // element.itemsize)
    total = math.prod(shape)
    # Read before memory is taken: a short stream with a large header takes none.
    piece = _piece(file, min(step, total), header)
    array = _native.empty(shape, element, device)
    flat = array.reshape(-1)
    start = 0
    while start < total:
        count = piece.size // element.itemsize
        _native.write_buffer(flat[start : start + count], piece)
        start += count
        piece = _piece(file, min(step, total - start), header)
    return array


def _piece(file: Any, count: int, header: Header) -> np.ndarray[Any, np.dtype[np.uint8]]:
    piece = np.empty(count * header.stored.itemsize, np.uint8)
    done = 0
    while done < piece.size:
        part = file.read(piece.size - done)
        if not part:
            raise ValueError(
                f"the file is cut off or its header is wrong: it ends before the {header.nbytes} bytes of an array of "
                f"shape {header.shape}"
            )
        piece[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    if not header.stored.isnative:
        foreign = piece.view(header.stored)
        piece = foreign.astype(header.stored.newbyteorder("=")).view(np.uint8)
    return piece


class NpzFile(Mapping[str, GPUArray]):
    """The arrays of a ``.npz`` file by name; each is read when asked for. As a context manager it closes the file.

    Attributes
    ----------
    files : list of str
        The names.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> np.savez(file, a=np.arange(3))
    >>> _ = file.seek(0)
    >>> with load(file) as archive:
    ...     archive["a"].tolist()
    [0, 1, 2]
    """

    def __init__(self, file: Any, kind: DataType | None, device: Device | None, owned: Any) -> None:
        self._kind, self._device, self._owned = kind, device, owned
        try:
            self._archive: zipfile.ZipFile | None = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise ValueError(f"the archive is damaged: {error}") from error
        names = self._archive.namelist()
        self._members = {name.removesuffix(".npy"): name for name in names}
        self.files = list(self._members)

    def __getitem__(self, name: str) -> GPUArray:
        archive = self._archive
        if archive is None:
            raise ValueError("the archive is closed")
        member = self._members.get(name) or (name if name in self._members.values() else None)
        if member is None:
            shown = ", ".join(repr(known) for known in self.files[:20])
            raise KeyError(f"the archive has no array '{name}'; it has {shown or 'none'}")
        info = archive.getinfo(member)
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"'{member}' of the archive is encrypted or compressed in a way that NumPy does not use")
        if info.file_size > max(info.compress_size * _MOST_DEFLATED, 1 << 16):
            raise ValueError(
                f"the archive is damaged: '{member}' is said to have {info.file_size} bytes, and is stored in "
                f"{info.compress_size}"
            )
        try:
            with archive.open(info) as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise ValueError(f"'{member}' of the archive is no array")
                return _read(file, self._kind, self._device, info.file_size)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"'{member}' of the archive is damaged: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def close(self) -> None:
        """Close the archive, and the file if `load` has opened it."""
        if self._archive is not None:
            self._archive.close()
            self._archive = None
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<NpzFile of {len(self.files)} arrays: {', '.join(self.files[:5])}{', ...' * (len(self.files) > 5)}>"
