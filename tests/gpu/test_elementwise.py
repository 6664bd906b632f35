"""Every row of the operator table with every type, on every path through its kernels, against the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import op_cases
import pytest
from hypothesis import HealthCheck, given, settings

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.elementwise import reference
from pygpukit.ops.elementwise.plan import Plan, plan
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.elementwise.tolerance import tolerance
from pygpukit.ops.units import ALL_TYPES

# On the emulator compiling is most of what these tests do, so that it sees each row once for each way in which kernels
# differ, and a GPU sees all. Types of one entry have the same expressions on elements of another width or format, and
# share the rows among them; so do, below, rows that convert to another type and compute in that. float64 is here for
# the rows that are no functions: functions have an expression of their own for it.
ALIKE = (
    ("int64", "uint8"), ("float16", "bfloat16"),
    ("int8", "int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex128", "float64"),
)  # fmt: skip

SHAPE = (7, 5, 67)
COUNT = 7 * 5 * 67
SCALARS: dict[str, Any] = {"b": True, "i": 3, "u": 3, "f": -1.5, "c": 1.5 - 0.5j}
# The most an elementwise kernel covers with one block, and less.
SIZES = [1, 2, 3, 15, 16, 17, 255, 256, 257, 1023, 1025, 8191, 8193, 65_537, 1_000_003]


def check(row: Row, made: Plan, got: gp.GPUArray, arrays: Sequence[Any], context: str) -> None:
    """Compare a result with the reference on the same operands."""
    want = np.empty(got.shape, gp.to_numpy_dtype(made.out))
    reference.apply(row.name, tuple(arrays), want)
    op_cases.assert_close(got.to_numpy(), want, tolerance(row.name, made.common), f"{row.name} {context}")


def moved(x: op_cases.Array, by: int) -> gp.GPUArray:
    """The array on the device at an address that is a multiple of its element size and of nothing more."""
    room = np.zeros(x.size + by, x.dtype)
    room[by:] = x
    return gp.from_numpy(room)[by:]


@cache
def rows_by_type() -> dict[str, dict[str, bool]]:
    """Whether each row computes in the type of its inputs, by type."""
    return {
        kind: {row.name: op_cases.same_plan(row, kind).common.name == kind for row in op_cases.rows_of(kind)}
        for kind in ALL_TYPES
    }


def emulated_here(row: Row, name: str) -> bool:
    """Does the emulator see a row on this type, or on another of those that share it?"""
    computes = rows_by_type()
    if not computes[name][row.name]:
        sharers = [kind for kind in ALL_TYPES if computes[kind].get(row.name) is False]
    elif name == "float64" and tolerance(row.name, gp.dtype(name)).ulp:
        return True
    else:
        group = next((types for types in ALIKE if name in types), (name,))
        sharers = [kind for kind in group if computes[kind].get(row.name)]
    return sharers[list(TABLE).index(row.name) % len(sharers)] == name


def each_row(name: str, run: Callable[[Row, Plan, list[op_cases.Array]], None]) -> None:
    """Run every row defined for a type, and report all that fail together."""
    rows = op_cases.rows_of(name)
    if gp.current_device().kind == "emulated":
        rows = [row for row in rows if emulated_here(row, name)]
    failures = []
    for row in rows:
        try:
            run(row, op_cases.same_plan(row, name), op_cases.arguments(row, name, COUNT))
        except (AssertionError, gp.GPUKitError) as error:
            failures.append(str(error))
    assert not failures, f"{len(failures)} rows:\n" + "\n".join(failures)


def test_every_row_is_among_those_that_run() -> None:
    assert {row.name for name in ALL_TYPES for row in op_cases.rows_of(name)} == set(TABLE)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_dense(name: str, device: gp.Device) -> None:
    def run(row: Row, made: Plan, arrays: list[op_cases.Array]) -> None:
        check(row, made, native.apply(row.name, [gp.from_numpy(a) for a in arrays]), arrays, f"dense {name}")

    each_row(name, run)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_unaligned_views(name: str, device: gp.Device) -> None:
    def run(row: Row, made: Plan, arrays: list[op_cases.Array]) -> None:
        dense = native.apply(row.name, [gp.from_numpy(a) for a in arrays])
        # First only the inputs lie badly, then the output too, with what is beside it untouched.
        views = [moved(a, 1 + i) for i, a in enumerate(arrays)]
        results = [native.apply(row.name, views)]
        room = gp.ones(COUNT + 4, made.out)
        results.append(native.apply(row.name, views, room[3:-1]))
        for got in results:
            check(row, made, got, arrays, f"unaligned {name}")
            if device.kind != "cpu":
                assert got.to_numpy().tobytes() == dense.to_numpy().tobytes(), f"{row.name} {name}: other bits"
        edges = np.concatenate([room[:3].to_numpy(), room[-1:].to_numpy()])
        np.testing.assert_array_equal(edges, np.ones(4, edges.dtype))

    each_row(name, run)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_strided_and_broadcast(name: str, device: gp.Device) -> None:
    def run(row: Row, made: Plan, arrays: list[op_cases.Array]) -> None:
        # Each operand has strides of its own: reversed, broadcast along one axis, with its axes turned.
        hosts: list[op_cases.Array] = [a.reshape(SHAPE) for a in arrays]
        ours = [gp.from_numpy(h) for h in hosts]
        hosts[0], ours[0] = hosts[0][::-1, :, ::-1], ours[0][::-1, :, ::-1]
        if row.arity > 1:
            hosts[1], ours[1] = hosts[1][:, :1], ours[1][:, :1]
        if row.arity > 2:
            turned = np.ascontiguousarray(hosts[2].transpose(2, 0, 1))
            hosts[2], ours[2] = turned.transpose(1, 2, 0), gp.from_numpy(turned).transpose(1, 2, 0)
        got = native.apply(row.name, ours)
        check(row, made, got, hosts, f"strided {name}")
        # Into every other column of a wider array.
        room = gp.ones((7, 5, 134), made.out)
        check(row, made, native.apply(row.name, ours, room[..., ::2]), hosts, f"into strides {name}")
        beside = room[..., 1::2].to_numpy()
        np.testing.assert_array_equal(beside, np.ones(SHAPE, beside.dtype))
        if device.kind != "cpu":
            dense = [np.ascontiguousarray(np.broadcast_to(h, SHAPE)) for h in hosts]
            again = native.apply(row.name, [gp.from_numpy(d) for d in dense])
            assert got.to_numpy().tobytes() == again.to_numpy().tobytes(), f"{row.name} {name}: other bits"

    each_row(name, run)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_scalar_and_single_element_operands(name: str, device: gp.Device) -> None:
    def run(row: Row, made: Plan, arrays: list[op_cases.Array]) -> None:
        single = [gp.from_numpy(a[:1]) for a in arrays]
        check(row, made, native.apply(row.name, single), [a[:1] for a in arrays], f"one element {name}")
        nothing = native.apply(row.name, [x[:0] for x in single])
        assert nothing.shape == (0,)
        assert nothing.dtype is made.out
        if row.arity == 1:
            return
        ours = [gp.from_numpy(a) for a in arrays]
        for i in range(row.arity):
            others: list[Any] = [*arrays[:i], arrays[i][:1], *arrays[i + 1 :]]
            got = native.apply(row.name, [*ours[:i], single[i], *ours[i + 1 :]])
            check(row, made, got, others, f"single element at {i} {name}")
            scalar = SCALARS[gp.dtype(arrays[i].dtype).kind]
            others[i] = scalar
            # Where a number needs a kernel of its own, compiling it would be all this adds.
            if plan(row.name, tuple(reference.input_of(x) for x in others)).entry == made.entry:
                got = native.apply(row.name, [*ours[:i], scalar, *ours[i + 1 :]])
                check(row, made, got, others, f"scalar at {i} {name}")

    each_row(name, run)


@pytest.mark.parametrize("name", ["int8", "bfloat16", "float32", "complex128"])
def test_sizes_that_do_not_divide_evenly(name: str, device: gp.Device) -> None:
    for size in SIZES:
        rng = np.random.default_rng(size)
        a, b = (rng.integers(0, 7, size).astype(gp.to_numpy_dtype(name)) for _ in range(2))
        room = gp.full(size + 2, 3, name)
        gp.add(gp.from_numpy(a), gp.from_numpy(b), out=room[1:-1])
        np.testing.assert_array_equal(room.to_numpy(), np.pad(a + b, 1, constant_values=3).astype(a.dtype))
        got = (gp.from_numpy(a)[::-1] + 1).to_numpy()
        np.testing.assert_array_equal(got, (a[::-1] + a.dtype.type(1)).astype(a.dtype))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_denormals_and_specials_are_kept(name: str, device: gp.Device) -> None:
    """Rows that round once must not flush small numbers, nor lose an infinity or the sign of a zero."""
    kind = gp.to_numpy_dtype(name)
    patterns = np.uint64 if kind.itemsize == 8 else np.dtype(f"u{kind.itemsize}").type
    low = np.arange(1, 120, 7, dtype=patterns).view(kind)
    with np.errstate(all="ignore"):
        special = np.array([0.0, np.inf, np.nan, 1.0, 1.5, 3.0]).astype(kind)
        values = np.concatenate([low, special])
        values = np.concatenate([values, -values])
    x, y = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    ours = gp.from_numpy(x.ravel()), gp.from_numpy(y.ravel())
    for row in op_cases.rows_of(name):
        made = op_cases.same_plan(row, name)
        if tolerance(row.name, made.common).ulp or row.rule == "where" or row.arity > 2:
            continue
        if device.kind == "emulated" and not emulated_here(row, name):
            continue
        if row.name in ("copysign", "signbit") and name == "float16" and device.kind != "cpu":
            # The hardware's conversion to float32 drops the sign of a float16 NaN, which the rows document.
            continue
        operands = [x.ravel(), y.ravel()][: row.arity]
        check(row, made, native.apply(row.name, ours[: row.arity]), operands, f"denormals {name}")
    negative = gp.neg(gp.zeros(3, name)).to_numpy()
    assert np.signbit(negative.astype(np.float64)).all()


def test_mixed_types_scalars_and_outputs(device: gp.Device) -> None:
    a = op_cases.values("int32", COUNT, 0)
    b = op_cases.values("float32", COUNT, 1)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((x + y).to_numpy(), a + b)
        np.testing.assert_array_equal((x * 2.5).to_numpy(), a * 2.5)
        np.testing.assert_array_equal((y - np.float64(0.1)).to_numpy(), b - np.float64(0.1))
        out = gp.empty(COUNT, "float64")
        gp.add(y, y, out=out)
        np.testing.assert_array_equal(out.to_numpy(), (b + b).astype(np.float64))
    with pytest.raises(gp.DTypeError):
        gp.add(y, y, out=x)


# Operator, type of its inputs, type of its output.
OUTPUTS = [("add", "bfloat16", "float32"), ("add", "float32", "bfloat16"), ("mul", "float64", "float16"),
           ("less", "float32", "float16"), ("abs", "complex64", "float16"), ("sub", "int8", "int64"),
           ("exp", "float16", "complex64"), ("where", "float32", "float8_e4m3fn")]  # fmt: skip


def test_outputs_of_another_type_are_cast_from_the_rounded_result(device: gp.Device) -> None:
    for name, kind, out in OUTPUTS:
        row = TABLE[name]
        made = plan(name, op_cases.same_inputs(row, kind), gp.dtype(out))
        arrays = op_cases.arguments(row, kind, 301)
        check(row, made, native.apply(name, [gp.from_numpy(a) for a in arrays], gp.empty(301, out)), arrays, kind)
    x, y, wide = gp.full(1, 1, "bfloat16"), gp.full(1, 2.0**-9, "bfloat16"), gp.zeros(1)
    gp.add(x, y, out=wide)
    assert wide.tolist() == [1.0], "the sum is a bfloat16 before it is a float32"


def test_strided_copies_of_many_shapes(device: gp.Device) -> None:
    shapes: list[tuple[int, ...]] = [
        (), (1,), (5,), (1024,), (1025,), (2,) * 8, (1, 4099), (4099, 1), (3, 2000), (2000, 3), (1024, 3), (3, 1024),
    ]  # fmt: skip
    for shape in shapes:
        base = np.arange(2 * int(np.prod(shape)), dtype=np.int32).reshape(*shape, 2)
        if base.ndim <= 8:
            np.testing.assert_array_equal(gp.from_numpy(base)[..., 0].T.copy().to_numpy(), base[..., 0].T)
        else:
            flat = gp.from_numpy(base.ravel())[::2].reshape(shape)
            np.testing.assert_array_equal(flat.T.copy().to_numpy(), base[..., 0].T)


def test_in_place_and_overlapping_outputs(device: gp.Device) -> None:
    a = np.arange(100_000, dtype=np.float32)
    x = gp.from_numpy(a)
    x += 1
    np.testing.assert_array_equal(x.to_numpy(), a + 1)
    # Every element would be overwritten before its neighbour has read it.
    gp.add(x[:-1], x[1:], out=x[1:])
    np.testing.assert_array_equal(x.to_numpy()[1:], (a + 1)[:-1] + (a + 1)[1:])
    square = gp.from_numpy(a[:90_000].reshape(300, 300))
    gp.add(square.T, 0, out=square)
    np.testing.assert_array_equal(square.to_numpy(), a[:90_000].reshape(300, 300).T)


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[slice, ...]]:
    """A shape, an order of its axes and a slice of each."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    steps = st.sampled_from([-3, -2, -1, 1, 2, 3])
    keys = tuple(slice(None, None, draw(steps)) for _ in shape)
    return shape, order, keys


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=views(), second=views())
def test_any_views_broadcast_as_in_numpy(first: Any, second: Any, device: gp.Device) -> None:
    arrays, ours = [], []
    for shape, order, keys in (first, second):
        a = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        arrays.append(a.transpose(order)[keys])
        ours.append(gp.from_numpy(a).transpose(order)[keys])
    try:
        want = arrays[0] - arrays[1]
    except ValueError:
        with pytest.raises(gp.ShapeError):
            gp.sub(*ours)
        return
    np.testing.assert_array_equal(gp.sub(*ours).to_numpy(), want)


@pytest.mark.cuda
def test_more_elements_than_32_bits_can_count(cuda: gp.Device) -> None:
    if cuda.memory_info()[0] < 10 << 30:
        pytest.skip("needs 10 GiB of free device memory")
    n = 2**31 + 11
    x = gp.zeros(n, "int8")
    x[-5:] = 2
    y = x + x
    assert y[-6:].tolist() == [0, 4, 4, 4, 4, 4]
    # The strided kernel, and sums in several stages.
    z = y[::-1] + x
    assert z[:6].tolist() == [4, 4, 4, 4, 4, 0]
    assert z[-6:].tolist() == [0, 2, 2, 2, 2, 2]
    assert gp.sum(z).item() == 30
    del x, y, z
    gp.memory.trim()
