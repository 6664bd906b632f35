"""Einstein sums: a contraction at a time, each as views, sums and one product of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

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
    arrays = list(as_arrays("einsum()", *arrays))
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
        result = _run(expression, [x.astype(kind, copy=False) for x in arrays], path, out)
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


class _Term:
    """An operand and a label per axis."""

    __slots__ = ("array", "labels")

    def __init__(self, array: GPUArray, labels: Labels) -> None:
        self.array, self.labels = array, labels


def _run(expression: Expression, arrays: Sequence[GPUArray], path: Sequence[Sequence[int]], out: Any) -> GPUArray:
    output = expression.output
    terms = [_prepared(x, labels, expression.sizes) for x, labels in zip(arrays, expression.inputs, strict=True)]
    for step in path:
        chosen = [terms.pop(i) for i in sorted(step, reverse=True)][::-1]
        kept = frozenset(output).union(*(term.labels for term in terms))
        made = chosen[0]
        for i, other in enumerate(chosen[1:], 2):
            later = kept.union(*(term.labels for term in chosen[i:])) if i < len(chosen) else kept
            last = not terms and i == len(chosen)
            made = _pair(made, other, later, output if last else None, out if last else None)
        terms.append(_summed(made, kept) if len(chosen) == 1 else made)
    return _finished(terms[0], expression, out)


def _prepared(array: GPUArray, named: Labels, sizes: dict[str, int]) -> _Term:
    """Take diagonals of labels that an operand has several times, and drop axes of one element that others spread."""
    shape = array.shape
    if len(set(named)) == len(named) and 1 not in shape:
        return _Term(array, named)
    labels = list(named)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            array = array._diagonal(first, second, 0)
            labels = [c for i, c in enumerate(labels) if i not in (first, second)] + [label]
    for i in range(len(labels) - 1, -1, -1):
        if array.shape[i] == 1 != sizes[labels[i]]:
            array = array._select(i, 0)
            del labels[i]
    return _Term(array, tuple(labels))


def _summed(term: _Term, kept: frozenset[str]) -> _Term:
    """Sum over the labels that nothing needs any more."""
    if kept.issuperset(term.labels):
        return term
    axes = tuple(i for i, label in enumerate(term.labels) if label not in kept)
    x = term.array
    total = r.FUNCTIONS["any"](x, axes) if x.dtype.kind == "b" else r.sum(x, axes, dtype=x.dtype)
    return _Term(total, tuple(label for label in term.labels if label in kept))


def _arranged(term: _Term, labels: Labels) -> GPUArray:
    """The axes in this order; a view."""
    if term.labels == labels:
        return term.array
    return term.array._permute([term.labels.index(label) for label in labels])


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


def _pair(a: _Term, b: _Term, kept: frozenset[str], output: Labels | None, out: Any) -> _Term:
    """Multiply two operands and sum over the labels that are not kept."""
    a, b = _summed(a, kept.union(b.labels)), _summed(b, kept.union(a.labels))
    batch, rows, columns, inner, exchanged = _groups(a.labels, b.labels, kept, output)
    if not inner:
        return _multiplied(a, b, output, out)
    if exchanged:
        a, b = b, a
    if len(inner) > 1:
        inner = _easiest(a, b, inner)
    found = (*batch, *rows, *columns)
    direct = out is not None and found == output and out.is_contiguous
    x, y = _arranged(a, (*batch, *rows, *inner)), _arranged(b, (*batch, *columns, *inner))
    stack = x.shape[: len(batch)]
    m, n = x.shape[len(stack) : len(stack) + len(rows)], y.shape[len(stack) : len(stack) + len(columns)]
    k = prod(x.shape[len(stack) + len(rows) :])
    if len(rows) != 1 or len(inner) != 1:
        x = x.reshape((*stack, prod(m), k))
    if len(columns) != 1 or len(inner) != 1:
        y = y.reshape((*stack, prod(n), k))
    if columns and rows:
        into = out.reshape((*stack, prod(m), prod(n))) if direct else None
        made = matmul(x, y._permute([*range(y.ndim - 2), y.ndim - 1, y.ndim - 2]), out=into)
    else:
        # One side is vectors; its axis of one element is that of the result where the other side has no more.
        into = out.reshape((*stack, prod(m) * prod(n))) if direct else None
        made = dot_rows(x, y, out=into)
    if direct:
        return _Term(out, found)
    return _Term(made if len(rows) == len(columns) == 1 else made.reshape((*stack, *m, *n)), found)


def _easiest(a: _Term, b: _Term, inner: Labels) -> Labels:
    """Order the summed labels as the larger operand has them in memory: it is then read where it is."""
    larger = a if a.array.size >= b.array.size else b
    return tuple(sorted(inner, key=lambda label: -abs(larger.array.strides[larger.labels.index(label)])))


def _multiplied(a: _Term, b: _Term, output: Labels | None, out: Any) -> _Term:
    """The product of two operands without a sum, by broadcasting views."""
    own = {*a.labels, *b.labels}
    labels: Labels = (*a.labels, *(c for c in b.labels if c not in a.labels))
    if output is not None and own == set(output):
        labels = output
    views = []
    for term in (a, b):
        x = _arranged(term, tuple(c for c in labels if c in term.labels))
        for i, label in enumerate(labels):
            if label not in term.labels:
                x = x._expand(i)
        views.append(x)
    to = out if labels == output else None
    return _Term(e.mul(*views, out=to), labels)


def _finished(term: _Term, expression: Expression, out: GPUArray | None) -> GPUArray:
    """The axes in the order of the result, in ``out`` where that is given."""
    if term.array is out and term.labels == expression.output:
        return term.array
    result = _arranged(term, expression.output)
    if out is not None:
        _native.apply("copy", (result,), out)
        return out
    return result


FUNCTIONS = (einsum, einsum_path)
"""The public functions of this module."""
