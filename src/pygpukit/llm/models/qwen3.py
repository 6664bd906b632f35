"""Qwen 3: queries and keys are normalised per head; heads of 128 whatever the hidden size is."""

from __future__ import annotations

from pygpukit.llm.architecture import ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common
from pygpukit.llm.models import llama, qwen2


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json."""
    found = {"architecture": "qwen3", "qk_norm": True, "mlp_bias": False, "head_dim": s.whole("head_dim", 128)}
    return llama.read_config(s, **found, windows=qwen2.windows(s))


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    return TransformerConfig(**gguf_common(s, vocab_size), architecture="qwen3", qk_norm=True)


SPEC = ModelSpec("qwen3", read_config, read_gguf, gguf_name="qwen3")
