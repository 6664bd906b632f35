"""Settings of GPT-2, Llama and Qwen 3 by the names in their config.json, for programs that make models themselves."""

from __future__ import annotations

import dataclasses

from pygpukit.llm.architecture import find_spec
from pygpukit.llm.config import Settings, TransformerConfig

__all__ = ["GPT2Config", "LlamaConfig", "Qwen3Config"]


@dataclasses.dataclass
class GPT2Config:
    """Settings of a GPT-2.

    Examples
    --------
    >>> GPT2Config(n_layer=2).to_transformer_config().num_layers
    2
    """

    vocab_size: int = 50257
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_positions: int = 1024
    layer_norm_eps: float = 1e-5

    @property
    def n_inner(self) -> int:
        """Width of the feed-forward part."""
        return 4 * self.n_embd

    def to_transformer_config(self) -> TransformerConfig:
        """Return the same as the model's settings."""
        values = {"layer_norm_epsilon": self.layer_norm_eps, **dataclasses.asdict(self)}
        return find_spec("gpt2").read_config(Settings(values))


@dataclasses.dataclass
class LlamaConfig:
    """Settings of a Llama.

    Examples
    --------
    >>> config = LlamaConfig(num_hidden_layers=2).to_transformer_config()
    >>> config.head_dim, config.num_kv_groups, config.rope_theta
    (64, 8, 10000.0)
    """

    vocab_size: int = 32000
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 22
    num_attention_heads: int = 32
    num_key_value_heads: int = 4
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden_size // self.num_attention_heads

    def to_transformer_config(self) -> TransformerConfig:
        """Return the same as the model's settings."""
        return find_spec("llama").read_config(Settings(dataclasses.asdict(self)))


@dataclasses.dataclass
class Qwen3Config:
    """Settings of a Qwen 3.

    Examples
    --------
    >>> Qwen3Config(num_hidden_layers=2).to_transformer_config().qk_norm
    True
    """

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 40960
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1000000.0

    def to_transformer_config(self) -> TransformerConfig:
        """Return the same as the model's settings."""
        return find_spec("qwen3").read_config(Settings(dataclasses.asdict(self)))
