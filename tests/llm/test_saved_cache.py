"""Saved caches: another engine finds their pages with the same bits; hostile files are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pygpukit.errors import CacheError, ModelFileError
from pygpukit.llm import LLM, SamplingParams
from pygpukit.llm.testing import tiny_gguf

from .engines import few_pages

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
PROMPT = [(7 * i) % 250 + 5 for i in range(50)]


@pytest.fixture(scope="module")
def saved(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "cache.safetensors"
    with LLM(gguf_file) as llm:
        llm.generate([PROMPT, PROMPT[:40] + [9] * 30], PARAMS)
        llm.generate(PROMPT, PARAMS, cache_salt="a")
        assert llm.save_cache(path) == 3 + 2 + 3
    return path


def test_another_engine_finds_the_pages(saved: Path, gguf_file: Path) -> None:
    with LLM(gguf_file) as llm:
        expected = llm.generate(PROMPT, PARAMS)
    with LLM(gguf_file) as llm:
        assert llm.load_cache(saved) == 8
        assert llm.load_cache(saved) == 0
        assert llm.stats()["pages_used"] == 0
        for salt in (None, "a", "b"):
            out = llm.generate(PROMPT, PARAMS, cache_salt=salt)
            assert out.usage.cached == (0 if salt == "b" else 48)
            assert (out.token_ids, out.logprobs) == (expected.token_ids, expected.logprobs)


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_codes_and_their_scales(kv_dtype: str, gguf_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache.safetensors"
    with LLM(gguf_file, kv_dtype=kv_dtype) as llm:
        expected = llm.generate(PROMPT, PARAMS)
        assert llm.save_cache(path) == 3
    with LLM(gguf_file, kv_dtype=kv_dtype) as llm:
        assert llm.load_cache(path) == 3
        out = llm.generate(PROMPT, PARAMS)
        assert out.usage.cached == 48
        assert (out.token_ids, out.logprobs) == (expected.token_ids, expected.logprobs)
    with LLM(gguf_file) as llm, pytest.raises(CacheError, match="another model, device or setting"):
        llm.load_cache(path)


def test_as_much_as_there_is_room_for(saved: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pages(monkeypatch, 5, 0)
    with LLM(gguf_file) as llm:
        llm.load_cache(saved)
        assert llm.stats()["pages_used"] == 0
        assert llm.generate(PROMPT, PARAMS).token_ids


def test_another_model_is_refused(saved: Path, gguf_file: Path, tmp_path: Path) -> None:
    with (
        LLM(tiny_gguf(tmp_path / "other.gguf", seed=1)) as llm,
        pytest.raises(CacheError, match="this cache is of another model"),
    ):
        llm.load_cache(saved)
    with LLM(gguf_file, max_model_len=100) as llm, pytest.raises(CacheError, match="another model, device or setting"):
        llm.load_cache(saved)


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], None], **arrays: Any) -> Path:
    """A saved cache with another header, or other int32 arrays of the same size."""
    data = source.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    for name, array in arrays.items():
        first, end = header[name]["data_offsets"]
        values = np.frombuffer(bytes(body[first:end]), np.int32).copy()
        values[0] = array
        body[first:end] = values.tobytes()
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return target


@pytest.mark.parametrize(
    ("change", "arrays", "reason"),
    [
        (lambda h: h["__metadata__"].update(format="x"), {}, "this is no saved cache: its format is 'x'"),
        (lambda h: h["__metadata__"].update(salts="["), {}, "its salts are not JSON"),
        (lambda h: h["__metadata__"].update(salts="[1]"), {}, "its salts are not a list of texts"),
        (lambda h: h["__metadata__"].update(salts='["a"]'), {}, "entries with 1 salts do not fit"),
        (lambda h: h.update(other=h.pop("places")), {}, "it must have counts, pages.0, places, tokens, and has"),
        (lambda h: h["pages.0"].update(shape=h["pages.0"]["shape"][::-1]), {}, "its pages are"),
        (lambda h: h["tokens"].update(dtype="F32"), {}, "must be int32 in one dimension"),
        (lambda h: None, {"tokens": 259}, "tokens outside of the vocabulary of 259"),
        (lambda h: None, {"tokens": -1}, "tokens outside of the vocabulary"),
        (lambda h: None, {"places": 8}, "names pages that are not among its 8"),
        (lambda h: None, {"counts": 0}, "do not fit"),
        (lambda h: None, {"counts": 2}, "do not fit"),
        (lambda h: None, {"pages.0": 1}, "it is damaged"),
        (lambda h: None, {"tokens": 258}, "it is damaged"),
        (lambda h: h["__metadata__"].pop("sha256"), {}, "it is damaged"),
    ],
)
def test_hostile_files_are_refused(
    change: Callable[[dict[str, Any]], None], arrays: dict[str, int], reason: str, saved: Path, gguf_file: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = changed(saved, tmp_path / "bad.safetensors", change, **arrays)
    with LLM(gguf_file) as llm:
        with pytest.raises(CacheError, match=reason):
            llm.load_cache(path)
        assert llm.stats()["pages_kept"] == 0
        assert len(llm.generate(PROMPT, PARAMS).token_ids) == 8


def test_a_cut_file_is_refused_and_nothing_is_left_behind(saved: Path, gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.safetensors").write_bytes(saved.read_bytes()[:-5])
    with LLM(gguf_file) as llm:
        with pytest.raises(ModelFileError):
            llm.load_cache(tmp_path / "cut.safetensors")
        with pytest.raises(FileNotFoundError):
            llm.save_cache(tmp_path / "no" / "where.safetensors")
        llm.save_cache(tmp_path / "empty.safetensors")
        assert llm.load_cache(tmp_path / "empty.safetensors") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.safetensors", "empty.safetensors"]
    llm.close()
    with pytest.raises(ValueError, match="the model is closed"):
        llm.save_cache(tmp_path / "x")


def test_a_cache_without_an_index_has_nothing_to_save(gguf_file: Path, tmp_path: Path) -> None:
    with LLM(gguf_file, prefix_cache=False) as llm, pytest.raises(ValueError, match="prefix_cache=False"):
        llm.save_cache(tmp_path / "x")
