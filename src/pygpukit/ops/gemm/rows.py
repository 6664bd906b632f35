"""Matrix product: types, the kernel on CUDA cores, and the composition by way of casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise.table import Row
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Product, Unit, blocks_for, i64, nd, read, write
from pygpukit.ops.operands import as_array
from pygpukit.ops.problem import Problem, Result, Tensor, broadcast
from pygpukit.ops.promotion import can_cast, resolve
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, export, register
from pygpukit.ops.size import ceil_div, hint, maximum, product
from pygpukit.ops.source import instance

TILE = 64
"""Rows and columns of the output per block."""

_FILE = "gemm/simt.cu"
_THREADS = 256
_ROW = Row("matmul", 2, "", np.matmul, np.matmul, "biufc", 2, "Matrix product.")


class Matrices(NamedTuple):
    """One operand as a stack of matrices.

    Attributes
    ----------
    rows, columns
        Sizes of the last two axes.
    row, column
        Their element strides.
    batch
        Strides of the batch axes, 0 where the operand is broadcast.
    """

    rows: Any
    columns: Any
    row: Any
    column: Any
    batch: tuple[Any, ...] = ()


def matmul_type(a: DataType, b: DataType) -> DataType:
    """Return the result type of a product.

    Raises
    ------
    DTypeError
        If the types have no common type.
    """
    return resolve(_ROW, (a, b))[1]


def accumulator(common: DataType) -> DataType:
    """Return the type products are summed in; integers wrap, so their sign does not matter."""
    if common.kind == "f":
        return dtype("float64" if common.itemsize == 8 else "float32")
    if common.kind in "iu":
        return dtype("uint64" if common.itemsize == 8 else "uint32")
    return dtype("uint8") if common.kind == "b" else common


def wide_type(a: DataType, b: DataType) -> DataType:
    """Return the type to which operands can be cast first: their product in it is the direct one before rounding."""
    common = resolve(_ROW, (a, b))[0]
    return accumulator(common) if common.kind == "f" else common


def _shown(x: Tensor) -> tuple[int, ...]:
    return tuple(hint(n) for n in x.shape)


def _infer(p: Problem) -> list[Result]:
    a, b = p["a"], p["b"]
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError("matmul needs arrays of at least one dimension; use mul for numbers")
    k, k2 = a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[0]
    if k != k2:
        raise ShapeError(
            f"matmul of shapes {_shown(a)} and {_shown(b)}: the inner sizes {hint(k)} and {hint(k2)} differ"
        )
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise ShapeError(f"matmul of shapes {_shown(a)} and {_shown(b)}: the leading axes cannot be broadcast together")
    own = matmul_type(a.dtype, b.dtype)
    kind = p.requested[0] if p.requested else own
    if not can_cast(own, kind):
        raise DTypeError(
            f"matmul of {a.dtype.name} and {b.dtype.name} gives {own.name}, which cannot be written to {kind.name}; "
            f"use an out of {own.name}"
        )
    shape = (*batch, *(a.shape[-2:-1] if a.ndim > 1 else ()), *(b.shape[-1:] if b.ndim > 1 else ()))
    return [Result(shape, kind)]


def stacks(p: Problem) -> tuple[tuple[Any, ...], Matrices, Matrices, Matrices]:
    """Return the batch's shape, and out, a and b as stacks of matrices; vectors are matrices of one row or column."""
    a, b, out = p["a"], p["b"], p.out
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    assert batch is not None
    m, row = (a.shape[-2], a.strides[-2]) if a.ndim > 1 else (1, 0)
    n, column = (b.shape[-1], b.strides[-1]) if b.ndim > 1 else (1, 0)
    k = a.shape[-1]
    left = Matrices(m, k, row, a.strides[-1], _spread(a, len(batch)))
    right = Matrices(k, n, b.strides[-2] if b.ndim > 1 else b.strides[0], column, _spread(b, len(batch)))
    strides = list(out.strides)
    out_column = strides.pop() if b.ndim > 1 else 0
    out_row = strides.pop() if a.ndim > 1 else 0
    return batch, Matrices(m, n, out_row, out_column, tuple(strides)), left, right


