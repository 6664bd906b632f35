"""Tiny models whose logits transformers has computed: what they are, and how their files are written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pygpukit.llm.testing import tiny_model

PATH = Path(__file__).parent / "golden_logits.npz"


class Case(NamedTuple):
    """An architecture, entries of its config.json, and the length of the prompt."""

    arch: str
    config: Mapping[str, Any]
    tokens: int = 40


def rope(kind: str, **more: Any) -> dict[str, Any]:
    """As transformers 5 writes it."""
    return {"max_position_embeddings": 64, "rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **more}}


def old_rope(kind: str, **more: Any) -> dict[str, Any]:
    """As transformers 4 wrote it."""
    return {"max_position_embeddings": 64, "rope_theta": 500.0, "rope_scaling": {"type": kind, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 3.0, 6.0, 9.0]}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
GEMMA = {"query_pre_attn_scalar": 13, "sliding_window": 6, "tie_word_embeddings": True}

CASES: Mapping[str, Case] = {
    "llama": Case("llama", {}),
    "llama-biases": Case("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-one-head-of-keys": Case("llama", {"num_key_value_heads": 1, "head_dim": 14}),
    "llama-linear": Case("llama", rope("linear", factor=4.0)),
    "llama-linear-old": Case("llama", old_rope("linear", factor=4.0)),
    "llama-dynamic": Case("llama", rope("dynamic", factor=2.0) | {"max_position_embeddings": 16}),
    "llama-yarn": Case("llama", rope("yarn", **YARN)),
    "llama-yarn-old": Case("llama", old_rope("yarn", **YARN)),
    "llama-yarn-mscale": Case("llama", rope("yarn", **YARN, mscale=0.8, mscale_all_dim=0.5, truncate=False)),
    "llama-llama3": Case("llama", rope("llama3", **LLAMA3)),
    "mistral-window": Case("mistral", {"sliding_window": 7}),
    "mistral": Case("mistral", {"sliding_window": None}),
    "qwen2": Case("qwen2", {}),
    "qwen2-window": Case(
        "qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": True}
    ),
    "qwen3": Case("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "phi3": Case("phi3", {"sliding_window": None}),
    "phi3-window-partial": Case("phi3", {"sliding_window": 9, "partial_rotary_factor": 0.6}),
    "phi3-longrope-long": Case(
        "phi3",
        rope("longrope", **LONG) | {"original_max_position_embeddings": 16, "sliding_window": None, "head_dim": 8},
    ),
    "phi3-longrope-short": Case(
        "phi3",
        rope("longrope", **LONG) | {"original_max_position_embeddings": 16, "sliding_window": None, "head_dim": 8},
        13,
    ),
    "gemma2": Case("gemma2", GEMMA | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}),
    "gemma3": Case("gemma3_text", GEMMA | {"num_hidden_layers": 7, "rope_parameters": GEMMA_ROPE}),
    "gpt2": Case("gpt2", {}),
    "gpt2-inner": Case("gpt2", {"n_inner": 75}),
}


def write(name: str, folder: Path) -> list[int]:
    """Write the model of a case; return its prompt."""
    case = CASES[name]
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    tiny_model(case.arch, folder, seed=len(name), vocab_size=67, **special, **case.config)
    return np.random.default_rng(len(name)).integers(0, 67, case.tokens).tolist()


def digest(folder: Path) -> str:
    """What a golden was computed from."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
