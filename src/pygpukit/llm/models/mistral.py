"""Mistral: Llama with a window, which is 4096 where the settings do not say; its GGUF files say that they are Llama."""

from __future__ import annotations

from pygpukit.llm.architecture import ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig
from pygpukit.llm.models import llama


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json: a missing window means 4096, null means none."""
    window = s.whole("sliding_window", 0) if "sliding_window" in s else 4096
    kv_heads = s.whole("num_key_value_heads", 8)
    windows = (window,) * s.whole("num_hidden_layers")
    none = {"qkv_bias": False, "o_bias": False, "mlp_bias": False}
    return llama.read_config(s, architecture="mistral", windows=windows, num_kv_heads=kv_heads, **none)


SPEC = ModelSpec("mistral", read_config, llama.read_gguf, gguf_name="mistral", permuted=True)
