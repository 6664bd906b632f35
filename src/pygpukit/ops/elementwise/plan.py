"""From an operator and its input types to a plan: types, CUDA source, entry names and launch shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import NamedTuple, TypeVar

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.promotion import Input, can_cast, describe, resolve

THREADS = 256
"""Threads per block of every elementwise kernel."""

PER_BLOCK_ND = 4 * THREADS
"""Elements a block of a strided kernel covers at least."""

_COMPUTE = {"bool": "uint8", "float16": "float32", "bfloat16": "float32"} | dict.fromkeys(
    ("float8_e4m3fn", "float8_e5m2"), "float32"
)


class Plan(NamedTuple):
    """How one operator runs on given types.

    Attributes
    ----------
    name
        The operator.
    common
        NumPy's common type of the inputs; a Python scalar is rounded to it.
    compute
        Type the expression is evaluated in, and of ``Operand.value``.
    out
        Element type of the output array.
    source, entry, entry_nd
        CUDA source and its two entries: dense and strided.
    vector
        Elements per access of the dense kernel: ``vec`` may be set when every dense pointer is aligned to
        ``vector * itemsize`` bytes of its own type.
    per_block, per_block_nd
        Elements per block of the dense and the strided kernel.
    """

    name: str
    common: DataType
    compute: DataType
    out: DataType
    source: str
    entry: str
    entry_nd: str
    vector: int
    per_block: int
    per_block_nd: int


Made = TypeVar("Made")


def _kept(make: Callable[[str, tuple[Input, ...], DataType | None], Made]) -> Callable[..., Made]:
    """Keep what is made for an operator and types.

    A DataType equals its name, so a Python bool is told from an array of bool by its class.
    """

    @lru_cache(maxsize=4096)
    def made(name: str, inputs: tuple[Input, ...], out: DataType | None, weak: tuple[bool, ...]) -> Made:
        return make(name, inputs, out)

    @wraps(make)
    def find(name: str, inputs: tuple[Input, ...], out: DataType | None = None) -> Made:
        return made(name, inputs, out, tuple([isinstance(x, str) for x in inputs]))

    return find


@_kept
def plan(name: str, inputs: tuple[Input, ...], out: DataType | None = None) -> Plan:
    """Return the plan of operator ``name`` for ``inputs``.

    Parameters
    ----------
    name
        A row of the operator table.
    inputs
        Element types of arrays; ``"bool"``, ``"int"``, ``"float"`` or ``"complex"`` for a Python scalar.
    out
        Type of the output array when it is not the result's own; the cast must keep the kind.

    Raises
    ------
    DTypeError
        If the operator does not exist, is not defined for the types, or its result cannot be cast to ``out``.

    Examples
    --------
    >>> plan("add", (dtype("int32"), "float")).out.name
    'float64'
    """
    row = TABLE.get(name)
    if row is None:
        raise DTypeError(f"there is no elementwise operator named {name!r}; the table has {', '.join(TABLE)}")
    common, result = resolve(row, inputs)
    target = result if out is None else out
    if row.rule == "cast":
        result = target
        if isinstance(inputs[0], str):
            # A number is read as the type it is written to: uint64 holds what no other type does.
            common = target
    elif not can_cast(result, target):
        raise DTypeError(
            f"{name}({describe(inputs)}) gives {result.name} ({result.itemsize} bytes), which cannot be written to an "
            f"output of {target.name} ({target.itemsize} bytes) without changing its kind; use a {result.name} output"
        )
    stored = _stored(row, inputs, common)
    compute = dtype(_COMPUTE.get(common.name, common.name))
    vector, unroll = _shape(row, (target, *stored))
    entry = _entry(row, common, result, target, stored)
    return Plan(
        name=name,
        common=common,
        compute=compute,
        out=target,
        source=_source(row, entry, common, compute, result, target, stored, vector, unroll),
        entry=entry,
        entry_nd=f"{entry}_nd",
        vector=vector,
        per_block=THREADS * vector * unroll,
        per_block_nd=PER_BLOCK_ND if vector == 1 else THREADS * max(8, vector),
    )


def uniform(name: str, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """Return the types ``inputs`` have once arrays are cast to what the operator reads them as.

    That is the common type, and bool for a condition. The operator gives the same values on them: arithmetic happens in
    the common type anyway.

    Examples
    --------
    >>> [x.name for x in uniform("add", (dtype("int32"), dtype("float32")))]
    ['float64', 'float64']
    """
    row = TABLE[name]
    common, _ = resolve(row, inputs)
    read = [common] * row.arity
    if row.rule == "where":
        read[0] = dtype("bool")
    return tuple(x if isinstance(x, str) else to for x, to in zip(inputs, read, strict=True))


def _shape(row: Row, types: tuple[DataType, ...]) -> tuple[int, int]:
    """Return elements per vector and vectors per thread.

    One access of 16 bytes per input: on an H200 blocks of 256 such threads move 0.3 to 3 % more than longer or more
    numerous ones do (benchmarks/README.md).
    """
    vector = max(1, 16 // max(x.itemsize for x in types))
    # A long expression is not repeated more often than needed: copies of it make the kernel large.
    return (min(vector, 4) if row.weight == "heavy" else vector), 1


def _entry(row: Row, common: DataType, result: DataType, target: DataType, stored: tuple[DataType, ...]) -> str:
    plain = ["b1", common.tag, common.tag] if row.rule == "where" else [common.tag] * row.arity
    tags = [x.tag for x in stored]
    tags = [common.tag] if tags == plain else tags
    if (common if row.rule == "cast" else result).tag != target.tag:
        tags += ["to", target.tag]
    return "_".join(["pgk", row.name, *tags])


class Operation(NamedTuple):
    """One operation on elements as a CUDA struct, of which kernels of several operations are made too.

    Attributes
    ----------
    name
        Of the struct. Its ``apply`` takes an element per input (and ``none`` up to three) and returns a ``value``,
        which ``output<T>`` rounds to the element type of the result.
    text
        Its lines.
    inputs
        Element types of the inputs; that of a number is the type it is rounded to.
    plan, row
        Types of the result and of the arithmetic, and the row of the table.
    """

    name: str
    text: tuple[str, ...]
    inputs: tuple[DataType, ...]
    plan: Plan
    row: Row


@_kept
def operation(name: str, inputs: tuple[Input, ...], out: DataType | None = None) -> Operation:
    """Return the operation of an operator on elements, with the arguments of `plan`."""
    made = plan(name, inputs, out)
    row = TABLE[name]
    stored = _stored(row, inputs, made.common)
    result = made.out if row.rule == "cast" else resolve(row, inputs)[1]
    lines = _struct(row, made.entry, made.common, made.compute, result, made.out, stored)
    return Operation(f"op_{made.entry}", tuple(lines), stored, made, row)


def _stored(row: Row, inputs: tuple[Input, ...], common: DataType) -> tuple[DataType, ...]:
    stored = tuple(common if isinstance(x, str) else x for x in inputs)
    if row.rule == "where" and isinstance(inputs[0], str):
        stored = (dtype("bool"), *stored[1:])
    return stored


def _struct(
    row: Row,
    entry: str,
    common: DataType,
    compute: DataType,
    result: DataType,
    target: DataType,
    stored: tuple[DataType, ...],
) -> list[str]:
    letters, values = "abc"[: row.arity], "xyz"[: row.arity]
    parameters = [f"{t.tag} {v}" for t, v in zip(stored, values, strict=True)] + ["none"] * (3 - row.arity)
    returned = target
    if row.rule == "cast":
        # Bits pass unchanged into the same type, and the sign of a NaN into any.
        body = [f"return convert<{target.tag}>(x);"]
    elif row.rule == "where" and all(t.tag == target.tag for t in stored[1:]):
        body = ["return truth(widen(x)) ? y : z;"]
    else:
        body = [_input(row, i, letters[i], values[i], t, common, compute) for i, t in enumerate(stored)]
        expression = row.expression(common.kind)
        if result.tag == target.tag and target.itemsize == 2 and compute.name == "float32":
            # The kernel template rounds, two values at a time.
            returned = compute
            body.append(f"return {expression};")
        else:
            value = f"output<{result.tag}>({expression})"
            kept = result.tag == target.tag
            body.append(f"return {value};" if kept else f"return output<{target.tag}>(widen({value}));")
    low = "true" if compute.name == "float32" and common.itemsize < 4 else "false"
    return [
        f"struct op_{entry} {{",
        f"    static constexpr bool LOW = {low};",
        *([f"    using COMMON = {common.tag};"] if row.by_format else []),
        f"    using value = {returned.tag};",
        f"    static PGK_FN value apply({', '.join(parameters)}) {{",
        *(f"        {line}" for line in body),
        "    }",
        "};",
    ]


def _source(
    row: Row,
    entry: str,
    common: DataType,
    compute: DataType,
    result: DataType,
    target: DataType,
    stored: tuple[DataType, ...],
    vector: int,
    unroll: int,
) -> str:
    letters = "abc"[: row.arity]
    operands = [f"Operand<{t.tag}, {compute.tag}> {v}" for t, v in zip(stored, letters, strict=True)]
    taken, arguments = ", ".join(operands), ", ".join(letters)
    # Only where values move through tiles: they would make every other kernel larger.
    walk = "turned" if row.rule == "cast" else "strided"
    # Single elements at a time; two leave registers for half as many blocks again on a multiprocessor as four do.
    singles = 1 if row.weight == "heavy" else 4 if vector == 1 or walk == "turned" else 2
    lines = [
        '#include "pygpukit/elementwise.cuh"',
        "namespace pgk {",
        *_struct(row, entry, common, compute, result, target, stored),
        f'extern "C" __global__ void __launch_bounds__({THREADS}) {entry}(',
        f"    {target.tag}* out, {taken}, long long n, int vec) {{",
        f"    dense<op_{entry}, {vector}, {unroll}>(out, n, vec, {arguments});",
        "}",
        f'extern "C" __global__ void __launch_bounds__({THREADS}) {entry}_nd(',
        f"    {target.tag}* out, {taken}, long long n, const __grid_constant__ Nd<{row.arity + 1}> nd) {{",
        f"    {walk}<op_{entry}, {singles}, {vector}>(out, n, nd, {arguments});",
        "}",
        "}  // namespace pgk",
    ]
    return "\n".join(lines) + "\n"


def _input(row: Row, index: int, letter: str, value: str, stored: DataType, common: DataType, compute: DataType) -> str:
    """Return the line that converts one input to the compute type."""
    if row.rule == "where" and index == 0:
        return f"const bool {letter} = truth(widen({value}));"
    if common.tag != compute.tag and common.itemsize == 1 and stored.tag != common.tag:
        # NumPy converts to the common type first: an integer may not fit float8, and bool tests for zero.
        value = f"convert<{common.tag}>({value})"
    return f"const {compute.tag} {letter} = input<{compute.tag}>({value});"
