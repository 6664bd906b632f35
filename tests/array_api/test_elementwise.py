"""Elementwise functions and operators: types, promotion, values, and the special cases that the standard names."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import numpy as np
import pytest
from numpy_oracle import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMERIC,
    REAL,
    REAL_FLOATS,
    SIGNED,
    UNSIGNED,
    agree,
    name_of,
)

import pygpukit as gp
from pygpukit import array_api as xp

UNARY = {
    "abs": NUMERIC,
    "acos": FLOATS,
    "acosh": FLOATS,
    "asin": FLOATS,
    "asinh": FLOATS,
    "atan": FLOATS,
    "atanh": FLOATS,
    "bitwise_invert": BOOL + INTEGERS,
    "ceil": REAL,
    "conj": NUMERIC,
    "cos": FLOATS,
    "cosh": FLOATS,
    "exp": FLOATS,
    "expm1": FLOATS,
    "floor": REAL,
    "imag": COMPLEX,
    "isfinite": NUMERIC,
    "isinf": NUMERIC,
    "isnan": NUMERIC,
    "log": FLOATS,
    "log10": FLOATS,
    "log1p": FLOATS,
    "log2": FLOATS,
    "logical_not": BOOL,
    "negative": SIGNED + FLOATS,
    "positive": NUMERIC,
    "real": NUMERIC,
    "reciprocal": FLOATS,
    "round": NUMERIC,
    "sign": NUMERIC,
    "signbit": REAL_FLOATS,
    "sin": FLOATS,
    "sinh": FLOATS,
    "sqrt": FLOATS,
    "square": NUMERIC,
    "tan": FLOATS,
    "tanh": FLOATS,
    "trunc": REAL,
}
BINARY = {
    "add": NUMERIC,
    "atan2": REAL_FLOATS,
    "bitwise_and": BOOL + INTEGERS,
    "bitwise_left_shift": INTEGERS,
    "bitwise_or": BOOL + INTEGERS,
    "bitwise_right_shift": INTEGERS,
    "bitwise_xor": BOOL + INTEGERS,
    "copysign": REAL_FLOATS,
    "divide": FLOATS,
    "equal": ALL,
    "floor_divide": REAL,
    "greater": REAL,
    "greater_equal": REAL,
    "hypot": REAL_FLOATS,
    "less": REAL,
    "less_equal": REAL,
    "logaddexp": REAL_FLOATS,
    "logical_and": BOOL,
    "logical_or": BOOL,
    "logical_xor": BOOL,
    "maximum": REAL,
    "minimum": REAL,
    "multiply": NUMERIC,
    "nextafter": REAL_FLOATS,
    "not_equal": ALL,
    "pow": NUMERIC,
    "remainder": REAL,
    "subtract": NUMERIC,
}
SYMBOLS: dict[str, Any] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
IN_PLACE: dict[str, Any] = {
    "add": operator.iadd,
    "subtract": operator.isub,
    "multiply": operator.imul,
    "divide": operator.itruediv,
    "floor_divide": operator.ifloordiv,
    "remainder": operator.imod,
    "pow": operator.ipow,
    "bitwise_and": operator.iand,
    "bitwise_or": operator.ior,
    "bitwise_xor": operator.ixor,
    "bitwise_left_shift": operator.ilshift,
    "bitwise_right_shift": operator.irshift,
}
COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
# Where a host's math library and a kernel agree least; elsewhere TOLERANCE of the oracle holds.
LOOSE = {"pow": 2e-5, "tan": 1e-5, "expm1": 5e-6, "log1p": 5e-6, "acosh": 5e-6, "logaddexp": 5e-6}


def values(name: str) -> np.ndarray[Any, Any]:
    """Elements with the special values of the type."""
    if name == "bool":
        return np.array([False, True])
    if name in INTEGERS:
        info = np.iinfo(name)
        return np.array([0, 1, 2, 3, 5, 7, 8, 100, info.max, info.max - 1, info.min, info.min + 1], name)
    parts = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -4.0, 1e-3, 25.0, 1e5, math.inf, -math.inf, math.nan]
    if name in COMPLEX:
        # Overflowing intermediate products are the host library's own affair, as are parts of mixed infinities.
        finite = [p for p in parts if abs(p) < 100]
        return np.array([complex(a, b) for a in finite for b in finite], name)
    return np.array(parts, name)


def operands(function: str, first: str, second: str) -> tuple[Any, Any]:
    x, y = (v.ravel() for v in np.meshgrid(values(first), values(second), indexing="ij"))
    if function.endswith("shift"):
        # The standard leaves shifts by negative amounts, and by the number of bits or more, to libraries.
        y = (y.astype(np.uint64) % np.uint64(8)).astype(second)
    if function in ("floor_divide", "remainder") and second in INTEGERS:
        keep = (y != 0) & ~((y == y.dtype.type(-1)) & (x < 0)) if second in SIGNED else y != 0
        x, y = x[keep], y[keep]
    if function == "pow" and second in INTEGERS:
        keep = y >= 0
        x, y = x[keep], y[keep]
    if function == "pow" and second in COMPLEX:
        keep = (np.abs(x) > 0) & (np.abs(x) < 10) & (np.abs(y) < 5)
        x, y = x[keep], y[keep]
    if function == "divide" and second in COMPLEX:
        x, y = x[y != 0], y[y != 0]
    return x, y


@pytest.mark.parametrize("function", UNARY)
def test_unary(function: str) -> None:
    with gp.device("cpu"):
        for name in UNARY[function]:
            x = values(name)
            if name in COMPLEX and function in ("atanh", "log", "log2", "log10", "log1p", "reciprocal"):
                x = x[(x != 0) & (np.abs(x.real) != 1)]
            agree(lambda n, x: getattr(n, function)(x), x, tolerance=LOOSE.get(function), where=f"{function} {name}")


@pytest.mark.parametrize("function", BINARY)
def test_binary(function: str) -> None:
    with gp.device("cpu"):
        for name in BINARY[function]:
            x, y = operands(function, name, name)
            agree(lambda n, x, y: getattr(n, function)(x, y), x, y, tolerance=LOOSE.get(function), where=name)
            if function in SYMBOLS:
                agree(lambda n, x, y: SYMBOLS[function](x, y), x, y, tolerance=LOOSE.get(function), where=name)


def test_all_functions_on_other_devices(device: str) -> None:
    if device == "cpu":
        pytest.skip("covered by every type above")
    x, y = np.array([0.5, 0.25, 0.75], np.float32), np.array([2.0, 3.0, -1.0], np.float32)
    small = np.array([1, 2, 3], np.int32)
    for function, names in UNARY.items():
        source = x if "float32" in names else small if "int32" in names else np.array([True, False])
        source = x.astype(np.complex64) if function == "imag" else 1 + x if function == "acosh" else source
        agree(lambda n, x, f=function: getattr(n, f)(x), source, tolerance=1e-5, where=function)
    for function, names in BINARY.items():
        two = (x, y) if "float32" in names else (small, small) if "int32" in names else (np.array([True, False]),) * 2
        agree(lambda n, a, b, f=function: getattr(n, f)(a, b), *two, tolerance=1e-5, where=function)


def promoted(first: str, second: str) -> str | None:
    """The standard's table; None where it has no entry."""
    if first == second:
        return first
    for kind in (SIGNED, UNSIGNED, REAL_FLOATS, COMPLEX):
        if first in kind and second in kind:
            return max(first, second, key=kind.index)
    if {first, second} <= set(REAL_FLOATS + COMPLEX):
        double = "float64" in (first, second) or "complex128" in (first, second)
        return "complex128" if double else "complex64"
    if {first, second} <= set(INTEGERS) and "uint64" not in (first, second):
        signed, unsigned = (first, second) if first in SIGNED else (second, first)
        return SIGNED[max(SIGNED.index(signed), UNSIGNED.index(unsigned) + 1)]
    return None


