"""Weights in memory of their own, one behind the other, under the published names.

Loading makes them so already; this is for models that a program put together from views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.llm.layers import Linear, Norm

if TYPE_CHECKING:
    from pygpukit.llm.decoder import CausalTransformerModel

__all__ = ["repack_linear", "repack_model_weights", "repack_norm", "repack_weight"]


def repack_weight(weight: GPUArray) -> GPUArray:
    """Return a contiguous copy in memory of its own.

    Examples
    --------
    >>> repack_weight(gp.ones((4, 4))[:, 1:3]).strides
    (8, 4)
    """
    return weight.copy()


def repack_linear(linear: Linear) -> None:
    """Give a layer copies of its matrix and bias; quantised weights stay as they are."""
    if isinstance(linear.weight, GPUArray):
        linear.weight = repack_weight(linear.weight)
        linear._turned = linear.weight.T
    if linear.bias is not None:
        linear.bias = repack_weight(linear.bias)


def repack_norm(norm: Norm) -> None:
    """Give a norm copies of its weight and bias."""
    norm.weight = repack_weight(norm.weight)
    if norm.bias is not None:
        norm.bias = repack_weight(norm.bias)


def repack_model_weights(model: CausalTransformerModel) -> None:
    """Give all layers of a model copies of their weights, in the order they are used."""
    for block in model.blocks:
        parts = (block.attn_norm, block.attn.qkv, block.attn.q_norm, block.attn.k_norm, block.attn.o,
                 block.attn_post_norm, block.mlp_norm, block.mlp.up, block.mlp.down, block.mlp_post_norm)  # fmt: skip
        for part in parts:
            if isinstance(part, Linear):
                repack_linear(part)
            elif part is not None:
                repack_norm(part)
    repack_norm(model.final_norm)
