"""NumPy's functions on arrays: ufuncs, their methods, functions by name, and what is refused instead of copied."""

from __future__ import annotations

import array
import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.array import bridge
from pygpukit.ops.units import ALL_TYPES

Call = Callable[[Any], Any]


HOST = np.arange(1, 13, dtype=np.float32).reshape(3, 4) / 4

SAME: dict[str, Call] = {
    "add": lambda x: np.add(x, x),
    "a number": lambda x: np.multiply(x, 2.5),
    "a number first": lambda x: np.subtract(1, x),
    "a scalar": lambda x: np.float64(2) * x,
    "a scalar first": lambda x: np.float32(3) - x,
    "divmod's parts": lambda x: np.floor_divide(x, np.remainder(x, 0.75) + 1),
    "unary": lambda x: np.exp(np.sqrt(x)),
    "comparison": lambda x: np.less(x, 1),
    "matmul": lambda x: np.matmul(x, x.T),
    "reduce": lambda x: np.add.reduce(x),
    "reduce an axis": lambda x: np.multiply.reduce(x, axis=1, keepdims=True),
    "reduce all": lambda x: np.maximum.reduce(x, axis=None),
    "reduce logically": lambda x: np.logical_and.reduce(x > 1),
    "accumulate": lambda x: np.add.accumulate(x),
    "accumulate an axis": lambda x: np.minimum.accumulate(x, axis=1),
    "outer": lambda x: np.subtract.outer(x, x[0]),
    "sum": lambda x: np.sum(x, axis=0, keepdims=True),
    "mean": lambda x: np.mean(x),
    "std": lambda x: np.std(x, axis=1, ddof=1),
    "sort": lambda x: np.sort(x, axis=0),
    "where": lambda x: np.where(x > 1, x, 0.0),
    "clip": lambda x: np.clip(x, 0.5, 2),
    "transpose": lambda x: np.transpose(x),
    "argmax": lambda x: np.argmax(x, axis=1),
    "fft": lambda x: np.fft.fft(x),
    "fft with names": lambda x: np.fft.rfft(a=x, n=4, axis=-1, norm="ortho"),
    "like": lambda x: np.zeros_like(x, dtype="int32"),
}


@pytest.mark.parametrize("name", sorted(SAME))
def test_numpys_functions_give_arrays_of_the_device(device: str, name: str) -> None:
    got, expected = SAME[name](gp.from_numpy(HOST)), SAME[name](HOST)
    assert isinstance(got, gp.GPUArray)
    assert got.dtype is gp.dtype(np.asarray(expected).dtype)
    np.testing.assert_allclose(got.to_numpy(), expected, rtol=2e-6, atol=1e-6)