def test_the_table_of_promotion() -> None:
    pairs = [(a, b, promoted(a, b)) for a, b in itertools.product(ALL, ALL)]
    assert sum(result is not None for _, _, result in pairs) == 1 + 8 * 8 - 2 * 4 + 16
    with gp.device("cpu"):
        for first, second, result in pairs:
            if result is None:
                continue
            for shape in ((), (2,)):
                x, y = xp.ones(shape, dtype=getattr(xp, first)), xp.ones((), dtype=getattr(xp, second))
                assert name_of(xp.where(xp.asarray(True), x, y)) == result
                assert name_of(xp.result_type(x, y)) == result
                assert name_of(xp.concat([xp.reshape(x, (-1,)), xp.reshape(y, (-1,))])) == result
                assert xp.result_type(x.dtype, y.dtype) == xp.result_type(x, y.dtype) == getattr(xp, result)
                for function, names in BINARY.items():
                    if first in names and second in names:
                        kind = "bool" if function in COMPARISONS else result
                        if function == "pow" and "bool" in (first, second):
                            continue
                        assert name_of(getattr(xp, function)(x, y)) == kind, (function, first, second)
                        if function in SYMBOLS:
                            assert name_of(SYMBOLS[function](x, y)) == kind, (function, first, second)


@pytest.mark.parametrize("name", ALL)
def test_python_scalars_take_the_arrays_type(name: str) -> None:
    with gp.device("cpu"):
        x = xp.ones(3, dtype=getattr(xp, name))
        scalars: list[Any] = {"b": [True], "i": [2], "u": [2], "f": [2, 2.5], "c": [2, 2.5, 2.5j]}[x.dtype.kind]
        for function, names in BINARY.items():
            for scalar in scalars if name in names else ():
                kind = "bool" if function in COMPARISONS else name
                calls = [getattr(xp, function)(x, scalar), getattr(xp, function)(scalar, x)]
                if function in SYMBOLS:
                    calls += [SYMBOLS[function](x, scalar), SYMBOLS[function](scalar, x)]
                assert [name_of(c) for c in calls] == [kind] * len(calls), (function, scalar)
                if function in IN_PLACE and not (function == "divide" and x.dtype.kind in "iu"):
                    y = xp.asarray(x, copy=True)
                    z = IN_PLACE[function](y, scalar)
                    assert z is y
                    assert y.dtype == x.dtype
        assert name_of(xp.where(xp.asarray([True, False, True]), x, scalars[0])) == name
        assert name_of(xp.where(xp.asarray([True, False, True]), scalars[0], x)) == name


