"""Types and refusals of matrix products; tests/gpu/test_linear.py runs the kernels."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.gemm.rows import matmul_type
from pygpukit.ops.problem import broadcast
from pygpukit.ops.units import ALL_TYPES


def test_types_are_numpys() -> None:
    for name in ALL_TYPES:
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            assert matmul_type(dtype(name), dtype(name)).name == name
        else:
            x = np.ones((1, 1), name)
            assert to_numpy_dtype(matmul_type(dtype(name), dtype(name))) == (x @ x).dtype
    assert matmul_type(dtype("bfloat16"), dtype("float32")).name == "float32"


def test_batches_broadcast_as_numpys() -> None:
    for a in ((), (1,), (3,), (2, 1), (2, 3), (0,)):
        for b in ((), (1,), (3,), (2, 1), (1, 3), (0,)):
            try:
                want: tuple[int, ...] | None = np.broadcast_shapes(a, b)
            except ValueError:
                want = None
            assert broadcast(a, b) == want, (a, b)


def test_refusals() -> None:
    x = gp.ones((2, 3))
    with pytest.raises(ShapeError, match="inner sizes 3 and 2"):
        gp.matmul(x, x)
    with pytest.raises(ShapeError, match="leading axes"):
        gp.matmul(gp.ones((2, 1, 3)), gp.ones((3, 3, 1)))
    with pytest.raises(DTypeError, match="int32"):
        gp.matmul(x, x.T, out=gp.zeros((2, 2), "int32"))
    with pytest.raises(DTypeError, match="no common type"):
        matmul_type(dtype("float8_e4m3fn"), dtype("float8_e5m2"))
    with pytest.raises(ShapeError, match="out has"):
        gp.matmul(x, x.T, out=gp.zeros((2, 3)))
