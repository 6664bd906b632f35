"""Loading arrays from files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    before = native.transfer_options()
    native.set_transfer_options(3, 64 << 10, 4, False)
    yield
    native.set_transfer_options(*before)


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    content = np.random.default_rng(1).integers(0, 256, 1_000_003, dtype=np.uint8)
    path = tmp_path / "weights.bin"
    path.write_bytes(content.tobytes())
    return path, content


@pytest.mark.parametrize(
    ("offset", "shape", "dtype"),
    [(0, 1_000_003, "uint8"), (3, (1000, 250), "float32"), (65_536, 65_536, "uint8"), (1_000_003, (0, 5), "int64"),
     (999_999, (), "int32"), (77, (2, 3, 7000), "bfloat16")],
)  # fmt: skip
def test_bytes_are_taken_as_they_are(
    weights: tuple[Path, np.ndarray[Any, Any]], offset: int, shape: Any, dtype: str
) -> None:
    path, content = weights
    array = gp.load_raw(path, offset, shape, dtype)
    assert array.dtype.name == dtype
    got = array.to_numpy()
    assert got.tobytes() == content[offset : offset + got.nbytes].tobytes()
    assert got.shape == ((shape,) if isinstance(shape, int) else shape)


def test_on_a_stream(weights: tuple[Path, np.ndarray[Any, Any]]) -> None:
    path, content = weights
    stream = gp.Stream()
    array = gp.load_raw(str(path), 1, 500_000, "uint8", stream=stream, device=gp.current_device())
    np.testing.assert_array_equal(array.to_numpy(stream=stream), content[1:500_001])


def test_progress_is_told(weights: tuple[Path, np.ndarray[Any, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    path, _ = weights
    seen: list[tuple[int, int]] = []
    gp.load_raw(path, 0, 900_000, "uint8", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (900_000, 900_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    for progress in (None, False, True):
        gp.load_raw(path, 0, 900_000, "uint8", progress=progress)
    assert capfd.readouterr().out == ""


def test_a_progress_function_that_fails_ends_the_load(weights: tuple[Path, np.ndarray[Any, Any]]) -> None:
    path, content = weights

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gp.load_raw(path, 0, 900_000, "uint8", progress=fail)
    np.testing.assert_array_equal(gp.load_raw(path, 0, 900_000, "uint8").to_numpy(), content[:900_000])


def test_errors_name_the_file_and_the_bytes(weights: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    path, _ = weights
    with pytest.raises(
        gp.LoadError, match=r"weights.bin.*float64\(200000,\).*1600000 bytes.*1000003 bytes.*1000003 are"
    ):
        gp.load_raw(path, 0, 200_000, "float64")
    with pytest.raises(OSError, match=r"4 bytes are wanted.*so 0 are there"):
        gp.load_raw(path, 2_000_000, 1, "int32")
    with pytest.raises(ValueError, match="-1"):
        gp.load_raw(path, -1, 1, "int32")
    with pytest.raises(ValueError, match=r"\(2, -3\)"):
        gp.load_raw(path, 0, (2, -3), "int32")
    with pytest.raises(TypeError, match="float31"):
        gp.load_raw(path, 0, 1, "float31")
    with pytest.raises(FileNotFoundError):
        gp.load_raw(tmp_path / "none.bin", 0, 1, "int32")
    with pytest.raises(gp.LoadError, match="no regular file"):
        gp.load_raw(tmp_path, 0, 0, "int32")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("has no named pipes in folders")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gp.LoadError, match=r"'.*pipe' is no regular file"):
        gp.load_raw(tmp_path / "pipe", 0, 1, "int32")


def test_a_name_may_be_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.bin"
    try:
        with open(path, "wb") as file:
            file.write(bytes(range(8)))
    except OSError:
        pytest.skip("the file system has names of text only")
    assert gp.load_raw(os.fsdecode(path), 1, 3, "uint8").tolist() == [1, 2, 3]
    with pytest.raises(gp.LoadError, match=r"xff.bin' is too short"):
        gp.load_raw(os.fsdecode(path), 1, 9, "uint8")


def test_a_file_that_shrinks_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "shrinks.bin"
    path.touch()
    os.truncate(path, 64 << 20)
    array = gp.empty(64 << 20, "uint8")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        said = ""
        # Threads may be done before the file is short; not every time.
        for _ in range(50):
            handle = native.start_load(array, descriptor, str(path), 0)
            os.truncate(path, 1000)
            try:
                handle.wait()
            except gp.LoadError as error:
                said = str(error)
                break
            os.truncate(path, 64 << 20)
        assert "1000 bytes" in said
        assert str(path) in said
    finally:
        os.close(descriptor)
    assert gp.ones(300_000).to_numpy().all()


def test_nothing_is_left_open(weights: tuple[Path, np.ndarray[Any, Any]], run_python: Callable[..., str]) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("looks into /proc")
    program = f"""
import os, time
import pygpukit as gp
gp.load_raw({str(weights[0])!r}, 0, 1000, "uint8")
before = len(os.listdir("/proc/self/fd"))
for _ in range(20):
    gp.load_raw({str(weights[0])!r}, 0, 900_000, "uint8")
for _ in range(200):
    after = len(os.listdir("/proc/self/fd"))
    if after <= before:
        break
    time.sleep(0.01)
print(after - before)
"""
    assert run_python(program) in ("0\n", "-1\n", "-2\n")


def test_wrong_progress_and_dimensions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(16))
    with pytest.raises(TypeError, match=r"progress must be None, False, True or a function .* but it is 5"):
        gp.load_raw(path, 0, 4, "float32", progress=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dimensions must be from 0 to"):
        gp.load_raw(path, 0, (1 << 70, 0), "float32")