@pytest.mark.parametrize("function", IN_PLACE)
def test_in_place_operators(function: str) -> None:
    names = [name for name in BINARY[function] if not (function == "divide" and name in INTEGERS)]
    with gp.device("cpu"):
        for name in names:
            x, y = operands(function, name, name)
            ours = gp.from_numpy(x)
            alias = ours
            with np.errstate(all="ignore"):
                theirs = SYMBOLS[function](x, y)
            ours = IN_PLACE[function](ours, gp.from_numpy(y))
            assert ours is alias
            tolerance = LOOSE.get(function, 1e-6)
            np.testing.assert_allclose(ours.to_numpy(), theirs, rtol=tolerance, equal_nan=True)


def test_unary_operators() -> None:
    with gp.device("cpu"):
        for name in NUMERIC:
            x = values(name)
            agree(lambda n, x: +x, x)
            agree(lambda n, x: abs(x), x)
            if name not in UNSIGNED:
                agree(lambda n, x: -x, x)
        for name in BOOL + INTEGERS:
            agree(lambda n, x: ~x, values(name))


def signed(x: float) -> str:
    return repr(math.copysign(1, x) if x == 0 else x)


SPECIAL: list[tuple[str, tuple[float, ...], float]] = [
    ("abs", (-0.0,), 0.0),
    ("acos", (1.0,), 0.0),
    ("acosh", (0.5,), math.nan),
    ("add", (-0.0, -0.0), -0.0),
    ("add", (math.inf, -math.inf), math.nan),
    ("asinh", (-0.0,), -0.0),
    ("atan2", (-0.0, -1.0), -math.pi),
    ("atan2", (0.0, -0.0), math.pi),
    ("atanh", (-1.0,), -math.inf),
    ("ceil", (-0.5,), -0.0),
    ("copysign", (3.0, -0.0), -3.0),
    ("cosh", (-math.inf,), math.inf),
    ("divide", (1.0, -0.0), -math.inf),
    ("divide", (0.0, 0.0), math.nan),
    ("expm1", (-math.inf,), -1.0),
    ("floor", (-0.0,), -0.0),
    ("floor_divide", (1.0, -math.inf), -1.0),
    ("hypot", (math.inf, math.nan), math.inf),
    ("log", (-1.0,), math.nan),
    ("log", (0.0,), -math.inf),
    ("log1p", (-0.0,), -0.0),
    ("logaddexp", (math.nan, 0.0), math.nan),
    ("maximum", (math.nan, 1.0), math.nan),
    ("minimum", (1.0, math.nan), math.nan),
    ("multiply", (math.inf, 0.0), math.nan),
    ("nextafter", (0.0, 0.0), 0.0),
    ("pow", (math.nan, 0.0), 1.0),
    ("pow", (-0.0, -3.0), -math.inf),
    ("pow", (-math.inf, 3.0), -math.inf),
    ("pow", (1.0, math.nan), 1.0),
    ("reciprocal", (-0.0,), -math.inf),
    ("remainder", (-0.0, 1.0), 0.0),
    ("remainder", (-1.0, math.inf), math.inf),
    ("remainder", (1.0, 0.0), math.nan),
    ("round", (0.5,), 0.0),
    ("round", (2.5,), 2.0),
    ("round", (-0.5,), -0.0),
    ("sign", (math.nan,), math.nan),
    ("sign", (-0.0,), 0.0),
    ("signbit", (-0.0,), True),
    ("sqrt", (-0.0,), -0.0),
    ("subtract", (0.0, 0.0), 0.0),
    ("tanh", (-math.inf,), -1.0),
    ("trunc", (-0.9,), -0.0),
]


