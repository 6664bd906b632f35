"""Creation and data type functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy_oracle import ALL, COMPLEX, FLOATS, INTEGERS, NUMERIC, REAL, REAL_FLOATS, agree, name_of, same, sample

import pygpukit as gp
from pygpukit import array_api as xp


def test_arrays_of_one_number(device: str) -> None:
    for shape in ((), 3, (0,), (2, 3)):
        for name in ALL:
            kind = {"dtype": getattr(xp, name)}
            same(xp.zeros(shape, **kind), np.zeros(shape, name))
            same(xp.ones(shape, **kind), np.ones(shape, name))
            same(xp.full(shape, 1, **kind), np.full(shape, 1, name))
            assert (xp.empty(shape, **kind).shape, name_of(xp.empty(shape, **kind))) == (np.zeros(shape).shape, name)
        for value in (True, 3, -2.5, 1j, math.nan):
            same(xp.full(shape, value), np.full(shape, value))
        same(xp.zeros(shape), np.zeros(shape))


def test_like_another(device: str) -> None:
    for name in ALL:
        x = sample(name, (2, 3)).T
        for like in ("zeros_like", "ones_like"):
            agree(lambda n, x, like=like: getattr(n, like)(x), x)
            agree(lambda n, x, like=like: getattr(n, like)(x, dtype=n.int16), x)
        agree(lambda n, x: n.full_like(x, 1), x)
        agree(lambda n, x: n.full_like(x, 2.5, dtype=n.float32), x)
        assert xp.empty_like(gp.from_numpy(x)).shape == (3, 2)


def test_arange(device: str) -> None:
    for arguments in ((5,), (2, 7), (7, 2), (0, 10, 3), (10, 0, -3), (0, 1, 0.25), (2.5,), (1.5, 4), (0,), (-3, 3, 2)):
        agree(lambda n, a=arguments: n.arange(*a), where=arguments)
        if all(isinstance(a, int) for a in arguments):
            for name in REAL:
                if name.startswith("u") and min(arguments) < 0:
                    continue
                agree(lambda n, a=arguments, k=name: n.arange(*a, dtype=getattr(n, k)), where=(arguments, name))
    same(xp.arange(0, stop=6, step=2), np.arange(0, 6, 2))
    same(xp.arange(2**62, 2**62 + 3, dtype=xp.int64), np.arange(2**62, 2**62 + 3))


def test_linspace(device: str) -> None:
    for arguments in ((0, 1, 5), (0.0, -3.0, 4), (2, 2, 3), (0, 1, 0), (0, 1, 1), (1j, 2, 3)):
        for endpoint in (True, False):
            agree(lambda n, a=arguments, e=endpoint: n.linspace(*a, endpoint=e), where=(arguments, endpoint))
            for name in COMPLEX if 1j in arguments else FLOATS:
                agree(lambda n, a=arguments, k=name, e=endpoint: n.linspace(*a, dtype=getattr(n, k), endpoint=e))
    same(xp.linspace(0, 10, num=5, dtype=xp.int64), np.linspace(0, 10, 5, dtype="int64"))


def test_eye_and_triangles(device: str) -> None:
    for arguments in ((3,), (2, 4), (4, 2), (0,), (2, 0)):
        for k in (-3, -1, 0, 1, 2, 5):
            agree(lambda n, a=arguments, k=k: n.eye(*a, k=k))
    for name in ALL:
        agree(lambda n, k=name: n.eye(3, dtype=getattr(n, k)))
        for k in (-2, 0, 1, 7):
            agree(lambda n, x, k=k: n.tril(x, k=k), sample(name, (2, 3, 4)))
            agree(lambda n, x, k=k: n.triu(x, k=k), sample(name, (4, 3)).T)


def test_meshgrid(device: str) -> None:
    x, y, z = np.arange(3), np.arange(2), np.arange(4)
    for indexing in ("xy", "ij"):
        for arrays in ((x,), (x, y), (x, y, z)):
            agree(lambda n, *a, i=indexing: n.meshgrid(*a, indexing=i), *arrays)
    assert len(list(xp.meshgrid(xp.arange(2), xp.arange(3)))) == 2


def test_asarray_of_numbers_and_sequences(device: str) -> None:
    for value in (True, 3, -(2**40), 2.5, 1j, [1, 2], [1, 2.5], [[True], [False]], [], [[1j, 2], [3, 4.5]], (1, (2))):
        same(xp.asarray(value), np.asarray(value), where=value)
    for name in NUMERIC:
        same(xp.asarray([0, 1, 2], dtype=getattr(xp, name)), np.asarray([0, 1, 2], name))
    same(xp.asarray(np.arange(3, dtype=np.int16)), np.arange(3, dtype=np.int16))
    same(xp.asarray(np.float32(2.5)), np.float32(2.5))
    same(xp.asarray(np.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T)
    same(xp.asarray(bytearray(b"ab")), np.frombuffer(b"ab", np.uint8)) if hasattr(bytearray, "__buffer__") else None


def test_asarray_copies_when_asked(device: str) -> None:
    x = xp.asarray([1, 2, 3])
    assert xp.asarray(x) is x or gp.asarray(x).ptr == x.ptr
    for copy in (None, False):
        same_memory = xp.asarray(x, copy=copy)
        same_memory[0] = 9
        assert int(x[0]) == 9
        x[0] = 1
    copied = xp.asarray(x, copy=True)
    copied[0] = 9
    assert int(x[0]) == 1
    assert name_of(xp.asarray(x, dtype=xp.float32)) == "float32"
    assert name_of(xp.asarray(x, dtype=xp.int64, copy=True)) == "int64"
    with pytest.raises(ValueError, match="copy"):
        xp.asarray(x, dtype=xp.float32, copy=False)
    with pytest.raises(ValueError, match="copy"):
        xp.asarray([1, 2], copy=False)


def test_arrays_move_between_devices() -> None:
    with gp.device("cpu") as cpu:
        x = xp.asarray([1, 2])
    with gp.device("emulated") as emulated:
        y = xp.asarray(x, device=emulated)
        assert y.device == emulated != x.device == cpu
        same(y, np.array([1, 2]))
        assert xp.asarray(x).device == cpu
        assert xp.astype(x, xp.float32, device=emulated).device == emulated
        same(xp.asarray(x, dtype=xp.int8, device=emulated), np.array([1, 2], np.int8))
        assert x.to_device(emulated).device == emulated
        assert xp.zeros_like(x, device=emulated).device == emulated
        assert xp.zeros_like(x).device == cpu
        with pytest.raises(ValueError, match="copy"):
            xp.asarray(x, device=emulated, copy=False)


def test_from_dlpack() -> None:
    with gp.device("cpu"):
        host = np.arange(6.0).reshape(2, 3)
        shared = xp.from_dlpack(host)
        same(shared, host)
        host[0, 0] = 7
        assert float(shared[0, 0]) == 7
        copied = xp.from_dlpack(host, copy=True)
        host[0, 0] = 8
        assert float(copied[0, 0]) == 7
        x = xp.arange(4)
        again = xp.from_dlpack(x)
        again[0] = 5
        assert int(x[0]) == 5
        np.testing.assert_array_equal(np.from_dlpack(x), [5, 1, 2, 3])
        assert x.__dlpack_device__() == (1, 0)


def test_astype(device: str) -> None:
    with np.errstate(all="ignore"):
        for source in ALL:
            x = sample(source, 20)
            x = np.abs(x) if source in REAL_FLOATS else x
            for target in ALL:
                if source in COMPLEX and target not in COMPLEX:
                    continue
                if device != "cpu" and "float32" not in (source, target):
                    continue  # tests/gpu/test_casts.py has the kernels of pairs of types.
                small = np.minimum(x, 100) if source in REAL_FLOATS and target in INTEGERS else x
                agree(lambda n, x, t=target: n.astype(x, getattr(n, t)), small, where=(source, target))
    x = xp.ones(3)
    assert xp.astype(x, xp.float64, copy=False) is x
    y = xp.astype(x, xp.float64)
    y[0] = 2
    assert float(x[0]) == 1


def test_can_cast() -> None:
    for source in ALL:
        for target in ALL:
            ours = xp.can_cast(getattr(xp, source), getattr(xp, target))
            assert ours is np.can_cast(source, target), (source, target)
            assert xp.can_cast(xp.ones(1, dtype=getattr(xp, source)), getattr(xp, target)) is ours


def test_finfo_and_iinfo() -> None:
    for name in FLOATS:
        kind, theirs = getattr(xp, name), np.finfo(name)
        for argument in (kind, xp.ones(1, dtype=kind)):
            ours = xp.finfo(argument)
            assert (ours.bits, ours.eps, ours.max, ours.min, ours.smallest_normal) == (
                theirs.bits, theirs.eps, theirs.max, theirs.min, theirs.smallest_normal
            )  # fmt: skip
            assert ours.dtype == getattr(xp, name.replace("complex64", "float32").replace("complex128", "float64"))
            assert {type(v) for v in (ours.eps, ours.max, ours.min, ours.smallest_normal)} == {float}
            assert type(ours.bits) is int
            assert type(ours.dtype) is gp.DataType
    for name in INTEGERS:
        kind, limits = getattr(xp, name), np.iinfo(name)
        for whole in (xp.iinfo(kind), xp.iinfo(xp.ones(1, dtype=kind))):
            assert (whole.bits, whole.min, whole.max) == (limits.bits, limits.min, limits.max)
            assert whole.dtype == kind
            assert type(whole.min) is type(whole.max) is int
    for wrong, function in ((xp.int8, xp.finfo), (xp.bool, xp.finfo), (xp.float32, xp.iinfo), (xp.bool, xp.iinfo)):
        with pytest.raises((TypeError, ValueError), match=r"float|integer|int8|bool"):
            function(wrong)


KINDS: list[Any] = ["bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating"]


def test_isdtype() -> None:
    for name in ALL:
        kind, host = getattr(xp, name), np.dtype(name)
        for wanted in [*KINDS, "numeric", ("bool", "integral"), ("real floating",)]:
            assert xp.isdtype(kind, wanted) is np.isdtype(host, wanted), (name, wanted)
        for other in ALL:
            assert xp.isdtype(kind, getattr(xp, other)) is (name == other)
            assert xp.isdtype(kind, (getattr(xp, other), "complex floating")) is (name == other or name in COMPLEX)


def test_result_type() -> None:
    for first in ALL:
        for second in ALL:
            x, y = getattr(xp, first), getattr(xp, second)
            assert str(xp.result_type(x, y).name) == np.result_type(first, second).name, (first, second)
            assert xp.result_type(x, y) == xp.result_type(xp.ones(2, dtype=x), y)
    assert xp.result_type(xp.int8, xp.uint8, xp.int32) == xp.int32
    assert xp.result_type(xp.float32, 1) == xp.result_type(xp.float32, 1.0) == xp.float32
    assert xp.result_type(xp.float32, 1j) == xp.complex64
    assert xp.result_type(xp.ones(1, dtype=xp.int8), 3) == xp.int8
    assert xp.result_type(True, xp.int8) == xp.int8
