"""Llama 1 to 3.2, and what has its layers: TinyLlama, SmolLM2."""

from __future__ import annotations

from typing import Any

from pygpukit.llm.architecture import ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common, hf_common, read_rope


def read_config(s: Settings, **changes: Any) -> TransformerConfig:
    """Read a config.json."""
    common = hf_common(s)
    biased = s.flag("attention_bias", False)
    found = {
        "architecture": "llama",
        "norm_eps": s.number("rms_norm_eps", 1e-6),
        "qkv_bias": biased,
        "o_bias": biased,
        "mlp_bias": s.flag("mlp_bias", False),
        "rope": read_rope(s, common["head_dim"], common["max_position_embeddings"]),
        "tied": s.flag("tie_word_embeddings", False),
    }
    return TransformerConfig(**(common | found | changes))


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    return TransformerConfig(**gguf_common(s, vocab_size))


SPEC = ModelSpec("llama", read_config, read_gguf, gguf_name="llama", permuted=True)
