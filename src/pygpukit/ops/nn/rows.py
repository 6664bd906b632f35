"""The operators of neural networks, by the modules that register them."""

from __future__ import annotations

from pygpukit.ops.nn.activations import bias_add_inplace, geglu, gelu, linear_bias_gelu, swiglu
from pygpukit.ops.nn.norm import layernorm, rmsnorm, rmsnorm_residual
from pygpukit.ops.nn.softmax import logsoftmax, softmax

__all__ = [
    "bias_add_inplace",
    "geglu",
    "gelu",
    "layernorm",
    "linear_bias_gelu",
    "logsoftmax",
    "rmsnorm",
    "rmsnorm_residual",
    "softmax",
    "swiglu",
]
