"""Disk cache of compiled kernels: one checked file per image, bounded in size, shared by any number of processes.

A file is written beside its final name and moved into place, so a reader sees all of it or nothing. Its modification
time is its last use. Whatever is wrong with a file makes it a miss; whatever is wrong with the folder makes the
process go on without it, with one warning.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pygpukit.config import read_settings
from pygpukit.errors import CacheError
from pygpukit.jit.entry import Entry, Summary, decode, encode, is_key, summarize

__all__ = ["CachedFile", "DiskCache", "cache_folder", "open_cache"]

_SUFFIX = ".kernel"
_LOCK_SUFFIX = ".lock"
_TEMPORARY_SUFFIX = ".tmp"
# A writer needs far less; what is older was left by a process that died.
_TEMPORARY_AGE = 3600.0
_MAX_FILE = 1 << 30
# A folder that is far from full is listed once in this many writes: listing it takes longer than a write.
_WRITES_PER_SCAN = 32
_HEAD = 256 << 10


class CachedFile(NamedTuple):
    """One file of the cache, for listings.

    Attributes
    ----------
    summary : Summary
        What its head says.
    size : int
        Bytes on disk.
    used : float
        Last use, in seconds since the epoch.
    """

    summary: Summary
    size: int
    used: float


class DiskCache:
    """A folder of compiled images.

    Parameters
    ----------
    folder : Path
        Where; it is made at the first write.
    limit : int
        Largest total size in bytes; the least recently used files make room.
    ttl : float, optional
        Seconds after its creation when an image is too old; never by default.
    now : callable, optional
        The clock, in seconds since the epoch.
    """

    def __init__(
        self, folder: Path, limit: int, ttl: float | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self.limit = limit
        self.ttl = ttl
        self._now = now
        self._warned = False
        # Bytes found at the last scan and written since, and how many writes that were; threads may lose one of them.
        self._size = limit
        self._writes = 0

    def get(self, key: str) -> Entry | None:
        """The image with this key, or None; a damaged or outdated file is removed."""
        path = self._path(key)
        try:
            data = _read_regular(path, _MAX_FILE)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        if data is None:
            return None
        try:
            entry = decode(data, key)
        except ValueError:
            _remove(path)
            return None
        if self.ttl is not None and entry.created < self._now() - self.ttl:
            _remove(path)
            return None
        # Read-only folders are fine: the order of eviction is all that is lost.
        with suppress(OSError):
            self._touch(path)
        return entry

    def put(self, entry: Entry) -> None:
        """Store an image, then remove what no longer fits; does nothing where the folder cannot be written."""
        path = self._path(entry.key)
        data = encode(entry)
        if len(data) > self.limit:
            return
        temporary = path.with_name(f".{entry.key[:16]}-{os.urandom(8).hex()}{_TEMPORARY_SUFFIX}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                self._touch(temporary)
                os.replace(temporary, path)
            except BaseException:
                _remove(temporary)
                raise
        except OSError as error:
            self._warn("write", error)
            return
        self._size += len(data)
        self._writes += 1
        # Others write too, so that a count of one's own says little near the limit.
        if self.ttl is not None or self._writes >= _WRITES_PER_SCAN or self._size > self.limit - self.limit // 8:
            self.trim(keep=path)

    def trim(self, keep: Path | None = None) -> None:
        """Remove outdated files, then the least recently used ones until the rest fits; `keep` goes last."""
        now = self._now()
        files: list[tuple[bool, int, str, int]] = []
        for item, status in self._scan():
            age = now - status.st_mtime
            if item.name.endswith(_TEMPORARY_SUFFIX):
                if age > _TEMPORARY_AGE:
                    _remove(Path(item.path))
            elif _is_entry(item.name):
                if self.ttl is not None and age > self.ttl:
                    _remove(Path(item.path))
                else:
                    is_kept = keep is not None and item.name == keep.name
                    files.append((is_kept, status.st_mtime_ns, item.name, status.st_size))
        total = sum(size for *_, size in files)
        for _, _, name, size in sorted(files):
            if total <= self.limit:
                break
            _remove(self.folder / name)
            total -= size
        self._size, self._writes = total, 0

    def files(self) -> list[CachedFile]:
        """What is stored, most recently used first; unreadable files are left out."""
        found: list[CachedFile] = []
        for item, status in self._scan():
            if not _is_entry(item.name):
                continue
            with suppress(OSError, ValueError):
                head = _read_regular(Path(item.path), _HEAD, whole=False)
                if head is not None:
                    found.append(CachedFile(summarize(head), status.st_size, status.st_mtime))
        return sorted(found, key=lambda file: (-file.used, file.summary.key))

    def clear(self) -> tuple[int, int]:
        """Remove every image; how many there were, and their bytes.

        Raises
        ------
        CacheError
            If a file cannot be removed.
        """
        count = freed = 0
        for item, status in self._scan():
            if not (_is_entry(item.name) or item.name.endswith((_TEMPORARY_SUFFIX, _LOCK_SUFFIX))):
                continue
            try:
                os.unlink(item.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CacheError(
                    f"cannot remove {item.path}: {error.strerror}; check who owns the kernel cache folder"
                ) from error
            if _is_entry(item.name):
                count += 1
                freed += status.st_size
        return count, freed

    @contextmanager
    def lock(self, key: str, timeout: float = 60.0) -> Iterator[None]:
        """Hold the right to compile `key`, waiting for another process that does.

        The lock is advice: it ends with its owner, and where it cannot be had in time the caller goes on without it
        and at worst compiles what another compiles too.
        """
        path = self.folder / f"{key}{_LOCK_SUFFIX}"
        deadline = time.monotonic() + timeout
        descriptor = _acquire(path, deadline)
        try:
            yield
        finally:
            if descriptor is not None:
                # Removed while held: whoever waits on this file sees that it is gone and opens the next one.
                _remove(path)
                os.close(descriptor)

    def _path(self, key: str) -> Path:
        if not is_key(key):
            raise ValueError(f"{key!r} is not a cache key")
        return self.folder / f"{key}{_SUFFIX}"

    def _scan(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Regular files of the folder; links and what vanishes meanwhile are left out."""
        try:
            items = list(os.scandir(self.folder))
        except OSError:
            return
        for item in items:
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield item, status

    def _touch(self, path: Path) -> None:
        stamp = int(self._now() * 1e9)
        os.utime(path, ns=(stamp, stamp))

    def _warn(self, verb: str, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"cannot {verb} the kernel cache in {self.folder}: {error.strerror or error}; kernels are compiled again "
            "in every process. Set PYGPUKIT_CACHE_DIR to a writable folder, or PYGPUKIT_CACHE=0 to do without",
            RuntimeWarning,
            stacklevel=3,
        )


