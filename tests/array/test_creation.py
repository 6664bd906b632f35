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
    assert same_bits(gp.linspace(-1, 1, 7, dtype="float32").to_numpy(), np.linspace(-1, 1, 7).astype(np.float32))
    assert same_bits(gp.eye(3, 4, dtype="bfloat16").to_numpy(), np.eye(3, 4).astype(gp.to_numpy_dtype("bfloat16")))


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


RANGES: list[tuple[Any, ...]] = [
    (5,), (2, 11, 3), (10, 0, -3), (0, 1, 0.1), (0.5, 3), (1e17, 1e17 + 100, 7.0), (-3, 3, 0.7), (5, 0), (0, 0),
    (2**62, 2**62 + 5), (2**63, 2**63 + 3), (np.int8(3),), (np.float32(3),), (0, np.float32(1), np.float32(0.1)),
    (0, 1e-320, 1e300), (True, 4), (0, 5, 2j), (1 + 1j, 5),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["emulated", "cpu"])
def test_ranges_have_numpys_bits(kind: str) -> None:
    if kind == "emulated" and not gp.is_nvrtc_available():
        pytest.skip("NVRTC is not installed")
    with gp.device(kind):
        for call in RANGES:
            try:
                wanted = np.arange(*call)
            except (TypeError, ValueError) as error:
                with pytest.raises(type(error)):
                    gp.arange(*call)
                continue
            assert same_bits(gp.arange(*call).to_numpy(), wanted), call
        for name in ("int16", "float16", "float32", "bfloat16", "uint64"):
            to = gp.to_numpy_dtype(name)
            for args in ((3000,), (1, 100, 3), (0, 3, 0.25)):
                with np.errstate(all="ignore"):
                    assert same_bits(gp.arange(*args, dtype=name).to_numpy(), np.arange(*args, dtype=to)), (name, args)
        for first, last in ((0, 1), (-1.5, 7), (3, 3), (1e-320, 2e-320), (5, -5), (0, 1e300), (0, np.float32(1))):
            for num in (0, 1, 2, 50, 1025):
                for endpoint in (True, False):
                    theirs = np.linspace(first, last, num, endpoint, retstep=True)
                    ours = gp.linspace(first, last, num, endpoint, retstep=True)
                    assert same_bits(ours[0].to_numpy(), theirs[0]), (first, last, num, endpoint)
                    assert ours[1] == theirs[1] or np.isnan(theirs[1])
        for name in ("float32", "int32"):
            to = gp.to_numpy_dtype(name)
            assert same_bits(gp.linspace(0, 10, 7, dtype=name).to_numpy(), np.linspace(0, 10, 7, dtype=to))
            assert same_bits(gp.linspace(-7, 3, 9, dtype=name).to_numpy(), np.linspace(-7, 3, 9, dtype=to))
        a, b = np.array([0.0, 1.0]), np.array([[5.0], [3.0]])
        for axis in (0, -1, 1):
            ours = gp.linspace(gp.from_numpy(a), gp.from_numpy(b), 4, axis=axis)
            np.testing.assert_allclose(ours.to_numpy(), np.linspace(a, b, 4, axis=axis), rtol=1e-15)
        np.testing.assert_allclose(gp.logspace(0, 3, 7).to_numpy(), np.logspace(0, 3, 7), rtol=1e-14)
        np.testing.assert_allclose(gp.logspace(0, 3, 7, base=2).to_numpy(), np.logspace(0, 3, 7, base=2), rtol=1e-14)
        for args in ((1, 1000, 4), (-1, -8, 4), (3, 7, 1), (1, 256, 9), (2, 3, 5, False), (-1, 1, 3), (1, 2, 0)):
            with np.errstate(all="ignore"):
                got, wanted = gp.geomspace(*args).to_numpy(), np.geomspace(*args)
            np.testing.assert_allclose(got, wanted, rtol=1e-14)
            assert got.dtype == wanted.dtype
        assert gp.geomspace(1, 8, 4, dtype="int32").dtype is gp.int32


def test_ranges_that_have_no_length() -> None:
    with pytest.raises(ZeroDivisionError, match="step is 0"):
        gp.arange(0, 5, 0)
    with pytest.raises(ZeroDivisionError, match="step is 0"):
        gp.arange(0.0, 5.0, 0.0)
    with pytest.raises(ValueError, match="NaN"):
        gp.arange(float("nan"))
    for stop in (1e300, float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="maximum allowed size"):
            gp.arange(0, stop)
    with pytest.raises(ValueError, match="64 bits"):
        gp.arange(2**70)
    with pytest.raises(TypeError, match="item"):
        gp.arange(gp.ones(()))
    with pytest.raises(TypeError, match="str"):
        gp.arange("5")
    with pytest.raises(ValueError, match="negative"):
        gp.linspace(0, 1, -1)
    with pytest.raises(TypeError):
        gp.linspace(0, 1, 2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dtype="):
        gp.linspace(0, 1, 2, "float32")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="zero"):
        gp.geomspace(0, 1)