def test_nothing_is_read_back(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gp.from_numpy(HOST)

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("the host read an array")

    monkeypatch.setattr(bridge, "to_numpy", refuse)
    monkeypatch.setattr(gp.GPUArray, "to_numpy", refuse)
    for call in SAME.values():
        call(x)


def test_out(device: str) -> None:
    x, out = gp.from_numpy(HOST), gp.zeros(HOST.shape)
    assert np.add(x, 1, out=out) is out
    np.testing.assert_array_equal(out.to_numpy(), HOST + 1)
    assert np.add.reduce(x, axis=0, out=out[0]) is not None
    np.testing.assert_array_equal(out.to_numpy()[0], HOST.sum(0))


def test_answers_about_an_array() -> None:
    x = gp.zeros((3, 4), "complex64")
    assert (np.shape(x), np.ndim(x), np.size(x), np.size(x, 1)) == ((3, 4), 2, 12, 4)
    assert np.iscomplexobj(x)
    assert not np.isrealobj(x)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x, a: x + a, lambda x, a: a + x),
        (lambda x, a: x * a, lambda x, a: np.multiply(a, x)),
        (lambda x, a: gp.less(x, a), lambda x, a: a > x),
        (lambda x, a: x == a, lambda x, a: a == x),
        (lambda x, a: gp.add(x, a), lambda x, a: np.add(x, a)),
    ],
)
def test_mixed_operands_raise_one_error_both_ways(one: Any, other: Any) -> None:
    x, a = gp.ones((2, 2)), np.ones((2, 2))
    texts = []
    for call in (one, other):
        with pytest.raises(TypeError, match="from_numpy") as raised:
            call(x, a)
        texts.append(str(raised.value).partition("()")[2])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda x: x @ HOST.T, r"matmul.*from_numpy"),
        (lambda x: HOST.T @ x, r"matmul.*from_numpy"),
        (lambda x: np.add(x, HOST, out=HOST.copy()), r"numpy\.add.*from_numpy.*to_numpy"),
        (lambda x: HOST.copy().__iadd__(x), r"numpy\.add.*to_numpy"),
        (lambda x: np.sum(HOST, out=x), "from_numpy"),
        (lambda x: np.add.at(x, [0], 1), r"numpy\.add\.at.*to_numpy"),
        (lambda x: np.add.reduceat(x, [0]), r"numpy\.add\.reduceat.*to_numpy"),
        (lambda x: np.hypot.reduce(x), r"numpy\.hypot\.reduce.*to_numpy"),
        (lambda x: np.isnat(x), r"numpy\.isnat.*to_numpy"),
        (lambda x: np.add(x, x, where=x > 1), r"numpy\.add.*'where'"),
        (lambda x: np.add(x, x, dtype="float64"), r"numpy\.add.*'dtype'"),
        (lambda x: np.array_repr(x), r"numpy\.array_repr.*to_numpy"),
        (lambda x: np.polydiv(x, x), r"numpy\.polydiv.*to_numpy"),
        (lambda x: np.apply_over_axes(np.sum, x, 0), r"numpy\.apply_over_axes.*to_numpy"),
        (lambda x: np.asarray(x), "to_numpy"),
        (lambda x: np.array([x, x]), "to_numpy"),
        (lambda x: np.zeros(12).__setitem__(slice(None), x), "to_numpy"),
    ],
)
def test_what_there_is_not_is_named(call: Call, part: str) -> None:
    with pytest.raises(TypeError, match=part):
        call(gp.from_numpy(HOST))


def test_other_libraries_may_answer() -> None:
    class Other:
        def __array_ufunc__(self, *_args: Any, **_kwargs: Any) -> str:
            return "other"

        def __array_function__(self, *_args: Any) -> str:
            return "other"

    x = gp.ones(2)
    assert np.add(x, Other()) == "other"
    assert np.where(Other(), x, x) == "other"


def test_the_namespace() -> None:
    x = gp.ones(2)
    namespace = x.__array_namespace__()
    assert namespace.__name__ in ("pygpukit", "pygpukit.array_api")
    assert x.__array_namespace__(api_version=None) is namespace
    assert namespace.add(x, x).tolist() == [2.0, 2.0]


def test_asarray_takes_buffers_and_interfaces() -> None:
    class Interface:
        __array_interface__ = HOST.__array_interface__

    class Converted:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return HOST

    for what in (HOST, Interface(), Converted(), memoryview(HOST), HOST.tolist()):
        assert gp.asarray(what).tolist() == HOST.tolist()
    assert gp.asarray(array.array("i", [1, 2])).dtype is gp.int32
    assert gp.asarray(np.float16(2)).dtype is gp.float16
    assert gp.asarray(bytearray(b"ab")).tolist() == [97, 98]


@pytest.mark.parametrize("name", ALL_TYPES)
def test_copies_and_pickles_of_all_types_and_layouts(name: str) -> None:
    host = (np.arange(24).reshape(2, 3, 4) % 5).astype(gp.to_numpy_dtype(name))
    x = gp.from_numpy(host)
    for view in (x, x.T, x[1, ::-1, ::2], x[0, 0, 0], x[:0], x[:, None]):
        for protocol in (2, 5):
            again = pickle.loads(pickle.dumps(view, protocol))
            assert (again.dtype, again.shape) == (view.dtype, view.shape)
            assert again.to_numpy().tobytes() == view.to_numpy().tobytes()
        for again in (copy.copy(view), copy.deepcopy(view)):
            assert again.to_numpy().tobytes() == view.to_numpy().tobytes()
            assert not view.size or not again._shares_memory(view)


def test_copies_of_read_only_arrays_are_writeable() -> None:
    x = gp.ones(3)
    x.setflags(write=False)
    for again in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        again.fill(2)
        assert again.tolist() == [2.0] * 3
    pair = copy.deepcopy([x, x])
    assert pair[0] is pair[1]
    assert x.tolist() == [1.0] * 3
