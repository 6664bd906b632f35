"""Broadcasting, strided operands, out= and outputs that overlap operands, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum}


def strided(data: st.DataObject, shape: tuple[int, ...], kind: str) -> tuple[gp.GPUArray, np.ndarray[Any, Any]]:
    """An array of this shape cut out of a larger one: steps of 1, 2 or -1 and permuted axes."""
    steps = [data.draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    order = data.draw(st.permutations(range(len(shape))))
    whole = tuple(shape[i] * abs(steps[i]) + 1 for i in order)
    host = np.asarray((np.arange(int(np.prod(whole))) % 97).astype(kind).reshape(whole))
    inverse = np.argsort(order)
    key = tuple(slice(None, None, -1) if step < 0 else slice(None, None, step) for step in steps)
    cut = tuple(slice(0, n) for n in shape)
    # An Ellipsis keeps what has no dimensions an array.
    return gp.from_numpy(host).transpose(*inverse)[key][cut], host.transpose(inverse)[*key, ...][*cut, ...]


@given(data=st.data())
@settings(max_examples=150)
def test_any_shapes_that_broadcast(data: st.DataObject) -> None:
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4))
    name = data.draw(st.sampled_from(sorted(FUNCTIONS)))
    kind = data.draw(st.sampled_from(["int32", "float32", "float64", "uint8"]))
    (x, a), (y, b) = (strided(data, shape, kind) for shape in shapes.input_shapes)
    got, wanted = getattr(gp, name)(x, y), FUNCTIONS[name](a, b)
    assert got.shape == shapes.result_shape
    assert got.is_contiguous
    assert got.to_numpy().tolist() == wanted.tolist()


@given(data=st.data())
@settings(max_examples=60)
def test_three_operands(data: st.DataObject) -> None:
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=4))
    (c, m), (x, a), (y, b) = (strided(data, shape, "int16") for shape in shapes.input_shapes)
    assert gp.where(c < 40, x, y).to_numpy().tolist() == np.where(m < 40, a, b).tolist()
    assert gp.clamp(x, 10, y).to_numpy().tolist() == np.minimum(np.maximum(a, 10), b).tolist()


@given(left=hnp.array_shapes(max_dims=4, max_side=4), right=hnp.array_shapes(max_dims=4, max_side=4))
@settings(max_examples=80)
def test_numpy_decides_what_broadcasts(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = gp.zeros(left), gp.zeros(right)
    try:
        wanted = np.broadcast_shapes(left, right)
    except ValueError:
        with pytest.raises(gp.ShapeError, match="broadcast"):
            gp.add(x, y)
    else:
        assert gp.add(x, y).shape == wanted


@given(data=st.data())
@settings(max_examples=80)
def test_out_of_any_layout_and_type(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    (x, a), (y, b) = strided(data, shape, "int16"), strided(data, shape, "int16")
    kind = data.draw(st.sampled_from(["int16", "int8", "int64", "float16", "float64", "complex64"]))
    out, host = strided(data, shape, kind)
    got = gp.add(x, y, out=out)
    np.add(a, b, out=host, casting="same_kind")
    assert got is out
    assert out.to_numpy().tolist() == host.tolist()


@given(data=st.data())
@settings(max_examples=200)
def test_out_may_overlap_the_operands(data: st.DataObject) -> None:
    base = np.arange(60, dtype=np.float32)
    x = gp.from_numpy(base)
    shape = data.draw(st.sampled_from([(12,), (3, 4), (4, 3), (2, 3, 2)]))
    views = []
    for _ in range(3):
        start = data.draw(st.integers(0, 24))
        step = data.draw(st.sampled_from([1, 2, 3]))
        flip, turn = data.draw(st.booleans()), data.draw(st.booleans())
        pair = []
        for array in (x, base):
            view = array[start : start + 12 * step : step].reshape(shape[::-1] if turn else shape)
            view = view[::-1] if flip else view
            pair.append(view.T if turn else view)
        views.append(pair)
    (p, a), (q, b), (out, host) = views
    wanted = a - 2 * b
    host[...] = wanted
    # Two steps, so that the second reads what the first has written through the same memory.
    doubled = gp.mul(q, 2.0)
    gp.sub(p, doubled, out=out)
    assert x.to_numpy().tolist() == base.tolist()


@pytest.mark.parametrize("turn", [lambda v: v, lambda v: v[::-1], lambda v: v.T])
def test_in_place_with_another_view_of_itself(turn: Any) -> None:
    host = np.arange(16, dtype=np.int32).reshape(4, 4)
    x = gp.from_numpy(host)
    x += turn(x)
    host += turn(host)
    assert x.tolist() == host.tolist()


def test_out_of_another_type_on_the_same_memory() -> None:
    host = np.arange(8, dtype=np.float32)
    x = gp.from_numpy(host)
    # The bytes of the operand are the bytes of the output: nothing may be read after it is written.
    gp.less(x[:2], x[6:], out=x.view("bool")[:2])
    assert x.view("bool")[:2].tolist() == [True, True]
    y = gp.from_numpy(host)
    gp.add(y[:4].view("int32"), 1, out=y[1:5].view("int32"))
    assert y[1:5].view("int32").tolist() == (host[:4].view(np.int32) + 1).tolist()


def test_a_long_chain_in_one_buffer() -> None:
    host = np.linspace(0, 1, 33, dtype=np.float32)
    x = gp.from_numpy(host)
    for _ in range(20):
        gp.add(x[:-1], x[1:], out=x[:-1])
        gp.mul(x, 0.5, out=x)
        host[:-1] = host[:-1] + host[1:]
        host *= np.float32(0.5)
    assert x.to_numpy().tolist() == host.tolist()


def test_out_keeps_what_it_does_not_cover() -> None:
    x = gp.zeros((4, 4), "int32")
    gp.add(gp.ones((2, 2), "int32"), 1, out=x[1:3, 1:3])
    host = np.zeros((4, 4), np.int32)
    host[1:3, 1:3] = 2
    assert x.tolist() == host.tolist()


def test_empty_arrays() -> None:
    assert gp.add(gp.zeros((0, 3)), gp.zeros((1, 3))).shape == (0, 3)
    assert gp.add(gp.zeros((0, 3)), 1.0, out=gp.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(gp.ShapeError):
        gp.add(gp.zeros((0, 3)), gp.zeros((2, 3)))
