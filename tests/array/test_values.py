"""Arrays as Python values: conversion, copying, pickling, printing and truth."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import weakref
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


def sample(name: str, shape: tuple[int, ...] = (3, 4)) -> np.ndarray[Any, Any]:
    return (np.arange(int(np.prod(shape))).reshape(shape) % 5).astype(gp.to_numpy_dtype(name))


@pytest.mark.parametrize("source", DTYPES)
def test_astype(source: str) -> None:
    host = sample(source)
    x = gp.from_numpy(host)
    for target, (view, wanted) in itertools.product(DTYPES, ((x, host), (x.T[::2], host.T[::2]))):
        got = view.astype(target)
        assert got.dtype.name == target
        assert not got._shares_memory(x)
        with np.errstate(all="ignore"):
            plain = wanted.real if wanted.dtype.kind == "c" and gp.dtype(target).kind != "c" else wanted
            expected = plain.astype(gp.to_numpy_dtype(target))
        assert got.to_numpy().tobytes() == np.ascontiguousarray(expected).tobytes(), target


def test_astype_without_a_copy() -> None:
    x = gp.ones(3)
    assert x.astype("float32", copy=False) is x
    assert x.astype("float32") is not x
    assert x.astype("float16", copy=False) is not x


def test_conversions_of_what_does_not_fit() -> None:
    x = gp.asarray([1e30, -1e30, float("nan"), 3.9, -3.9])
    assert x.astype("float16").tolist()[:2] == [float("inf"), float("-inf")]
    assert np.isnan(np.float32(x.astype("float8_e4m3fn").to_numpy()[0]))
    assert x.astype("int32").tolist()[3:] == [3, -3]
    assert x.astype("bool").tolist() == [True] * 5
    assert gp.asarray([300, -1]).astype("uint8").tolist() == [44, 255]
    assert gp.asarray([1j, 0j]).astype("bool").tolist() == [True, False]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_pickle_and_copies(name: str, shape: tuple[int, ...]) -> None:
    host = sample(name, shape)
    x = gp.from_numpy(host)
    for made in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x), x.copy(), x.clone()):
        assert (made.dtype, made.shape) == (x.dtype, x.shape)
        assert made.to_numpy().tobytes() == host.tobytes()
        assert not made._shares_memory(x)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_of_views(protocol: int) -> None:
    x = gp.from_numpy(sample("bfloat16"))
    assert pickle.loads(pickle.dumps(x.T[::-1], protocol)).tolist() == x.T[::-1].tolist()


def test_a_deep_copy_of_a_container() -> None:
    x = gp.ones(2)
    made = copy.deepcopy({"a": [x]})
    x.fill(5)
    assert made["a"][0].tolist() == [1, 1]


@pytest.mark.parametrize("name", DTYPES)
def test_item_and_tolist_are_python_numbers(name: str) -> None:
    x = gp.full((1, 1), 1, name)
    assert x.item() == 1
    assert type(x.item()) in (bool, int, float, complex)
    assert x.tolist() == [[1]]


def test_numbers() -> None:
    assert float(gp.asarray(2.5)) == 2.5
    assert int(gp.asarray([7.9])) == 7
    assert complex(gp.asarray(1 + 2j)) == 1 + 2j
    assert bool(gp.asarray([[3]]))
    assert not gp.asarray(0.0)
    assert [10, 20, 30][gp.asarray(1)] == 20  # type: ignore[call-overload]
    assert range(5)[gp.asarray(2, "uint8")] == 2  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: bool(gp.zeros(2)), ValueError),
        (lambda: bool(gp.zeros(0)), ValueError),
        (lambda: gp.zeros(2).item(), ValueError),
        (lambda: float(gp.zeros((2, 2))), TypeError),
        (lambda: int(gp.zeros(0)), TypeError),
        (lambda: complex(gp.zeros(2)), TypeError),
        (lambda: float(gp.asarray(1j)), TypeError),
        (lambda: [1][gp.asarray(0.0)], TypeError),  # type: ignore[call-overload]
        (lambda: [1][gp.asarray([0])], TypeError),  # type: ignore[call-overload]
        (lambda: np.array(gp.zeros(2)), TypeError),
        (lambda: memoryview(gp.zeros(2)), TypeError),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_number(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_identity_is_what_sets_and_dicts_use() -> None:
    x, y = gp.ones(2), gp.ones(2)
    assert {x: 1}[x] == 1
    assert len({x, y, x}) == 2
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_attributes_cannot_be_set() -> None:
    x = gp.ones(2)
    for name in ("shape", "dtype", "anything"):
        with pytest.raises(AttributeError):
            setattr(x, name, 1)


@given(shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12), data=st.data())
@settings(max_examples=60)
def test_small_arrays_are_printed_whole(shape: tuple[int, ...], data: st.DataObject) -> None:
    host = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    if host.size > 1000:
        return
    x = gp.from_numpy(host)
    text = repr(x)
    assert text.startswith("GPUArray(")
    assert text.endswith("dtype=int32, device='cpu')")
    numbers = [int(word) for word in re.findall(r"-?\d+", re.split(", shape|, dtype", text)[0])]
    assert numbers == host.reshape(-1).tolist()
    assert str(x) == (str(host) if host.size else "[]")


@given(shape=st.lists(st.sampled_from([1, 2, 3, 7, 8, 10, 40, 300, 1200]), min_size=1, max_size=4))
@settings(max_examples=60)
def test_large_arrays_are_printed_as_numpy_prints_them(shape: list[int]) -> None:
    size = int(np.prod(shape))
    if not 1000 < size < 2_000_000:
        return
    host = np.arange(size, dtype=np.int64).reshape(shape)
    x = gp.from_numpy(host)
    assert str(x).split() == np.array2string(host, threshold=1000, edgeitems=3).split()
    assert f"shape={tuple(shape)}" in repr(x)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "bool", "complex64"])
def test_printing_of_other_types(name: str) -> None:
    assert f"dtype={name}" in repr(gp.ones(2, name))
    assert "..." in repr(gp.ones(5000, name))
    assert str(gp.ones((), "float32")) == "1."
