"""Scans give what NumPy gives, in an order that depends on the length of the axis alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.units import ALL_TYPES

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
UFUNCS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


def near(got: gp.GPUArray, host: np.ndarray[Any, Any], axis: int | None, kind: str = "float32") -> None:
    """Assert that a cumulative sum is that in double precision, within 12 roundings of the sum of magnitudes."""
    exact = np.cumsum(host, axis, np.float64)
    size = np.cumsum(np.abs(host), axis, np.float64)
    assert got.shape == exact.shape
    assert got.dtype == gp.dtype(kind)
    assert np.all(np.abs(got.to_numpy() - exact) <= 12 * np.finfo(kind).eps * size)


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_types_are_numpys(kind: str) -> None:
    to = gp.to_numpy_dtype(kind)
    host = np.array([[1, 0, 1], [1, 1, 0]]).astype(to)
    x = gp.from_numpy(host)
    for name, ufunc in UFUNCS.items():
        if host.dtype.kind in "biufc":
            wide = host.dtype if name in ("cummax", "cummin") else getattr(np, name)(host).dtype
        else:
            wide = to
        for axis in (0, 1, -1):
            got = getattr(gp, name)(x, axis)
            expected = ufunc.accumulate(host.astype(np.complex64 if to.kind == "c" else np.float32), axis)
            assert got.dtype == gp.dtype(wide)
            np.testing.assert_array_equal(got.to_numpy(), expected.astype(wide))
        assert getattr(gp, name)(x).shape == (6,)


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_and_lengths(device: str) -> None:
    rng = np.random.default_rng(4)
    with gp.device(device):
        for shape, axes in (((3, 70, 5), (None, 0, 1, 2)), ((2, 513), (1,)), ((2, 4500), (1,)), ((20_001, 2), (0,)),
                            ((35_000,), (0,)), ((1, 1), (0, 1))):  # fmt: skip
            host = rng.standard_normal(shape).astype(np.float32)
            x = gp.from_numpy(host)
            for axis in axes:
                if device == "cpu" and host.size > 10_000:
                    # NumPy adds one after the other, which rounds more often.
                    assert np.array_equal(gp.cumsum(x, axis).to_numpy(), np.cumsum(host, axis))
                else:
                    near(gp.cumsum(x, axis), host, axis)
        host = rng.standard_normal((6, 40, 9)).astype(np.float32)
        x = gp.from_numpy(host)
        near(gp.cumsum(x.T, 1), host.T, 1)
        near(gp.cumsum(x.T, 2), host.T, 2)
        near(gp.cumsum(x[::-1, ::3, 1:], 1), host[::-1, ::3, 1:], 1)
        near(gp.cumsum(x[:, ::-1]), host[:, ::-1], None)
        out = gp.zeros((40, 6, 9)).transpose(1, 0, 2)
        assert gp.cumsum(x, 1, out=out) is out
        near(out, host, 1)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_bits_depend_on_the_axis_alone(device: str) -> None:
    host = np.random.default_rng(5).standard_normal((3, 17_000)).astype(np.float32)
    with gp.device(device):
        x = gp.from_numpy(host)
        want = gp.cumsum(x, 1).to_numpy()
        assert gp.cumsum(x[1]).to_numpy().tobytes() == want[1].tobytes()
        columns = gp.cumsum(gp.from_numpy(np.ascontiguousarray(host.T)), 0).to_numpy()
        assert np.ascontiguousarray(columns.T).tobytes() == want.tobytes()
        # What follows an element does not count before a block of the longer axis ends.
        assert gp.cumsum(x[:, :300], 1).to_numpy().tobytes() == np.ascontiguousarray(want[:, :300]).tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_products_extremes_and_the_array_api(device: str) -> None:
    host = np.random.default_rng(6).standard_normal((4, 50)).astype(np.float32)
    host[1, 20] = np.nan
    with gp.device(device):
        x = gp.from_numpy(host)
        np.testing.assert_allclose(gp.cumprod(x, 1).to_numpy(), np.cumprod(host, 1), rtol=1e-5)
        for name in ("cummax", "cummin"):
            np.testing.assert_array_equal(getattr(gp, name)(x, 1).to_numpy(), UFUNCS[name].accumulate(host, 1))
        small = gp.from_numpy(np.arange(6, dtype=np.int16).reshape(2, 3))
        assert gp.cumsum(small, 1, dtype="int32").tolist() == [[0, 1, 3], [3, 7, 12]]
        assert gp.cumsum(small, 0).dtype is gp.int64
        for axis in (0, 1):
            for first in (False, True):
                got = gp.cumulative_sum(small, axis=axis, include_initial=first)
                ours, theirs = got.to_numpy(), np.cumulative_sum(small.to_numpy(), axis=axis, include_initial=first)
                np.testing.assert_array_equal(ours, theirs)
                assert ours.dtype == theirs.dtype
        assert gp.cumulative_prod(small[1], include_initial=True).tolist() == [1, 3, 12, 60]


def test_edges_and_errors() -> None:
    assert gp.cumsum(gp.zeros((0, 3)), 0).shape == (0, 3)
    assert gp.cumsum(gp.zeros((0, 3))).shape == (0,)
    assert gp.cumsum(gp.full((), 3.0)).tolist() == np.cumsum(3.0).tolist()
    x = gp.ones((2, 3))
    for axis in (2, -3):
        with pytest.raises(np.exceptions.AxisError):
            gp.cumsum(x, axis)
    with pytest.raises(ValueError, match="need an axis"):
        gp.cumulative_sum(x)
    with pytest.raises(ValueError, match="at least one dimension"):
        gp.cumulative_sum(gp.ones(()), axis=0)
    with pytest.raises(TypeError):
        gp.cumsum(x, (0, 1))
    with pytest.raises(TypeError):
        gp.cumsum(x.astype("complex64"), 0, "float32")


@pytest.mark.parametrize("device", DEVICES)
def test_axes_of_one_element_have_any_stride(device: str) -> None:
    host = np.arange(4, dtype=np.float32)
    with gp.device(device):
        x = gp.from_numpy(host)
        for view in (x._expand(1)._broadcast_to((4, 1)), x.reshape(1, 4).T, x.reshape(4, 1)[:, ::-1], x[:0][:, None]):
            for axis in (0, 1):
                np.testing.assert_array_equal(gp.cumsum(view, axis).to_numpy(), np.cumsum(view.to_numpy(), axis))
        np.testing.assert_array_equal(gp.vander(x, 2).to_numpy(), np.vander(host, 2))
        fitted = gp.polyfit(x.astype("float64"), x.astype("float64") * 2 + 1, 1)
        np.testing.assert_allclose(fitted.to_numpy(), [2, 1], rtol=1e-9)
