"""Bundles: zip files of compiled kernels that run without NVRTC.

A bundle holds `manifest.json` and the encoded entries, one per kernel and architecture, in groups that are compressed
as one: neighbours by name are much alike. An entry's key leaves the compiler's version out, so a bundle fits every
machine whose sources are the same. Nothing is unpacked to disk, sizes are bounded before anything is read, and every
entry is checked against its digest when it is used.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import threading
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pygpukit.config import read_settings
from pygpukit.errors import CacheError
from pygpukit.jit.cache import cache_folder
from pygpukit.jit.entry import Entry, blake2b, decode, encode, is_key

if TYPE_CHECKING:
    from zipfile import ZipFile

__all__ = ["Bundle", "BundleInfo", "bundle_paths", "find_in_bundles", "forget_bundles", "import_bundle", "write_bundle"]

_FORMAT = 2
_MANIFEST = "manifest.json"
_GROUP = "kernels/{}.xz"
# Bytes of entries after which a group is full: larger ones are smaller files, but take longer than 10 ms to read.
_GROUP_SIZE = 512 << 10
_PACKAGE_BUNDLES = Path(__file__).resolve().parent.parent / "kernels" / "bundles"
_MAX_MANIFEST = 256 << 20
_MAX_GROUP = 256 << 20
# The most a reader of our groups takes is the dictionary of 8 MiB.
_LZMA_MEMORY = 64 << 20
# What reading a damaged zip file may raise, besides OSError.
_DAMAGE = (ValueError, KeyError, EOFError, RuntimeError, zlib.error)


class _Place(NamedTuple):
    """Where an entry is: bytes of one group, and what the manifest says about them."""

    group: int
    offset: int
    size: int
    name: str
    arch: str


class BundleInfo(NamedTuple):
    """What a bundle holds.

    Attributes
    ----------
    path : Path
        The file.
    project : str
        Version of PyGPUkit that wrote it.
    arch : tuple of str
        Architectures in it.
    entries : int
        Number of images.
    size : int
        Bytes of the file.
    """

    path: Path
    project: str
    arch: tuple[str, ...]
    entries: int
    size: int


class Bundle:
    """An open bundle; images are read and checked one by one.

    Raises
    ------
    CacheError
        If the file is not a bundle.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._zip: ZipFile | None = None
        self._process = -1
        # The group read last: kernels of similar names are often asked for together.
        self._recent: tuple[int, bytes] | None = None
        self._group_sizes: list[int] = []
        self._places: dict[str, _Place] = {}
        self._arch: tuple[str, ...] = ()
        self._project = ""
        try:
            with self._lock:
                self._open()
                self._read_manifest()
        except (OSError, *_DAMAGE) as error:
            self.close()
            raise CacheError(f"bundle {path} cannot be opened: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._recent = None
            if self._zip is not None:
                self._zip.close()
                self._zip = None

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def keys(self) -> list[str]:
        """Keys of all images, in the order they are stored in."""
        return list(self._places)

    def get(self, key: str) -> Entry:
        """The image with this key.

        Raises
        ------
        KeyError
            If it is not in the bundle.
        CacheError
            If it is damaged.
        """
        place = self._places[key]
        try:
            with self._lock:
                group = self._read_group(place.group)
            entry = decode(group[place.offset : place.offset + place.size], key)
            if (entry.name, entry.arch) != (place.name, place.arch):
                raise ValueError("the manifest is wrong about it")
            return entry
        except (OSError, *_DAMAGE) as error:
            raise CacheError(f"bundle {self.path}: kernel {key} is damaged: {error}") from error

    def check(self) -> BundleInfo:
        """Read and check every image.

        Raises
        ------
        CacheError
            If anything is wrong; the text says what.
        """
        for key in self._places:
            self.get(key)
        return BundleInfo(self.path, self._project, self._arch, len(self._places), os.path.getsize(self.path))

    def _open(self) -> None:
        # Only who has a bundle pays for the import.
        import zipfile

        # Opening a pipe would wait for its other end.
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise ValueError("it is not a regular file")
        try:
            self._zip = zipfile.ZipFile(self.path)
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error
        self._process = os.getpid()

    def _read_manifest(self) -> None:
        import json

        try:
            manifest = json.loads(self._read(_MANIFEST, _MAX_MANIFEST))
        except RecursionError:
            raise ValueError("its manifest is nested too deeply") from None
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ValueError(f"its manifest is not of format {_FORMAT}; export it again")
        project = manifest.get("project")
        if not isinstance(project, str):
            raise ValueError("its manifest does not say which version wrote it")
        try:
            for group, items in enumerate(manifest["groups"]):
                self._group_sizes.append(self._add_places(group, items))
            archs = sorted({place.arch for place in self._places.values()})
        except (KeyError, TypeError) as error:
            raise ValueError(f"its manifest is not as it should be: {error!r}") from None
        self._project, self._arch = project, tuple(archs)

    def _add_places(self, group: int, items: Iterable[dict[str, Any]]) -> int:
        """Enter what the manifest says about a group; returns the bytes of its entries."""
        offset = 0
        for item in items:
            key, size = item["key"], item["size"]
            if not isinstance(key, str) or not is_key(key) or key in self._places:
                raise ValueError(f"its manifest lists {key!r}, which is no key or listed twice")
            if not isinstance(size, int) or not 0 <= size <= _MAX_GROUP:
                raise ValueError(f"its manifest gives kernel {key} the size {size!r}")
            self._places[key] = _Place(group, offset, size, item["name"], item["arch"])
            offset += size
        if offset > _MAX_GROUP:
            raise ValueError(f"group {group} claims {offset} bytes, more than {_MAX_GROUP}")
        return offset

    def _read_group(self, group: int) -> bytes:
        if self._zip is not None and self._process != os.getpid():
            # A forked child shares the file position with its parent.
            self._open()
        if self._recent is None or self._recent[0] != group:
            lzma = _lzma()
            size = self._group_sizes[group]
            packed = self._read(_GROUP.format(group), _MAX_GROUP)
            try:
                data = lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY).decompress(packed, size + 1)
            except lzma.LZMAError as error:
                raise ValueError(str(error)) from error
            if len(data) != size:
                raise ValueError(f"its group has not the {size} bytes the manifest says")
            self._recent = (group, data)
        return self._recent[1]

    def _read(self, name: str, limit: int) -> bytes:
        """A member's bytes; the lock is held."""
        import zipfile

        if self._zip is None:
            raise ValueError("the bundle is closed")
        try:
            info = self._zip.getinfo(name)
        except KeyError:
            raise ValueError(f"it has no {name}") from None
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise ValueError(f"{name} is neither stored nor deflated")
        if info.file_size > limit:
            raise ValueError(f"{name} claims {info.file_size} bytes, more than {limit}")
        try:
            with self._zip.open(info) as file:
                data = file.read(info.file_size + 1)
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error
        if len(data) != info.file_size:
            raise ValueError(f"{name} has {len(data)} bytes, not {info.file_size}")
        return data


