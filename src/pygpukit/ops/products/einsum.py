"""Einstein sums: a contraction at a time, each as views, sums and one product of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DataType, to_numpy_dtype
from pygpukit.dtypes import dtype as as_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.operands import as_arrays
from pygpukit.ops.products.dot import NO_STREAM, dot_rows
from pygpukit.ops.products.subscripts import Expression, interleaved, parse
from pygpukit.ops.promotion import can_cast, promote
from pygpukit.ops.reduce import rows as r

__all__ = ["FUNCTIONS", "einsum", "einsum_path"]

Labels = tuple[str, ...]
_CASTING = ("no", "equiv", "safe", "same_kind", "unsafe")


def einsum(
    *operands: Any,
    out: Any = None,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
    optimize: Any = False,
    stream: Any = None,
) -> Any:
    """Sum of products over axes that share a label.

    Operands are combined in pairs, each pair as a product of matrices of views; the order is the one `einsum_path`
    finds. One operand without a sum, such as ``"ij->ji"`` or ``"ii->i"``, gives a view.

    Parameters
    ----------
    operands
        Subscripts and arrays, ``einsum("ij,jk->ik", a, b)``; or arrays with lists of integers,
        ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.
    out : GPUArray, optional
        Where the result is written.
    dtype : DataType, str or numpy.dtype, optional
        What is computed in; the common type by default.
    order : str, optional
        Layout of the result: ``"C"``, which ``"A"`` means too, or ``"F"``; ``"K"`` is the one that needs no copy.
    casting : str, optional
        Which casts to ``dtype`` and ``out`` are allowed, as in NumPy.
    optimize : bool, str or sequence, optional
        How the order is found: ``"greedy"``, which False and True mean too, ``"optimal"``, or a path of `einsum_path`.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> a = gp.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> gp.einsum("ij,jk->ik", a, a).tolist()
    [[7.0, 10.0], [15.0, 22.0]]
    >>> gp.einsum("ii", a).item()
    5.0
    """
    text, arrays = _operands("einsum", operands)
    arrays = [*as_arrays("einsum()", *arrays)]
    known = None
    if out is dtype is stream is None and optimize is False and order == "K" and casting == "safe":
        key = [text]
        for x in arrays:
            key += (x.shape, x.strides, x.dtype)
        known = _known(*key)
        if known.calls is not None:
            return known.result(arrays)
    if order not in ("K", "C", "F", "A"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    if casting not in _CASTING:
        raise ValueError(f"casting must be one of {', '.join(_CASTING)} (got {casting!r})")
    expression = parse(text, tuple(tuple(x.shape) for x in arrays))
    kinds = {x.dtype for x in arrays}
    common = arrays[0].dtype if len(kinds) == 1 else promote([x.dtype for x in arrays])
    kind = common if dtype is None else as_dtype(dtype)
    if kind is not common:
        _check_cast(common, kind, casting)
    if out is not None:
        if not isinstance(out, GPUArray):
            raise TypeError(f"einsum(): out must be a GPUArray, not {type(out).__name__}")
        _check_cast(kind, out.dtype, casting)
        shape = [expression.sizes[label] for label in expression.output]
        if list(out.shape) != shape:
            raise ShapeError(f"einsum gives shape {tuple(shape)}, but out has {out.shape}")
    path = _path(expression, optimize) if len(arrays) > 2 else (tuple(range(len(arrays))),)
    with stream or NO_STREAM:
        steps = _Steps(arrays)
        result = steps.run(expression, kind, path, out)
        if known is not None:
            known.calls = tuple(steps.calls)
        if out is None and order != "K":
            return result.T.contiguous().T if order == "F" else result.contiguous()
        return result


def einsum_path(*operands: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """Return the order in which operands are combined, and a report, as `numpy.einsum_path` does from the shapes.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.einsum_path("ij,jk->ik", gp.ones((2, 3)), gp.ones((3, 4)))[0]
    ['einsum_path', (0, 1)]
    """
    text, arrays = _operands("einsum_path", operands)
    arrays = list(as_arrays("einsum_path()", *arrays))
    return np.einsum_path(text, *(_shape_only(tuple(x.shape)) for x in arrays), optimize=optimize)


def _operands(what: str, operands: Sequence[Any]) -> tuple[str, list[Any]]:
    if len(operands) < 2:
        raise ValueError(f"{what}() needs subscripts and at least one array, or an array and its list of subscripts")
    if isinstance(operands[0], str):
        return operands[0], list(operands[1:])
    return interleaved(operands)


def _check_cast(source: DataType, target: DataType, casting: str) -> None:
    if casting == "same_kind":
        allowed = can_cast(source, target)
    else:
        allowed = np.can_cast(to_numpy_dtype(source), to_numpy_dtype(target), casting)  # type: ignore[arg-type]
    if not allowed:
        raise DTypeError(f"einsum: {source.name} is not cast to {target.name} with casting={casting!r}")


def _shape_only(shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.empty(()), shape)


def _path(expression: Expression, optimize: Any) -> Sequence[Sequence[int]]:
    count = len(expression.inputs)
    if isinstance(optimize, bool) or optimize is None:
        optimize = "greedy"
    if isinstance(optimize, str):
        shapes = tuple(tuple(expression.sizes[label] for label in term) for term in expression.inputs)
        return _found_path(expression.text(), shapes, optimize)
    given = list(optimize)
    if given and given[0] == "einsum_path":
        given = given[1:]
    elif len(given) == 2 and isinstance(given[0], str):
        # A strategy and the largest intermediate.
        return _path(expression, given[0])
    left = count
    for step in given:
        chosen = sorted(step)
        if not chosen or len(set(chosen)) != len(chosen) or chosen[0] < 0 or chosen[-1] >= left:
            raise ValueError(f"einsum path {given!r}: step {tuple(step)} does not fit {left} operands")
        left -= len(chosen) - 1
    if left != 1:
        raise ValueError(f"einsum path {given!r} leaves {left} operands of {count}")
    return given


@lru_cache(256)
def _found_path(text: str, shapes: tuple[tuple[int, ...], ...], optimize: str) -> Sequence[Sequence[int]]:
    found = np.einsum_path(text, *map(_shape_only, shapes), optimize=optimize)[0][1:]
    # Steps of more than two operands are what NumPy does in one loop: here they are pairs.
    return tuple(found)


_Call: TypeAlias = tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...]]


class _Known:
    """The calls that an expression comes to for operands of these shapes, strides and types, once it was computed.

    A call is a function, the arrays it gets by their number (operands first, then the results of calls), and what else.
    """

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: tuple[_Call, ...] | None = None

    def result(self, arrays: list[GPUArray]) -> GPUArray:
        """Compute it again with other operands."""
        for function, numbers, given in self.calls or ():
            arrays.append(function(*[arrays[i] for i in numbers], *given))
        return arrays[-1]


@lru_cache(512)
def _known(text: str, *operands: Any) -> _Known:
    return _Known()


class _Term(NamedTuple):
    """An operand, its number among the arrays of the computation, and a label per axis."""

    array: GPUArray
    number: int
    labels: Labels


class _Steps:
    """The computation of an expression, which notes its calls.

    Attributes
    ----------
    calls
        What was called.
    """

    def __init__(self, arrays: Sequence[GPUArray]) -> None:
        self.calls: list[_Call] = []
        self._arrays = arrays
        self._count = len(arrays)

    def _call(self, function: Callable[..., Any], terms: Sequence[_Term], labels: Labels, *given: Any,
              out: Any = None) -> _Term:  # fmt: skip
        """Call a function with the arrays of terms; with ``out`` the call serves this computation only."""
        arrays = [term.array for term in terms]
        made = function(*arrays, *given) if out is None else function(*arrays, *given, out=out)
        self.calls.append((function, tuple(term.number for term in terms), given))
        self._count += 1
        return _Term(made, self._count - 1, labels)

    def run(self, expression: Expression, kind: DataType, path: Sequence[Sequence[int]], out: Any) -> GPUArray:
        """Return the result, in ``out`` where that is given."""
        output = expression.output
        terms = [
            self._prepared(_Term(x, i, labels), kind, expression.sizes)
            for i, (x, labels) in enumerate(zip(self._arrays, expression.inputs, strict=True))
        ]
        for step in path:
            chosen = [terms.pop(i) for i in sorted(step, reverse=True)][::-1]
            kept = frozenset(output).union(*(term.labels for term in terms))
            made = chosen[0]
            for i, other in enumerate(chosen[1:], 2):
                later = kept.union(*(term.labels for term in chosen[i:])) if i < len(chosen) else kept
                last = not terms and i == len(chosen)
                made = self._pair(made, other, later, output if last else None, out if last else None)
            terms.append(self._summed(made, kept) if len(chosen) == 1 else made)
        (term,) = terms
        result = self._arranged(term, output).array
        if out is not None and result is not out:
            _native.apply("copy", (result,), out)
            result = out
        return result

    def _prepared(self, term: _Term, kind: DataType, sizes: dict[str, int]) -> _Term:
        """Cast, take diagonals of labels that an operand has several times, and drop axes of one element that others
        spread."""
        if term.array.dtype is not kind:
            term = self._call(GPUArray.astype, (term,), term.labels, kind)
        if len(set(term.labels)) == len(term.labels) and 1 not in term.array.shape:
            return term
        labels = list(term.labels)
        for label in dict.fromkeys(labels):
            while labels.count(label) > 1:
                first = labels.index(label)
                second = labels.index(label, first + 1)
                labels = [c for i, c in enumerate(labels) if i not in (first, second)] + [label]
                term = self._call(GPUArray._diagonal, (term,), tuple(labels), first, second, 0)
        for i in range(len(labels) - 1, -1, -1):
            if term.array.shape[i] == 1 != sizes[labels[i]]:
                del labels[i]
                term = self._call(GPUArray._select, (term,), tuple(labels), i, 0)
        return term

    def _summed(self, term: _Term, kept: frozenset[str]) -> _Term:
        """Sum over the labels that nothing needs any more."""
        if kept.issuperset(term.labels):
            return term
        axes = tuple(i for i, label in enumerate(term.labels) if label not in kept)
        left = tuple(label for label in term.labels if label in kept)
        kind = term.array.dtype
        return self._call(r.FUNCTIONS["any"], (term,), left, axes) if kind.kind == "b" else self._call(
            _sum, (term,), left, axes, kind)  # fmt: skip

    def _arranged(self, term: _Term, labels: Labels) -> _Term:
        """The axes in this order; a view."""
        if term.labels == labels:
            return term
        return self._call(GPUArray._permute, (term,), labels, [term.labels.index(label) for label in labels])

    def _reshaped(self, term: _Term, shape: tuple[int, ...]) -> _Term:
        return self._call(GPUArray.reshape, (term,), term.labels, shape)

    def _pair(self, a: _Term, b: _Term, kept: frozenset[str], output: Labels | None, out: Any) -> _Term:
        """Multiply two operands and sum over the labels that are not kept."""
        a, b = self._summed(a, kept.union(b.labels)), self._summed(b, kept.union(a.labels))
        batch, rows, columns, inner, exchanged = _groups(a.labels, b.labels, kept, output)
        if not inner:
            return self._multiplied(a, b, output, out)
        if exchanged:
            a, b = b, a
        if len(inner) > 1:
            inner = _easiest(a, b, inner)
        found = (*batch, *rows, *columns)
        direct = out is not None and found == output and out.is_contiguous
        x, y = self._arranged(a, (*batch, *rows, *inner)), self._arranged(b, (*batch, *columns, *inner))
        stack = x.array.shape[: len(batch)]
        m = x.array.shape[len(stack) : len(stack) + len(rows)]
        n = y.array.shape[len(stack) : len(stack) + len(columns)]
        k = prod(x.array.shape[len(stack) + len(rows) :])
        if not direct and len(inner) == 1 and sorted((len(rows), len(columns))) == [0, 1]:
            # Vectors of one side meet all rows of the other by broadcasting.
            short, number = (x, 0) if columns else (y, 1)
            if stack:
                short = self._call(GPUArray._expand, (short,), short.labels, len(stack))
            return self._call(dot_rows, (short, y) if number == 0 else (x, short), found)
        if len(rows) != 1 or len(inner) != 1:
            x = self._reshaped(x, (*stack, prod(m), k))
        if len(columns) != 1 or len(inner) != 1:
            y = self._reshaped(y, (*stack, prod(n), k))
        if columns and rows:
            into = out.reshape((*stack, prod(m), prod(n))) if direct else None
            d = len(stack)
            y = self._call(GPUArray._permute, (y,), y.labels, [*range(d), d + 1, d])
            made = self._call(matmul, (x, y), found, out=into)
        else:
            # One side is vectors; its axis of one element is that of the result where the other side has no more.
            into = out.reshape((*stack, prod(m) * prod(n))) if direct else None
            made = self._call(dot_rows, (x, y), found, out=into)
        if direct:
            return _Term(out, made.number, found)
        return made if len(rows) == len(columns) == 1 else self._reshaped(made, (*stack, *m, *n))

    def _multiplied(self, a: _Term, b: _Term, output: Labels | None, out: Any) -> _Term:
        """The product of two operands without a sum, by broadcasting views."""
        own = {*a.labels, *b.labels}
        labels: Labels = (*a.labels, *(c for c in b.labels if c not in a.labels))
        if output is not None and own == set(output):
            labels = output
        views = []
        for term in (a, b):
            x = self._arranged(term, tuple(c for c in labels if c in term.labels))
            for i, label in enumerate(labels):
                if label not in term.labels:
                    x = self._call(GPUArray._expand, (x,), x.labels, i)
            views.append(x)
        return self._call(e.mul, views, labels, out=out if labels == output else None)


def _sum(x: GPUArray, axes: tuple[int, ...], kind: DataType) -> Any:
    return r.sum(x, axes, dtype=kind)


class _Groups(NamedTuple):
    """How two operands are multiplied: labels of a stack, of rows (of a), of columns (of b), and of the sum."""

    batch: Labels
    rows: Labels
    columns: Labels
    inner: Labels
    exchanged: bool


@lru_cache(512)
def _groups(a: Labels, b: Labels, kept: frozenset[str], output: Labels | None) -> _Groups:
    shared = [label for label in a if label in b]
    batch = [label for label in shared if label in kept]
    rows = [label for label in a if label not in shared]
    columns = [label for label in b if label not in shared]
    exchanged = False
    if output is not None:
        if rows and columns and output.index(rows[-1]) > output.index(columns[-1]):
            # The result then has its axes in order more often.
            rows, columns, exchanged = columns, rows, True
        batch, rows, columns = (sorted(labels, key=output.index) for labels in (batch, rows, columns))
    inner = (label for label in shared if label not in kept)
    return _Groups(tuple(batch), tuple(rows), tuple(columns), tuple(inner), exchanged)


def _easiest(a: _Term, b: _Term, inner: Labels) -> Labels:
    """Order the summed labels as the larger operand has them in memory: it is then read where it is."""
    larger = a if a.array.size >= b.array.size else b
    return tuple(sorted(inner, key=lambda label: -abs(larger.array.strides[larger.labels.index(label)])))


FUNCTIONS = (einsum, einsum_path)
"""The public functions of this module."""
