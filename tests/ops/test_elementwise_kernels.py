"""Every row's kernel, compiled for the host, against its NumPy reference, on every path through the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import host_kernels
import numpy as np
import op_cases
import pytest

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.ops.elementwise import reference
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.elementwise.tolerance import tolerance
from pygpukit.ops.units import ALL_TYPES

pytestmark = pytest.mark.skipif(host_kernels.GXX is None, reason="needs g++ to compile kernels for the host")

COUNT = 1237


@pytest.fixture(scope="module")
def library_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """Return a function that compiles all operators of one type, once."""
    folder = tmp_path_factory.mktemp("host")

    @cache
    def compiled(name: str) -> ctypes.CDLL:
        plans = [op_cases.same_plan(row, name) for row in op_cases.rows_of(name)]
        entries = [entry for p in plans for entry in (p.entry, p.entry_nd)]
        return host_kernels.build(folder, name, [p.source for p in plans], entries)

    return compiled


def expected(name: str, arrays: list[op_cases.Array], like: op_cases.Array) -> op_cases.Array:
    want = np.empty_like(like)
    reference.apply(name, tuple(arrays), want)
    return want


@pytest.mark.parametrize("name", ALL_TYPES)
def test_dense_kernels_match_the_reference(name: str, library_of: Callable[[str], ctypes.CDLL]) -> None:
    for row in op_cases.rows_of(name):
        made = op_cases.same_plan(row, name)
        arrays = op_cases.arguments(row, name, COUNT)
        out = np.zeros(COUNT, to_numpy_dtype(made.out))
        host_kernels.run_dense(library_of(name), made, arrays, out)
        allowed = tolerance(row.name, made.common)
        op_cases.assert_close(out, expected(row.name, arrays, out), allowed, f"{row.name} {name}")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "complex128"])
def test_unaligned_dense_gives_the_same_bits(name: str, library_of: Callable[[str], ctypes.CDLL]) -> None:
    for row in op_cases.rows_of(name):
        made = op_cases.same_plan(row, name)
        arrays = op_cases.arguments(row, name, COUNT)
        whole, part = (np.zeros(COUNT, to_numpy_dtype(made.out)) for _ in range(2))
        host_kernels.run_dense(library_of(name), made, arrays, whole)
        for x, y in ((part[1:], 1), (part[:1], 0)):
            pieces = [a[1:] if y else a[:1] for a in arrays]
            host_kernels.run_dense(library_of(name), made, pieces, x)
        assert part.tobytes() == whole.tobytes(), row.name


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "int64", "bool", "complex64"])
def test_strided_and_broadcast_kernels_match_dense_ones(name: str, library_of: Callable[[str], ctypes.CDLL]) -> None:
    for row in op_cases.rows_of(name):
        made = op_cases.same_plan(row, name)
        arrays = op_cases.arguments(row, name, 7 * 5 * 67)
        arrays = [a.reshape(7, 5, 67).transpose(i % 3, (i + 1) % 3, (i + 2) % 3) for i, a in enumerate(arrays)]
        shape = arrays[0].shape
        arrays = [np.resize(a, shape) if i else a[::-1, :, ::-1] for i, a in enumerate(arrays)]
        if len(arrays) > 1:
            arrays[1] = arrays[1][:1, :, :]
        out = np.zeros(shape[::-1], to_numpy_dtype(made.out)).T
        host_kernels.run_strided(library_of(name), made, arrays, out)
        flat = [np.ascontiguousarray(np.broadcast_to(a, shape)).ravel() for a in arrays]
        dense = np.zeros(out.size, out.dtype)
        host_kernels.run_dense(library_of(name), made, flat, dense)
        assert np.ascontiguousarray(out).tobytes() == dense.tobytes(), row.name


SHAPES: list[tuple[int, ...]] = [
    (), (1,), (5,), (1024,), (1025,), (2,) * 8, (1, 4099), (4099, 1), (3, 2000), (2000, 3), (1024, 3), (3, 1024),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_strided_index_arithmetic(shape: tuple[int, ...], library_of: Callable[[str], ctypes.CDLL]) -> None:
    made = plan("copy", (dtype("int32"),))
    base = np.arange(2 * int(np.prod(shape)), dtype=np.int32).reshape(*shape, 2)[..., 0].transpose()
    out = np.zeros(base.shape, np.int32)
    host_kernels.run_strided(library_of("int32"), made, [base], out)
    np.testing.assert_array_equal(out, base)


def test_in_place_scalars_and_single_elements(library_of: Callable[[str], ctypes.CDLL]) -> None:
    library = library_of("bfloat16")
    made = plan("mul", (dtype("bfloat16"), "float"))
    assert made.entry == "pgk_mul_bf16", "a Python scalar must not need a kernel of its own"
    x = op_cases.values("bfloat16", COUNT, 1)
    want = expected("mul", [x, 0.3], x)  # type: ignore[list-item]
    single = np.array([0.3]).astype(x.dtype)
    for other in (0.3, single):
        y = x.copy()
        host_kernels.run_dense(library, made, [y, other], y)
        op_cases.assert_close(y, want, tolerance("mul", made.common), "mul in place")


def test_where_with_any_condition_and_scalars(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = plan("where", (dtype("float64"), dtype("int8"), "int"))
    library = host_kernels.build(tmp_path_factory.mktemp("where"), "where", [made.source], [made.entry, made.entry_nd])
    condition = np.array([0.0, 0.25, np.nan, -256.0, -0.0])
    out = np.zeros(5, np.int8)
    host_kernels.run_dense(library, made, [condition, np.arange(5, dtype=np.int8), -7], out)
    assert out.tolist() == [-7, 1, 2, 3, -7]


MIXED = [
    ("add", ("int8", "float8_e4m3fn")), ("mul", ("uint8", "float8_e5m2")), ("add", ("int32", "float32")),
    ("sub", ("bfloat16", "float16")), ("div", ("int64", "int64")), ("exp", ("int8",)), ("less", ("int64", "float32")),
    ("maximum", ("uint64", "int64")), ("add", ("float64", "complex64")), ("atan2", ("bool", "int16")),
    ("clamp", ("float16", "int8", "uint8")), ("where", ("int16", "bool", "float8_e4m3fn")), ("abs", ("complex64",)),
]  # fmt: skip


def test_mixed_input_types(tmp_path_factory: pytest.TempPathFactory) -> None:
    plans = [plan(op, tuple(dtype(k) for k in kinds)) for op, kinds in MIXED]
    entries = [p.entry for p in plans]
    library = host_kernels.build(tmp_path_factory.mktemp("mixed"), "mixed", [p.source for p in plans], entries)
    for (op, kinds), made in zip(MIXED, plans, strict=True):
        arrays = [op_cases.values(kind, 301, seed) for seed, kind in enumerate(kinds)]
        out = np.zeros(301, to_numpy_dtype(made.out))
        host_kernels.run_dense(library, made, arrays, out)
        op_cases.assert_close(out, expected(op, arrays, out), tolerance(op, made.common), f"{op} {kinds}")


OUTPUTS = [("add", "bfloat16", "float32"), ("add", "float32", "bfloat16"), ("mul", "float64", "float16"),
           ("less", "float32", "float16"), ("abs", "complex64", "float16"), ("sub", "int64", "int8"),
           ("exp", "float16", "complex64"), ("where", "float32", "float8_e4m3fn")]  # fmt: skip


def test_outputs_of_another_type_are_cast_from_the_rounded_result(tmp_path_factory: pytest.TempPathFactory) -> None:
    plans = [plan(op, op_cases.same_inputs(TABLE[op], kind), dtype(out)) for op, kind, out in OUTPUTS]
    library = host_kernels.build(
        tmp_path_factory.mktemp("out"), "out", [p.source for p in plans], [p.entry for p in plans]
    )
    for (op, kind, _), made in zip(OUTPUTS, plans, strict=True):
        arrays = op_cases.arguments(TABLE[op], kind, 301)
        out = np.zeros(301, to_numpy_dtype(made.out))
        host_kernels.run_dense(library, made, arrays, out)
        op_cases.assert_close(out, expected(op, arrays, out), tolerance(op, made.common), f"{op} {kind}")
    x = np.array([1.0]).astype(to_numpy_dtype(dtype("bfloat16")))
    out = np.zeros(1, np.float32)
    host_kernels.run_dense(library, plans[0], [x, x * x.dtype.type(2.0**-9)], out)
    assert out.tolist() == [1.0], "the sum is a bfloat16 before it is a float32"


def test_table_rows_all_have_kernels_here() -> None:
    covered = {row.name for name in ALL_TYPES for row in op_cases.rows_of(name)}
    assert covered == set(TABLE)
