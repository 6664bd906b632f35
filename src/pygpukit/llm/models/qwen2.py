"""Qwen 2 and 2.5: a bias on queries, keys and values; a window on the upper layers where that is asked for."""

from __future__ import annotations

from typing import Any

from pygpukit.llm.architecture import ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common
from pygpukit.llm.models import llama


def windows(s: Settings) -> tuple[int, ...]:
    """Return how many positions each layer sees, 0 for all."""
    layers = s.whole("num_hidden_layers")
    size = s.whole("sliding_window", 4096) if s.flag("use_sliding_window", False) else 0
    kinds = s.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
    full = s.whole("max_window_layers", 28)
    return tuple(size if layer >= full else 0 for layer in range(layers))


def read_config(s: Settings, **changes: Any) -> TransformerConfig:
    """Read a config.json, which has no word of the biases."""
    found = {"architecture": "qwen2", "qkv_bias": True, "o_bias": False, "mlp_bias": False, "windows": windows(s)}
    return llama.read_config(s, **(found | changes))


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    return TransformerConfig(**gguf_common(s, vocab_size), architecture="qwen2", qkv_bias=True)


SPEC = ModelSpec("qwen2", read_config, read_gguf, gguf_name="qwen2")
