"""Reductions give what NumPy gives: value, type, shape and exception, over types, layouts, axes and options."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.ops.reduce.table import TABLE
from pygpukit.ops.units import ALL_TYPES

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
NAMES = [name for name, row in TABLE.items() if row.public]
SMALL = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
AXES: list[Any] = [None, 0, 1, -1, (0, 2), (0, 1), (), (2, 0, 1)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def values(name: str, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    to = gp.to_numpy_dtype(name)
    if to.kind == "b":
        return rng.integers(0, 2, shape).astype(to)
    if to.kind in "iu":
        return rng.integers(0 if to.kind == "u" else -4, 5, shape).astype(to)
    if to.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(to)
    return rng.standard_normal(shape).astype(to)


def layouts(host: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], Callable[[gp.GPUArray], gp.GPUArray]]]:
    """Views of an array, and how to make the same view on a device."""
    yield host, lambda x: x
    yield host.T, lambda x: x.T
    yield host[:, ::2, 1:], lambda x: x[:, ::2, 1:]
    yield host[::-1, :, ::-2], lambda x: x[::-1, :, ::-2]
    yield host.transpose(1, 0, 2), lambda x: x.transpose(1, 0, 2)


def want(name: str, host: np.ndarray[Any, Any], **options: Any) -> Any:
    """What NumPy gives; of small floats in float32, rounded once."""
    kind = gp.dtype(host.dtype).name
    function = getattr(np, name)
    if kind not in SMALL:
        return np.asarray(function(host, **options))
    wide = np.asarray(function(host.astype(np.float32), **options))
    return wide.astype(host.dtype) if wide.dtype == np.float32 else wide


def assert_same(got: gp.GPUArray, expected: Any, context: str, scale: float = 4) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape, context
    assert got.dtype == gp.dtype(expected.dtype), context
    ours = got.to_numpy()
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(ours, expected, context)
        return
    digits = {"float64": 1e-15, "complex128": 1e-15, "float16": 1e-3, "bfloat16": 8e-3, "float8_e4m3fn": 0.13,
              "float8_e5m2": 0.25}.get(gp.dtype(expected.dtype).name, 2e-7)  # fmt: skip
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = ours.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(a, b, rtol=scale * 40 * digits if digits < 1e-6 else digits, atol=scale * 10 * digits,
                               err_msg=context)  # fmt: skip


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_types_and_layouts_on_the_cpu_device(kind: str) -> None:
    host = values(kind, (3, 6, 5))
    x = gp.from_numpy(host)
    for view, same in layouts(host):
        for name in NAMES:
            for axis in AXES if name not in ("argmax", "argmin") else [None, 0, -1, 1]:
                for keep in (False, True):
                    if axis == () and name == "count_nonzero":
                        continue
                    expected = want(name, view, axis=axis, keepdims=keep)
                    if name == "prod" and kind.startswith("float8"):
                        continue
                    got = getattr(gp, name)(same(x), axis=axis, keepdims=keep)
                    assert_same(got, expected, f"{name} {kind} {view.strides} axis={axis} keepdims={keep}")


@pytest.mark.parametrize("device", DEVICES[1:])
def test_kernels_in_every_layout(device: str) -> None:
    """tests/ops/test_registry.py runs the kernels of the other operators: they differ in what they combine only."""
    host = values("float32", (9, 10, 17))
    with gp.device(device):
        x = gp.from_numpy(host)
        for view, same in layouts(host):
            for name in ("sum", "argmax", "var"):
                for axis in [None, 0, 1, 2, *([(0, 2)] if name != "argmax" else [])]:
                    expected = want(name, view, axis=axis)
                    assert_same(getattr(gp, name)(same(x), axis=axis), expected, f"{name} {view.strides} axis={axis}")


@pytest.mark.parametrize("device", DEVICES[1:])
def test_other_types_in_kernels(device: str) -> None:
    cases = [("argmin", "int8"), ("any", "bool"), ("sum", "complex128"), ("max", "bfloat16"), ("var", "complex64")]
    with gp.device(device):
        for name, kind in cases:
            host = values(kind, (2, 3000))
            host[1, 2500] = 0
            x = gp.from_numpy(host)
            for axis in (None, 0, 1):
                assert_same(getattr(gp, name)(x, axis=axis), want(name, host, axis=axis), f"{name} {kind} {axis}", 40)


@pytest.mark.parametrize("device", DEVICES)
def test_options(device: str) -> None:
    host = values("float32", (4, 7, 3))
    chosen = np.random.default_rng(2).integers(0, 2, (4, 7, 1)).astype(bool)
    chosen[2] = False
    with gp.device(device):
        x, where = gp.from_numpy(host), gp.from_numpy(chosen)
        wide: dict[str, Any] = {"dtype": "float64"}
        for name, options in (
            ("sum", wide), ("mean", wide), ("sum", {"initial": 2}), ("max", {"initial": 9}), ("prod", {"initial": 2.5}),
            ("min", {"initial": -1}), ("var", {"ddof": 1}), ("std", {"correction": 0.5}), ("var", wide),
            ("var", {"ddof": 9}),
        ):  # fmt: skip
            for axis in (1, (0, 2)):
                expected = getattr(np, name)(host, axis=axis, **options)
                assert_same(getattr(gp, name)(x, axis=axis, **options), expected, f"{name} {options} {axis}")
        for name, options in (
            ("sum", {}), ("prod", {}), ("any", {}), ("all", {}), ("mean", {}), ("var", {}), ("std", {"ddof": 1}),
            ("max", {"initial": -3.0}), ("min", {"initial": 3.0}), ("sum", {"initial": 1.0}),
        ):  # fmt: skip
            got = getattr(gp, name)(x, axis=1, where=where, **options)
            assert_same(got, getattr(np, name)(host, axis=1, where=chosen, **options), f"{name} where {options}")
        i = gp.from_numpy(host.astype("int16"))
        assert_same(gp.sum(i, axis=0, dtype="int32"), host.astype("int16").sum(0, dtype="int32"), "int32")
        assert_same(gp.max(i, initial=5), np.max(host.astype("int16"), initial=5), "initial of integers")
        out = gp.zeros((3, 4), "float64").T
        gp.sum(x, axis=1, out=out)
        np.testing.assert_allclose(out.to_numpy(), host.sum(1), rtol=1e-6, atol=1e-6)
        assert gp.max(x, 0, out=gp.zeros((7, 3), "float64")).dtype is gp.float64


@pytest.mark.parametrize("device", DEVICES)
def test_nan_infinities_ties_and_zeros(device: str) -> None:
    nan, inf = np.nan, np.inf
    rows = np.array([[1, nan, 3, nan], [inf, -inf, 1, 2], [5, 5, 1, 1], [-inf] * 4, [0.0, -0.0, 0.0, -0.0], [nan] * 4],
                    np.float32)  # fmt: skip
    wide = np.concatenate([np.full((6, 300), 2, np.float32), rows], axis=1)
    wide[3] = -inf
    with gp.device(device):
        for host in (rows, wide):
            x = gp.from_numpy(host)
            for name in ("max", "min", "argmax", "argmin", "sum", "any", "all", "mean", "count_nonzero"):
                for axis in (1, 0):
                    assert_same(getattr(gp, name)(x, axis), want(name, host, axis=axis), f"{name} {axis}")
        for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"):
            assert_same(getattr(gp, name)(gp.from_numpy(rows), axis=1), getattr(np, name)(rows, axis=1), name)
        for name in ("nanargmax", "nanargmin"):
            assert_same(getattr(gp, name)(gp.from_numpy(rows[:5]), axis=1), getattr(np, name)(rows[:5], axis=1), name)
        # The first of equal elements, wherever the others are: in a vector, another lane, another chunk.
        long = np.zeros(9000, np.float32)
        for first, second in ((0, 1), (3, 200), (77, 5000), (4095, 4096), (8191, 8999)):
            long[:] = 0
            long[[first, second]] = 1
            assert gp.argmax(gp.from_numpy(long)).item() == first
        z = np.array([1 + nan * 1j, 5, 3 + 1j, 5 + 2j])
        if device != "emulated":
            for name in ("argmax", "argmin", "max"):
                assert_same(getattr(gp, name)(gp.from_numpy(z[1:])), want(name, z[1:]), name)
            assert gp.argmax(gp.from_numpy(z)).item() == 0


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
def test_elements_are_cast_to_a_type_of_another_kind(device: str, name: str) -> None:
    """As in NumPy: integers to an unsigned type, floats to integers, of which the fractions are dropped first."""
    pairs = [("int8", "uint16"), ("float32", "int32")]
    if device == "cpu":
        pairs += itertools.product(("int8", "int64", "bool", "float16"), ("uint8", "uint64", "int8", "int64"))
    for kind, to in pairs:
        host = np.arange(24).reshape(4, 6) % 5 + (0.75 if kind.startswith("f") else -2 * kind.startswith("i"))
        host = host.astype(kind)
        x = gp.from_numpy(host)
        for axis in (None, 0, 1):
            expected = getattr(np, name)(host, axis=axis, dtype=to)
            assert_same(getattr(gp, name)(x, axis=axis, dtype=to), expected, f"{name} {kind} {to} {axis}")
            out = gp.empty(expected.shape, to)
            assert getattr(gp, name)(x, axis=axis, dtype=to, out=out) is out
            assert_same(out, expected, f"{name} {kind} {to} {axis} out")
        if not name.startswith("cum") and kind != "bool":
            mask = host > 0
            expected = getattr(np, name)(host, axis=1, dtype=to, where=mask, initial=2)
            got = getattr(gp, name)(x, axis=1, dtype=to, where=gp.from_numpy(mask), initial=2)
            assert_same(got, expected, f"{name} {kind} {to} where")
    with pytest.raises(gp.DTypeError, match="cannot be written"):
        getattr(gp, name)(gp.ones(3, "complex64"), dtype="float32")


def test_edges_and_errors() -> None:
    scalar, empty = np.float32(3), np.zeros((0, 3), np.float32)
    for name in NAMES:
        ours, theirs = getattr(gp, name), getattr(np, name)
        for axis in (None, 0, -1):
            if name in ("mean", "var", "std") and axis is not None:
                continue  # NumPy's other reductions take axis 0 of an array without axes, as ours do.
            assert_same(ours(gp.from_numpy(np.asarray(scalar)), axis=axis), theirs(np.asarray(scalar), axis=axis), name)
        assert_same(ours(gp.from_numpy(empty), axis=1), theirs(empty, axis=1), name)
        square: Any = np.ones((2, 2))
        for array, axis in ((empty, None), (empty, 0), (np.asarray(scalar), 1), (square, 2), (square, (0, -2))):
            if axis == (0, -2) and name.startswith("arg"):
                continue
            try:
                expected = theirs(array, axis=axis)
            except (ValueError, IndexError) as error:
                # AxisError is both, and so are ours; other errors of NumPy are ValueErrors.
                kind = np.exceptions.AxisError if isinstance(error, IndexError) else ValueError
                with pytest.raises(kind, match=r"axis|elements"):
                    ours(gp.from_numpy(array), axis=axis)
            else:
                assert_same(ours(gp.from_numpy(array), axis=axis), expected, f"{name} {axis}")
    x = gp.ones((2, 3))
    for call in (
        lambda: gp.argmax(x, axis=(0, 1)), lambda: gp.sum(x, where=gp.ones((2, 3))), lambda: gp.sum(x, axis=1.5),
        lambda: gp.sum(x, dtype="bool"), lambda: gp.argmax(x, out=gp.zeros((), "bool")), lambda: gp.nansum("a"),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: gp.max(x, where=gp.ones((2, 3), "bool")), lambda: gp.sum(x, where=gp.ones((5, 3), "bool")),
        lambda: gp.var(x, ddof=1, correction=1), lambda: gp.sum(x, out=gp.zeros(2)), lambda: gp.sum(x, axis=(0, 0)),
        lambda: gp.sum(x, where=gp.ones((2, 2, 3), "bool")), lambda: gp.norm(x, ord="most"),
        lambda: gp.norm(gp.ones((2, 2, 2)), ord=1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"where|ddof|shape|twice|order|Improper|takes one"):
            call()


def test_methods_are_the_functions() -> None:
    x = gp.from_numpy(values("float32", (3, 4)))
    for name in [*(n for n in NAMES if n != "count_nonzero"), "cumsum", "cumprod"]:
        assert getattr(x, name)(1).tolist() == getattr(gp, name)(x, 1).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_derived_functions(device: str) -> None:
    host, weight = values("float32", (4, 5)), np.abs(values("float32", (5,), 2))
    with gp.device(device):
        x, w = gp.from_numpy(host), gp.from_numpy(weight)
        assert_same(gp.ptp(x, axis=0), np.ptp(host, axis=0), "ptp")
        assert_same(gp.average(x, 1, w), np.average(host, 1, weight), "average")
        mean, total = gp.average(x, 1, w, returned=True)
        for got, expected in zip((mean, total), np.average(host, 1, weight, returned=True), strict=True):
            assert_same(got, expected, "returned")
        assert_same(gp.average(x, (1, 0), gp.from_numpy(host.T + 9)), np.average(host, (1, 0), host.T + 9), "both axes")
        big = gp.mul(x, 300.0)
        assert_same(gp.logsumexp(big, 1), 300 * host.max(1), "logsumexp", 4000)
        for order in (None, 2, 1, 0, np.inf, -np.inf, 3):
            assert_same(gp.norm(x, order, 1), np.linalg.norm(host, order, 1).astype(np.float32), f"norm {order}", 20)
        for order in (None, "fro", 1, -1, np.inf, -np.inf):
            expected = np.linalg.norm(host, order, keepdims=True).astype(np.float32)
            assert_same(gp.norm(x, order, keepdims=True), expected, f"matrix {order}", 20)
        if device == "cpu":
            z = values("complex64", (3, 4))
            assert_same(gp.norm(gp.from_numpy(z)), np.linalg.norm(z), "complex")
            assert_same(gp.norm(gp.asarray([3, 4])), np.linalg.norm([3, 4]), "integers")
            assert_same(gp.average(gp.asarray([1, 2])), np.average([1, 2]), "integers")


@pytest.mark.nvrtc
@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.data())
def test_layouts_and_axes_at_random(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    base = values("float32", tuple(2 * n for n in shape), 3)
    steps = [slice(None, None, 2), slice(0, 3), slice(None, None, -1), slice(1, None, 2)]
    view: tuple[slice, ...] = tuple(data.draw(st.sampled_from(steps)) for _ in shape)
    order = data.draw(st.permutations(range(len(shape))))
    axes = tuple(data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True)))
    name = data.draw(st.sampled_from(["sum", "argmax", "max"]))
    host = base[view].transpose(order)
    with gp.device("emulated"):
        x = gp.from_numpy(base)[view].transpose(order)
        axis: Any = axes if name != "argmax" else axes[0] if axes else None
        assert_same(getattr(gp, name)(x, axis=axis), want(name, host, axis=axis), f"{name} {host.strides} {axis}")
