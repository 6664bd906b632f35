"""Every row of the operator table through its public name, against NumPy itself and not the row's own reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.elementwise.aliases import ALIASES
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.elementwise.table import TABLE

PLAIN = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]

Function = Callable[..., Any]


def _gelu(a: Any) -> Any:
    # a / 2 * (1 + tanh(u)) without its cancellation for negative a.
    u = math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)
    return a / (1 + np.exp(-2 * u))


# Written out here, in float64, because NumPy has no such function.
OWN: dict[str, Function] = {
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "sigmoid": lambda a: np.where(a < 0, np.exp(-np.abs(a)), 1) / (1 + np.exp(-np.abs(a))),
    "silu": lambda a: a / (1 + np.exp(-a)),
    "gelu": _gelu,
    "relu": lambda a: np.maximum(a, 0),
    "relu2": lambda a: np.maximum(a, 0) * np.maximum(a, 0),
    "lerp": lambda a, b, t: (1 - t) * a + t * b,
}
RENAMED: dict[str, Function] = {
    "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "mod": np.remainder, "neg": np.negative,
    "pow": np.power, "abs": np.absolute, "round": np.rint, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "conj": np.conjugate,
    "clamp": np.clip,
}  # fmt: skip
PUBLIC = [row.name for row in TABLE.values() if row.public]


def numpy_of(name: str) -> Function:
    return OWN.get(name) or RENAMED.get(name) or getattr(np, name)


def operands(name: str, kind: np.dtype[Any], count: int) -> list[np.ndarray[Any, Any]]:
    """Values the function is defined for, with the awkward ones among them where it takes any."""
    rng = np.random.default_rng(len(name) * 100 + count)
    made = []
    for i in range(count):
        if kind.kind == "b":
            made.append(rng.integers(0, 2, 24).astype(bool))
        elif kind.kind in "iu":
            low, high = (1, 5) if i or name == "reciprocal" else (0 if kind.kind == "u" else -7, 8)
            made.append(rng.integers(low, high, 24).astype(kind))
        else:
            values = rng.uniform(0.1, 0.9, 24) if name != "acosh" else rng.uniform(1.1, 4, 24)
            if name not in ("log", "log2", "log10", "rsqrt", "sqrt", "acosh", "pow"):
                values *= rng.choice([-1, 1], 24)
            if kind.kind == "c":
                values = values + 1j * rng.uniform(-1, 1, 24)
            made.append(values.astype(kind))
    if name == "clamp":
        made[1], made[2] = np.minimum(made[1], made[2]), np.maximum(made[1], made[2])
    if name == "where":
        made[0] = rng.integers(0, 2, 24).astype(kind)
    return made


def check(got: np.ndarray[Any, Any], wanted: Any, ulp: float) -> None:
    wanted = np.asarray(wanted)
    if got.dtype.kind in "biu":
        assert got.tolist() == wanted.astype(got.dtype).tolist()
        return
    eps = float(np.finfo(got.real.dtype).eps) if got.dtype.name not in SMALL else _eps(got.dtype)
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=ulp * eps, atol=ulp * eps * 1e-2)


def _eps(kind: np.dtype[Any]) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(kind).eps)


@pytest.mark.parametrize("name", PUBLIC)
def test_numpys_types(name: str) -> None:
    for kind in PLAIN:
        check_type(name, kind)


def check_type(name: str, kind: str) -> None:
    """Compare an operator on one of NumPy's types with NumPy."""
    row, function = TABLE[name], getattr(gp, name)
    host = operands(name, np.dtype(kind), row.arity)
    arrays = [gp.from_numpy(h) for h in host]
    try:
        plan(name, tuple(x.dtype for x in arrays))
    except gp.DTypeError:
        # What the planner refuses the operator refuses, and only for kinds the row does not claim.
        assert np.dtype(kind).kind not in row.kinds or name in OWN
        with pytest.raises(gp.DTypeError, match=name):
            function(*arrays)
        return
    result = function(*arrays)
    if name in OWN:
        wide = np.complex128 if np.dtype(kind).kind == "c" else np.float64
        with np.errstate(all="ignore"):
            check(result.to_numpy(), OWN[name](*(h.astype(wide) for h in host)), 8)
        return
    with np.errstate(all="ignore"):
        wanted = numpy_of(name)(*host)
    if name in ("floor", "ceil", "trunc", "round", "conj") and np.dtype(kind).kind in "biu":
        # NumPy's versions differ here; an integer is its own floor and its own conjugate.
        wanted = host[0]
    assert gp.to_numpy_dtype(result.dtype) == np.asarray(wanted).dtype, (result.dtype, np.asarray(wanted).dtype)
    check(result.to_numpy(), wanted, 8)


