"""What layers compute, by the operators of the package: the only module of `llm` that does arithmetic on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.reduce.rows import FUNCTIONS
from pygpukit.ops.registry import functions
from pygpukit.ops.shape.joining import concatenate

__all__ = ["Linear", "Norm", "activated", "attention", "concatenate", "gated", "mask", "rotate", "softcapped"]

_mean = FUNCTIONS["mean"]
_softmax = functions()["softmax"]


class Linear:
    """``x @ weight.T + bias``; weights are [out, in], as checkpoints have them.

    Examples
    --------
    >>> Linear(gp.asarray([[1.0, 2.0]], "float32"))(gp.asarray([[3.0, 4.0]], "float32")).tolist()
    [[11.0]]
    """

    __slots__ = ("_turned", "bias", "weight")

    def __init__(self, weight: GPUArray, bias: GPUArray | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._turned = weight.T

    def __call__(self, x: GPUArray) -> GPUArray:
        product: GPUArray = matmul(x, self._turned)
        if self.bias is not None:
            product += self.bias
        return product

    @property
    def out_features(self) -> int:
        """Rows of the weights."""
        return int(self.weight.shape[0])


class Norm:
    """Normalisation of the last axis: ``"rmsnorm"``, or ``"layernorm"`` with a bias.

    Sums are in float32 whatever the type of the elements.

    Examples
    --------
    >>> Norm(gp.ones(2), eps=0.0)(gp.asarray([[3.0, -3.0]], "float32")).tolist()
    [[1.0, -1.0]]
    """

    __slots__ = ("bias", "eps", "norm_type", "weight")

    def __init__(
        self, weight: GPUArray, bias: GPUArray | None = None, norm_type: str = "rmsnorm", eps: float = 1e-5
    ) -> None:
        self.weight, self.bias, self.norm_type, self.eps = weight, bias, norm_type, eps

    def __call__(self, x: GPUArray) -> GPUArray:
        wide = x.astype("float32", copy=False)
        if self.norm_type == "layernorm":
            wide = wide - _mean(wide, axis=-1, keepdims=True)
        factor = e.rsqrt(_mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        product = wide * factor * self.weight
        if self.bias is not None:
            product += self.bias
        return product.astype(x.dtype, copy=False)


def activated(activation: str, x: GPUArray) -> GPUArray:
    """``silu(x)``, or ``gelu(x)`` in its tanh form."""
    return e.silu(x) if activation == "silu" else e.gelu(x)


def gated(activation: str, gate: GPUArray, up: GPUArray) -> GPUArray:
    """``activation(gate) * up``."""
    return activated(activation, gate) * up


def softcapped(x: GPUArray, cap: float) -> GPUArray:
    """Squeeze values to below ``cap`` in size; 0 leaves them."""
    return e.tanh(x / cap) * cap if cap else x


def rotate(x: GPUArray, cos: GPUArray, sin: GPUArray) -> GPUArray:
    """Turn the first dimensions of heads by their positions.

    Parameters
    ----------
    x : GPUArray
        [tokens, heads, dim].
    cos, sin : GPUArray
        [tokens, 1, pairs]; dimension i turns with i + pairs.
    """
    pairs = cos.shape[-1]
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned = [a * cos - b * sin, b * cos + a * sin]
    if 2 * pairs < x.shape[-1]:
        turned.append(x[..., 2 * pairs :])
    joined: GPUArray = concatenate([part.astype(x.dtype, copy=False) for part in turned], axis=-1)
    return joined


def mask(start: int, tokens: int, first: int, window: int) -> GPUArray | None:
    """What is added to the scores of `tokens` queries from position `start` on, for keys from position `first` on.

    A query sees the keys up to its own position, of them the last `window` where that is not 0. None if all are seen.
    """
    queries = np.arange(start, start + tokens)[:, None]
    keys = np.arange(first, start + tokens)[None, :]
    seen = keys <= queries
    if window:
        seen &= keys > queries - window
    if seen.all():
        return None
    return from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))


def attention(
    q: GPUArray, k: GPUArray, v: GPUArray, scale: float, softcap: float = 0.0, added: GPUArray | None = None
) -> GPUArray:
    """Attention of queries [tokens, heads, dim] over keys and values [shared heads, positions, dim].

    Consecutive heads share keys and values. The result is [tokens, heads * dim].
    """
    tokens, heads, dim = q.shape
    shared = k.shape[0]
    # One matrix per shared head: its queries of all heads and tokens.
    grouped: Any = q.reshape(tokens, shared, heads // shared, dim).transpose(1, 2, 0, 3)
    scores = matmul(grouped.reshape(shared, heads // shared * tokens, dim), k.transpose(0, 2, 1))
    scores = softcapped(scores.astype("float32", copy=False) * scale, softcap)
    if added is not None:
        scores = (scores.reshape(shared, heads // shared, tokens, -1) + added).reshape(scores.shape)
    weights = _softmax(scores, axis=-1).astype(v.dtype, copy=False)
    result: Any = matmul(weights, v).reshape(shared, heads // shared, tokens, dim)
    joined: GPUArray = result.transpose(2, 0, 1, 3).reshape(tokens, heads * dim)
    return joined
