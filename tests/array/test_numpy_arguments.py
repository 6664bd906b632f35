"""Arguments as NumPy programs pass them, with NumPy and here: the same value, type and kind of error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

KINDS = ("bool", "uint8", "int32", "float16", "float32", "float64", "complex64")
UFUNCS = [
    name for name in sorted(dir(np)) if isinstance(getattr(np, name), np.ufunc) and getattr(np, name).signature is None
    and getattr(np, name).nout == 1 and getattr(np, name).nin <= 2 and hasattr(gp, name)
]  # fmt: skip


ERRORS = (TypeError, ValueError, IndexError, OverflowError, Exception)


def ran(call: Callable[[], Any]) -> Any:
    """The result, or the class of what is raised."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            made = call()
    except Exception as error:
        # Ours are classes of their own, of the kind that NumPy raises.
        return next(
            kind for kind in (TypeError, ValueError, IndexError, OverflowError, Exception) if isinstance(error, kind)
        )
    return made.to_numpy() if isinstance(made, gp.GPUArray) else np.asarray(made)


def agree(program: Callable[..., Any], *host: np.ndarray[Any, Any]) -> None:
    got = ran(lambda: program(gp, *map(gp.from_numpy, host)))
    want = ran(lambda: program(np, *(x.copy() for x in host)))
    if isinstance(want, type) or isinstance(got, type):
        assert got is want, (got, want)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    close = 2e-3 if want.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got, want, rtol=close, atol=close)


def operands(kind: str, count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(2)
    return [(rng.integers(1, 9, (3, 4)) / (1 if kind[0] in "biu" else 4)).astype(kind) for _ in range(count)]


@pytest.mark.parametrize("name", UFUNCS)
def test_a_result_is_written_where_ufuncs_are_told_to(name: str) -> None:
    count = getattr(np, name).nin
    for kind in KINDS:
        host = operands(kind, count)
        if isinstance(ran(lambda host=host: getattr(np, name)(*host)), type):
            continue
        if kind == "bool" and name in ("conj", "conjugate"):
            # The type of the result is bool here, which the documentation says.
            continue

        def behind(xp: Any, *x: Any) -> Any:
            target = xp.zeros_like(getattr(xp, name)(*x))
            assert getattr(xp, name)(*x, target) is target
            return target

        def in_a_tuple(xp: Any, *x: Any) -> Any:
            target = xp.zeros_like(getattr(xp, name)(*x))
            assert getattr(xp, name)(*x, out=(target,)) is target
            return target

        agree(behind, *host)
        agree(in_a_tuple, *host)
        agree(lambda xp, *x: getattr(xp, name)(*x, None), *host)
        agree(lambda xp, *x: getattr(xp, name)(*x, out=(None,)), *host)
        agree(lambda xp, *x: getattr(xp, name)(*x, x[0], out=x[0]), *host)
        agree(lambda xp, *x: getattr(xp, name)(*x, 5), *host)


@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe", "nonsense"])
def test_conversions_that_ufuncs_are_told_to_allow(casting: str) -> None:
    for kind in KINDS:
        for target in KINDS:
            x, y = operands(kind, 2)
            out = np.zeros((3, 4), target)
            mask = x == y
            agree(lambda xp, x, y, out: xp.add(x, y, out=out, casting=casting), x, y, out)
            if casting != "equiv":
                # NumPy converts the number to the type of the array then, and does not allow it.
                agree(lambda xp, x, out: xp.add(x, 1, out, casting=casting), x, out)
            agree(lambda xp, x, out: xp.sqrt(x, out=out, casting=casting), x.astype("float32"), out)
            agree(lambda xp, x, y, out, mask: xp.multiply(x, y, out=out, where=mask, casting=casting), x, y, out, mask)
        agree(lambda xp, x: xp.add(x, x, casting=casting), operands(kind, 1)[0])


NUMBERS: dict[str, Callable[..., Any]] = {
    "dot of an array and an int": lambda xp, x: xp.dot(x, 2),
    "dot of a float and an array": lambda xp, x: xp.dot(2.0, x),
    "dot of an array and a bool": lambda xp, x: xp.dot(x, True),
    "x.dot": lambda xp, x: x.dot(2),
    "inner": lambda xp, x: xp.inner(x, 2),
    "outer": lambda xp, x: xp.outer(x, 2),
    "vdot": lambda xp, x: xp.vdot(x[0, :1], 2),
    "linspace to an int": lambda xp, x: xp.linspace(x, 2, 3),
    "linspace from a float": lambda xp, x: xp.linspace(0.5, x, 3, axis=-1),
    "linspace to a complex": lambda xp, x: xp.linspace(x, 1j, 3),
    "linspace to a NumPy number": lambda xp, x: xp.linspace(x, np.float64(2), 3),
    "logspace": lambda xp, x: xp.logspace(x * 0, 2, 3),
    "transpose by an int": lambda xp, x: xp.transpose(x[0], -1),
    "transpose of a matrix by an int": lambda xp, x: xp.transpose(x, 0),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (1, 0)),
    "array_equal to None": lambda xp, x: xp.array_equal(x, None),
    "array_equal to a text": lambda xp, x: xp.array_equal("a", x),
    "gradient": lambda xp, x: xp.gradient(x[0]),
    "no rows": lambda xp, x: xp.concatenate(x[:0]),
    "no rows to stack": lambda xp, x: xp.stack(x[:0]),
    "no columns": lambda xp, x: xp.column_stack(x[:0]),
    "where of two": lambda xp, x: xp.where(x != 0, x),
    "roll": lambda xp, x: xp.roll(x, (1, -2), axis=(0, 1)),
    "sort": lambda xp, x: xp.sort(x, 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_unusual_arguments(name: str, kind: str) -> None:
    (x,) = operands(kind, 1)
    agree(NUMBERS[name], x)


PAIRS: dict[str, Callable[..., Any]] = {
    "clip from above": lambda xp, x, y: xp.clip(x, 0, y),
    "clip from below": lambda xp, x, y: xp.clip(x, y, 1),
    "clip by NumPy's numbers": lambda xp, x, y: xp.clip(x, np.int8(0), 3),
    "average": lambda xp, x, y: xp.average(x, weights=y),
    "putmask": lambda xp, x, y: (xp.putmask(x, x == x, y), x)[1],
    "place": lambda xp, x, y: (xp.place(x, x == x, y), x)[1],
    "copyto": lambda xp, x, y: (xp.copyto(x, y), x)[1],
    "linspace": lambda xp, x, y: xp.linspace(x, y, 3),
    "dot": lambda xp, x, y: xp.dot(x, y.T),
    "einsum": lambda xp, x, y: xp.einsum("ij,ij->i", x, y),
    "where": lambda xp, x, y: xp.where(x == y, x, y),
    "choose": lambda xp, x, y: xp.choose(x == x, [x, y]),
}


@pytest.mark.parametrize("second", [*KINDS, "int8", "uint32", "uint64"])
@pytest.mark.parametrize("name", PAIRS)
def test_types_of_two_arrays(name: str, second: str) -> None:
    for kind in KINDS:
        agree(PAIRS[name], operands(kind, 1)[0], operands(second, 2)[1])


@pytest.mark.parametrize("second", ["bool", "int8", "uint8", "uint32", "int64"])
def test_exponents_of_any_integer_type(second: str) -> None:
    for kind in ("int8", "float16", "float32", "float64"):
        agree(lambda xp, x, y: xp.ldexp(x, y), operands(kind, 1)[0], operands(second, 2)[1])
