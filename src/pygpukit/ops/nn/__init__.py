"""Operators of neural networks; the published import path of their names, which are those of the package."""

from __future__ import annotations

from typing import Any

NAMES = (
    "alibi_add_bias", "alibi_compute_bias", "alibi_init_slopes", "bias_add_inplace", "embedding", "geglu", "gelu",
    "layernorm", "linear_bias_gelu", "logsoftmax", "relu2", "rmsnorm", "rmsnorm_residual", "rope_init_linear",
    "rope_init_ntk_aware", "rope_init_yarn", "rope_inplace", "rope_inplace_f32table", "rope_tables", "sdpa_causal",
    "sdpa_causal_fixed_cache", "sdpa_causal_fixed_cache_ptr", "sigmoid", "silu", "softmax", "swiglu", "tanh",
)  # fmt: skip
"""What ``from pygpukit.ops.nn import ...`` finds, as far as the package has it."""


def __getattr__(name: str) -> Any:
    # The package is complete before anybody asks; importing it here at once would be a circle.
    if name in NAMES:
        from pygpukit.ops.registry import functions

        found = functions().get(name)
        if found is not None:
            return found
    raise AttributeError(f"module 'pygpukit.ops.nn' has no attribute '{name}'")