def cache_folder() -> Path | None:
    """The folder in force: PYGPUKIT_CACHE_DIR or the platform's; None where the user has no home folder."""
    chosen = read_settings().cache_dir
    if chosen is not None:
        return chosen.absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):
            base = os.path.expanduser("~/.cache")
    return Path(base) / "pygpukit" / "kernels" if os.path.isabs(base) else None


def open_cache() -> DiskCache | None:
    """The cache the settings ask for; None where PYGPUKIT_CACHE=0 or there is no folder for it."""
    settings = read_settings()
    folder = cache_folder()
    if not settings.cache or folder is None:
        return None
    return _open(folder, settings.cache_size, settings.cache_ttl)


@functools.lru_cache(maxsize=16)
def _open(folder: Path, limit: int, ttl: float | None) -> DiskCache:
    return DiskCache(folder, limit, ttl)


def _is_entry(name: str) -> bool:
    return name.endswith(_SUFFIX) and is_key(name.removesuffix(_SUFFIX))


def _read_regular(path: Path, limit: int, whole: bool = True) -> bytes | None:
    """Bytes of a regular file; None for a link, a folder or a pipe, and for a file over `limit` asked for whole."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or (whole and status.st_size > limit):
        return None
    with open(path, "rb") as file:
        return file.read(limit)


def _remove(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)


def _acquire(path: Path, deadline: float) -> int | None:
    """Lock the file and keep it open; None where that cannot be done before the deadline."""
    pause = 0.002
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError:
            return None
        try:
            if _try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            # The owner has removed the file between our open and our lock.
            pass
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
