"""Sizes: the program and the guards that planning leaves behind."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pygpukit.ops.size import Size, Trace, ceil_div, hint, maximum, minimum

OPERATIONS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0, "min": min, "max": max,
}  # fmt: skip
RELATIONS: dict[str, Any] = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}


def evaluate(trace: Trace, variables: list[int]) -> tuple[list[int], bool]:
    """Run a program as the native side does."""
    values: list[int] = []
    for op, a, b in trace.nodes:
        if op == "const":
            values.append(a)
        elif op == "var":
            values.append(variables[a])
        else:
            values.append(OPERATIONS[op](values[a], values[b]))
    return values, all(RELATIONS[r](values[a], values[b]) for r, a, b in trace.guards)


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=3), st.lists(st.integers(-50, 50), min_size=3, max_size=3))
def test_the_program_computes_what_the_planner_did(first: list[int], then: list[int]) -> None:
    def compute(a: Any, b: Any, c: Any) -> Any:
        return maximum(minimum(a * 3 + b, c), ceil_div(a, 7)) - (5 - b) % 4 + (c - a) // 3 + 100 // maximum(c, 1)

    trace = Trace()
    result = compute(*[trace.variable(x) for x in first])
    values, holds = evaluate(trace, then)
    assert holds
    assert values[result.node] == compute(*then)
    assert hint(result) == compute(*first)


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5))
def test_guards_hold_exactly_where_the_planner_would_decide_alike(a: int, b: int, c: int, d: int) -> None:
    def decide(x: Any, y: Any) -> list[bool]:
        return [x < y, x <= 2, y < 3, y >= x, x == y, x != 1, bool(y)]

    trace = Trace()
    decided = decide(trace.variable(a), trace.variable(b))
    assert evaluate(trace, [a, b])[1]
    assert evaluate(trace, [c, d])[1] == (decide(c, d) == decided)


@pytest.mark.parametrize("use", [int, str, hash, "{}".format, range, lambda n: [0, 1, 2, 3][n]])
def test_a_size_that_becomes_a_plain_value_ties_the_plan_to_it(use: Any) -> None:
    trace = Trace()
    use(trace.variable(3))
    assert evaluate(trace, [3])[1]
    assert not evaluate(trace, [2])[1]


def test_equal_expressions_are_one_node_and_constants_need_no_guard() -> None:
    trace = Trace()
    n = trace.variable(8)
    assert (n * 4 + 1).node == (n * 4 + 1).node
    assert (n + 0) is n
    assert trace.size(5) > 4
    assert not trace.guards
    assert repr(n) == "Size(8)"
    assert not trace.guards
    assert isinstance(n // 2, Size)
