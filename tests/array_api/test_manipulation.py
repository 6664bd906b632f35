"""Manipulation functions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_oracle import ALL, NUMERIC, agree, same, sample

import pygpukit as gp
from pygpukit import array_api as xp

X = np.arange(24.0).reshape(2, 3, 4)


def test_concat_and_stack(device: str) -> None:
    for axis in (0, 1, -1, None):
        agree(lambda n, x, a=axis: n.concat([x, x + 1, x[...]], axis=a), X)
    agree(lambda n, x: n.concat((x, x[:0], x[:1])), X)
    agree(lambda n, x, y: n.concat([x, y]), sample("int8", 3), sample("uint8", (2,)))
    agree(lambda n, x, y: n.concat([x, y]), sample("float32", 3), sample("complex64", 2))
    for axis in (0, 1, 2, 3, -1, -4):
        agree(lambda n, x, a=axis: n.stack([x, -x], axis=a), X)
    agree(lambda n, x: n.stack([x]), np.array(3))
    for wrong in ([xp.ones(2), xp.ones((2, 2))], []):
        with pytest.raises(ValueError, match=r"."):
            xp.concat(wrong)
    with pytest.raises(ValueError, match=r"."):
        xp.stack([xp.ones(2), xp.ones(3)])


def test_shapes(device: str) -> None:
    for shape in ((24,), (-1,), (4, 6), (2, -1, 2), (1, 24, 1)):
        agree(lambda n, x, s=shape: n.reshape(x, s), X)
        agree(lambda n, x, s=shape: n.reshape(n.permute_dims(x, (2, 0, 1)), s), X)
    for axis in (0, 1, 3, -1, -4):
        agree(lambda n, x, a=axis: n.expand_dims(x, axis=a), X)
    same(xp.expand_dims(xp.ones(2)), np.ones((1, 2)))
    ones = X[:1, :, :1]
    for axes in (0, 2, -1, (0, 2), (-1, 0), ()):
        agree(lambda n, x, a=axes: n.squeeze(x, a), ones)
        agree(lambda n, x, a=axes: n.squeeze(x, axis=a), ones)
    with pytest.raises(ValueError, match=r"."):
        xp.squeeze(gp.from_numpy(ones), 1)
    with pytest.raises((IndexError, ValueError), match=r"."):
        xp.expand_dims(gp.from_numpy(X), axis=5)
    with pytest.raises(ValueError, match=r"."):
        xp.reshape(gp.from_numpy(X), (5, 5))


def test_reshape_copies_when_asked(device: str) -> None:
    x = xp.arange(6)
    for copy in (None, False):
        view = xp.reshape(x, (2, 3), copy=copy)
        view[0, 0] = 9
        assert int(x[0]) == 9
        x[0] = 0
    copied = xp.reshape(x, (2, 3), copy=True)
    copied[0, 0] = 9
    assert int(x[0]) == 0
    with pytest.raises(ValueError, match="copy"):
        xp.reshape(xp.reshape(x, (2, 3)).T, (6,), copy=False)


def test_axes(device: str) -> None:
    for axes in ((0, 1, 2), (2, 0, 1), (-1, 0, 1)):
        agree(lambda n, x, a=axes: n.permute_dims(x, a), X)
        agree(lambda n, x, a=axes: n.permute_dims(x, axes=a), X)
    for source, destination in ((0, 2), (-1, 0), ((0, 1), (2, 0)), ((), ())):
        agree(lambda n, x, s=source, d=destination: n.moveaxis(x, s, d), X)
    for axis in (None, 0, -1, (0, 2), ()):
        agree(lambda n, x, a=axis: n.flip(x, axis=a), X)
    for shift, axis in ((1, None), (-5, None), (2, 0), (-1, -1), ((1, 2), (0, 2)), (100, 1), ((1, 1), (0, 0))):
        agree(lambda n, x, s=shift, a=axis: n.roll(x, s, axis=a), X)
    agree(lambda n, x: n.matrix_transpose(x), X)
    agree(lambda n, x: x.mT, X)
    agree(lambda n, x: x.T, X[0])
    for axis in (0, 1, -1):
        agree(lambda n, x, a=axis: tuple(n.unstack(x, axis=a)), X)
    assert isinstance(xp.unstack(gp.from_numpy(X)), tuple)


def test_repetition(device: str) -> None:
    for repetitions in ((2,), (1, 2), (2, 1, 3), (2, 1, 1, 2), (0, 1), ()):
        agree(lambda n, x, r=repetitions: n.tile(x, r), X)
    for repeats, axis in ((2, None), (0, None), (3, 0), (2, -1)):
        agree(lambda n, x, r=repeats, a=axis: n.repeat(x, r, axis=a), X)
    agree(lambda n, x, r: n.repeat(x, r, axis=1), X, np.array([1, 0, 3]))
    agree(lambda n, x, r: n.repeat(x, r), X[0, 0], np.array([2, 0, 1, 3]))


def test_broadcast(device: str) -> None:
    agree(lambda n, x: n.broadcast_to(x, (5, 2, 3, 4)), X)
    agree(lambda n, x: n.broadcast_to(x, shape=(2, 7)), X[0, :2, :1])
    agree(lambda n, x, y: list(n.broadcast_arrays(x, y)), X, X[0, :, :1])
    agree(lambda n, x: list(n.broadcast_arrays(x)), X)
    with pytest.raises(ValueError, match=r"."):
        xp.broadcast_to(xp.ones(3), (2,))


def test_all_types_move() -> None:
    with gp.device("cpu"):
        for name in ALL:
            x = sample(name, (3, 4))
            agree(lambda n, x: n.concat([x, x.T], axis=None), x)
            agree(lambda n, x: n.stack([x, x], axis=1), x)
            agree(lambda n, x: n.roll(x, 2, axis=1), x)
            agree(lambda n, x: n.repeat(x, 2, axis=0), x)
            agree(lambda n, x: n.tile(x, (2, 1)), x)
            agree(lambda n, x: n.flip(x), x)


@st.composite
def arrays(draw: st.DrawFn, most: int = 4) -> np.ndarray[Any, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=most)))
    x = sample(draw(st.sampled_from(NUMERIC)), shape, draw(st.integers(0, 9)))
    order = draw(st.permutations(range(x.ndim)))
    steps = tuple(slice(None, None, draw(st.sampled_from((1, -1, 2)))) for _ in shape)
    return x.transpose(order)[steps]


@settings(max_examples=60, derandomize=True)
@given(data=st.data(), x=arrays())
def test_drawn_arrays(data: st.DataObject, x: np.ndarray[Any, Any]) -> None:
    with gp.device("cpu"):
        axes = st.integers(-x.ndim, x.ndim - 1) if x.ndim else st.nothing()
        axis = data.draw(st.none() | axes)
        agree(lambda n, x: n.flip(x, axis=axis), x)
        agree(lambda n, x: n.roll(x, data_shift, axis=axis), x) if (
            data_shift := data.draw(st.integers(-9, 9))
        ) else None
        agree(lambda n, x: n.reshape(x, (-1,)) if x.size else n.reshape(x, (0,)), x)
        where = data.draw(st.integers(-x.ndim - 1, x.ndim))
        agree(lambda n, x: n.expand_dims(x, axis=where), x)
        agree(lambda n, x: n.stack([x, x], axis=where), x)
        if x.ndim:
            axis = data.draw(axes)
            agree(lambda n, x: n.concat([x, x], axis=axis), x)
            agree(lambda n, x: tuple(n.unstack(x, axis=axis)), x)
            agree(lambda n, x: n.moveaxis(x, axis, 0), x)
        order = tuple(data.draw(st.permutations(range(x.ndim))))
        agree(lambda n, x: n.permute_dims(x, order), x)
        repetitions = tuple(data.draw(st.lists(st.integers(0, 2), max_size=4)))
        agree(lambda n, x: n.tile(x, repetitions), x)
