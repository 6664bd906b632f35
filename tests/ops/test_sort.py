"""sort, argsort, topk, partition and lexsort against NumPy: types, layouts, special values, sizes around tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.sort import plans, reference
from pygpukit.ops.sort.keys import constants
from pygpukit.ops.units import ALL_TYPES

REAL = [name for name in ALL_TYPES if gp.dtype(name).kind != "c"]
# Keys of a type, for kernels that serve all types of a size.
TILE = {"u32": 7680, "u64": 5376}


def values(name: str, shape: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Elements with ties; of floats also zeros of both signs, infinities and NaN of both signs."""
    rng = np.random.default_rng([seed, len(name)])
    to = gp.to_numpy_dtype(name)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if gp.dtype(name).kind in "iu":
        info = np.iinfo(to)
        wide = rng.integers(info.min, info.max, shape, to, endpoint=True)
        return np.where(rng.random(shape) < 0.5, wide, rng.integers(0, 9, shape).astype(to))
    x = np.where(rng.random(shape) < 0.5, rng.standard_normal(shape), rng.integers(-3, 4, shape))
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], shape)
    return np.where(rng.random(shape) < 0.2, special, x).astype(np.float32).astype(to)


def wide(x: Any) -> np.ndarray[Any, Any]:
    host = x.to_numpy() if isinstance(x, gp.GPUArray) else np.asarray(x)
    return host.astype(np.float64) if host.dtype.kind not in "biuc" else host


def check(x: np.ndarray[Any, Any], axis: int | None = -1, array: gp.GPUArray | None = None) -> None:
    """Sorted values and positions, both ways, of a host array and the same on the device."""
    ours = gp.from_numpy(x) if array is None else array
    for descending in (False, True):
        context = f"{x.dtype} {x.shape} axis {axis} descending {descending}"
        got = gp.sort(ours, axis, descending=descending)
        order = gp.argsort(ours, axis, descending=descending)
        want = reference.argsort(x, axis, descending)
        assert got.dtype is ours.dtype
        assert order.dtype is gp.int64
        assert got.shape == order.shape == want.shape
        np.testing.assert_array_equal(wide(order), want, err_msg=context)
        expected = np.take_along_axis(x.reshape(-1) if axis is None else x, want, 0 if axis is None else axis)
        np.testing.assert_array_equal(wide(got), wide(expected), err_msg=context)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("special", [(), (0.0,), (0.0, -0.0), (np.nan,), (np.nan, -np.nan), (-np.nan, 1, 0)])
def test_zeros_and_nans_stay_in_order_on_the_cpu_device(name: str, special: tuple[float, ...]) -> None:
    """Floats are sorted by a method that is not stable where only values tell them apart."""
    x = np.concatenate([np.linspace(-5, 5, 300)[::-1], special, special]).astype(name)
    with gp.device("cpu"):
        for host in (x, np.stack([x, x[::-1]]), np.zeros((0, 3), name)):
            assert gp.sort(gp.from_numpy(host)).to_numpy().tobytes() == np.sort(host, kind="stable").tobytes()


def test_all_types_and_sizes(device: str) -> None:
    for name in REAL:
        check(values(name, (3, 77)))
    for name in ("float32", "int64"):
        for n in (0, 1, 2, 7, 8, 9, 255, 256, 257):
            check(values(name, n, n))
    check(values("float16", (2, 2049)))
    check(values("float64", (1, 4096)))


def test_rows_of_more_than_a_tile(device: str) -> None:
    check(values("float32", (2, 4097)))
    check(values("int32", TILE["u32"] + 1))
    check(values("uint64", (2, TILE["u64"])))
    check(values("int16", (3, 2 * TILE["u32"] + 5)))
    check(values("float8_e5m2", TILE["u32"] * 2))
    same = np.full(TILE["u32"] * 2 + 3, -1.5, np.float32)
    check(same)
    check(np.arange(TILE["u32"] + 100, dtype=np.uint32))


@pytest.mark.parametrize("name", ["int8", "float32"])
def test_rows_that_take_several_launches_per_pass(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "ROW_COUNT", 2 * TILE["u32"])
    native.clear_plans()
    check(values(name, (2, 3 * TILE["u32"] + 11)))
    native.clear_plans()


