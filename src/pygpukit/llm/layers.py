"""Linear layers and norms, and the operators that a decoder's layers are made of."""

from __future__ import annotations

import importlib
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.llm.rope import apply_rotary_pos_emb_numpy, precompute_freqs_cis
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.registry import functions
from pygpukit.quant.tensor import QuantTensor

__all__ = [
    "Linear",
    "LinearBF16",
    "LinearFP8",
    "Norm",
    "activated",
    "apply_rotary_pos_emb_numpy",
    "precompute_freqs_cis",
    "softcapped",
]

# Published names that this import path has too.
_ELSEWHERE = {
    **dict.fromkeys(("MLP", "Attention", "TransformerBlock"), "decoder"),
    **dict.fromkeys(("repack_linear", "repack_norm", "repack_weight"), "repack"),
    "MoELayer": "experts",
}

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

    def __call__(self, x: GPUArray, out: GPUArray | None = None) -> GPUArray:
        product: GPUArray = matmul(x, self._turned, bias=self.bias, out=out)
        return product

    @property
    def out_features(self) -> int:
        """Rows of the weights."""
        return int(self.weight.shape[0])


LinearBF16 = Linear
"""The published name: a layer has the type of its weights."""


class LinearFP8(Linear):
    """`Linear` with weights of 8-bit floats, which products read as they are.

    Parameters
    ----------
    weight_fp8 : numpy.ndarray or GPUArray
        [out, in], float8_e4m3fn or its bytes.
    scale_inv : numpy.ndarray or GPUArray
        What the weights are multiplied by: [out / 128, in / 128], one per row, or one number.
    bias : GPUArray, optional

    Examples
    --------
    >>> weight, scale = np.full((128, 128), 0x38, np.uint8), np.ones((1, 1), np.float32)
    >>> LinearFP8(weight, scale)(gp.ones((1, 128)))[0, 0].item()
    128.0
    """

    __slots__ = ()

    def __init__(self, weight_fp8: Any, scale_inv: Any, bias: GPUArray | None = None) -> None:
        given = {"weight": weight_fp8, "weight_scale_inv": scale_inv}
        host = {name: x.to_numpy() if isinstance(x, GPUArray) else x for name, x in given.items()}
        super().__init__(QuantTensor.from_checkpoint("fp8", host), bias)


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

    def __call__(self, x: GPUArray, out: GPUArray | None = None) -> GPUArray:
        if self.norm_type == "layernorm":
            normed: GPUArray = _layernorm(x, self.weight, self.bias, self.eps, out=out)
        else:
            normed = _rmsnorm(x, self.weight, self.eps, cast="after", out=out)
        return normed

    def of_sum(
        self, x: GPUArray, more: GPUArray, out: GPUArray | None = None, total: GPUArray | None = None
    ) -> tuple[GPUArray, GPUArray]:
        """Return the norm of ``x + more``, and that sum; both or none are written to given arrays."""
        if self.norm_type == "layernorm":
            total = e.add(x, more, out=total)
            return self(total, out), total
        outs = None if out is None else (out, total)
        normed, total = _rmsnorm_residual(more, x, self.weight, self.eps, cast="after", out=outs)
        return normed, total


def activated(activation: str, hidden: GPUArray, gated: bool, out: GPUArray | None = None) -> GPUArray:
    """``activation(hidden)``, or of joined halves ``activation(first) * second``."""
    if gated:
        result: GPUArray = _gated[activation](hidden, out=out)
    else:
        result = (e.silu if activation == "silu" else e.gelu)(hidden, out=out)
    return result


def softcapped(x: GPUArray, cap: float) -> GPUArray:
    """Squeeze values to below ``cap`` in size; 0 leaves them."""
    return e.tanh(x / cap) * cap if cap else x


def __getattr__(name: str) -> Any:
    home = _ELSEWHERE.get(name)
    if home is None:
        raise AttributeError(f"module 'pygpukit.llm.layers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pygpukit.llm.{home}"), name)
