"""Operands of a product as the bulk copies of SM 90 read them: boxes of tensor maps of three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pygpukit.ops.gemm.epilogue import refuses
from pygpukit.ops.gemm.layout import Matrices, one_stride, result_stack, stacks
from pygpukit.ops.gemm.types import arithmetic
from pygpukit.ops.launch import Argument, TensorMapOf, i64, read, tensor_map
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import maximum, product

ARCHITECTURE = "90a"
"""What has these copies and wgmma."""

LINE = 128
"""Bytes of a box along its contiguous dimension: a line of the swizzle."""

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a block may have on SM 90."""

_LARGEST = 2**31 - 1


class Side(NamedTuple):
    """An operand as a stack of matrices of lines (rows of a, columns of b) and k.

    Attributes
    ----------
    tensor
        The array.
    lines, k
        Sizes.
    mn
        Lines, not k, are contiguous.
    ld
        Elements from one to the next along the dimension that is not contiguous.
    count, step
        Matrices, and elements between them; one, and 0, where all of the batch have the same.
    """

    tensor: Tensor
    lines: Any
    k: Any
    mn: bool
    ld: Any
    count: Any
    step: Any

    def map(self, lines: int, access: str) -> TensorMapOf:
        """Return the map with boxes of 128 bytes of k by ``lines``.

        Where lines are contiguous boxes have 64 of k, and 64 lines, or 32 in shorter lines of the swizzle.
        """
        rows, columns = (self.k, self.lines) if self.mn else (self.lines, self.k)
        view = self.tensor.view((self.count, rows, columns), (self.step, self.ld, 1))
        width = LINE // self.tensor.dtype.itemsize
        if not self.mn:
            return tensor_map(view, (1, lines, width), access=access, swizzle="128B")
        short = lines < width
        return tensor_map(view, (1, 64, lines if short else width), access=access, swizzle="64B" if short else "128B")


class Operands(NamedTuple):
    """The arrays of a product.

    Attributes
    ----------
    batch
        Shape of the batch; empty where all its rows are those of one matrix.
    m, n, k, z
        Sizes; z is that of the batch.
    a, b
        As bulk copies read them.
    out, residual
        Their batch strides are along `batch`.
    """

    batch: tuple[Any, ...]
    m: Any
    n: Any
    k: Any
    z: Any
    a: Side
    b: Side
    out: Matrices
    residual: Matrices | None

    def out_box(self, p: Problem) -> tuple[Any, Any] | None:
        """Return rows' and matrices' distances of the result if bulk copies can write it, else None."""
        item, step = p.out.dtype.itemsize, one_stride(self.batch, self.out.batch)
        if not p.out.is_aligned(16) or step is None or (self.out.column != 1 and self.n != 1):
            return None
        if self.m != 1 and (self.out.row * item % 16 != 0 or self.out.row < 1):
            return None
        if self.z != 1 and (step * item % 16 != 0 or step < 1):
            return None
        return maximum(self.out.row, 1), maximum(step, 1)

    def end(self, p: Problem) -> tuple[Argument, ...]:
        """Return bias, residual and the residual's strides as kernels take them."""
        pointers = [i64(0) if x is None else read(x) for x in (p.arrays["bias"], p.arrays["residual"])]
        strides = (0, 0) if self.residual is None else (self.residual.row, self.residual.column)
        return (*pointers, *map(i64, strides))