def test_layouts(device: str) -> None:
    x = values("float32", (4, 5, 6))
    ours = gp.from_numpy(x)
    for axis in (0, 1, -1, None):
        check(x, axis, ours)
        check(x.T, axis, ours.T)
        check(x[::-1, 1::2, ::-2], axis, ours[::-1, 1::2, ::-2])
    check(np.broadcast_to(x[0, 0], (3, 6)), 0, ours[0, 0]._broadcast_to((3, 6)))
    for shape in ((0,), (3, 0), (0, 3)):
        check(np.zeros(shape, np.float32))
        check(np.zeros(shape, np.float32), None)
    out = gp.zeros((6, 5, 4)).T
    assert gp.sort(ours, 1, out=out) is out
    np.testing.assert_array_equal(out.to_numpy(), np.sort(x, 1))
    assert gp.sort(gp.asarray(5), axis=None).tolist() == gp.asarray([5]).tolist()
    assert gp.argsort(gp.asarray(5)).tolist() == np.argsort(np.array(5)).tolist() == [0]


def test_complex_numbers_are_ordered_by_parts(device: str) -> None:
    parts = [0.0, 1.0, -1.0, np.nan, np.inf]
    x = np.array([complex(a, b) for a in parts for b in parts] * 2, np.complex64)[
        np.random.default_rng(1).permutation(50)
    ]
    ours = gp.from_numpy(x)
    order = gp.argsort(ours).to_numpy()
    np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(gp.sort(ours).to_numpy(), np.sort(x))


def test_in_place_and_partial(device: str) -> None:
    x = values("float32", (3, 50))
    ours = gp.from_numpy(x)
    assert ours.sort(0) is None
    np.testing.assert_array_equal(ours.to_numpy(), np.sort(x, 0))
    ours = gp.from_numpy(x)
    ours[1].sort()
    np.testing.assert_array_equal(ours.to_numpy()[1], np.sort(x[1]))
    np.testing.assert_array_equal(ours.to_numpy()[0], x[0])
    ours = gp.from_numpy(x)
    parted, places = gp.partition(ours, (3, -4)).to_numpy(), ours.argpartition(3).to_numpy()
    assert ours.partition(3) is None
    for result in (parted, np.take_along_axis(x, places, -1), ours.to_numpy()):
        np.testing.assert_array_equal(result[:, 3], np.sort(x)[:, 3])
        np.testing.assert_array_equal(np.sort(result), np.sort(x))
    np.testing.assert_array_equal(ours.argsort(0).to_numpy(), np.argsort(ours.to_numpy(), 0, kind="stable"))


def test_lexsort(device: str) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(0, 3, (4, 30)).astype(kind) for kind in (np.int8, np.float32, np.uint16))
    keys = [gp.from_numpy(k) for k in (a, b, c)]
    for axis in (-1, 0):
        np.testing.assert_array_equal(gp.lexsort(keys, axis).to_numpy(), np.lexsort((a, b, c), axis))
    np.testing.assert_array_equal(gp.lexsort(gp.from_numpy(a)).to_numpy(), np.lexsort(a))
    assert gp.lexsort((gp.asarray(1.0),)).to_numpy() == np.lexsort((np.array(1.0),))


def test_topk(device: str) -> None:
    for name, shape, k in (
        ("float32", (2, 20_000), 50),
        ("float32", (3, 40), 40),
        ("int64", 5000, 3),
        ("bfloat16", (2, 300), 7),
        ("uint8", 4097, 1024),
        ("float32", 5000, 1025),
        ("float32", (2, 3), 0),
    ):
        x = values(name, shape)
        for largest in (True, False):
            got, places = gp.topk(gp.from_numpy(x), k, largest=largest)
            want, index = reference.topk(x, k, -1, largest)
            np.testing.assert_array_equal(places.to_numpy(), index, err_msg=f"{name} {shape} {k}")
            assert got.to_numpy().tobytes() == want.tobytes()
    x = values("float32", (5, 6, 7))
    ours = gp.from_numpy(x)
    got, places = gp.topk(ours.T, 3, 1)
    np.testing.assert_array_equal(got.to_numpy(), reference.topk(x.T, 3, 1)[0])
    into = (gp.empty((5, 6, 2)), gp.empty((5, 6, 2), "int64"))
    assert gp.topk(ours, 2, out=into)[1] is into[1]
    np.testing.assert_array_equal(into[1].to_numpy(), reference.topk(x, 2)[1])


