"""`.npy` and `.npz`: what NumPy writes and reads, types it does not have, and files that lie."""

from __future__ import annotations

import io
import pickle
import struct
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from pygpukit.array import files
from pygpukit.ops.units import ALL_TYPES

NUMPY_TYPES = [name for name in ALL_TYPES if not hasattr(ml_dtypes, name)]
EXTENSION = [name for name in ALL_TYPES if hasattr(ml_dtypes, name)]


def host(name: str = "float32", shape: tuple[int, ...] = (3, 4, 5)) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(gp.to_numpy_dtype(name))


def saved(x: Any) -> bytes:
    file = io.BytesIO()
    gp.save(file, x)
    return file.getvalue()


def loaded(content: bytes, **options: Any) -> Any:
    return gp.load(io.BytesIO(content), **options)


def numpys(a: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, a)
    return file.getvalue()


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_files_are_numpys_to_the_byte(name: str) -> None:
    a = host(name)
    x = gp.from_numpy(a)
    for key in (..., 1, (2, 3, 4), (slice(0, 0),), (slice(None, None, -1), slice(None), slice(0, 5, 2))):
        content = saved(x[key])
        assert content == numpys(np.ascontiguousarray(a[key]).reshape(a[key].shape))
        y = loaded(content)
        assert y.dtype is x.dtype
        np.testing.assert_array_equal(y.to_numpy(), a[key])
    # In the order of the first axis, as it lies.
    assert saved(x.T) == numpys(a.T)
    y = loaded(numpys(a.T))
    assert y.strides == a.T.strides
    np.testing.assert_array_equal(y.to_numpy(), a.T)


@pytest.mark.parametrize("name", EXTENSION)
def test_types_that_numpy_has_not_keep_their_names(name: str) -> None:
    a = host(name)
    content = saved(gp.from_numpy(a))
    y = loaded(content)
    assert y.dtype.name == name
    assert y.to_numpy().tobytes() == a.tobytes()
    # NumPy reads them as bytes.
    theirs = np.load(io.BytesIO(content))
    assert theirs.dtype.names == (name,)
    assert theirs.view(a.dtype).tobytes() == a.tobytes()
    # And what NumPy itself makes of ml_dtypes.
    assert loaded(numpys(a), dtype=name).to_numpy().tobytes() == a.tobytes()


def test_bytes_without_a_type() -> None:
    with pytest.raises(TypeError, match="dtype='bfloat16'"):
        loaded(numpys(host("bfloat16")))
    with pytest.raises(TypeError, match="2 bytes, and float32 has 4"):
        loaded(numpys(host("bfloat16")), dtype="float32")


@pytest.mark.parametrize("name", [">f4", ">i2", ">c16"])
def test_a_foreign_byte_order_is_converted(name: str) -> None:
    a = np.arange(1000).astype(name)
    np.testing.assert_array_equal(loaded(numpys(a)).to_numpy(), a)


def test_names_of_files(tmp_path: Path) -> None:
    x = gp.arange(5)
    for name in (tmp_path / "a.npy", str(tmp_path / "b.npy"), bytes(tmp_path / "c.npy"), tmp_path / "d"):
        gp.save(name, x)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy", "d.npy"]
    for path in tmp_path.iterdir():
        assert gp.load(path).tolist() == np.load(path).tolist() == [0, 1, 2, 3, 4]
        assert gp.load(str(path), device="cpu").flags.writeable
    with pytest.raises(FileNotFoundError):
        gp.load(tmp_path / "none.npy")
    gp.savez(tmp_path / "e", x, b=x)
    assert sorted(np.load(tmp_path / "e.npz").files) == ["arr_0", "b"]