@pytest.mark.parametrize("name", PUBLIC)
def test_small_floats(name: str) -> None:
    for kind in SMALL:
        check_small_float(name, kind)


def check_small_float(name: str, kind: str) -> None:
    """Compare an operator on a type that NumPy lacks with NumPy's float64."""
    row, function = TABLE[name], getattr(gp, name)
    if "f" not in row.kinds:
        with pytest.raises(gp.DTypeError, match=name):
            function(*[gp.ones(3, kind)] * row.arity)
        return
    host = operands(name, gp.to_numpy_dtype(kind), row.arity)
    result = function(*(gp.from_numpy(h) for h in host))
    with np.errstate(all="ignore"):
        wanted = np.asarray(numpy_of(name)(*(h.astype(np.float64) for h in host)))
    assert result.dtype.name == ("bool" if wanted.dtype.kind == "b" else kind)
    check(result.to_numpy(), wanted, 2)


@pytest.mark.parametrize("name", [n for n in PUBLIC if TABLE[n].arity < 3 and "f" in TABLE[n].kinds])
def test_what_is_not_finite(name: str) -> None:
    # float64 has other neighbours than a smaller type.
    for kind in ["float64"] if TABLE[name].by_format else ["float16", "bfloat16", "float32", "float64"]:
        check_not_finite(name, kind)


