"""Products along one axis: the operator `dot_rows`, and NumPy's functions over it and over `matmul`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
from numpy.exceptions import AxisError

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import accumulator, matmul, matmul_type, wide_type
from pygpukit.ops.gemm.rows import reference as product_reference
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Unit,
    Workspace,
    blocks_for,
    i32,
    i64,
    nd,
    read,
    write,
)
from pygpukit.ops.operands import as_array, as_arrays
from pygpukit.ops.problem import Problem, Result, Tensor, broadcast
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.reduce.compositions import into
from pygpukit.ops.reduce.layout import power_of_two
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import ceil_div, hint, product
from pygpukit.ops.source import instance

__all__ = [
    "FUNCTIONS",
    "dot",
    "dot_rows",
    "inner",
    "matvec",
    "outer",
    "require",
    "require_both",
    "vdot",
    "vecdot",
    "vecmat",
]

_FILE = "products/dot.cu"
_THREADS = 128
_CHUNK = 1024
"""Vectors of 16 bytes that one warp multiplies at most."""

NO_STREAM = nullcontext()
"""Stands where no stream is given."""


def require(what: str, x: Any) -> GPUArray:
    """Return an array, made of a number or a list where it is none."""
    return x if isinstance(x, GPUArray) else as_array(x, f"{what}()")


def require_both(what: str, a: Any, b: Any) -> tuple[GPUArray, GPUArray]:
    """Return two arrays, on one device where one of them is a number or a list."""
    if not isinstance(a, GPUArray) or not isinstance(b, GPUArray):
        a, b = as_arrays(f"{what}()", a, b)
    return a, b


def _infer(p: Problem) -> list[Result]:
    a, b = p["a"], p["b"]
    shapes = [tuple(hint(n) for n in x.shape) for x in (a, b)]
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"a product of vectors of shapes {shapes[0]} and {shapes[1]}: each needs an axis to sum over")
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"a product of vectors of shapes {shapes[0]} and {shapes[1]}: "
            f"the sizes {hint(a.shape[-1])} and {hint(b.shape[-1])} of the summed axis differ"
        )
    batch = broadcast(a.shape[:-1], b.shape[:-1])
    if batch is None:
        raise ShapeError(f"a product of vectors of shapes {shapes[0]} and {shapes[1]}: the other axes do not broadcast")
    own = matmul_type(a.dtype, b.dtype)
    kind = p.requested[0] if p.requested else own
    if not can_cast(own, kind):
        raise DTypeError(
            f"a product of {a.dtype.name} and {b.dtype.name} gives {own.name}, which is not written to {kind.name}"
        )
    return [Result(batch, kind)]


def _reference(a: Any, b: Any, *, conjugate: bool = False, out: DataType | None = None) -> Any:
    left = np.conj(a) if conjugate and a.dtype.kind == "c" else a
    return product_reference(left[..., None, :], b[..., :, None], out=out)[..., 0, 0]


def _host(p: Problem) -> Callable[..., None]:
    a, b, out, conjugate = p["a"].dtype, p["b"].dtype, p.out.dtype, bool(p.options["conjugate"])
    if a is b is out and wide_type(a, b) is a and (conjugate or a.kind != "c"):
        return np.vecdot
    return partial(_round_once, conjugate, out)


def _round_once(conjugate: bool, kind: DataType, a: Any, b: Any, out: Any) -> None:
    np.copyto(out, _reference(a, b, conjugate=conjugate, out=kind), casting="unsafe")


@cache
def dot_unit(kind: DataType) -> Unit:
    """Return the source of products of vectors of a type: plain, conjugated where that differs, and the fold."""
    entry = f"pgk_dot_{kind.tag}"
    wide = accumulator(kind)
    types = f"{kind.tag}, {wide.tag}, {(kind if kind.kind in 'iu' else wide).tag}"
    logical = "true" if kind.kind == "b" else "false"
    lines = [f"PGK_DOT({entry}, {types}, {logical}, false)", f"PGK_DOT_FOLD({entry}_fold, {types}, {logical})"]
    entries: tuple[str, ...] = (entry, f"{entry}_fold")
    if kind.kind == "c":
        lines.append(f"PGK_DOT({entry}_conj, {types}, false, true)")
        entries = (*entries, f"{entry}_conj")
    return instance(_FILE, lines, entries)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield from (dot_unit(dtype(name)) for name in types)


def _accepts(p: Problem) -> str | None:
    if p["a"].dtype is not p["b"].dtype or p.out.dtype is not p["a"].dtype:
        return "the types differ"
    return p.missing(dot_unit(p["a"].dtype))


def _launch(p: Problem) -> Launch:
    a, b, out = p["a"], p["b"], p.out
    unit, n, vector = dot_unit(a.dtype), a.shape[-1], 16 // a.dtype.itemsize
    conjugate = bool(p.options["conjugate"]) and a.dtype.kind == "c"
    shape = broadcast(a.shape[:-1], b.shape[:-1])
    assert shape is not None
    batch = nd(shape, [out.strides, _spread(a, len(shape)), _spread(b, len(shape))])
    results, work = product(shape), Workspace()
    single = bool(n <= _CHUNK * vector)
    chunks: Any = 1 if single else ceil_div(n, _CHUNK * vector)
    lanes = power_of_two(ceil_div(n, vector), 32)
    # Without partial sums the kernel ignores the argument.
    partial_sums = out if single else work.buffer(accumulator(a.dtype), results * chunks)
    blocks = blocks_for(results * chunks * lanes, _THREADS, f"a product of vectors with {hint(results)} results")
    sizes = (results, n, a.strides[-1], b.strides[-1], chunks)
    arguments: tuple[Argument, ...] = (
        write(out), write(partial_sums), read(a), read(b), batch, *map(i64, sizes), i32(lanes),
    )  # fmt: skip
    steps = [KernelLaunch(unit, unit.entries[2 if conjugate else 0], (blocks,), (_THREADS,), arguments)]
    if not single:
        folded: tuple[Argument, ...] = (write(out), read(partial_sums), batch, i64(chunks))
        blocks = blocks_for(results, 1, f"a product of vectors with {hint(results)} results")
        steps.append(KernelLaunch(unit, unit.entries[1], (blocks,), (256,), folded, programmatic=True))
    return Launch(tuple(steps), tuple(work.pieces))


def _spread(x: Tensor, ndim: int) -> tuple[Any, ...]:
    """Strides of the axes of the results: 0 where an operand is broadcast."""
    strides = [0 if size == 1 else stride for size, stride in zip(x.shape[:-1], x.strides[:-1], strict=True)]
    return (0,) * (ndim - len(strides)) + tuple(strides)


def _compose_types(p: Problem) -> Callable[..., None]:
    """The same with casts around it."""
    conjugate = bool(p.options["conjugate"])
    common = matmul_type(p["a"].dtype, p["b"].dtype)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b = (x.astype(common, copy=False) for x in given[:2])
        _native.apply("copy", (dot_rows(a, b, conjugate=conjugate),), results[0])

    return run


def _have_kernel(p: Problem) -> str | None:
    return p.missing(dot_unit(matmul_type(p["a"].dtype, p["b"].dtype)))


def _compose(p: Problem) -> Callable[..., None]:
    conjugate = bool(p.options["conjugate"]) and p["a"].dtype.kind == "c"

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b = given[:2]
        if conjugate:
            a = e.conj(a)
        made = matmul(a._expand(a.ndim - 1), b._expand(b.ndim))
        _native.apply("copy", (made._reshape(list(results[0].shape)),), results[0])

    return run


dot_rows = register(
    Operator(
        name="dot_rows",
        parameters=(
            Parameter("a", doc="At least one dimension; the others broadcast."),
            Parameter("b", doc="At least one dimension."),
            Parameter("conjugate", "choice", False, keyword_only=True, doc="Multiply with the conjugate of ``a``."),
        ),
        infer=_infer,
        reference=_reference,
        variants=(
            Variant("lanes of a warp", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host),
            Variant("casts around it", "batch_invariant", _have_kernel, compose=_compose_types),
            Variant("a product of matrices", "batch_invariant", lambda p: None, compose=_compose),
        ),
        doc="Products of the vectors along the last axes of two arrays.",
        tolerance={"float32": 1e-5, "bfloat16": 2**-6},
        flops=lambda p: 2 * hint(p["a"].size),
        public=False,
    )
)


def _last(x: GPUArray, axis: int, what: str) -> GPUArray:
    """The array with an axis in the last place; a view."""
    place = operator.index(axis)
    if not -x.ndim <= place < x.ndim:
        raise AxisError(place, x.ndim, what)
    place %= x.ndim
    return x._permute([*range(place), *range(place + 1, x.ndim), place])


def vecdot(x1: Any, x2: Any, /, out: Any = None, *, axis: int = -1, stream: Any = None) -> Any:
    """Products of the vectors along an axis; those of the first array are conjugated.

    Parameters
    ----------
    x1, x2 : GPUArray
        Of at least one dimension; the other axes broadcast.
    out : GPUArray, optional
        Where the result is written.
    axis : int, optional
        The axis of both that is summed over; the last by default.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.vecdot(gp.ones((2, 3)), gp.ones(3)).tolist()
    [3.0, 3.0]
    """
    x1, x2 = require_both("vecdot", x1, x2)
    if axis != -1:
        x1, x2 = _last(x1, axis, "vecdot"), _last(x2, axis, "vecdot")
    return dot_rows(x1, x2, conjugate=True, out=out, stream=stream)


def dot(a: Any, b: Any, out: Any = None, *, stream: Any = None) -> Any:
    """Product over the last axis of ``a`` and the last but one of ``b``, or its only one.

    Of vectors their product, of matrices `matmul`. Of arrays of more dimensions all pairs: the result has the other
    axes of ``a``, then those of ``b``. An array without dimensions, or a number, multiplies.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.dot(gp.asarray([1.0, 2.0]), gp.asarray([3.0, 4.0])).item()
    11.0
    """
    if type(a) is GPUArray and type(b) is GPUArray:
        left, right = a.ndim, b.ndim
        if right == 1 and left:
            return dot_rows(a, b, out=out, stream=stream)
        if right == 2 and 0 < left <= 2:
            return matmul(a, b, out=out, stream=stream)
    if type(a) is not GPUArray or type(b) is not GPUArray:
        a, b = as_arrays("dot()", a, b)
        return dot(a, b, out=out, stream=stream)
    if a.ndim == 0 or b.ndim == 0:
        return e.mul(a, b, out=out, stream=stream)
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ShapeError(
            f"shapes {a.shape} and {b.shape} do not fit: dot sums over {a.shape[-1]} elements of the first and "
            f"{b.shape[-2 if b.ndim > 1 else 0]} of the second"
        )
    with stream or NO_STREAM:
        # All rows of a with all matrices of b: one product with the matrices side by side.
        k, rest = b.shape[-2], (*b.shape[:-2], b.shape[-1])
        matrix = b._permute([b.ndim - 2, *range(b.ndim - 2), b.ndim - 1]).reshape(k, prod(rest))
        made = matmul(a.reshape(prod(a.shape[:-1]), k), matrix)
        return into(made.reshape(*a.shape[:-1], *rest), out)


def inner(a: Any, b: Any, *, stream: Any = None) -> Any:
    """Product over the last axes: the result has the other axes of ``a``, then those of ``b``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.inner(gp.ones((2, 3)), gp.ones((4, 3))).shape
    (2, 4)
    """
    a, b = require_both("inner", a, b)
    if a.ndim == 0 or b.ndim == 0:
        return e.mul(a, b, stream=stream)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"shapes {a.shape} and {b.shape} do not fit: their last axes differ")
    if a.ndim == 1 or b.ndim == 1:
        return dot_rows(a, b, stream=stream)
    with stream or NO_STREAM:
        k = a.shape[-1]
        right = b.reshape(prod(b.shape[:-1]), k)
        return matmul(a.reshape(prod(a.shape[:-1]), k), right.T).reshape(*a.shape[:-1], *b.shape[:-1])


def outer(a: Any, b: Any, out: Any = None, *, stream: Any = None) -> Any:
    """Products of every element of ``a`` with every element of ``b``, both read as vectors.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.outer(gp.asarray([1, 2]), gp.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    a, b = require_both("outer", a, b)
    with stream or NO_STREAM:
        return e.mul(a.reshape(a.size, 1), b.reshape(b.size), out=out)


def vdot(a: Any, b: Any, *, stream: Any = None) -> Any:
    """Product of two arrays read as vectors; the first is conjugated.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.vdot(gp.asarray([1j, 2.0]), gp.asarray([1j, 3.0])).item()
    (7+0j)
    """
    a, b = require_both("vdot", a, b)
    if a.size != b.size:
        raise ShapeError(f"shapes {a.shape} and {b.shape} do not fit: vdot needs as many elements of both")
    if a.ndim == b.ndim == 1:
        return dot_rows(a, b, conjugate=True, stream=stream)
    with stream or NO_STREAM:
        return dot_rows(a.reshape(a.size), b.reshape(b.size), conjugate=True)


def _two(what: str, matrix: GPUArray, vector: GPUArray, core: int) -> None:
    if matrix.ndim < 2 or vector.ndim < 1:
        raise ShapeError(f"{what} takes matrices and vectors, not arrays of shapes {matrix.shape} and {vector.shape}")
    if matrix.shape[core] != vector.shape[-1]:
        raise ShapeError(
            f"{what} of matrices of shape {matrix.shape} and vectors of shape {vector.shape}: "
            f"the sizes {matrix.shape[core]} and {vector.shape[-1]} differ"
        )


def matvec(x1: Any, x2: Any, /, out: Any = None, *, stream: Any = None) -> Any:
    """Products of matrices with vectors: ``(..., m, n)`` and ``(..., n)`` give ``(..., m)``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.matvec(gp.ones((2, 3)), gp.ones((5, 3))).shape
    (5, 2)
    """
    x1, x2 = require_both("matvec", x1, x2)
    _two("matvec", x1, x2, -1)
    return dot_rows(x1, x2._expand(x2.ndim - 1), out=out, stream=stream)


def vecmat(x1: Any, x2: Any, /, out: Any = None, *, stream: Any = None) -> Any:
    """Products of conjugated vectors with matrices: ``(..., n)`` and ``(..., n, m)`` give ``(..., m)``.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.vecmat(gp.ones((5, 3)), gp.ones((3, 2))).shape
    (5, 2)
    """
    x1, x2 = require_both("vecmat", x1, x2)
    _two("vecmat", x2, x1, -2)
    turned = x2._permute([*range(x2.ndim - 2), x2.ndim - 1, x2.ndim - 2])
    return dot_rows(x1._expand(x1.ndim - 1), turned, conjugate=True, out=out, stream=stream)


FUNCTIONS = (vecdot, dot, inner, outer, vdot, matvec, vecmat)
"""The public functions of this module."""