def test_arrays_one_after_the_other_in_a_file(tmp_path: Path) -> None:
    a, b = host("int16"), host("complex64", (7,))
    with (tmp_path / "both").open("w+b") as file:
        gp.save(file, gp.from_numpy(a))
        np.save(file, b)
        gp.save(file, gp.from_numpy(a).T)
        file.seek(0)
        np.testing.assert_array_equal(gp.load(file).to_numpy(), a)
        np.testing.assert_array_equal(gp.load(file).to_numpy(), b)
        np.testing.assert_array_equal(np.load(file), a.T)
        with pytest.raises(EOFError):
            gp.load(file)
    with tempfile.NamedTemporaryFile() as file:
        gp.save(file, gp.from_numpy(a))
        file.seek(0)
        np.testing.assert_array_equal(gp.load(file).to_numpy(), a)


@pytest.mark.parametrize("compressed", [False, True])
def test_archives(tmp_path: Path, compressed: bool) -> None:
    a, b = host("float16"), host("bfloat16").T
    write, theirs = (gp.savez_compressed, np.savez_compressed) if compressed else (gp.savez, np.savez)
    path = tmp_path / "archive.npz"
    write(path, gp.from_numpy(a), bias=gp.from_numpy(b), plain=[1, 2])
    with gp.load(path) as archive:
        assert sorted(archive) == sorted(archive.files) == ["arr_0", "bias", "plain"]
        assert len(archive) == 3
        assert "bias" in archive
        np.testing.assert_array_equal(archive["arr_0"].to_numpy(), a)
        np.testing.assert_array_equal(archive["arr_0.npy"].to_numpy(), a)
        assert archive["bias"].to_numpy().tobytes() == b.tobytes()
        assert archive["bias"].dtype is gp.bfloat16
        with pytest.raises(KeyError, match=r"'bias', 'plain', 'arr_0'"):
            archive["other"]
    with pytest.raises(ValueError, match="closed"):
        archive["bias"]
    np.testing.assert_array_equal(np.load(path)["arr_0"], a)
    file = io.BytesIO()
    theirs(file, a, names=a[0])
    file.seek(0)
    ours = gp.load(file)
    np.testing.assert_array_equal(ours["names"].to_numpy(), a[0])
    with pytest.raises(ValueError, match="arr_0"):
        write(io.BytesIO(), a, arr_0=a)


