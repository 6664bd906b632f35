"""Indexing by integer arrays, masks and every mixture of keys against NumPy: values, shapes, errors, host reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.units import ALL_TYPES


def numbers(shape: Any, name: str = "float32") -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    return (np.arange(count) % 251).astype(np.float32).reshape(shape).astype(gp.to_numpy_dtype(name))


def up(item: Any) -> Any:
    """A key's arrays on the device."""
    if isinstance(item, tuple):
        return tuple(up(part) for part in item)
    return gp.from_numpy(item) if isinstance(item, np.ndarray) else item


def same(got: gp.GPUArray, want: Any, context: Any = "") -> None:
    host = got.to_numpy()
    want = np.asarray(want)
    assert host.dtype == want.dtype, context
    assert host.shape == want.shape, context
    assert host.tobytes() == want.tobytes(), context


def check(x: np.ndarray[Any, Any], key: Any, ours: gp.GPUArray | None = None) -> None:
    """Reading and writing by a key of the host and by one of the device, by numbers and arrays."""
    array = gp.from_numpy(x) if ours is None else ours
    want = x[key]
    value = (np.arange(want.size) % 97 + 3).reshape(want.shape).astype(x.dtype)
    for form in (key, up(key)):
        same(array[form], want, form)
        for source in (value, value[..., :1] if value.ndim else value, x.dtype.type(5), 7):
            expected = x.copy()
            expected[key] = source
            changed = array.copy()
            changed[form] = gp.from_numpy(source) if isinstance(source, np.ndarray) else source
            same(changed, expected, (form, source))


