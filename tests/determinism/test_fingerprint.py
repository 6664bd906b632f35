"""Digests of arrays: equal exactly for equal type, shape and bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pygpukit as gp

# Kept from machine to machine and from release to release.
KNOWN = {
    "float32": "a6c9259bf4a00824b4db0e2de5192366",
}


def test_known_digests() -> None:
    assert gp.fingerprint(gp.asarray([1.0, 2.0], "float32")) == KNOWN["float32"]


@settings(max_examples=60, derandomize=True)
@given(arrays.arrays(st.sampled_from([np.float32, np.int16, np.uint8, np.bool_, np.complex64]),
                     arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)), st.data())  # fmt: skip
def test_layout_and_device_do_not_matter(x: np.ndarray, data: st.DataObject) -> None:
    want = gp.fingerprint(x)
    assert len(want) == 32
    assert gp.fingerprint(gp.from_numpy(x)) == want
    axes = data.draw(st.permutations(range(x.ndim)))
    back = tuple(int(i) for i in np.argsort(axes))
    turned = gp.from_numpy(np.ascontiguousarray(x.transpose(axes)))
    if x.ndim:
        assert gp.fingerprint(turned.transpose(*back)) == want
    with gp.device("emulated"):
        assert gp.fingerprint(gp.from_numpy(x)) == want


@settings(max_examples=40, derandomize=True)
@given(st.data())
def test_every_bit_matters(data: st.DataObject) -> None:
    x = data.draw(arrays.arrays(np.uint32, 7))
    at, bit = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 31))
    other = x.copy()
    other[at] ^= np.uint32(1 << bit)
    # NaNs too: these are the bits of floats.
    one, two = (gp.fingerprint(gp.from_numpy(bits.view(np.float32))) for bits in (x, other))
    assert one != two


def test_type_and_shape_matter() -> None:
    zero = [gp.zeros(shape, dtype) for shape in (4, (2, 2), (4, 1), ()) for dtype in ("float32", "int32", "bfloat16")]
    zero += [gp.zeros((0, 3)), gp.zeros((3, 0)), gp.zeros(2, "float64")]
    assert len({gp.fingerprint(x) for x in zero}) == len(zero)
    assert gp.fingerprint(gp.asarray([0.0])) != gp.fingerprint(gp.asarray([-0.0]))


def test_byte_order_does_not_matter() -> None:
    x = np.arange(5, dtype="<i4")
    assert gp.fingerprint(x.astype(">i4")) == gp.fingerprint(x)


def test_small_floats() -> None:
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        host = np.arange(8).astype(getattr(ml_dtypes, name))
        assert gp.fingerprint(gp.from_numpy(host)) == gp.fingerprint(host)


def test_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="arrays of numbers"):
        gp.fingerprint(np.array([object()]))
