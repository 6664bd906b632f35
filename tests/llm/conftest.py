"""Fixtures of tests of language models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pygpukit.llm.testing import tiny_gguf, tiny_model


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama in a GGUF file."""
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama in a folder as Hugging Face has it."""
    return tiny_model("llama", tmp_path_factory.mktemp("model") / "tiny-llama")
