"""Python numbers beside arrays: weak promotion, rounding and overflow, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp

PLAIN = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("function", ["add", "mul", "div", "maximum", "equal", "logical_or"])
def test_the_type_is_numpys(function: str) -> None:
    theirs = {"mul": np.multiply, "div": np.true_divide}.get(function) or getattr(np, function)
    for name, value, flip in itertools.product(PLAIN, [True, 3, 2.5, 1 + 2j], (False, True)):
        host = np.ones(3, name)
        wanted = theirs(value, host) if flip else theirs(host, value)
        x = gp.from_numpy(host)
        got = getattr(gp, function)(value, x) if flip else getattr(gp, function)(x, value)
        assert gp.to_numpy_dtype(got.dtype) == wanted.dtype, (name, value)
        assert got.tolist() == wanted.tolist(), (name, value)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("value", "result"), [(True, None), (2, None), (0.5, None), (1j, "complex64")])
def test_small_floats_keep_their_type(name: str, value: Any, result: str | None) -> None:
    assert gp.add(gp.ones(2, name), value).dtype.name == (result or name)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("bfloat16", "float16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("bfloat16", "int8", "bfloat16"),
        ("bfloat16", "bool", "bfloat16"),
        ("bfloat16", "int16", "float32"),
        ("bfloat16", "int32", "float64"),
        ("bfloat16", "complex64", "complex64"),
        ("float8_e4m3fn", "bfloat16", "bfloat16"),
        ("float8_e5m2", "float16", "float16"),
        ("float8_e4m3fn", "float64", "float64"),
        ("int32", "uint32", "int64"),
        ("int64", "uint64", "float64"),
        ("uint8", "float16", "float16"),
    ],
)
def test_two_arrays(left: str, right: str, result: str) -> None:
    x, y = gp.ones(2, left), gp.ones(2, right)
    assert gp.add(x, y).dtype.name == gp.add(y, x).dtype.name == result
    assert gp.add(x, y).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int8", 128),
        ("int8", -129),
        ("int32", 2**31),
        ("uint64", 2**64),
        ("int64", -(2**63) - 1),
    ],
)
def test_an_integer_the_array_cannot_hold(name: str, value: int) -> None:
    x = gp.ones(2, name)
    with pytest.raises(OverflowError, match=str(value)):
        gp.add(x, value)
    with pytest.raises(OverflowError):
        np.add(np.ones(2, name), value)


@pytest.mark.parametrize(
    ("name", "value"), [("uint8", 255), ("int8", -128), ("int64", -(2**63)), ("uint64", 2**64 - 1)]
)
def test_the_limits_fit_and_wrap(name: str, value: int) -> None:
    with np.errstate(all="ignore"):
        wanted = np.ones(2, name) + value
    assert (gp.ones(2, name) + value).tolist() == wanted.tolist()


@given(value=st.floats(allow_nan=False), kind=st.sampled_from(["float16", "float32", "float64"]))
@settings(max_examples=100)
def test_a_float_is_rounded_to_the_arrays_type_first(value: float, kind: str) -> None:
    host = np.array([1.0, -3.5, 0.0], kind)
    with np.errstate(all="ignore"):
        wanted = host * value
    got = (gp.from_numpy(host) * value).to_numpy()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", SMALL)
@given(value=st.floats(-300, 300))
@settings(max_examples=60)
def test_small_floats_round_the_scalar_too(name: str, value: float) -> None:
    kind = gp.to_numpy_dtype(name)
    rounded = np.float64(gp.full((), value, name).item())
    got = (gp.ones(1, name) * value).to_numpy()[0]
    assert np.float64(got) == rounded or (np.isnan(rounded) and np.isnan(np.float64(got)))
    assert got.dtype == kind


@pytest.mark.parametrize("scalar", [np.float64(2), np.int64(2), np.float32(2), np.int8(2), np.complex64(2), np.True_])
@pytest.mark.parametrize("name", ["int8", "float16", "float32"])
def test_numpy_scalars_carry_their_type(name: str, scalar: Any) -> None:
    wanted = np.ones(2, name) + scalar
    got = gp.ones(2, name) + scalar
    assert gp.to_numpy_dtype(got.dtype) == wanted.dtype
    assert got.tolist() == wanted.tolist()


def test_zero_dimensional_arrays_are_not_weak() -> None:
    assert (gp.ones(2, "int8") + gp.asarray(1.0)).dtype is gp.float64
    assert (gp.ones(2, "float16") + gp.asarray(1, "float32")).dtype is gp.float32


@pytest.mark.parametrize("condition", [True, False, 0, 1, 0.5, float("nan"), 1j])
def test_the_condition_of_where_is_a_truth_value(condition: Any) -> None:
    x, y = gp.asarray([1, 2], "int8"), gp.asarray([3, 4], "int8")
    got = gp.where(condition, x, y)
    assert got.dtype is gp.int8
    assert got.tolist() == ([1, 2] if condition else [3, 4])
    # Only its truth counts, whatever the type of the others can hold.
    assert gp.where(300, x, y).tolist() == [1, 2]


def test_a_comparison_with_a_number_the_type_cannot_hold() -> None:
    # NumPy answers True or False; we refuse, which is loud and never wrong.
    x = gp.asarray([0, 255], "uint8")
    for call in (lambda: x < 300, lambda: x == -1, lambda: x > -1):
        with pytest.raises(OverflowError, match="uint8"):
            call()


def test_a_large_integer_beside_floats() -> None:
    assert (gp.ones(2, "float64") * 2**70).tolist() == [float(2**70)] * 2
    assert (gp.ones(2, "float32") - 2**126).tolist() == [-float(2**126)] * 2
    assert (gp.ones(2, "float16") + 2**100).tolist() == [float("inf")] * 2
    with pytest.raises(OverflowError):
        gp.ones(2) + 2**2000
