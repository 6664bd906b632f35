"""Phi 3: queries, keys and values are one tensor, gate and what passes another; only a part of a head may turn."""

from __future__ import annotations

from pygpukit.llm.architecture import LLAMA_NAMES, ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common
from pygpukit.llm.models import llama

NAMES = {
    **LLAMA_NAMES,
    "qkv": "model.layers.{i}.self_attn.qkv_proj",
    "gate_up": "model.layers.{i}.mlp.gate_up_proj",
}


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json."""
    windows = (s.whole("sliding_window", 0),) * s.whole("num_hidden_layers")
    none = {"qkv_bias": False, "o_bias": False, "mlp_bias": False}
    return llama.read_config(s, architecture="phi3", norm_eps=s.number("rms_norm_eps", 1e-5), windows=windows, **none)


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    common = gguf_common(s, vocab_size)
    windows = (s.whole("attention.sliding_window", 0),) * common["num_layers"]
    return TransformerConfig(**common, architecture="phi3", windows=windows)


SPEC = ModelSpec("phi3", read_config, read_gguf, names=NAMES, gguf_name="phi3", fused_qkv=True, fused_gate_up=True)
