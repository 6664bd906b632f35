"""The CPU device's operators: values, broadcasting, casting and errors, without any kernel."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import op_cases
import pytest

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise import reference
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.elementwise.tolerance import tolerance
from pygpukit.ops.registry import OPERATORS, docstring
from pygpukit.ops.units import ALL_TYPES


def compute(name: str, *inputs: Any) -> op_cases.Array:
    made = plan(name, tuple(reference.input_of(x) for x in inputs))
    out = np.empty(np.broadcast_shapes(*(np.shape(x) for x in inputs)), to_numpy_dtype(made.out))
    reference.apply(name, inputs, out)
    return out


@pytest.mark.parametrize("name", ALL_TYPES)
def test_every_row_runs_on_every_supported_type(name: str) -> None:
    for row in op_cases.rows_of(name):
        made = op_cases.same_plan(row, name)
        out = np.empty(50, to_numpy_dtype(made.out))
        reference.apply(row.name, tuple(op_cases.arguments(row, name, 50)), out)


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "complex128", "bool"])
def test_ufunc_rows_equal_numpy(name: str) -> None:
    for row in op_cases.rows_of(name):
        if not isinstance(row.rule, np.ufunc) or row.numpy is not row.rule or row.name == "pow":
            continue
        arrays = op_cases.arguments(row, name, 200)
        with np.errstate(all="ignore"):
            want = row.rule(*arrays)
        np.testing.assert_array_equal(compute(row.name, *arrays), want, row.name)


def test_functions_numpy_lacks_against_python() -> None:
    x = np.linspace(-6, 6, 41)

    def want(f: Any) -> list[float]:
        return [f(v) for v in x.tolist()]

    np.testing.assert_allclose(compute("erf", x), want(math.erf), rtol=1e-15)
    np.testing.assert_allclose(compute("sigmoid", x), want(lambda v: 1 / (1 + math.exp(-v))), rtol=1e-14)
    np.testing.assert_allclose(compute("silu", x), want(lambda v: v / (1 + math.exp(-v))), rtol=1e-14)
    gelu = want(lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))))
    np.testing.assert_allclose(compute("gelu", x), gelu, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(compute("rsqrt", np.abs(x) + 1), want(lambda v: 1 / math.sqrt(abs(v) + 1)), rtol=1e-15)
    np.testing.assert_allclose(compute("lerp", x, x + 2, np.full_like(x, 0.25)), x + 0.5)


def test_nan_rules_of_maximum_and_fmax() -> None:
    a, b = np.float32([np.nan, 1, np.nan]), np.float32([1, np.nan, np.nan])
    assert np.isnan(compute("maximum", a, b)).tolist() == [True, True, True]
    assert np.isnan(compute("fmin", a, b)).tolist() == [False, False, True]
    assert np.isnan(compute("relu", a)).tolist() == [True, False, True]


def test_integer_edges() -> None:
    i = np.int32([7, -7, 7, -(2**31), 5])
    j = np.int32([2, 2, 0, -1, -3])
    assert compute("floor_divide", i, j).tolist() == [3, -4, 0, -(2**31), -2]
    assert compute("mod", i, j).tolist() == [1, 1, 0, 0, -1]
    assert compute("pow", np.int8([2, 1, -1, -1, 3]), np.int8([-1, -2, -3, -2, 5])).tolist() == [0, 1, -1, 1, -13]
    assert compute("reciprocal", np.int16([0, 1, -1, 2])).tolist() == [0, 1, -1, 0]
    assert compute("left_shift", np.uint8([1, 1, 1]), np.uint8([7, 8, 200])).tolist() == [128, 0, 0]
    assert compute("right_shift", np.int8([-1, -128, 64]), np.int8([100, 8, 3])).tolist() == [-1, -1, 8]


def test_small_floats_are_computed_in_float32_and_rounded_once() -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    a, b = np.array([1.0, 3.14]).astype(bf16), np.array([1 / 256, 2.71]).astype(bf16)
    want = (a.astype(np.float32) * b.astype(np.float32)).astype(bf16)
    np.testing.assert_array_equal(compute("mul", a, b), want)
    # A Python scalar is rounded to the array's type first, as in NumPy.
    scaled = compute("mul", a, 0.3)
    np.testing.assert_array_equal(scaled, (a.astype(np.float32) * np.float32(bf16.type(0.3))).astype(bf16))
    assert scaled.dtype == bf16


def test_float8_overflow_follows_the_type() -> None:
    for kind, is_special in ((ml_dtypes.float8_e4m3fn, np.isnan), (ml_dtypes.float8_e5m2, np.isinf)):
        largest = np.array([ml_dtypes.finfo(kind).max], kind)
        assert is_special(compute("add", largest, largest).astype(np.float32)).all()


def test_broadcasting_views_and_aliasing() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((4, 3), np.float32).T
    reference.apply("add", (x, x[:, :1]), out)
    np.testing.assert_array_equal(out, x + x[:, :1])
    y = x.copy()
    reference.apply("sub", (y, y[::-1]), y)
    np.testing.assert_array_equal(y, x - x[::-1])


def test_outputs_are_cast_like_numpy() -> None:
    out = np.empty(2, np.float16)
    reference.apply("add", (np.float32([1, 1e6]), 0.0), out)
    assert out.tolist() == [1.0, np.inf]
    with pytest.raises(DTypeError, match="int32"):
        reference.apply("add", (np.float32([1]), 1), np.empty(1, np.int32))
    ints = np.empty(2, np.int8)
    reference.apply("copy", (np.complex64([3 + 4j, -1.7j]),), ints)
    assert ints.tolist() == [3, 0]
    flags = np.empty(2, bool)
    reference.apply("copy", (np.complex64([0, -1.7j]),), flags)
    assert flags.tolist() == [False, True]


def test_a_copy_of_the_same_type_keeps_nan_bits() -> None:
    bits = np.array([0x7D, 0x7E, 0xFF], np.uint8)
    out = np.empty(3, ml_dtypes.float8_e5m2)
    reference.apply("copy", (bits.view(ml_dtypes.float8_e5m2),), out)
    assert out.view(np.uint8).tolist() == bits.tolist()


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(DTypeError, match="str"):
        reference.apply("neg", ("x",), np.empty(1, np.float32))
    with pytest.raises(DTypeError, match="frobnicate"):
        reference.apply("frobnicate", (1.0,), np.empty(1))


def test_tolerances_have_reasons_and_exact_rows_are_exact() -> None:
    for row in TABLE.values():
        for name in ALL_TYPES:
            allowed = tolerance(row.name, dtype(name))
            assert allowed.reason
            assert 0 <= allowed.ulp <= 256
    for exact in ("add", "maximum", "copy", "floor", "less", "bitwise_and"):
        assert tolerance(exact, dtype("float32")).ulp == 0
    with pytest.raises(DTypeError):
        tolerance("frobnicate", dtype("float32"))


def test_rows_are_documented_and_consistent() -> None:
    for row in TABLE.values():
        assert row.doc.endswith(".")
        letters = "abc"[: row.arity]
        for kind in row.kinds:
            expression = row.expression(kind)
            assert expression.isascii()
            assert not any(f"({x}" in expression for x in set("abc") - set(letters)), row.name


def test_operators_say_how_deterministic_they_are() -> None:
    import pygpukit as gp

    for row in TABLE.values():
        assert "Determinism on a GPU: ``batch_invariant``: " in docstring(OPERATORS[row.name]), row.name
    assert "Determinism on a GPU: ``batch_invariant``: " in (gp.sum.__doc__ or "")
    # A product may be asked for in a mode that promises less.
    assert "Determinism on a GPU: " in (gp.matmul.__doc__ or "")
    assert "``batch_invariant``: " in (gp.matmul.__doc__ or "")


def test_log1p_of_small_complex_numbers_keeps_their_digits() -> None:
    x = np.array([1e-12 + 2e-12j, -3e-9 + 1e-9j, 1e-300 - 1e-300j, 0j])
    out = np.empty_like(x)
    reference.apply("log1p", (x,), out)
    np.testing.assert_allclose(out, x - x * x / 2, rtol=1e-15)
