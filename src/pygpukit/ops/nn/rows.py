"""The operators of neural networks, by the modules that register them."""

from __future__ import annotations

from pygpukit.ops.nn.activations import bias_add_inplace, geglu, gelu, linear_bias_gelu, swiglu
from pygpukit.ops.nn.embeddings import embedding
from pygpukit.ops.nn.norm import layernorm, rmsnorm, rmsnorm_residual
from pygpukit.ops.nn.probabilities import logsoftmax, softmax
from pygpukit.ops.nn.rope import qk_norm_rope_cache, rope_inplace
from pygpukit.ops.nn.tables import alibi_add_bias, alibi_compute_bias, alibi_init_slopes, rope_tables

__all__ = [
    "alibi_add_bias",
    "alibi_compute_bias",
    "alibi_init_slopes",
    "bias_add_inplace",
    "embedding",
    "geglu",
    "gelu",
    "layernorm",
    "linear_bias_gelu",
    "logsoftmax",
    "qk_norm_rope_cache",
    "rmsnorm",
    "rmsnorm_residual",
    "rope_inplace",
    "rope_tables",
    "softmax",
    "swiglu",
]
