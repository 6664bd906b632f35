"""What Python itself asks of arrays: rounding, formats, membership, divmod, in-place operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pygpukit as gp


@pytest.mark.parametrize("value", [2.5, -2.5, 3.7, -0.2])
@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_a_number_without_axes_becomes_an_int(value: float, kind: str) -> None:
    x = gp.asarray(value, kind)
    near = float(x)
    for function in (round, math.floor, math.ceil, math.trunc):
        assert function(x) == function(near)
        assert type(function(x)) is int


def test_round_with_digits_stays_on_the_device() -> None:
    x = gp.asarray([1.234, 5.678])
    assert round(x, 1).tolist() == [1.2, 5.7]
    assert round(x).tolist() == [1.0, 6.0]
    assert round(gp.asarray([15, 26]), -1).tolist() == [20, 30]
    single = round(gp.asarray(1.26), 1)
    assert isinstance(single, gp.GPUArray)
    assert single.item() == 1.3
    for function in (math.floor, math.ceil, math.trunc):
        with pytest.raises(TypeError, match=rf"use pygpukit.{function.__name__}\(\)"):
            function(x)


def test_formats() -> None:
    x = gp.asarray([1.5, 2.25])
    assert f"{x[0]:.3f}" == "1.500"
    assert f"{gp.asarray(7):05d}" == "00007"
    assert f"{x}" == str(x)
    with pytest.raises(TypeError, match=r"the format '.3f' is for a number.*1 dimensions.*to_numpy"):
        f"{x:.3f}"


@pytest.mark.parametrize("other", [None, "a", b"a", {}, object(), Ellipsis, print])
def test_nothing_that_is_no_number_equals_an_element(other: Any) -> None:
    for shape in ((), (3,), (2, 0)):
        x = gp.ones(shape)
        same, differs = x == other, x != other
        assert (same.shape, same.dtype.name) == (shape, "bool")
        assert not gp.any(same).item()
        assert gp.all(differs).item()
        assert (other == x).shape == shape


def test_membership_is_of_elements() -> None:
    x = gp.asarray([[1, 2], [3, 4]])
    assert 3 in x
    assert 5 not in x
    assert None not in x
    assert gp.asarray(2) in x
    with pytest.raises(ValueError, match="broadcast"):
        _ = gp.ones(3) in x


def test_divmod() -> None:
    a, b = np.array([7, -7, 5], np.int32), np.array([3, 3, -2], np.int32)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    for ours, theirs in ((divmod(x, y), divmod(a, b)), (divmod(x, 3), divmod(a, 3)), (divmod(9, y), divmod(9, b)),
                         (divmod(x, np.float32(2)), divmod(a, np.float32(2)))):  # fmt: skip
        for part, want in zip(ours, theirs, strict=True):
            assert gp.to_numpy_dtype(part.dtype) == want.dtype
            assert part.tolist() == want.tolist()
    with pytest.raises(TypeError, match="unsupported operand"):
        divmod(x, "a")


def test_powers() -> None:
    x = gp.asarray([1, 2, 3])
    assert (2**x).tolist() == [2, 4, 8]
    assert (2.0**x).dtype is gp.float64
    with pytest.raises(TypeError):
        pow(x, 2, 5)


def test_products_in_place() -> None:
    a = np.arange(4.0).reshape(2, 2)
    x = y = gp.from_numpy(a)
    x @= x
    assert x is y
    np.testing.assert_array_equal(y.to_numpy(), a @ a)
    with pytest.raises(gp.ShapeError, match=r"\(2, 3\)"):
        x @= gp.ones((2, 3), "float64")
    whole = gp.ones((2, 2), "int32")
    with pytest.raises(gp.DTypeError, match="int32"):
        whole @= gp.ones((2, 2), "float64")
    for other in (2, "a", None):
        with pytest.raises(TypeError):
            x @= other


@pytest.mark.parametrize(
    ("kind", "statement", "text"),
    [
        ("int32", "x += 1.5", "float64"), ("int32", "x /= 2", "float64"), ("int32", "x **= 0.5", "float64"),
        ("int32", "x += np.float32(1)", "float64"), ("float32", "x += 1j", "complex64"), ("bool", "x += 1", "int64"),
        ("uint8", "x += gp.ones(3, 'int8')", "int16"), ("int32", "x -= gp.ones(3)", "float64"),
    ],
)  # fmt: skip
def test_in_place_operators_keep_the_kind(kind: str, statement: str, text: str) -> None:
    names: dict[str, Any] = {"x": np.ones(3, kind), "np": np, "gp": np}
    with pytest.raises(TypeError):
        exec(statement.replace("gp.ones(3)", "gp.ones(3, 'float32')"), names)
    x = gp.ones(3, kind)
    with pytest.raises(gp.DTypeError, match=text):
        exec(statement, {"x": x, "np": np, "gp": gp})
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "statement", ["x += np.float64(2)", "x *= 0.5", "x += 1", "x //= 2", "x **= 2", "x -= gp.ones(3, 'float64')"]
)
def test_in_place_operators_may_lose_precision(statement: str) -> None:
    names: dict[str, Any] = {"x": np.full(3, 1.5, np.float16), "np": np, "gp": np}
    exec(statement, names)
    x = gp.full(3, 1.5, "float16")
    ours: dict[str, Any] = {"x": x, "np": np, "gp": gp}
    exec(statement, ours)
    assert ours["x"] is x
    assert x.tolist() == names["x"].tolist()


def test_methods() -> None:
    x = gp.asarray([1.26, -2.74])
    assert x.round(1).tolist() == [1.3, -2.7]
    assert x.clip(-1, 1).tolist() == [1.0, -1.0]
    assert x.clip(max=0).tolist() == [0.0, -2.74]
    assert x.clip(0).tolist() == [1.26, 0.0]
    out = gp.empty(2, "float64")
    assert x.clip(-1, 1, out) is out
    z = gp.asarray([1 + 2j])
    assert z.conj().tolist() == z.conjugate().tolist() == [1 - 2j]


def test_the_truth_of_many_elements_names_the_way() -> None:
    with pytest.raises(ValueError, match=r"use x.any\(\) or x.all\(\)"):
        bool(gp.ones(2))


def test_positive_and_negative_booleans_are_refused() -> None:
    x = gp.ones(2, "bool")
    for call in (lambda: +x, lambda: -x, lambda: x - x):
        with pytest.raises(gp.DTypeError, match="not defined for bool"):
            call()
