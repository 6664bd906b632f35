"""GPT-2: learned positions, LayerNorm, biases everywhere; its checkpoints store matrices as [in, out]."""

from __future__ import annotations

from typing import Any

from pygpukit.errors import ModelLoadError
from pygpukit.llm.architecture import ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common, hf_tokens

_LAYER = "h.{i}."
NAMES = {
    "embed": "wte",
    "positions": "wpe",
    "final_norm": "ln_f",
    "head": "lm_head",
    "attn_norm": _LAYER + "ln_1",
    "qkv": _LAYER + "attn.c_attn",
    "o": _LAYER + "attn.c_proj",
    "mlp_norm": _LAYER + "ln_2",
    "up": _LAYER + "mlp.c_fc",
    "down": _LAYER + "mlp.c_proj",
}
_SHAPE: dict[str, Any] = {
    "architecture": "gpt2", "norm_type": "layernorm", "activation": "gelu", "gated": False, "qkv_bias": True,
    "o_bias": True, "mlp_bias": True, "learned_positions": True,
}  # fmt: skip


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json."""
    activation = s.text("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        raise ModelLoadError(f"config.json: activation_function is {activation!r}, and must be 'gelu_new'")
    hidden, heads = s.whole("n_embd", 768), s.whole("n_head", 12)
    for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        if s.flag(key, False):
            raise ModelLoadError(f"config.json: {key} is set, which no published GPT-2 has")
    return TransformerConfig(
        vocab_size=s.whole("vocab_size", 50257),
        hidden_size=hidden,
        num_layers=s.whole("n_layer", 12),
        num_heads=heads,
        intermediate_size=s.whole("n_inner", 4 * hidden),
        max_position_embeddings=s.whole("n_positions", 1024),
        norm_eps=s.number("layer_norm_epsilon", 1e-5),
        scale=0.0 if s.flag("scale_attn_weights", True) else 1.0,
        tied=s.flag("tie_word_embeddings", True),
        **_SHAPE,
        **hf_tokens(s),
    )


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    found = gguf_common(s, vocab_size) | {"rope": None, "norm_eps": s.number("attention.layer_norm_epsilon", 1e-5)}
    return TransformerConfig(**found, **_SHAPE)


SPEC = ModelSpec(
    "gpt2", read_config, read_gguf, names=NAMES, gguf_name="gpt2", prefixes=("", "transformer."),
    ignored=(".attn.bias", ".attn.masked_bias"), transposed=True, fused_qkv=True,
)  # fmt: skip