def test_likes_take_shapes_and_none() -> None:
    x = gp.ones((2, 3), "int16")
    for ours, theirs in ((gp.zeros_like, np.zeros_like), (gp.ones_like, np.ones_like)):
        assert same_bits(ours(x, shape=4).to_numpy(), theirs(x.to_numpy(), shape=4))
        assert same_bits(ours(x, dtype=None).to_numpy(), theirs(x.to_numpy()))
    assert same_bits(gp.full_like(x, 7, shape=(1, 2)).to_numpy(), np.full((1, 2), 7, np.int16))
    assert gp.empty_like(x, shape=(5,)).shape == (5,)
    for function in (gp.zeros, gp.ones, gp.empty):
        assert function(2, None).dtype is gp.float32
        assert function((2, 3), order="F").T.is_contiguous
    assert gp.full(2, 3, None).dtype is gp.int64
    assert gp.full((2, 3), gp.asarray([1, 2, 3])).tolist() == [[1, 2, 3]] * 2
    assert gp.full((2, 2), fill_value=[1.5, 2.5]).tolist() == [[1.5, 2.5]] * 2
    assert gp.full_like(x, [1, 2, 3]).tolist() == [[1, 2, 3]] * 2
    for name in SMALL:
        assert gp.full((2,), 1.5, name).tolist() == [1.5, 1.5]
    with pytest.raises(ValueError, match="order"):
        gp.zeros(2, order="Q")


def test_shapes_beyond_64_bits() -> None:
    for shape in (2**63, (2, 2**70), -(2**80)):
        with pytest.raises(ValueError, match=r"at most 2\*\*63 - 1"):
            gp.zeros(shape)
        with pytest.raises(ValueError, match=r"at most 2\*\*63 - 1"):
            gp.ones(4).reshape(shape)


def test_array_and_its_siblings() -> None:
    x = gp.asarray([[1.0, 2.0]])
    assert gp.array(x) is not x
    assert not gp.array(x)._shares_memory(x)
    assert gp.array(x, copy=False) is x
    assert gp.array(x, copy=None) is x
    with pytest.raises(ValueError, match="copy"):
        gp.array(x, "int8", copy=False)
    with pytest.raises(ValueError, match="copy"):
        gp.asarray([1], copy=False)
    assert gp.asarray(x, copy=True) is not x
    assert gp.array([1, 2], ndmin=3).shape == (1, 1, 2)
    assert gp.array(3, "float16").dtype is gp.float16
    assert gp.array(np.ones((2, 3)), order="F").T.is_contiguous
    assert gp.asarray(x.T, order="C").is_contiguous
    assert gp.ascontiguousarray(x) is x
    assert gp.ascontiguousarray(gp.ones((2, 3)).T).is_contiguous
    assert gp.ascontiguousarray(gp.asarray(3)).shape == (1,)
    assert gp.asfortranarray(gp.ones((2, 3))).T.is_contiguous
    assert gp.copy(x) is not x
    assert gp.copy([1, 2]).tolist() == [1, 2]


def test_lists_of_arrays_are_stacked_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = gp.asarray([1, 2]), gp.asarray([3.5, 4.5])

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an array was read")

    from pygpukit import _pygpukit_rust as native

    with monkeypatch.context() as m:
        m.setattr(native, "read_buffer", refuse)
        rows, deep, mixed = gp.asarray([a, b]), gp.array([[a, a], (b, b)]), gp.asarray([a, [5, 6]])
        typed = gp.asarray([a[0], 2.5, a[1]], "float16")
        with pytest.raises(ValueError, match="shape"):
            gp.asarray([a, b[:1]])
        with pytest.raises(ValueError, match="shape"):
            gp.asarray([a, 3])
    assert rows.tolist() == [[1, 2], [3.5, 4.5]]
    assert deep.tolist() == [[[1, 2], [1, 2]], [[3.5, 4.5], [3.5, 4.5]]]
    assert mixed.tolist() == [[1, 2], [5, 6]]
    assert mixed.dtype is gp.int64
    assert typed.tolist() == [1, 2.5, 2]
    assert typed.dtype is gp.float16
