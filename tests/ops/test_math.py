"""Functions made of elementwise operators against NumPy: types, layouts, special values, errors; nothing is read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.array import bridge

REAL = ["int8", "int32", "uint8", "float16", "float32", "float64"]
PLAIN = ["bool", "int16", "int64", "uint64", *REAL, "complex64", "complex128"]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5, 2.5, 1e-3, -3e4]


def values(kind: str, shape: Any = (5, 7), seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, len(kind)])
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind[0] == "u":
        return rng.integers(0, 100, shape).astype(kind)
    x = rng.normal(size=shape) * 20
    return (x + 1j * rng.normal(size=shape)).astype(kind) if kind[0] == "c" else x.astype(kind)


def tolerance(kind: np.dtype[Any]) -> float:
    return {2: 2e-2, 4: 2e-5}.get(kind.itemsize // (2 if kind.kind == "c" else 1), 1e-11)


def check(got: Any, want: Any, context: Any, *, rtol: float | None = None) -> None:
    if isinstance(want, tuple | list):
        assert len(got) == len(want), context
        for a, b in zip(got, want, strict=True):
            check(a, b, context, rtol=rtol)
        return
    want = np.asarray(want)
    got = got.to_numpy() if isinstance(got, gp.GPUArray) else np.asarray(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), context
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want, str(context))
    else:
        limit = tolerance(want.dtype) if rtol is None else rtol
        scale = np.max(np.abs(want[np.isfinite(want)]), initial=0)
        np.testing.assert_allclose(got, want, limit, limit * scale, err_msg=str(context))


def upload(x: Any) -> Any:
    return gp.from_numpy(x) if isinstance(x, np.ndarray) else x


def run(name: str, *args: Any, **keywords: Any) -> tuple[Any, Any]:
    """The function of this package, and NumPy's on the same arguments."""
    with np.errstate(all="ignore"):
        want = getattr(np, name)(*args, **keywords)
    ours = {key: upload(value) for key, value in keywords.items()}
    return getattr(gp, name)(*map(upload, args), **ours), want


ONE_ARRAY = [
    "rint", "fabs", "rad2deg", "deg2rad", "degrees", "radians", "positive", "modf", "frexp", "spacing", "isposinf",
    "isneginf", "nan_to_num", "angle", "sinc", "isreal", "iscomplex", "round", "signbit", "trunc", "fix", "floor",
    "ceil", "logical_not", "conj", "conjugate", "absolute", "bitwise_count", "diff", "ediff1d", "trapezoid", "unwrap",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_ARRAY)
def test_functions_of_one_array(name: str) -> None:
    for kind in PLAIN:
        check_one_array(name, kind)


def check_one_array(name: str, kind: str) -> None:
    """Compare a function of an array of one type with NumPy's."""
    x = values(kind)
    if name in ("round", "conj", "conjugate") and kind == "bool":
        # NumPy makes float16 and int8 of them; here booleans stay, as they do in floor.
        assert getattr(gp, name)(gp.from_numpy(x)).dtype is gp.bool_
        return
    if name == "unwrap" and kind == "bool":
        with pytest.raises(gp.DTypeError, match="convert"):
            gp.unwrap(gp.from_numpy(x))
        return
    try:
        with np.errstate(all="ignore"):
            getattr(np, name)(x)
    except TypeError:
        with pytest.raises(TypeError, match="not defined"):
            getattr(gp, name)(gp.from_numpy(x))
        return
    for host in (x, x.T, x[::-2, ::3], x[1, 2:3], x[:0], x[0, 0, ...].reshape(())):
        if host.size == 0 and name == "unwrap":
            continue
        if host.ndim == 0 and name in ("diff", "trapezoid", "unwrap"):
            continue
        got, want = run(name, host)
        check(got, want, (name, kind, host.shape))


