"""Assignment: numbers and arrays written through views, overlapping ones too, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp


def pair(shape: tuple[int, ...], kind: str = "int32") -> tuple[gp.GPUArray, np.ndarray[Any, Any]]:
    host = np.arange(int(np.prod(shape)), dtype=kind).reshape(shape)
    return gp.from_numpy(host), host


@given(data=st.data())
@settings(max_examples=120)
def test_what_broadcasts_is_written(data: st.DataObject) -> None:
    x, host = pair(data.draw(hnp.array_shapes(max_dims=4, max_side=5)))
    key = data.draw(hnp.basic_indices(host.shape, allow_ellipsis=True, allow_newaxis=True))
    selected = np.asarray(host[key]).shape
    ones = data.draw(st.lists(st.booleans(), min_size=len(selected), max_size=len(selected)))
    shape = tuple(1 if one else n for one, n in zip(ones, selected, strict=True))
    shape = shape[data.draw(st.integers(0, len(shape))) :]
    value = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape) - 50
    # Nested lists without elements do not tell their shape.
    form = data.draw(st.sampled_from(["device", "host", *(["list"] if value.size else [])]))
    x[key] = gp.from_numpy(value) if form == "device" else value if form == "host" else value.tolist()
    host[key] = value
    assert x.to_numpy().tolist() == host.tolist()


@given(data=st.data())
@settings(max_examples=150)
def test_overlapping_parts_of_one_array(data: st.DataObject) -> None:
    x, host = pair((6, 7))
    start = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    source = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    rows, columns = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    target = (slice(start[0], start[0] + rows), slice(start[1], start[1] + columns))
    other = (slice(source[0], source[0] + rows), slice(source[1], source[1] + columns))
    flips = data.draw(st.tuples(st.sampled_from([1, -1]), st.sampled_from([1, -1])))
    x[target] = x[other][:: flips[0], :: flips[1]]
    host[target] = host[other][:: flips[0], :: flips[1]].copy()
    assert x.to_numpy().tolist() == host.tolist()


def test_reversal_and_transpose_onto_itself() -> None:
    x, host = pair((5, 5))
    x[:] = x.T
    assert x.tolist() == host.T.tolist()
    x[...] = x[::-1]
    assert x.tolist() == host.T[::-1].tolist()


@pytest.mark.parametrize("value", [True, 3, 2.75, np.float32(1.5), np.int8(-3), np.float64(0.1), np.True_])
@pytest.mark.parametrize("name", ["int16", "float32", "bfloat16", "complex64"])
def test_numbers(value: Any, name: str) -> None:
    kind = gp.to_numpy_dtype(name)
    x, host = gp.zeros((3, 4), name), np.zeros((3, 4), kind)
    x[1, ::2] = value
    host[1, ::2] = np.asarray(value).astype(kind)
    assert x.tolist() == host.tolist()
    x[...] = value
    assert x.tolist() == np.full((3, 4), np.asarray(value).astype(kind)).tolist()


@pytest.mark.parametrize(("source", "target"), [("float64", "float16"), ("int64", "int8"), ("bool", "float8_e5m2")])
def test_the_values_are_converted(source: str, target: str) -> None:
    host = np.array([0, 1, 1, 0]).astype(gp.to_numpy_dtype(source))
    x = gp.zeros(4, target)
    x[:] = gp.from_numpy(host)
    assert x.tolist() == host.astype(gp.to_numpy_dtype(target)).tolist()


def test_in_place_through_an_index() -> None:
    x, host = pair((4, 4), "float32")
    x[1] += 10
    x[:, 2] *= x[:, 1]
    x[::2, ::2] -= x[1::2, 1::2]
    host[1] += 10
    host[:, 2] *= host[:, 1]
    host[::2, ::2] -= host[1::2, 1::2]
    assert x.tolist() == host.tolist()


def test_what_does_not_fit() -> None:
    x, host = pair((3, 4))
    for value in (gp.zeros(3, "int32"), np.zeros((2, 4)), gp.zeros((2, 3, 4), "int32"), [[1, 2]]):
        with pytest.raises(gp.ShapeError, match="cannot assign"):
            x[...] = value
    with pytest.raises(OverflowError, match="3000000000"):
        x[0] = 3_000_000_000
    with pytest.raises(OverflowError, match="3000000000"):
        x[:, 1] = 3_000_000_000
    with pytest.raises(gp.DTypeError, match="cannot hold 1j"):
        x[0] = 1j
    with pytest.raises(IndexError):
        x[3] = 0
    with pytest.raises((TypeError, ValueError)):
        x[0] = "text"
    # Nothing was written by the refused ones.
    assert x.tolist() == host.tolist()


def test_leading_ones_are_dropped_as_in_numpy() -> None:
    x, host = pair((3, 4))
    x[1] = gp.ones((1, 1, 4), "int32")
    host[1] = np.ones((1, 1, 4))
    assert x.tolist() == host.tolist()


def test_an_empty_selection_is_no_work() -> None:
    x, host = pair((3, 4))
    x[1:1] = 5
    x[:, 4:] = gp.zeros((3, 0), "int32")
    assert x.tolist() == host.tolist()


@pytest.mark.parametrize("name", ["int8", "uint8", "int64"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), ValueError),
        (float("inf"), OverflowError),
        (float("-inf"), OverflowError),
        (1e30, OverflowError),
        (-1e30, OverflowError),
    ],
)
@pytest.mark.parametrize("step", [1, 2])
def test_floats_an_integer_array_cannot_hold_are_refused(
    name: str, value: float, error: type[Exception], step: int
) -> None:
    x = gp.zeros(4, name)
    with pytest.raises(error, match=name):
        x[::step] = value
    with pytest.raises(error, match=name):
        x[::step].fill(value)
    with pytest.raises(error, match=name):
        x[1] = value
    assert x.tolist() == [0, 0, 0, 0]
    with pytest.raises(error, match=name):
        gp.full(3, value, name)


@pytest.mark.parametrize("step", [1, 2])
def test_fractions_are_dropped_as_in_numpy(step: int) -> None:
    for value in (2.5, -2.5, 127.9, -0.5):
        x, host = pair((4,), "int8")
        x[::step] = value
        host[::step] = value
        assert x.tolist() == host.tolist()
    x[:] = gp.asarray([1.5, -1.5, 0.9, 3.0])
    assert x.tolist() == [1, -1, 0, 3]
