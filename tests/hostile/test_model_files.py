"""Files of models that were changed anywhere: they open or are refused, and nothing else happens."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.errors import GPUKitError, ModelFileError
from pygpukit.llm import GGUFFile, SafeTensorsFile
from pygpukit.llm.loading import load_model, open_checkpoint
from pygpukit.llm.testing import tiny_gguf, tiny_model


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "tiny.gguf"
    return tiny_gguf(path, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32).read_bytes()


@pytest.fixture(scope="module")
def folder_bytes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    folder = tiny_model("llama", tmp_path_factory.mktemp("fuzz"), **sizes)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 2, 4, 8]), st.integers(0, 2**64 - 1)), min_size=1, max_size=4
)


def changed(data: bytes, changes: list[tuple[float, int, int]], upto: int) -> bytes:
    """Bytes overwritten, or for 0 cut out, at places up to one."""
    result = bytearray(data)
    for share, size, value in changes:
        at = int(share * (upto - 1))
        result[at : at + max(size, 1)] = value.to_bytes(8, "little")[:size]
    return bytes(result)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(changes=CHANGES)
def test_changed_gguf_files(gguf_bytes: bytes, changes: list[tuple[float, int, int]]) -> None:
    head = gguf_bytes.index(b"output.weight") + 64
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.gguf"
        path.write_bytes(changed(gguf_bytes, changes, head))
        try:
            file = GGUFFile(path)
        except ModelFileError:
            return
        with np.errstate(all="ignore"):
            for name in file:
                assert file.tensor_as_f32(name).shape == file.tensor_info(name).shape
        try:
            load_model(open_checkpoint(path))
        except (GPUKitError, MemoryError):
            return


@settings(max_examples=150, derandomize=True, deadline=None)
@given(changes=CHANGES)
def test_changed_safetensors_files(folder_bytes: dict[str, bytes], changes: list[tuple[float, int, int]]) -> None:
    data = folder_bytes["model.safetensors"]
    head = 8 + int.from_bytes(data[:8], "little")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, content in folder_bytes.items():
            (folder / name).write_bytes(content)
        (folder / "model.safetensors").write_bytes(changed(data, changes, head))
        try:
            file = SafeTensorsFile(folder / "model.safetensors")
        except ModelFileError:
            return
        with np.errstate(all="ignore"):
            for name in file:
                assert file.tensor_view(name).nbytes == file.tensor_info(name).nbytes
        try:
            load_model(open_checkpoint(folder))
        except GPUKitError:
            return


@settings(max_examples=150, derandomize=True, deadline=None)
@given(changes=CHANGES)
def test_changed_settings(folder_bytes: dict[str, bytes], changes: list[tuple[float, int, int]]) -> None:
    data = folder_bytes["config.json"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, content in folder_bytes.items():
            (folder / name).write_bytes(content)
        (folder / "config.json").write_bytes(changed(data, changes, len(data)))
        try:
            load_model(open_checkpoint(folder))
        except GPUKitError:
            return
