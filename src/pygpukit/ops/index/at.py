"""Updates at places by an operator, each in turn also where places repeat: ``gp.add.at``, and `scatter_add`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.array.bridge import asarray
from pygpukit.array.indexing import elements_for, spread
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.index.keys import Masked, Places, parse
from pygpukit.ops.index.layout import (
    INDEX_NAMES,
    MAX_INDICES,
    axes_struct,
    collapse,
    given_indices,
    instance_of,
    pointers,
)
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Product,
    Unit,
    Workspace,
    blocks_for,
    i32,
    i64,
    nd,
    read,
    update,
    write,
)
from pygpukit.ops.problem import Problem, dense_strides
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.registry import Operator, Parameter, Variant, export, register
from pygpukit.ops.size import hint, product
from pygpukit.ops.sort import plans
from pygpukit.ops.source import instance

MERGES = {
    "add": "add",
    "sub": "add",
    "mul": "mul",
    "div": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "fmax": "fmax",
    "fmin": "fmin",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}
"""Operators with ``at``, and how two values are brought together before they are applied."""

_WINDOW = 64


@cache
def words_unit(count: int) -> Unit:
    """Return the source of words of places and ordinals, from up to so many index arrays."""
    entry = f"pgk_at_words_k{count}"
    return instance("index/at.cu", [f"PGK_AT_WORDS({entry}, {count})"], (entry,))


@cache
def at_unit(name: str, kind: DataType) -> Unit:
    """Return the source of the updates by one operator of one element type."""
    made = plan(name, (kind, kind))
    c = made.compute.tag
    struct = f"at_{name}_{kind.tag}"
    lines = ["namespace pgk {", f"struct {struct} {{", f"    using T = {kind.tag};", f"    using C = {c};"]
    for function, row in (("apply", TABLE[name]), ("merge", TABLE[MERGES[name]])):
        expression = row.expression(kind.kind)
        lines.append(f"    static PGK_FN C {function}(C a, C b) {{ return convert<C>({expression}); }}")
    entries = (f"pgk_at_{name}_{kind.tag}", f"pgk_at_{name}_windows_{kind.tag}")
    lines += ["};", "}", f"PGK_AT_APPLY({entries[0]}, {struct})", f"PGK_AT_WINDOWS({entries[1]}, {struct})"]
    return instance("index/at.cu", lines, entries)


def has_at(name: str, kind: DataType) -> bool:
    """Return whether an operator gives elements of the type of its operands, for elements of this type."""
    try:
        return plan(name, (kind, kind)).out is kind
    except DTypeError:
        return False


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for count in (1, 2, MAX_INDICES):
        yield words_unit(count)
    for name in ("add", "sub", "mul", "maximum", "minimum"):
        for kind in map(dtype, types):
            if has_at(name, kind):
                yield at_unit(name, kind)


def _bytes_of(places: Any, what: str) -> int:
    """Return how many bytes of a word hold a place, and one more for none."""
    for count in range(1, 6):
        if places < 1 << (8 * count):
            return count
    raise ShapeError(f"{what} of {hint(places)} places: at most 2**40 - 1")


def _accepts(p: Problem) -> str | None:
    return None if p["x"].is_contiguous() else "the array is not contiguous"


def _launch(p: Problem) -> Launch:
    x, value, name, indices = p["x"], p["value"], p.options["name"], given_indices(p)
    k, members = len(indices), indices[0].size
    lengths = x.shape[:k]
    places, inner = product(lengths), product(x.shape[k:])
    used = _bytes_of(places, f"{name}.at()")
    shift = 64 - 8 * used
    if members > 1 << shift:
        raise ShapeError(f"{name}.at() of {hint(members)} elements in {hint(places)} places: at most {1 << shift}")
    work = Workspace()
    launches: list[KernelLaunch | Product] = []
    words = work.buffer(dtype("uint64"), members)
    ordered = work.buffer(dtype("uint64"), members)

    count = instance_of(k)
    space = [(n, tuple(row)) for n, *row in zip(indices[0].shape, *(i.strides for i in indices), strict=True)]
    sizes, rows = collapse([n for n, _ in space], [row for _, row in space]) if space else ([1], [(0,) * k])
    columns = list(zip(*((*row, *(0,) * (count - k)) for row in rows), strict=True))
    first = words_unit(count)
    launches.append(
        KernelLaunch(
            first, first.entries[0], (blocks_for(members, 1024, "an index"),), (256,),
            (write(words), *pointers(indices), i64(members), i64(places), nd(sizes, columns),
             axes_struct(lengths, dense_strides(lengths)),
             *map(i32, (k, int(indices[0].dtype.itemsize == 8), shift))),
        )
    )  # fmt: skip
    if members <= plans.SHORT:
        launches += plans.network(ordered, words, 1, members, positions=False, descending=False).launches
    else:
        sort = plans.radix(ordered, words, 1, members, positions=False, descending=False, skip=8 - used, work=work)
        launches += sort.launches

    unit, levels, span, at, below = at_unit(name, x.dtype), 0, _WINDOW, 0, -1
    compute = plan(name, (x.dtype, x.dtype)).compute
    counts = []
    while members >= span:
        counts.append(members // span)
        span *= _WINDOW
    windows = sum(counts[1:], counts[0]) if counts else 1
    sums = work.buffer(compute, windows * inner)
    row, column = value.strides
    for levels, number in enumerate(counts, 1):
        arguments: tuple[Argument, ...] = (update(sums), read(value), read(ordered),
                     *map(i64, (at, below, number, inner, row, column, _WINDOW**levels)), i32(shift))  # fmt: skip
        blocks = blocks_for(number * inner, 256, f"{name}.at()")
        launches.append(KernelLaunch(unit, unit.entries[1], (blocks,), (256,), arguments))
        at, below = at + number, at
    blocks = blocks_for(members * inner, 256, f"{name}.at()")
    last: tuple[Argument, ...] = (update(x), read(value), read(sums), read(ordered),
            *map(i64, (members, inner, places, row, column)), i32(shift), i32(levels))  # fmt: skip
    launches.append(KernelLaunch(unit, unit.entries[0], (blocks,), (256,), last))
    return Launch(tuple(launches), tuple(work.pieces))


def _host(p: Problem) -> Callable[..., None]:
    ufunc: Any = TABLE[p.options["name"]].numpy
    k = len(given_indices(p))
    behind = p["x"].ndim - k

    def run(x: Any, value: Any, i0: Any, *rest: Any) -> None:
        shape = (*i0.shape, *x.shape[x.ndim - behind :])
        ufunc.at(x, (i0, *rest[: k - 1]), value.reshape(shape))

    return run


_at = register(
    Operator(
        name="index_at",
        parameters=(
            Parameter("x"),
            Parameter("value"),
            Parameter("i0"),
            Parameter("name", "choice"),
            *(Parameter(name, "optional", None) for name in INDEX_NAMES[1:]),
        ),
        infer=lambda p: [],
        reference=lambda *arguments: None,
        variants=(
            Variant("runs of sorted places", "run_to_run", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
        ),
        doc="Update the first axes of ``x``, by index arrays of one shape and type, with the rows of ``value``.",
        public=False,
        updates=("x",),
    )
)


def _update(name: str, found: Places, source: GPUArray) -> None:
    view, before, k, block = found.view, found.before, len(found.indices), len(found.block)
    if before:
        inner = range(before, before + k)
        view = view._permute([*inner, *(i for i in range(view.ndim) if i not in inner)])
        moved = range(before, before + block)
        source = source._permute([*moved, *(i for i in range(source.ndim) if i not in moved)])
    members = found.indices[0].size
    columns = source.size // members
    if source._shares_memory(view):
        source = source.copy()
    rows = source._reshape([members, columns])
    rows = source.contiguous().reshape(members, columns) if rows is None else rows
    indices = [index.copy() if index._shares_memory(view) else index for index in found.indices]
    if view.device.kind == "cpu" or view.is_contiguous:
        _at(view, rows, indices[0], name, *indices[1:])
        return
    dense = view.contiguous()
    _at(dense, rows, indices[0], name, *indices[1:])
    view[...] = dense


def update_at(name: str, a: GPUArray, indices: Any, b: Any) -> None:
    """Apply an operator to elements in place, one after the other where a place repeats."""
    operation = getattr(e, name)
    if not isinstance(a, GPUArray):
        raise TypeError(f"{name}.at() updates a GPUArray, not {type(a).__name__}")
    if not isinstance(b, bool | int | float | complex) or isinstance(b, np.generic):
        b = asarray(b, device=a.device)
    other: Any = b.dtype if isinstance(b, GPUArray) else type(b).__name__
    result = plan(name, (a.dtype, other)).out
    if not can_cast(result, a.dtype):
        raise DTypeError(f"{name}.at(): a result of {result.name} is not written to {a.dtype.name}; cast the operand")
    if not has_at(name, a.dtype):
        raise DTypeError(f"{name}.at() is not defined for {a.dtype.name}")
    found = parse(a, indices)
    if isinstance(found, GPUArray):
        operation(found, spread(elements_for(a, b), tuple(found.shape)), out=found)
    elif isinstance(found, Masked) or not found.indices:
        # A mask names every element once.
        a[indices] = operation(a[indices], elements_for(a, b))
    else:
        source = spread(elements_for(a, b), found.shape)
        if source.size:
            _update(name, found, source)


_DOC = """Apply the operator to the elements that a key names, in place and in turn where a place is named again.

