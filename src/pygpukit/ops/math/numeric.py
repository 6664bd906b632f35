"""Differences, slopes, areas, interpolation and polynomials, made of views and elementwise operators."""

from __future__ import annotations

import math
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.math.arguments import need, operand, refuse, streamed
from pygpukit.ops.math.types import result_type
from pygpukit.ops.operands import as_array, as_arrays, common_device
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.reduce.layout import axis_of
from pygpukit.ops.registry import export, functions
from pygpukit.ops.sort.gather import assign, take_last
from pygpukit.ops.sort.search import searchsorted


def _cut(x: GPUArray, axis: int, start: int, stop: int) -> GPUArray:
    """Elements from ``start``, up to ``stop`` from the end; a view."""
    return x.narrow(axis, start, max(x.shape[axis] - start - stop, 0))


def _step(x: GPUArray, axis: int) -> GPUArray:
    """Each element minus the one before it."""
    if x.shape[axis] == 0:
        return x
    later, earlier = _cut(x, axis, 1, 0), _cut(x, axis, 0, 1)
    return e.not_equal(later, earlier) if x.dtype.kind == "b" else e.sub(later, earlier)


@streamed
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> GPUArray:
    """Differences of neighbours along an axis, `n` times.

    Parameters
    ----------
    a : GPUArray
        The elements; of booleans the result says where they change.
    n : int
        How often; 0 gives `a` itself.
    axis : int
        The axis.
    prepend, append : GPUArray or number, optional
        What is joined before and behind first.

    Examples
    --------
    >>> diff(gp.asarray([1, 4, 9, 16])).tolist(), diff(gp.asarray([1, 4, 9, 16]), n=2).tolist()
    ([3, 5, 7], [2, 2])
    """
    x = need(a, "diff")
    if n == 0:
        return x
    if n < 0:
        raise ValueError(f"diff(): n must not be negative, but is {n}")
    if x.ndim == 0:
        raise ValueError("diff() requires an array of at least one dimension")
    axis = axis_of(axis, x.ndim)
    if prepend is not None or append is not None:
        before, after = (None if part is None else operand(part, "diff") for part in (prepend, append))
        x = _joined(x, axis, before, after)
    for _ in range(n):
        x = _step(x, axis)
    return x


def _joined(x: GPUArray, axis: int, before: Any, after: Any) -> GPUArray:
    """The array with others before and behind it; a number is one element of all lines."""
    parts = []
    for part in (before, x, after):
        if part is None:
            continue
        if not isinstance(part, GPUArray) or part.ndim == 0:
            line = empty([1 if i == axis else size for i, size in enumerate(x.shape)], x.dtype, device=x.device)
            kind = part.dtype if isinstance(part, GPUArray) else result_type(part)
            line = line.astype(kind, copy=False)
            if isinstance(part, GPUArray):
                assign(line, part._broadcast_to(line.shape))
            else:
                line.fill(part)
            part = line
        parts.append(part)
    return functions()["concatenate"](parts, axis=axis)  # type: ignore[no-any-return]


@streamed
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> GPUArray:
    """Differences of neighbours of all elements in order, with others before and behind.

    Parameters
    ----------
    ary : GPUArray
        The elements.
    to_end, to_begin : GPUArray or number, optional
        What follows and what comes first; the result has the type of `ary`.

    Examples
    --------
    >>> ediff1d(gp.asarray([1, 2, 4]), to_begin=-9).tolist()
    [-9, 1, 2]
    """
    x = need(ary, "ediff1d").reshape(-1)
    middle = max(x.size - 1, 0)
    ends = []
    for name, end in (("to_begin", to_begin), ("to_end", to_end)):
        if end is not None:
            end = operand(end, "ediff1d")
            kind = end.dtype if isinstance(end, GPUArray) else result_type(x, end)
            if not can_cast(kind, x.dtype):
                raise TypeError(f"ediff1d(): {name} of {kind.name} cannot be written to the result of {x.dtype.name}")
        ends.append(end.reshape(-1) if isinstance(end, GPUArray) else end)
    first, last = (0 if end is None else end.size if isinstance(end, GPUArray) else 1 for end in ends)
    out = empty(first + middle + last, x.dtype, device=x.device)
    for end, start, length in ((ends[0], 0, first), (ends[1], first + middle, last)):
        target = out.narrow(0, start, length)
        if isinstance(end, GPUArray):
            assign(target, end)
        elif end is not None:
            target.fill(end)
    if x.size:
        e.sub(_cut(x, 0, 1, 0), _cut(x, 0, 0, 1), out=out.narrow(0, first, middle))
    return out


