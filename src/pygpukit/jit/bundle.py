"""Bundles: zip files of compiled kernels that run without NVRTC.

A bundle holds `manifest.json` and one encoded entry per kernel and architecture, named by its key. The key leaves the
compiler's version out, so a bundle fits every machine whose sources are the same. Nothing is unpacked to disk, sizes
are bounded before anything is read, and every entry is checked against its digest when it is used.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pygpukit.config import read_settings
from pygpukit.errors import CacheError
from pygpukit.jit.cache import cache_folder
from pygpukit.jit.entry import Entry, blake2b, decode, encode, is_key

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

__all__ = ["Bundle", "BundleInfo", "bundle_paths", "find_in_bundles", "forget_bundles", "import_bundle", "write_bundle"]

_FORMAT = 1
_MANIFEST = "manifest.json"
_MEMBER = "kernels/"
_PACKAGE_BUNDLES = Path(__file__).resolve().parent.parent / "kernels" / "bundles"
_MAX_MEMBERS = 500_000
_MAX_MANIFEST = 256 << 20
_MAX_ENTRY = 256 << 20
# What reading a damaged zip file may raise, besides OSError.
_DAMAGE = (ValueError, KeyError, EOFError, RuntimeError, zlib.error)


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
        self._members: dict[str, ZipInfo] = {}
        self._manifest_member: ZipInfo | None = None
        self._process = -1
        with self._lock:
            self._open()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._zip is not None:
                self._zip.close()
                self._zip = None

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def keys(self) -> list[str]:
        """Keys of all images."""
        return sorted(self._members)

    def get(self, key: str) -> Entry:
        """The image with this key.

        Raises
        ------
        KeyError
            If it is not in the bundle.
        CacheError
            If it is damaged.
        """
        info = self._members[key]
        try:
            return decode(self._read(info, _MAX_ENTRY), key)
        except (OSError, *_DAMAGE) as error:
            raise CacheError(f"bundle {self.path}: kernel {key} is damaged: {error}") from error

    def check(self) -> BundleInfo:
        """Read and check everything: the manifest, every image, and that they agree.

        Raises
        ------
        CacheError
            If anything is wrong; the text says what.
        """
        try:
            manifest = self._manifest()
            entries = {item["key"]: item for item in manifest["entries"]}
            if sorted(entries) != self.keys():
                raise ValueError(f"the manifest lists {len(entries)} kernels, the file has {len(self._members)}")
            for key, item in entries.items():
                entry = self.get(key)
                if (entry.name, entry.arch, len(entry.image)) != (item["name"], item["arch"], item["size"]):
                    raise ValueError(f"the manifest is wrong about kernel {key}")
            arch, project = manifest["arch"], manifest["project"]
            if not isinstance(project, str) or set(arch) != {item["arch"] for item in entries.values()}:
                raise ValueError("the manifest is wrong about the architectures")
            return BundleInfo(self.path, project, tuple(arch), len(entries), os.path.getsize(self.path))
        except (OSError, TypeError, *_DAMAGE) as error:
            if isinstance(error, CacheError):
                raise
            raise CacheError(f"bundle {self.path} cannot be used: {error}") from error

    def _manifest(self) -> dict[str, Any]:
        if self._manifest_member is None:
            raise ValueError(f"it has no {_MANIFEST}")
        try:
            import json

            manifest = json.loads(self._read(self._manifest_member, _MAX_MANIFEST))
        except RecursionError:
            raise ValueError("its manifest is nested too deeply") from None
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ValueError(f"its manifest is not of format {_FORMAT}")
        return manifest

    def _open(self) -> None:
        # Only who has a bundle pays for the import.
        import zipfile

        try:
            self._zip = zipfile.ZipFile(self.path)
            members = self._zip.infolist()
        except (OSError, *_DAMAGE, zipfile.BadZipFile) as error:
            raise CacheError(f"bundle {self.path} cannot be opened: {error}") from error
        if len(members) > _MAX_MEMBERS:
            self._zip.close()
            raise CacheError(f"bundle {self.path} has {len(members)} members, more than {_MAX_MEMBERS}")
        self._manifest_member = next((info for info in members if info.filename == _MANIFEST), None)
        named = ((info.filename.removeprefix(_MEMBER), info) for info in members if info.filename.startswith(_MEMBER))
        self._members = {name: info for name, info in named if is_key(name)}
        self._process = os.getpid()

    def _read(self, info: ZipInfo, limit: int) -> bytes:
        import zipfile

        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise ValueError("it is neither stored nor deflated")
        if info.file_size > limit:
            raise ValueError(f"it claims {info.file_size} bytes, more than {limit}")
        with self._lock:
            if self._process != os.getpid():
                # A forked child shares the file position with its parent.
                self._open()
            if self._zip is None:
                raise ValueError("the bundle is closed")
            try:
                with self._zip.open(info) as file:
                    data = file.read(info.file_size + 1)
            except zipfile.BadZipFile as error:
                raise ValueError(str(error)) from error
        if len(data) != info.file_size:
            raise ValueError(f"it has {len(data)} bytes, not {info.file_size}")
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
    ordered = [chosen[key] for key in sorted(chosen)]
    archs = tuple(sorted({entry.arch for entry in ordered}))
    manifest = {
        "format": _FORMAT,
        "project": _project_version(),
        "arch": archs,
        "entries": [_manifest_item(entry) for entry in ordered],
    }

    def add(archive: ZipFile, name: str, data: bytes) -> None:
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, data, compresslevel=9)

    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with zipfile.ZipFile(temporary, "x") as archive:
                add(archive, _MANIFEST, json.dumps(manifest, indent=1).encode("ascii"))
                for entry in ordered:
                    add(archive, _MEMBER + entry.key, encode(entry))
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


def _manifest_item(entry: Entry) -> dict[str, object]:
    return {
        "key": entry.key,
        "name": entry.name,
        "arch": entry.arch,
        "entry": _MEMBER + entry.key,
        "size": len(entry.image),
        "digest": blake2b(entry.image, digest_size=32).hexdigest(),
    }


def _project_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("pygpukit")
    except metadata.PackageNotFoundError:
        return "unknown"


def _warn(error: CacheError) -> None:
    warnings.warn(f"{error}; its kernels are compiled instead", RuntimeWarning, stacklevel=4)
