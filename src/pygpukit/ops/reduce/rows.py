"""Reductions over axes: an operator per row of the table, with its kernels, its NumPy form and its compositions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, to_numpy_dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.launch import Launch
from pygpukit.ops.problem import Problem, Result, broadcast
from pygpukit.ops.reduce import derived, scan
from pygpukit.ops.reduce.kernels import launches, unit, units
from pygpukit.ops.reduce.layout import axes_of, axis_of, collapse, form
from pygpukit.ops.reduce.reference import call, cast_first, compute, result_type, wide_type
from pygpukit.ops.reduce.table import TABLE, Row, accumulator, sum_type
from pygpukit.ops.registry import Case, Operator, Variant, export, register
from pygpukit.ops.size import hint, product

__all__ = ["accumulator", "axes_of", "collapse", "sum", "sum_axis", "sum_type"]

_NOT_NUMPYS = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})


class _Reduction:
    """What the registry asks of one row."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def axes(self, p: Problem) -> tuple[int, ...]:
        """The reduced axes, ascending."""
        axis, ndim = p.options["axis"], p["x"].ndim
        if self.row.name in ("argmax", "argmin") and axis is not None:
            axis = axis_of(axis, ndim)
        return axes_of(axis, ndim)

    def wide(self, p: Problem) -> DataType:
        """The type that is computed in."""
        return wide_type(self.row, p["x"].dtype, p.options.get("dtype"), p.out.dtype)

    def ddof(self, p: Problem) -> float:
        """What is subtracted from the number of elements."""
        correction = p.options.get("correction")
        return p.options.get("ddof", 0) if correction is None else correction  # type: ignore[no-any-return]

    def infer(self, p: Problem) -> list[Result]:
        row, x, options = self.row, p["x"], p.options
        axes = self.axes(p)
        kind = result_type(row, x.dtype, options.get("dtype"), p.requested[0] if p.requested else None)
        if options.get("correction") is not None and options["ddof"] != 0:
            raise ValueError(f"{row.name}(): ddof and correction are the same; give one of them")
        where = p.arrays.get("where")
        if where is not None:
            if where.dtype.name != "bool":
                raise TypeError(f"{row.name}(): where must be an array of bool, not {where.dtype.name}")
            joint = broadcast(where.shape, x.shape)
            if joint is None or len(joint) != x.ndim or any(a != b for a, b in zip(joint, x.shape, strict=True)):
                shapes = [tuple(hint(n) for n in t.shape) for t in (where, x)]
                raise ShapeError(f"{row.name}(): where of shape {shapes[0]} does not broadcast to {shapes[1]}")
        if row.empty is None and options.get("initial") is None:
            if where is not None:
                raise ValueError(f"{row.name}() has no identity: with where give initial, which stands for no elements")
            if product(x.shape[i] for i in axes) == 0:
                raise ShapeError(f"{row.name}() of no elements has no value: an axis of 0 is reduced")
        keep = options["keepdims"]
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
        return [Result(shape, kind)]

    def accepts(self, p: Problem) -> str | None:
        row, x = self.row, p["x"]
        if x.dtype.kind not in row.kernel_kinds:
            return f"there is no kernel for {x.dtype.name}"
        if cast_first(row, x.dtype, p.options.get("dtype")) is not None:
            return "the elements are cast to dtype first"
        if p.arrays.get("where") is not None or p.options.get("initial") is not None:
            return "where or initial is given"
        if not p.out.is_contiguous():
            return "out is not contiguous"
        if form(x, self.axes(p)) is None:
            return "the reduced axes are more than two in memory"
        wide = self.wide(p)
        if p.out.dtype is row.result(x.dtype) and wide is row.accumulator(x.dtype, p.out.dtype):
            return None
        return p.missing(unit(row.name, x.dtype, wide, p.out.dtype))

    def launch(self, p: Problem) -> Launch:
        found = form(p["x"], self.axes(p))
        assert found is not None
        return launches(self.row, p["x"], p.out, self.wide(p), found, float(self.ddof(p)))

    def compose(self, p: Problem) -> Callable[..., None]:
        """What has no kernel of its own: elements left out, a first element, a copy, or a cast."""
        from pygpukit.ops.reduce import compositions as c

        row, x, options = self.row, p["x"], p.options
        axes, keep, dtype = self.axes(p), bool(options["keepdims"]), options.get("dtype")
        ddof, given_where = self.ddof(p), p.arrays.get("where") is not None
        spread = {"ddof": ddof} if row.takes("ddof") else {}
        function = FUNCTIONS[row.name]
        if (first := cast_first(row, x.dtype, dtype)) is not None:
            return partial(c.of_cast_elements, row, function, first, axes, keep, options.get("initial"))
        if x.dtype.kind not in row.kernel_kinds or (given_where and row.skipped is None and row.empty is not None):
            return partial(c.by_parts, row, axes, keep, dtype, ddof)
        if given_where or options.get("initial") is not None:
            return partial(c.masked, row, function, axes, keep, dtype, options.get("initial"))
        split = form(x, axes) is None
        own = row.result(x.dtype)
        wide = self.wide(p)
        direct = p.out.dtype is own and wide is row.accumulator(x.dtype, own)
        if not direct and p.missing(unit(row.name, x.dtype, wide, p.out.dtype)) is not None:
            return partial(c.by_a_cast, row, function, axes, keep, None if wide is own else wide, spread)
        return partial(c.by_a_copy, function, axes if split else None, options["axis"], keep, dtype, spread)

    def host(self, p: Problem) -> Callable[..., None]:
        first = cast_first(self.row, p["x"].dtype, p.options.get("dtype"))
        if first is None:
            return self._host_of(p, p["x"].dtype)
        reduced, to = self._host_of(p, first), to_numpy_dtype(first)

        def run(x: Any, *rest: Any) -> None:
            reduced(x.astype(to), *rest)

        return run

    def _host_of(self, p: Problem, kind: DataType) -> Callable[..., None]:
        row, out = self.row, p.out.dtype
        axes, keep, wide = self.axes(p), bool(p.options["keepdims"]), self.wide(p)
        initial = p.options.get("initial")
        whole: Any = None if p.options["axis"] is None else axes
        if row.name in ("argmax", "argmin"):
            whole = axes[0] if axes and whole is not None else None
        typed, spread = row.takes("dtype"), row.takes("ddof")
        own = kind.kind == "c" if spread else not typed
        if row.numpy is not None and kind.name not in _NOT_NUMPYS and out is (row.result(kind) if own else wide):
            # NumPy's own loop writes the result: nothing is converted.
            to = None if own else to_numpy_dtype(wide)
            if isinstance(row.numpy, np.ufunc):
                return _ufunc(row, axes, to, keep, initial)
            if row.takes("where") or typed or row.empty is None:
                options = {"ddof": self.ddof(p)} if spread else {}
                return partial(_by_numpy, row, whole, {} if own else {"dtype": to}, {"keepdims": keep, **options})
        return partial(_round_once, row, whole, wide, keep, initial, self.ddof(p), row.takes("where"))

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        names = [q.name for q in self.row.parameters]
        return call(self.row.name, **dict(zip(names, args, strict=False)), **kwargs)


