"""Input values and comparisons for tests that walk the operator table."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.ops.elementwise.plan import Plan, plan
from pygpukit.ops.elementwise.rows import supported
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.elementwise.tolerance import Tolerance
from pygpukit.ops.units import ALL_TYPES

Array = np.ndarray[Any, np.dtype[Any]]

_EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 0.1, 1e-3, 20.0, -20.0, np.inf, -np.inf, np.nan]
# Complex infinities follow Annex G in NumPy and are not part of the kernels' contract.
_FINITE = [x for x in _EDGES if np.isfinite(x)]


def same_inputs(row: Row, name: str) -> tuple[DataType, ...]:
    """Return the input types of a row used with one type."""
    kind = dtype(name)
    return (dtype("bool"), kind, kind) if row.rule == "where" else (kind,) * row.arity


def same_plan(row: Row, name: str) -> Plan:
    """Return the plan of a row used with one type."""
    return plan(row.name, same_inputs(row, name))


def values(name: str, count: int, seed: int) -> Array:
    """Return edge values and random ones of a type, shuffled."""
    rng = np.random.default_rng([seed, ALL_TYPES.index(name)])
    to = to_numpy_dtype(dtype(name))
    if to.kind == "b":
        return rng.integers(0, 2, count).astype(to)
    if to.kind in "iu":
        info = np.iinfo(to)
        edges = [x for x in (0, 1, -1, 2, 3, -3, 7, 31, 63, 64, info.min, info.max) if info.min <= x <= info.max]
        small = rng.integers(max(info.min, -9), 10, count // 2)
        wide = rng.integers(info.min, info.max, count, dtype=to, endpoint=True)
        mixed = np.concatenate([np.array(edges, to), small.astype(to), wide])
    elif to.kind == "c":
        parts = rng.standard_normal(2 * count).reshape(2, count) * rng.choice([0.1, 1.0, 4.0], count)
        edges = rng.choice(_FINITE, 2 * len(_FINITE)).reshape(2, -1)
        re, im = np.concatenate([edges, parts], axis=1)
        mixed = (re + 1j * im).astype(to)
    else:
        parts = rng.standard_normal(count) * rng.choice([0.01, 1.0, 3.0, 40.0], count)
        with np.errstate(all="ignore"):
            mixed = np.concatenate([_EDGES, parts]).astype(to)
    picked = mixed[:count]
    rng.shuffle(picked)
    return np.ascontiguousarray(picked)


def arguments(row: Row, name: str, count: int) -> list[Array]:
    """Return one array per input of a row used with one type."""
    kinds = [x.name for x in same_inputs(row, name)]
    arrays = [values(kind, count, seed) for seed, kind in enumerate(kinds)]
    if row.name == "pow" and arrays[0].dtype.kind == "c":
        # NumPy's own general power loses digits in proportion to the exponent.
        arrays[1] = np.round(arrays[1]).astype(arrays[1].dtype)
    return arrays


def ulps(a: Array, b: Array) -> Array:
    """Return how many floats lie between ``a`` and ``b``; both zeros are one."""
    x, y = (_ordered(v) for v in (a, b))
    apart = np.abs(x.astype(np.float64)) + np.abs(y.astype(np.float64))
    return np.where((x < 0) == (y < 0), np.abs(x - y), apart)


def _ordered(x: Array) -> Array:
    bits = np.ascontiguousarray(x).view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, -(bits & (2 ** (8 * x.itemsize - 1) - 1)), bits)


def assert_close(got: Array, want: Array, allowed: Tolerance, context: str) -> None:
    """Assert that results agree; NaN equals NaN, and nothing else does."""
    assert got.dtype == want.dtype, context
    if got.dtype.kind in "biu":
        bad = got != want
    elif got.dtype.kind == "c":
        with np.errstate(all="ignore"):
            scale = np.spacing(np.maximum(np.abs(want.real), np.abs(want.imag)))
            far = ~(np.abs(got - want) <= allowed.ulp * scale) & (got != want)
        bad = far & ~(np.isnan(got) & np.isnan(want))
    else:
        nan = np.isnan(want.astype(np.float64))
        with np.errstate(all="ignore"):
            near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= allowed.floor
        bad = np.where(nan, ~np.isnan(got.astype(np.float64)), ~((ulps(got, want) <= allowed.ulp) | near))
    where = np.flatnonzero(bad)[:5]
    assert where.size == 0, f"{context}: at {where.tolist()} got {got.ravel()[where]}, want {want.ravel()[where]}"


def rows_of(name: str) -> list[Row]:
    """Return the rows defined for inputs of one type."""
    return [row for row in TABLE.values() if dtype(name) in supported(row)]
