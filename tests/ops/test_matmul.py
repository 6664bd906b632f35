"""Matrix products: the kernel on the host against NumPy, for every type, layout and batch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import host_kernels
import numpy as np
import op_cases
import pytest

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops import matmul
from pygpukit.ops.matmul import Matrices, matmul_call, matmul_entry, matmul_source, matmul_type
from pygpukit.ops.source import read
from pygpukit.ops.units import ALL_TYPES

needs_gxx = pytest.mark.skipif(host_kernels.GXX is None, reason="needs g++ to compile kernels for the host")
EXTRA = [("int8", "float8_e4m3fn", None), ("bfloat16", "float32", None), ("float8_e4m3fn", "float8_e4m3fn", "float32"),
         ("int8", "uint8", None), ("float16", "complex64", None),
         ("int8", "int8", "int64"), ("uint8", "uint8", "int32"), ("int16", "int8", "float64"),
         ("bool", "bool", "int8")]  # fmt: skip


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ctypes.CDLL]:
    """All products in one library."""
    folder: Path = tmp_path_factory.mktemp("matmul")

    @cache
    def compiled() -> ctypes.CDLL:
        wanted = [(dtype(n), dtype(n), matmul_type(dtype(n), dtype(n))) for n in ALL_TYPES]
        wanted += [types_of(*e) for e in EXTRA]
        kernel = read("matmul.cu")
        sources = [kernel, *(matmul_source(*w).removeprefix(kernel) for w in wanted)]
        return host_kernels.build(folder, "matmul", sources, [matmul_entry(*w) for w in wanted], parallel=True)

    return compiled


def types_of(a: str, b: str, out: str | None) -> tuple[DataType, DataType, DataType]:
    return dtype(a), dtype(b), matmul_type(dtype(a), dtype(b)) if out is None else dtype(out)


def layout(x: op_cases.Array, batch: tuple[int, ...]) -> Matrices:
    full = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    *outer, row, column = (s // x.itemsize for s in full.strides)
    return Matrices(row, column, tuple(outer))


def run(library: ctypes.CDLL, a: op_cases.Array, b: op_cases.Array, out: str | None = None) -> op_cases.Array:
    m, k, n = *a.shape[-2:], b.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    kinds = dtype(a.dtype), dtype(b.dtype)
    target = matmul_type(*kinds) if out is None else dtype(out)
    result = np.zeros((*batch, m, n), to_numpy_dtype(target))
    call = matmul_call((m, n, k), batch, kinds, (layout(result, batch), layout(a, batch), layout(b, batch)), target)
    host_kernels.run_call(library, call, {"out": result, "a": a, "b": b})
    return result


def matrix(name: str, shape: tuple[int, ...], seed: int) -> op_cases.Array:
    x = op_cases.values(name, int(np.prod(shape)), seed).reshape(shape)
    if x.dtype.kind in "biu":
        return x
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if x.dtype.kind == "c" else 0)
    return y.astype(x.dtype)


def check(got: op_cases.Array, a: op_cases.Array, b: op_cases.Array, want: op_cases.Array) -> None:
    assert got.dtype == want.dtype
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.abs(a.astype(np.complex128)) @ np.abs(b.astype(np.complex128))
    unit = {1: 0.13, 2: 1e-2 if got.dtype != np.float16 else 1e-3, 4: 1e-6, 8: 1e-6}.get(got.itemsize, 1e-15)
    assert (np.abs(got.astype(np.complex128) - want.astype(np.complex128)) <= unit * wide + 1e-30).all()


@needs_gxx
@pytest.mark.parametrize("name", ALL_TYPES)
def test_products_match_numpy(name: str, kernels: Callable[[], ctypes.CDLL]) -> None:
    a, b = matrix(name, (19, 21), 1), matrix(name, (21, 70), 2)
    check(run(kernels(), a, b), a, b, matmul.reference(a, b))


@needs_gxx
@pytest.mark.parametrize(("first", "second", "out"), EXTRA)
def test_mixed_types_and_wider_outputs(
    first: str, second: str, out: str | None, kernels: Callable[[], ctypes.CDLL]
) -> None:
    a, b = matrix(first, (3, 40), 1), matrix(second, (40, 5), 2)
    if first == "int8" and second.startswith("float8"):
        a = (a % 8).astype(np.int8)
    want = matmul.reference(a, b, None if out is None else dtype(out))
    check(run(kernels(), a, b, out), a, b, want)


@needs_gxx
def test_layouts_batches_and_position_do_not_change_a_bit(kernels: Callable[[], ctypes.CDLL]) -> None:
    a, b = matrix("float32", (67, 33), 1), matrix("float32", (33, 5), 2)
    want = run(kernels(), a, b)
    transposed = run(kernels(), np.ascontiguousarray(a.T).T, np.ascontiguousarray(b.T).T)
    assert transposed.tobytes() == want.tobytes()
    assert run(kernels(), a[40:41], b).tobytes() == want[40:41].tobytes()
    stack = np.stack([a, a[::-1]])[:, None]
    batched = run(kernels(), stack, np.broadcast_to(b, (1, 3, 33, 5)))
    assert batched.shape == (2, 3, 67, 5)
    assert batched[0, 2].tobytes() == want.tobytes()
    assert batched[1, 0].tobytes() == want[::-1].tobytes()


@needs_gxx
def test_an_empty_sum_is_zero(kernels: Callable[[], ctypes.CDLL]) -> None:
    a, b = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    assert run(kernels(), a, b).tolist() == [[0.0] * 3] * 2


def test_types_are_numpys() -> None:
    for name in ALL_TYPES:
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            assert matmul_type(dtype(name), dtype(name)).name == name
        else:
            x = np.ones((1, 1), name)
            assert to_numpy_dtype(matmul_type(dtype(name), dtype(name))) == (x @ x).dtype
    assert matmul_type(dtype("bfloat16"), dtype("float32")).name == "float32"


def test_refusals() -> None:
    kinds = (dtype("float32"), dtype("float32"))
    flat = (Matrices(1, 1), Matrices(1, 1), Matrices(1, 1))
    with pytest.raises(ShapeError, match="positive"):
        matmul_call((0, 1, 1), (), kinds, flat)
    with pytest.raises(ShapeError, match="blocks"):
        matmul_call((2**40, 2**40, 1), (), kinds, flat)
    with pytest.raises(DTypeError, match="int32"):
        matmul_call((1, 1, 1), (), kinds, flat, dtype("int32"))
    with pytest.raises(DTypeError, match="no common type"):
        matmul_type(dtype("float8_e4m3fn"), dtype("float8_e5m2"))
    with pytest.raises(ValueError, match="collapse"):
        matmul_call((1, 1, 1), (2,) * 9, kinds, (Matrices(1, 1, (1,) * 9),) * 3)