@streamed
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes by central differences, and by one-sided ones at the ends.

    Parameters
    ----------
    f : GPUArray
        Samples.
    *varargs : number or GPUArray
        Distance of the samples, one for all axes or one for each: a number, or a vector of their coordinates.
    axis : int or tuple of int, optional
        Axes; all by default.
    edge_order : int
        1 or 2: how exact the ends are.

    Returns
    -------
    GPUArray or tuple of GPUArray
        One for each axis.

    Examples
    --------
    >>> gradient(gp.asarray([1.0, 2.0, 4.0, 7.0])).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    x = refuse(need(f, "gradient"), "iufc", "gradient")
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(axis_of(i, x.ndim) for i in axes)
    if len(set(axes)) != len(axes):
        raise ValueError(f"gradient(): axis {axis} names an axis twice")
    steps: tuple[Any, ...] = tuple(operand(v, "gradient") for v in varargs)
    if len(steps) == 0:
        steps = (1.0,) * len(axes)
    elif len(steps) == 1 and not (isinstance(steps[0], GPUArray) and steps[0].ndim):
        steps *= len(axes)
    elif len(steps) != len(axes):
        raise TypeError(f"gradient() takes one distance, or one for each of {len(axes)} axes, but got {len(steps)}")
    if edge_order not in (1, 2):
        raise ValueError(f"gradient(): edge_order must be 1 or 2, not {edge_order!r}")
    if x.dtype.kind in "biu":
        x = x.astype("float64")
    found = []
    for i, h in zip(axes, steps, strict=True):
        n = x.shape[i]
        if n < edge_order + 1:
            raise ShapeError(f"gradient(): axis {i} has {n} samples; edge_order {edge_order} needs {edge_order + 1}")
        if isinstance(h, GPUArray) and h.ndim:
            if h.ndim != 1 or h.shape[0] != n:
                raise ShapeError(f"gradient(): coordinates of shape {h.shape} do not fit axis {i} of {n} samples")
            spaced = _step(h.astype("float64") if h.dtype.kind in "biu" else h, 0)
            found.append(_slopes_between(x, i, spaced, edge_order))
        else:
            found.append(_slopes(x, i, h, edge_order))
    return found[0] if len(found) == 1 else tuple(found)


def _slopes(x: GPUArray, axis: int, h: Any, order: int) -> GPUArray:
    """Slopes of samples at equal distances."""
    n, out = x.shape[axis], empty(x.shape, x.dtype, device=x.device)
    if n > 2:
        inner = out.narrow(axis, 1, n - 2)
        e.div(e.sub(_cut(x, axis, 2, 0), _cut(x, axis, 0, 2)), e.mul(h, 2.0) if isinstance(h, GPUArray) else 2.0 * h,
              out=inner)  # fmt: skip
    for end, side in ((0, 1), (n - 1, -1)):
        target = out.narrow(axis, end, 1)
        near = x.narrow(axis, end, 1), x.narrow(axis, end + side, 1)
        if order == 1:
            e.div(e.sub(*near[::-1]) if side == 1 else e.sub(*near), h, out=target)
        else:
            third = x.narrow(axis, end + 2 * side, 1)
            rise = e.sub(e.sub(e.mul(near[1], 2.0), e.mul(near[0], 1.5)), e.mul(third, 0.5))
            e.div(rise, e.mul(h, float(side)) if isinstance(h, GPUArray) else h * side, out=target)
    return out


