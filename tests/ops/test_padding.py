"""Padding, triangles, diagonals and grids against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_joining import both, error_of, here, numbers, same

import pygpukit as gp
from pygpukit.ops.units import ALL_TYPES

MODES = ["constant", "edge", "reflect", "symmetric", "wrap"]
Call = Callable[[Any, Any], Any]


WIDTHS = [1, (2, 3), ((0, 0), (1, 2)), ((4, 0), (0, 0)), ((9, 7), (3, 11)), {0: 2}, {-1: (1, 0)}, 0]


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_one_kernel(device: str, mode: str) -> None:
    for shape in ((3, 4), (1, 5), (2, 1)):
        x = numbers(shape, "int16")
        for width in WIDTHS:
            for call in (
                lambda xp, x, width=width: xp.pad(x, width, mode),
                lambda xp, x, width=width: xp.pad(x.T, width, mode),
                lambda xp, x, width=width: xp.pad(x[::-1, ::2], width, mode),
            ):
                both(call, x, f"{mode} {shape} {width}")
    both(lambda xp, x: xp.pad(x, ((1, 2), (0, 0), (2, 0), (0, 0)), mode), numbers((2, 3, 4, 5), "complex128"))
    both(lambda xp, x: xp.pad(x, 3, mode), numbers((70, 33), "uint8"))
    both(lambda xp, x: xp.pad(x, 3, mode), numbers((), "uint8"))


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_all_types(kind: str) -> None:
    for mode in MODES:
        both(lambda xp, x, mode=mode: xp.pad(x, (1, 2), mode), numbers((2, 3), kind), kind)


def test_constants(device: str) -> None:
    x = numbers((2, 3))
    for values in (7, (1, 2), ((1, 2), (3, 4)), [[5], [6]], 2.5, np.float32(3)):
        both(lambda xp, x, values=values: xp.pad(x, ((1, 2), (2, 1)), constant_values=values), x, str(values))
        both(lambda xp, x, values=values: xp.pad(x, ((1, 2), (0, 0)), constant_values=values), x, str(values))
        both(lambda xp, x, values=values: xp.pad(x[:, :0], ((1, 2), (2, 1)), constant_values=values), x, str(values))
    both(lambda xp, x: xp.pad(x, 1, constant_values=((1, 2), (3, 4), (5, 6))), numbers((2, 3, 4)))
    both(
        lambda xp, x: xp.pad(x, ((0, 0), (1, 1), (0, 0)), constant_values=((1, 2), (3, 4), (5, 6))), numbers((2, 3, 4))
    )
    both(lambda xp, x: xp.pad(x, 1, constant_values=2.9), numbers((2, 3), "int8"))
    got = gp.pad(here(x), 1, constant_values=gp.asarray([1, 2]))
    same(got, np.pad(x, 1, constant_values=(1, 2)))
    assert gp.pad(here(x), 1, "empty").to_numpy()[1:-1, 1:-1].tolist() == x.tolist()


STATISTICS = ["maximum", "minimum", "mean", "median", "linear_ramp"]


@pytest.mark.parametrize("mode", STATISTICS)
def test_modes_that_compute(device: str, mode: str) -> None:
    options: list[dict[str, Any]] = [{}]
    if mode == "linear_ramp":
        options += [{"end_values": 5}, {"end_values": ((1, 2), (3, -4))}]
    else:
        options += [{"stat_length": 2}, {"stat_length": ((1, 2), (3, 9))}]
    for kind in ("float32", "int32"):
        for width in (0, ((2, 3), (1, 4)), ((0, 1), (0, 0))):
            for option in options:
                x = numbers((3, 4), kind)
                got = gp.pad(here(x), width, mode, **option)
                want = np.pad(x, width, mode, **option)
                assert got.shape == want.shape
                assert gp.to_numpy_dtype(got.dtype) == want.dtype
                np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-6, err_msg=f"{mode} {kind} {width} {option}")


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_odd_mirrors(device: str, mode: str) -> None:
    for shape in ((3, 4), (1, 2)):
        for width in (1, ((2, 7), (9, 1)), ((0, 3), (1, 0))):
            both(
                lambda xp, x, width=width: xp.pad(x, width, mode, reflect_type="odd"), numbers(shape), f"{mode} {width}"
            )
            both(lambda xp, x, width=width: xp.pad(x, width, mode, reflect_type="even"), numbers(shape))


ERRORS: dict[str, Call] = {
    "mode": lambda xp, x: xp.pad(x, 1, "middle"),
    "keyword": lambda xp, x: xp.pad(x, 1, "edge", constant_values=1),
    "negative": lambda xp, x: xp.pad(x, -1),
    "float": lambda xp, x: xp.pad(x, 1.5),
    "pairs": lambda xp, x: xp.pad(x, ((1, 2), (3, 4), (5, 6))),
    "constant": lambda xp, x: xp.pad(x.astype("int8"), 1, constant_values=300),
    "big": lambda xp, x: xp.pad(x, 2**61),
    "empty axis": lambda xp, x: xp.pad(x[:0], 1, "edge"),
    "length": lambda xp, x: xp.pad(x, 1, "maximum", stat_length=0),
    "negative length": lambda xp, x: xp.pad(x, 1, "mean", stat_length=-1),
    "eye": lambda xp, x: xp.eye(-1),
    "eye type": lambda xp, x: xp.eye(2.5),
    "meshgrid": lambda xp, x: xp.meshgrid(x, x, indexing="ab"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    x = numbers((2, 3))
    theirs, ours = error_of(ERRORS[name], np, x), error_of(ERRORS[name], gp, here(x))
    assert isinstance(ours, type(theirs)), (ours, theirs)


def test_triangles(device: str) -> None:
    for shape in ((3, 5), (5, 3), (2, 2, 3, 4), (4,), (0, 3), (2, 0)):
        for k in (-9, -1, 0, 1, 2, 9):
            for call in (lambda xp, x, k=k: xp.tril(x, k), lambda xp, x, k=k: xp.triu(x, k)):
                both(call, numbers(shape, "float32"), f"{shape} {k}")
                if shape[-1]:
                    both(lambda xp, x, call=call: call(xp, x.T[::-1]), numbers(shape, "float32"), f"{shape}.T {k}")
    both(lambda xp, x: xp.triu(x, 1), numbers((3, 50, 50), "uint8"))
    both(lambda xp, x: xp.tril(x), numbers((3, 3), "complex128"))
    for n, m, k in ((3, None, 0), (2, 4, 1), (4, 2, -1), (0, 2, 0), (3, 3, 9), (3, 3, -9)):
        same(gp.tri(n, m, k, "int32"), np.tri(n, m, k, "int32"))
        same(gp.eye(n, m, k, "int32"), np.eye(n, m, k, "int32"))
        same(gp.eye(n, m, k, "bool", order="F"), np.eye(n, m, k, bool, order="F"))
    assert gp.tri(2).dtype is gp.eye(2).dtype is gp.identity(2).dtype is gp.float32
    same(gp.identity(3, "uint8"), np.identity(3, np.uint8))


def test_diagonals_and_powers(device: str) -> None:
    for k in (-2, 0, 1, 9):
        for x in (numbers(3), numbers((2, 3)), numbers(0)):
            both(lambda xp, x, k=k: xp.diag(x, k), x, f"{k}")
            both(lambda xp, x, k=k: xp.diagflat(x.T, k), x, f"{k}")
    assert gp.diag(gp.ones((2, 3))).flags.writeable is False
    for n in (None, 0, 1, 4):
        for increasing in (False, True):
            for x in (numbers(4, "int32"), numbers(3, "float32"), numbers(0)):
                got, want = gp.vander(here(x), n, increasing), np.vander(x, n, increasing)
                assert got.shape == want.shape
                assert gp.to_numpy_dtype(got.dtype) == want.dtype
                np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-6)


def test_grids(device: str) -> None:
    vectors = [numbers(2), numbers(3, "int32"), numbers(4)]
    for count in (0, 1, 2, 3):
        for options in ({}, {"sparse": True}, {"indexing": "ij"}, {"indexing": "ij", "sparse": True, "copy": False}):
            both(lambda xp, x, options=options: xp.meshgrid(*x, **options), vectors[:count], f"{count} {options}")
    x = gp.ones(2)
    assert gp.meshgrid(x, x, copy=False)[0]._shares_memory(x)
    assert not gp.meshgrid(x, x)[0]._shares_memory(x)
    same(
        gp.fromfunction(lambda i, j: i + j, (2, 3), dtype="int64"),
        np.fromfunction(lambda i, j: i + j, (2, 3), dtype=int),
    )
