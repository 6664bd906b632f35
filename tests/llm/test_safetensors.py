"""SafeTensors files, one and several: what the reader gives, and what it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pygpukit.errors import ModelFileError
from pygpukit.llm import SafeTensorsFile, ShardedSafeTensorsFile, load_safetensors
from pygpukit.llm.testing import write_safetensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -2.0, np.nan], ml_dtypes.bfloat16),
    "c": np.array(7.0, np.float16),
    "d": np.zeros((0, 4), np.float32),
}


def file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(kind: str = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


def test_tensors_are_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_safetensors(path, ARRAYS)
    opened = load_safetensors(path)
    assert isinstance(opened, SafeTensorsFile)
    assert opened.tensor_names == list(ARRAYS)
    assert (opened.num_tensors, len(opened), "a" in opened, "x" in opened) == (4, 4, True, False)
    assert opened.file_size == path.stat().st_size
    assert opened.metadata == {"format": "pt"}
    for name, array in ARRAYS.items():
        view = opened.tensor_view(name)
        assert view.dtype == array.dtype
        assert not view.flags.writeable
        np.testing.assert_array_equal(view.astype(np.float64), array.astype(np.float64))
        assert opened.tensor_bytes(name) == array.tobytes()
        assert opened.tensor_as_f32(name).dtype == np.float32
        assert opened.tensor_data_ptr(name)[1] == array.nbytes == opened.tensor_info(name).size_bytes
    view = opened.tensor_view("a")
    opened.close()
    assert view.tolist() == ARRAYS["a"].tolist()
    with pytest.raises(KeyError, match="no tensor 'x'"):
        opened.tensor_info("x")


def test_a_tensor_that_is_not_aligned(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    header = {"x": entry("U8", [1], [0, 1]), "y": entry("F32", [1], [1, 5])}
    path.write_bytes(file(header, b"\x09" + struct.pack("<f", 2.5)))
    assert SafeTensorsFile(path).tensor_view("y").tolist() == [2.5]


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "short": (b"\x01\x02", "cut off"),
    "header of 2^63": (file({}, b"", 1 << 63), "are allowed"),
    "header past the end": (file({}, b"", 1000), "cut off"),
    "not an object": (file(b"[1, 2]"), "begins with"),
    "no JSON": (file(b"{x"), "not JSON"),
    "not UTF-8": (file(b'{"\xff": 1}'), "not JSON"),
    "deep": (file(DEEP), "not JSON"),
    "a name twice": (file(b'{"a": 1, "a": 2}'), "'a' is there twice"),
    "metadata of numbers": (file({"__metadata__": {"a": 1}}), "texts to texts"),
    "no offsets": (file({"a": {"dtype": "F32", "shape": [1]}}), "must have dtype, shape and data_offsets"),
    "an unknown type": (file({"a": entry("F33")}, bytes(16)), "unknown type 'F33'"),
    "a type of numbers": (file({"a": entry(3)}, bytes(16)), "unknown type 3"),  # type: ignore[arg-type]
    "a shape of floats": (file({"a": entry(shape=[4.0])}, bytes(16)), "the shape of tensor 'a'"),
    "a shape below 0": (file({"a": entry(shape=[-4])}, bytes(16)), "the shape of tensor 'a'"),
    "true as a size": (file({"a": entry(shape=[True])}, bytes(16)), "the shape of tensor 'a'"),
    "offsets reversed": (file({"a": entry(offsets=[16, 0])}, bytes(16)), "is said to lie at 16 to 0"),
    "offsets past the end": (file({"a": entry(offsets=[0, 32], shape=[8])}, bytes(16)), "0 to 32 of 16 bytes"),
    "one offset": (file({"a": entry(offsets=[0])}, bytes(16)), "data_offsets of tensor 'a'"),
    "sizes that overflow": (file({"a": entry(shape=[1 << 33, 1 << 33])}, bytes(16)), "bytes, and 16 are given"),
    "too few bytes": (file({"a": entry(shape=[5])}, bytes(16)), "has 20 bytes, and 16 are given"),
    "half a byte": (file({"a": entry("F4", [3], [0, 1])}, b"x"), "has 1.5 bytes"),
    "a hole": (file({"a": entry(), "b": entry(offsets=[20, 36])}, bytes(36)), "'b' leaves a hole"),
    "two that overlap": (file({"a": entry(), "b": entry(offsets=[8, 24])}, bytes(24)), "'b' overlaps"),
    "more data": (file({"a": entry()}, bytes(17)), "tensors end here"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_files_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    data, reason = HOSTILE[name]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as raised:
        SafeTensorsFile(path)
    assert reason in str(raised.value)
    assert str(path) in str(raised.value)


def shards(folder: Path, **places: str) -> Path:
    """Two files, and an index that says where tensors are."""
    write_safetensors(folder / "1.safetensors", {"a": ARRAYS["a"]})
    write_safetensors(folder / "2.safetensors", {"b": ARRAYS["b"]})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 30}, "weight_map": places}))
    return index


def test_tensors_in_several_files(tmp_path: Path) -> None:
    opened = load_safetensors(shards(tmp_path, a="1.safetensors", b="2.safetensors"))
    assert isinstance(opened, ShardedSafeTensorsFile)
    assert opened.tensor_view("a").tolist() == ARRAYS["a"].tolist()
    assert opened.tensor_as_f32("b")[0] == 1.5


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ({"a": "../1.safetensors"}, "which is not in its folder"),
        ({"a": "/etc/passwd"}, "which is not in its folder"),
        ({"a": "..\\1.safetensors"}, "which is not in its folder"),
        ({"a": ""}, "which is not in its folder"),
        ({"a": ".."}, "which is not in its folder"),
        ({"a": "3.safetensors"}, "which is not there"),
        ({"a": "2.safetensors", "b": "2.safetensors"}, "has the tensor 'a', and it has not"),
        ({"a": "1.safetensors", "x": "2.safetensors"}, "has the tensor 'x', and it has not"),
        ({"a": 3}, "does not map names to files"),
    ],
)
def test_an_index_that_does_not_fit(places: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as raised:
        ShardedSafeTensorsFile(shards(tmp_path, **places))
    assert reason in str(raised.value)


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    index = shards(tmp_path, a="1.safetensors", b="2.safetensors")
    write_safetensors(tmp_path / "2.safetensors", {"b": ARRAYS["b"], "a": ARRAYS["a"]})
    with pytest.raises(ModelFileError, match=r"'a' is not where the index says, in '1\.safetensors'"):
        ShardedSafeTensorsFile(index)
