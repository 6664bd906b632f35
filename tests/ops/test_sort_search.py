"""searchsorted, digitize, unique, the set functions and quantiles against NumPy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp


def same(got: gp.GPUArray, want: Any, context: str = "") -> None:
    """The same value, type and shape."""
    expected = np.asarray(want)
    host = got.to_numpy()
    assert host.dtype == expected.dtype, context
    assert host.shape == expected.shape, context
    np.testing.assert_array_equal(host, expected, err_msg=context)


def floats(rng: np.random.Generator, shape: Any) -> np.ndarray[Any, Any]:
    x = rng.integers(-20, 20, shape).astype(np.float32) / 4
    return np.where(rng.random(shape) < 0.1, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape), x).astype(
        np.float32
    )


def test_searchsorted(device: str) -> None:
    rng = np.random.default_rng(0)
    a, v = np.sort(floats(rng, 300)), floats(rng, (7, 9))
    turn = rng.permutation(a.size)
    b = a[turn]
    order = np.argsort(b, kind="stable")
    ours, values = gp.from_numpy(a), gp.from_numpy(v)
    for side in ("left", "right"):
        same(gp.searchsorted(ours, values, side), np.searchsorted(a, v, side))
        same(ours.searchsorted(values.T, side), np.searchsorted(a, v.T, side))
        same(gp.searchsorted(gp.from_numpy(b), values, side, gp.from_numpy(order)), np.searchsorted(b, v, side, order))
        same(gp.searchsorted(ours[::3], 1.5, side), np.searchsorted(a[::3], 1.5, side))
    for x, y in ((np.arange(9, dtype=np.int8), np.array([3.5, -1])), (np.arange(4), np.arange(4, dtype=np.uint64))):
        same(gp.searchsorted(gp.from_numpy(x), gp.from_numpy(y)), np.searchsorted(x, y))
    same(gp.searchsorted(ours[:0], values), np.searchsorted(a[:0], v))
    same(gp.searchsorted(ours, values[:0]), np.searchsorted(a, v[:0]))
    limits = np.array([-2.0, 0.0, 0.0, 3.0])
    for bins in (limits, limits[::-1], limits[:1]):
        for right in (False, True):
            same(gp.digitize(values, gp.from_numpy(bins.copy()), right), np.digitize(v, bins, right))


def test_unique(device: str) -> None:
    rng = np.random.default_rng(1)
    parts = [0.0, -0.0, 1.0, np.nan]
    cases = [
        rng.integers(0, 40, (3, 1501)),
        rng.integers(0, 3, 9000).astype(np.uint8),
        floats(rng, (40, 5)),
        np.array([np.iinfo(np.int64).max] * 3 + [np.iinfo(np.int64).min]),
        np.zeros(5),
        np.zeros((0, 3)),
        np.array(3, np.int16),
        np.array([complex(a, b) for a in parts for b in parts] * 2),
    ]
    for x in cases:
        ours = gp.from_numpy(x)
        for equal_nan in (True, False):
            want = np.unique(x, True, True, True, equal_nan=equal_nan)
            got = gp.unique(ours, True, True, True, equal_nan=equal_nan)
            context = f"{x.dtype} {x.shape} {equal_nan}"
            # Of several NaN, NumPy may name the same ones in another order.
            exact = equal_nan or not np.isnan(x).any()
            for which, (one, expected) in enumerate(zip(got, want, strict=True)):
                if exact or which in (0, 3):
                    same(one, expected, context)
            np.testing.assert_array_equal(got[0].to_numpy()[got[2].to_numpy()], x, err_msg=context)
            assert got[2].shape == x.shape
        same(gp.unique(ours), np.unique(x))
        for name in ("all", "counts", "inverse"):
            got_all, want_all = getattr(gp, f"unique_{name}")(ours), getattr(np, f"unique_{name}")(x)
            assert got_all._fields == want_all._fields
            for field, one in got_all._asdict().items():
                if "ind" not in field or not np.isnan(x).any():
                    same(one, getattr(want_all, field), name)
        same(gp.unique_values(ours), np.unique(x, equal_nan=False))
    same(gp.unique(gp.asarray([2, 1, 2]), axis=0), [1, 2])


def test_sets(device: str) -> None:
    rng = np.random.default_rng(2)
    for x, y in (
        (rng.integers(0, 30, (5, 41)), rng.integers(20, 50, 77)),
        (floats(rng, 60), floats(rng, (6, 4))),
        (np.array([3, 1, 1], np.int8), np.array([1.0, 2.5])),
        (np.zeros(0), np.array([1.0, np.nan])),
        (np.array([1.0]), np.zeros(0)),
    ):
        a, b = gp.from_numpy(x), gp.from_numpy(y)
        same(gp.isin(a, b), np.isin(x, y))
        same(gp.isin(b, a, invert=True), np.isin(y, x, invert=True))
        same(gp.in1d(a, b), np.isin(x, y).ravel())
        for name in ("intersect1d", "union1d", "setdiff1d", "setxor1d"):
            same(getattr(gp, name)(a, b), getattr(np, name)(x, y), name)
        for got, want in zip(
            gp.intersect1d(a, b, return_indices=True), np.intersect1d(x, y, return_indices=True), strict=True
        ):
            same(got, want)
    same(gp.isin(3, gp.asarray([1, 3])), True)
    same(gp.setdiff1d(gp.asarray([5, 1, 3, 2]), gp.asarray([3]), assume_unique=True), [5, 1, 2])


def tolerance(kind: np.dtype[Any]) -> float:
    return {"float16": 4e-3, "float32": 4e-6}.get(kind.name, 1e-13)


def test_quantiles(device: str) -> None:
    rng = np.random.default_rng(3)
    special = np.array([[1, np.inf, np.inf, np.inf], [np.nan, 2, 3, 1], [np.nan] * 4, [-np.inf, 0, -0.0, np.inf]])
    for x in (
        rng.standard_normal((4, 7, 3)).astype(np.float32),
        rng.integers(-50, 50, (4, 6)).astype(np.int16),
        rng.standard_normal((3, 5)).astype(np.float16),
        special,
        np.array([2.5]),
    ):
        ours = gp.from_numpy(x)
        for axis in (None, -1, (0, 1)) if x.ndim > 1 else (None, 0):
            calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
                ("median", (), {"keepdims": True}), ("nanmedian", (), {}),
                ("quantile", (0.3,), {}), ("nanquantile", ([0.0, 0.25, 0.9],), {"keepdims": True}),
                ("percentile", (np.array([30.0, 100.0]),), {}), ("nanpercentile", (70,), {}), ("quantile", (1,), {}),
                *((name, (0.4,), {"method": method}) for name in ("quantile", "nanquantile")
                  for method in ("lower", "higher", "midpoint", "nearest")),
            ]  # fmt: skip
            for name, arguments, options in calls:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    want = np.asarray(getattr(np, name)(x, *arguments, axis=axis, **options))
                got = getattr(gp, name)(ours, *arguments, axis=axis, **options)
                context = f"{name} {arguments} {options} {x.dtype} {axis}"
                assert got.to_numpy().dtype == want.dtype, context
                assert got.shape == want.shape, context
                # NumPy subtracts in the type of the elements, whatever the type of the result.
                limit = max(tolerance(want.dtype), tolerance(x.dtype))
                np.testing.assert_allclose(wide(got.to_numpy()), wide(want), rtol=limit, atol=limit, err_msg=context)
    x = rng.standard_normal(400)
    same(gp.quantile(gp.from_numpy(x), gp.asarray([0.1, 0.6])), np.quantile(x, [0.1, 0.6]))
    same(gp.quantile(gp.from_numpy(x)[::2], [[0.1], [0.6]]), np.quantile(x[::2], [[0.1], [0.6]]))
    out = gp.empty((), "float64")
    assert gp.median(gp.from_numpy(x), out=out) is out
    assert out.item() == np.median(x)
    assert np.isnan(gp.median(gp.zeros(0)).item())
    same(gp.quantile(gp.asarray([True, False]), 0.0, method="lower"), False)


def wide(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.astype(np.float64)


def raised(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def test_errors_are_numpys() -> None:
    hosts = np.arange(6.0).reshape(2, 3), np.arange(3)
    ours = tuple(gp.from_numpy(x) for x in hosts)
    for number, call in enumerate(
        (
            lambda m, x, i: m.searchsorted(x, i),
            lambda m, x, i: m.searchsorted(i, x, "middle"),
            lambda m, x, i: m.searchsorted(i, i, sorter=i[:2]),
            lambda m, x, i: m.searchsorted(i, i, sorter=x[0]),
            lambda m, x, i: m.digitize(i, x),
            lambda m, x, i: m.digitize(i * 1j, i),
            lambda m, x, i: m.isin(i, i, kind="bogus"),
            lambda m, x, i: m.quantile(x, 1.5),
            lambda m, x, i: m.percentile(x, -1),
            lambda m, x, i: m.quantile(x, 0.5, method="bogus"),
            lambda m, x, i: m.quantile(x, 0.5, axis=2),
            lambda m, x, i: m.median(x, axis=(0, 0)),
            lambda m, x, i: m.quantile(x[:0], 0.5, axis=0, method="lower"),
            lambda m, x, i: m.quantile(i > 1, 0.5),
            lambda m, x, i: m.quantile(i * 1j, 0.5),
            lambda m, x, i: m.quantile(x, np.zeros((1, 1, 1))),
        )
    ):
        want, got = raised(lambda call=call: call(np, *hosts)), raised(lambda call=call: call(gp, *ours))
        assert want is not None, number
        assert got is not None, number
        assert issubclass(got, want), (number, want, got)
    for call_ours, error in (
        (lambda: gp.unique(ours[0], axis=0), gp.ShapeError),
        (lambda: gp.unique(hosts[0]), TypeError),
        (lambda: gp.searchsorted(ours[1], hosts[1]), TypeError),
        (lambda: gp.isin(ours[1] * 1j, ours[1]), gp.DTypeError),
        (lambda: gp.median(ours[1] * 1j), gp.DTypeError),
    ):
        with pytest.raises(error):
            call_ours()


@settings(max_examples=15, derandomize=True)
@given(st.lists(st.integers(-4, 4), max_size=30), st.lists(st.integers(-4, 4), max_size=30))
def test_sets_of_any_lists(a: list[int], b: list[int]) -> None:
    x, y = np.array(a, np.int32), np.array(b, np.int32)
    with gp.device("cpu"):
        ours = gp.from_numpy(x), gp.from_numpy(y)
        for name in ("intersect1d", "union1d", "setdiff1d", "setxor1d", "isin"):
            same(getattr(gp, name)(*ours), getattr(np, name)(x, y), name)


@pytest.mark.parametrize("shape", [(2, 1, 0), (0, 3), (3, 0)])
def test_strides_of_no_elements_do_not_count(device: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32).T
    ours = gp.from_numpy(np.zeros(shape, np.float32)).T
    same(gp.searchsorted(gp.asarray([1.0, 2.0], "float32"), ours), np.searchsorted(np.float32([1, 2]), x))
    same(gp.isin(ours, ours), np.isin(x, x))
    same(gp.sort(ours, axis=0), np.sort(x, axis=0))