TWO = [
    ("clip", (-3, 9)), ("clip", (None, 9)), ("clip", (2, None)), ("round", (1,)), ("round", (-1,)), ("round", (3,)),
    ("divmod", (3,)), ("fmod", (3,)), ("float_power", (2,)), ("ldexp", (3,)), ("ldexp", (np.arange(7),)),
    ("isclose", (1,)), ("heaviside", (0.5,)), ("copysign", (-1.0,)), ("nextafter", (0.0,)), ("logaddexp", (1.5,)),
    ("logaddexp2", (1.5,)), ("gcd", (12,)), ("lcm", (4,)), ("hypot", (2,)), ("gradient", ()), ("gradient", (2.0,)),
]  # fmt: skip


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize(("name", "more"), TWO)
def test_functions_of_an_array_and_more(name: str, more: tuple[Any, ...], kind: str) -> None:
    x = values(kind)
    if name == "clip" and kind == "uint8":
        more = tuple(None if v is None else abs(v) for v in more)
    try:
        with np.errstate(all="ignore"):
            getattr(np, name)(x, *more)
    except TypeError:
        with pytest.raises(TypeError, match="convert with astype"):
            getattr(gp, name)(gp.from_numpy(x), *more)
        return
    got, want = run(name, x, *more)
    if name == "round" and kind == "float16":
        # Scaled in float32 here, where NumPy's products overflow.
        want = np.round(x.astype(np.float32), *more).astype(np.float16)
    check(got, want, (name, kind))


@pytest.mark.parametrize("kind", ["int32", "float32", "float64", "complex64"])
def test_differences_slopes_and_areas(kind: str) -> None:
    x = values(kind)
    c, d = np.cumsum(np.arange(1, 8) / 3), np.cumsum([1.0, 2.0, 0.5, 3.0, 1.0]).astype(np.float32)
    for axis in (0, 1, -1):
        for n in (0, 1, 3, 7, 9):
            check(*run("diff", x, n, axis), context=("diff", n, axis))
        for order in (1, 2):
            check(*run("gradient", x, 0.5, axis=axis, edge_order=order), context=("gradient", axis, order))
        check(*run("trapezoid", x, dx=0.25, axis=axis), context=("trapezoid", axis))
    for order in (1, 2):
        check(*run("gradient", x, edge_order=order), context=order)
        check(*run("gradient", x, d, c, edge_order=order), context=("coordinates", order), rtol=1e-3)
        check(*run("gradient", x, c, axis=1, edge_order=order), context=("coordinates", order), rtol=1e-3)
    check(*run("trapezoid", x, c), context="x")
    check(*run("trapezoid", x, np.abs(x)), context="x of its shape")
    check(*run("ediff1d", x, to_begin=x[0], to_end=x[1, 1:3]), context="ediff1d")
    check(*run("cross", x[:4, :3], x[1, 2:5]), context="cross")
    check(*run("cross", x[:3, :4], x[2:5, 3:7], axis=0), context="cross by axis")
    check(*run("cross", x[:3, :4], x[:4, 1:4], axisa=0, axisb=1, axisc=0), context="cross by axes")
    with np.errstate(all="ignore"):
        check(*run("polyval", x[0, :4], x), context="polyval", rtol=1e-4)


@pytest.mark.skipif(not hasattr(gp, "concatenate"), reason="needs concatenate")
def test_differences_with_elements_before_and_behind() -> None:
    x = values("float32")
    check(*run("diff", x, prepend=0, append=x[:, :2]), context="columns")
    check(*run("diff", x, axis=0, prepend=x[:1], append=1.5), context="rows")
    xp, fp = np.array([350.0, 10.0, 90.0]), np.array([1.0, 2.0, 5.0])
    check(*run("interp", values("float64") * 30, xp, fp, period=360), context="period")


def test_lines_between_points() -> None:
    rng = np.random.default_rng(3)
    xp, fp = np.sort(rng.normal(size=9)), rng.normal(size=9)
    x = np.concatenate([rng.normal(size=50) * 2, xp, [np.nan, np.inf, -np.inf]])
    check(*run("interp", x, xp, fp), context="inside and outside")
    check(*run("interp", x, xp, fp, left=-9, right=9), context="ends")
    check(*run("interp", x.astype(np.float32).reshape(2, -1), xp.astype(np.float32), fp * 1j), context="complex")
    check(*run("interp", x, xp[:1], fp[:1]), context="one point")
    jump, high = np.array([0, 1, 1, 2.0]), np.array([0, np.inf, 3, 4.0])
    check(*run("interp", np.array([-1, 0, 0.5, 1, 1.5, 2, 3]), jump, high), context="jumps and infinities")


