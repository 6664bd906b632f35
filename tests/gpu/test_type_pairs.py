"""Every operator on inputs of different types and on Python scalars, against NumPy itself.

A kernel converts each input to the common type of the operator by a line of its own, which depends on nothing but the
two types (`plan._input`). By default the cases cover each such conversion, each kind of Python scalar beside each
common type, and each row; test_elementwise.py has the rows on equal types. PYGPUKIT_TEST_EVERY_PAIR=1 walks all pairs
of types of all rows (9,500 kernels, about ten minutes of two cores).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise import reference
from pygpukit.ops.elementwise.plan import Plan, plan
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.elementwise.tolerance import tolerance
from pygpukit.ops.promotion import Input, resolve
from pygpukit.ops.units import ALL_TYPES

Types = tuple[Input, ...]

EVERY_PAIR = os.environ.get("PYGPUKIT_TEST_EVERY_PAIR", "0") == "1"
SMALL = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
PARTS = 8

# Each kind with values that are true but become 0 or overflow when they are cast instead of tested.
SCALARS: dict[str, list[Any]] = {
    "bool": [True, False],
    "int": [0, 3, -1, 256],
    "float": [0.0, -0.5, 1e-30, 1e10, np.nan, -np.inf],
    "complex": [0j, 0.5j, 1.5 - 0.5j],
}
_WHOLE = [0, 1, 2, 3, 7, 31, 64, 127, 256]
_REAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -2.5, 3.0, 20.0, 256.0, 1e-30, np.inf, -np.inf, np.nan]
_COMPLEX = [0j, 0.5j, -0.5, 1 + 0j, 1.5 - 0.5j, -3 + 4j, 256j, 0.001 + 2j]


def special_values(kind: DataType) -> op_cases.Array:
    """A few values of a type at which operators, casts and truth differ."""
    to = gp.to_numpy_dtype(kind)
    if to.kind == "b":
        return np.array([False, True])
    with np.errstate(all="ignore"):
        if to.kind == "c":
            return np.array(_COMPLEX, to)
        if to.kind not in "iu":
            return np.array(_REAL).astype(to)
    info = np.iinfo(to)
    whole = {*_WHOLE, *(-x for x in _WHOLE), info.min, info.max}
    return np.array(sorted(x for x in whole if info.min <= x <= info.max), to)


def combinations(row: Row) -> Iterator[Types]:
    """All types of inputs that an operator takes; for three inputs those in which at most two types appear."""
    inputs: list[Input] = [*map(dtype, ALL_TYPES), "bool", "int", "float", "complex"]
    for types in itertools.product(inputs, repeat=row.arity):
        if all(isinstance(x, str) for x in types) or (row.arity == 3 and len(set(types)) > 2):
            continue
        try:
            resolve(row, types)
        except DTypeError:
            continue
        yield types


def conversions(row: Row, types: Types) -> set[tuple[str, ...]]:
    """What a case exercises: the row, and how each input reaches the common type."""
    common, _ = resolve(row, types)
    seen = {("row", row.name)}
    for i, x in enumerate(types):
        if row.rule == "where" and i == 0:
            seen.add(("condition", x if isinstance(x, str) else x.name))
        else:
            seen.add(("input", str(x if isinstance(x, str) else x.name), common.name))
    return seen


@cache
def cases() -> tuple[tuple[str, Types], ...]:
    """The operators and types to try."""
    rows = [row for row in TABLE.values() if row.rule != "cast"]
    every = [(row, types) for row in rows for types in combinations(row)]
    if EVERY_PAIR:
        return tuple((row.name, types) for row, types in every)
    # Shuffled, so that the conversions are spread over the rows.
    order = np.random.default_rng(19).permutation(len(every))
    covered: set[tuple[str, ...]] = set()
    chosen = []
    for least, i in itertools.product((3, 2, 1), order):
        row, types = every[i]
        new = conversions(row, types) - covered
        if len(new) >= least:
            covered |= new
            chosen.append((row.name, types))
    return tuple(chosen)


def operands(types: Types) -> Iterator[list[Any]]:
    """Every combination of special values: arrays hold them, of scalars there is one list for each value."""
    arrays = [special_values(x) for x in types if isinstance(x, DataType)]
    grid = iter(np.meshgrid(*arrays, indexing="ij"))
    columns: list[list[Any]] = [SCALARS[x] if isinstance(x, str) else [next(grid).ravel()] for x in types]
    for chosen in itertools.product(*columns):
        yield list(chosen)


def expected(row: Row, made: Plan, hosts: list[Any]) -> Any:
    """NumPy's own answer where it has one with our types; otherwise the reference's."""
    names = {str(x.dtype) for x in hosts if isinstance(x, np.ndarray)}
    # docs: int64 is compared with uint64 in float64, and an integer may have a negative power.
    ours = names & SMALL or (names >= {"int64", "uint64"} and made.out.name == "bool" and made.common.name != "bool")
    ours = ours or (row.name == "pow" and made.common.kind == "i")
    want = np.empty(np.broadcast(*hosts).shape, gp.to_numpy_dtype(made.out))
    function = row.numpy if isinstance(row.numpy, np.ufunc) else {"where": np.where}.get(row.name)
    if function is not None and not ours:
        with np.errstate(all="ignore"):
            answer = np.asarray(function(*hosts))
        assert answer.dtype == want.dtype, f"{row.name}: NumPy gives {answer.dtype}, the plan {want.dtype}"
        return answer
    reference.apply(row.name, tuple(hosts), want)
    return want


def check(name: str, types: Types) -> str | None:
    """Compare one operator on given types with NumPy; return what differs."""
    row = TABLE[name]
    made = plan(name, types)
    described = ", ".join(x if isinstance(x, str) else x.name for x in types)
    for hosts in operands(types):
        scalars = [x for x in hosts if not isinstance(x, np.ndarray)]
        ours = [gp.from_numpy(x) if isinstance(x, np.ndarray) else x for x in hosts]
        try:
            want = expected(row, made, hosts)
        except OverflowError:
            want = None
        try:
            got = native.apply(name, ours).to_numpy()
        except OverflowError as error:
            # docs: a Python integer that the type cannot hold is refused in comparisons and where() too.
            if want is None or name == "where" or (made.out.name == "bool" and made.common.name != "bool"):
                continue
            return f"{name}({described}) with {scalars}: {error}"
        if want is None:
            return f"{name}({described}) with {scalars}: NumPy raises OverflowError"
        try:
            op_cases.assert_close(got, want, tolerance(name, made.common), f"{name}({described}) with {scalars}")
        except AssertionError as error:
            return str(error)
    return None


def test_a_case_for_every_conversion() -> None:
    """The cases cover what the rows, types and scalars can make; a new row or type adds its own."""
    chosen = cases()
    assert {name for name, _ in chosen} == {row.name for row in TABLE.values() if row.rule != "cast"}
    truths = {x for name, types in chosen if plan(name, types).common.name == "bool" for x in types}
    assert truths >= {*map(dtype, ALL_TYPES), "bool", "int", "float", "complex"}


@pytest.mark.timeout(7200 if EVERY_PAIR else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_mixed_types_give_numpys_results(part: int, device: gp.Device) -> None:
    failures = [found for name, types in cases()[part::PARTS] if (found := check(name, types)) is not None]
    assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures)
