"""Types and refusals of matrix products; tests/gpu/test_linear.py runs the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.gemm.rows import matmul_type
from pygpukit.ops.gemm.types import chosen, tf32_permitted
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


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in ("ALLOW_TF32", "NO_TF32", "TF32_V2"):
        monkeypatch.delenv(f"PYGPUKIT_{name}", raising=False)
    tf32_permitted.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    tf32_permitted.cache_clear()


def test_the_environment_permits_and_forbids_tf32(environment: pytest.MonkeyPatch) -> None:
    f32, f64 = gp.float32, gp.float64

    def how(precision: str | None = None, use_tf32: bool | None = None, kind: gp.DataType = f32) -> str:
        return chosen(kind, kind, precision, use_tf32).how

    assert (how(), how("tf32"), how(None, True), how(None, False)) == ("plain", "tf32", "tf32", "plain")
    environment.setenv("PYGPUKIT_ALLOW_TF32", "1")
    tf32_permitted.cache_clear()
    assert (how(), how("float32"), how(None, False), how(kind=f64)) == ("tf32", "plain", "plain", "plain")
    environment.setenv("PYGPUKIT_NO_TF32", "1")
    tf32_permitted.cache_clear()
    assert (how(), how("tf32"), how(None, True)) == ("plain", "plain", "plain")
    environment.setenv("PYGPUKIT_TF32_V2", "1")
    tf32_permitted.cache_clear()
    with pytest.warns(UserWarning, match="PYGPUKIT_TF32_V2 is ignored"):
        how()


def test_precisions_have_several_names() -> None:
    for name in ("bf16", "bfloat16", gp.bfloat16, gp.to_numpy_dtype("bfloat16")):
        x = gp.asarray([[1.0 + 2**-12]], "float32")
        assert gp.matmul(x, gp.ones((1, 1)), precision=name).item() == 1.0
    assert gp.matmul(x, gp.ones((1, 1)), precision="f64").item() == 1.0 + 2**-12