def test_a_graph_gives_the_same_bits(device: str) -> None:
    x = gp.from_numpy(values("float32", 9000))
    want, order = gp.sort(x).to_numpy(), gp.argsort(x).to_numpy()
    graph, stream = gp.CudaGraph(), gp.Stream()
    with stream, graph.capture():
        sorted_, places = gp.sort(x), gp.argsort(x)
    for _ in range(2):
        graph.replay()
    graph.synchronize()
    assert sorted_.to_numpy().tobytes() == want.tobytes()
    np.testing.assert_array_equal(places.to_numpy(), order)


def raised(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def test_errors_are_numpys() -> None:
    host = np.zeros((2, 3))
    ours = gp.from_numpy(host)
    for call in (
        lambda m, x: m.sort(x, axis=2),
        lambda m, x: m.argsort(x, axis=-3),
        lambda m, x: m.sort(x, kind="bogus"),
        lambda m, x: m.sort(x, kind="stable", stable=True),
        lambda m, x: m.partition(x, 3),
        lambda m, x: m.partition(x, 1.5),
        lambda m, x: m.argpartition(x, -4),
        lambda m, x: m.lexsort((x, x), axis=5),
        lambda m, x: m.lexsort((x, x[0])),
        lambda m, x: m.lexsort(()),
        lambda m, x: x.sort(axis=7),
        lambda m, x: x.partition(9),
        lambda m, x: m.sort(x[0, 0]),
        lambda m, x: m.sort(x, axis="a"),
    ):
        want, got = raised(lambda call=call: call(np, host)), raised(lambda call=call: call(gp, ours))
        assert want is not None
        assert got is not None
        assert issubclass(got, want), (want, got)
    for call, error in (
        (lambda: gp.topk(ours, 4), gp.ShapeError),
        (lambda: gp.topk(ours, -1), gp.ShapeError),
        (lambda: gp.topk(ours, 1.5), TypeError),
        (lambda: gp.topk(ours, 1, axis=2), IndexError),
        (lambda: gp.topk(ours.astype("complex64"), 1), gp.DTypeError),
        (lambda: gp.sort(ours, out=gp.zeros((2, 3), "int32")), gp.DTypeError),
        (lambda: gp.argsort(ours, out=gp.zeros((2, 3))), gp.DTypeError),
        (lambda: gp.lexsort((np.zeros(3),)), TypeError),
        (lambda: gp.sort(host), TypeError),
    ):
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("name", REAL)
def test_keys_are_ordered_as_their_elements(name: str) -> None:
    size = gp.dtype(name).itemsize
    if size == 1:
        x = np.arange(2 if name == "bool" else 256, dtype=np.uint8).view(gp.to_numpy_dtype(name))
    else:
        x = values(name, 500)
    bits = x.view(f"u{size}").astype(object)
    order = reference.argsort(x)
    for descending in (False, True):
        top, mask, negative, positive, offset, last, minus_zero, step, flip = constants(
            gp.dtype(name), descending=descending, ties=True
        )
        keys = [min(((b ^ (negative if b & top else positive)) - offset) & mask, last) for b in bits]
        keys = [(k + step * (k == minus_zero)) ^ flip for k in keys]
        assert sorted(range(len(keys)), key=keys.__getitem__) == reference.argsort(x, -1, descending).tolist()
        turned = constants(gp.dtype(name), descending=descending)
        plain = [(((b ^ (turned[2] if b & top else turned[3])) - turned[4]) & mask) ^ turned[8] for b in bits]
        back = [((k ^ turned[8]) + turned[4]) & mask for k in plain]
        assert [b ^ (turned[3] if b & top else turned[2]) for b in back] == bits.tolist()
    assert order.dtype == np.int64


@settings(max_examples=15, derandomize=True)
@given(st.lists(st.floats(width=32), max_size=40), st.booleans())
def test_any_floats(numbers: list[float], descending: bool) -> None:
    x = np.array(numbers, np.float32)
    with gp.device("cpu"):
        got = gp.argsort(gp.from_numpy(x), descending=descending).to_numpy()
    np.testing.assert_array_equal(got, reference.argsort(x, -1, descending))
    assert (np.diff(got[x[got] == 0]) > 0).all()
