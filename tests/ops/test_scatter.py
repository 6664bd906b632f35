"""Scatters where places repeat: the last value stays, and ``at`` applies all; put, put_along_axis, fill_diagonal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.index import at, scatter
from pygpukit.ops.units import ALL_TYPES

MIB = 1 << 20
NUMPY = {"sub": "subtract", "mul": "multiply", "div": "divide"}


def test_the_last_value_of_a_place_stays(device: str) -> None:
    rng = np.random.default_rng(0)
    for n, m in ((5, 3000), (100_000, 2500), (1, 1500), (3000, 40)):
        x = np.zeros(n, np.int32)
        index = rng.integers(-n, n, m)
        index[m // 2 :] = index[: m - m // 2]
        value = np.arange(1, m + 1, dtype=np.int32)
        ours = gp.from_numpy(x)
        ours[gp.from_numpy(index)] = gp.from_numpy(value)
        x[index] = value
        np.testing.assert_array_equal(ours.to_numpy(), x, err_msg=f"{n} {m}")


def test_the_last_of_pairs_and_rows_stays(device: str) -> None:
    rng = np.random.default_rng(1)
    i, j = rng.integers(-4, 4, (30, 40)), rng.integers(-5, 5, 40)
    for key, shape in (
        ((i, j), (4, 5, 3)),
        ((i, slice(None), j[:1]), (4, 3, 5)),
        ((slice(None), i), (3, 4, 2)),
        ((i, j, i), (4, 5, 4)),
    ):
        x = np.zeros(shape)
        ours = gp.zeros(shape, "float64")
        value = rng.standard_normal(x[key].shape)
        for part in (value, value[:1]):
            x[key] = part
            ours[tuple(gp.from_numpy(k) if isinstance(k, np.ndarray) else k for k in key)] = gp.from_numpy(part)
            np.testing.assert_array_equal(ours.to_numpy(), x)
    turned = gp.zeros((3, 9, 4)).T
    host = np.zeros((4, 9, 3), np.float32)
    host[i, j[0]] = np.arange(3)
    turned[gp.from_numpy(i), int(j[0])] = gp.asarray([0.0, 1.0, 2.0])
    np.testing.assert_array_equal(turned.to_numpy(), host)


@pytest.mark.nvrtc
def test_claims_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "_BIG", 2)
    native.clear_plans()
    with gp.device("emulated"):
        for n in (10, 100_000):
            index = np.random.default_rng(2).integers(0, n, 999) % 50
            x = np.zeros(n)
            x[index] = np.arange(999)
            ours = gp.zeros(n, "float64")
            ours[gp.from_numpy(index)] = gp.arange(999).astype("float64")
            np.testing.assert_array_equal(ours.to_numpy(), x)
    native.clear_plans()


def test_put(device: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    for ind, v in (([0, -1], [5.0, 6.0]), ([[3, 3], [1, 3]], [1.0, 2.0, 3.0]), (2, 9.0), ([1, 2, 3], 4), ([], [1.0])):
        for mode in ("raise", "wrap", "clip"):
            want, ours, turned = x.copy(), gp.from_numpy(x), gp.from_numpy(x.T.copy()).T
            np.put(want, ind, v, mode)
            assert gp.put(ours, ind, v, mode) is None
            turned.put(gp.asarray(np.asarray(ind, np.int64)), v, mode)
            np.testing.assert_array_equal(ours.to_numpy(), want)
            np.testing.assert_array_equal(turned.to_numpy(), want)
    for mode in ("wrap", "clip"):
        want, ours = x.copy(), gp.from_numpy(x)
        np.put(want, [40, -50, 3], [1, 2, 3], mode)
        gp.put(ours, gp.asarray([40, -50, 3]), [1, 2, 3], mode)
        np.testing.assert_array_equal(ours.to_numpy(), want)
    for error, call in (
        (IndexError, lambda: gp.put(ours, [12], 0)),
        (ValueError, lambda: gp.put(ours, [0], 0, "bogus")),
        (TypeError, lambda: gp.put(ours, [0.5], 0)),
        (TypeError, lambda: gp.put(x, [0], 0)),
    ):
        with pytest.raises(error):
            call()


def test_put_along_axis(device: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 5, 4))
    for axis, shape in ((0, (7, 5, 4)), (1, (3, 2, 4)), (-1, (3, 5, 9)), (1, (1, 6, 1)), (2, (3, 1, 2)), (None, (9,))):
        n = x.size if axis is None else x.shape[axis]
        index = rng.integers(-n, n, shape)
        for value in (2.5, rng.standard_normal(shape), rng.standard_normal(shape)[..., :1]):
            want, ours = x.copy(), gp.from_numpy(x)
            np.put_along_axis(want, index, value, axis)
            put = gp.from_numpy(value) if isinstance(value, np.ndarray) else value
            gp.put_along_axis(ours, gp.from_numpy(index), put, axis)
            np.testing.assert_array_equal(ours.to_numpy(), want, err_msg=str((axis, shape)))


def test_fill_diagonal(device: str) -> None:
    for shape in ((3, 3), (2, 5), (7, 3), (3, 3, 3), (0, 3)):
        for value in (5.0, [1.0, 2.0], np.arange(40.0)):
            for wrap in (False, True):
                want = np.zeros(shape)
                np.fill_diagonal(want, value, wrap)
                ours, turned = gp.zeros(shape, "float64"), gp.zeros(shape[::-1], "float64").T
                gp.fill_diagonal(ours, value, wrap)
                gp.fill_diagonal(turned, value, wrap)
                np.testing.assert_array_equal(ours.to_numpy(), want)
                np.testing.assert_array_equal(turned.to_numpy(), want)
    for bad in (gp.zeros(3), gp.zeros((2, 2, 3))):
        with pytest.raises(gp.ShapeError):
            gp.fill_diagonal(bad, 1)


def apply_both(name: str, x: np.ndarray[Any, Any], key: Any, value: Any, *, bits: bool = True) -> None:
    want, ours = x.copy(), gp.from_numpy(x)
    getattr(np, NUMPY.get(name, name)).at(want, key, value)
    lifted = tuple(
        gp.from_numpy(k) if isinstance(k, np.ndarray) else k for k in (key if isinstance(key, tuple) else (key,))
    )
    operand = gp.from_numpy(value) if isinstance(value, np.ndarray) else value
    assert getattr(gp, name).at(ours, lifted if isinstance(key, tuple) else lifted[0], operand) is None
    got = ours.to_numpy()
    if bits:
        np.testing.assert_array_equal(got, want, err_msg=name)
    else:
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=1e-5, atol=1e-4, err_msg=name)


def test_at_has_numpys_bits_up_to_64_of_a_place(device: str) -> None:
    rng = np.random.default_rng(4)
    for n, m in ((50, 700), (1000, 4097), (3, 90), (70_000, 500)):
        x = rng.standard_normal(n).astype(np.float32)
        for name in ("add", "sub", "maximum"):
            apply_both(name, x, rng.integers(-n, n, m), rng.standard_normal(m).astype(np.float32))
    x = rng.integers(-9, 9, 40)
    for name in ("add", "mul", "minimum", "bitwise_xor", "bitwise_and"):
        apply_both(name, x, rng.integers(0, 40, 5000), rng.integers(-9, 9, 5000))
    x = rng.standard_normal((6, 4, 5))
    i = rng.integers(-4, 4, (3, 7))
    for key in ((slice(None), i), (i, i), (i, slice(1, 3), i), (..., i), (slice(None), i, 2), i, 1, x > 0, True):
        apply_both("add", x, key, 1.5)
        apply_both("add", x, key, rng.standard_normal(x[key].shape))
    apply_both("add", x.T, i, 2.0)


def test_at_of_long_runs(device: str) -> None:
    rng = np.random.default_rng(5)
    for m, places in ((64 * 70 + 3, 1), (9001, 3), (64 * 64 * 2 + 130, 2), (300, 4)):
        index = rng.integers(0, places, m)
        value = rng.standard_normal(m).astype(np.float32)
        apply_both("add", np.zeros(5, np.float32), index, value, bits=False)
        apply_both("sub", np.zeros(5, np.float32), index, value, bits=False)
        apply_both("add", np.zeros(5, np.int32), index, rng.integers(-99, 99, m).astype(np.int32))
        apply_both("maximum", np.zeros(5, np.float32), index, value)
    index = rng.integers(0, 3, 700)
    apply_both("add", np.zeros((4, 6), np.float32), index, rng.standard_normal((700, 6)).astype(np.float32), bits=False)
    apply_both("add", np.zeros((4, 6), np.float32), index, np.float32(0.25))


def test_at_gives_the_same_bits_in_every_run(device: str) -> None:
    rng = np.random.default_rng(6)
    index, value = gp.from_numpy(rng.integers(0, 7, 6000)), gp.from_numpy(rng.standard_normal(6000).astype(np.float32))
    results = set()
    for _ in range(2):
        x = gp.zeros(9)
        gp.add.at(x, index, value)
        results.add(x.to_numpy().tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("kind", ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc)])
def test_at_of_types(kind: str) -> None:
    rng = np.random.default_rng(7)
    index = rng.integers(0, 6, 40)
    with gp.device(kind):
        for name in ALL_TYPES if kind == "cpu" else ("bool", "int8", "float16", "complex64", "uint64"):
            to = gp.to_numpy_dtype(name)
            x, value = rng.integers(0, 2, 6).astype(to), rng.integers(0, 2, 40).astype(to)
            for operation in ("add", "maximum"):
                apply_both(operation, x, index, value, bits=False)


def test_errors_of_at() -> None:
    x = gp.zeros(3, "int32")
    for error, call in (
        (TypeError, lambda: gp.add.at(x, [0], 1.5)),
        (IndexError, lambda: gp.add.at(x, [3], 1)),
        (IndexError, lambda: gp.add.at(x, [0.5], 1)),
        (ValueError, lambda: gp.add.at(x, [0, 1], gp.asarray([1, 2, 3]))),
        (TypeError, lambda: gp.add.at(np.zeros(3), [0], 1)),
        (TypeError, lambda: gp.div.at(x, [0], 2)),
        (AttributeError, lambda: gp.sin.at(x, [0])),
    ):
        with pytest.raises(error):
            call()
    x.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        gp.add.at(x, [0], 1)
    assert x.tolist() == [0, 0, 0]


def test_scatter_add(device: str) -> None:
    x = gp.zeros((2, 3, 2))
    gp.scatter_add(x, gp.asarray([2, 0, 2]), gp.ones((2, 3, 2)), axis=1)
    assert x.sum(2).tolist() == [[2.0, 0.0, 4.0]] * 2
    with pytest.raises(IndexError):
        gp.scatter_add(x, [0], 1, axis=3)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.sampled_from(sorted(at.MERGES)))
def test_any_updates(index: list[int], name: str) -> None:
    if name == "div" or name.startswith("logical"):
        return
    value = np.arange(len(index), dtype=np.int64) % 5
    with gp.device("cpu"):
        apply_both(name, np.arange(5), np.array(index, np.int64), value)


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=pytest.mark.cuda),
                                  pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"])  # fmt: skip
def test_what_is_written_survives_an_eviction(kind: str) -> None:
    with gp.device(kind):
        pool = gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="small")
        host = np.arange(MIB // 2, dtype=np.float32)
        mask = host % 3 == 0
        for write in (
            lambda x: x.__setitem__([5, 5, 7], gp.asarray([1.0, 2.0, 3.0])),
            lambda x: x.__setitem__(gp.from_numpy(mask), 4),
            lambda x: x.__setitem__(gp.from_numpy(mask), gp.from_numpy(host[: mask.sum()])),
            lambda x: gp.add.at(x, [5, 5], 1),
            lambda x: gp.putmask(x, gp.from_numpy(mask), [1.0, 2.0]),
        ):
            with pool:
                x = gp.from_numpy(host)
            assert x.evict()
            x.prefetch()
            write(x)
            changed = gp.from_numpy(host)
            write(changed)
            assert x.evict()
            np.testing.assert_array_equal(x.to_numpy(), changed.to_numpy())
            assert (x.to_numpy() != host).any()
