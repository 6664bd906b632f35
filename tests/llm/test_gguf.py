"""GGUF files: what the reader gives, and every block format against the package that defines it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from pygpukit.errors import ModelFileError
from pygpukit.llm import GGUFFile
from pygpukit.llm.blocks import TYPES, decode
from pygpukit.llm.testing import tiny_gguf, write_gguf

VECTORS = Path(__file__).parent / "gguf_blocks.npz"
QUANTISED = [kind for kind in TYPES.values() if kind.dtype is None]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_blocks_are_what_the_makers_package_says(kind: object) -> None:
    with np.load(VECTORS) as vectors, np.errstate(all="ignore"):
        found = decode(kind, vectors[f"{kind.name}_blocks"].reshape(-1))
        np.testing.assert_array_equal(found, vectors[kind.name])
    assert found.dtype == np.float32


def test_metadata_and_tensors(gguf_file: Path) -> None:
    with GGUFFile(gguf_file) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata["llama.block_count"] == 2
        assert file.metadata["tokenizer.ggml.tokens"][:2] == ["<|endoftext|>", "<|im_start|>"]
        assert file.metadata["tokenizer.ggml.token_type"].tolist()[:4] == [3, 3, 3, 1]
        assert file.metadata["tokenizer.ggml.add_bos_token"] is False
        assert len(file) == file.num_tensors == len(file.tensor_names) == len(list(file))
        info = file.tensor_info("blk.1.ffn_down.weight")
        assert info.shape == (64, 96)
        assert info.dtype == "F32"
        values = file.tensor_as_f32("blk.1.ffn_down.weight")
        assert values.shape == (64, 96)
        np.testing.assert_array_equal(values, np.frombuffer(file.tensor_bytes(info.name), "<f4").reshape(64, 96))
        address, size = file.tensor_data_ptr(info.name)
        assert address % 32 == 0
        assert size == 64 * 96 * 4
        with pytest.raises(KeyError, match="no tensor 'x'"):
            file.tensor_info("x")


def test_views_are_read_only_and_stay_after_closing(gguf_file: Path) -> None:
    file = GGUFFile(gguf_file)
    view = file.tensor_view("output_norm.weight")
    file.close()
    assert not view.flags.writeable
    assert view.nbytes == 256
    with pytest.raises(ValueError, match="is closed"):
        file.tensor_view("output_norm.weight")


def test_quantised_matrices_are_close_to_their_source(tmp_path: Path) -> None:
    plain, coded = (tiny_gguf(tmp_path / f"{kind}.gguf", kind=kind) for kind in ("F32", "Q8_0"))
    a, b = (GGUFFile(path).tensor_as_f32("blk.0.attn_q.weight") for path in (plain, coded))
    assert 0 < np.abs(a - b).max() < np.abs(a).max() / 127


def split(folder: Path, count: int = 3) -> list[Path]:
    """A model in several files."""
    paths = []
    for index in range(count):
        path = folder / f"m-{index + 1:05}-of-{count:05}.gguf"
        metadata = {"split.no": np.uint32(index), "split.count": np.uint32(count)}
        if index == 0:
            metadata |= {"split.tensors.count": np.uint32(count), "general.architecture": "llama"}
        write_gguf(path, metadata, {f"t{index}": (np.full((2, 4), index, np.float32), "F32")})
        paths.append(path)
    return paths


def test_a_model_in_several_files_is_one(tmp_path: Path) -> None:
    first, *_ = split(tmp_path)
    file = GGUFFile(first)
    assert file.tensor_names == ["t0", "t1", "t2"]
    assert file.tensor_as_f32("t2").tolist() == [[2.0] * 4] * 2


def test_a_part_alone_says_which_is_the_first(tmp_path: Path) -> None:
    paths = split(tmp_path)
    with pytest.raises(ModelFileError, match=r"file 2 of 3: open the first, m-00001-of-00003\.gguf"):
        GGUFFile(paths[1])
    paths[2].unlink()
    with pytest.raises(ModelFileError, match=r"in 3 files, and m-00003-of-00003\.gguf is not there"):
        GGUFFile(paths[0])


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    first, second, _ = split(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelFileError, match="not file 2 of 3 by its own account"):
        GGUFFile(first)
    with pytest.raises(ModelFileError, match="which are named like"):
        GGUFFile(first.rename(tmp_path / "model.gguf"))


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second, _ = split(tmp_path)
    data = second.read_bytes().replace(b"t1", b"t0")
    second.write_bytes(data)
    with pytest.raises(ModelFileError, match="'t0' is there twice"):
        GGUFFile(first)


def head(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


PAD = bytes(256)
HOSTILE = {
    "empty": (b"", "the file is empty"),
    "another kind": (b"PK\x03\x04" + PAD, "the file begins with"),
    "only the magic": (b"GGUF", "the file is cut off"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + PAD, "big-endian"),
    "version 1": (head(version=1) + PAD, "the version is 1"),
    "more tensors than bytes": (head(tensors=1 << 60) + PAD, "more than the file has room for"),
    "more keys than bytes": (head(keys=1 << 63) + PAD, "more than the file has room for"),
    "a key past the end": (head(keys=1) + struct.pack("<Q", 60000) + PAD, "cut off"),
    "a key of 2^63 bytes": (head(keys=1) + struct.pack("<Q", 1 << 63) + PAD, "are allowed"),
    "a text of 2^63 bytes": (head(keys=1) + key(b"k", 8, struct.pack("<Q", 1 << 63)) + PAD, "are allowed"),
    "a text past the end": (head(keys=1) + key(b"k", 8, struct.pack("<Q", 1 << 20)) + PAD, "cut off"),
    "not UTF-8": (head(keys=1) + key(b"\xff\xfe", 4, bytes(4)) + PAD, "not UTF-8"),
    "an unknown type": (head(keys=1) + key(b"k", 99, PAD), "unknown type 99"),
    "neither true nor false": (head(keys=1) + key(b"k", 7, b"\x07" + PAD), "neither true nor false"),
    "an array of 2^62": (head(keys=1) + key(b"k", 9, struct.pack("<IQ", 4, 1 << 62)) + PAD, "room"),
    "texts of 2^62": (head(keys=1) + key(b"k", 9, struct.pack("<IQ", 8, 1 << 62)) + PAD, "room"),
    "arrays in arrays": (head(keys=1) + key(b"k", 9, struct.pack("<IQ", 9, 1)) + PAD, "arrays in arrays"),
    "a key twice": (head(keys=2) + 2 * key(b"k", 4, bytes(4)) + PAD, "'k' is there twice"),
    "alignment 0": (head(keys=1) + key(b"general.alignment", 4, bytes(4)) + PAD, "power of two"),
    "alignment 24": (head(keys=1) + key(b"general.alignment", 4, struct.pack("<I", 24)) + PAD, "power of two"),
    "five dimensions": (head(tensors=1) + tensor(b"t", (1,) * 5) + PAD, "5 dimensions"),
    "an unknown element type": (head(tensors=1) + tensor(b"t", (4,), 255) + PAD, "unknown element type 255"),
    "half a block": (head(tensors=1) + tensor(b"t", (33,), 8) + PAD, "blocks of Q8_0 have 32"),
    "a tensor past the end": (head(tensors=1) + tensor(b"t", (1 << 20,)) + PAD, "ends beyond the file"),
    "sizes that overflow": (head(tensors=1) + tensor(b"t", (1 << 32, 1 << 32)) + PAD, "ends beyond the file"),
    "an offset past the end": (head(tensors=1) + tensor(b"t", (4,), 0, 1 << 62) + PAD, "ends beyond the file"),
    "an offset between": (head(tensors=1) + tensor(b"t", (4,), 0, 8) + PAD, "not at a multiple of 32"),
    "two that overlap": (head(tensors=2) + tensor(b"a", (16,)) + tensor(b"b", (4,), 0, 32) + PAD, "overlap"),
    "one name twice": (head(tensors=2) + tensor(b"a", (4,)) + tensor(b"a", (4,), 0, 32) + PAD, "'a' is there twice"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_files_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    data, reason = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as raised:
        GGUFFile(path)
    assert reason in str(raised.value)
    assert str(path) in str(raised.value)


def test_every_cut_of_a_file_is_noticed(gguf_file: Path, tmp_path: Path) -> None:
    data = gguf_file.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(1, 400, 13), *range(400, len(data) - 31, len(data) // 40)]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelFileError):
            GGUFFile(path)
