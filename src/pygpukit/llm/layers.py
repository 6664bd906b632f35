"""Linear layers and norms, and the operators that a decoder's layers are made of."""

from __future__ import annotations

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.registry import functions
from pygpukit.quant.tensor import QuantTensor

__all__ = ["Linear", "Norm", "activated", "softcapped"]

_f = functions()
matmul = _f["matmul"]
attention = _f["sdpa"]
cache_write = _f["kv_cache_update"]
paged_attention = _f["sdpa_paged"]
paged_write = _f["kv_cache_write_paged"]
concatenate = _f["concatenate"]
embedding = _f["embedding"]
where = e.where
norm_rope_write = _f["qk_norm_rope_cache"]
_gated = {"silu": _f["swiglu"], "gelu": _f["geglu"]}
_layernorm, _rmsnorm, _rmsnorm_residual = _f["layernorm"], _f["rmsnorm"], _f["rmsnorm_residual"]


class Linear:
    """``x @ weight.T + bias``; weights are [out, in], as checkpoints have them.

    Examples
    --------
    >>> Linear(gp.asarray([[1.0, 2.0]], "float32"))(gp.asarray([[3.0, 4.0]], "float32")).tolist()
    [[11.0]]
    """

    __slots__ = ("_turned", "bias", "weight")

    def __init__(self, weight: GPUArray | QuantTensor, bias: GPUArray | None = None) -> None:
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
        if self.norm_type == "layernorm":
            normed: GPUArray = _layernorm(x, self.weight, self.bias, self.eps)
        else:
            normed = _rmsnorm(x, self.weight, self.eps, cast="after")
        return normed

    def of_sum(self, x: GPUArray, more: GPUArray) -> tuple[GPUArray, GPUArray]:
        """Return the norm of ``x + more``, and that sum."""
        if self.norm_type == "layernorm":
            total = x + more
            return self(total), total
        normed, total = _rmsnorm_residual(more, x, self.weight, self.eps, cast="after")
        return normed, total


def activated(activation: str, hidden: GPUArray, gated: bool) -> GPUArray:
    """``activation(hidden)``, or of joined halves ``activation(first) * second``."""
    if gated:
        result: GPUArray = _gated[activation](hidden)
    else:
        result = e.silu(hidden) if activation == "silu" else e.gelu(hidden)
    return result


def softcapped(x: GPUArray, cap: float) -> GPUArray:
    """Squeeze values to below ``cap`` in size; 0 leaves them."""
    return e.tanh(x / cap) * cap if cap else x
