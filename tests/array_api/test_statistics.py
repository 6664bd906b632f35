"""Statistics, searching, sorting, sets and utility functions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_oracle import ALL, BOOL, COMPLEX, FLOATS, INTEGERS, NUMERIC, REAL, REAL_FLOATS, agree, same, sample

import pygpukit as gp
from pygpukit import array_api as xp

AXES: list[Any] = [None, 0, 1, -1, (0, 2), (), (-1, 1)]


def small(name: str, shape: Any = (2, 3, 4)) -> np.ndarray[Any, Any]:
    """Elements whose sums and products are exact or well conditioned."""
    x = np.random.default_rng(len(name)).integers(0 if name[0] in "bu" else -3, 4, shape)
    return (x != 0) if name == "bool" else x.astype(name)


@pytest.mark.parametrize("function", ["sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "count_nonzero"])
def test_reductions(device: str, function: str) -> None:
    names = {"sum": NUMERIC, "prod": NUMERIC, "max": REAL, "min": REAL, "mean": FLOATS, "std": REAL_FLOATS,
             "var": REAL_FLOATS}.get(function, ALL)  # fmt: skip
    for name in names if device == "cpu" else [n for n in names if n in ("int8", "float32", "complex64")]:
        x = small(name)
        for axis in AXES if device == "cpu" else (None, 1):
            for keepdims in (False, True):
                agree(lambda n, x, a=axis, k=keepdims: getattr(n, function)(x, axis=a, keepdims=k), x, tolerance=1e-5)
        agree(lambda n, x: getattr(n, function)(x), x.T, tolerance=1e-5)
        if function in ("sum", "prod", "all", "any", "count_nonzero"):
            agree(lambda n, x: getattr(n, function)(x, axis=0), x[:0])
            agree(lambda n, x: getattr(n, function)(x), x[:0])
    with pytest.raises((IndexError, ValueError), match=r"."):
        getattr(xp, function)(xp.ones((2, 2)), axis=5)


def test_types_of_sums() -> None:
    with gp.device("cpu"):
        for name in NUMERIC:
            x = small(name)
            for function in ("sum", "prod", "cumulative_sum", "cumulative_prod"):
                flat = {"axis": 0} if function.startswith("cumulative") else {}
                agree(lambda n, x, f=function, k=flat: getattr(n, f)(x, **k), x, tolerance=1e-5)
                for target in NUMERIC:
                    if np.can_cast(name, target, "same_kind"):
                        agree(
                            lambda n, x, f=function, k=flat, t=target: getattr(n, f)(x, dtype=getattr(n, t), **k),
                            x,
                            tolerance=1e-5,
                        )


def test_corrections(device: str) -> None:
    x = sample("float64", (3, 5))
    for correction in (0, 1, 0.5, 2.0):
        agree(lambda n, x, c=correction: n.var(x, axis=1, correction=c), x, tolerance=1e-12)
        agree(lambda n, x, c=correction: n.std(x, correction=c, keepdims=True), x, tolerance=1e-12)


def test_nan_spreads(device: str) -> None:
    x = np.array([1.0, np.nan, 3.0])
    for function in ("max", "min", "sum", "mean", "prod", "std"):
        agree(lambda n, x, f=function: getattr(n, f)(x), x)
    agree(lambda n, x: n.argmax(x), x)


def test_cumulative(device: str) -> None:
    for function in ("cumulative_sum", "cumulative_prod"):
        for name in ("int8", "float32", "complex128"):
            x = small(name)
            for axis in (0, 1, -1):
                for initial in (False, True):
                    agree(lambda n, x, f=function, a=axis, i=initial: getattr(n, f)(x, axis=a, include_initial=i), x)
        agree(lambda n, x, f=function: getattr(n, f)(x), small("int64", 5))
        with pytest.raises(ValueError, match="axis"):
            getattr(xp, function)(xp.ones((2, 2)))


def test_diff(device: str) -> None:
    for name in ("int16", "float64", "complex64", "bool"):
        x = small(name)
        for axis in (0, -1):
            for count in (0, 1, 2, 3):
                agree(lambda n, x, a=axis, c=count: n.diff(x, axis=a, n=c), x)
    x = small("int64", (2, 3))
    agree(lambda n, x: n.diff(x, prepend=x[:, :1], append=x), x)
    agree(lambda n, x: n.diff(x, axis=0, append=x[:1]), x)


def test_arg_reductions(device: str) -> None:
    for name in REAL if device == "cpu" else ("int8", "float32"):
        x = small(name)
        for function in ("argmax", "argmin"):
            for axis in (None, 0, -1):
                for keepdims in (False, True):
                    agree(lambda n, x, f=function, a=axis, k=keepdims: getattr(n, f)(x, axis=a, keepdims=k), x)


def test_where_and_nonzero(device: str) -> None:
    for name in ALL if device == "cpu" else ("bool", "float32"):
        x = small(name)
        agree(lambda n, x: tuple(n.nonzero(x)), x)
        agree(lambda n, c, x, y: n.where(c, x, y), small("bool"), x, x[:1, :, ::-1])
    agree(lambda n, x: tuple(n.nonzero(x)), np.zeros((2, 0)))
    agree(lambda n, c, x: n.where(c, x, 0), small("bool"), small("float32"))


def test_take(device: str) -> None:
    x = sample("float32", (3, 4, 5))
    places = np.array([2, 0, 0, 1])
    for axis in (0, 1, -1):
        agree(lambda n, x, i, a=axis: n.take(x, i, axis=a), x, places)
        wide = (
            np.broadcast_to(places[:3].reshape(3, 1, 1), (3, 4, 5))
            if axis
            else np.array([[[2]], [[0]]]) + 0 * x[:2].astype(int)
        )
        agree(lambda n, x, i, a=axis: n.take_along_axis(x, i, axis=a), x, np.ascontiguousarray(wide))
    agree(lambda n, x, i: n.take(x, i), x[0, 0], places)
    agree(lambda n, x, i: n.take(x, i, axis=0), x, places.reshape(2, 2))
    agree(lambda n, x, i: n.take_along_axis(x, n.argsort(x, axis=1), axis=1), x, places)
    for kind in INTEGERS:
        agree(lambda n, x, i: n.take(x, i, axis=1), x, places.astype(kind))


def test_sorting(device: str) -> None:
    for name in REAL if device == "cpu" else ("int16", "float32"):
        x = small(name)
        for axis in (0, 1, -1):
            agree(lambda n, x, a=axis: n.sort(x, axis=a, stable=True), x)
            agree(lambda n, x, a=axis: n.argsort(x, axis=a, stable=True), x)
        ours = gp.from_numpy(x)
        same(xp.sort(ours, descending=True), np.flip(np.sort(x), axis=-1))
        # Stable both ways: equal elements keep their order.
        turned = np.argsort(np.flip(x, axis=-1), axis=-1, stable=True)
        same(xp.argsort(ours, descending=True), np.flip(x.shape[-1] - 1 - turned, axis=-1))


def test_searchsorted(device: str) -> None:
    for name in ("int8", "uint64", "float32", "float64"):
        x, v = np.sort(small(name, 9)), small(name, (2, 3))
        for side in ("left", "right"):
            agree(lambda n, x, v, s=side: n.searchsorted(x, v, side=s), x, v)
        loose = small(name, 9)
        agree(lambda n, x, v: n.searchsorted(x, v, sorter=n.argsort(x)), loose, v)


def test_unique(device: str) -> None:
    for name in ALL if device == "cpu" else ("int32", "float32"):
        x = small(name)
        ours = gp.from_numpy(x)
        for function in ("unique_values", "unique_counts", "unique_inverse", "unique_all"):
            result, theirs = getattr(xp, function)(ours), getattr(np, function)(x)
            if function == "unique_values":
                same(result, np.sort(theirs))
            else:
                same(tuple(result), tuple(theirs))
                assert result._fields == theirs._fields
    x = np.array([np.nan, 1.0, np.nan, -0.0, 0.0, 1.0])
    values, counts = xp.unique_counts(gp.from_numpy(x))
    assert values.shape == (4,)
    assert sorted(counts.tolist()) == [1, 1, 2, 2]


def test_truth(device: str) -> None:
    for name in BOOL + COMPLEX + REAL_FLOATS:
        for x in (small(name), np.zeros((2, 2), name), np.ones((2, 0), name)):
            agree(lambda n, x: n.all(x), x)
            agree(lambda n, x: n.any(x, axis=0), x)
