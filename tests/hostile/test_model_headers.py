"""Headers of models' files that are well-formed and lie, and the other files of a model's folder.

They open with what they really hold or are refused; nothing is taken of memory by what they announce.
"""

from __future__ import annotations

import json
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.errors import GPUKitError, ModelFileError, OutOfMemoryError
from pygpukit.llm import LLM, GGUFFile, LazyModelLoader, SafeTensorsFile, SamplingParams, ShardedSafeTensorsFile
from pygpukit.llm.loading import open_checkpoint
from pygpukit.llm.testing import tiny_model, write_safetensors

# What a header of a few hundred bytes may take.
MOST = 8 << 20
DATA = bytes(range(64)) * 2

NUMBERS = st.one_of(
    st.integers(0, 130),
    st.sampled_from([-1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
)
TYPES = st.sampled_from(["F32", "F16", "BF16", "U8", "I64", "F4", "F6_E2M3", "BOOL", "F8_E4M3", "X", "", "f32"])
ENTRIES = st.fixed_dictionaries(
    {"dtype": TYPES, "shape": st.lists(NUMBERS, max_size=3), "data_offsets": st.lists(NUMBERS, min_size=1, max_size=3)}
)
# Entries that fit the data, so that some headers are right.
FITTING = st.builds(
    lambda at, size, more: {"dtype": "U8", "shape": [size, *more], "data_offsets": [at, at + size]},
    st.sampled_from([0, 32, 64]),
    st.sampled_from([0, 32, 64, 128]),
    st.sampled_from([[], [1], [1 << 64], [1 << 40, 1 << 40], [1] * 63, [1] * 40]),
)
NAMES = st.sampled_from(["a", "b", "c", "__metadata__", "", "../x", "\u0000", "a" * 300])


def bounded(read: Callable[[], Any]) -> Any:
    """What a reader gives, None where it refuses; it takes little memory either way."""
    tracemalloc.start()
    try:
        return read()
    except GPUKitError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST


@settings(max_examples=200, derandomize=True, deadline=None)
@given(header=st.dictionaries(NAMES, st.one_of(ENTRIES, FITTING, NUMBERS), max_size=4), junk=st.binary(max_size=4))
def test_safetensors_headers(header: dict[str, Any], junk: bytes) -> None:
    text = json.dumps(header).encode() + (b" " if junk else b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + DATA)
        file = bounded(lambda: SafeTensorsFile(path))
        if file is None:
            return
        for name in file:
            assert file.tensor_view(name).nbytes == file.tensor_info(name).nbytes
        # Accepted: the tensors cover the data, each byte once.
        assert sum(file.tensor_info(name).nbytes for name in file) == len(DATA)
        assert (
            b"".join(file.tensor_bytes(name) for name in sorted(file, key=lambda n: file.tensor_info(n).offset)) == DATA
        )


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    places=st.dictionaries(
        st.sampled_from(["a", "b", "x", ""]),
        st.one_of(st.sampled_from(["1.safetensors", "2.safetensors", "..", "", "index.json", "/dev/zero"]), NUMBERS),
        max_size=3,
    ),
    extra=st.one_of(st.none(), st.sampled_from([[], 0, "x", {"total_size": -1}])),
)  # fmt: skip
def test_indexes(places: dict[str, Any], extra: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_safetensors(folder / "1.safetensors", {"a": np.ones(2, np.float32)})
        write_safetensors(folder / "2.safetensors", {"b": np.ones(2, np.float32)})
        (folder / "index.json").write_text(json.dumps({"weight_map": places, "metadata": extra}))
        file = bounded(lambda: ShardedSafeTensorsFile(folder / "index.json"))
        if file is not None:
            # A file that the index does not name is not opened.
            assert {name: f"{1 + (name == 'b')}.safetensors" for name in file} == places


LENGTHS = st.sampled_from([0, 1, 3, 5, 1 << 20, 1 << 40, 1 << 62])
KEY = st.tuples(
    st.sampled_from([b"general.architecture", b"general.alignment", b"split.count", b"llama.block_count", b"\xff"]),
    st.integers(0, 13),
    st.one_of(
        st.binary(max_size=12),
        st.builds(lambda n, rest: struct.pack("<Q", n) + rest, LENGTHS, st.binary(max_size=6)),
        st.builds(lambda kind, n: struct.pack("<IQ", kind, n) + bytes(16), st.integers(0, 13), LENGTHS),
    ),
)
TENSOR = st.tuples(
    st.sampled_from([b"t", b"token_embd.weight", b"u"]),
    st.lists(st.sampled_from([0, 1, 4, 32, 256, 1 << 20, 1 << 33, (1 << 64) - 1]), max_size=5),
    st.sampled_from([0, 1, 2, 3, 8, 12, 14, 20, 30, 39, 4, 99]),
    st.sampled_from([0, 32, 64, 7, 1 << 40]),
)


def length(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    keys=st.lists(KEY, max_size=3),
    tensors=st.lists(TENSOR, max_size=3),
    lies=st.sampled_from([(0, 0), (0, 0), (0, 0), (1, 0), (0, 1), (1 << 50, 0), (0, 1 << 50)]),
)
def test_gguf_headers(keys: list[Any], tensors: list[Any], lies: tuple[int, int]) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors) + lies[0], len(keys) + lies[1])
    for name, kind, value in keys:
        data += length(name) + struct.pack("<I", kind) + value
    for name, sizes, kind, offset in tensors:
        data += length(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(data + bytes(-len(data) % 32 + 256))
        file = bounded(lambda: GGUFFile(path))
        if file is None:
            return
        for name in file:
            info = file.tensor_info(name)
            assert info.offset + info.nbytes <= file.file_size
            assert file.tensor_as_f32(name).size == info.size
        bounded(lambda: open_checkpoint(path))
        loader = LazyModelLoader(64)
        loader.load_file(path)
        for name in loader.tensor_names:
            try:
                assert loader.get_tensor(name).nbytes <= 64
            except OutOfMemoryError:
                assert file.tensor_info(name).size > 16
        assert loader.pool_stats.used <= 64


@pytest.fixture(scope="module")
def folder_bytes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    folder = tiny_model("llama", tmp_path_factory.mktemp("other"), **sizes)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


FIELDS = st.sampled_from(["content", "name", "default"])
VALUES = st.recursive(
    st.one_of(NUMBERS, st.sampled_from(["{{ 1/0 }}", "{% for i in range(9**9) %}{% endfor %}", "<|im_end|>", "eval"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(FIELDS, inner, max_size=2)),
    max_leaves=4,
)
KEYS = {
    "tokenizer_config.json": ["chat_template", "bos_token", "eos_token", "added_tokens_decoder"],
    "generation_config.json": [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "eos_token_id",
        "do_sample",
    ],
    "tokenizer.json": ["model", "added_tokens", "decoder", "pre_tokenizer", "normalizer", "post_processor", "version"],
    "config.json": ["eos_token_id", "bos_token_id", "rope_parameters", "quantization_config", "text_config", "dtype"],
}


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    name=st.sampled_from(sorted(KEYS)), which=st.integers(0, 6), value=VALUES,
    whole=st.sampled_from([None, None, None, b"", b"[]", b"\xff\xfe", b"{" * 20_000]),
)  # fmt: skip
def test_the_other_files(
    folder_bytes: dict[str, bytes], name: str, which: int, value: Any, whole: bytes | None
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for other, content in folder_bytes.items():
            (folder / other).write_bytes(content)
        entries = json.loads(folder_bytes[name])
        entries[KEYS[name][which % len(KEYS[name])]] = value
        (folder / name).write_bytes(json.dumps(entries).encode() if whole is None else whole)
        try:
            with LLM(folder) as llm:
                llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=1))
        except GPUKitError:
            return


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    import os

    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no pipes in folders here")
    os.mkfifo(tmp_path / "m.gguf")
    for reader in (GGUFFile, SafeTensorsFile):
        with pytest.raises(ModelFileError, match="no regular file"):
            reader(tmp_path / "m.gguf")
