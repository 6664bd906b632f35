"""sort, argsort, topk, partition, argpartition and lexsort."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty, zeros
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.launch import Launch, Unit
from pygpukit.ops.operands import as_array, as_arrays, axis_of
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, as_method, export, register
from pygpukit.ops.size import hint, product
from pygpukit.ops.sort import plans, reference
from pygpukit.ops.sort.gather import assign, axis_last, take_last
from pygpukit.ops.sort.keys import word

_KINDS = frozenset({"quicksort", "mergesort", "heapsort", "stable"})


def _checked(p: Problem) -> tuple[Any, ...]:
    """Return the shape of the result of sort and argsort, once the options are checked."""
    x, axis, kind, stable = p["x"], p.options["axis"], p.options["kind"], p.options["stable"]
    if kind is not None and kind not in _KINDS:
        raise ValueError(
            f"{p.name}(): kind must be one of 'quicksort', 'heapsort', 'mergesort' or 'stable', not {kind!r}"
        )
    if kind is not None and stable is not None:
        raise ValueError(f"{p.name}(): kind and stable cannot both be given; every kind is stable here")
    if axis is None:
        return (x.size,)
    axis_of(axis, x.ndim)
    return x.shape


def _infer_sort(p: Problem) -> list[Result]:
    shape, kind = _checked(p), p["x"].dtype
    if p.requested and p.requested[0] is not kind:
        raise DTypeError(f"sort() of {kind.name} cannot be written to {p.requested[0].name}; use an out of {kind.name}")
    return [Result(shape, kind)]


def _infer_argsort(p: Problem) -> list[Result]:
    shape = _checked(p) if p["x"].ndim else (1,)
    if p.requested and p.requested[0].name != "int64":
        raise DTypeError(f"{p.name}() gives int64, which is not written to {p.requested[0].name}; use an out of int64")
    return [Result(shape, dtype("int64"))]


def rows_of(p: Problem) -> tuple[Any, Any]:
    """Return the number of rows and the length of one, of a contiguous array sorted along its last axis."""
    x = p["x"]
    if p.options["axis"] is None or x.ndim == 0:
        return 1, x.size
    return product(x.shape[:-1]), x.shape[-1]


def layout_refusal(p: Problem) -> str | None:
    x = p["x"]
    if x.dtype.kind == "c":
        return "complex numbers have no keys"
    if p.options["axis"] is not None and x.ndim and axis_of(p.options["axis"], x.ndim) != x.ndim - 1:
        return "the axis is not the last one"
    if not all(t.is_contiguous() for t in (x, *p.outputs)):
        return "an array is not contiguous"
    return None


def _short(p: Problem) -> str | None:
    found = layout_refusal(p)
    return (
        found
        if found is not None
        else None
        if rows_of(p)[1] <= plans.SHORT
        else f"a row has over {plans.SHORT} elements"
    )


def _long(positions: bool) -> Callable[[Problem], str | None]:
    def accepts(p: Problem) -> str | None:
        found = layout_refusal(p)
        if found is None and positions and rows_of(p)[1] > 2**32 - 1:
            raise ShapeError(f"{p.name}() of rows of {hint(rows_of(p)[1])} elements: at most 2**32 - 1; split them")
        return found

    return accepts


def _launcher(plan: Callable[..., Launch], positions: bool) -> Callable[[Problem], Launch]:
    def launch(p: Problem) -> Launch:
        rows, n = rows_of(p)
        return plan(p.out, p["x"], rows, n, positions=positions, descending=bool(p.options["descending"]))

    return launch


def units_of(types: Sequence[str]) -> Iterator[Unit]:
    keys = dict.fromkeys(word(kind) for kind in map(dtype, types) if kind.kind != "c")
    for key in keys:
        yield plans.network_unit(key)
        yield plans.radix_unit(key)
    yield plans.gather_unit()


def _host_sort(p: Problem) -> Callable[..., None]:
    axis, descending = p.options["axis"], bool(p.options["descending"])
    write = None if descending else reference.sorter(to_numpy_dtype(p.out.dtype))

    def run(x: Any, out: Any) -> None:
        out[...] = reference.sort(x, axis, descending)

    if write is None:
        return run
    if axis is None:
        return lambda x, out: write(x.reshape(-1), 0, out)
    axis = operator.index(axis)
    return lambda x, out: write(x, axis, out)


def _host_argsort(p: Problem) -> Callable[..., None]:
    axis, descending = p.options["axis"], bool(p.options["descending"])

    def run(x: Any, out: Any) -> None:
        out[...] = reference.argsort(x, axis, descending)

    return run


def _compose_sort(p: Problem) -> Callable[..., None]:
    axis, descending = p.options["axis"], bool(p.options["descending"])

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, out = given[0], results[0]
        if axis is None:
            x, at = x.contiguous().reshape(-1), 0
        else:
            at = axis_of(axis, x.ndim)
        rows = axis_last(x, at).contiguous()
        if x.dtype.kind == "c":
            made = take_last(rows, argsort(rows, descending=descending))
        else:
            made = sort(rows, descending=descending)
        assign(axis_last(out, at), made)

    return run


def _compose_argsort(p: Problem) -> Callable[..., None]:
    axis, descending = p.options["axis"], bool(p.options["descending"])

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, out = given[0], results[0]
        if axis is None or x.ndim == 0:
            x, at = x.contiguous().reshape(-1), 0
        else:
            at = axis_of(axis, x.ndim)
        rows = axis_last(x, at).contiguous()
        made = _complex_order(rows, descending) if x.dtype.kind == "c" else argsort(rows, descending=descending)
        assign(axis_last(out, at), made)

    return run


def _complex_order(x: GPUArray, descending: bool) -> GPUArray:
    """Return the order of complex numbers along the last axis: which parts are NaN, the real, the imaginary part."""
    re, im = e.real(x), e.imag(x)
    # Numbers come first, then NaN in the imaginary part, in the real part, and in both.
    rank = e.add(e.mul(e.isnan(re).astype("uint8"), 2), e.isnan(im).astype("uint8"))
    return _by_keys([im, re, rank], descending)


def _by_keys(keys: Sequence[GPUArray], descending: bool = False) -> GPUArray:
    """Return the order by several keys along the last axis, the last key first."""
    order: GPUArray = argsort(keys[0].contiguous(), descending=descending)
    for key in keys[1:]:
        turn = argsort(take_last(key.contiguous(), order), descending=descending)
        order = take_last(order, turn)
    return order


_ORDER = (
    Parameter("x"),
    Parameter("axis", "choice", -1, doc="The axis to sort along; None sorts the elements as one row."),
    Parameter("kind", "choice", None, doc="Accepted for NumPy's sake: every kind is stable."),
    Parameter(
        "descending", "choice", False, keyword_only=True, doc="Largest first; equal elements stay in their order."
    ),
    Parameter("stable", "choice", None, keyword_only=True, doc="Accepted for NumPy's sake."),
)


def _variants(positions: bool, host: Callable[..., Any], compose: Any) -> tuple[Variant, ...]:
    return (
        Variant(
            "a network in registers",
            "batch_invariant",
            _short,
            launch=_launcher(plans.network, positions),
            units=units_of,
        ),
        Variant(
            "radix passes",
            "batch_invariant",
            _long(positions),
            launch=_launcher(plans.radix, positions),
            units=units_of,
        ),
        Variant("NumPy", "batch_invariant", lambda p: None, host=host),
        Variant("rows in a copy", "batch_invariant", lambda p: None, compose=compose),
    )


sort = register(
    Operator(
        name="sort",
        parameters=_ORDER,
        infer=_infer_sort,
        reference=lambda x, axis=-1, kind=None, descending=False, stable=None: reference.sort(x, axis, descending),
        variants=_variants(False, _host_sort, _compose_sort),
        doc="""The elements in ascending order along an axis.

