"""Quantised weights: matrices kept as codes and scales, which products decode as they read them.

Examples
--------
>>> import pygpukit as gp
>>> w = gp.random.default_rng(0).normal(size=(256, 8), dtype="float32")
>>> q = gp.quant.quantize(w, "int8")
>>> (gp.ones((1, 256), "bfloat16") @ q).shape
(1, 8)
"""

from pygpukit.quant.functions import concatenate, formats, quantize
from pygpukit.quant.kept import keep_decoded
from pygpukit.quant.tensor import QuantTensor

__all__ = ["QuantTensor", "concatenate", "formats", "keep_decoded", "quantize"]
