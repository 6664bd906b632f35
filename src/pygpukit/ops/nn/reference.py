"""What the operators of neural networks give, as NumPy computes it with the accumulators of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def softmax(x: npt.NDArray[Any], axis: int = -1) -> Any:
    """Return ``exp(x - max) / sum`` over an axis; small floats are computed in float32."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32, copy=False)
    with np.errstate(all="ignore"):
        shifted = np.exp(wide - wide.max(axis, keepdims=True)) if x.size else wide
        return (shifted / shifted.sum(axis, keepdims=True)).astype(x.dtype, copy=False)
