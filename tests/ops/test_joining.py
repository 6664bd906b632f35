"""Joining and repeating against NumPy: values, types, shapes, errors, and how many launches it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.units import ALL_TYPES

Call = Callable[[Any, Any], Any]


def numbers(shape: Any, kind: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 100, shape).astype(gp.to_numpy_dtype(kind))


def same(ours: Any, theirs: Any, context: str = "") -> None:
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs), context
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, context)
        return
    assert ours.shape == theirs.shape, context
    assert gp.to_numpy_dtype(ours.dtype) == theirs.dtype, context
    assert ours.to_numpy().tobytes() == theirs.tobytes(), (context, ours.to_numpy(), theirs)


def here(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return gp.from_numpy(x)
    return type(x)(here(one) for one in x) if isinstance(x, list | tuple) else x


def both(call: Call, x: Any, context: str = "") -> None:
    same(call(gp, here(x)), call(np, x), context)


SIZES = {"uint8": 1, "int16": 3, "float32": 4, "complex64": 8, "complex128": 5}


@pytest.mark.parametrize("kind", SIZES)
def test_concatenate(device: str, kind: str) -> None:
    for n in (SIZES[kind], 16):
        parts = [numbers((3, i * n, 2), kind, i) for i in (1, 0, 3, 2)]
        for axis in (1, -2):
            both(lambda xp, x, axis=axis: xp.concatenate(x, axis), parts, f"{kind} {n}")
        both(lambda xp, x: xp.concatenate(x, None), parts)
        both(lambda xp, x: xp.concatenate([y.T[..., ::-1] for y in x], axis=1), parts)
    both(lambda xp, x: xp.concatenate(x), [numbers(i % 5, kind, i) for i in range(70)])
    both(lambda xp, x: xp.stack(x, 1), [numbers(7, kind, i) for i in range(33)])
    both(lambda xp, x: xp.stack(x), [numbers((2, 3), kind, i) for i in range(3)])
    both(lambda xp, x: xp.stack(x), [numbers((), kind, i) for i in range(3)])
    both(lambda xp, x: xp.concatenate(x), [numbers((n, 2, 3), kind, n) for n in (1, 4, 2)])
    # From addresses that are not multiples of 16 bytes.
    both(lambda xp, x: xp.concatenate([x[1:17], x[3:19]]), numbers(32, kind))


def test_a_row_that_takes_several_blocks(device: str) -> None:
    both(lambda xp, x: xp.concatenate(x, 1), [numbers((2, 1500), "float32"), numbers((2, 777), "float32", 1)])
    both(lambda xp, x: xp.concatenate(x), [numbers(5000, "uint8"), numbers(4097, "uint8", 1)])


STACKS: dict[str, Call] = {
    "stack": lambda xp, x: xp.stack(x),
    "stack last": lambda xp, x: xp.stack(x, axis=-1),
    "vstack": lambda xp, x: xp.vstack(x),
    "hstack": lambda xp, x: xp.hstack(x),
    "dstack": lambda xp, x: xp.dstack(x),
    "column_stack": lambda xp, x: xp.column_stack(x),
    "block": lambda xp, x: xp.block(list(x)),
    "block 2": lambda xp, x: xp.block([[x[0], x[1]], [x[1], x[0]]]),
    "append": lambda xp, x: xp.append(x[0], x[1]),
    "concat": lambda xp, x: xp.concat(x, axis=None),
}


def test_long_joins_of_the_cpu_device_and_joins_in_graphs() -> None:
    with gp.device("cpu"):
        host = numbers((2, 50_000))
        x = gp.from_numpy(host)
        same(gp.concatenate([x, x], 1), np.concatenate([host, host], 1))
        out, graph = gp.zeros((2, 100_003)), gp.CudaGraph()
        with graph.capture(gp.Stream()):
            gp.concatenate([x, x], 1, out=out[:, 1:100_001])
        x.fill(3)
        graph.replay()
        graph.synchronize()
        want = np.zeros((2, 100_003), np.float32)
        want[:, 1:100_001] = 3
        same(out, want)


@pytest.mark.parametrize("parts", [[(2, 3), (2, 2)], [(2, 3), (3,)], [(), ()]])
def test_concatenate_refuses_shapes_that_do_not_fit(parts: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"concatenate\(\)"):
        gp.concatenate([gp.zeros(shape) for shape in parts])


@pytest.mark.parametrize("name", STACKS)
def test_stacks(name: str) -> None:
    for shape in ((), (3,), (2, 3), (2, 3, 4), (0,), (2, 0)):
        parts = [numbers(shape, seed=i) for i in range(3)]
        try:
            wanted = STACKS[name](np, parts)
        except ValueError:
            with pytest.raises(ValueError, match=r"\w"):
                STACKS[name](gp, here(parts))
            continue
        same(STACKS[name](gp, here(parts)), np.ascontiguousarray(wanted).reshape(wanted.shape), f"{name} {shape}")


def test_blocks() -> None:
    a, b, c, d = numbers((2, 2)), numbers((2, 3)), numbers((1, 2)), numbers((1, 3))
    both(lambda xp, x: xp.block([[x[0], x[1]], [x[2], x[3]]]), (a, b, c, d))
    both(lambda xp, x: xp.block([[[x[0]]], [[x[0]]]]), (a,))
    both(lambda xp, x: xp.block([x[0], 1.5]), (numbers(3),))
    both(lambda xp, x: xp.block(x), a)
    for bad in ([], [[a], b], [[a, b], [a, a]], (a, b), [[a, b], [c]]):
        with pytest.raises((ValueError, TypeError)) as theirs:
            np.block(bad)
        with pytest.raises(theirs.type):
            gp.block(here(bad))


def test_types_and_out(device: str) -> None:
    a, b = numbers((2, 3), "int32"), numbers((2, 3), "float32", 1)
    both(lambda xp, x: xp.concatenate(x), [a, b, a])
    both(lambda xp, x: xp.concatenate(x, dtype="float32"), [a, b])
    both(lambda xp, x: xp.concatenate(x, dtype="int8", casting="unsafe"), [a, b])
    both(lambda xp, x: xp.stack(x, dtype="complex64"), [a, b])
    both(lambda xp, x: xp.concatenate([x, [[1, 2, 3]]]), a)
    both(lambda xp, x: xp.append(x, 7), a)
    both(lambda xp, x: xp.append(x, [[7], [8]], 1), a)
    both(lambda xp, x: xp.concatenate(x), a)
    out = gp.zeros((4, 6), "int32")
    target = out[:, ::2]
    assert gp.concatenate(here([a, a + 1]), out=target) is target
    np.testing.assert_array_equal(out.to_numpy()[:, ::2], np.concatenate([a, a + 1]))
    assert not out.to_numpy()[:, 1::2].any()
    rows = gp.from_numpy(np.arange(12, dtype=np.int32))
    gp.concatenate([rows[6:], rows[:6]], out=rows)
    assert rows.tolist() == [*range(6, 12), *range(6)]
    with pytest.raises(TypeError, match="cannot cast"):
        gp.concatenate(here([a, b]), dtype="int32")
    with pytest.raises(TypeError, match="not both"):
        gp.concatenate(here([a, a]), out=gp.zeros((4, 3), "int32"), dtype="int32")
    with pytest.raises(ValueError, match=r"out has shape \(3, 3\)"):
        gp.concatenate(here([a, a]), out=gp.zeros((3, 3), "int32"))
    locked = gp.zeros((4, 3), "int32")
    locked.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        gp.concatenate(here([a, a]), out=locked)


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_all_types(kind: str) -> None:
    a = numbers((3, 5), kind)
    for call in (
        lambda xp, x: xp.concatenate([x, x[:1]]),
        lambda xp, x: xp.stack([x, x], -1),
        lambda xp, x: xp.tile(x, 2),
        lambda xp, x: xp.repeat(x, [2, 0, 1], 0),
        lambda xp, x: xp.roll(x, 2, 1),
        lambda xp, x: xp.tril(x),
        lambda xp, x: xp.insert(x, 1, x[0], 0),
        lambda xp, x: xp.delete(x, 1, 1),
        lambda xp, x: xp.diag(x[0]),
    ):
        both(call, a, kind)


ERRORS: dict[str, Call] = {
    "nothing": lambda xp, x: xp.concatenate([]),
    "no array": lambda xp, x: xp.concatenate(3),
    "axis": lambda xp, x: xp.concatenate([x, x], 2),
    "numbers": lambda xp, x: xp.concatenate([x[0, 0, ...], x[0, 0, ...]]),
    "shapes": lambda xp, x: xp.concatenate([x, x[:, :1]]),
    "dimensions": lambda xp, x: xp.concatenate([x, x[0]]),
    "stack shapes": lambda xp, x: xp.stack([x, x[:1]]),
    "stack axis": lambda xp, x: xp.stack([x, x], 3),
    "stack nothing": lambda xp, x: xp.stack([]),
    "casting": lambda xp, x: xp.concatenate([x, x], casting="some", dtype="int8"),
    "append": lambda xp, x: xp.append(x, x[0], 0),
    "repeat": lambda xp, x: xp.repeat(x, -1),
    "repeat counts": lambda xp, x: xp.repeat(x, [1, 2, 3], 0),
    "repeat axis": lambda xp, x: xp.repeat(x, 2, 2),
    "tile": lambda xp, x: xp.tile(x, -1),
    "roll axis": lambda xp, x: xp.roll(x, 1, 2),
    "roll shapes": lambda xp, x: xp.roll(x, (1, 2, 3), (0, 1)),
    "insert": lambda xp, x: xp.insert(x, 9, 1, 0),
    "insert values": lambda xp, x: xp.insert(x, [0, 1], xp.concatenate([x, x], 0), 0),
    "insert axis": lambda xp, x: xp.insert(x, 0, 1, 2),
    "delete": lambda xp, x: xp.delete(x, 2, 0),
    "delete negative": lambda xp, x: xp.delete(x, -3, 0),
    "diag": lambda xp, x: xp.diag(xp.stack([x, x])),
    "resize": lambda xp, x: xp.resize(x, (-1, 2)),
    "vander": lambda xp, x: xp.vander(x),
}


def error_of(call: Call, *args: Any) -> Exception:
    try:
        call(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    x = numbers((2, 3))
    theirs, ours = error_of(ERRORS[name], np, x), error_of(ERRORS[name], gp, here(x))
    assert isinstance(ours, type(theirs)), (ours, theirs)


def test_arrays_of_two_devices_and_of_numpy_are_refused() -> None:
    other = native.open_cpu(1 << 24, None, True)
    with pytest.raises(gp.DeviceError, match="different devices"):
        gp.concatenate([gp.ones(2), gp.ones(2, device=other)])
    x, far = gp.ones((2, 2)), gp.ones((2, 2), device=other)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("append", lambda: gp.append(x, far)),
        ("insert", lambda: gp.insert(x, 0, far[0], 0)),
        ("pad", lambda: gp.pad(x, 1, constant_values=far)),
        ("repeat", lambda: gp.repeat(x, gp.asarray([1, 2], device=other), 0)),
        ("block", lambda: gp.block([[x, far]])),
        ("concatenate", lambda: gp.concatenate([x, x], out=gp.ones((4, 2), device=other))),
    ]
    for name, call in calls:
        with pytest.raises(gp.DeviceError, match=rf"{name}\(\): the arrays live on different devices"):
            call()
    assert gp.tile(far, 2).device._number == gp.pad(far, 1, "mean").device._number == other._number
    with pytest.raises(TypeError, match="from_numpy"):
        gp.concatenate([gp.ones(2), np.ones(2)])


def test_graphs_repeat_what_shapes_do(device: str) -> None:
    x = gp.arange(12, dtype="float32").reshape(3, 4)

    def step() -> list[gp.GPUArray]:
        padded = [gp.pad(x, 1, constant_values=5), gp.pad(x, 2, "reflect"), gp.roll(x, 1), gp.tril(x)]
        return [gp.concatenate([x, x], 1), gp.tile(x, 2), gp.insert(x, 1, 5, 0), gp.linspace(0, 1, 5), *padded]

    step()
    graph = gp.CudaGraph()
    with graph.capture():
        results = step()
    x += 100
    wanted = [y.to_numpy() for y in step()]
    graph.replay()
    for ours, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(ours.to_numpy(), theirs)


@given(data=st.data())
@settings(max_examples=40)
def test_any_shapes_and_layouts(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 4))
    axis = data.draw(st.integers(0, ndim - 1))
    shape = data.draw(st.lists(st.integers(0, 4), min_size=ndim, max_size=ndim))
    parts, ours = [], []
    for i in range(data.draw(st.integers(1, 5))):
        shape[axis] = data.draw(st.integers(0, 5))
        host = numbers(shape, data.draw(st.sampled_from(["float32", "int16"])), i)
        x = gp.from_numpy(host)
        if data.draw(st.booleans()):
            x, host = gp.from_numpy(np.ascontiguousarray(host.T)).T, np.asarray(host)
        parts.append(host)
        ours.append(x)
    same(gp.concatenate(ours, axis), np.concatenate(parts, axis))


def test_tile_and_repeat(device: str) -> None:
    for x in (numbers((2, 3, 4)), numbers((5,), "uint8"), numbers((), "complex64"), numbers((0, 2))):
        for reps in (2, (2,), (3, 1, 2), (2, 1, 1, 3), (0, 2), (), (1, 1)):
            both(lambda xp, x, reps=reps: xp.tile(x, reps), x, f"{x.shape} {reps}")
            both(lambda xp, x, reps=reps: xp.tile(x.T, reps), x, f"{x.shape}.T {reps}")
        for axis in (None, *range(-x.ndim, x.ndim)):
            for count in (0, 1, 3, [2], np.int8(2)):
                both(lambda xp, x, axis=axis, count=count: xp.repeat(x, count, axis), x, f"{x.shape} {axis} {count}")
            counts = np.arange(x.size if axis is None else x.shape[axis]) % 3
            both(lambda xp, x, axis=axis, counts=counts: xp.repeat(x[::-1] if x.ndim else x, counts, axis), x)
            ours = gp.repeat(here(x), gp.from_numpy(counts.astype(np.int32)), axis)
            same(ours, np.repeat(x, counts, axis))
    x = numbers((2, 2, 1, 2, 1, 2, 2, 2))
    both(lambda xp, x: xp.tile(x, (2, 3, 1, 2, 2, 2, 1, 2)), x)
    both(lambda xp, x: xp.repeat(x, 2, 3), x)
    both(lambda xp, x: xp.repeat(x, [3, 0], 3), numbers((2, 3, 4, 2, 3), "complex128"))


def test_resize(device: str) -> None:
    for shape in (7, (2, 2), (3, 5), (0, 2), ()):
        both(lambda xp, x, shape=shape: xp.resize(x, shape), numbers((2, 3)))
        both(lambda xp, x, shape=shape: xp.resize(x.T, shape), numbers((2, 3)))
        both(lambda xp, x, shape=shape: xp.resize(x, shape), numbers(0))


SHIFTS = [
    (1, None),
    (-7, None),
    (3, 0),
    (1, -1),
    ((1, 2), (0, 1)),
    (2, (0, 2)),
    ((1, 2, 1), 1),
    ((5, -5), (0, 0)),
    (0, 1),
]


@pytest.mark.parametrize(("shift", "axis"), SHIFTS)
def test_roll(device: str, shift: Any, axis: Any) -> None:
    for shape in ((3, 4, 5), (2, 1, 3), (2, 0, 3)):
        for call in (
            lambda xp, x: xp.roll(x, shift, axis),
            lambda xp, x: xp.roll(x.T, shift, axis),
            lambda xp, x: xp.roll(x[::-1, :, ::2], shift, axis),
        ):
            both(call, numbers(shape, "int16"), f"{shape} {shift} {axis}")


def test_wide_elements_and_several_blocks(device: str) -> None:
    x = numbers((3, 200, 128), "uint8")
    for shift, axis in ((7, 1), (16, 2), (3, 2), (2 * 200 * 128, None), (5, None)):
        both(lambda xp, x, shift=shift, axis=axis: xp.roll(x, shift, axis), x, f"{shift} {axis}")
    both(lambda xp, x: xp.roll(x[:, :, 1:], 3, 0), x)
    both(lambda xp, x: xp.repeat(x, [2, 0, 1], 0), x)
    both(lambda xp, x: xp.roll(x, 3, 0), numbers((9, 1300), "complex128"))


PLACES = [
    0,
    -1,
    2,
    [0],
    [1, 1, 0],
    [2, -3, 3],
    slice(0, 3, 2),
    slice(None, None, -1),
    [],
    np.array([True, False, True, False]),
]


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_insert_and_delete(device: str, axis: int | None) -> None:
    x = numbers((4, 4), "int32")
    for place in PLACES:
        if isinstance(place, np.ndarray) and axis is None:
            place = np.tile(place, 4)
        both(lambda xp, x, place=place: xp.delete(x, place, axis), x, f"delete {place}")
        for value in (7, 2.9):
            both(lambda xp, x, place=place, value=value: xp.insert(x, place, value, axis), x, f"insert {place}")
    both(lambda xp, x: xp.insert(x, 1, x[0], axis), x)
    both(lambda xp, x: xp.insert(x, [1, 3], [5, 6], None), x)
    both(lambda xp, x: xp.insert(x, [3, 1], x[:, :2] if axis == 1 else x[:2] if axis == 0 else [5, 6], axis), x)
    both(lambda xp, x: xp.insert(x.T, 2, [[1, 2, 3, 4], [5, 6, 7, 8]], 0), x)
    both(lambda xp, x: xp.delete(x[::-1], [0, 5], None), x)
    ours = gp.delete(here(x), gp.asarray([1, -1]), 0)
    same(ours, np.delete(x, [1, -1], 0))
    same(gp.insert(here(x), gp.asarray([1, -1]), 3, 0), np.insert(x, [1, -1], 3, 0))


def test_many_places(device: str) -> None:
    x = numbers((300, 3), "uint16")
    places = np.random.default_rng(1).integers(0, 300, 200)
    both(lambda xp, x: xp.delete(x, places, 0), x)
    both(lambda xp, x: xp.insert(x, places, 5, 0), x)
    both(lambda xp, x: xp.insert(x, places, x[:200], 0), x)


def test_nothing_is_read_that_need_not_be(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    x = gp.ones((3, 4))
    counts = gp.asarray([1, 2, 0])
    reads: list[Any] = []
    real = native.read_buffer
    monkeypatch.setattr(native, "read_buffer", lambda *args: reads.append(args) or real(*args))
    gp.concatenate([x, x.T.reshape(3, 4)])
    gp.block([[x, x], [x, x]])
    gp.repeat(x, [1, 2, 0], 0)
    gp.insert(x, [1, 2], 3, 0)
    gp.delete(x, 1, 1)
    gp.roll(x, 1, 0)
    gp.tile(x, (2, 2))
    for mode in ("constant", "edge", "reflect", "mean", "linear_ramp"):
        gp.pad(x, 2, mode)
    gp.tril(x)
    gp.linspace(0, 1, 5)
    gp.meshgrid(x[0], x[1])
    gp.vander(x[0])
    assert not reads
    gp.repeat(x, counts, 0)
    assert len(reads) == 1
    gp.trim_zeros(x)
    assert len(reads) == 2
