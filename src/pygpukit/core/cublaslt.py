"""Matrix products by cuBLASLt: the library is opened when the first is planned."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.libraries import cublaslt_candidates
from pygpukit.errors import DriverError

if TYPE_CHECKING:
    from pygpukit._pygpukit_rust import DataType, _GemmPlan

__all__ = ["missing", "plan_product"]


def plan_product(m: int, n: int, k: int, dtype: DataType, out_dtype: DataType | None = None, **how: Any) -> _GemmPlan:
    """Plan ``out[m, n] = a[m, k] @ b[k, n]`` on a GPU, for arrays of these types.

    Without a workspace every element of the result is one sum over k in ascending order: no algorithm that splits it is
    considered. ``plan.run(out, a, b)`` computes the product on the current stream.

    Parameters
    ----------
    m, n, k : int
    dtype : DataType
        Of a and b: bfloat16, float16 or float32.
    out_dtype : DataType, optional
        The same by default, or float32.
    how
        ``batch``, ``transpose_a``, ``transpose_b``, ``ld`` and ``batch_strides`` of a, b and out in elements,
        ``compute`` (``"f32"``; ``"tf32"`` rounds float32 operands), ``accumulate`` (add to out), ``workspace`` in
        bytes, ``alignment`` of a, b and out in bytes, ``saved`` (what ``plan.save()`` gave) and ``device``.

    Raises
    ------
    DriverError
        If cuBLASLt is not found; the text lists what was searched.
    DeviceError
        If the device is no GPU, or the library has no algorithm for the product.
    ValueError
        If sizes, strides and alignments do not fit together, or `saved` was chosen for something else.
    """
    _open()
    return _native.cublaslt_plan(m, n, k, dtype, out_dtype, **how)


@cache
def missing() -> str | None:
    """Return None if cuBLASLt is there, else what is missing."""
    try:
        _open()
    except DriverError as error:
        return str(error).partition("\n")[0]
    return None


@cache
def _open() -> None:
    version = _native.driver_version()
    _native.cublaslt_open(cublaslt_candidates(version // 1000 if version is not None else None))