def bundle_paths() -> list[Path]:
    """Bundles in the order they are searched: PYGPUKIT_BUNDLE, imported ones, those of the package."""
    settings = read_settings()
    paths: list[Path] = []
    for path in settings.bundle:
        paths.extend(_zip_files(path) if path.is_dir() else [path])
    imported = _import_folder() if settings.cache else None
    for folder in (imported, _PACKAGE_BUNDLES):
        if folder is not None:
            paths.extend(_zip_files(folder))
    return paths


def find_in_bundles(key: str) -> Entry | None:
    """The image with this key from the first bundle that has it intact; a damaged one is passed over with a warning."""
    for bundle in _open_bundles(read_settings().bundle, cache_folder()):
        if key in bundle:
            try:
                return bundle.get(key)
            except CacheError as error:
                _warn(error)
    return None


def forget_bundles() -> None:
    """Look for bundles anew at the next search."""
    _open_bundles.cache_clear()


def write_bundle(path: Path, entries: Iterable[Entry]) -> BundleInfo:
    """Write a bundle; the same entries give the same bytes.

    Raises
    ------
    CacheError
        If the file cannot be written.
    """
    import json
    import zipfile

    chosen = {entry.key: entry for entry in entries}
    ordered = sorted(chosen.values(), key=lambda entry: (entry.arch, entry.name, entry.key))
    archs = tuple(sorted({entry.arch for entry in ordered}))
    groups: list[list[dict[str, object]]] = []
    contents: list[bytes] = []
    for entry in ordered:
        data = encode(entry)
        if not contents or len(contents[-1]) >= _GROUP_SIZE:
            groups.append([])
            contents.append(b"")
        groups[-1].append({"key": entry.key, "name": entry.name, "arch": entry.arch, "size": len(data)})
        contents[-1] += data
    manifest = {"format": _FORMAT, "project": _project_version(), "groups": groups}

    def add(archive: ZipFile, name: str, data: bytes, compression: int) -> None:
        info = zipfile.ZipInfo(name)
        info.compress_type = compression
        archive.writestr(info, data, compresslevel=9)

    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with zipfile.ZipFile(temporary, "x") as archive:
                add(archive, _MANIFEST, json.dumps(manifest).encode("ascii"), zipfile.ZIP_DEFLATED)
                for group, data in enumerate(contents):
                    # Compressed here and stored: reading through zipfile would not bound what a member unpacks to.
                    add(archive, _GROUP.format(group), _lzma().compress(data), zipfile.ZIP_STORED)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        size = path.stat().st_size
    except OSError as error:
        raise CacheError(f"cannot write bundle {path}: {error.strerror or error}") from error
    return BundleInfo(path, _project_version(), archs, len(ordered), size)


