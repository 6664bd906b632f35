"""Elements by position: what sorting moves once the order is known."""

from __future__ import annotations

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.dtypes import dtype
from pygpukit.ops.index.gather import gather, take_along
from pygpukit.ops.index.scatter import scatter
from pygpukit.ops.problem import Problem


def axis_last(x: GPUArray, axis: int) -> GPUArray:
    """Return a view of ``x`` with this axis last."""
    return x if axis == x.ndim - 1 else x._permute([*(i for i in range(x.ndim) if i != axis), axis])


def assign(target: GPUArray, value: GPUArray) -> None:
    """Write elements of the same shape to ``target``."""
    _native.apply("copy", (value,), target)


def contiguous(p: Problem) -> str | None:
    """Return None if all arrays of a problem are contiguous, else what is said of it."""
    together = all(t.is_contiguous() for t in (*p.inputs.values(), *p.outputs))
    return None if together else "an array is not contiguous"


def take_last(x: GPUArray, index: GPUArray) -> GPUArray:
    """Return elements along the last axis by positions that are valid; of a vector by positions of any shape."""
    found: GPUArray = gather(x, index) if x.ndim == 1 else take_along(x, index, x.ndim - 1)
    return found


def put(index: GPUArray, value: GPUArray) -> GPUArray:
    """Return int64 elements at the places of a permutation."""
    out = empty(index.shape, dtype("int64"), device=index.device)
    scatter(out, value, index, 0, 1)
    return out