def host_of(row: Row, p: Problem) -> Callable[..., None]:
    """Return the NumPy form of a row for a problem: a function of the array, ``where`` or None, and the result."""
    return _Reduction(row).host(p)


def _ufunc(row: Row, axes: tuple[int, ...], kind: Any, keep: bool, initial: Any) -> Callable[..., None]:
    reduce = row.numpy.reduce

    def run(x: Any, where: Any, out: Any) -> None:
        if where is not None:
            given = {} if initial is None else {"initial": initial}
            reduce(x, axes, kind, out, keep, where=where, **given)
        elif initial is None:
            reduce(x, axes, kind, out, keep)
        else:
            reduce(x, axes, kind, out, keep, initial)

    return run


def _by_numpy(row: Row, axis: Any, typed: dict[str, Any], options: dict[str, Any], x: Any, *rest: Any) -> None:
    if len(rest) == 1 or rest[0] is None:
        row.numpy(x, axis, out=rest[-1], **typed, **options)
    else:
        row.numpy(x, axis, out=rest[1], where=rest[0], **typed, **options)


def _round_once(row: Row, axis: Any, wide: DataType, keep: bool, initial: Any, ddof: float, masked: bool, x: Any,
                *rest: Any) -> None:  # fmt: skip
    where, out = rest if masked else (None, rest[0])
    got = compute(row, x, axis, wide, keep, initial, where, ddof)
    np.copyto(out, np.asarray(got).reshape(out.shape), casting="unsafe")


def _cases(row: Row) -> tuple[Case, ...]:
    small = "bfloat16" if row.kinds == "biufc" else "float16"
    found = [
        Case({"x": ("float32", (5, 131, 7))}, {"axis": 1}),
        Case({"x": ("float32", (3, 2, 29))}, {"axis": -1, "keepdims": True}),
    ]
    if row.name in ("sum", "argmax", "var"):
        found += [Case({"x": (small, (2, 9001))}, {"axis": -1}), Case({"x": ("float32", (40, 33))}, {"axis": 0})]
    if row.name == "sum":
        found.append(Case({"x": ("int8", (4, 5, 6))}, {"axis": (0, 2)}))
    return tuple(found)


def _made(row: Row) -> Callable[..., Any]:
    r = _Reduction(row)
    return register(
        Operator(
            name=row.name,
            parameters=row.parameters,
            infer=r.infer,
            reference=r.reference,
            variants=(
                Variant("chunks of 16 KiB", "batch_invariant", r.accepts, launch=r.launch, units=partial(units, row)),
                Variant("NumPy", "run_to_run", lambda p: None, host=r.host),
                Variant("other operators, then chunks", "batch_invariant", lambda p: None, compose=r.compose),
            ),
            doc=row.doc,
            tolerance=row.tolerance,
            cases=_cases(row) if row.public else (),
            timed=tuple(Case({"x": ("float32", (16384, 16384))}, {"axis": axis}) for axis in (None, 0, 1)),
            flops=lambda p: row.flops * hint(p["x"].size),
            public=row.public,
        ),
        method=row.public and row.name != "count_nonzero",
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _made(row) for name, row in TABLE.items()}
sum = FUNCTIONS["sum"]


@export
def sum_axis(x: Any, axis: int, keepdims: bool = False, *, out: Any = None, stream: Any = None) -> Any:
    """Sum over one axis; `sum` with the axis required.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.sum_axis(gp.ones((2, 3)), 1).tolist()
    [3.0, 3.0]
    """
    return sum(x, axis, keepdims=keepdims, out=out, stream=stream)


for _function in (*derived.FUNCTIONS, *scan.FUNCTIONS):
    export(_function)
for _name in ("max", "min"):
    export(FUNCTIONS[_name], f"a{_name}")
