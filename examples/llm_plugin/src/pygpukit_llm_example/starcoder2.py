"""StarCoder 2: LayerNorm, biases everywhere, no gate in the feed-forward part, a window on every layer."""

from __future__ import annotations

from pygpukit.errors import ModelLoadError
from pygpukit.llm.architecture import LLAMA_NAMES, ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common, hf_common, read_rope

NAMES = {**LLAMA_NAMES, "up": "model.layers.{i}.mlp.c_fc", "down": "model.layers.{i}.mlp.c_proj"}
KINDS = {"architecture": "starcoder2", "norm_type": "layernorm", "activation": "gelu", "gated": False}


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json."""
    common = hf_common(s)
    if s.text("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise ModelLoadError(f"config.json: hidden_act is {s.get('hidden_act')!r}, and must be 'gelu_pytorch_tanh'")
    biased = s.flag("use_bias", True)
    return TransformerConfig(
        **common,
        **KINDS,
        norm_eps=s.number("norm_epsilon", 1e-5),
        qkv_bias=biased,
        o_bias=biased,
        mlp_bias=biased,
        rope=read_rope(s, common["head_dim"], common["max_position_embeddings"]),
        windows=(s.whole("sliding_window", 0),) * common["num_layers"],
        tied=s.flag("tie_word_embeddings", True),
    )


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    found = gguf_common(s, vocab_size)
    found["norm_eps"] = s.number("attention.layer_norm_epsilon", 1e-5)
    return TransformerConfig(**found, **KINDS, qkv_bias=True, o_bias=True, mlp_bias=True, tied=True)


SPEC = ModelSpec("starcoder2", read_config, read_gguf, names=NAMES, gguf_name="starcoder2")
