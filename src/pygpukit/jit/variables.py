"""Variables of a CUDA C++ source that are in device memory: names, element types and shapes, without a compiler."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pygpukit.jit.declarators import DeclarationError, declare, specifiers, split_arguments
from pygpukit.jit.signature import variable_texts

__all__ = ["Variable", "parse_variables", "shape_of"]

_STORAGE = frozenset(
    {"__device__", "__constant__", "__managed__", "__shared__", "static", "inline", "constexpr", "constinit"}
    | {"volatile", "alignas", "__align__"}
)
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
}
_LARGEST = 1 << 48


@dataclass(frozen=True)
class Variable:
    """One variable.

    Attributes
    ----------
    name : str
        Qualified name: ``"ns::counter"``.
    code : str or None
        Tag of the element type (``"f32"``); None for a type that arrays do not have, such as a struct.
    dims : tuple of int or None
        Length of each dimension; None where the source does not say it as a number.
    is_constant : bool
        Kernels do not write it: ``__constant__``, ``const`` or ``constexpr``.
    line : int
        Line of the source, counted from 1.
    """

    name: str
    code: str | None
    dims: tuple[int | None, ...]
    is_constant: bool
    line: int


def parse_variables(
    source: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> list[Variable]:
    """All variables in device memory that are defined outside of functions, in order.

    Examples
    --------
    >>> [(v.name, v.code, v.dims) for v in parse_variables("__constant__ float taps[2][8]; __device__ int n;")]
    [('taps', 'f32', (2, 8)), ('n', 'i32', ())]
    """
    found: dict[str, Variable] = {}
    texts, aliases = variable_texts(source, defines, headers)
    for text in texts:
        if "extern" in text.texts and '"C"' not in text.texts:
            continue
        line = source.count("\n", 0, text.offset) + 1
        is_constant = any(word in ("__constant__", "const", "constexpr") for word in text.texts)
        words = _without_storage(text.texts)
        base, rest = specifiers(words)
        for declarator in split_arguments(list(rest)):
            core, dims = _dimensions(declarator)
            try:
                param = declare([*base, *core], 0, {}, aliases)
            except DeclarationError:
                continue
            code = "u64" if "*" in param.code else None if param.code in ("struct", "tensormap") else param.code
            name = text.prefix + param.name
            found[name] = Variable(name, code, dims, is_constant, line)
    return list(found.values())


def shape_of(variable: Variable, count: int) -> tuple[int, ...]:
    """The shape of a variable that has `count` elements: as declared where that is known, else one dimension.

    Examples
    --------
    >>> shape_of(Variable("x", "f32", (None, 4), False, 1), 12)
    (3, 4)
    """
    known = prod(dim for dim in variable.dims if dim is not None)
    unknown = variable.dims.count(None)
    if unknown == 1 and known and count % known == 0:
        return tuple(count // known if dim is None else dim for dim in variable.dims)
    if unknown == 0 and known == count:
        return tuple(dim for dim in variable.dims if dim is not None)
    return (count,)


def _without_storage(texts: Sequence[str]) -> list[str]:
    kept: list[str] = []
    i = 0
    while i < len(texts):
        if texts[i] in ("alignas", "__align__", "__attribute__") and "".join(texts[i + 1 : i + 2]) == "(":
            depth, i = 1, i + 2
            while i < len(texts) and depth:
                depth += (texts[i] == "(") - (texts[i] == ")")
                i += 1
            continue
        if texts[i] == "extern":
            i += 1 + ("".join(texts[i + 1 : i + 2]) == '"C"')
            continue
        if texts[i] == "constexpr":
            kept.append("const")
        elif texts[i] not in _STORAGE:
            kept.append(texts[i])
        i += 1
    return kept


def _dimensions(declarator: Sequence[str]) -> tuple[list[str], tuple[int | None, ...]]:
    """A declarator without its dimensions and initial value, and the dimensions."""
    core: list[str] = []
    dims: list[int | None] = []
    i = 0
    while i < len(declarator) and declarator[i] not in ("=", "{"):
        if declarator[i] != "[":
            core.append(declarator[i])
            i += 1
            continue
        end = next((j for j in range(i, len(declarator)) if declarator[j] == "]"), len(declarator))
        dims.append(_number(declarator[i + 1 : end]))
        i = end + 1
    return core, tuple(dims)


def _number(texts: Sequence[str]) -> int | None:
    """The value of a short expression of integers; None for anything else."""
    text = "".join(word.rstrip("uUlL") if word[:1].isdigit() else word for word in texts)
    if len(text) > 100:
        return None
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.LShift) and right > 48:
            raise ValueError("too large")
        value = _ARITHMETIC[type(node.op)](left, right)
    else:
        raise ValueError("not a number")
    if not 0 <= value <= _LARGEST:
        raise ValueError("too large")
    return value
