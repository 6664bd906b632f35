"""Sizes that remember what was asked of them.

A planner computes with the sizes and strides of one call. What it computes becomes a program, and every question it
asks (``if n > 4096``) becomes a guard, so the plan it makes serves every later call for which the guards hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Node: TypeAlias = tuple[str, int, int]
Guard: TypeAlias = tuple[str, int, int]


class Trace:
    """The program and the guards of one plan.

    Attributes
    ----------
    nodes
        Operations in order; each names earlier nodes.
    guards
        Relations between nodes that held for the call the plan was made for.
    variables
        Number of variables made so far.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.guards: dict[Guard, None] = {}
        self.variables = 0
        self._known: dict[Node, int] = {}

    def variable(self, value: int) -> Size:
        """Return the next variable of the call, which has this value now."""
        index = self.variables
        self.variables += 1
        return Size(self, self._node(("var", index, 0)), value)

    def node(self, value: SizeLike) -> int:
        """Return the number of the node of a size or a constant."""
        if isinstance(value, Size):
            return value.node
        return self._node(("const", int(value), 0))

    def size(self, value: SizeLike) -> Size:
        """Return a constant as a size of this trace; a size as it is."""
        return value if isinstance(value, Size) else Size(self, self.node(value), int(value))

    def apply(self, op: str, a: SizeLike, b: SizeLike, value: int) -> Size:
        """Return the result of an operation."""
        return Size(self, self._node((op, self.node(a), self.node(b))), value)

    def ask(self, relation: str, a: SizeLike, b: SizeLike, holds: bool) -> bool:
        """Note that a relation holds or does not, and return which."""
        left, right = self.node(a), self.node(b)
        if left == right or (self.nodes[left][0] == self.nodes[right][0] == "const"):
            return holds
        if not holds:
            relation, left, right = {
                "==": ("!=", left, right),
                "<": ("<=", right, left),
                "<=": ("<", right, left),
            }[relation]
        self.guards[relation, left, right] = None
        return holds

    def _node(self, node: Node) -> int:
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return found


class Size:
    """An integer of one call that is a variable of its plan.

    Arithmetic with integers and other sizes gives sizes. Comparing two makes a guard; so does turning one into a plain
    integer or a text, which ties the plan to that very value.

    Examples
    --------
    >>> trace = Trace()
    >>> n = trace.variable(10)
    >>> blocks = -(-n // 4)
    >>> blocks > 2, [relation for relation, _, _ in trace.guards]
    (True, ['<'])
    """

    __slots__ = ("node", "trace", "value")

    def __init__(self, trace: Trace, node: int, value: int) -> None:
        self.trace = trace
        self.node = node
        self.value = value

    def _binary(self, op: str, other: Any, function: Callable[[int, int], int], swapped: bool = False) -> Any:
        if not isinstance(other, Size | int):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        result = function(hint(a), hint(b))
        if not isinstance(other, Size):
            neutral = {"+": 0, "-": 0, "*": 1, "//": 1}.get(op)
            if other == neutral and not (swapped and op in "-//"):
                return self
        return self.trace.apply(op, a, b, result)

    def __add__(self, other: Any) -> Size:
        return self._binary("+", other, int.__add__)  # type: ignore[no-any-return]

    def __radd__(self, other: Any) -> Size:
        return self._binary("+", other, int.__add__, True)  # type: ignore[no-any-return]

    def __sub__(self, other: Any) -> Size:
        return self._binary("-", other, int.__sub__)  # type: ignore[no-any-return]

    def __rsub__(self, other: Any) -> Size:
        return self._binary("-", other, int.__sub__, True)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Size:
        return self._binary("*", other, int.__mul__)  # type: ignore[no-any-return]

    def __rmul__(self, other: Any) -> Size:
        return self._binary("*", other, int.__mul__, True)  # type: ignore[no-any-return]

    def __floordiv__(self, other: Any) -> Size:
        return self._binary("//", other, _quotient)  # type: ignore[no-any-return]

    def __rfloordiv__(self, other: Any) -> Size:
        return self._binary("//", other, _quotient, True)  # type: ignore[no-any-return]

    def __mod__(self, other: Any) -> Size:
        return self._binary("%", other, _remainder)  # type: ignore[no-any-return]

    def __rmod__(self, other: Any) -> Size:
        return self._binary("%", other, _remainder, True)  # type: ignore[no-any-return]

    def __neg__(self) -> Size:
        return 0 - self

    def _compare(self, relation: str, other: Any, holds: bool, swapped: bool = False) -> bool:
        a, b = (other, self) if swapped else (self, other)
        return self.trace.ask(relation, a, b, holds)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Size | int):
            return NotImplemented
        return self._compare("==", other, self.value == hint(other))

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: SizeLike) -> bool:
        return self._compare("<", other, self.value < hint(other))

    def __le__(self, other: SizeLike) -> bool:
        return self._compare("<=", other, self.value <= hint(other))

    def __gt__(self, other: SizeLike) -> bool:
        return self._compare("<", other, hint(other) < self.value, swapped=True)

    def __ge__(self, other: SizeLike) -> bool:
        return self._compare("<=", other, hint(other) <= self.value, swapped=True)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __int__(self) -> int:
        self._compare("==", self.value, True)
        return self.value

    __index__ = __int__

    def __hash__(self) -> int:
        return hash(int(self))

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __repr__(self) -> str:
        return f"Size({self.value})"


SizeLike: TypeAlias = Size | int


def hint(value: SizeLike) -> int:
    """Return the value in this call, without a guard: for estimates and messages, not for decisions."""
    return value.value if isinstance(value, Size) else value


def ceil_div(a: SizeLike, b: SizeLike) -> Any:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def minimum(a: SizeLike, b: SizeLike) -> Any:
    """Return the smaller of two without a guard on which that is."""
    return _choose("min", a, b, min(hint(a), hint(b)))


def maximum(a: SizeLike, b: SizeLike) -> Any:
    """Return the larger of two without a guard on which that is."""
    return _choose("max", a, b, max(hint(a), hint(b)))


def product(sizes: Any) -> Any:
    """Return the product of sizes; 1 of none."""
    result: Any = 1
    for size in sizes:
        result = size * result
    return result


def _choose(op: str, a: SizeLike, b: SizeLike, value: int) -> SizeLike:
    for one in (a, b):
        if isinstance(one, Size):
            return one.trace.apply(op, a, b, value)
    return value


def _quotient(a: int, b: int) -> int:
    return a // b if b else 0


def _remainder(a: int, b: int) -> int:
    return a % b if b else 0
