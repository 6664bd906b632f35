"""Programs: what tracing a function gives, independent of shapes and devices."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from pygpukit.dtypes import DataType
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.plan import Operation
from pygpukit.ops.promotion import Input, can_cast


class Operand(NamedTuple):
    """What a step reads: an ``"array"`` or a ``"number"`` of the program, or the result of an earlier ``"step"``."""

    role: str
    index: int  # type: ignore[assignment]


class Step(NamedTuple):
    """One operator on elements."""

    operation: Operation
    operands: tuple[Operand, ...]

    @property
    def name(self) -> str:
        """Of the operator."""
        return self.operation.plan.name

    @property
    def dtype(self) -> DataType:
        """Of the result."""
        return self.operation.plan.out


class Number(NamedTuple):
    """A number of a program: of the call, or one that stands in the function."""

    kind: Input
    """Its element type, or the kind of a Python number."""
    constant: tuple[Any, ...]
    """The value of one that stands in the function; empty for one of the call."""


class Reduction(NamedTuple):
    """The reduction a function ends with."""

    name: str
    axis: Any
    keepdims: bool
    dtype: DataType | None


class Program:
    """Steps from arrays and numbers to outputs.

    Attributes
    ----------
    number
        By which plans know it; programs that are the same share it.
    arrays
        Element types of the arrays it reads.
    numbers
        The numbers it reads.
    steps
        In an order in which each comes after those it reads.
    outputs
        What is written, or reduced.
    reduction
        None for elementwise results.
    same_shapes
        Pairs of operands that must have one shape, since one was assigned in place to the other.
    """

    def __init__(
        self,
        arrays: Sequence[DataType],
        numbers: Sequence[Number],
        steps: Sequence[Step],
        outputs: Sequence[Operand],
        reduction: Reduction | None,
        same_shapes: Sequence[tuple[Operand, Operand]],
    ) -> None:
        self.arrays, self.numbers, self.steps = tuple(arrays), tuple(numbers), tuple(steps)
        self.outputs, self.reduction, self.same_shapes = tuple(outputs), reduction, tuple(same_shapes)
        self.number = next(_numbers)
        self._leaves: list[frozenset[int]] = []
        for step in self.steps:
            self._leaves.append(frozenset().union(*map(self.leaves, step.operands)))

    def leaves(self, operand: Operand) -> frozenset[int]:
        """Return which arrays an operand depends on: their shapes broadcast give its own."""
        if operand.role == "array":
            return frozenset((operand.index,))
        return self._leaves[operand.index] if operand.role == "step" else frozenset()

    def dtype(self, operand: Operand) -> DataType:
        """Return the element type of an operand that is an array or the result of a step."""
        return self.arrays[operand.index] if operand.role == "array" else self.steps[operand.index].dtype

    def key(self) -> tuple[Any, ...]:
        """Return what is the same for the same programs."""
        steps = tuple((s.operation.name, s.name, s.operands) for s in self.steps)
        constants = tuple((n.kind, tuple((type(c), repr(c)) for c in n.constant)) for n in self.numbers)
        return self.arrays, constants, steps, self.outputs, self.reduction, self.same_shapes

    def written(self, requested: Sequence[DataType]) -> tuple[DataType, ...]:
        """Return the types of elementwise results, of arrays given as ``out`` where there are some.

        Raises
        ------
        DTypeError
            If a result cannot be cast to its ``out``.
        """
        own = tuple(self.dtype(o) for o in self.outputs)
        for result, target in zip(own, requested, strict=False):
            if not can_cast(result, target):
                raise DTypeError(
                    f"the fused function gives {result.name}, which cannot be written to an output of {target.name} "
                    f"without changing its kind; use a {result.name} output"
                )
        return tuple(requested) if len(requested) == len(own) else own

    def lines(self) -> list[str]:
        """Return a line per step, for people."""
        found = []
        for i, step in enumerate(self.steps):
            operands = ", ".join(self.show(o) for o in step.operands)
            found.append(f"v{i} = {step.name}({operands}) -> {step.dtype.name}")
        shown = ", ".join(map(self.show, self.outputs))
        if self.reduction is not None:
            r = self.reduction
            shown += f", axis={r.axis}" if r.axis is not None else ""
            shown += ", keepdims=True" if r.keepdims else ""
            shown = f"{r.name}({shown}{f', dtype={r.dtype.name}' if r.dtype is not None else ''})"
        return [*found, f"return {shown}"]

    def show(self, operand: Operand) -> str:
        """Return an operand as `lines` names it."""
        if operand.role == "number":
            number = self.numbers[operand.index]
            return repr(number.constant[0]) if number.constant else f"s{operand.index}"
        return f"{'x' if operand.role == 'array' else 'v'}{operand.index}"


_numbers = itertools.count(1)
_lock = threading.Lock()
_by_key: WeakValueDictionary[tuple[Any, ...], Program] = WeakValueDictionary()
PROGRAMS: WeakValueDictionary[int, Program] = WeakValueDictionary()
"""Programs in use by number: what the planner is asked for."""


def shared(program: Program) -> Program:
    """Return the program itself, or one in use that is the same: they share plans and kernels."""
    with _lock:
        found = _by_key.setdefault(program.key(), program)
        PROGRAMS[found.number] = found
        return found
