"""The products of arrays by NumPy's names, by module."""

from __future__ import annotations

from pygpukit.ops.products import contract, convolve, dot, einsum
from pygpukit.ops.registry import as_method, export

for _function in (
    *dot.FUNCTIONS,
    *contract.FUNCTIONS,
    *convolve.FUNCTIONS,
    *einsum.FUNCTIONS,
):
    export(_function)
for _function in (dot.dot, contract.trace):
    as_method(_function)