Parameters
----------
a : GPUArray
indices : int, slice, array, or a tuple of them
    Any key of indexing.
b : GPUArray or number
    Broadcasts to what the key names.

Notes
-----
Determinism on a GPU: the bits are the same in every run. Up to 64 values of one place are applied in order.

Examples
--------
>>> import pygpukit as gp
>>> x = gp.zeros(3)
>>> gp.add.at(x, [0, 2, 0], 1.0)
>>> x.tolist()
[2.0, 0.0, 1.0]
"""


def _attach(name: str) -> None:
    def at(a: GPUArray, indices: Any, b: Any) -> None:
        update_at(name, a, indices, b)

    at.__doc__ = _DOC
    operation: Any = getattr(e, name)
    operation.at = at


for _name in MERGES:
    _attach(_name)


@export
def scatter_add(x: GPUArray, index: GPUArray, value: Any, axis: int = 0) -> None:
    """Add rows to the rows of an array that an index vector names, in place; `add.at` along one axis.

    Parameters
    ----------
    x : GPUArray
    index : GPUArray or array_like
        Integers.
    value : GPUArray or number
        Broadcasts to what ``x.take(index, axis)`` gives.
    axis : int, optional

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.zeros((2, 2))
    >>> gp.scatter_add(x, gp.asarray([1, 1]), gp.ones((2, 2)))
    >>> x.tolist()
    [[0.0, 0.0], [2.0, 2.0]]
    """
    if not -x.ndim <= axis < x.ndim:
        from numpy.exceptions import AxisError

        raise AxisError(axis, x.ndim)
    update_at("add", x, (*(slice(None),) * (axis % x.ndim), index), value)
