"""Functions that call a function of the program: on parts of an array, or on rows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import zeros_like
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.math.arguments import need
from pygpukit.ops.operands import as_array
from pygpukit.ops.reduce.layout import axis_of
from pygpukit.ops.registry import export
from pygpukit.ops.shape.joining import stack


@export
def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> GPUArray:
    """Call a function with each vector along an axis, and put its results in place of them.

    A call per vector: an operator with ``axis=`` is much faster where there is one.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.apply_along_axis(lambda row: row.max() - row.min(), 1, gp.asarray([[1, 5], [7, 2]])).tolist()
    [4, 5]
    """
    x = need(arr, "apply_along_axis")
    at = axis_of(axis, x.ndim)
    outer = [i for i in range(x.ndim) if i != at]
    moved = x._permute([*outer, at])
    shape = tuple(moved.shape[:-1])
    if 0 in shape:
        raise ValueError("apply_along_axis(): there is no vector to call the function with")
    parts = [as_array(func1d(moved[i], *args, **kwargs), "apply_along_axis()", x.device) for i in np.ndindex(*shape)]
    inner = tuple(parts[0].shape)
    whole: GPUArray = stack(parts).reshape(shape + inner)
    n, m = len(outer), len(inner)
    return whole._permute([*range(at), *range(n, n + m), *range(at, n)])


@export
def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> GPUArray:
    """Compute elements by the function, or the number, of the last condition that holds for them.

    Functions are called with the elements of their condition, whose number is read from the device.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([-2.0, 0.0, 3.0])
    >>> gp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, 10]).tolist()
    [2.0, 10.0, 10.0]
    """
    x = need(x, "piecewise")
    conditions: Any = condlist
    # As in NumPy a vector is one condition, and the rows of a matrix are several.
    if isinstance(conditions, GPUArray):
        conditions = list(conditions) if conditions.ndim > 1 else [conditions]
    elif np.isscalar(conditions) or (np.isscalar(conditions[0]) and x.ndim != 0):
        conditions = [conditions]
    masks = [as_array(c, "piecewise()", x.device) for c in conditions]
    masks = [m if m.dtype.kind == "b" else e.not_equal(m, 0) for m in masks]
    count = len(masks)
    if len(funclist) == count + 1:
        other = masks[0]
        for mask in masks[1:]:
            other = e.logical_or(other, mask)
        masks.append(e.logical_not(other))
    elif len(funclist) != count:
        raise ValueError(
            f"piecewise(): with {count} conditions there must be {count} or {count + 1} functions, not {len(funclist)}"
        )
    result = zeros_like(x)
    for mask, function in zip(masks, funclist, strict=True):
        if not callable(function):
            result[mask] = function
            continue
        chosen = x[mask]
        if chosen.size:
            result[mask] = function(chosen, *args, **kw)
    return result


@export
def ndenumerate(arr: Any) -> Iterator[tuple[tuple[int, ...], GPUArray]]:
    """Indices and elements, which are arrays without axes, in row-major order.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [(i, int(v)) for i, v in gp.ndenumerate(gp.asarray([[7, 8]]))]
    [((0, 0), 7), ((0, 1), 8)]
    """
    x = need(arr, "ndenumerate")
    return ((i, x[i]) for i in np.ndindex(*x.shape))
