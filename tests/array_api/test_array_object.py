"""The array object: indexing, conversion to Python numbers, matrix products, and the strategies of Hypothesis."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace
from numpy_oracle import ALL, COMPLEX, INTEGERS, NUMERIC, REAL_FLOATS, agree, same, sample, to_host

import pygpukit as gp
from pygpukit import array_api as xp

X = np.arange(24.0).reshape(2, 3, 4)
KEYS: list[Any] = [
    0, -1, ..., None, (), (0, 1, 2), (0, ..., 1), (slice(None), 1), slice(None, None, -1), (slice(1, None), None, 2),
    (..., None), (None, ..., None), (slice(0, 0),), (slice(-5, 5, 2), slice(None, None, 2)), (1, slice(3, 0, -2), -1),
    (slice(None), slice(None), slice(5, 2)),
]  # fmt: skip


def test_basic_indices(device: str) -> None:
    for key in KEYS:
        agree(lambda n, x, k=key: x[k], X, where=key)
    for key in (2, -3, (0, 3), (0, 0, 0, 0)):
        with pytest.raises(IndexError, match=r"."):
            gp.from_numpy(X)[key]
    zero = xp.asarray(5)
    assert int(zero[()]) == int(zero[...]) == 5


def test_assignment(device: str) -> None:
    for key in KEYS:
        ours, theirs = gp.from_numpy(X), X.copy()
        ours[key] = -1.0
        theirs[key] = -1.0
        same(ours, theirs, where=key)
        value = np.arange(theirs[key].size, dtype=np.float64).reshape(theirs[key].shape)
        ours[key] = gp.from_numpy(value)
        theirs[key] = value
        same(ours, theirs, where=key)


def test_masks(device: str) -> None:
    for mask in (X > 7, X > 100, X[..., 0] > 4, np.array([True, False])):
        agree(lambda n, x, m: x[m], X, mask)
        ours, theirs = gp.from_numpy(X), X.copy()
        ours[gp.from_numpy(mask)] = 3.5
        theirs[mask] = 3.5
        same(ours, theirs)
        ours[gp.from_numpy(mask)] = xp.asarray(1.5)
        theirs[mask] = 1.5
        same(ours, theirs)
    agree(lambda n, x: x[x > 2], np.array(3.0))
    agree(lambda n, x, m: x[m], X, np.array(True))
    with pytest.raises(IndexError, match=r"."):
        gp.from_numpy(X)[xp.asarray([True, False, True])]


def test_arrays_of_integers(device: str) -> None:
    i, j = np.array([1, 0, -1]), np.array([[2], [0]])
    agree(lambda n, x, i: x[i], X, i)
    agree(lambda n, x, i, j: x[i, j], X, i, j)
    agree(lambda n, x, i: x[i, 0, i], X, i)
    agree(lambda n, x, i: x[0, 1, i], X, i)
    agree(lambda n, x, i: x[1, i, 2], X, i)


def test_numbers(device: str) -> None:
    for value, kind in ((True, bool), (3, int), (-2.5, float), (1 + 2j, complex)):
        x = xp.asarray(value)
        assert kind(x) == value
        assert type(kind(x)) is kind
    assert complex(xp.asarray(2.5)) == 2.5
    assert float(xp.asarray(2)) == 2.0
    assert bool(xp.asarray(0.0)) is False
    assert int(xp.asarray(2.9)) == 2
    assert operator.index(xp.asarray(3)) == 3
    assert [10, 20][xp.asarray(1, dtype=xp.uint8)] == 20
    with pytest.raises(TypeError, match=r"."):
        operator.index(xp.asarray(1.0))
    with pytest.raises((TypeError, ValueError), match=r"."):
        float(xp.asarray([1.0, 2.0]))


def test_matrix_products(device: str) -> None:
    shapes = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((3,), (5, 3, 2)),
              ((2, 1, 2, 3), (4, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))]  # fmt: skip
    for first, second in shapes:
        for name in NUMERIC if device == "cpu" else ("float32",):
            x, y = (sample(name, s, k) for k, s in enumerate((first, second)))
            agree(lambda n, x, y: x @ y, x, y, tolerance=1e-4)
            agree(lambda n, x, y: n.matmul(x, y), x, y, tolerance=1e-4)
    x = gp.from_numpy(np.arange(4.0).reshape(2, 2))
    alias = x
    x @= xp.eye(2) * 2
    assert x is alias
    same(x, np.arange(4.0).reshape(2, 2) * 2)
    with pytest.raises(ValueError, match=r"."):
        xp.ones((2, 3)) @ xp.ones((2, 3))
    with pytest.raises((TypeError, ValueError), match=r"."):
        xp.ones(()) @ xp.ones(3)


def test_attributes(device: str) -> None:
    for shape in ((), (0,), (2, 3), (4, 1, 2)):
        x = xp.ones(shape, dtype=xp.int16)
        assert (x.shape, x.ndim, x.size) == (shape, len(shape), int(np.prod(shape)))
        assert x.dtype == xp.int16
        assert type(x.shape) is tuple
        if len(shape) >= 2:
            assert x.mT.shape == (*shape[:-2], shape[-1], shape[-2])
    with pytest.raises(ValueError, match=r"."):
        _ = xp.ones(3).mT
    assert xp.ones((2, 3)).T.shape == (3, 2)


def test_other_types_are_left_to_them(device: str) -> None:
    class Other:
        def __radd__(self, other: Any) -> str:
            return "theirs"

    assert xp.ones(2) + Other() == "theirs"
    with pytest.raises(TypeError, match="unsupported operand"):
        xp.ones(2) + "a"  # type: ignore[operator]


# It makes an array to see what the namespace has; tests are collected without a GPU.
with warnings.catch_warnings(), gp.device("cpu"):
    # Hypothesis warns where a namespace lacks a type.
    warnings.simplefilter("error")
    strategies = make_strategies_namespace(xp, api_version="2024.12")


@settings(max_examples=40, derandomize=True)
@given(data=st.data())
def test_strategies_of_hypothesis(data: st.DataObject) -> None:
    with gp.device("cpu"):
        kind = data.draw(strategies.scalar_dtypes())
        x = data.draw(strategies.arrays(kind, strategies.array_shapes(min_dims=0, min_side=0, max_dims=3)))
        assert x.dtype == kind
        host = to_host(x)
        key = data.draw(strategies.indices(x.shape, allow_newaxis=True))
        same(x[key], host[key])
        mask = data.draw(strategies.arrays(xp.bool, x.shape))
        same(x[mask], host[to_host(mask)])
        value = x.dtype.kind != "b"
        copied = xp.asarray(x, copy=True)
        copied[key] = value
        host = host.copy()
        host[key] = value
        same(copied, host)


def test_every_type_is_indexed() -> None:
    with gp.device("cpu"):
        for name in ALL:
            x = sample(name, (4, 3))
            agree(lambda n, x: x[1:, ::-1], x)
            agree(lambda n, x, m: x[m], x, sample("bool", (4, 3)))
            agree(lambda n, x, i: x[i, i], x, np.array([0, 2, -1]))
    assert {*INTEGERS, *REAL_FLOATS, *COMPLEX} < set(ALL)