def import_bundle(path: Path) -> BundleInfo:
    """Check a bundle and copy it to where it is found from now on: the folder `bundles` in the kernel cache.

    Raises
    ------
    CacheError
        If it is not intact, or the folder cannot be written.
    """
    with Bundle(path) as bundle:
        info = bundle.check()
    folder = _import_folder()
    if folder is None:
        raise CacheError("there is no folder for bundles: set PYGPUKIT_CACHE_DIR to a writable folder")
    try:
        data = path.read_bytes()
        # The same bundle twice is one file; two of the same name are two.
        stem = re.sub(r"[^\w.-]+", "_", path.stem, flags=re.ASCII)[:80]
        target = folder / f"{stem}-{blake2b(data, digest_size=8).hexdigest()}.zip"
        temporary = folder / f".{os.urandom(8).hex()}.tmp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(
            f"cannot copy bundle {path} to {folder}: {error.strerror or error}; set PYGPUKIT_CACHE_DIR to a writable "
            "folder, or name the bundle in PYGPUKIT_BUNDLE instead"
        ) from error
    forget_bundles()
    return BundleInfo(target, info.project, info.arch, info.entries, info.size)


def imported_bundles() -> list[Path]:
    """Files that `import_bundle` has copied."""
    folder = _import_folder()
    return [] if folder is None else _zip_files(folder)


@functools.lru_cache(maxsize=4)
def _open_bundles(chosen: Sequence[Path], folder: Path | None) -> tuple[Bundle, ...]:
    bundles = []
    for path in bundle_paths():
        try:
            bundles.append(Bundle(path))
        except CacheError as error:
            _warn(error)
    return tuple(bundles)


def _import_folder() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "bundles"


def _zip_files(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if name.endswith(".zip") and not name.startswith(".")]


def _lzma() -> ModuleType:
    try:
        import lzma
    except ImportError:
        raise CacheError("bundles need the module lzma, which this Python is built without") from None
    return lzma


def _project_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("pygpukit")
    except metadata.PackageNotFoundError:
        return "unknown"


def _warn(error: CacheError) -> None:
    warnings.warn(f"{error}; its kernels are compiled instead", RuntimeWarning, stacklevel=4)