def check_not_finite(name: str, kind: str) -> None:
    """Compare an operator on zeros, infinities and NaN with NumPy's float64."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0])
    host = [special.astype(gp.to_numpy_dtype(kind))] * TABLE[name].arity
    if TABLE[name].arity == 2:
        host = [np.repeat(host[0], special.size), np.tile(host[1], special.size)]
    result = getattr(gp, name)(*(gp.from_numpy(h) for h in host)).to_numpy()
    wide = [h.astype(np.float64) for h in host]
    with np.errstate(all="ignore"):
        wanted = np.asarray(numpy_of(name)(*wide), dtype=np.float64)
    if name in ("silu", "gelu"):
        # Minus infinity times zero: the formula's NaN is what the function gives.
        wanted, result = wanted[wide[0] != -np.inf], result[wide[0] != -np.inf]
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=2e-2 if kind == "bfloat16" else 2e-3)


def test_the_names_of_numpy_are_the_same_operators() -> None:
    assert "trunc" in ALIASES
    for ours, others in ALIASES.items():
        for other in others:
            assert getattr(gp, ours) is getattr(gp, other)
            # What NumPy means by its name.
            x = np.array([5, 3], np.int32)
            args = [x] * TABLE[ours].arity if "i" in TABLE[ours].kinds else [x / 8] * TABLE[ours].arity
            with np.errstate(all="ignore"):
                wanted = getattr(np, other)(*args)
                np.testing.assert_allclose(getattr(gp, other)(*map(gp.from_numpy, args)).to_numpy(), wanted)


BINARY: dict[str, Function] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "**": lambda a, b: a**b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}  # fmt: skip
BITS: dict[str, Function] = {
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}  # fmt: skip


@pytest.mark.parametrize("symbol", [*BINARY, *BITS])
@pytest.mark.parametrize("kind", ["float32", "int16", "uint8"])
def test_python_operators(symbol: str, kind: str) -> None:
    if symbol in BITS and kind == "float32":
        with pytest.raises(gp.DTypeError):
            BITS[symbol](gp.ones(2), gp.ones(2))
        return
    function = (BINARY | BITS)[symbol]
    a, b = np.array([1, 5, 7, 2]).astype(kind), np.array([3, 2, 7, 1]).astype(kind)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    for ours, theirs in (
        ((x, y), (a, b)),
        ((x, 3), (a, 3)),
        ((3, y), (3, b)),
        ((x, b[0]), (a, b[0])),
        ((a[1], y), (a[1], b)),
    ):
        got, wanted = function(*ours), function(*theirs)
        assert isinstance(got, gp.GPUArray)
        assert gp.to_numpy_dtype(got.dtype) == wanted.dtype
        check(got.to_numpy(), wanted, 4)


def test_unary_python_operators() -> None:
    a = np.array([1, -5, 7], np.int8)
    x = gp.from_numpy(a)
    for ours, theirs in ((-x, -a), (+x, +a), (abs(x), abs(a)), (~x, ~a)):
        assert ours.tolist() == theirs.tolist()
    assert not (+x)._shares_memory(x)
    assert (~gp.asarray([True, False])).tolist() == [False, True]


def test_in_place_python_operators_write_the_array() -> None:
    a = np.array([9.0, 5.0, 7.0], np.float32)
    x = gp.from_numpy(a)
    kept, view = x, x[1:]
    for operator in ("+=", "-=", "*=", "/=", "//=", "%=", "**="):
        exec(f"x {operator} 2", {}, names := {"x": x})
        exec(f"a {operator} 2", {}, others := {"a": a})
        assert names["x"] is kept
        check(x.to_numpy(), others["a"], 4)
    assert view.tolist() == x.tolist()[1:]
    bits = gp.asarray([6, 3], "uint8")
    bits &= 2
    bits |= 8
    bits ^= 1
    bits <<= 2
    bits >>= 1
    assert bits.tolist() == [22, 22]


def test_in_place_keeps_the_kind() -> None:
    x = gp.ones(3, "int32")
    with pytest.raises(gp.DTypeError, match="float64"):
        x += 0.5
    with pytest.raises(gp.DTypeError):
        x /= 2
    with pytest.raises(gp.ShapeError):
        x += gp.ones((2, 3), "int32")
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("other", [None, "1", {}, object()])
def test_what_is_no_operand(other: Any) -> None:
    x = gp.ones(2)
    with pytest.raises(TypeError):
        x + other
    with pytest.raises(TypeError):
        other * x
    with pytest.raises(TypeError, match="add"):
        gp.add(x, other)
    assert (x == other).tolist() == (np.ones(2) == other).tolist() == [False, False]
    assert (x != other).tolist() == [True, True]
    with pytest.raises(TypeError):
        _ = x < other


def test_another_class_may_say_what_equals_it() -> None:
    from unittest import mock

    assert (gp.ones(2) == mock.ANY) is True
    assert gp.ones(2) in [mock.ANY]


def test_numpy_arrays_are_refused_with_the_way_to_convert_them() -> None:
    x, host = gp.ones(2), np.ones(2, np.float32)
    for call in (lambda: x + host, lambda: host + x, lambda: x == host, lambda: host < x, lambda: gp.add(host, x),
                 lambda: x @ host, lambda: host @ x, lambda: divmod(x, host)):  # fmt: skip
        with pytest.raises(TypeError, match="from_numpy"):
            call()
    with pytest.raises(TypeError, match="to_numpy"):
        np.asarray(x)
    with pytest.raises(TypeError):
        np.add(x, host)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: gp.add(x), TypeError, "takes 2 operands but 1"),
        (lambda x: gp.add(x, x, x, x), TypeError, "takes 2 operands but 4"),
        (lambda x: gp.add(x, object()), TypeError, "numbers and lists, not object.*asarray"),
        (lambda x: gp.add(1, "a"), TypeError, "numbers and lists, not str"),
        (lambda x: gp.pow(2, -1), ValueError, "negative power"),
        (lambda x: gp.add(x, x, order="C"), TypeError, "unexpected keyword argument 'order'"),
        (lambda x: gp.add(x, x, out=np.zeros(3)), TypeError, "out must be a GPUArray, not ndarray"),
        (lambda x: gp.add(x, x, stream=0), TypeError, "Stream"),
        (lambda x: gp.add(x, gp.ones(4)), gp.ShapeError, r"\(3,\) and \(4,\)"),
        (lambda x: gp.add(x, x, out=gp.ones(4)), gp.ShapeError, r"\(3,\), but out has \(4,\)"),
        (lambda x: gp.add(x, x, out=gp.ones(3, "int32")), gp.DTypeError, "cannot be written"),
        (lambda x: gp.add(x, x, out=gp.ones(1)._broadcast_to([3])), gp.ShapeError, "share memory"),
        (lambda x: gp.bitwise_and(x, x), gp.DTypeError, "not defined for float32"),
        (lambda x: gp.add(gp.ones(3, "e4m3"), gp.ones(3, "e5m2")), gp.DTypeError, "no common type"),
    ],
)
def test_bad_calls(call: Function, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(gp.ones(3))


def test_the_documentation_of_an_operator() -> None:
    assert gp.add.__name__ == "add"
    assert gp.add.__text_signature__ == "(x, y, /, *, out=None, stream=None, where=True, dtype=None)"
    assert "Sum" in str(gp.add.__doc__)
