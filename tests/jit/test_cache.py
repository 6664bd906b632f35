"""The disk cache: round trip, damage, eviction, folders that cannot be used."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.errors import CacheError
from pygpukit.jit import cache as cache_module
from pygpukit.jit.cache import DiskCache, cache_folder, open_cache
from pygpukit.jit.entry import Entry, encode


class Clock:
    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        self.time += 1
        return self.time


def entry(number: int, size: int = 100, created: float = 1_700_000_000.0) -> Entry:
    return Entry(f"{number:064x}", f"k{number}", "90a", "cubin", bytes([number % 256]) * size, {}, "", created)


def names(cache: DiskCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir())


def size_of(number: int, size: int = 100) -> int:
    return len(encode(entry(number, size)))


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "deep" / "cache", 1 << 20, None, Clock())


def test_round_trip(cache: DiskCache) -> None:
    assert cache.get(entry(1).key) is None
    cache.put(entry(1))
    assert cache.get(entry(1).key) == entry(1)
    assert cache.get(entry(2).key) is None
    assert names(cache) == [f"{entry(1).key}.kernel"]
    assert cache.folder.stat().st_mode & 0o077 == 0 or os.name == "nt"


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damage_is_a_miss_and_is_removed(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder), 1 << 20)
        cache.put(entry(1))
        [path] = cache.folder.iterdir()
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        else:
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        path.write_bytes(content)
        assert cache.get(entry(1).key) is None
        assert not path.exists()
        cache.put(entry(1))
        assert cache.get(entry(1).key) == entry(1)


@given(
    st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 9), st.integers(0, 400)), max_size=40),
    st.integers(300, 2500),
)
@settings(max_examples=60, deadline=None)
def test_the_least_recently_used_make_room(steps: list[tuple[str, int, int]], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder), limit, None, Clock())
        model: dict[int, Entry] = {}  # in order of last use
        for action, number, size in steps:
            if action == "get":
                assert cache.get(entry(number).key) == model.get(number)
                if number in model:
                    model[number] = model.pop(number)
            else:
                item = entry(number, size)
                cache.put(item)
                if len(encode(item)) > limit:
                    continue
                model.pop(number, None)
                model[number] = item
                while sum(len(encode(kept)) for kept in model.values()) > limit:
                    del model[next(iter(model))]
            total = sum(path.stat().st_size for path in cache.folder.iterdir())
            assert total <= limit
            assert names(cache) == sorted(f"{kept.key}.kernel" for kept in model.values())


def test_a_folder_that_others_fill_is_listed_again_in_time(tmp_path: Path) -> None:
    limit = 100 * size_of(1)
    cache, other = DiskCache(tmp_path, limit, None, Clock()), DiskCache(tmp_path, limit, None, Clock())
    cache.put(entry(1))
    for number in range(2, 101):
        other.put(entry(number))
    # The folder is full of images that this process has not counted.
    for number in range(101, 101 + cache_module._WRITES_PER_SCAN):
        cache.put(entry(number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit


def test_a_folder_that_is_far_from_full_is_seldom_listed(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    scan = cache._scan
    monkeypatch.setattr(cache, "_scan", lambda: scans.append(1) or scan())
    for number in range(3 * cache_module._WRITES_PER_SCAN):
        cache.put(entry(number, 10))
    assert len(scans) == 3


def test_an_image_larger_than_the_cache_is_not_stored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, size_of(1) + 10)
    cache.put(entry(1))
    cache.put(entry(2, 1000))
    assert cache.get(entry(1).key) is not None
    assert cache.get(entry(2).key) is None


def test_outdated_images_are_misses_and_are_swept(tmp_path: Path) -> None:
    clock = Clock()
    cache = DiskCache(tmp_path, 1 << 20, 100.0, clock)
    cache.put(entry(1, created=clock.time))
    cache.put(entry(2, created=clock.time))
    clock.time += 50
    assert cache.get(entry(1).key) is not None
    clock.time += 80
    # Used meanwhile, and still too old.
    assert cache.get(entry(1).key) is None
    cache.put(entry(3, created=clock.time))
    assert names(cache) == [f"{entry(3).key}.kernel"]


def test_foreign_files_are_left_alone(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(entry(1))
    outside = tmp_path / "outside"
    outside.write_text("mine")
    strange = ["notes.txt", "x.kernel", "A" * 64 + ".kernel", "..kernel", "-rf.kernel", "\n.kernel"]
    for name in strange:
        (cache.folder / name).write_bytes(b"x" * 2000)
    (cache.folder / "folder").mkdir()
    os.symlink(outside, cache.folder / f"{entry(2).key}.kernel")
    (cache.folder / f"{entry(3).key}.kernel").mkdir()
    cache.limit = size_of(1)
    cache.trim()
    assert [file.summary.name for file in cache.files()] == ["k1"]
    assert cache.get(entry(2).key) is None
    assert cache.get(entry(3).key) is None
    assert cache.clear() == (1, size_of(1))
    assert {*strange, "folder"} <= set(names(cache))
    assert outside.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.timeout(20)
def test_a_pipe_does_not_block(cache: DiskCache) -> None:
    cache.put(entry(1))
    os.mkfifo(cache.folder / f"{entry(2).key}.kernel")
    assert cache.get(entry(2).key) is None
    assert len(cache.files()) == 1


def test_a_link_is_replaced_and_not_followed(cache: DiskCache, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    cache.folder.mkdir(parents=True)
    os.symlink(outside, cache.folder / f"{entry(1).key}.kernel")
    cache.put(entry(1))
    assert outside.read_text() == "mine"
    assert cache.get(entry(1).key) == entry(1)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "/x"])
def test_only_keys_name_files(cache: DiskCache, key: str) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        cache.get(key)


def test_leftovers_of_dead_writers_are_swept(tmp_path: Path) -> None:
    clock = Clock()
    cache = DiskCache(tmp_path, 1 << 20, None, clock)
    for name, age in ((".old.tmp", 4000), (".new.tmp", 10)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (clock.time - age, clock.time - age))
    cache.put(entry(1))
    assert names(cache) == [".new.tmp", f"{entry(1).key}.kernel"]


def test_an_unusable_folder_warns_once_and_does_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = DiskCache(tmp_path / "file" / "cache", 1 << 20)
    with pytest.warns(RuntimeWarning, match="cannot .* the kernel cache in .*PYGPUKIT_CACHE_DIR"):
        cache.put(entry(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(entry(1))
        assert cache.get(entry(1).key) is None
        with cache.lock(entry(1).key):
            pass
    assert cache.files() == []
    assert cache.clear() == (0, 0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_folder_leaves_nothing_behind(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cache.put(entry(1))

    def refuse(*paths: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_module.os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match=os.strerror(code)):
        cache.put(entry(2))
    assert names(cache) == [f"{entry(1).key}.kernel"]
    assert cache.get(entry(1).key) == entry(1)


def test_a_read_only_cache_can_still_be_read(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(entry(1))

    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(cache_module.os, "utime", refuse)
    assert cache.get(entry(1).key) == entry(1)


def test_clear_says_what_it_cannot_remove(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(entry(1))

    def refuse(path: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache_module.os, "unlink", refuse)
    with pytest.raises(CacheError, match=r"cannot remove .*Permission denied"):
        cache.clear()


def test_listing_is_by_last_use(cache: DiskCache) -> None:
    for number in (1, 2, 3):
        cache.put(entry(number))
    cache.get(entry(1).key)
    assert [file.summary.name for file in cache.files()] == ["k1", "k3", "k2"]
    assert {file.size for file in cache.files()} == {size_of(1)}


def test_a_lock_excludes_and_leaves_no_file(cache: DiskCache) -> None:
    key = entry(1).key
    inside: list[int] = []
    overlaps: list[int] = []

    def work() -> None:
        with cache.lock(key):
            inside.append(1)
            if len(inside) > 1:
                overlaps.append(len(inside))
            cache.get(key)
            cache.put(entry(1))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert names(cache) == [f"{key}.kernel"]


def test_a_lock_that_cannot_be_had_does_not_block(cache: DiskCache) -> None:
    with cache.lock(entry(1).key), cache.lock(entry(1).key, timeout=0.05):
        pass
    with cache.lock(entry(1).key, timeout=0.05):
        assert f"{entry(1).key}.lock" in names(cache)


def test_a_lock_file_left_by_a_dead_process_does_not_block(cache: DiskCache) -> None:
    cache.folder.mkdir(parents=True)
    (cache.folder / f"{entry(1).key}.lock").write_bytes(b"")
    with cache.lock(entry(1).key, timeout=0):
        pass
    assert names(cache) == []


HOLDER = """
import sys, time
from pathlib import Path
from pygpukit.jit.cache import DiskCache

