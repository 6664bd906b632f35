"""Weights for tests: random parts of every rule, as NumPy arrays and as `QuantTensor`."""

from __future__ import annotations

from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.quant.formats import CODES, FORMATS, TILE, Format, Rule, rule_of
from pygpukit.quant.planes import Parts
from pygpukit.quant.stored import store

# A rule of every kind of code, of scales and of group, each once.
RULES = (
    "e4m3_scale_f32_g0", "e4m3_scale_f32_g128", "i8_scale_f32_g0", "i8_scale_f16_g32", "i8_scale_bf16_g64",
    "i4_scale_bf16_g128", "i4_scale_f16_g32", "i4_zero_f16_g64", "i4_zero_bf16_g32", "i4_minimum_f16_g32",
    "i4_scale_f16_g0", "i4_super_f16_g32", "i5_scale_f16_g32", "i5_minimum_f16_g32", "i5_super_f16_g32",
    "i6_superscale_f16_g16",
)  # fmt: skip


def form_of(rule: Rule) -> Format:
    """A format that has this rule, as far as tests care."""
    return next(f for f in FORMATS.values() if f.code == rule.code and (f.kind == rule.kind or rule.kind == "zero"))


def random_parts(rule: Rule, n: int, k: int, seed: int = 0, *, spread: int = 6, tiles: bool = False) -> Parts:
    """Every code, and scales of both signs over 2**-spread .. 2**spread, zeros among them."""
    rng = np.random.default_rng([seed, n, k])
    code = CODES[rule.code]
    count = 1 << (code.low + code.high)
    codes = np.resize(np.arange(count), n * k).astype(np.uint8).reshape(n, k)
    codes = rng.permuted(codes, axis=1)
    if rule.code == "e4m3":
        codes[(codes & 0x7F) == 0x7F] ^= 1
    groups = 1 if rule.group == 0 else -(-k // rule.group)
    kind = to_numpy_dtype(rule.scale_type)
    if rule.kind in ("super", "superscale"):
        low, high = (0, 64) if rule.kind == "super" else (-128, 128)
        extra = _factors(rng, (n, k // 256, rule.fields), spread).astype(np.float16)
        return Parts(codes, rng.integers(low, high, (n, groups, rule.fields)).astype(kind), extra)
    if tiles:
        return Parts(codes, np.abs(_factors(rng, (-(-n // TILE), groups), spread)).astype(kind))
    scales = _factors(rng, (n, groups, rule.fields), spread).astype(kind)
    zeros = rng.integers(0, 17, (n, groups)).astype(np.uint8) if rule.kind == "zero" else None
    return Parts(codes, scales, zeros)


def _factors(rng: np.random.Generator, shape: tuple[int, ...], spread: int) -> Any:
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    values.flat[0] = 0.0
    return values.astype(np.float32)


def weight(name: str, parts: Parts) -> gp.quant.QuantTensor:
    """A weight of shape (k, n), so that ``x @ q`` sums along its groups."""
    rule = rule_of(name)
    return gp.quant.QuantTensor._make(store(form_of(rule), rule, parts, "quantize"), True)


def bits(x: gp.GPUArray | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of an array, to compare -0 and 0 apart."""
    host = np.ascontiguousarray(x.to_numpy() if isinstance(x, gp.GPUArray) else x)
    return host.view(f"u{host.dtype.itemsize}")


def small(name: str) -> Any:
    """A type of activations for NumPy."""
    return to_numpy_dtype(dtype(name))
