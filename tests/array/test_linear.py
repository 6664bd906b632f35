"""Sums and matrix products on the CPU device against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp

TYPES = [
    "bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn",
    "float8_e5m2", "complex64", "complex128",
]  # fmt: skip
EPS = {
    "float16": 1e-3,
    "bfloat16": 8e-3,
    "float8_e4m3fn": 0.13,
    "float8_e5m2": 0.26,
    "float32": 3e-6,
    "complex64": 3e-6,
}


def values(shape: tuple[int, ...], name: str, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    kind = gp.to_numpy_dtype(name)
    if kind.kind in "biu":
        return rng.integers(0, 2 if kind.kind == "b" else 9, shape).astype(kind)
    made = rng.uniform(-1, 1, shape)
    return (made + 1j * rng.uniform(-1, 1, shape) if kind.kind == "c" else made).astype(kind)


def close(got: gp.GPUArray, wanted: Any, name: str) -> None:
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    eps = EPS.get(name, 1e-12)
    np.testing.assert_allclose(got.to_numpy().astype(wide), np.asarray(wanted).astype(wide), rtol=eps, atol=4 * eps)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (2, 0, 1), ()])
def test_sum(name: str, axis: Any) -> None:
    host = values((3, 4, 5), name)
    x = gp.from_numpy(host)
    small = gp.dtype(name).itemsize <= 2 and gp.dtype(name).kind == "f"
    wanted = host.astype(np.float32 if small else host.dtype).sum(axis)
    got = gp.sum(x, axis)
    assert got.shape == wanted.shape
    assert gp.to_numpy_dtype(got.dtype) == (host.dtype if small else wanted.dtype)
    close(got, wanted, name)
    assert gp.sum(x, axis, keepdims=True).shape == np.zeros(host.shape).sum(axis, keepdims=True).shape
    assert x.sum(axis).tolist() == got.tolist()


@pytest.mark.parametrize(("name", "target"), [("float16", "float32"), ("float16", "float64"), ("bfloat16", "float32")])
def test_a_sum_is_rounded_once_to_the_type_asked_for(name: str, target: str) -> None:
    x = gp.ones(100_001, name)
    assert gp.sum(x, dtype=target).item() == 100_001
    assert gp.sum(x, out=gp.zeros((), target)).item() == 100_001


def test_out_must_hold_the_type_asked_for() -> None:
    x = gp.ones(3)
    with pytest.raises(gp.DTypeError, match=r"dtype float64 cannot be written to out of int32"):
        gp.sum(x, dtype="float64", out=gp.zeros((), "int32"))
    with pytest.raises(gp.DTypeError, match=r"dtype float32 cannot be written to out of int64"):
        gp.sum(gp.ones(3, "int32"), dtype="float32", out=gp.zeros((), "int64"))
    assert gp.sum(x, dtype="float64", out=gp.zeros((), "float32")).item() == 3


@given(data=st.data())
@settings(max_examples=60)
def test_sum_of_any_view(data: st.DataObject) -> None:
    host = np.arange(210, dtype=np.int32).reshape(5, 6, 7)
    key = data.draw(hnp.basic_indices(host.shape, allow_ellipsis=True, allow_newaxis=True))
    x, host = gp.from_numpy(host)[key].T, np.asarray(host[key]).T
    axes = (
        data.draw(st.lists(st.integers(0, max(host.ndim - 1, 0)), unique=True, max_size=host.ndim)) if host.ndim else []
    )
    assert gp.sum(x, tuple(axes)).tolist() == host.sum(tuple(axes)).tolist()
    assert gp.sum(x).item() == host.sum()


def test_sum_into() -> None:
    host = values((4, 6), "float32")
    x = gp.from_numpy(host)
    out = gp.zeros((6, 2))
    assert gp.sum(x, 0, out=out[:, 1]).tolist() == out[:, 1].tolist()
    np.testing.assert_allclose(out[:, 1].to_numpy(), host.sum(0), rtol=1e-6)
    # Into a row of the operand itself.
    gp.sum(x, 0, out=x[0])
    np.testing.assert_allclose(x[0].to_numpy(), host.sum(0), rtol=1e-6)
    assert x[1:].tolist() == host[1:].tolist()
    assert gp.sum(gp.ones(3, "int8"), dtype="int64").dtype is gp.int64
    assert gp.sum_axis(gp.ones((2, 3)), 1, keepdims=True).tolist() == [[3], [3]]


def test_sum_is_run_to_run_equal() -> None:
    host = np.random.default_rng(0).standard_normal(10_001).astype(np.float32)
    x = gp.from_numpy(host)
    assert len({gp.sum(x).to_numpy().tobytes() for _ in range(5)}) == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: gp.sum(x, 2), np.exceptions.AxisError),
        (lambda x: gp.sum(x, (0, -2)), ValueError),
        (lambda x: gp.sum(x, 0, out=gp.zeros(2)), gp.ShapeError),
        (lambda x: gp.sum(x, 0, out=gp.zeros(3, "int32")), gp.DTypeError),
        (lambda x: gp.sum(np.zeros(3)), TypeError),
        (lambda x: gp.matmul(x, x), gp.ShapeError),
        (lambda x: gp.matmul(x, gp.zeros(())), gp.ShapeError),
        (lambda x: gp.matmul(gp.zeros((2, 1, 2)), gp.zeros((3, 2, 1))), gp.ShapeError),
        (lambda x: gp.matmul(x, np.zeros((3, 2))), TypeError),
        (lambda x: gp.matmul(x, x.T, out=gp.zeros((2, 3))), gp.ShapeError),
        (lambda x: gp.matmul(x, x.T, out=gp.zeros((2, 2), "int8")), gp.DTypeError),
        (lambda x: x @ 3, TypeError),
    ],
)
def test_bad_calls(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(gp.zeros((2, 3)))


@pytest.mark.parametrize("name", TYPES)
def test_matmul_types(name: str) -> None:
    a, b = values((5, 7), name, 1), values((7, 4), name, 2)
    wide = np.complex128 if gp.dtype(name).kind == "c" else np.float64 if gp.dtype(name).kind == "f" else a.dtype
    got = gp.matmul(gp.from_numpy(a), gp.from_numpy(b))
    wanted = a.astype(wide) @ b.astype(wide)
    assert got.dtype.name == name
    close(got, wanted, name)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 4), (4,)),
        ((5, 2, 4), (4, 3)),
        ((2, 4), (5, 4, 3)),
        ((5, 1, 2, 4), (6, 4, 3)),
        ((0, 4), (4, 3)),
        ((2, 0), (0, 3)),
        ((3, 5, 4), (4,)),
        ((4,), (3, 4, 5)),
    ],
)
def test_matmul_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = values(left, "float64", 3), values(right, "float64", 4)
    got = gp.from_numpy(a) @ gp.from_numpy(b)
    wanted = a @ b
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got.to_numpy(), wanted, rtol=1e-12, atol=1e-14)


def test_matmul_of_views_and_into_its_operand() -> None:
    a = values((8, 8), "float32", 5)
    x = gp.from_numpy(a)
    np.testing.assert_allclose(
        (x.T[1:, ::2] @ x[::2, ::-1]).to_numpy(), a.T[1:, ::2] @ a[::2, ::-1], rtol=1e-5, atol=1e-6
    )
    wanted = a @ a.T
    gp.matmul(x, x.T, out=x)
    np.testing.assert_allclose(x.to_numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_integers_do_not_overflow_early_nor_go_through_floats() -> None:
    a = np.full((2, 3), 2**53 + 1, np.int64)
    got = gp.from_numpy(a) @ gp.ones((3, 2), "int64")
    assert got.tolist() == (a @ np.ones((3, 2), np.int64)).tolist()
    assert gp.sum(gp.full(1000, 200, "uint8")).item() == 200_000


def test_out_that_overlaps_itself_is_refused() -> None:
    spread = gp.zeros((1, 3))._broadcast_to((2, 3))
    with pytest.raises(gp.ShapeError, match=r"sum\(\): out is a broadcast view whose elements share memory"):
        gp.sum(gp.ones((2, 3, 4)), axis=2, out=spread)
    with pytest.raises(gp.ShapeError, match=r"matmul\(\): out is a broadcast view whose elements share memory"):
        gp.matmul(gp.ones((2, 4)), gp.ones((4, 3)), out=spread)
    # Views without shared elements are written, whatever their order.
    for out in (gp.zeros((3, 2)).T, gp.zeros((4, 6))[::-2, ::2], gp.zeros((2, 1, 3))[:, 0]):
        assert gp.sum(gp.ones((2, 3, 4)), axis=2, out=out).tolist() == [[4, 4, 4], [4, 4, 4]]


def test_sum_axis_writes_to_out() -> None:
    out = gp.zeros(2)
    assert gp.sum_axis(gp.ones((2, 3)), 1, out=out) is out
    assert out.tolist() == [3, 3]