with DiskCache(Path(sys.argv[1]), 1000).lock("0" * 64):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_lock_ends_with_its_owner(cache: DiskCache) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLDER, str(cache.folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait()
    assert names(cache) == [f"{'0' * 64}.lock"]
    with cache.lock("0" * 64, timeout=60):
        pass
    # It was had, since it was removed.
    assert names(cache) == []


def test_the_settings_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("PYGPUKIT_CACHE_SIZE", "3KiB")
    monkeypatch.setenv("PYGPUKIT_CACHE_TTL", "60")
    cache = open_cache()
    assert cache is not None
    assert (cache.folder, cache.limit, cache.ttl) == (tmp_path / "mine", 3072, 60.0)
    assert open_cache() is cache
    monkeypatch.setenv("PYGPUKIT_CACHE", "0")
    assert open_cache() is None


@pytest.mark.skipif(os.name == "nt", reason="the place on Linux")
def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYGPUKIT_CACHE_DIR")
    monkeypatch.setattr(cache_module.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/pygpukit/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/pygpukit/kernels")


WORKER = """
import sys, time
from pathlib import Path
from pygpukit.jit.cache import DiskCache
from pygpukit.jit.entry import Entry

folder, log, start = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
cache = DiskCache(folder, 8000)
time.sleep(max(0.0, start - time.time()))
for round in range(30):
    number = round % 12
    key = f"{number:064x}"
    content = bytes([number]) * (100 + number)
    with cache.lock(key):
        entry = cache.get(key)
        if entry is None:
            with open(log, "a") as file:
                file.write(f"{number}\\n")
            entry = Entry(key, "k", "90a", "cubin", content)
            cache.put(entry)
    assert entry.image == content, number
"""


def test_many_processes_share_one_folder(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    start = str(time.time() + 1.0)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "cache"), str(log), start]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for worker in workers:
        _, errors = worker.communicate(timeout=100)
        assert worker.returncode == 0, errors
    left = [path.name for path in (tmp_path / "cache").iterdir()]
    assert all(name.endswith(".kernel") for name in left), left
    # 12 images of about 300 bytes fit into 8000 bytes, so each was made once whoever came first.
    assert sorted(map(int, log.read_text().split())) == list(range(12))
