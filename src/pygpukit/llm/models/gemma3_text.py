"""Gemma 3: queries and keys are normalised, nothing is squeezed; five layers with a window, then one that sees all."""

from __future__ import annotations

import dataclasses

from pygpukit.llm.architecture import ModelSpec
from pygpukit.llm.config import Settings, TransformerConfig, read_rope
from pygpukit.llm.models import gemma2
from pygpukit.llm.rope import Rope


def read_config(s: Settings) -> TransformerConfig:
    """Read a config.json; layers with a window have positions of another base."""
    found = gemma2.common(s, 4096, s.whole("sliding_window_pattern", 6))
    dim, positions = found["head_dim"], found["max_position_embeddings"]
    rope = read_rope(s, dim, positions, 1e6, "full_attention")
    if "sliding_attention" in s.inner("rope_parameters"):
        local = read_rope(s, dim, positions, 1e4, "sliding_attention")
    else:
        local = Rope(dim=dim, theta=s.number("rope_local_base_freq", 1e4))
    return TransformerConfig(**found, architecture="gemma3_text", rope=rope, local_rope=local, qk_norm=True)


def read_gguf(s: Settings, vocab_size: int) -> TransformerConfig:
    """Read a GGUF file's metadata."""
    found = gemma2.gguf_gemma(s, vocab_size)
    layers, dim = found["num_layers"], found["head_dim"]
    per_head = found["hidden_size"] / found["num_heads"] if layers == 62 else dim
    made = TransformerConfig(
        **found,
        architecture="gemma3_text",
        windows=gemma2.windows(s, layers, s.whole("attention.sliding_window", 1024), 6),
        scale=per_head**-0.5,
        local_rope=Rope(dim=dim, theta=s.number("rope.freq_base_swa", 1e4)),
        qk_norm=True,
    )
    if made.rope is not None and "rope.freq_base" not in s:
        made = dataclasses.replace(made, rope=dataclasses.replace(made.rope, theta=1e6))
    return made


SPEC = ModelSpec(
    "gemma3_text", read_config, read_gguf, names=gemma2.NAMES, model_types=("gemma3",), gguf_name="gemma3",
    prefixes=gemma2.PREFIXES,
)  # fmt: skip