@pytest.mark.parametrize("kind", ["int32", "float32", "float64"])
def test_angles_without_jumps(kind: str) -> None:
    x = values(kind)
    for keywords in ({}, {"period": 7}, {"period": 8, "axis": 0, "discont": 5}, {"period": 6.5}):
        check(*run("unwrap", x, **keywords), context=keywords, rtol=1e-4)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_what_is_not_finite(kind: str, device: str) -> None:
    x = np.array(SPECIAL).astype(kind)
    names: tuple[str, ...] = ("modf", "frexp", "nan_to_num")
    if device != "emulated":
        names += ("spacing", "isposinf", "isneginf", "rint", "trunc", "sinc")
    for name in names:
        check(*run(name, x), context=name)
    assert np.signbit(gp.modf(gp.from_numpy(x))[0].to_numpy()).tolist()[:4] == [False, True, False, True]
    if device != "emulated":
        check(*run("nan_to_num", x, nan=7, posinf=1, neginf=-3), context="given")
        check(*run("nan_to_num", x, nan=7, posinf=9), context="one given")
        for equal_nan in (False, True):
            check(*run("isclose", x[:, None], x, equal_nan=equal_nan), context="isclose")
            for number in (math.nan, math.inf, 1.0):
                check(*run("isclose", x, number, equal_nan=equal_nan), context="isclose a number")
        check(*run("ldexp", x, np.arange(-5, 5) * 300), context="ldexp")
        check(*run("heaviside", x, x[::-1].copy()), context="heaviside")


def test_parts_of_complex_numbers_that_are_not_finite() -> None:
    z = np.array([complex(np.nan, 1), complex(1, np.inf), 1 + 1j], np.complex64)
    check(*run("nan_to_num", z), context="complex")
    x = gp.from_numpy(z)
    assert gp.nan_to_num(x, copy=False) is x
    check(x, np.nan_to_num(z), "in place")
    view = gp.from_numpy(np.repeat(z, 2))[::2]
    gp.nan_to_num(view, copy=False, nan=5.0)
    check(view, np.nan_to_num(z, nan=5.0), "a view in place")
    assert gp.real_if_close(gp.from_numpy(np.array([1 + 1e-15j]))).dtype is gp.float64
    assert gp.real_if_close(gp.from_numpy(np.array([1 + 1e-5j]))).dtype is gp.complex128


INVERSE = ["asin", "acos", "atan", "asinh", "acosh", "atanh"]


@pytest.mark.parametrize("kind", ["complex64", "complex128"])
@pytest.mark.parametrize("name", INVERSE)
def test_inverse_functions_of_complex_numbers(name: str, kind: str, device: str) -> None:
    """Both parts within 8 ulp of NumPy's, on both sides of the branch cuts, near branch points, small and huge."""
    if device == "emulated" and (kind == "complex64" or name in ("atan", "asinh")):
        pytest.skip("computed in double, and by the others")
    parts = np.array([0.0, 1e-300, 1e-17, 0.3, 1 - 1e-16, 1.0, 1 + 1e-9, 2.0, 1e8, 1e16, 1e20, 1e155, 1.7e308])
    if kind == "complex64":
        parts = np.array([0.0, 1e-40, 1e-8, 0.3, 1 - 6e-8, 1.0, 1.1, 2.0, 1e8, 1e20, 3e38])
    parts = np.concatenate([parts, -parts])
    re, im = np.meshgrid(parts, parts)
    rng = np.random.default_rng(1)
    z = np.empty(re.size + 500, np.complex128)
    z.real, z.imag = (
        np.concatenate([re.ravel(), rng.normal(size=500)]),
        np.concatenate([im.ravel(), rng.normal(size=500)]),
    )
    z = z.astype(kind)
    got = getattr(gp, name)(gp.from_numpy(z)).to_numpy()
    with np.errstate(all="ignore"):
        want = getattr(np, name)(z.astype(np.complex128)).astype(kind)
    for a, b in ((got.real, want.real), (got.imag, want.imag)):
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        a, b = a[np.isfinite(b)], b[np.isfinite(b)]
        assert np.all(np.abs(a - b) <= 8 * np.spacing(np.abs(b)))


