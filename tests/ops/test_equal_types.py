"""Operators by way of casts: what runs where a bundle has only the kernels for equal types."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops import dispatch
from pygpukit.ops.elementwise.plan import plan, uniform
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.gemm import rows as matmul
from pygpukit.ops.gemm.simt import matmul_entry
from pygpukit.ops.problem import Tensor
from pygpukit.ops.promotion import Input, can_cast, resolve
from pygpukit.ops.reduce.kernels import launches
from pygpukit.ops.reduce.layout import form
from pygpukit.ops.reduce.table import TABLE as REDUCTIONS
from pygpukit.ops.units import ALL_TYPES, builtin_units

WEAK: tuple[Input, ...] = ("bool", "int", "float", "complex")
SCALARS = {"bool": True, "int": 3, "float": 1.25, "complex": 1.5 - 0.5j}


@cache
def bundled() -> frozenset[str]:
    """Names of all kernels a bundle holds."""
    return frozenset(entry for unit in builtin_units() for entry in unit.entries)


def combinations(row: Row) -> list[tuple[Input, ...]]:
    """Types of the inputs: all of them for one and two inputs, some for three; at least one is an array's."""
    inputs: list[Input] = [*map(dtype, ALL_TYPES), *WEAK]
    every = list(itertools.product(inputs, repeat=row.arity))
    chosen = every if row.arity < 3 else every[:: max(1, len(every) // 1500)]
    return [types for types in chosen if any(isinstance(x, DataType) for x in types)]


def defined(row: Row) -> list[tuple[Input, ...]]:
    """Those combinations the operator takes."""
    found = []
    for types in combinations(row):
        try:
            resolve(row, types)
        except DTypeError:
            continue
        found.append(types)
    return found


@pytest.mark.parametrize("name", [row.name for row in TABLE.values() if row.rule != "cast"])
def test_casting_first_changes_no_type_and_needs_only_bundled_kernels(name: str) -> None:
    row = TABLE[name]
    for types in defined(row):
        wanted = uniform(name, types)
        assert resolve(row, wanted) == resolve(row, types), types
        assert uniform(name, wanted) == wanted, types
        made = plan(name, wanted)
        assert {made.entry, made.entry_nd} <= bundled(), types


def test_a_cast_between_any_two_types_is_bundled() -> None:
    inputs: list[Input] = [*map(dtype, ALL_TYPES), *WEAK]
    for source, target in itertools.product(inputs, map(dtype, ALL_TYPES)):
        assert plan("copy", (source,), target).entry in bundled()


@pytest.mark.parametrize("name", [row.name for row in TABLE.values() if row.rule != "cast"])
def test_values_are_those_of_the_operator_itself(name: str) -> None:
    row = TABLE[name]
    rng = np.random.default_rng(list(name.encode()))
    every = defined(row)
    for types in [every[i] for i in rng.choice(len(every), min(25, len(every)), replace=False)]:
        hosts = [SCALARS[x] if isinstance(x, str) else op_cases.values(x.name, 40, i) for i, x in enumerate(types)]
        operands = tuple(gp.from_numpy(x) if isinstance(x, np.ndarray) else x for x in hosts)
        result = resolve(row, types)[1]
        targets = [t for t in map(dtype, ALL_TYPES) if can_cast(result, t)]
        for to in {result, targets[int(rng.integers(len(targets)))]}:
            want, got = gp.zeros(40, to), gp.zeros(40, to)
            native.apply(name, operands, want)
            dispatch.apply_by_casts(name, operands, got)
            assert got.to_numpy().tobytes() == want.to_numpy().tobytes(), (types, to)


def test_shapes_views_and_outputs_among_the_operands() -> None:
    host = np.arange(12, dtype=np.int32).reshape(3, 4)
    x, y = gp.from_numpy(host), gp.asarray([0.5, 1.5, 2.5, 3.5], "float32")
    out = gp.zeros((4, 3), "float64").T
    dispatch.apply_by_casts("add", (x, y), out)
    np.testing.assert_array_equal(out.to_numpy(), host + y.to_numpy())
    condition = gp.from_numpy(np.array([[0.0], [-0.0], [np.nan]], np.float32))
    wide = gp.zeros((3, 4), "float64")
    dispatch.apply_by_casts("where", (condition, x, y), wide)
    np.testing.assert_array_equal(wide.to_numpy(), np.where([[False], [False], [True]], host, y.to_numpy()))
    dispatch.apply_by_casts("mul", (wide, x), wide)
    assert wide[2].tolist() == [64.0, 81.0, 100.0, 121.0]
    narrow = gp.ones(4, "float32")
    dispatch.apply_by_casts("add", (1, 2.5), narrow)
    assert narrow.tolist() == [3.5] * 4


def test_products_of_two_types_are_products_of_one() -> None:
    for first, second in itertools.product(map(dtype, ALL_TYPES), repeat=2):
        try:
            result = matmul.matmul_type(first, second)
        except DTypeError:
            continue
        wide = matmul.wide_type(first, second)
        assert matmul.matmul_type(wide, wide) is wide
        assert matmul.wide_type(wide, wide) is wide
        assert matmul_entry(wide, wide, wide) in bundled()
        a, b = (np.arange(6).reshape(s).astype(to_numpy_dtype(t)) for s, t in (((2, 3), first), ((3, 2), second)))
        direct = matmul.reference(a, b)
        cast = matmul.reference(a.astype(to_numpy_dtype(wide)), b.astype(to_numpy_dtype(wide)))
        assert cast.astype(to_numpy_dtype(result)).tobytes() == direct.tobytes(), (first, second)


def test_reductions_to_any_type_have_kernels_for_one_type() -> None:
    for kind in map(dtype, ALL_TYPES):
        for row in REDUCTIONS.values():
            if kind.kind not in row.kinds or kind.kind not in row.kernel_kinds:
                continue
            to = row.result(kind)
            wide = row.accumulator(kind, to)
            for n in (10, 5000 * 4096):
                for shape, axes in ((n,), (0,)), ((n, 100), (0,)), ((2, n), (1,)):
                    x, out = Tensor("input", 0, kind, shape), Tensor("output", 0, to, ())
                    found = form(x, axes)
                    assert found is not None
                    steps = launches(row, x, out, wide, found).launches
                    assert {step.entry for step in steps} <= bundled()  # type: ignore[union-attr]
