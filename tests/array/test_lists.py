"""Numbers and lists in place of arrays: NumPy's functions take them as they take the arrays they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.registry import functions

VECTOR, WHOLE, BOOLS, MATRIX = [1.5, 2.5, 0.5], [3, 1, 2], [True, False, True], [[1.0, 2.0], [3.0, 5.0]]
# Arguments that functions are tried with; those that a function refuses as arrays say nothing about it.
ARGUMENTS: tuple[tuple[Any, ...], ...] = (
    (VECTOR,), (WHOLE,), (BOOLS,), (MATRIX,), (2.5,), (VECTOR, [3.0, 4.0, 5.0]), (WHOLE, [1, 2, 3]),
    (BOOLS, [True, True, False]), (2.5, 1.5), (VECTOR, 2.0), (WHOLE, 1), (MATRIX, MATRIX), (MATRIX, [1.0, 2.0]),
    (VECTOR, VECTOR, [4.0, 5.0, 6.0]), ([1.0, 2.0, 3.0], [0, 2]), (BOOLS, VECTOR, [4.0, 5.0, 6.0]), (VECTOR, (3,)),
    ([1.0, 2.0, 3.0, 4.0], (2, 2)), (MATRIX, 0), (MATRIX, 1), (VECTOR, 0.5, 2.5), (MATRIX, [0.5]), (0.5, MATRIX),
)  # fmt: skip
# What is different for a reason: lists of what is joined or counted along several axes, types and shapes that lists
# name, results that are not set, what is written to, and limits of bins that are checked where the host has them.
LEFT_OUT = {
    "choose", "copyto", "empty", "empty_like", "fill_diagonal", "finfo", "fuse", "histogram", "histogram_bin_edges",
    "histogramdd", "iinfo", "isdtype", "isneginf", "isposinf", "isscalar", "issubdtype", "ndenumerate", "place",
    "putmask", "quantile", "nanquantile", "ravel_multi_index", "resize", "result_type", "unravel_index",
}  # fmt: skip


def named() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, function in sorted(functions().items()):
        if name not in LEFT_OUT and hasattr(np, name):
            yield name, function
    for module in ("fft", "linalg"):
        for name in getattr(gp, module).__all__:
            function = getattr(getattr(gp, module), name)
            if not isinstance(function, type):
                yield f"{module}.{name}", function


NAMED = dict(named())


def to_host(x: Any) -> Any:
    if isinstance(x, gp.GPUArray):
        return x.to_numpy()
    return [to_host(y) for y in x] if isinstance(x, tuple | list) else x


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        there = isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return there and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return bool(a == b) or repr(a) == repr(b)


@pytest.mark.parametrize("name", NAMED)
def test_a_list_is_as_good_as_an_array_of_it(name: str) -> None:
    function = NAMED[name]
    operands = getattr(function, "nin", None) or getattr(getattr(np, name, None), "nin", None) or 9
    with gp.device("cpu"):
        for arguments in ARGUMENTS:
            if len(arguments) > operands:
                # What stands behind the operands of a ufunc is where its result is written, which is no list.
                continue
            arrays = [gp.asarray(a) if isinstance(a, list | float) else a for a in arguments]
            try:
                want = to_host(function(*arrays))
            except Exception:
                continue
            assert same(want, to_host(function(*arguments))), arguments


def test_the_walk_reaches_functions_of_every_kind() -> None:
    some = {"add", "sqrt", "sum", "dot", "sort", "take", "pad", "interp", "fft.fftn", "linalg.solve"}
    assert some <= {*NAMED}
    assert {"choose", "quantile"} <= {*functions()}
    assert len(NAMED) > 300


@pytest.mark.parametrize(
    "call",
    [
        lambda n: n.sqrt(2),
        lambda n: n.add(1, 2.5),
        lambda n: n.maximum(True, 3),
        lambda n: n.where([True, False], 1, 2.5),
        lambda n: n.power(2, 10),
        lambda n: n.dot([1, 2], [3, 4]),
        lambda n: n.sum([[1, 2], [3, 4]], axis=0),
        lambda n: n.mean(range(5)),
        lambda n: n.zeros_like([1, 2]),
        lambda n: n.isclose(1.0, 1.0 + 1e-10),
        lambda n: n.interp(0.5, [0, 1], [10, 20]),
        lambda n: n.array([1.0, 2.0]) * [1, 2],
        lambda n: [1, 2] - n.array([3, 4]),
        lambda n: n.array([1, 2]) == [1, 3],
        lambda n: n.array([[1, 2], [3, 4]]) @ [1, 1],
        lambda n: n.average([1.0, 4.0], weights=[2, 1]),
        lambda n: n.bincount([0, 1, 1], weights=[0.5, 1, 2]),
        lambda n: n.select([[True, False], [False, True]], [[1, 2], [3, 4]]),
        lambda n: n.fft.fft([1, 0, 0]),
        lambda n: n.linalg.solve([[2.0, 0], [0, 4]], [2, 4]),
        lambda n: n.add.reduce([1, 2, 3]),
    ],
)
def test_numpys_result(device: str, call: Callable[[Any], Any]) -> None:
    want, got = np.asarray(call(np)), call(gp)
    assert (got.shape, got.to_numpy().dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-12)
    assert got.device.kind == gp.current_device().kind


def test_lists_go_to_the_device_of_the_array() -> None:
    with gp.device("emulated"):
        x = gp.asarray([1.0, 2.0])
    with gp.device("cpu"):
        for made in (x * [1, 2], gp.dot([1.0, 2.0], x), gp.where([True, False], x, 0.0), gp.matmul([[1.0, 2.0]], x),
                     gp.searchsorted([0.0, 1.5], x), gp.isin(x, [2.0]), gp.concatenate([x, [3.0]])):  # fmt: skip
            assert made.device == x.device


@pytest.mark.parametrize(
    "call",
    [
        lambda x: gp.add(x, x.to_numpy()),
        lambda x: gp.sum(x.to_numpy()),
        lambda x: gp.sort(x.to_numpy()),
        lambda x: gp.flip(x.to_numpy()),
        lambda x: gp.fft.fft(x.to_numpy()),
        lambda x: gp.linalg.inv(x.to_numpy()),
        lambda x: gp.unique(x.to_numpy()),
        lambda x: gp.take(x.to_numpy(), 0),
        lambda x: gp.interp(x.to_numpy(), x, x),
    ],
)
def test_numpys_arrays_are_not_copied_unasked(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="from_numpy"):
        call(gp.ones(3))