NaN comes last, in descending order first. Of zeros, a GPU places -0.0 before 0.0. Complex numbers are ordered by their
real, then their imaginary parts.

Examples
--------
>>> import pygpukit as gp
>>> gp.sort(gp.asarray([3, 1, 2]), descending=True).tolist()
[3, 2, 1]
""",
        cases=(
            Case({"x": ("float32", (3, 300))}),
            Case({"x": ("int8", (9, 4, 3))}, {"axis": 0, "descending": True}),
        ),
        timed=(Case({"x": ("float32", (100_000_000,))}), Case({"x": ("float32", (65536, 1024))})),
        flops=lambda p: 0,
    )
)

argsort = register(
    Operator(
        name="argsort",
        parameters=_ORDER,
        infer=_infer_argsort,
        reference=lambda x, axis=-1, kind=None, descending=False, stable=None: reference.argsort(x, axis, descending),
        variants=_variants(True, _host_argsort, _compose_argsort),
        doc="""The positions along an axis, int64, that bring the elements in order; equal elements stay in theirs.

Examples
--------
>>> import pygpukit as gp
>>> gp.argsort(gp.asarray([3, 1, 2])).tolist()
[1, 2, 0]
""",
        cases=(Case({"x": ("float32", (3, 300))}), Case({"x": ("float16", (40,))}, {"axis": None, "descending": True})),
        timed=(Case({"x": ("float32", (100_000_000,))}),),
    ),
    method=True,
)


def _sort_in_place(
    self: GPUArray, axis: int = -1, kind: str | None = None, *, descending: bool = False, stable: bool | None = None
) -> None:
    """Sort the array along an axis, in place, and return None; `pygpukit.sort` gives a sorted copy."""
    if axis is None:
        raise TypeError("sort() in place needs an axis; gp.sort(x, axis=None) gives a sorted vector")
    sort(self, axis, kind, descending=descending, stable=stable, out=self)


as_method(_sort_in_place, "sort")


def _check_kth(kth: Any, n: int) -> None:
    places = np.asarray(kth)
    if places.dtype.kind not in "iu":
        raise TypeError(f"partition index must be an integer, not {places.dtype}")
    wrong = places[(places < -n) | (places >= n)]
    if wrong.size:
        raise ValueError(f"kth(={int(wrong.flat[0])}) out of bounds ({n})")


def _length(x: GPUArray, axis: int | None) -> int:
    return x.size if axis is None else x.shape[axis_of(axis, x.ndim)]


@export
def partition(x: GPUArray, kth: Any, axis: int | None = -1) -> GPUArray:
    """The elements with those at ``kth`` where a sort places them, smaller ones before and larger ones behind.

    Here they are sorted altogether.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.partition(gp.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 3]
    """
    x = as_array(x, "partition()")
    _check_kth(kth, _length(x, axis))
    made: GPUArray = sort(x, axis)
    return made


@export
def argpartition(x: GPUArray, kth: Any, axis: int | None = -1) -> GPUArray:
    """The positions of the elements as `partition` orders them.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.argpartition(gp.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 0]
    """
    x = as_array(x, "argpartition()")
    _check_kth(kth, _length(x, axis))
    made: GPUArray = argsort(x, axis)
    return made


as_method(argpartition)


def _partition_in_place(self: GPUArray, kth: Any, axis: int = -1) -> None:
    """Partition the array along an axis, in place, and return None; see `pygpukit.partition`."""
    _check_kth(kth, _length(self, axis))
    _sort_in_place(self, axis)


as_method(_partition_in_place, "partition")


@export
def lexsort(keys: Any, axis: int = -1) -> GPUArray:
    """The positions that sort by several keys; the last key decides first.

    Parameters
    ----------
    keys : sequence of GPUArray, or GPUArray
        Arrays of one shape; the rows of an array.
    axis : int, optional
        The axis of a key to sort along.

    Returns
    -------
    GPUArray
        int64, of the shape of a key.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.lexsort((gp.asarray([0, 1, 0]), gp.asarray([2, 1, 1]))).tolist()
    [2, 1, 0]
    """
    rows = list(keys)
    if not rows:
        raise TypeError("lexsort() needs at least one key")
    rows = list(as_arrays("lexsort()", *rows))
    if any(key.shape != rows[0].shape for key in rows):
        raise ShapeError(f"lexsort() needs keys of one shape, not {[key.shape for key in rows]}")
    if rows[0].ndim == 0:
        return zeros((), "int64", device=rows[0].device)
    at = axis_of(axis, rows[0].ndim)
    order = _by_keys([axis_last(key, at) for key in rows])
    if at == rows[0].ndim - 1:
        return order
    out = empty(rows[0].shape, dtype("int64"), device=order.device)
    assign(axis_last(out, at), order)
    return out
