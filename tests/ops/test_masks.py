"""nonzero and its kin, take, compress, place, choose, select, and index arrays made from shapes, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.units import ALL_TYPES


def same(got: Any, want: Any, context: Any = "") -> None:
    if isinstance(want, tuple):
        assert isinstance(got, tuple), context
        assert len(got) == len(want), context
        for a, b in zip(got, want, strict=True):
            same(a, b, context)
        return
    host = got.to_numpy()
    assert host.shape == np.shape(want), context
    assert host.dtype == np.asarray(want).dtype, context
    np.testing.assert_array_equal(host, want, err_msg=str(context))


def raised(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def test_nonzero(device: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((8192,), (8193,), (3, 41, 7), (20_001,), (0,), (0, 4), (4, 0), (1,), (2, 1, 2, 1, 2)):
        for density in (0.0, 0.02, 0.9, 1.0):
            mask = rng.random(shape) < density
            ours = gp.from_numpy(mask)
            same(gp.nonzero(ours), np.nonzero(mask), (shape, density))
            if density == 0.02:
                same(ours.nonzero(), np.nonzero(mask))
                same(gp.where(ours), np.where(mask))
                same(gp.flatnonzero(ours), np.flatnonzero(mask))
                same(gp.argwhere(ours), np.argwhere(mask))
                same(gp.nonzero(ours.T), np.nonzero(mask.T))
    same(gp.nonzero(gp.from_numpy(np.arange(99) % 5 == 0)[1:]), np.nonzero((np.arange(99) % 5 == 0)[1:]))
    same(gp.argwhere(gp.asarray(3)), np.argwhere(3))
    same(gp.argwhere(gp.asarray(0)), np.argwhere(0))
    for bad in (lambda: gp.nonzero(gp.asarray(3)), lambda: gp.where(gp.asarray(True))):
        with pytest.raises(ValueError, match="dimensions"):
            bad()
    with pytest.raises(TypeError):
        gp.nonzero(np.ones(3))


@pytest.mark.parametrize("kind", ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc)])
def test_what_is_zero(kind: str) -> None:
    with gp.device(kind):
        for name in (
            ALL_TYPES if kind == "cpu" else ("bool", "float8_e5m2", "bfloat16", "float32", "int64", "complex128")
        ):
            to = gp.to_numpy_dtype(name)
            values = [0.0, 1.0, 2.0] if gp.dtype(name).kind in "biu" else [0.0, -0.0, 1.0, -2.0, np.nan, np.inf]
            x = np.array(values * 30).astype(np.float32).astype(to)
            want = np.flatnonzero(np.asarray(values * 30) != 0)
            np.testing.assert_array_equal(gp.flatnonzero(gp.from_numpy(x)).to_numpy(), want, err_msg=name)
            if name.startswith("complex"):
                turned = np.zeros_like(x)
                turned.imag = x.real
                np.testing.assert_array_equal(gp.flatnonzero(gp.from_numpy(turned)).to_numpy(), want)
        odd = gp.from_numpy(np.arange(70, dtype=np.uint8)).view("bool")
        assert gp.flatnonzero(odd).tolist() == list(range(1, 70))


def test_take(device: str) -> None:
    x = np.arange(60).reshape(3, 4, 5).astype(np.float32)
    ours = gp.from_numpy(x)
    for axis in (None, 0, 1, -1):
        for index in (np.array([1, 0, -1]), np.array([[2], [0]]), 1, [], np.array([], np.int32), [[0, 1]], True):
            want = np.take(x, index, axis)
            same(gp.take(ours, index, axis), want, (axis, index))
            same(ours.take(index, axis), want)
            if isinstance(index, np.ndarray):
                same(gp.take(ours, gp.from_numpy(index), axis), want)
                same(gp.take(ours.T, gp.from_numpy(index), axis), np.take(x.T, index, axis))
        wild = np.array([40, -7, 99, -100])
        for mode in ("wrap", "clip"):
            same(gp.take(ours, gp.from_numpy(wild), axis, mode=mode), np.take(x, wild, axis, mode=mode))
            same(gp.take(ours, wild, axis, mode=mode), np.take(x, wild, axis, mode=mode))
    out = gp.zeros((3, 2, 5))
    assert gp.take(ours, [3, 1], 1, out) is out
    same(out, np.take(x, [3, 1], 1))
    with pytest.raises(gp.DTypeError):
        gp.take(ours, [3, 1], 1, gp.zeros((3, 2, 5), "float64"))


def test_along_an_axis(device: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    ours = gp.from_numpy(x)
    for axis in (0, 1, -1):
        order = np.argsort(x, axis)
        same(gp.take_along_axis(ours, gp.from_numpy(order), axis), np.take_along_axis(x, order, axis))
        same(gp.take_along_axis(ours.T, gp.from_numpy(order).T, -axis - 1 if axis >= 0 else 0),
             np.take_along_axis(x.T, order.T, -axis - 1 if axis >= 0 else 0))  # fmt: skip
    index = rng.integers(-5, 5, (1, 9, 6))
    same(gp.take_along_axis(ours, index, 1), np.take_along_axis(x, index, 1))
    same(gp.take_along_axis(ours, gp.asarray([3, -1]), None), np.take_along_axis(x, np.array([3, -1]), None))
    for call in (
        lambda m, a: m.take_along_axis(a, m.asarray([1]), 0),
        lambda m, a: m.take_along_axis(a, m.asarray([[[0.5]]]), 0),
        lambda m, a: m.take_along_axis(a, m.asarray([[[4]]]), 0),
        lambda m, a: m.take_along_axis(a, m.asarray([[[0], [0]]]), 0),
        lambda m, a: m.take_along_axis(a, m.asarray([[[0]]]), 3),
    ):
        want = raised(lambda: call(np, x))  # noqa: B023
        if device == "cpu":
            got = raised(lambda: call(gp, ours))  # noqa: B023
            assert want is not None
            assert got is not None
            assert issubclass(got, want), (got, want)


def test_compress_and_extract(device: str) -> None:
    x = np.arange(24).reshape(4, 6).astype(np.int16)
    ours = gp.from_numpy(x)
    for axis, condition in (
        (0, [True, False, True]),
        (1, [0, 1, 0, 2, 0, 1]),
        (None, x.ravel() > 5),
        (0, []),
        (1, [1] * 6),
    ):
        want = np.compress(condition, x, axis)
        same(gp.compress(condition, ours, axis), want)
        same(ours.compress(gp.from_numpy(np.asarray(condition, bool)), axis), want)
    same(gp.compress([False] * 9, ours, 0), np.compress([False] * 9, x, 0))
    same(gp.extract(ours % 5, ours), np.extract(x % 5, x))
    same(gp.extract(x > 7, ours.T), np.extract(x > 7, x.T))
    for call in (
        lambda m, a: m.compress([True] * 5, a, 0),
        lambda m, a: m.compress([[True]], a, 0),
        lambda m, a: m.compress([True], a, 2),
    ):
        want, got = raised(lambda: call(np, x)), raised(lambda: call(gp, ours))  # noqa: B023
        assert want is not None
        assert got is not None
        assert issubclass(got, want), (got, want)


def test_place_and_putmask(device: str) -> None:
    x = np.arange(20_004.0).reshape(4, 5001)
    mask = x % 3 == 1
    for values in ([1.0, 2.0, 3.0], [7.0], 5.0, np.arange(20_004.0) * 2, -x):
        for name in ("place", "putmask"):
            if name == "place" and np.ndim(values) != 1:
                continue
            want, ours, turned = x.copy(), gp.from_numpy(x), gp.from_numpy(x.T.copy()).T
            getattr(np, name)(want, mask, values)
            getattr(gp, name)(ours, gp.from_numpy(mask), values)
            getattr(gp, name)(turned, mask, values)
            same(ours, want, name)
            same(turned, want, name)
    ours = gp.zeros(3)
    gp.place(ours, [False] * 3, [])
    gp.putmask(ours, [True] * 3, [])
    assert ours.tolist() == [0, 0, 0]
    for call in (
        lambda m, a: m.place(a, [True] * 3, []),
        lambda m, a: m.place(a, [True] * 4, [1]),
        lambda m, a: m.putmask(a, [True] * 4, [1]),
    ):
        want, got = raised(lambda: call(np, np.zeros(3))), raised(lambda: call(gp, ours))  # noqa: B023
        assert want is not None
        assert got is not None
        assert issubclass(got, want), (got, want)


def test_choose_and_select(device: str) -> None:
    pick = np.array([[1, 0, 2], [2, 2, 0]])
    rows = [np.arange(3), np.arange(3) + 10.5, np.array([[7], [8]])]
    ours = [gp.from_numpy(r) for r in rows]
    same(gp.choose(gp.from_numpy(pick), ours), np.choose(pick, rows))
    same(gp.from_numpy(pick).choose([ours[0], 5, 6]), pick.choose([rows[0], 5, 6]))
    table = np.arange(9).reshape(3, 3)
    same(gp.choose(gp.from_numpy(pick), gp.from_numpy(table)), np.choose(pick, table))
    for mode in ("wrap", "clip"):
        wild = pick * 5 - 6
        same(gp.choose(gp.from_numpy(wild), ours, mode=mode), np.choose(wild, rows, mode=mode))
    out = gp.zeros((2, 3), "float64")
    assert gp.choose(gp.from_numpy(pick), ours, out) is out
    same(out, np.choose(pick, rows))
    x = np.arange(10).astype(np.float32)
    a = gp.from_numpy(x)
    same(gp.select([a < 3, a > 6], [a, a * 2], -1), np.select([x < 3, x > 6], [x, x * 2], -1))
    same(gp.select([a < 3, a < 5], [a[:1], 7.5]), np.select([x < 3, x < 5], [x[:1], 7.5]))
    for call in (
        lambda m, v: m.select([v < 3], [v, v]),
        lambda m, v: m.select([], []),
        lambda m, v: m.select([v], [v]),
        lambda m, v: m.choose(m.asarray([0]), [v], mode="bogus"),
        lambda m, v: m.choose(m.asarray([0.5]), [v]),
    ):
        want, got = raised(lambda: call(np, x)), raised(lambda: call(gp, a))  # noqa: B023
        assert want is not None
        assert got is not None
        assert issubclass(got, want), (got, want)


def test_positions(device: str) -> None:
    rng = np.random.default_rng(2)
    dims = (3, 5, 4)
    parts = [rng.integers(0, n, (2, 7)) for n in dims]
    lifted = [gp.from_numpy(p) for p in parts]
    for order in ("C", "F"):
        want = np.ravel_multi_index(parts, dims, order=order)
        same(gp.ravel_multi_index(lifted, dims, order=order), want)
        same(gp.ravel_multi_index(tuple(parts), dims, order=order), want)
        same(gp.unravel_index(gp.from_numpy(want), dims, order), np.unravel_index(want, dims, order))
        same(gp.unravel_index(want, dims, order), np.unravel_index(want, dims, order))
    wild = [p * 5 - 7 for p in parts]
    for mode in ("wrap", "clip", ("wrap", "clip", "clip")):
        same(gp.ravel_multi_index([gp.from_numpy(p) for p in wild], dims, mode), np.ravel_multi_index(wild, dims, mode))
    x = np.arange(60).reshape(dims)
    key = ([0, 2], np.array([True, False, True, False, True]), [3])
    same(gp.from_numpy(x)[gp.ix_(*key)], x[np.ix_(*key)])
    same(gp.ix_([], [1]), np.ix_([], [1]))
    for n, m in ((4, None), (3, 5), (5, 2), (0, 3)):
        for k in (-7, -1, 0, 1, 9):
            same(gp.tril_indices(n, k, m), np.tril_indices(n, k, m), (n, k, m))
            same(gp.triu_indices(n, k, m), np.triu_indices(n, k, m), (n, k, m))
    same(gp.tril_indices_from(gp.zeros((3, 4)), 1), np.tril_indices_from(np.zeros((3, 4)), 1))
    same(gp.triu_indices_from(gp.zeros((3, 4)), 1), np.triu_indices_from(np.zeros((3, 4)), 1))
    same(gp.diag_indices(3), np.diag_indices(3))
    same(gp.diag_indices_from(gp.zeros((3, 3, 3))), np.diag_indices_from(np.zeros((3, 3, 3))))
    same(gp.indices((2, 3)), np.indices((2, 3)))
    same(gp.indices((2, 3), "float32", sparse=True), np.indices((2, 3), np.float32, sparse=True))
    same(gp.mask_indices(3, lambda a, k: a), np.mask_indices(3, lambda a, k: a))


def test_errors_of_positions() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda m: m.ravel_multi_index(([3],), (3,)),
        lambda m: m.ravel_multi_index(([0],), (3,), order="K"),
        lambda m: m.ravel_multi_index(([0], [1]), (3,)),
        lambda m: m.unravel_index([60], (3, 4)),
        lambda m: m.unravel_index([0], (3,), "K"),
        lambda m: m.ix_([[0]]),
        lambda m: m.tril_indices_from(m.zeros(3)),
        lambda m: m.diag_indices_from(m.zeros(3)),
        lambda m: m.diag_indices_from(m.zeros((3, 2))),
        lambda m: m.take(m.zeros(3), [3]),
        lambda m: m.take(m.zeros(3), m.asarray([0.5])),
        lambda m: m.take(m.zeros(3), [0], 1),
        lambda m: m.take(m.zeros(0), [0]),
        lambda m: m.take(m.zeros(3), [0], mode="bogus"),
    ]
    for i, call in enumerate(calls):
        want, got = raised(lambda: call(np)), raised(lambda: call(gp))  # noqa: B023
        assert want is not None, i
        assert got is not None, i
        assert issubclass(got, want), (i, got, want)


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_elements_of_a_mask_in_any_order_of_memory(kind: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 100, (6, 9, 4)).astype(gp.to_numpy_dtype(kind))
    mask = rng.random((6, 9, 4)) < 0.4
    views: list[Callable[[Any], Any]] = [
        lambda a: a, lambda a: a.T, lambda a: a[::-1, :, 1:], lambda a: a[:, ::2], lambda a: a[:, 3], lambda a: a[1:1],
    ]  # fmt: skip
    with gp.device("cpu"):
        ours, chosen = gp.from_numpy(x), gp.from_numpy(mask)
        for i, view in enumerate(views):
            for host, own in ((view(mask), view(chosen)), (view(mask).copy(), view(chosen).copy())):
                same(view(ours)[own], view(x)[host], i)
                same(view(ours).copy()[own], view(x)[host], i)
                same(gp.nonzero(own), np.nonzero(host), i)
        # Values that are other than 0 and 1 choose too, as bytes of a mask that is a view of integers.
        same(gp.count_nonzero(ours), np.asarray(np.count_nonzero(x)))
        same(ours[(ours != 0)], x[x != 0])


def test_bytes_of_a_mask_other_than_one_choose() -> None:
    with gp.device("cpu"):
        bytes_ = gp.asarray([0, 1, 2, 255, 0, 128, 0, 0, 7, 0], dtype="uint8")
        mask = bytes_.view("bool")
        same(gp.arange(10)[mask], np.array([1, 2, 3, 5, 8]))
        same(gp.flatnonzero(mask), np.array([1, 2, 3, 5, 8]))


def test_elements_of_a_mask_that_earlier_work_makes() -> None:
    host = np.random.default_rng(4).random(1000, np.float32)
    for seed in range(5):
        # Work is delayed until something asks for it.
        with gp.device(native.open_cpu(1 << 28, seed, True)):
            x, other = gp.from_numpy(host), gp.Stream()
            gp.synchronize()
            with other:
                y = x * 2
                mask = y > 1
                found, places = y[mask], gp.nonzero(mask)[0]
            other.synchronize()
            same(found, (host * 2)[host * 2 > 1])
            same(places, np.flatnonzero(host * 2 > 1))


def test_the_number_of_a_masks_elements_is_not_read_in_a_capture() -> None:
    with gp.device("cpu"):
        x = gp.arange(10)
        mask = x > 3
        for call in (lambda: x[mask], lambda: gp.nonzero(mask), lambda: gp.flatnonzero(mask)):
            graph = gp.CudaGraph()
            with pytest.raises(gp.GraphError, match="while a graph is being captured"), graph.capture():
                call()
        # A mask from the host is counted there.
        graph = gp.CudaGraph()
        chosen = np.arange(10) % 3 == 0
        with graph.capture():
            result = x[chosen]
        x += 5
        graph.replay()
        same(result, np.array([5, 8, 11, 14]))
