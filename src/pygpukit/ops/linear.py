"""Sums, matrix products and transposes of arrays.

The kernels' plans are imported when first used: importing the package stays cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray, Stream
from pygpukit.array.bridge import host_view
from pygpukit.array.creation import empty
from pygpukit.dtypes import DTypeLike, dtype
from pygpukit.errors import DeviceError, DTypeError, ShapeError
from pygpukit.ops import dispatch

if TYPE_CHECKING:
    from pygpukit.ops.matmul import Matrices

__all__ = ["matmul", "sum", "sum_axis", "transpose"]


def sum(
    x: GPUArray,
    axis: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    keepdims: bool = False,
    *,
    out: GPUArray | None = None,
    stream: Stream | None = None,
) -> GPUArray:
    """Sum of the elements over some or all axes.

    Small floats are summed in float32, float64 in float64, integers in 64 bits, and rounded once to the type of the
    result. The order is fixed: the bits depend neither on the run nor on the number of SMs.

    Parameters
    ----------
    x : GPUArray
    axis : int or sequence of int, optional
        Axes to sum over; all by default.
    dtype : DataType, str or numpy.dtype, optional
        Type of the result; as in NumPy by default.
    keepdims : bool
        Keep the summed axes with one element.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray

    Notes
    -----
    Determinism on a GPU: ``batch_invariant``; the order of a sum depends on the length of the summed axes alone.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.sum(gp.ones((2, 3)), axis=0).tolist()
    [2.0, 2.0, 2.0]
    """
    from pygpukit.ops.promotion import can_cast
    from pygpukit.ops.reduction import sum_type

    _check("sum", x)
    if stream is not None:
        with _on(stream, x):
            return sum(x, axis, dtype, keepdims, out=out)
    axes = _axes(x, axis)
    kind = _dtype(dtype) if dtype is not None else out.dtype if out is not None else sum_type(x.dtype)
    if not can_cast(sum_type(x.dtype), kind):
        raise DTypeError(
            f"the sum of {x.dtype.name} is {sum_type(x.dtype).name}, which cannot be written to {kind.name}"
        )
    if out is not None and not can_cast(kind, out.dtype):
        raise DTypeError(
            f"sum() with dtype {kind.name} cannot be written to out of {out.dtype.name}; use an out of {kind.name}"
        )
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    target = _target("sum", x, shape, kind, out)
    if target.size == 0:
        return target
    if x.device.kind == "cpu":
        work = partial(_sum_on_host, host_view(x), axes, keepdims, host_view(target))
        _native.submit_host(work, [x], [target])
        return target
    _sum_on_device(x, axes, target)
    return target


# The parameter `dtype` hides the function of that name.
_dtype = dtype


def _sum_on_host(x: np.ndarray[Any, Any], axes: tuple[int, ...], keepdims: bool, out: np.ndarray[Any, Any]) -> None:
    from pygpukit.ops.reduction import reference

    with np.errstate(all="ignore"):
        np.copyto(out, reference(x, axes, keepdims=keepdims, out=_dtype(out.dtype)))


def _sum_on_device(x: GPUArray, axes: tuple[int, ...], target: GPUArray) -> None:
    from pygpukit.ops.reduction import accumulator, collapse, sum_plan

    layout = collapse(x.shape, _strides(x), axes) if axes else None
    if layout is None:
        # The summed axes are moved to the end, side by side.
        kept = [i for i in range(x.ndim) if i not in axes]
        moved = _native.apply("copy", (x._permute([*kept, *axes]),))
        n = prod(x.shape[i] for i in axes)
        outer = prod(x.shape[i] for i in kept)
        x, layout = moved, ((outer, n, 1), (n, 1, 1))
    plan = sum_plan(*layout, x.dtype, target.dtype)
    wide = accumulator(x.dtype)
    if target.dtype is not wide and not dispatch.can_run(plan.calls, x.device):
        # The same sum, rounded by a cast: a bundle without this type has both.
        total = empty(target.shape, wide, device=target.device)
        _sum_on_device(x, axes, total)
        _native.apply("copy", (total,), target)
        return
    # The kernels write a dense result, and read the operand while they do.
    direct = target.is_contiguous and not target._shares_memory(x)
    dense = target if direct else empty(target.shape, target.dtype, device=target.device)
    buffers = {"x": x, "out": dense}
    for scratch in plan.scratch:
        buffers[scratch.name] = empty(scratch.size, scratch.dtype, device=x.device)
    dispatch.run(plan.calls, buffers, x.device)
    if dense is not target:
        _native.apply("copy", (dense,), target)


def sum_axis(
    x: GPUArray, axis: int, keepdims: bool = False, *, out: GPUArray | None = None, stream: Stream | None = None
) -> GPUArray:
    """Sum over one axis; `sum` with the axis required.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.sum_axis(gp.ones((2, 3)), 1).tolist()
    [3.0, 3.0]
    """
    return sum(x, axis, keepdims=keepdims, out=out, stream=stream)


def matmul(a: GPUArray, b: GPUArray, *, out: GPUArray | None = None, stream: Stream | None = None) -> GPUArray:
    """Matrix product, with NumPy's rules for vectors and stacks of matrices.

    float16, bfloat16 and float8 are multiplied and summed in float32 and rounded once; float32 means true float32.

    Parameters
    ----------
    a, b : GPUArray
        At least one dimension each; leading axes broadcast.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray

    Notes
    -----
    Determinism on a GPU: ``batch_invariant``; the order of the sum is fixed by the shape's K alone, so a row's bits
    do not depend on the others.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.matmul(gp.ones((2, 3)), gp.ones((3, 1))).tolist()
    [[3.0], [3.0]]
    """
    from pygpukit.ops.matmul import matmul_call, matmul_type, wide_type
    from pygpukit.ops.promotion import can_cast

    _check("matmul", a, b)
    if stream is not None:
        with _on(stream, a):
            return matmul(a, b, out=out)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError("matmul needs arrays of at least one dimension; use mul for numbers")
    left = a._expand(0) if a.ndim == 1 else a
    right = b._expand(1) if b.ndim == 1 else b
    (m, k), (k2, n) = left.shape[-2:], right.shape[-2:]
    if k != k2:
        raise ShapeError(f"matmul of shapes {tuple(a.shape)} and {tuple(b.shape)}: the inner sizes {k} and {k2} differ")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"matmul of shapes {tuple(a.shape)} and {tuple(b.shape)}: the leading axes cannot be broadcast together"
        ) from None
    shape = (*batch, *((m,) if a.ndim > 1 else ()), *((n,) if b.ndim > 1 else ()))
    kind = matmul_type(a.dtype, b.dtype) if out is None else out.dtype
    if not can_cast(matmul_type(a.dtype, b.dtype), kind):
        raise DTypeError(f"matmul of {a.dtype.name} and {b.dtype.name} cannot be written to {kind.name}")
    target = _target("matmul", a, shape, kind, out)
    if target.size == 0:
        return target
    if a.device.kind == "cpu":
        work = partial(_matmul_on_host, host_view(a), host_view(b), host_view(target), kind)
        _native.submit_host(work, [a, b], [target])
        return target
    overlaps = out is not None and (out._shares_memory(a) or out._shares_memory(b))
    to = empty(shape, kind, device=a.device) if overlaps else target
    whole = to if a.ndim > 1 else to._expand(len(batch))
    whole = whole if b.ndim > 1 else whole._expand(len(batch) + 1)
    spread = (left._broadcast_to((*batch, m, k)), right._broadcast_to((*batch, k, n)))
    layouts = (_matrices(whole), _matrices(spread[0]), _matrices(spread[1]))
    call = matmul_call((m, n, k), batch, (a.dtype, b.dtype), layouts, kind)
    wide = wide_type(a.dtype, b.dtype)
    if any(t is not wide for t in (a.dtype, b.dtype, kind)) and not dispatch.can_run([call], a.device):
        # The same product, with casts around it: a bundle without these types has both.
        a, b = a.astype(wide, copy=False), b.astype(wide, copy=False)
        return matmul(a, b, out=target) if kind is wide else _native.apply("copy", (matmul(a, b),), target)
    dispatch.run([call], {"out": to, "a": a, "b": b}, a.device)
    if overlaps:
        _native.apply("copy", (to,), target)
    return target


def _matmul_on_host(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], out: np.ndarray[Any, Any], kind: DataType
) -> None:
    from pygpukit.ops.matmul import reference

    np.copyto(out, reference(a, b, kind), casting="unsafe")


def transpose(x: GPUArray, axes: Sequence[int] | None = None) -> GPUArray:
    """The axes in another order, reversed by default; a view.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.transpose(gp.ones((2, 3))).shape
    (3, 2)
    """
    _check("transpose", x)
    return x.T if axes is None else x.transpose(*axes)


def _check(name: str, *arrays: GPUArray) -> None:
    for x in arrays:
        if not isinstance(x, GPUArray):
            raise TypeError(f"{name}() takes GPUArrays, not {type(x).__name__}; convert it with pygpukit.asarray()")
    if any((x.device.kind, x.device.index) != (arrays[0].device.kind, arrays[0].device.index) for x in arrays):
        raise DeviceError(f"{name}(): the arrays live on different devices; copy one over first")


def _on(stream: Stream, x: GPUArray) -> Stream:
    """The stream to enter: memory made there is ordered on it too, which ``stream=`` of a launch alone does not do."""
    if (stream.device.kind, stream.device.index) != (x.device.kind, x.device.index):
        raise DeviceError("the stream belongs to another device than the arrays")
    return stream


def _target(name: str, x: GPUArray, shape: tuple[int, ...], kind: DataType, out: GPUArray | None) -> GPUArray:
    if out is None:
        return empty(shape, kind, device=x.device)
    _check(name, x, out)
    if tuple(out.shape) != shape:
        raise ShapeError(f"{name}(): the result has shape {shape}, but out has {tuple(out.shape)}")
    if _overlaps_itself(out):
        raise ShapeError(f"{name}(): out is a broadcast view whose elements share memory; copy it first")
    return out


def _overlaps_itself(x: GPUArray) -> bool:
    """Can two indices reach the same element?"""
    reach = 0
    if x.size:
        for stride, n in sorted((abs(stride), n) for stride, n in zip(_strides(x), x.shape, strict=True) if n > 1):
            if stride <= reach:
                return True
            reach += stride * (n - 1)
    return False


def _axes(x: GPUArray, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    given = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    found = []
    for a in given:
        if not -x.ndim <= a < x.ndim:
            raise ShapeError(f"axis {a} is out of range for an array of {x.ndim} dimensions")
        found.append(a % x.ndim)
    if len(set(found)) != len(found):
        raise ShapeError(f"axis {axis} names an axis twice")
    return tuple(sorted(found))


def _strides(x: GPUArray) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def _matrices(x: GPUArray) -> Matrices:
    from pygpukit.ops.matmul import Matrices

    *batch, row, column = _strides(x)
    return Matrices(row, column, tuple(batch))