def _spread(x: Tensor, ndim: int) -> tuple[Any, ...]:
    """Strides of the batch axes of an operand: 0 where it is broadcast."""
    own = x.ndim - 2 if x.ndim > 2 else 0
    strides = [0 if size == 1 else stride for size, stride in zip(x.shape[:own], x.strides[:own], strict=True)]
    return (0,) * (ndim - own) + tuple(strides)


def _accepts(p: Problem) -> str | None:
    a, b, out = p["a"].dtype, p["b"].dtype, p.out.dtype
    wide = wide_type(a, b)
    if a is wide and b is wide and out is wide:
        return None
    return p.missing(matmul_unit(a, b, out))


def _launch(p: Problem) -> Launch:
    batch, out, a, b = stacks(p)
    m, n, k = out.rows, out.columns, a.columns
    what = f"matmul of {hint(m)} x {hint(n)}, batch {tuple(hint(x) for x in batch)},"
    blocks = blocks_for(product(batch) * ceil_div(m, TILE) * ceil_div(n, TILE), 1, what)
    unit = matmul_unit(p["a"].dtype, p["b"].dtype, p.out.dtype)
    arguments: tuple[Argument, ...] = (
        write(p.out), read(p["a"]), read(p["b"]),
        *map(i64, (m, n, k, out.row, out.column, a.row, a.column, b.row, b.column)),
        nd(batch, [x.batch for x in (out, a, b)]),
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


def _stored(x: Matrices) -> tuple[bool, Any] | None:
    """Return whether a stack is stored as its transpose, and the elements between stored rows; None for neither."""
    if (x.column == 1 or x.columns == 1) and (x.row >= x.columns or x.rows == 1):
        return False, maximum(x.row, x.columns)
    if (x.row == 1 or x.rows == 1) and (x.column >= x.rows or x.columns == 1):
        return True, maximum(x.column, x.rows)
    return None


def _one_stride(batch: Sequence[Any], strides: Sequence[Any]) -> Any:
    """Return the elements between the matrices of a stack of one or more axes; None where these differ."""
    kept = [(size, stride) for size, stride in zip(batch, strides, strict=True) if size != 1]
    for (_, above), (size, stride) in pairwise(kept):
        if above != size * stride:
            return None
    return kept[-1][1] if kept else 0


def _takes_library(p: Problem) -> str | None:
    from pygpukit.core import cublaslt

    a, b, out = p["a"].dtype, p["b"].dtype, p.out.dtype
    if p.kind != "cuda":
        return "cuBLASLt needs a GPU"
    if a is not b or out is not a or a.name not in ("bfloat16", "float16"):
        return f"multiplies bfloat16 or float16 into the same type, not {a.name} and {b.name} into {out.name}"
    if any(n == 0 for n in (*p.out.shape, p["a"].shape[-1])):
        return "there is nothing to multiply"
    return cublaslt.missing()


def _library_layout(p: Problem) -> Any:
    batch, *operands = stacks(p)
    out, a, b = operands
    stored = [_stored(x) for x in (a, b, out)]
    strides = [_one_stride(batch, x.batch) for x in (a, b, out)]
    if any(s is None for s in stored) or any(s is None for s in strides) or stored[2][0]:  # type: ignore[index]
        return None
    return batch, out, a, stored, strides


def _accepts_library(p: Problem) -> str | None:
    reason = _takes_library(p)
    if reason is None and _library_layout(p) is None:
        return "rows or matrices of an operand do not lie at equal distances"
    return reason


def _launch_library(p: Problem) -> Launch:
    batch, out, a, stored, strides = _library_layout(p)
    sizes = (out.rows, out.columns, a.columns, product(batch))
    ld = tuple(s[1] for s in stored)
    step = Product(p.out, p["a"], p["b"], sizes, ld, tuple(strides), (stored[0][0], stored[1][0]))
    return Launch((step,))


def _compose_library(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b = (x.contiguous() for x in given[:2])
        batch = results[0].shape[: max(a.ndim, b.ndim, 2) - 2]
        if batch:
            # Operands that a batch repeats are written out: their matrices then lie at equal distances.
            a, b = (x._broadcast_to([*batch, *x.shape[-2:]]).contiguous() if x.ndim > 1 else x for x in (a, b))
        _native.apply("copy", (matmul(a, b),), results[0])

    return run


def matmul_entry(a: DataType, b: DataType, to: DataType) -> str:
    """Return the kernel's name."""
    common, result = resolve(_ROW, (a, b))
    tags = [common.tag] if a.tag == b.tag == common.tag else [a.tag, b.tag]
    return "_".join(["pgk_matmul", *tags, *([] if to.tag == result.tag else ["to", to.tag])])


@cache
def matmul_unit(a: DataType, b: DataType, to: DataType) -> Unit:
    """Return the source of the product of ``a`` and ``b`` written as ``to``."""
    common, result = resolve(_ROW, (a, b))
    partial_type = accumulator(common)
    # Integers are summed unsigned: the sign comes back before a wider type is filled.
    rounded = result if result.kind in "iu" else partial_type
    logical = "true" if common.kind == "b" else "false"
    kinds = f"{a.tag}, {b.tag}, {partial_type.tag}, {rounded.tag}, {to.tag}, {logical}"
    entry = matmul_entry(a, b, to)
    return instance(_FILE, [f"PGK_MATMUL({entry}, {kinds})"], (entry,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for kind in map(dtype, types):
        yield matmul_unit(kind, kind, matmul_type(kind, kind))


def _compose(p: Problem) -> Callable[..., None]:
    """The same product with casts around it: a bundle without kernels for these types has both."""
    wide = wide_type(p["a"].dtype, p["b"].dtype)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b = (x.astype(wide, copy=False) for x in given[:2])
        if results[0].dtype is wide:
            matmul(a, b, out=results[0])
        else:
            _native.apply("copy", (matmul(a, b),), results[0])

    return run


def _host(p: Problem) -> Callable[..., None]:
    a, b, out = p["a"].dtype, p["b"].dtype, p.out.dtype
    if a is b is out and wide_type(a, b) is a:
        # NumPy's own loop, which writes the result.
        return np.matmul
    return partial(_round_once, out)


def _round_once(kind: DataType, a: Any, b: Any, out: Any) -> None:
    np.copyto(out, reference(a, b, kind), casting="unsafe")


def reference(a: Any, b: Any, out: DataType | None = None) -> Any:
    """Return the product as NumPy computes it, with small floats multiplied and summed in float32."""
    kinds = dtype(a.dtype), dtype(b.dtype)
    wide = to_numpy_dtype(wide_type(*kinds))
    with np.errstate(all="ignore"):
        result = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
        return np.asarray(result).astype(to_numpy_dtype(matmul_type(*kinds) if out is None else out), copy=False)


def _flops(p: Problem) -> int:
    return 2 * hint(p.out.size) * hint(p["a"].shape[-1])


matmul = register(
    Operator(
        name="matmul",
        parameters=(
            Parameter("a", doc="At least one dimension; leading axes broadcast."),
            Parameter("b", doc="At least one dimension."),
        ),
        infer=_infer,
        reference=reference,
        variants=(
            Variant("cuBLASLt", "batch_invariant", _accepts_library, launch=_launch_library),
            Variant("copies around cuBLASLt", "batch_invariant", _takes_library, compose=_compose_library),
            Variant("CUDA cores", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host),
            Variant("casts around CUDA cores", "batch_invariant", lambda p: None, compose=_compose),
        ),
        doc="""Matrix product, with NumPy's rules for vectors and stacks of matrices.

float16, bfloat16 and float8 are multiplied and summed in float32 and rounded once; float32 means true float32. The
order of a sum is fixed by K alone, so a row's bits do not depend on the others.

Examples
--------
>>> import pygpukit as gp
>>> gp.matmul(gp.ones((2, 3)), gp.ones((3, 1))).tolist()
[[3.0], [3.0]]
""",
        tolerance={"float32": 1e-5, "bfloat16": 2**-6},
        cases=(
            Case({"a": ("float32", (33, 21)), "b": ("float32", (21, 70))}),
            Case({"a": ("bfloat16", (2, 1, 5, 40)), "b": ("bfloat16", (3, 40, 7))}),
            Case({"a": ("int32", (19,)), "b": ("int32", (19, 4))}),
        ),
        flops=_flops,
    )
)


@export
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """The axes in another order, reversed by default; a view.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.transpose(gp.ones((2, 3))).shape
    (3, 2)
    """
    x = as_array(x, "transpose()")
    return x.T if axes is None else x.transpose(*axes)