def _slopes_between(x: GPUArray, axis: int, h: GPUArray, order: int) -> GPUArray:
    """Slopes of samples at the distances ``h``."""
    n, out = x.shape[axis], empty(x.shape, x.dtype, device=x.device)
    line = [1] * x.ndim

    def along(v: GPUArray) -> GPUArray:
        return v.reshape([*line[:axis], v.size, *line[axis + 1 :]])

    def weighted(start: int, length: int, parts: tuple[GPUArray, GPUArray, GPUArray], first: int) -> None:
        terms = [e.mul(x.narrow(axis, first + i, length), along(part)) for i, part in enumerate(parts)]
        e.add(e.add(terms[0], terms[1]), terms[2], out=out.narrow(axis, start, length))

    if n > 2:
        p, q = h[:-1], h[1:]
        both = e.add(p, q)
        weighted(
            1, n - 2, (e.neg(e.div(q, e.mul(p, both))), e.div(e.sub(q, p), e.mul(p, q)), e.div(p, e.mul(q, both))), 0
        )
    if order == 1:
        for end, first in ((0, 0), (n - 1, n - 2)):
            rise = e.sub(x.narrow(axis, first + 1, 1), x.narrow(axis, first, 1))
            e.div(rise, along(h[first : first + 1]), out=out.narrow(axis, end, 1))
        return out
    for end, first, p, q in ((0, 0, h[:1], h[1:2]), (n - 1, n - 3, h[n - 2 : n - 1], h[n - 3 : n - 2])):
        # Seen from the end: `p` lies beside it. The other end counts backwards, with opposite signs.
        both, sign = e.add(p, q), 1 if end == 0 else -1
        parts = [
            e.div(e.mul(e.add(e.mul(p, 2), q), -sign), e.mul(p, both)),
            e.div(e.mul(both, sign), e.mul(p, q)),
            e.div(e.mul(p, -sign), e.mul(q, both)),
        ]
        weighted(end, 1, (parts[0], parts[1], parts[2]) if end == 0 else (parts[2], parts[1], parts[0]), first)
    return out


@streamed
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> GPUArray:
    """Area under samples along an axis, by trapezoids.

    Parameters
    ----------
    y : GPUArray
        Samples.
    x : GPUArray, optional
        Their coordinates: a vector, or of the shape of `y`.
    dx : number
        Their distance where there are no coordinates.
    axis : int
        The axis.

    Examples
    --------
    >>> trapezoid(gp.asarray([1.0, 2.0, 3.0])).item()
    4.0
    """
    y = need(y, "trapezoid")
    if y.ndim == 0:
        raise ShapeError("trapezoid() requires samples along at least one dimension")
    axis, width = axis_of(axis, y.ndim), dx
    if x is not None:
        x = need(x, "trapezoid")
        width = _step(x, 0 if x.ndim == 1 else axis)
        if x.ndim == 1 and y.ndim > 1:
            width = width.reshape([width.size if i == axis else 1 for i in range(y.ndim)])
    both = e.add(_cut(y, axis, 1, 0), _cut(y, axis, 0, 1))
    return functions()["sum"](e.div(e.mul(width, both), 2.0), axis)  # type: ignore[no-any-return]


