"""Views: indexing, reshape, transpose and reinterpretation against NumPy, on the same memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp

shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)


def pair(shape: tuple[int, ...], kind: str = "int32") -> tuple[gp.GPUArray, np.ndarray[Any, Any]]:
    host = np.arange(int(np.prod(shape)), dtype=kind).reshape(shape)
    return gp.from_numpy(host), host


@given(data=st.data())
@settings(max_examples=200)
def test_basic_indexing(data: st.DataObject) -> None:
    x, host = pair(data.draw(shapes))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(hnp.basic_indices(host.shape, allow_ellipsis=True, allow_newaxis=True, max_dims=8))
        x, host = x[key], np.asarray(host[key])
        assert (x.shape, x.size, x.ndim) == (host.shape, host.size, host.ndim)
    assert x.to_numpy().tolist() == host.tolist()
    assert x.is_contiguous == (host.flags["C_CONTIGUOUS"])
    if host.size:
        assert [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1] == [
            s for s, n in zip(host.strides, host.shape, strict=True) if n > 1
        ]


def test_keys_of_all_kinds() -> None:
    x, host = pair((4, 5))
    for key in (np.int64(1), (np.uint8(2), -1), gp.asarray(3, "int16"), (gp.asarray(1), slice(None)), (), ..., None):
        plain = tuple(int(k) if isinstance(k, gp.GPUArray) else k for k in key) if isinstance(key, tuple) else key
        plain = int(plain) if isinstance(plain, gp.GPUArray) else plain
        assert x[key].tolist() == np.asarray(host[plain]).tolist(), key


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (4, "index 4 is out of range for axis 0 of length 4"),
        (-5, "out of range"),
        ((0, 5), "axis 0|axis 1"),
        ((0, 0, 0), "too many indices"),
        ((..., ...), "only one Ellipsis"),
        (1.5, "not float"),
        ("a", "not str"),
        (np.array([0.0]), "not of float64"),
    ],
)
def test_bad_keys(key: Any, text: str) -> None:
    with pytest.raises(IndexError, match=text):
        pair((4, 5))[0][key]


def test_a_zero_step_is_refused() -> None:
    with pytest.raises(ValueError, match="zero"):
        pair((4,))[0][::0]


def test_the_axis_of_a_bad_index_is_the_arrays_own() -> None:
    # After an integer the remaining axes move up; the message must not.
    with pytest.raises(IndexError, match="axis 1 of length 5"):
        pair((4, 5))[0][0, 5]


@given(data=st.data())
@settings(max_examples=150)
def test_reshape(data: st.DataObject) -> None:
    x, host = pair(data.draw(shapes))
    key = data.draw(hnp.basic_indices(host.shape, allow_ellipsis=True))
    x, host = x[key], np.asarray(host[key])
    axes = data.draw(st.permutations(range(host.ndim)))
    x, host = x.transpose(axes), host.transpose(axes)
    target = data.draw(st.sampled_from([s for s in _shapes_of(host.size)]))
    hole = data.draw(st.booleans()) and bool(target) and 0 not in target
    wanted = tuple(-1 if hole and i == 0 else n for i, n in enumerate(target))
    y, expected = x.reshape(wanted), host.reshape(target)
    assert y.shape == expected.shape
    assert y.to_numpy().tolist() == expected.tolist()
    # NumPy's answer to the question whether it can be a view is ours.
    if host.size:
        assert y._shares_memory(x) == np.shares_memory(expected, host)
        if np.shares_memory(expected, host):
            assert x.view(wanted).to_numpy().tolist() == expected.tolist()
        else:
            with pytest.raises(ValueError, match="use reshape"):
                x.view(wanted)


def _shapes_of(size: int) -> list[tuple[int, ...]]:
    if size == 0:
        return [(0,), (3, 0), (0, 1, 2)]
    found = [(size,), (1, size), (size, 1, 1)]
    for a, b in itertools.product(range(1, 13), repeat=2):
        if size % (a * b) == 0:
            found.append((a, b, size // (a * b)))
    return [*found, *([()] if size == 1 else [])]


@pytest.mark.parametrize("shape", [(7,), (-1, -1), (5, -1), (-2, 6), (2, 3, 3)])
def test_shapes_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(gp.ShapeError):
        pair((3, 4))[0].reshape(shape)


def test_spellings() -> None:
    x, host = pair((2, 3, 4))
    assert x.reshape(4, 6).tolist() == x.reshape((4, 6)).tolist() == host.reshape(4, 6).tolist()
    assert x.transpose(2, 0, 1).tolist() == x.transpose((2, 0, 1)).tolist() == host.transpose(2, 0, 1).tolist()
    assert x.T.tolist() == x.transpose().tolist() == gp.transpose(x).tolist() == host.T.tolist()
    assert gp.transpose(x, (-1, 0, 1)).tolist() == host.transpose(-1, 0, 1).tolist()
    for axes in ((0, 0, 1), (0, 1), (0, 1, 3)):
        with pytest.raises((gp.ShapeError, np.exceptions.AxisError)):
            x.transpose(axes)


def test_narrow_and_slice_rows() -> None:
    x, host = pair((5, 6))
    assert x.narrow(1, 2, 3).tolist() == host[:, 2:5].tolist()
    assert x.narrow(-1, 0, 0).shape == (5, 0)
    assert x.slice_rows(1, 4).tolist() == host[1:4].tolist()
    for bad in ((0, 3, 3), (0, -1, 2), (2, 0, 1), (0, 0, -1)):
        with pytest.raises((gp.ShapeError, IndexError)):
            x.narrow(*bad)


@given(data=st.data())
@settings(max_examples=60)
def test_a_view_is_the_same_memory(data: st.DataObject) -> None:
    x, host = pair(data.draw(hnp.array_shapes(max_dims=4, max_side=5)))
    key = data.draw(hnp.basic_indices(host.shape, allow_ellipsis=True, allow_newaxis=True))
    x[key].fill(-1)
    host[key] = -1
    assert x.to_numpy().tolist() == host.tolist()


def test_a_view_outlives_its_array() -> None:
    view = pair((100, 100))[0][10:20, ::7]
    for _ in range(5):
        gp.zeros((100, 100), "int32")
    assert view.to_numpy().tolist() == np.arange(10000).reshape(100, 100)[10:20, ::7].tolist()


@pytest.mark.parametrize(("source", "target"), [("float32", "int32"), ("float64", "uint8"), ("int8", "float16")])
def test_reinterpretation(source: str, target: str) -> None:
    x, host = pair((2, 8), source)
    assert x.view(target).tolist() == host.view(gp.to_numpy_dtype(target)).tolist()


def test_reinterpretation_that_cannot_be() -> None:
    x = pair((4, 6), "int16")[0]
    with pytest.raises(gp.DTypeError, match="whole number"):
        x[:, :5].view("int64")
    with pytest.raises(gp.DTypeError, match="whole number"):
        gp.zeros((), "int16").view("int8")
    with pytest.raises(gp.DTypeError, match="multiple of 4"):
        pair((9,), "int16")[0][1:].view("int32")
    # A transposed array keeps its strides where the size stays the same.
    assert x.T.view("float16").shape == (6, 4)


def test_iteration_length_and_contiguous() -> None:
    x, host = pair((3, 4))
    assert [row.tolist() for row in x] == host.tolist()
    assert len(x) == 3
    assert x.contiguous() is x
    assert x.T.contiguous().is_contiguous
    assert x.T.contiguous().tolist() == host.T.tolist()
    with pytest.raises(TypeError):
        len(gp.zeros(()))
    with pytest.raises(TypeError):
        iter(gp.zeros(()))


def test_eight_dimensions_and_not_nine() -> None:
    x = gp.ones([1] * 7)
    assert x[None].ndim == 8
    with pytest.raises(gp.ShapeError, match="8"):
        x[None, None]


def test_new_axes_may_take_the_place_of_indexed_ones() -> None:
    x, host = pair((1, 1, 1, 1, 1, 1, 2, 2))
    assert x[None, 0, None, 0, ..., 1].tolist() == host[None, 0, None, 0, ..., 1].tolist()


@pytest.mark.parametrize(
    "key",
    [
        slice(None, None, 2**70),
        slice(None, None, -(2**70)),
        slice(2**70, None, -1),
        slice(-(2**70), 2**70, 3),
        slice(np.int8(1), np.uint64(3)),
        (slice(3, 0, -2), slice(-1, -6, -1)),
        (slice(5, 1), None, ..., None),
    ],
)
def test_slices_of_all_kinds(key: Any) -> None:
    x, host = pair((4, 5))
    assert x[key].shape == host[key].shape
    assert x[key].tolist() == host[key].tolist()


@pytest.mark.parametrize(("key", "text"), [(2**70, f"index {2**70} is out of range"), (-(2**63) - 1, "out of range")])
def test_integers_of_more_than_64_bits(key: int, text: str) -> None:
    with pytest.raises(IndexError, match=text):
        pair((4, 5))[0][key]
    with pytest.raises(IndexError, match="axis 1 of length 5"):
        pair((4, 5))[0][:, key]
    # Python does not write out thousands of digits.
    with pytest.raises(IndexError, match="out of range for axis 0"):
        pair((4,))[0][10**5000]


def test_objects_that_mean_an_int_may_fail_on_their_own() -> None:
    class Broken:
        def __index__(self) -> int:
            raise KeyError("no index")

    class Four:
        def __index__(self) -> int:
            return 4

    x, host = pair((6,))
    assert x[Four()].tolist() == host[4]
    assert x[Four() : 1 : -1].tolist() == host[4:1:-1].tolist()
    with pytest.raises(KeyError, match="no index"):
        x[Broken()]
    with pytest.raises(KeyError, match="no index"):
        x[: Broken()]
