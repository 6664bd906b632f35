"""Statistics, polynomials, windows, grids, text files and other names that programs written for NumPy use."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((3, 20))
OTHER = RNG.standard_normal((2, 20))
COMPLEX = TABLE + 1j * RNG.standard_normal((3, 20))
COUNTS = np.arange(20) % 3
X = np.linspace(-1, 2, 12)
Y = 3 * X**2 - X + 0.1 * np.cos(9 * X)
CUBE = np.arange(24.0).reshape(2, 3, 4)
HOLES = np.array([[1.0, np.nan, 2.0], [np.nan, 3.0, 4.0]])
Call = Callable[..., Any]


def parts(x: Any) -> list[Any]:
    return [b for a in x for b in parts(a)] if isinstance(x, tuple | list) else [x]


def agree(call: Call, *hosts: Any, rtol: float = 1e-9) -> None:
    """A call gives what it gives over NumPy: values, type, shape, or class of exception."""
    ours: Any
    try:
        with np.errstate(all="ignore"):
            theirs = parts(call(np, *(h.copy() for h in hosts)))
    except Exception as error:
        with pytest.raises(type(error)):
            call(gp, *(gp.from_numpy(h) for h in hosts))
        return
    ours = parts(call(gp, *(gp.from_numpy(h) for h in hosts)))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        host, want = a.to_numpy() if isinstance(a, gp.GPUArray) else np.asarray(a), np.asarray(b)
        if isinstance(a, gp.GPUArray):
            assert (host.dtype, host.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(host, want, rtol=rtol, atol=1e-10)


STATISTICS: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "cov": (lambda n, x: n.cov(x), (TABLE,)),
    "cov of columns": (lambda n, x: n.cov(x, rowvar=False), (TABLE.T.copy(),)),
    "cov of two": (lambda n, x, y: n.cov(x, y, ddof=0), (TABLE, OTHER)),
    "cov of a vector": (lambda n, x: n.cov(x, bias=True), (TABLE[0],)),
    "cov of complex numbers": (lambda n, x: n.cov(x), (COMPLEX,)),
    "cov with frequencies": (lambda n, x, f: n.cov(x, fweights=f), (TABLE, COUNTS)),
    "cov with weights": (lambda n, x, w: n.cov(x, aweights=w), (TABLE, X.repeat(2)[:20] + 2)),
    "cov with both": (lambda n, x, f, w: n.cov(x, fweights=f, aweights=w), (TABLE, COUNTS, X.repeat(2)[:20] + 2)),
    "cov of float32": (lambda n, x: n.cov(x), (TABLE.astype(np.float32),)),
    "cov of one observation": (lambda n, x: n.cov(x, ddof=0), (TABLE[:, :1],)),
    "cov of nothing": (lambda n, x: n.cov(x), (np.zeros((0, 4)),)),
    "cov, three axes": (lambda n, x: n.cov(x), (CUBE,)),
    "cov, ddof 1.5": (lambda n, x: n.cov(x, ddof=1.5), (TABLE,)),
    "cov, weights of another length": (lambda n, x, f: n.cov(x, fweights=f), (TABLE, COUNTS[:5])),
    "cov, frequencies that are floats": (lambda n, x, f: n.cov(x, fweights=f), (TABLE, X)),
    "corrcoef": (lambda n, x: n.corrcoef(x), (TABLE,)),
    "corrcoef of two vectors": (lambda n, x, y: n.corrcoef(x, y), (TABLE[0], TABLE[1])),
    "corrcoef of complex numbers": (lambda n, x: n.corrcoef(x), (COMPLEX,)),
    "corrcoef of a vector": (lambda n, x: n.corrcoef(x), (TABLE[0],)),
    "nancumsum": (lambda n, x: n.nancumsum(x, axis=1), (HOLES,)),
    "nancumprod": (lambda n, x: n.nancumprod(x), (HOLES,)),
    "amax": (lambda n, x: (n.amax(x, axis=0), n.amin(x), n.around(x, 1)), (TABLE,)),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(device: str, name: str) -> None:
    call, hosts = STATISTICS[name]
    agree(call, *hosts)


POLYNOMIALS: dict[str, Call] = {
    "polyfit": lambda n, x, y: n.polyfit(x, y, 3),
    "polyfit of columns": lambda n, x, y: n.polyfit(x, n.stack([y, -y], axis=1), 2),
    "polyfit with weights": lambda n, x, y: n.polyfit(x, y, 1, w=x + 2),
    "polyfit with covariance": lambda n, x, y: n.polyfit(x, y, 2, cov=True),
    "polyfit with unscaled covariance": lambda n, x, y: n.polyfit(x, y, 2, cov="unscaled"),
    "polyfit with all": lambda n, x, y: n.polyfit(x, y, 2, full=True),
    "polyfit of lengths that differ": lambda n, x, y: n.polyfit(x, y[:3], 2),
    "polyfit of degree -1": lambda n, x, y: n.polyfit(x, y, -1),
    "polyadd": lambda n, x, y: n.polyadd(x, y[:3]),
    "polysub": lambda n, x, y: n.polysub(x[:3], y),
    "polymul": lambda n, x, y: n.polymul(x, y[:3]),
    "polyder": lambda n, x, y: n.polyder(x, 2),
    "polyder of whole numbers": lambda n, x, y: n.polyder([3, 2, 1]),
    "polyint": lambda n, x, y: n.polyint(x, 2, k=[1, 2]),
    "polyint with one constant": lambda n, x, y: n.polyint(x, 2, k=3),
    "polyint of order -1": lambda n, x, y: n.polyint(x, -1),
    "roots": lambda n, x, y: n.sort(n.abs(n.roots([1.0, -6.0, 11.0, -6.0]))),
    "poly": lambda n, x, y: n.poly([1, 2, 3]),
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    with gp.device("cpu"):
        agree(POLYNOMIALS[name], X, Y, rtol=1e-6)


CALLS: dict[str, Call] = {
    "apply_along_axis": lambda n, x: n.apply_along_axis(lambda v: v.max() - v.min(), 1, x),
    "apply_along_axis to vectors": lambda n, x: n.apply_along_axis(lambda v: v[::-1], 0, x),
    "apply_along_axis to matrices": lambda n, x: n.apply_along_axis(lambda v: n.outer(v, v), 1, x),
    "apply_along_axis with arguments": lambda n, x: n.apply_along_axis(lambda v, k, *, j: v[0] * k + j, 2, x, 2, j=1),
    "apply_along_axis of nothing": lambda n, x: n.apply_along_axis(lambda v: v.sum(), 1, x[:0]),
    "piecewise": lambda n, x: n.piecewise(x, [x < 5, x >= 15], [lambda v, k: -v * k, 9.0, 7], 3),
    "piecewise of one condition": lambda n, x: n.piecewise(x, x > 3, [lambda v: v * 2, lambda v: v * 0]),
    "piecewise, too few functions": lambda n, x: n.piecewise(x, [x < 5, x >= 15], [1]),
    "ndenumerate": lambda n, x: [v * sum(i) for i, v in n.ndenumerate(x[0])],
    "mgrid": lambda n, x: n.mgrid[0:3, 1:2:5j, -1:1:0.5],
    "mgrid of one range": lambda n, x: n.mgrid[2:5],
    "mgrid of whole numbers": lambda n, x: n.mgrid[0:3, 1:7:2],
    "ogrid": lambda n, x: n.ogrid[0:3, 1:2:5j],
    "r_": lambda n, x: n.r_[1:4, 0, 2.5, x[0, 0]],
    "r_ of whole numbers": lambda n, x: n.r_[0:3, 7, -1],
    "r_ of points": lambda n, x: n.r_[-1:1:6j, [0] * 3, 5],
    "c_": lambda n, x: n.c_[x[0, 0], x[0, 1]],
    "c_ of matrices": lambda n, x: n.c_[x[0], x[1]],
    "copyto": lambda n, x: (n.copyto(x, 2), x)[1],
    "copyto where": lambda n, x: (n.copyto(x, x[0] * 10, where=x > 6), x)[1],
    "copyto of another kind": lambda n, x: n.copyto(x.astype(int), x),
    "copyto of a number of another kind": lambda n, x: n.copyto(x.astype(int), 2.5),
    "copyto without a rule": lambda n, x: (lambda y: (n.copyto(y, x, casting="unsafe"), y)[1])(x.astype(int)),
    "flat": lambda n, x: (x.flat[5], x.T.flat[3:6], x.flat[[1, 2]], len(x.flat)),
    "flat written": lambda n, x: (x.flat.__setitem__(slice(2, 5), 0), x)[1],
    "flat of a transposed array written": lambda n, x: (x.T.flat.__setitem__(slice(2, 5), [1, 2, 3]), x)[1],
    "flat iterated": lambda n, x: [v for v in x[:, 0].flat],
    "windows": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, (2, 3), axis=(1, 2)).max(axis=(-1, -2)),
    "windows of all axes": lambda n, x: n.lib.stride_tricks.sliding_window_view(x[0], (2, 2)),
    "windows along an axis twice": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 2)),
    "windows too long": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, 9, axis=0),
    "windows, axes missing": lambda n, x: n.lib.stride_tricks.sliding_window_view(x, 2),
    "windows of a part": lambda n, x: n.lib.stride_tricks.sliding_window_view(x[1, :, ::-2], 2, axis=1).sum(axis=2),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_and_grids(device: str, name: str) -> None:
    agree(CALLS[name], CUBE)


def test_windows_are_read_only() -> None:
    x = gp.asarray([1, 2, 3])
    view = gp.sliding_window_view(x, 2)
    assert gp.may_share_memory(x, view)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0
    with pytest.raises(ValueError, match="copy them first"):
        gp.sliding_window_view(x, 2, writeable=True)
    x[0] = 9
    assert view[0, 0].item() == 9


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hanning"])
@pytest.mark.parametrize("points", [0, 1, 2, 7])
def test_windows_functions(name: str, points: int) -> None:
    agree(lambda n: getattr(n, name)(points))
    agree(lambda n: n.kaiser(points, 8.6))


def test_names_of_types() -> None:
    for name in ("byte", "short", "intc", "int_", "intp", "longlong", "ubyte", "ushort", "uintc", "uint", "uintp",
                 "ulonglong", "half", "single", "double", "csingle", "cdouble", "bool"):  # fmt: skip
        assert getattr(gp, name) == np.dtype(getattr(np, name)), name
    x = gp.zeros(2, dtype=gp.single)
    assert isinstance(x, gp.ndarray)
    assert gp.issubdtype(x.dtype, gp.floating)
    assert gp.issubdtype(x.dtype, gp.number)
    assert not gp.issubdtype(x.dtype, gp.integer)
    with gp.errstate(all="raise"):
        assert gp.isnan(gp.log(-1.0)).item()
    with gp.printoptions(precision=2):
        assert str(gp.asarray([1.23456])) == "[1.23]"


def test_text_and_raw_files(tmp_path: Any) -> None:
    x = gp.asarray([[1.5, 2.0], [3.0, 4.25]])
    gp.savetxt(tmp_path / "x.txt", x, delimiter=",")
    assert gp.loadtxt(tmp_path / "x.txt", delimiter=",").tolist() == x.tolist()
    assert gp.loadtxt(io.StringIO("1 2"), "int16").dtype == "int16"
    filled = gp.genfromtxt(io.StringIO("1,\n3,4"), delimiter=",")
    np.testing.assert_array_equal(filled.to_numpy(), [[1, np.nan], [3, 4]])
    x.tofile(tmp_path / "x.bin")
    assert gp.fromfile(tmp_path / "x.bin").tolist() == x.reshape(-1).tolist()
    assert gp.fromfile(tmp_path / "x.bin", float, 2, offset=8).tolist() == [2.0, 3.0]
    assert x.tobytes() == x.to_numpy().tobytes()
    assert x.tobytes("F") == x.to_numpy().tobytes("F")
    assert gp.frombuffer(x.tobytes(), "float64", 2, 8).tolist() == [2.0, 3.0]
    assert gp.fromiter(range(4), "int32", 3).tolist() == [0, 1, 2]
    with pytest.raises(gp.DTypeError):
        gp.frombuffer(b"abc", "S1")


def test_what_numpy_has_and_we_have_not() -> None:
    with pytest.raises(AttributeError, match=r"numpy\.vectorize works on x\.to_numpy\(\)"):
        gp.vectorize  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        gp.nothing  # noqa: B018
    assert not hasattr(gp, "matrix")