@streamed
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> GPUArray:
    """Cross product of vectors of 3 elements.

    Parameters
    ----------
    a, b : GPUArray
        Arrays of vectors; the other axes broadcast.
    axisa, axisb, axisc : int
        The axis of the vectors in `a`, in `b` and in the result.
    axis : int, optional
        All three of them.

    Examples
    --------
    >>> cross(gp.asarray([1, 0, 0]), gp.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = as_arrays("cross()", a, b)
    a, b = (v._permute([*(i for i in range(v.ndim) if i != axis_of(at, v.ndim)), axis_of(at, v.ndim)])
            for v, at in ((a, axisa), (b, axisb)))  # fmt: skip
    if not a.ndim or not b.ndim or a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ShapeError(
            f"cross() takes vectors of 3 elements, not shapes {a.shape} and {b.shape} with the vectors last"
        )
    (a0, a1, a2), (b0, b1, b2) = ([v[..., i] for i in range(3)] for v in (a, b))
    first = e.sub(e.mul(a1, b2), e.mul(a2, b1))
    out = empty((*first.shape, 3), first.dtype, device=a.device)
    assign(out[..., 0], first)
    e.sub(e.mul(a2, b0), e.mul(a0, b2), out=out[..., 1])
    e.sub(e.mul(a0, b1), e.mul(a1, b0), out=out[..., 2])
    at = axis_of(axisc, out.ndim)
    order = list(range(out.ndim - 1))
    order.insert(at, out.ndim - 1)
    return out._permute(order)


@streamed
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> GPUArray:
    """Straight lines between the points of a function.

    Parameters
    ----------
    x : GPUArray
        Where the function is wanted.
    xp, fp : GPUArray
        Vectors of the points' coordinates, ascending, and of their values.
    left, right : number, optional
        The result below and above all points; the first and the last value by default.
    period : number, optional
        `xp` and `x` are the same modulo this; the points need no order then.

    Examples
    --------
    >>> interp(gp.asarray([0.5, 1.0, 5.0]), gp.asarray([0.0, 1.0, 2.0]), gp.asarray([10.0, 20.0, 40.0])).tolist()
    [15.0, 20.0, 40.0]
    """
    x, xp, fp = as_arrays("interp()", x, xp, fp)
    for v in (x, xp):
        refuse(v, "biuf", "interp")
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        raise ShapeError(f"interp(): xp and fp must be vectors of one length, not shapes {xp.shape} and {fp.shape}")
    x, xp = x.astype("float64", copy=False), xp.astype("float64", copy=False).contiguous()
    fp = fp.astype("complex128" if fp.dtype.kind == "c" else "float64", copy=False).contiguous()
    if period is not None:
        if period == 0:
            raise ValueError("interp(): period must not be 0")
        period = abs(period)
        left = right = None
        x, xp = e.mod(x, period), e.mod(xp, period)
        order = functions()["argsort"](xp)
        xp, fp = take_last(xp, order), take_last(fp, order)
        xp = functions()["concatenate"]([e.sub(xp[-1:], period), xp, e.add(xp[:1], period)])
        fp = functions()["concatenate"]([fp[-1:], fp, fp[:1]])
    n = xp.size
    at = e.clamp(e.sub(searchsorted(xp, x, "right"), 1), 0, max(n - 2, 0))
    low, value = take_last(xp, at), take_last(fp, at)
    if n == 1:
        result: Any = value
    else:
        after = e.add(at, 1)
        high, last = take_last(xp, after), take_last(fp, after)
        slope = e.div(e.sub(last, value), e.sub(high, low))
        result = e.add(e.mul(slope, e.sub(x, low)), value)
        # Where a slope is not finite the other end may still give a number.
        other = e.add(e.mul(slope, e.sub(x, high)), last)
        other = e.where(e.logical_and(e.isnan(other), e.equal(value, last)), value, other)
        result = e.where(e.isnan(result), other, result)
        result = e.where(e.equal(x, low), value, e.where(e.equal(x, high), last, result))
        result = e.where(e.isnan(x), x, result)
    result = e.where(e.less(x, xp[0]), fp[0] if left is None else left, result)
    return e.where(e.greater(x, xp[-1]), fp[-1] if right is None else right, result)


@streamed
def polyval(p: Any, x: Any) -> GPUArray:
    """A polynomial at each element, by Horner's rule.

    Parameters
    ----------
    p : GPUArray
        Vector of coefficients, that of the highest power first.
    x : GPUArray or number
        Where it is wanted.

    Examples
    --------
    >>> polyval(gp.asarray([3, 0, 1]), gp.asarray([5, 2])).tolist()
    [76, 13]
    """
    p, x = as_array(p, "polyval()", common_device((x,))), operand(x, "polyval")
    if p.ndim != 1:
        raise ShapeError(f"polyval(): p must be a vector of coefficients, not of shape {p.shape}")
    shape = x.shape if isinstance(x, GPUArray) else ()
    result = empty(shape, result_type(x), device=p.device).fill(0)
    for i in range(p.size):
        result = e.add(e.mul(result, x), p[i])
    return result


@streamed
def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: Any = 2 * math.pi) -> GPUArray:
    """Angles without jumps: a step larger than half the period is taken the other way round.

    Parameters
    ----------
    p : GPUArray
        Angles.
    discont : float, optional
        Smallest step that is a jump; half the period by default, which is also the least.
    axis : int
        The axis.
    period : number
        Of the angles.

    Examples
    --------
    >>> unwrap(gp.asarray([0, 1, 2, -1, 0]), period=4).tolist()
    [0, 1, 2, 3, 4]
    """
    x = need(p, "unwrap")
    step = diff(x, axis=axis)
    axis = axis_of(axis, x.ndim)
    kind = result_type(step, period)
    refuse(x, "iuf", "unwrap")
    if kind.kind in "iu":
        half, rest = divmod(period, 2)
        ambiguous = rest == 0
    else:
        half, ambiguous = period / 2, True
    near = e.add(e.mod(e.add(step, half), period), -half)
    if ambiguous:
        near = e.where(e.logical_and(e.equal(near, -half), e.greater(step, 0)), half, near)
    correction = e.sub(near, step)
    correction = e.where(e.less(e.abs(step), half if discont is None else discont), 0, correction)
    result = x.astype(kind)
    tail = _cut(result, axis, 1, 0)
    e.add(tail, functions()["cumsum"](correction, axis).astype(kind, copy=False), out=tail)
    return result


for _function in (diff, ediff1d, gradient, trapezoid, cross, interp, polyval, unwrap):
    export(_function)
