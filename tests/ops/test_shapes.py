"""Views in other shapes against NumPy: values, shapes, errors, and that memory is shared where NumPy shares it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

BASE = np.arange(120, dtype=np.int32).reshape(2, 3, 4, 5)
Call = Callable[[Any, Any], Any]


def layouts(shape: tuple[int, ...] = (2, 3, 4, 5), kind: str = "int32") -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
    """The same array of numbers in several layouts, on the host and here."""
    host = np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    ours = gp.from_numpy(host)
    yield host, ours
    yield host.T, ours.T
    if host.ndim:
        yield host[::-1], ours[::-1]
        yield host[..., ::2], ours[..., ::2]
        yield host[..., 1:1], ours[..., 1:1]
        yield np.broadcast_to(host[:1], (3, *shape[1:])), ours[:1]._broadcast_to((3, *shape[1:]))


def same(ours: Any, theirs: Any, context: str = "") -> None:
    if isinstance(theirs, tuple | list):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs), context
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, context)
        return
    if not isinstance(ours, gp.GPUArray):
        assert ours == theirs, context
        return
    assert ours.shape == theirs.shape, context
    assert gp.to_numpy_dtype(ours.dtype) == theirs.dtype, context
    np.testing.assert_array_equal(ours.to_numpy(), theirs, err_msg=context)


VIEWS: dict[str, Call] = {
    "squeeze": lambda xp, x: xp.squeeze(x[:1, :, :1]),
    "squeeze one": lambda xp, x: x[:1, :, :1].squeeze(-2),
    "squeeze two": lambda xp, x: xp.squeeze(x[:1, :, :1], (0, 2)),
    "squeeze none": lambda xp, x: xp.squeeze(x[:1], ()),
    "expand_dims": lambda xp, x: xp.expand_dims(x, 1),
    "expand_dims end": lambda xp, x: xp.expand_dims(x, -1),
    "expand_dims many": lambda xp, x: xp.expand_dims(x, (-1, 0, 3)),
    "swapaxes": lambda xp, x: xp.swapaxes(x, 0, -2),
    "x.swapaxes": lambda xp, x: x.swapaxes(1, 1),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "moveaxis many": lambda xp, x: xp.moveaxis(x, (0, -1), (2, 0)),
    "moveaxis list": lambda xp, x: xp.moveaxis(x, [3, 1], [0, -1]),
    "rollaxis": lambda xp, x: xp.rollaxis(x, 2),
    "rollaxis start": lambda xp, x: xp.rollaxis(x, 0, 3),
    "rollaxis negative": lambda xp, x: xp.rollaxis(x, -1, -2),
    "rollaxis end": lambda xp, x: xp.rollaxis(x, 1, 4),
    "transpose": lambda xp, x: xp.transpose(x, (2, 0, -1, 1)),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (3, 2, 1, 0)),
    "x.transpose": lambda xp, x: x.transpose(1, 0, 3, 2),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "mT": lambda xp, x: x.mT,
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (2, *x.shape)),
    "broadcast_arrays": lambda xp, x: xp.broadcast_arrays(x, x[..., :1], x[0]),
    "atleast_1d": lambda xp, x: xp.atleast_1d(x),
    "atleast_2d": lambda xp, x: xp.atleast_2d(x[0, 0, 0], x),
    "atleast_3d": lambda xp, x: xp.atleast_3d(x[0, 0, 0], x[0, 0], x),
    "diagonal": lambda xp, x: xp.diagonal(x),
    "diagonal offset": lambda xp, x: x.diagonal(1, 1, -1),
    "diagonal below": lambda xp, x: xp.diagonal(x, -2, 2, 1),
    "diagonal beyond": lambda xp, x: xp.diagonal(x, 99),
    "flip": lambda xp, x: xp.flip(x),
    "flip one": lambda xp, x: xp.flip(x, -1),
    "flip two": lambda xp, x: xp.flip(x, (0, 2)),
    "flipud": lambda xp, x: xp.flipud(x),
    "fliplr": lambda xp, x: xp.fliplr(x),
    **{f"rot90 {k}": lambda xp, x, k=k: xp.rot90(x, k, (1, -1)) for k in range(-2, 5)},
    "split": lambda xp, x: xp.split(x, 2, 2) if x.shape[2] % 2 == 0 else [],
    "array_split": lambda xp, x: xp.array_split(x, 3, -1),
    "array_split places": lambda xp, x: xp.array_split(x, [1, -1, 9], 1),
    "array_split many": lambda xp, x: xp.array_split(x, 9),
    "hsplit": lambda xp, x: xp.hsplit(x, [1]),
    "vsplit": lambda xp, x: xp.vsplit(x, x.shape[0]),
    "dsplit": lambda xp, x: xp.dsplit(x, [2, 3]),
    "unstack": lambda xp, x: xp.unstack(x, axis=1),
    "real": lambda xp, x: x.real,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    for host, ours in layouts():
        context = f"{name} {host.shape} {host.strides}"
        wanted, got = VIEWS[name](np, host), VIEWS[name](gp, ours)
        same(got, wanted, context)
        parts = got if isinstance(got, tuple | list) else [got]
        theirs = wanted if isinstance(wanted, tuple | list) else [wanted]
        for a, b in zip(parts, theirs, strict=True):
            assert a._shares_memory(ours) == np.may_share_memory(b, host), context


def test_views_of_a_device_share_its_memory(device: str) -> None:
    x = gp.from_numpy(BASE)
    gp.moveaxis(gp.flip(x), 0, -1)[...] = 7
    assert np.all(x.to_numpy() == 7)
    gp.split(x, 3, 1)[1].fill(2)
    assert np.all(x.to_numpy()[:, 1] == 2)
    assert not gp.broadcast_to(x, (2, 2, 3, 4, 5)).flags.writeable
    assert not x.diagonal().flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        gp.broadcast_to(x, (2, 2, 3, 4, 5))[0] = 1


RESHAPES = [(6, 20), (-1,), (5, 4, 3, 2), (2, 3, -1, 1), (1, 120), -1]


def test_reshape_and_ravel() -> None:
    for host, ours in layouts():
        for order in ("C", "F", "A"):
            for shape in RESHAPES:
                try:
                    wanted = np.reshape(host, shape, order)
                except ValueError:
                    with pytest.raises(ValueError, match="reshape"):
                        gp.reshape(ours, shape, order)
                    continue
                same(gp.reshape(ours, shape, order), wanted)
                same(ours.reshape(shape, order=order), wanted)
        for order in ("C", "F", "A"):
            same(gp.ravel(ours, order), np.ravel(host, order))
            same(ours.flatten(order), host.flatten(order))
            assert not ours.flatten(order)._shares_memory(ours)
        if 0 not in host.strides:
            same(gp.ravel(ours, "K"), np.ravel(host, "K"))
    x = gp.from_numpy(BASE)
    assert gp.reshape(x, (120,), copy=False)._shares_memory(x)
    assert not gp.reshape(x, (120,), copy=True)._shares_memory(x)
    with pytest.raises(ValueError, match="copy"):
        gp.reshape(x.T, (120,), copy=False)
    assert gp.reshape(gp.asarray(3), (1, 1)).shape == (1, 1)


def test_real_and_imaginary_parts(device: str) -> None:
    for kind in ("complex64", "complex128"):
        host = (np.arange(12) + 1j * np.arange(12)[::-1]).astype(kind).reshape(3, 4)
        ours = gp.from_numpy(host)
        for a, b in ((ours, host), (ours.T, host.T), (ours[::-2, 1:], host[::-2, 1:]), (ours[1, 1], host[1, 1])):
            same(a.real, np.asarray(b.real))
            same(a.imag, np.asarray(b.imag))
        ours.T[1:].imag = 5
        host.T[1:].imag = 5
        ours.real[:, 0] = gp.asarray([1.0, 2.0, 3.0])
        host.real[:, 0] = [1, 2, 3]
        same(ours, host)
    x = gp.ones((2, 3))
    x.real = 4
    assert x.tolist() == [[4.0] * 3] * 2
    same(x.imag, np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"read-only|broadcast"):
        x.imag[0] = 1
    with pytest.raises(TypeError, match="imaginary"):
        x.imag = 1


@pytest.mark.parametrize("trim", ["fb", "F", "b"])
def test_trim_zeros(device: str, trim: str) -> None:
    for values in ([0, 0, 1, 0, 2, 0], [0, 0], [], [3], [0, 1], [1, 0]):
        same(gp.trim_zeros(gp.asarray(values, "int32"), trim), np.trim_zeros(np.array(values, np.int32), trim))
    host = np.zeros((5, 6), np.float32)
    for axis in (None, 0, -1, (1, 0)):
        same(gp.trim_zeros(gp.from_numpy(host), trim, axis), np.trim_zeros(host, trim, axis))
        full = host.copy()
        full[1:3, 2] = np.nan
        same(gp.trim_zeros(gp.from_numpy(full), trim, axis), np.trim_zeros(full, trim, axis))


def test_figures_of_arrays() -> None:
    x = gp.ones((2, 3))
    assert (gp.ndim(x), gp.shape(x), gp.size(x), gp.size(x, 1), gp.size(x, (0, 1))) == (2, (2, 3), 6, 3, 6)
    assert (gp.ndim([[1]]), gp.shape(2), gp.size([1, 2])) == (2, (), 2)
    assert gp.broadcast_shapes((2, 1), (3,), 1) == (2, 3)
    assert gp.may_share_memory(x, x[0])
    assert not gp.may_share_memory(x, gp.ones(2))
    assert not gp.may_share_memory(x, 3)


def error_of(call: Call, *args: Any) -> Exception:
    try:
        call(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was refused")


ERRORS: dict[str, Call] = {
    "squeeze": lambda xp, x: xp.squeeze(x, 0),
    "squeeze axis": lambda xp, x: xp.squeeze(x, 4),
    "huge axis": lambda xp, x: xp.expand_dims(x, -(2**31)),
    "expand_dims axis": lambda xp, x: xp.expand_dims(x, 5),
    "expand_dims twice": lambda xp, x: xp.expand_dims(x, (0, 0)),
    "swapaxes": lambda xp, x: xp.swapaxes(x, 0, 4),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, 9),
    "moveaxis counts": lambda xp, x: xp.moveaxis(x, (0, 1), 0),
    "moveaxis twice": lambda xp, x: xp.moveaxis(x, (0, 0), (1, 2)),
    "rollaxis": lambda xp, x: xp.rollaxis(x, 0, 5),
    "transpose": lambda xp, x: xp.transpose(x, (0, 1, 2, 9)),
    "transpose twice": lambda xp, x: xp.transpose(x, (0, 1, 2, 2)),
    "transpose few": lambda xp, x: xp.transpose(x, (0, 1)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x[0, 0, 0]),
    "mT": lambda xp, x: x[0, 0, 0].mT,
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (2, 3, 4, 6)),
    "broadcast_to fewer": lambda xp, x: xp.broadcast_to(x, (4, 5)),
    "broadcast_arrays": lambda xp, x: xp.broadcast_arrays(x, x[:, :2]),
    "diagonal": lambda xp, x: xp.diagonal(x[0, 0, 0]),
    "diagonal axes": lambda xp, x: xp.diagonal(x, 0, 1, 1),
    "diagonal axis": lambda xp, x: xp.diagonal(x, 0, 1, 7),
    "flip": lambda xp, x: xp.flip(x, 4),
    "flip twice": lambda xp, x: xp.flip(x, (0, 0)),
    "fliplr": lambda xp, x: xp.fliplr(x[0, 0, 0]),
    "rot90": lambda xp, x: xp.rot90(x, 1, (0, 0)),
    "rot90 axes": lambda xp, x: xp.rot90(x, 1, (0, 1, 2)),
    "rot90 range": lambda xp, x: xp.rot90(x, 1, (0, 7)),
    "split": lambda xp, x: xp.split(x, 2, 3),
    "split zero": lambda xp, x: xp.array_split(x, 0),
    "split axis": lambda xp, x: xp.array_split(x, 2, 4),
    "hsplit": lambda xp, x: xp.hsplit(x[0, 0, 0, 0, ...], 1),
    "vsplit": lambda xp, x: xp.vsplit(x[0, 0, 0], 1),
    "dsplit": lambda xp, x: xp.dsplit(x[0, 0], 1),
    "unstack": lambda xp, x: xp.unstack(x, axis=4),
    "unstack 0": lambda xp, x: xp.unstack(x[0, 0, 0, 0, ...]),
    "trim": lambda xp, x: xp.trim_zeros(x, "a"),
    "reshape": lambda xp, x: xp.reshape(x, (7, -1)),
    "reshape order": lambda xp, x: xp.reshape(x, -1, order="Q"),
    "reshape K": lambda xp, x: xp.reshape(x, -1, order="K"),
    "reshape two": lambda xp, x: xp.reshape(x, (-1, -1)),
    "size": lambda xp, x: xp.size(x, 4),
    "axis type": lambda xp, x: xp.expand_dims(x, 1.5),
    "item": lambda xp, x: x.item(120),
    "item axis": lambda xp, x: x.item(0, 0, 0, 5),
    "item few": lambda xp, x: x.item(0, 0),
    "item all": lambda xp, x: x.item(),
    "copy order": lambda xp, x: x.copy("Q"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    theirs = error_of(ERRORS[name], np, BASE)
    ours = error_of(ERRORS[name], gp, gp.from_numpy(BASE))
    assert isinstance(ours, type(theirs)), (ours, theirs)
    assert "_item()" not in str(ours)


def test_what_is_no_array_is_refused() -> None:
    for function in (gp.flip, gp.ravel, gp.squeeze, gp.diagonal, gp.trim_zeros, gp.unstack):
        with pytest.raises(TypeError, match="takes GPUArrays, numbers and lists, not str"):
            function("a")
        with pytest.raises(TypeError, match="from_numpy"):
            function(BASE)


def test_items_copies_and_formats(device: str) -> None:
    x = gp.from_numpy(BASE)
    assert [x.item(7), x.item(-1), x.item(1, 2, 3, -1), x.item((0, 1, 0, 0))] == [7, 119, 119, 20]
    assert gp.asarray([4, 5]).item(1) == 5
    assert x[0, 0].copy(order="F").T.is_contiguous
    assert x.T.copy("A").T.is_contiguous
    assert x.T.copy().is_contiguous
    with pytest.raises(TypeError, match=r"copy\(\)"):
        x.copy(1, 2)
    assert f"{gp.asarray(1.5):.3f}" == "1.500"
    assert f"{gp.asarray(3)}" == "3"
    assert f"{gp.asarray(1.5, 'bfloat16'):6.2f}" == "  1.50"
    assert f"{gp.ones(1)}" == "[1.]"
    with pytest.raises(TypeError, match="1 dimension"):
        f"{gp.ones(1):.2f}"
    assert 7 in x
    assert 120 not in x
    assert 2.5 not in gp.asarray([1, 2])
    assert 300 not in gp.asarray([1], "uint8")
    assert gp.asarray(5) in x
    assert [0, 1, 2, 3, 4] in x
    assert None not in x
    assert "7" not in x


def test_views_read_nothing_and_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gp.from_numpy(BASE)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a view moves elements")

    for name in ("read_buffer", "apply", "copy_dense"):
        monkeypatch.setattr(native, name, refuse)
    for name, call in VIEWS.items():
        call(gp, x)
        assert name
