"""Gemma 2: norms of 1 + w, four a layer; scores and logits are squeezed; every other layer has a window."""

from __future__ import annotations

from typing import Any

from pygpukit.llm.architecture import LLAMA_NAMES, ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, gguf_common, hf_common, read_rope

NAMES = {
    **LLAMA_NAMES,
    "attn_post_norm": "model.layers.{i}.post_attention_layernorm",
    "mlp_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "mlp_post_norm": "model.layers.{i}.post_feedforward_layernorm",
}
PREFIXES = ("", "language_model.", "model.language_model.")


def windows(s: Settings, layers: int, size: int, pattern: int) -> tuple[int, ...]:
    """Return how many positions each layer sees: every `pattern`-th sees all."""
    kinds = s.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
    return tuple(size if (layer + 1) % pattern else 0 for layer in range(layers))


def common(s: Settings, window: int, pattern: int) -> dict[str, Any]:
    """Return what Gemma 2 and 3 have in common."""
    heads = s.whole("num_attention_heads")
    found = hf_common(s)
    biased = s.flag("attention_bias", False)
    activation = s.text("hidden_activation", "gelu_pytorch_tanh")
    return found | {
        "vocab_size": s.whole("vocab_size", 256000),
        "head_dim": s.whole("head_dim", 256),
        "num_kv_heads": s.whole("num_key_value_heads", heads),
        "norm_eps": s.number("rms_norm_eps", 1e-6),
        "norm_offset": 1.0,
        "activation": "silu" if activation == "silu" else "gelu",
        "qkv_bias": biased,
        "o_bias": biased,
        "post_norms": True,
        "windows": windows(s, found["num_layers"], s.whole("sliding_window", window), pattern),
        "scale": s.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": s.number("attn_logit_softcapping", 0.0),
        "logit_softcap": s.number("final_logit_softcapping", 0.0),
        "embed_scale": found["hidden_size"] ** 0.5,
        "tied": s.flag("tie_word_embeddings", True),
    }


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json."""
    found = common(s, 4096, 2)
    caps = {"attention_softcap": ("attn_logit_softcapping", 50.0), "logit_softcap": ("final_logit_softcapping", 30.0)}
    for name, (key, default) in caps.items():
        # A missing key has a default, null means none.
        found[name] = s.number(key, 0.0 if key in s else default)
    rope = read_rope(s, found["head_dim"], found["max_position_embeddings"])
    return TransformerConfig(**found, architecture="gemma2", rope=rope)


def gguf_gemma(s: Settings, vocab_size: int) -> dict[str, Any]:
    """Return what the metadata of a Gemma says; its norms are stored with the 1."""
    found = gguf_common(s, vocab_size)
    return found | {
        "activation": "gelu",
        "post_norms": True,
        "attention_softcap": s.number("attn_logit_softcapping", 0.0),
        "logit_softcap": s.number("final_logit_softcapping", 0.0),
        "embed_scale": found["hidden_size"] ** 0.5,
    }


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    found = gguf_gemma(s, vocab_size)
    size = s.whole("attention.sliding_window", 4096)
    # The largest of the family scales by its hidden size per head, the others by the size of a head.
    per_head = found["hidden_size"] / found["num_heads"] if found["num_layers"] == 46 else found["head_dim"]
    return TransformerConfig(
        **found, architecture="gemma2", windows=windows(s, found["num_layers"], size, 2), scale=per_head**-0.5
    )


SPEC = ModelSpec("gemma2", read_config, read_gguf, names=NAMES, gguf_name="gemma2", prefixes=PREFIXES)