def test_large_arrays_pass_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "_PIECE", 1 << 16)
    a = np.random.default_rng(0).standard_normal((300, 1000))
    x = gp.from_numpy(a)
    for view, expected in ((x, a), (x.T, a.T), (x[:, ::3], a[:, ::3]), (x[::-1], a[::-1]), (x[7, ::2], a[7, ::2])):
        written: list[int] = []

        class Counting(io.BytesIO):
            def write(self, data: Any, /, seen: list[int] = written) -> int:
                seen.append(memoryview(data).nbytes)
                return super().write(data)

        file = Counting()
        gp.save(file, view)
        assert max(written) <= 1 << 16
        np.testing.assert_array_equal(np.load(io.BytesIO(file.getvalue())), expected)
        np.testing.assert_array_equal(loaded(file.getvalue()).to_numpy(), expected)
    gp.save(tmp_path / "x", x)
    tracemalloc.start()
    got = gp.load(tmp_path / "x.npy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20, "the array never is in Python's memory"
    np.testing.assert_array_equal(got.to_numpy(), a)


class Pipe(io.RawIOBase):
    """A stream that cannot be asked how long it is, and gives a few bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self.rest = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1, /) -> bytes:
        return self.rest.read(min(count, 1000))


def test_streams_that_cannot_seek() -> None:
    a = host("int32", (50, 60))
    np.testing.assert_array_equal(gp.load(Pipe(numpys(a))).to_numpy(), a)
    with pytest.raises(ValueError, match="cut off"):
        gp.load(Pipe(numpys(a)[:-1]))


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + text.encode("latin1")


def described(descr: str = "'<f4'", shape: str = "(3,)", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (numpys(host())[:-1], "cut off"),
        (numpys(host())[:140], "cut off"),
        (numpys(host())[:60], "inside the header"),
        (numpys(host())[:9], "inside the length"),
        (numpys(host())[:7], "inside the version"),
        (b"\x93NUM", "neither"),
        (b"hello world", "neither"),
        (pickle.dumps([1]), "pickled objects are never loaded"),
        (numpys(np.array([{}], object)), "pickle"),
        (header(described("'|O'")), "pickle"),
        (header(described("[('a', '|O')]")), "pickle"),
        (header(described(shape=f"({1 << 40},)")), "cut off"),
        (header(described(shape=f"({1 << 62}, 4, 4)")), "cut off"),
        (header(described(shape=f"({1 << 70},)")), "is none"),
        (header(described(shape="(-1,)")), "is none"),
        (header(described(shape="(True,)")), "is none"),
        (header(described(shape="(2.0,)")), "is none"),
        (header(described(shape="[3]")), "is none"),
        (header(described(shape=f"({1 << 62}, {1 << 62}, 0)")), "too many elements"),
        (header(described(shape="(1,) * 9")), "no description"),
        (header(described(shape=f"({'1,' * 9})")) + bytes(4), "9 dimensions"),
        (header(described(fortran="3")), "neither True nor False"),
        (header(described("'nonsense'")), "nonsense"),
        (header(described("3")), "which is none"),
        (header("[1, 2]"), "no description"),
        (header("{'descr': '<f4', 'shape': (3,)}"), "no description"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}"), "no description"),
        (header("__import__('os').abort()"), "no description"),
        (header("(" * 5000), "no description"),
        (header("x" * 20_000), "20000 bytes"),
        (header("", (2, 0), 0xFFFFFFFF), "4294967295 bytes"),
        (header(described(), (9, 1)), "version 9.1"),
        (b"PK\x03\x04 and no archive", "damaged"),
    ],
)
def test_files_that_lie_are_refused(content: bytes, part: str) -> None:
    pool = gp.memory.MemoryPool()
    with pool, pytest.raises(ValueError, match=part):
        loaded(content)
    assert pool.used == 0
    if b"NUMPY" in content[:6] and len(content) > 10:
        with pytest.raises(ValueError), gp.memory.MemoryPool():  # noqa: PT011
            gp.load(Pipe(content))


@pytest.mark.parametrize("a", [np.array(["text"]), np.zeros(2, "M8[s]"), np.zeros(2, "f4,i4")])
def test_types_that_arrays_cannot_have(a: np.ndarray[Any, Any]) -> None:
    with pytest.raises(gp.DTypeError):
        loaded(numpys(a))


def test_archives_that_lie() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.npy", numpys(host()))
        archive.writestr("short.npy", numpys(host())[:-5])
        archive.writestr("text.txt", "no array")
        archive.writestr("huge.npy", header(described(shape=f"({1 << 40},)")))
    content = bytearray(file.getvalue())
    ours = loaded(bytes(content))
    assert ours["good"].shape == (3, 4, 5)
    for name, part in (("short", "cut off"), ("text.txt", "no array"), ("huge", "cut off")):
        with pytest.raises(ValueError, match=part):
            ours[name]
    # Damaged bytes of a member, found by its checksum.
    content[60] ^= 0xFF
    with pytest.raises(ValueError, match="damaged"):
        loaded(bytes(content))["good"]
    # The directory says that a member is far longer than its bytes can be.
    directory = file.getvalue()
    place = directory.index(b"PK\x01\x02") + 24
    with pytest.raises(ValueError, match="damaged"):
        loaded(directory[:place] + struct.pack("<I", 0xF000_0000) + directory[place + 4 :])["good"]


def test_arguments() -> None:
    with pytest.raises(TypeError):
        gp.load(3)
    with pytest.raises(TypeError):
        gp.save(io.BytesIO(), np.array(["text"]))
    with pytest.raises(gp.DTypeError):
        gp.load(io.BytesIO(b""), dtype="other")
    with pytest.raises(EOFError):
        gp.load(io.BytesIO(b""))
    gp.save(file := io.BytesIO(), [[1, 2], [3, 4]])
    assert loaded(file.getvalue()).tolist() == [[1, 2], [3, 4]]
