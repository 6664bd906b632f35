"""Operators whose rows are declared (`Case.rows`): arguments with any number of rows, and the bits of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import pygpukit as gp
from pygpukit.ops.registry import Case, Operator, load

Arrays: TypeAlias = dict[str, np.ndarray]

MOST = 33
"""Rows on the emulator."""


def batched() -> list[tuple[Operator, Case, str]]:
    """Operators that are batch-invariant where kernels run, with the cases that declare rows, and a name."""
    found = []
    for op in load().values():
        # NumPy's functions may choose another order of sums by the shape; they do not run there.
        kernels = [v for v in op.variants if v.host is None]
        if any(v.determinism == "batch_invariant" for v in kernels):
            found += [(op, case, f"{op.name}-{i}") for i, case in enumerate(op.cases) if case.rows]
    return found


def arguments(case: Case, rows: int, seed: int = 5) -> Arrays:
    """Random arrays of a case with this many rows; the first rows are the same whatever their number."""
    made = {}
    for at, (name, (kind, shape)) in enumerate(case.arrays.items()):
        to, axis = gp.to_numpy_dtype(kind), case.rows.get(name)
        # A generator per array: rows come one after another.
        rng = np.random.default_rng([seed, at])
        sizes = list(shape)
        if axis is not None:
            sizes.insert(0, sizes.pop(axis))
            sizes[0] = rows
        values = rng.standard_normal(sizes)
        if axis is not None:
            values = np.moveaxis(values, 0, axis)
        made[name] = (values * 50).astype(to) if gp.dtype(kind).kind in "iu" else values.astype(to)
    return made


def taken(case: Case, arrays: Arrays, rows: Sequence[int]) -> Arrays:
    """The same arguments with these rows only, in this order."""
    return {
        name: np.ascontiguousarray(x.take(rows, case.rows[name])) if name in case.rows else x
        for name, x in arrays.items()
    }


def on_device(arrays: Arrays) -> dict[str, gp.GPUArray]:
    """The arrays on the current device."""
    return {name: gp.from_numpy(x) for name, x in arrays.items()}


def results(op: Operator, arrays: Mapping[str, gp.GPUArray], case: Case) -> list[gp.GPUArray]:
    """What the operator gives, as a list."""
    value: Any = getattr(gp, op.name)(**arrays, **case.options)
    return list(value) if isinstance(value, tuple) else [value]


def row_digests(case: Case, values: Sequence[gp.GPUArray]) -> list[str]:
    """A digest of each row of all results."""
    axis = next(iter(case.rows.values()))
    hosts = [np.moveaxis(x.to_numpy(), axis, 0) for x in values]
    return ["".join(gp.fingerprint(x[row]) for x in hosts) for row in range(len(hosts[0]))]


def all_digests(rows: int) -> dict[str, str]:
    """Fingerprints of all results of all batched operators with this many rows, by name."""
    found = {}
    for op, case, name in batched():
        values = results(op, on_device(arguments(case, rows)), case)
        found[name] = " ".join(map(gp.fingerprint, values))
    return found
