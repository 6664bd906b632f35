"""What reductions give, as NumPy computes it with the accumulators of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.ops.reduce.rows import accumulator, sum_type


def sum(
    x: npt.NDArray[Any],
    axis: int | tuple[int, ...] | None = None,
    out: DataType | None = None,
    keepdims: bool = False,
) -> Any:
    """Return the sum, rounded once to the type of the result.

    Parameters
    ----------
    out : DataType, optional
        Type of the result; `sum_type` by default.
    """
    kind = dtype(x.dtype)
    wide = np.sum(x.astype(to_numpy_dtype(accumulator(kind)), copy=False), axis=axis, keepdims=keepdims)
    return np.asarray(wide).astype(to_numpy_dtype(sum_type(kind) if out is None else out), copy=False)
