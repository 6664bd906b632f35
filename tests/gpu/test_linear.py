"""Sums and matrix products over types, shapes, axes and strides, against exact arithmetic on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit.ops.gemm.rows import matmul_type
from pygpukit.ops.reduce.rows import sum_type
from pygpukit.ops.units import ALL_TYPES

FLOATS = [name for name in ALL_TYPES if gp.dtype(name).kind in "fc"]


def numbers(name: str, shape: tuple[int, ...], seed: int = 0) -> op_cases.Array:
    """Values whose sums every type holds; integers over their whole range, since they wrap."""
    kind = gp.to_numpy_dtype(name)
    rng = np.random.default_rng([seed, *shape])
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    values = rng.standard_normal(shape)
    if kind.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return (values / 4).astype(kind)


def unit(name: str) -> float:
    """Distance from 1 to the next number of a float type, or of a complex type's parts."""
    bits = {"float8_e4m3fn": 3, "float8_e5m2": 2, "bfloat16": 7, "float16": 10, "float32": 23, "complex64": 23}
    return float(2.0 ** -bits.get(name, 52))


# Half the distance between the smallest numbers of a type; for the wider ones it does not matter here.
STEPS = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "float16": 2.0**-25}


def assert_near(got: op_cases.Array, exact: op_cases.Array, terms: op_cases.Array, name: str, context: str) -> None:
    """Within a few roundings of the accumulator per level of the sum, and one of the result."""
    accumulated = max(unit("float32") if gp.dtype(name).itemsize < 8 or name == "complex64" else 0.0, unit("float64"))
    bound = 64 * accumulated * terms + unit(name) * np.abs(exact) + STEPS.get(name, 0.0)
    wide = got.astype(exact.dtype)
    apart = np.abs(wide - exact)
    assert (apart <= bound).all(), f"{context}: {np.max(apart / (bound + 1e-300))} times as far apart as allowed"


def wide(x: op_cases.Array) -> op_cases.Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def check_sum(x: op_cases.Array, ours: gp.GPUArray, axis: Any, keepdims: bool = False) -> None:
    name = ours.dtype.name
    got = gp.sum(ours, axis, keepdims=keepdims)
    assert got.dtype is sum_type(ours.dtype)
    context = f"sum of {name} {x.shape} over {axis}"
    if x.dtype.kind in "biu":
        want = np.sum(x, axis, keepdims=keepdims, dtype=gp.to_numpy_dtype(got.dtype))
        np.testing.assert_array_equal(got.to_numpy(), want, context)
        return
    exact, terms = np.sum(wide(x), axis, keepdims=keepdims), np.sum(np.abs(wide(x)), axis, keepdims=keepdims)
    assert got.shape == exact.shape
    assert_near(got.to_numpy(), np.asarray(exact), np.asarray(terms), name, context)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_sum_of_every_type(name: str, device: gp.Device) -> None:
    x = numbers(name, (9, 131, 40))
    ours = gp.from_numpy(x)
    for axis in (0, 1, 2, -1, (0, 1), (1, 2), (0, 2), None):
        check_sum(x, ours, axis, keepdims=axis == 1)
    # More than one stage, both by rows and by columns.
    long = numbers(name, (3, 9001))
    check_sum(long, gp.from_numpy(long), 1)
    check_sum(long, gp.from_numpy(long), None)
    columns = numbers(name, (9001, 33))
    check_sum(columns, gp.from_numpy(columns), 0)


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 127, 128, 129, 4095, 4096, 4097, 12_289, 70_001])
def test_sum_of_every_length(n: int, device: gp.Device) -> None:
    x = numbers("float32", (5, n))
    ours = gp.from_numpy(x)
    check_sum(x, ours, 1)
    check_sum(x[:, ::-1], ours[:, ::-1], 1)
    check_sum(x.T, ours.T, 0)
    shifted = gp.from_numpy(np.pad(x, ((0, 0), (1, 0))))[:, 1:]
    check_sum(x, shifted, 1)


def test_sum_of_any_strides(device: gp.Device) -> None:
    x = numbers("float32", (4, 5, 6, 7))
    ours = gp.from_numpy(x)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        for key in ((), (slice(None, None, 2),), (Ellipsis, slice(None, None, -3)), (slice(1, 3), 2)):
            a, b = x.transpose(order)[key], ours.transpose(order)[key]
            for axis in (0, -1, (0, a.ndim - 1), (0, 1, 2)[: a.ndim], None):
                check_sum(a, b, axis)