def operands(p: Problem) -> Operands | str:
    """Return a product's arrays as these kernels take them, or the reason why they cannot."""
    if any(n == 0 for n in (*p.out.shape, p["a"].shape[-1])):
        return "there is nothing to multiply"
    batch, out, a, b = stacks(p)
    given = p.arrays["residual"]
    residual = None if given is None else result_stack(p, given)
    m, n, k = out.rows, out.columns, a.columns
    wanted = [a, out] if residual is None else [a, out, residual]
    shared = batch and all(s == 0 for s in b.batch) and not _scales_rows(p)
    merged = [_as_rows(batch, m, x) for x in wanted] if shared else [None]
    if all(x is not None for x in merged):
        # One matrix multiplies all of the batch, whose rows lie at equal distances: one product of more rows.
        a, out, *rest = (x for x in merged if x is not None)
        residual = rest[0] if rest else None
        m, batch = m * product(batch), ()
        b = b._replace(batch=())
    z = product(batch)
    if any(size > _LARGEST for size in (m, n, k, z)):
        return "a size is over 2 147 483 647"
    left = _side(p["a"], m, k, a.row, a.column, batch, a.batch)
    right = _side(p["b"], n, k, b.column, b.row, batch, b.batch)
    reason = next((x for x in (left, right, refuses(p)) if isinstance(x, str)), None)
    if reason is not None:
        return reason
    assert isinstance(left, Side)
    assert isinstance(right, Side)
    return Operands(batch, m, n, k, z, left, right, out, residual)


def _scales_rows(p: Problem) -> bool:
    """Has each row of a matrix a scale of its own? Then the rows of all matrices are not those of one."""
    scales = p.arrays.get("scale_a")
    return scales is not None and any(n != 1 for n in scales.shape)


_RESULTS = {
    "bfloat16": ("plain", "bfloat16", "float32"),
    "float16": ("plain", "float16", "float32"),
    "float32": ("tf32", "float32"),
    "float8_e4m3fn": ("fp8", "bfloat16", "float16", "float32"),
    "int8": ("int32", "int32"),
}
"""What tensor cores compute, and the element types of the result, by the element type of the operands."""


def refuses_types(p: Problem, kinds: Sequence[str]) -> str | None:
    """Return why the types of a problem are none of these, or not those of tensor cores; None if they are."""
    how, a, b, out = arithmetic(p), p["a"].dtype, p["b"].dtype, p.out.dtype
    if how.operands.name not in kinds or how.how != _RESULTS[how.operands.name][0]:
        known = ("tf32" if kind == "float32" else kind for kind in kinds)
        return f"multiplies {' or '.join(known)}, not {how.operands.name if how.how == 'plain' else how.how}"
    if a is not how.operands or b is not a:
        return f"multiplies arrays of one type, not {a.name} and {b.name}"
    allowed = _RESULTS[a.name][1:]
    return None if out.name in allowed else f"writes {' or '.join(allowed)}, not {out.name}"


def _as_rows(batch: tuple[Any, ...], m: Any, x: Matrices) -> Matrices | None:
    """Return a stack as one matrix of all rows; None if these do not lie at equal distances."""
    step = one_stride(batch, x.batch)
    if step is None or step == 0:
        return None
    if m == 1:
        return x._replace(row=step, batch=())
    return x._replace(batch=()) if step == m * x.row else None


def _side(x: Tensor, lines: Any, k: Any, along: Any, deep: Any, batch: Any, strides: tuple[Any, ...]) -> Side | str:
    """An operand by its strides along its lines and along k, or why bulk copies cannot read it."""
    item = x.dtype.itemsize
    step = one_stride(batch, strides)
    if step is None:
        return "the matrices of an operand do not lie at equal distances"
    if not x.is_aligned(16):
        return "the address of an operand is not a multiple of 16 bytes"
    if deep == 1 or k == 1:
        mn, ld, rows = False, along, lines
    elif along == 1 or lines == 1:
        mn, ld, rows = True, deep, k
    else:
        return "neither rows nor columns of an operand are contiguous"
    if mn and item != 2:
        return "k is not contiguous in an operand whose elements do not have 16 bits"
    if rows != 1 and (ld * item % 16 != 0 or ld < 1):
        return "rows of an operand do not lie at multiples of 16 bytes"
    if step == 0:
        return Side(x, lines, k, mn, maximum(ld, 1), 1, 0)
    if step * item % 16 != 0 or step < 1:
        return "the matrices of an operand do not lie at multiples of 16 bytes"
    return Side(x, lines, k, mn, maximum(ld, 1), product(batch), step)