I = np.array([2, 0, -1])  # noqa: E741
PAIR = np.array([[1], [-2]])
KEYS: list[Any] = [
    I,
    PAIR,
    (slice(None), I),
    (..., I),
    (I, slice(1, 3)),
    (I, I),
    (PAIR, I),
    (I, slice(None), I),
    (0, slice(None), I),
    (0, I),
    (I, 0),
    (slice(None), 0, I),
    (slice(None), I, 0),
    (None, I),
    (I, None, I),
    (slice(None), None, I),
    (I, ..., I),
    (I, I, I),
    (slice(None), I, I),
    (slice(None, None, -2), I),
    (1, ..., I),
    np.array([], np.int64),
    (np.zeros((0, 3), np.int64), I),
    np.array(1),
    (np.array(1), I),
    True,
    False,
    (True, I),
    (False, I[:1]),
    (slice(None), True),
    (slice(None), True, I),
    (I, True),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_keys(device: str, key: Any) -> None:
    check(numbers((3, 4, 5)), key)


MASKS: list[Any] = [
    numbers((3, 4, 5)) > 20,
    numbers((3, 4)) % 3 == 1,
    np.array([True, False, True]),
    np.zeros((3, 4, 5), bool),
    np.ones((3, 4), bool),
    (slice(None), np.array([True, False, True, True])),
    (..., np.array([True, False, True, True, False])),
    (slice(1), numbers((4, 5)) % 2 == 0),
    (None, np.array([True, False, True])),
    (np.array([True, False, True]), np.array([1, 3])),
    (np.array([True, False, True]), slice(None), np.array([4, 1])),
    (1, np.array([True, False, True, False])),
    (np.array([True, False, True]), 2),
    (np.array([True, False, True]), slice(1, 3), None),
    (np.array([False, False, True]), numbers((4, 5)) > 18),
]


@pytest.mark.parametrize("key", MASKS, ids=range(len(MASKS)))
def test_masks(device: str, key: Any) -> None:
    check(numbers((3, 4, 5)), key)


def test_layouts(device: str) -> None:
    x = numbers((6, 5, 8))
    ours = gp.from_numpy(x)
    for key in (I, (slice(None), I), (I, I), (..., I), (I, slice(None), I), np.array([True, False] * 2 + [True])):
        rows = np.array([True, False] * 4) if isinstance(key, np.ndarray) and key.dtype == bool else key
        check(x.T, rows, ours.T)
        check(x[::-1, 1:, ::-2], key if rows is key else np.array([True, False] * 3), ours[::-1, 1:, ::-2])
        spread = np.broadcast_to(x[0], (3, 5, 8))
        if rows is key:
            same(ours[0]._broadcast_to((3, 5, 8))[up(key)], spread[key])
    mask = x > 100
    same(ours[gp.from_numpy(mask.transpose(2, 0, 1)).transpose(1, 2, 0)], x[mask])
    strided = np.arange(12)[::-3] % 6
    same(ours[gp.from_numpy(np.arange(12))[::-3] % 6], x[strided])
    same(ours[gp.from_numpy(I)._broadcast_to((2, 3))], x[np.broadcast_to(I, (2, 3))])


def test_rows_of_any_width(device: str) -> None:
    index = np.array([3, -5, 0, 3, 1])
    for name, width in (("uint8", 48), ("float16", 7), ("float32", 6), ("int8", 12), ("complex128", 3), ("float64", 1)):
        check(numbers((5, width), name), index)
        check(numbers((2, 5, width), name), (slice(None), index))
    x = gp.from_numpy(numbers(200, "uint8"))
    odd = x[1:181].reshape(5, 36)
    same(odd[gp.from_numpy(index)], numbers(200, "uint8")[1:181].reshape(5, 36)[index])


def test_more_than_a_block(device: str) -> None:
    rng = np.random.default_rng(0)
    x = numbers((70, 90), "int32")
    index = rng.integers(-70, 70, 5003)
    check(x, index.reshape(-1)[:2100])
    check(x[:, 0].copy(), index)
    check(x, (index, rng.integers(0, 90, 5003)))
    flat = rng.random(20_011) < 0.3
    check(np.arange(20_011).astype(np.int16), flat)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_types(name: str) -> None:
    x = numbers((4, 6), name)
    with gp.device("cpu"):
        for key in (
            np.array([3, -1, 0]),
            np.array([True, False, False, True]),
            np.asarray(numbers((4, 6), "float32")) > 5,
        ):
            check(x, key)


@pytest.mark.nvrtc
def test_types_of_each_size_in_kernels() -> None:
    with gp.device("emulated"):
        for name in ("bool", "float8_e5m2", "bfloat16", "complex64", "complex128"):
            x = numbers((4, 5), name)
            for key in (np.array([3, -1, 0]), (x.astype(np.complex64).real > 5)):
                ours, form = gp.from_numpy(x), up(key)
                same(ours[form], x[key])
                x2, copy = x.copy(), ours.copy()
                x2[key] = x[0, 0]
                copy[form] = gp.from_numpy(x[0, 0])
                same(copy, x2)


def test_index_types(device: str) -> None:
    x = numbers((9, 3))
    ours = gp.from_numpy(x)
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        index = np.array([3, 8, 0], kind)
        same(ours[gp.from_numpy(index)], x[index])
        same(ours[index], x[index])
        same(ours[gp.from_numpy(index), gp.asarray([0, 1, 2])], x[index, [0, 1, 2]])
    far = np.array([2**64 - 1, 3], np.uint64)
    same(ours[far], x[far])
    same(ours[gp.from_numpy(far)], x[far])
    same(ours[[1, 2]], x[[1, 2]])
    same(ours[[]], x[[]])
    same(ours[[[0], [1]], [0, 2]], x[[[0], [1]], [0, 2]])
    same(ours[[True] + [False] * 8], x[[True] + [False] * 8])
    same(ours[gp.asarray(2)], x[2])
    same(ours[np.int64(2), np.array(1)], x[2, 1])
    same(ours[gp.asarray(True)], x[True])


def raised(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


BAD: list[Any] = [
    np.array([3]),
    np.array([-4]),
    (slice(None), np.array([0, 4])),
    (I, I, I, I),
    (I, np.array([0, 1])),
    np.array([0.0]),
    np.array([1j]),
    "a",
    1.5,
    np.array([True, False]),
    np.ones((3, 5), bool),
    (np.ones((3, 4, 5, 1), bool)),
    (..., ...),
    (..., I, ...),
    [0.5],
    ([], [0.5]),
    np.array([], np.float64),
    object(),
    {1: 2},
    2**70,
    np.array([2**40]),
    (True, 9),
    np.array(["a"]),
]


@pytest.mark.parametrize("key", BAD, ids=range(len(BAD)))
def test_errors_are_numpys(key: Any) -> None:
    host = numbers((3, 4, 5))
    ours = gp.from_numpy(host)
    want = raised(lambda: host[key])
    assert want is not None
    got = raised(lambda: ours[key])
    assert got is not None
    assert issubclass(got, want), (got, want)
    got = raised(lambda: ours.__setitem__(key, 0))
    assert got is not None
    assert issubclass(got, want), (got, want)
    np.testing.assert_array_equal(ours.to_numpy(), host)


def test_indices_of_the_device_out_of_range(device: str) -> None:
    x = numbers((3, 4))
    for wrong in (3, -4, 2**31 - 1, 2**62, -(2**62)):
        ours = gp.from_numpy(x)
        index = gp.asarray([1, wrong])
        if device == "cpu":
            for call in (lambda: ours[index], lambda: ours.__setitem__(index, 1)):  # noqa: B023
                with pytest.raises(IndexError, match="out of bounds"):
                    call()
            continue
        np.testing.assert_array_equal(ours[index].to_numpy(), [x[1], [0] * 4])
        np.testing.assert_array_equal(ours[index, index].to_numpy(), [x[1, 1], 0])
        ours[index] = gp.asarray([[5.0] * 4, [6.0] * 4], "float32")
        x2 = x.copy()
        x2[1] = 5
        np.testing.assert_array_equal(ours.to_numpy(), x2)


def test_values_that_do_not_fit() -> None:
    host = numbers((3, 4))
    ours = gp.from_numpy(host)
    mask = host > 5
    for key, value in ((I, np.ones(3)), (I, np.ones((2, 3, 4))), (mask, np.ones(5)), (mask[0], np.ones((3, 9)))):
        form = (slice(None), key) if key is not I and key.ndim == 1 else key
        want = raised(lambda: host.__setitem__(form, value))  # noqa: B023
        assert want is ValueError
        for one in (form, up(form)):
            with pytest.raises(gp.ShapeError):
                ours[one] = gp.from_numpy(value)
    for key in (I, mask):
        with pytest.raises(OverflowError):
            gp.zeros((3, 4), "int8")[up(key)] = 300
        with pytest.raises((TypeError, ValueError)):
            ours[up(key)] = "a"
    np.testing.assert_array_equal(ours.to_numpy(), host)
    small = gp.zeros((3, 4), "int8")
    small[up(I)] = gp.asarray(2.7)
    assert small[0].tolist() == [2, 2, 2, 2]


def test_read_only_arrays_and_other_devices() -> None:
    for kind in ("cpu", "emulated"):
        with gp.device(kind):
            x = gp.zeros((3, 4))
            x.setflags(write=False)
            for key in (gp.from_numpy(I), gp.from_numpy(np.ones((3, 4), bool)), gp.from_numpy(np.ones(3, bool))):
                with pytest.raises(ValueError, match="read-only"):
                    x[key] = 1
                with pytest.raises(ValueError, match="read-only"):
                    x[key] = gp.ones(x[key].shape)
            assert not x.to_numpy().any()
            assert x[gp.from_numpy(I)].flags.writeable
    with gp.device(native.open_cpu(1 << 24)):
        other = gp.asarray([0, 1])
    with gp.device("cpu"):
        x = gp.zeros((3, 4))
        for call in (lambda: x[other], lambda: x.__setitem__(0, other), lambda: x.__setitem__([0, 1], other[:, None])):
            with pytest.raises(gp.DeviceError):
                call()


def test_arrays_without_dimensions_or_elements(device: str) -> None:
    x = gp.asarray(5.0)
    same(x[True], np.array(5.0)[True])
    same(x[False], np.array(5.0)[False])
    same(x[gp.asarray(True)], np.array([5.0]))
    x[True] = 7
    assert x.item() == 7
    for key in (I, [0], np.array([True])):
        with pytest.raises(IndexError):
            x[key]
    for shape in ((0,), (0, 3), (3, 0)):
        empty = np.zeros(shape, np.float32)
        ours = gp.from_numpy(empty)
        for key in ([], np.zeros(shape, bool), np.zeros(shape[0], bool)):
            same(ours[key], empty[key])
            same(ours[up(np.asarray(key))] if isinstance(key, np.ndarray) else ours[key], empty[key])
            ours[key] = 3
    same(gp.zeros((3, 0))[gp.from_numpy(I)], np.zeros((3, 0), np.float32)[I])
    with pytest.raises(IndexError):
        gp.zeros((0, 3))[gp.asarray([0])]


def test_broadcast_views_are_not_written(device: str) -> None:
    row = gp.zeros(4)
    view = row._broadcast_to((3, 4))
    mask = gp.from_numpy(np.ones((3, 4), bool))
    for write in (
        lambda: view.__setitem__([0, 1], 1),
        lambda: view.__setitem__(mask, 1),
        lambda: view.__setitem__(mask, gp.ones(12)),
        lambda: view.__setitem__(True, 1),
        lambda: gp.add.at(view, [0, 1], 1),
        lambda: gp.put(view, [0], 1),
        lambda: gp.put_along_axis(view, gp.zeros((1, 4), "int64"), 1, 0),
        lambda: gp.fill_diagonal(view, 1),
        lambda: gp.place(view, mask, [1]),
        lambda: gp.putmask(view, mask, [1, 2]),
        lambda: gp.putmask(view, mask, 1),
    ):
        with pytest.raises(gp.ShapeError, match="broadcast view"):
            write()
    assert not row.to_numpy().any()


def test_too_many_dimensions() -> None:
    x = gp.zeros((1,) * 7)
    assert x[gp.zeros((1, 1), "int64")].ndim == 8
    with pytest.raises(gp.ShapeError):
        x[gp.zeros((1,) * 3, "int64")]


@st.composite
def keys(draw: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """An array and a valid key: ints, slices, newaxis, Ellipsis, index arrays and masks in any order."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    block = draw(st.sampled_from([(1,), (3,), (2, 3), (2, 1), ()]))
    rest = list(shape)
    parts: list[Any] = []
    size: int | None = None
    while rest and draw(st.integers(0, 4)):
        kind = draw(st.sampled_from(["int", "slice", "new", "array", "array", "mask", "flag"]))
        n = rest[0]
        if kind == "new":
            parts.append(None)
            continue
        if kind == "flag" and draw(st.integers(0, 3)) == 0:
            parts.append(True)
            continue
        rest.pop(0)
        if kind == "int":
            parts.append(draw(st.integers(-n, n - 1)))
        elif kind == "array":
            flat = draw(st.lists(st.integers(-n, n - 1), min_size=6, max_size=6))
            parts.append(np.resize(np.array(flat), block))
        elif kind == "mask" and size is None and block in ((1,), ()):
            parts.append(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))))
            size = 1
        else:
            step = draw(st.sampled_from([None, 1, 2, -1]))
            parts.append(slice(draw(st.sampled_from([None, 0, 1, -1])), None, step))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), ...)
    return numbers(tuple(shape), "int32"), tuple(parts)


def any_key(kind: str, made: tuple[np.ndarray[Any, Any], Any]) -> None:
    x, key = made
    if sum(part is None for part in key) + x.ndim > 6:
        return
    with gp.device(kind):
        check(x, key)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(keys())
def test_any_key(made: tuple[np.ndarray[Any, Any], Any]) -> None:
    any_key("cpu", made)


@pytest.mark.nvrtc
@settings(max_examples=25, derandomize=True, deadline=None)
@given(keys())
def test_any_key_in_kernels(made: tuple[np.ndarray[Any, Any], Any]) -> None:
    any_key("emulated", made)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes in bytes of what is read by the host."""
    found: list[int] = []
    monkeypatch.setattr(
        native,
        "read_buffer",
        lambda source, host, *a, real=native.read_buffer: found.append(source.nbytes) or real(source, host, *a),
    )
    # The number of a mask's elements is read too.
    monkeypatch.setattr(native, "count_chosen", lambda mask, real=native.count_chosen: found.append(8) or real(mask))
    return found


def test_what_is_read_by_the_host(device: str, reads: list[int]) -> None:
    x = gp.from_numpy(numbers((5, 7)))
    index, mask = gp.from_numpy(I), gp.from_numpy(numbers((5, 7)) > 9)
    rows = gp.from_numpy(np.array([True, False, True, True, False]))
    rest = [
        lambda: x[index],
        lambda: x[index, index],
        lambda: x[[0, 1]],
        lambda: x.__setitem__(index, 1),
        lambda: x.__setitem__((slice(None), index), gp.ones((5, 3))),
        lambda: x.__setitem__(mask, 1),
        lambda: x.__setitem__(rows, gp.ones(7)),
        lambda: x[numbers((5, 7)) > 9],
        lambda: x.__setitem__(numbers((5, 7)) > 9, np.ones(25)),
        lambda: gp.take(x, index),
        lambda: gp.put(x, index, gp.ones(3)),
        lambda: gp.take_along_axis(x, gp.argsort(x, 0), 0),
        lambda: gp.put_along_axis(x, gp.argsort(x, 0), gp.ones(7), 0),
        lambda: gp.place(x, mask, gp.ones(3)),
        lambda: gp.putmask(x, mask, gp.ones(3)),
        lambda: gp.add.at(x, index, 1),
        lambda: gp.tril_indices(4),
        lambda: gp.choose(gp.asarray([0, 1]), [x[:2, 0], 5]),
    ]
    for i, call in enumerate(rest):
        call()
        assert reads == [], i
    once = [
        lambda: x[mask],
        lambda: x[rows],
        lambda: x[rows, 1],
        lambda: x.__setitem__(mask, x[:4, :7].reshape(-1)[:25]),
        lambda: gp.nonzero(x),
        lambda: gp.where(mask),
        lambda: gp.argwhere(mask),
        lambda: gp.flatnonzero(mask),
        lambda: gp.compress(rows, x, 0),
        lambda: gp.extract(mask, x),
    ]
    x = gp.from_numpy(numbers((5, 7)))
    for i, call in enumerate(once):
        call()
        assert reads == [8], i
        reads.clear()


def test_basic_keys_do_not_enter_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from pygpukit.array import indexing

    monkeypatch.setattr(indexing, "getitem", None)
    monkeypatch.setattr(indexing, "_get", None)
    x = gp.zeros((3, 4))
    for key in (0, slice(1), (0, 1), (..., 0), None, (None, slice(None)), ()):
        assert x[key]._shares_memory(x)


def test_a_graph_gives_the_same(device: str) -> None:
    x = gp.from_numpy(numbers((40, 3)))
    index = gp.from_numpy(np.array([3, 39, 3, 0]))
    value = gp.from_numpy(numbers((4, 3)) + 5)
    want = x.copy()
    want[index] = value
    graph, stream = gp.CudaGraph(), gp.Stream()
    with stream, graph.capture():
        picked = x[index]
        x[index] = value
    for _ in range(2):
        graph.replay()
    graph.synchronize()
    np.testing.assert_array_equal(x.to_numpy(), want.to_numpy())
    np.testing.assert_array_equal(picked.to_numpy(), want[index].to_numpy())


def test_sources_in_one_memory(device: str) -> None:
    host = np.arange(12, dtype=np.int64)
    for form in (
        lambda x, m: x.__setitem__(slice(1, None), x[:-1]),
        lambda x, m: x.__setitem__(slice(None, -1), x[1:]),
        lambda x, m: x.__setitem__(slice(None), x[::-1]),
        lambda x, m: x.__setitem__(slice(None, None, -1), x),
        lambda x, m: x.reshape(3, 4).__setitem__(slice(None), x.reshape(3, 4)[::-1, ::-1]),
        lambda x, m: x.reshape(4, 3)[:3].__setitem__(slice(None), x.reshape(4, 3)[:3].T),
        lambda x, m: x.__setitem__(slice(None), x),
        lambda x, m: x.__setitem__(slice(2, 8, 2), x[3:9:2]),
        lambda x, m: x.__setitem__(m([3, 1, 0]), x[:3]),
        lambda x, m: x.__setitem__(x, x[::-1]),
        lambda x, m: x.__setitem__(x[::-1], x),
        lambda x, m: x.__setitem__(m([True, False] * 6), x[6:]),
        lambda x, m: x.__setitem__(m([True, False] * 6), x[3]),
    ):
        want, ours = host.copy(), gp.from_numpy(host)
        form(want, np.array)
        form(ours, gp.asarray)
        np.testing.assert_array_equal(ours.to_numpy(), want)
    flags = np.array([True, False, True, True])
    ours = gp.from_numpy(flags)
    ours[ours] = False
    assert not ours.to_numpy().any()
    ours = gp.from_numpy(flags)
    ours[ours] = gp.asarray([False, True, False])
    assert ours.tolist() == [False, False, True, False]