def test_special_cases_of_the_standard(device: str) -> None:
    for function, arguments, expected in SPECIAL:
        got = float(getattr(xp, function)(*(xp.asarray(a, dtype=xp.float32) for a in arguments)))
        case = f"{function}{arguments} is {got}, not {expected}"
        if function in ("sign", "remainder") and expected == 0:
            assert got == 0, case
        elif math.isnan(expected) or expected == 0:
            assert signed(got).replace("-nan", "nan") == signed(float(expected)), case
        else:
            assert got == pytest.approx(float(expected), rel=1e-6), case


def test_clip() -> None:
    with gp.device("cpu"):
        for name in REAL:
            x = values(name)
            agree(lambda n, x: n.clip(x, 1, 5), x)
            agree(lambda n, x: n.clip(x, min=2), x)
            agree(lambda n, x: n.clip(x, max=2), x)
            agree(lambda n, x: n.clip(x), x)
            agree(lambda n, x, a, b: n.clip(x, a, b), x, x[2:3], x[4:5])
        x = np.arange(6.0).reshape(2, 3)
        agree(lambda n, x, a: n.clip(x, a, None), x, np.array([1.0, 2.0, 9.0]))


def test_broadcasting(device: str) -> None:
    x, y = np.arange(6.0).reshape(2, 1, 3), np.arange(4.0).reshape(4, 1)
    agree(lambda n, x, y: n.add(x, y), x, y)
    agree(lambda n, x, y: n.less(x, y[0, 0]), x, y)
    agree(lambda n, x, y: x[:0] * y, x, y)
    with pytest.raises(ValueError, match="broadcast"):
        xp.add(xp.ones(3), xp.ones(2))
    z = xp.ones((2, 3))
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        z[0] += z