CALLS = {
    "round": lambda x: gp.round(x, 2), "round integers": lambda x: gp.round(x.astype("int32"), -1), "rint": gp.rint,
    "clip": lambda x: gp.clip(x, -1, None), "nan_to_num": gp.nan_to_num, "modf": gp.modf, "frexp": gp.frexp,
    "ldexp": lambda x: gp.ldexp(x, 3), "divmod": lambda x: gp.divmod(x, 3), "spacing": gp.spacing, "angle": gp.angle,
    "isclose": lambda x: gp.isclose(x, x), "allclose": lambda x: gp.allclose(x, x),
    "array_equal": lambda x: gp.array_equal(x, x),
    "diff": gp.diff, "gradient": lambda x: gp.gradient(x, edge_order=2), "trapezoid": gp.trapezoid, "unwrap": gp.unwrap,
    "cross": lambda x: gp.cross(x[:, :3], x[0, 2:5]), "polyval": lambda x: gp.polyval(x[0, :3], x),
    "softplus": gp.softplus,
    "interp": lambda x: gp.interp(x, gp.arange(7.0), x[1]), "mish": gp.mish,
    "float_power": lambda x: gp.float_power(x, 2),
    "where": lambda x: gp.add(x, 1, where=gp.greater(x, 0)), "dtype": lambda x: gp.add(x, x, dtype="float64"),
    "outer": lambda x: gp.subtract.outer(x[0], x[1]), "reduce": lambda x: gp.hypot.reduce(x, axis=1),
    "accumulate": lambda x: gp.maximum.accumulate(x, axis=1), "power": lambda x: x.astype("int32") ** 2,
}  # fmt: skip


