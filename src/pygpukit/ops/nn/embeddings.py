"""Embedding: rows of a table by token ids, with Gemma's factor in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Number, Unit, blocks_for, constant, i64, read, write
from pygpukit.ops.nn import reference
from pygpukit.ops.nn.layout import accumulator, float_input, float_types, is_vectorised
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, export, register
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

_THREADS = 256


def _infer(p: Problem) -> list[Result]:
    ids, table = p["ids"], float_input(p, "table")
    if ids.dtype.name not in ("int32", "int64"):
        raise DTypeError(f"embedding: ids are {ids.dtype.name}; use int32 or int64")
    if table.ndim != 2:
        shape = tuple(hint(n) for n in table.shape)
        raise ShapeError(f"embedding: table has shape {shape}; it must be [rows, n]")
    if p.requested and p.requested[0] is not table.dtype:
        raise DTypeError(f"embedding: out is {p.requested[0].name}; use {table.dtype.name} as table")
    return [Result((*ids.shape, table.shape[1]), table.dtype)]


def _accepts(p: Problem) -> str | None:
    if not p["ids"].is_contiguous():
        return "'ids' is not contiguous"
    if p["table"].shape[1] != 1 and p["table"].strides[1] != 1:
        return "the elements of a row of 'table' do not lie side by side"
    return None if p.out.is_contiguous() else "out is not contiguous"


def _launch(p: Problem) -> Launch:
    ids, table, x = p["ids"], p["table"], p["table"].dtype
    n = table.shape[1]
    vec = is_vectorised(n, ((table, table.strides[0]), (p.out, n)))
    unit = embedding_unit(x, vec, p.options["scaled"])
    each = n // (16 // x.itemsize) if vec else n
    blocks = blocks_for(ids.size * each, _THREADS, f"embedding of {hint(ids.size)} ids")
    wide = dtype("float64" if x.itemsize == 8 else "float32")
    sizes = map(i64, (ids.size, n, table.shape[0], table.strides[0], int(ids.dtype.itemsize == 8)))
    arguments: tuple[Argument, ...] = (write(p.out), read(ids), constant(table), *sizes, Number("scale", wide))
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


@cache
def embedding_unit(x: DataType, vec: bool, scaled: bool) -> Unit:
    """Return the source for one element type."""
    entry = f"pgk_embedding_{x.tag}" + "_any" * (not vec) + "_scaled" * scaled
    flags = ", ".join("true" if flag else "false" for flag in (vec, scaled))
    return instance("nn/embedding.cu", [f"PGK_EMBEDDING({entry}, {x.tag}, {accumulator(x)}, {flags})"], (entry,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for x in float_types(types):
        for vec in (True, False):
            yield from (embedding_unit(x, vec, scaled) for scaled in (False, True))


def _host(p: Problem) -> Callable[..., None]:
    scaled = p.options["scaled"]

    def run(ids: Any, table: Any, scale: float, out: Any) -> None:
        if ids.size and not 0 <= ids.min() <= ids.max() < table.shape[0]:
            bad = ids[(ids < 0) | (ids >= table.shape[0])].flat[0]
            raise IndexError(f"embedding(): id {bad} in a table of {table.shape[0]} rows")
        np.copyto(out, reference.embedding(ids, table, scale if scaled else None))

    return run


def _compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        ids, table, scale, scaled = given
        results[0][...] = _embedding(ids.contiguous(), table.contiguous(), scale, scaled)

    return run


_embedding = register(
    Operator(
        name="embedding_rows",
        parameters=(
            Parameter("ids"),
            Parameter("table"),
            Parameter("scale", "number", 1.0),
            Parameter("scaled", "choice", False),
        ),
        infer=_infer,
        reference=lambda ids, table, scale=1.0, scaled=False: reference.embedding(
            ids, table, scale if scaled else None
        ),
        variants=(
            Variant("a thread per vector", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
            Variant("contiguous copies", "batch_invariant", lambda p: None, compose=_compose),
        ),
        doc="Rows of a table, times a factor.",
        public=False,
    )
)


@export
def embedding(
    ids: GPUArray,
    table: GPUArray,
    scale: float | None = None,
    *,
    out: GPUArray | None = None,
    stream: Stream | None = None,
) -> GPUArray:
    """Rows of a table by token ids: ``table[ids]``, times ``scale``.

    Parameters
    ----------
    ids : GPUArray
        int32 or int64, of any shape. One outside of the table is an error on the CPU device; on a GPU, where ids are
        not read back, its row is zeros.
    table : GPUArray
        ``[rows, n]``.
    scale : float, optional
        Rounded to the table's type, and so is the product: Gemma's ``sqrt(n)``.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray
        ``[*ids.shape, n]``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> table = gp.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> gp.embedding(gp.asarray([1, 0, 1]), table, 2.0).tolist()
    [[6.0, 8.0], [2.0, 4.0], [6.0, 8.0]]
    """
    made: GPUArray = _embedding(
        ids, table, 1.0 if scale is None else float(scale), scale is not None, out=out, stream=stream
    )
    return made