def test_sum_edges(device: gp.Device) -> None:
    assert gp.sum(gp.zeros((0, 3)), axis=0).tolist() == [0, 0, 0]
    assert gp.sum(gp.zeros((3, 0))).item() == 0
    assert gp.sum(gp.full((), 2.5)).item() == 2.5
    special = gp.asarray([1.0, np.inf, 2.0], "float32")
    assert gp.sum(special).item() == np.inf
    assert np.isnan(gp.sum(special - np.float32(np.inf)).item())
    x = gp.from_numpy(numbers("float32", (10, 20)))
    out = gp.zeros((10, 2))
    gp.sum(x, axis=1, out=out[:, 1])
    np.testing.assert_array_equal(out.to_numpy()[:, 1], gp.sum(x, axis=1).to_numpy())
    assert not out.to_numpy()[:, 0].any()
    assert gp.sum(gp.ones(300, "int8"), dtype="int8").item() == 300 - 256


def check_product(a: op_cases.Array, b: op_cases.Array, x: gp.GPUArray, y: gp.GPUArray) -> None:
    got = gp.matmul(x, y)
    kind = matmul_type(x.dtype, y.dtype)
    assert got.dtype is kind
    context = f"{x.dtype.name} {a.shape} @ {y.dtype.name} {b.shape}"
    if kind.kind in "biu":
        to = gp.to_numpy_dtype(kind)
        np.testing.assert_array_equal(got.to_numpy(), np.matmul(a.astype(to), b.astype(to)), context)
        return
    exact, terms = np.matmul(wide(a), wide(b)), np.matmul(np.abs(wide(a)), np.abs(wide(b)))
    assert got.shape == exact.shape
    # The products are added in one chain: its roundings grow with its length.
    assert_near(got.to_numpy(), np.asarray(exact), np.asarray(terms) * max(1, a.shape[-1] / 64), kind.name, context)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_products_of_every_type(name: str, device: gp.Device) -> None:
    a, b = numbers(name, (65, 50), 1), numbers(name, (50, 67), 2)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    check_product(a, b, x, y)
    check_product(b.T, a.T, y.T, x.T)
    check_product(a[::-2, ::2], b[::2, ::-1], x[::-2, ::2], y[::2, ::-1])
    stack = numbers(name, (3, 4, 65, 50), 3)
    check_product(stack, b, gp.from_numpy(stack), y)
    check_product(a[0], b, x[0], y)
    check_product(a, b[:, 0], x, y[:, 0])


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1, 1), (1, 1000, 1), (3, 5, 7), (16, 16, 16), (63, 64, 65), (64, 64, 64), (129, 17, 128), (1, 300, 200)],
)
def test_products_of_every_shape(m: int, k: int, n: int, device: gp.Device) -> None:
    a, b = numbers("float32", (m, k), 1), numbers("float32", (k, n), 2)
    check_product(a, b, gp.from_numpy(a), gp.from_numpy(b))


def test_batches_broadcast(device: gp.Device) -> None:
    a, b = numbers("float32", (2, 1, 3, 20, 30), 1), numbers("float32", (4, 1, 30, 10), 2)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    check_product(a, b, x, y)
    wide_x = x._broadcast_to((2, 4, 3, 20, 30))
    check_product(np.broadcast_to(a, (2, 4, 3, 20, 30)), b, wide_x, y)
    check_product(a.swapaxes(-1, -2), a, x.transpose(0, 1, 2, 4, 3), x)


def test_products_without_terms_or_results(device: gp.Device) -> None:
    assert not gp.matmul(gp.ones((3, 0)), gp.ones((0, 4))).to_numpy().any()
    assert gp.matmul(gp.ones((0, 3)), gp.ones((3, 4))).shape == (0, 4)


def test_product_into_an_output_that_is_an_operand(device: gp.Device) -> None:
    a, b = numbers("float32", (40, 40), 1), numbers("float32", (40, 40), 2)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    want = gp.matmul(x, y).to_numpy()
    gp.matmul(x, y, out=y)
    np.testing.assert_array_equal(y.to_numpy(), want)
    room = gp.zeros((40, 80))
    gp.matmul(x, gp.from_numpy(b), out=room[:, 1::2])
    np.testing.assert_array_equal(room.to_numpy()[:, 1::2], want)
    assert not room.to_numpy()[:, ::2].any()


def test_float32_products_are_true_float32(device: gp.Device) -> None:
    """A shortened mantissa would lose the small part of these numbers."""
    a = np.full((64, 64), 1 + 2.0**-20, np.float32)
    got = gp.matmul(gp.from_numpy(a), gp.eye(64)).to_numpy()
    np.testing.assert_array_equal(got, a)


@pytest.mark.parametrize("name", ["int32", "float16", "float64"])
def test_mixed_products(name: str, device: gp.Device) -> None:
    a, b = numbers(name, (20, 30), 1), numbers("float32", (30, 20), 2)
    if name == "int32":
        a %= 100
    check_product(a, b, gp.from_numpy(a), gp.from_numpy(b))