# What the emulator runs: functions with kernels of their own, and one of each way to make others.
EMULATED = (
    "round", "clip", "nan_to_num", "modf", "frexp", "ldexp", "spacing", "allclose", "gradient", "unwrap", "cross",
    "interp", "where", "outer", "reduce", "accumulate",
)  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_read_and_all_devices_agree(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "emulated" and name not in EMULATED:
        pytest.skip("made of the same operators as others")
    host = values("float32")
    with gp.device("cpu"):
        want = CALLS[name](gp.from_numpy(host))
    x = gp.from_numpy(host)

    def read(*args: Any, **keywords: Any) -> None:
        raise AssertionError("elements were read on the host")

    with monkeypatch.context() as patched:
        patched.setattr(bridge._native, "read_buffer", read)
        got = CALLS[name](x)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
        check(a, b.to_numpy(), name)


def test_arrays_that_are_equal_or_close() -> None:
    a, b = gp.asarray([[1, 2], [3, 4]], "int32"), gp.asarray([[1.0, 2.0], [3.0, 4.0]])
    nan = gp.asarray([1.0, math.nan])
    for answer, wanted in (
        (gp.array_equal(a, b), True), (gp.array_equal(a, a + 1), False), (gp.array_equal(a, a[0]), False),
        (gp.array_equiv(a, a[0]), False), (gp.array_equiv(gp.asarray([[1, 2], [1, 2]]), gp.asarray([1, 2])), True),
        (gp.array_equiv(a, gp.ones(3)), False), (gp.array_equal(nan, nan), False),
        (gp.array_equal(nan, nan, equal_nan=True), True), (gp.allclose(b, b + 1e-9), True),
        (gp.allclose(b, b + 0.1), False), (gp.allclose(b, b + 0.1, atol=0.2), True),
        (gp.allclose(nan, nan, equal_nan=True), True),
    ):  # fmt: skip
        assert isinstance(answer, gp.GPUArray)
        assert (answer.shape, answer.dtype.name, bool(answer)) == ((), "bool", wanted)


@pytest.mark.parametrize("kind", ["float32", "int32", "bfloat16"])
def test_ufunc_keywords(kind: str) -> None:
    a = np.arange(6).reshape(2, 3).astype(gp.to_numpy_dtype(kind))
    mask = np.array([True, False, True])
    x, where = gp.from_numpy(a), gp.from_numpy(mask)
    out = gp.full((2, 3), 9, kind)
    assert gp.add(x, x, out=out, where=where) is out
    assert out.tolist() == [[0, 9, 4], [6, 9, 10]]
    assert gp.add(x, 1, where=where).tolist() == [[1, 0, 3], [4, 0, 6]]
    assert gp.multiply(x, x, where=True).tolist() == (a * a).tolist()
    if kind == "int32":
        got = gp.add(x, x, dtype="float32")
        assert (got.dtype, got.tolist()) == (gp.float32, (a + a).tolist())
        assert gp.sin(x, dtype="float32").dtype is gp.float32
        with pytest.raises(gp.DTypeError, match="convert"):
            gp.add(x.astype("float64"), 1, dtype="int32")
        with pytest.raises(gp.DTypeError, match="cannot be written"):
            gp.add(x, 1.5, out=x, where=where)


def test_ufunc_keywords_that_are_wrong() -> None:
    x = gp.ones(3)
    for keywords, text in (
        ({"where": [True, False, True]}, "where must be a GPUArray of bool, not list"),
        ({"where": x}, "where must be a GPUArray of bool, not float32"),
        ({"order": "K"}, "unexpected keyword argument 'order'"),
        ({"where": x > 0, "out": np.ones(3)}, "out must be a GPUArray"),
    ):
        with pytest.raises(TypeError, match=text):
            gp.add(x, x, **keywords)
    with pytest.raises(gp.DTypeError, match="computes nothing in float32"):
        gp.less(x, x, dtype="float32")
    with pytest.raises(TypeError, match="unexpected keyword argument 'where'"):
        gp.where(x > 0, x, x, where=x > 0)


REDUCIBLE = ["add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", "bitwise_and",
             "bitwise_or", "bitwise_xor", "gcd", "lcm", "hypot", "logaddexp", "fmax", "fmin"]  # fmt: skip


@pytest.mark.parametrize("name", REDUCIBLE)
def test_methods_of_ufuncs(name: str) -> None:
    whole = name.startswith(("bitwise", "gcd", "lcm"))
    x = np.abs(values("int64", (3, 4, 5))) % 7 + 1 if whole else values("float64", (3, 4, 5)) / 10
    ours, theirs = getattr(gp, name), getattr(np, name)
    for keywords in ({}, {"axis": 1}, {"axis": -1, "keepdims": True}):
        check(ours.reduce(gp.from_numpy(x), **keywords), theirs.reduce(x, **keywords), (name, keywords))
    if name not in ("multiply", "lcm"):
        want = theirs.reduce(theirs.reduce(theirs.reduce(x)))
        check(ours.reduce(gp.from_numpy(x), axis=None), want, name)
    check(ours.reduce(gp.from_numpy(x), initial=1), theirs.reduce(x, initial=1), (name, "initial"))
    for axis in (0, 2):
        check(ours.accumulate(gp.from_numpy(x), axis), theirs.accumulate(x, axis), (name, "accumulate"))
    check(ours.outer(gp.from_numpy(x[0]), gp.from_numpy(x[1, 1])), theirs.outer(x[0], x[1, 1]), (name, "outer"))
    check(ours.outer(gp.from_numpy(x[0]), 2), theirs.outer(x[0], 2), (name, "outer"))
    empty = np.zeros((0, 3), x.dtype)
    try:
        want = theirs.reduce(empty)
    except ValueError:
        with pytest.raises(ValueError, match="no"):
            ours.reduce(gp.from_numpy(empty))
    else:
        check(ours.reduce(gp.from_numpy(empty)), want, (name, "empty"))


def test_methods_of_ufuncs_that_are_refused() -> None:
    with pytest.raises(TypeError, match="sub is not associative"):
        gp.subtract.reduce(gp.ones(3))
    with pytest.raises(np.exceptions.AxisError):
        gp.gcd.reduce(gp.ones(3, "int32"), axis=1)
    with pytest.raises(TypeError, match="asarray"):
        gp.add.reduce("a")
    assert not hasattr(gp.sin, "reduce")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: gp.clip(x, "a", 1), TypeError, r"clip\(\)"),
        (lambda x: gp.clip(x, np.ones(3), 1), TypeError, r"clip\(\).*from_numpy"),
        (lambda x: gp.clip(x, None, "a"), TypeError, r"clip\(\).*asarray"),
        (lambda x: x.clip(gp.ones(4), 1), gp.ShapeError, "broadcast"),
        (lambda x: gp.clip(x, 1, 2, out=gp.ones(3, "int32")), gp.DTypeError, r"^clip"),
        (lambda x: gp.clip(x, 1, min=2), ValueError, "a_min and min"),
        (lambda x: gp.round(x, 1.5), TypeError, "float"),
        (lambda x: gp.rint(np.ones(3)), TypeError, r"rint\(\).*from_numpy"),
        (lambda x: gp.ldexp(x, 1.5), gp.DTypeError, "integer exponents"),
        (lambda x: gp.diff(x[0]), ValueError, "one dimension"),
        (lambda x: gp.diff(x, -1), ValueError, "negative"),
        (lambda x: gp.diff(x, axis=1), np.exceptions.AxisError, "axis 1"),
        (lambda x: gp.gradient(x[:1]), gp.ShapeError, "samples"),
        (lambda x: gp.gradient(x, 1.0, 2.0), TypeError, "2"),
        (lambda x: gp.gradient(x, x[:2]), gp.ShapeError, "coordinates"),
        (lambda x: gp.cross(x[:2], x[:2]), gp.ShapeError, "3 elements"),
        (lambda x: gp.interp(x, x, x[:2]), gp.ShapeError, "one length"),
        (lambda x: gp.polyval("ab", x), TypeError, "asarray"),
        (lambda x: gp.array_equal(x, object()), TypeError, "array_equal"),
        (lambda x: gp.isclose("a", 2), TypeError, "isclose"),
        (lambda x: gp.float_power("a", 3), TypeError, "float_power"),
        (lambda x: gp.ediff1d(x.astype("int32"), to_end=1.5), TypeError, "to_end"),
    ],
)
def test_bad_calls(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(gp.ones(3))


def test_integers_to_negative_powers() -> None:
    x = gp.asarray([2, -1, 1], "int32")
    for call in (lambda: x**-1, lambda: gp.power(x, -3), lambda: x ** np.int64(-2), lambda: gp.ones(2, "bool") ** -1):
        with pytest.raises(ValueError, match="negative power"):
            call()
    with pytest.raises(ValueError, match="negative power"):
        x **= -1
    np.testing.assert_allclose((x**-1.0).to_numpy(), [0.5, -1, 1])
    np.testing.assert_allclose((x.astype("float32") ** -1).to_numpy(), [0.5, -1, 1])
    assert (x ** gp.asarray([-1, -1, -2], "int32")).tolist() == [0, -1, 1]
    with pytest.raises(OverflowError):
        gp.asarray([2], "uint8") ** -1


def test_functions_take_a_stream_and_out() -> None:
    x, stream = gp.asarray([1.26, 2.74]), gp.Stream()
    out = gp.empty(2, "float64")
    assert gp.round(x, 1, out=out, stream=stream) is out
    stream.synchronize()
    np.testing.assert_allclose(out.to_numpy(), [1.3, 2.7])
    assert gp.clip(x, 2, 3, out=x) is x
    assert x.tolist() == [2.0, 2.74]


# What NumPy has as a ufunc and this package does not, and why.
MISSING = {
    "isnat": "there are no dates", "matvec": "products of arrays", "vecdot": "products of arrays",
    "vecmat": "products of arrays",
}  # fmt: skip


def test_every_ufunc_of_numpy_is_here_or_named() -> None:
    names = {name for name in dir(np) if isinstance(getattr(np, name), np.ufunc)}
    assert sorted(name for name in names - set(MISSING) if not hasattr(gp, name)) == []
    for name in names & set(dir(gp)):
        assert callable(getattr(gp, name)), name
