"""Making arrays: every type and shape, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
]  # fmt: skip
SMALL = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]

shapes = hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3)


def same_bits(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    """Equal in type, shape and every bit; any NaN equals any NaN."""
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    if x.dtype.kind == "c":
        return same_bits(x.real.copy(), y.real.copy()) and same_bits(x.imag.copy(), y.imag.copy())
    bits = np.ascontiguousarray(x).view(f"V{x.itemsize}") == np.ascontiguousarray(y).view(f"V{x.itemsize}")
    return bool(np.all(bits.reshape(x.shape) | ((x != x) & (y != y))))


@pytest.mark.parametrize("name", DTYPES)
@given(data=st.data())
@settings(max_examples=15)
def test_there_and_back(name: str, data: st.DataObject) -> None:
    kind = gp.to_numpy_dtype(name)
    shape = data.draw(shapes)
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    host = ((raw & 1).astype(bool) if name == "bool" else raw.view(kind)).reshape(shape)
    x = gp.from_numpy(host)
    assert (x.shape, x.dtype.name, x.size, x.ndim) == (host.shape, name, host.size, host.ndim)
    assert (x.nbytes, x.itemsize, x.is_contiguous) == (host.nbytes, host.itemsize, True)
    assert x.to_numpy().tobytes() == host.tobytes()
    assert x.to_numpy().dtype == host.dtype


@given(data=st.data())
@settings(max_examples=40)
def test_a_strided_host_array_is_copied_in_order(data: st.DataObject) -> None:
    base = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    host = base[data.draw(hnp.basic_indices(base.shape, allow_ellipsis=True))]
    assert gp.from_numpy(host).to_numpy().tolist() == np.asarray(host).tolist()


def test_the_copy_is_a_copy() -> None:
    host = np.arange(4.0)
    x = gp.from_numpy(host)
    host[:] = -1
    assert x.tolist() == [0, 1, 2, 3]
    back = x.to_numpy()
    back[:] = -1
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", DTYPES)
def test_zeros_ones_and_their_likes(name: str) -> None:
    kind = gp.to_numpy_dtype(name)
    for ours, theirs in ((gp.zeros, np.zeros), (gp.ones, np.ones)):
        for shape in ((), 3, (2, 0, 4), [2, 3]):
            x = ours(shape, name)
            assert same_bits(x.to_numpy(), theirs(shape, kind)), (ours, shape)
    like = gp.empty((2, 5), name)
    assert same_bits(gp.zeros_like(like).to_numpy(), np.zeros((2, 5), kind))
    assert same_bits(gp.ones_like(like).to_numpy(), np.ones((2, 5), kind))
    assert gp.empty_like(like, "int8").dtype is gp.int8


@pytest.mark.parametrize("name", DTYPES)
@given(value=st.integers(0, 1) | st.floats(-448, 448, width=32))
@settings(max_examples=30)
def test_full_rounds_as_numpy_does(name: str, value: float) -> None:
    kind = gp.to_numpy_dtype(name)
    if kind.kind in "u":
        value = abs(value)
    if kind.itemsize == 1 and kind.kind in "iu":
        value = value / 4
    expected = np.asarray(value).astype(kind)
    assert same_bits(gp.full((2, 3), value, name).to_numpy(), np.full((2, 3), expected))
    # A view is filled by the operator and not by the driver: the two must agree.
    grid = gp.zeros((4, 6), name)
    grid[::2, 1::2].fill(value)
    host = np.zeros((4, 6), kind)
    host[::2, 1::2] = expected
    assert same_bits(grid.to_numpy(), host)


@pytest.mark.parametrize("name", SMALL)
@given(value=st.floats(width=64, allow_nan=False))
@settings(max_examples=300)
def test_small_floats_round_a_scalar_to_nearest_even(name: str, value: float) -> None:
    kind = gp.to_numpy_dtype(name)
    # NumPy and ml_dtypes go through float32 for some types; where that rounds twice, the nearer value is right.
    with np.errstate(all="ignore"):
        expected = np.float64(value).astype(kind)
        twice = np.float64(value).astype(np.float32).astype(kind)
    if np.isfinite(value) and not np.isfinite(float(expected)) and not np.isfinite(float(twice)):
        with pytest.raises(OverflowError, match=name):
            gp.full(1, value, name)
        return
    got = gp.full(1, value, name).to_numpy()[0]
    candidates = {float(expected), float(twice)}
    if not any(same_bits(np.asarray(got), np.asarray(c)) for c in (expected, twice)):
        error = abs(float(got) - value)
        assert all(error <= abs(c - value) for c in candidates if np.isfinite(c)), (got, candidates)


@pytest.mark.parametrize("name", SMALL)
def test_every_value_of_a_small_float_survives_fill(name: str) -> None:
    kind = gp.to_numpy_dtype(name)
    patterns = np.arange(2 ** min(8 * kind.itemsize, 12), dtype=f"u{kind.itemsize}")
    step = 2 ** (8 * kind.itemsize) // patterns.size
    values = (patterns * step).astype(patterns.dtype).view(kind)
    for value in values[:: max(1, values.size // 256)]:
        got = gp.full((), float(value), name).to_numpy()
        assert same_bits(got, np.asarray(value)), value


def test_default_types_are_numpys() -> None:
    for value in (True, 3, 2.5, 1 + 2j):
        assert gp.to_numpy_dtype(gp.full(2, value).dtype) == np.full(2, value).dtype
        assert gp.to_numpy_dtype(gp.asarray([value]).dtype) == np.asarray([value]).dtype
    assert gp.zeros(1).dtype is gp.float32
    assert gp.arange(3).dtype is gp.int64


def test_ranges_are_numpys() -> None:
    assert gp.arange(5).tolist() == list(range(5))
    assert gp.arange(5, step=2).tolist() == [0, 2, 4]
    assert gp.arange(2.5, step=0.5).tolist() == [0, 0.5, 1, 1.5, 2]
    assert gp.arange(2, 11, 3, "int8").tolist() == [2, 5, 8]
    assert gp.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert gp.arange(3, 0).shape == (0,)
    assert same_bits(gp.linspace(-1, 1, 7, "float32").to_numpy(), np.linspace(-1, 1, 7).astype(np.float32))
    assert same_bits(gp.eye(3, 4, "bfloat16").to_numpy(), np.eye(3, 4).astype(gp.to_numpy_dtype("bfloat16")))


def test_asarray() -> None:
    x = gp.zeros(3)
    assert gp.asarray(x) is x
    assert gp.asarray(x, "float32") is x
    assert gp.asarray(x, "int8").dtype is gp.int8
    assert gp.asarray([[1, 2], [3, 4]], "bf16").tolist() == [[1, 2], [3, 4]]
    assert gp.asarray(2.5).shape == ()


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a NumPy array, not list.*asarray"):
        gp.from_numpy([1, 2])  # type: ignore[arg-type]
    with pytest.raises(gp.DTypeError, match="not an element type"):
        gp.from_numpy(np.array([None]))
    with pytest.raises(gp.DTypeError, match="byte order"):
        gp.from_numpy(np.zeros(2, ">f4"))
    with pytest.raises(gp.DTypeError, match="float31"):
        gp.zeros(2, "float31")
    with pytest.raises(TypeError, match="fill"):
        gp.zeros(2).fill("1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        (-1, gp.ShapeError, "negative"),
        ((2, -3), gp.ShapeError, "negative"),
        ([1] * 9, gp.ShapeError, "at most 8"),
        ((2**40, 2**40), gp.ShapeError, "too many elements"),
        (2**62, gp.ShapeError, "too many elements"),
        ("3", TypeError, "sequence of ints"),
        ((2.5,), TypeError, "sequence of ints"),
        (None, TypeError, "sequence of ints"),
    ],
)
def test_bad_shapes(shape: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gp.empty(shape)


def test_more_than_there_is() -> None:
    with pytest.raises(gp.OutOfMemoryError, match=r"requested \d"):
        gp.empty(2**55)


@pytest.mark.parametrize(("value", "name"), [(256, "uint8"), (-1, "uint8"), (128, "int8"), (2**63, "int64")])
def test_an_integer_out_of_range_is_refused(value: int, name: str) -> None:
    with pytest.raises(OverflowError, match=str(value)):
        gp.full(2, value, name)


def test_an_array_of_another_device_does_not_pass() -> None:
    from pygpukit import _pygpukit_rust as native

    other = native.open_cpu(1 << 24, None, True)
    assert gp.zeros(2, device=other).tolist() == [0, 0]
    x = gp.zeros(2, device=other)
    with pytest.raises(gp.DeviceError, match="another device"):
        gp.add(gp.ones(2), x)
