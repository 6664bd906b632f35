"""Tracing: what one run of a function does with its arguments, as a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import dtype
from pygpukit.ops.elementwise.plan import operation
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.fuse.program import Number, Operand, Program, Reduction, Step, shared
from pygpukit.ops.fuse.scalars import kind_of, words
from pygpukit.ops.fuse.tracers import COVERS, TracedArray, TracedNumber
from pygpukit.ops.promotion import Input

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")
_PARAMETERS = {"sum": ("axis", "dtype", "keepdims"), "prod": ("axis", "dtype", "keepdims"),
               "mean": ("axis", "dtype", "keepdims")}  # fmt: skip


class Trace:
    """Everything one run of a function does with its arguments.

    Attributes
    ----------
    leaves
        Arguments and captured arrays, the values of this run.
    events
        What later runs repeat: ``(function, positions)`` computes a further value, ``(None, position, value)`` asks
        that a value is the same.
    values
        Leaves, and what events computed.
    """

    def __init__(self, leaves: Sequence[Any], captured: Sequence[GPUArray]) -> None:
        self.leaves: list[Any] = [*leaves, *captured]
        self.values: list[Any] = list(self.leaves)
        self.events: list[tuple[Any, ...]] = []
        self.open = True
        self.steps: list[Step] = []
        self.below: list[frozenset[int]] = []
        self.known: dict[Any, int] = {}
        self.numbers: list[Number] = []
        self.places: list[int] = []
        self.reduction: Reduction | None = None
        self.same_shapes: list[tuple[Operand, Operand]] = []
        first = len(leaves)
        self.tracers: list[Any] = [
            TracedArray(self, Operand("array", i)) if isinstance(x, GPUArray)
            else TracedNumber(self, i) if kind_of(x) is not None else x
            for i, x in enumerate(leaves)
        ]  # fmt: skip
        self.captured = {id(x): Operand("array", first + i) for i, x in enumerate(captured)}

    # Numbers -----------------------------------------------------------------------------------------------------

    def compute(self, function: Callable[..., Any], *operands: Any) -> TracedNumber:
        """Return a number computed from others now, and again at each call."""
        places = []
        for x in operands:
            if isinstance(x, TracedNumber):
                places.append(x.at(self))
            else:
                places.append(len(self.values))
                self.values.append(x)
                self.events.append((lambda x=x: x, ()))
        value = function(*(self.values[i] for i in places))
        self.values.append(value)
        self.events.append((function, tuple(places)))
        return TracedNumber(self, len(self.values) - 1)

    def fix(self, place: int) -> Any:
        """Return a value that the function makes a decision by: with another one it is traced again."""
        self.events.append((None, place, self.values[place]))
        return self.values[place]

    def type_of(self, place: int) -> type:
        """Return the type of a value, which is a decision where it is computed: 2 ** n is an int or a float."""
        if place >= len(self.leaves) and ("type", place) not in self.known:
            self.known["type", place] = place
            self.events.append((type, (place,)))
            self.values.append(type(self.values[place]))
            self.fix(len(self.values) - 1)
        return type(self.values[place])

    # Steps -------------------------------------------------------------------------------------------------------

    def operand(self, value: Any, name: str) -> tuple[Operand, Input]:
        """Return an argument of an operator as an operand, and how promotion sees it."""
        if isinstance(value, TracedArray):
            operand = value.at(self, name)
            return operand, self.dtype(operand)
        if isinstance(value, GPUArray):
            found = self.captured.get(id(value))
            if found is None:
                raise TypeError(
                    f"{name}() in a fused function got an array that is neither an argument nor a variable which the "
                    "function uses directly: pass it as an argument"
                )
            return found, value.dtype
        constant: tuple[Any, ...] = ()
        place = -1
        if isinstance(value, TracedNumber):
            place = value.at(self)
            value = self.values[place]
            self.type_of(place)
        else:
            constant = (value,)
        kind = kind_of(value)
        if kind is None:
            hint = "pygpukit.from_numpy() outside of it" if isinstance(value, np.ndarray) else "pygpukit.asarray()"
            raise TypeError(
                f"{name}() in a fused function takes arrays and numbers, not {type(value).__name__}; convert it with "
                f"{hint}"
            )
        number = Number(kind, constant)
        key = ("number", place) if place >= 0 else ("constant", kind, type(value), repr(value))
        index = self.known.get(key)
        if index is None:
            index = self.known[key] = len(self.numbers)
            self.numbers.append(number)
            self.places.append(place)
        return Operand("number", index), kind

    def dtype(self, operand: Operand) -> DataType:
        """Return the element type of an array or a step."""
        if operand.role == "array":
            return self.leaves[operand.index].dtype  # type: ignore[no-any-return]
        return self.steps[operand.index].dtype

    def leaves_of(self, operand: Operand) -> frozenset[int]:
        """Return which arrays an operand depends on."""
        if operand.role == "array":
            return frozenset((operand.index,))
        return self.below[operand.index] if operand.role == "step" else frozenset()

    def step(self, name: str, values: Sequence[Any], out: DataType | None = None) -> TracedArray:
        """Add an elementwise operator and return its result."""
        row = TABLE[name]
        if len(values) != row.arity:
            raise TypeError(f"{name}() takes {row.arity} operands but {len(values)} were given")
        found = [self.operand(value, name) for value in values]
        operands, kinds = [o for o, _ in found], [k for _, k in found]
        if all(o.role == "number" for o in operands):
            raise TypeError(
                f"{name}() needs at least one GPUArray; got only Python scalars. Use pygpukit.asarray() to make one"
            )
        if row.rule == "where" and isinstance(kinds[0], str):
            # Only its truth counts, which no common type may change.
            kinds[0] = "bool"
        made = operation(name, tuple(kinds), out)
        for operand, kind in zip(operands, kinds, strict=True):
            if operand.role == "number" and self.numbers[operand.index].constant:
                words(self.numbers[operand.index].constant[0], kind, made.plan.common)
        key = (made.name, name, tuple(operands))
        index = self.known.get(key)
        if index is None:
            index = self.known[key] = len(self.steps)
            self.steps.append(Step(made, tuple(operands)))
            self.below.append(frozenset().union(*map(self.leaves_of, operands)))
        return TracedArray(self, Operand("step", index))

    def reduce(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> TracedArray:
        """End the function with a reduction."""
        names = ("x", *_PARAMETERS.get(name, ("axis", "keepdims")))
        if len(args) > len(names):
            raise TypeError(f"{name}() in a fused function takes {', '.join(names)}")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        refused = [k for k, v in given.items() if k not in names and v is not None]
        if refused:
            raise TypeError(f"{name}() in a fused function does not take {refused[0]}=: {COVERS}")
        fixed = {k: self.plain(v) for k, v in given.items() if k != "x"}
        axis = fixed.get("axis")
        if isinstance(axis, list | tuple):
            axis = tuple(operator.index(self.plain(a)) for a in axis)
        elif axis is not None:
            axis = operator.index(axis)
        kind = dtype(fixed["dtype"]) if fixed.get("dtype") is not None else None
        x, _ = self.operand(given["x"], name)
        if x.role == "number":
            raise TypeError(f"{name}() needs a GPUArray")
        found = Reduction(name, axis, bool(fixed.get("keepdims", False)), kind)
        if self.reduction not in (None, found):
            raise TypeError(f"a fused function ends with one reduction; {name}() would be another: {COVERS}")
        self.reduction = found
        return TracedArray(self, Operand("reduced", x.index if x.role == "step" else -1 - x.index))

    def plain(self, value: Any) -> Any:
        """Return an option as a plain value; that of a number of the call is a decision."""
        return self.fix(value.at(self)) if isinstance(value, TracedNumber) else value

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Apply an operator to arguments of which one at least is traced."""
        for option in ("out", "stream"):
            if kwargs.pop(option, None) is not None:
                raise TypeError(f"{name}() in a fused function does not take {option}=; give it to the fused function")
        if name in TABLE:
            if kwargs:
                raise TypeError(f"{name}() got an unexpected keyword argument '{next(iter(kwargs))}'")
            return self.step(name, args)
        if name in REDUCTIONS:
            return self.reduce(name, args, kwargs)
        raise TypeError(f"{name}() is not elementwise: {COVERS}")

    # The end -----------------------------------------------------------------------------------------------------

    def finish(self, result: Any) -> tuple[Program, list[int], list[int], bool]:
        """Return the program, the places of its arrays and numbers among the values, and whether it gives a tuple."""
        results = tuple(result) if isinstance(result, tuple | list) else (result,)
        if not results:
            raise TypeError("a fused function must return an array or a tuple of arrays, not an empty one")
        outputs: list[Operand] = []
        for one in results:
            if isinstance(one, GPUArray) and id(one) in self.captured:
                one = TracedArray(self, self.captured[id(one)])
            if not isinstance(one, TracedArray):
                what = "a number" if isinstance(one, TracedNumber) else type(one).__name__
                if isinstance(one, GPUArray):
                    what = "one that it does not compute from its arguments"
                raise TypeError(f"a fused function must return an array or a tuple of arrays, not {what}")
            outputs.append(one.at(self, "return", reduced=True))
        reduced = [o for o in outputs if o.role == "reduced"]
        if reduced and len(outputs) > 1:
            raise TypeError(
                f"a fused function that ends with {self.reduction and self.reduction.name}() has one result"
            )
        if reduced:
            at = reduced[0].index
            outputs = [Operand("step", at) if at >= 0 else Operand("array", -1 - at)]
        elif self.reduction is not None:
            # Its result was not used.
            self.reduction = None
        # Arrays are returned as copies: a result shares no memory with an argument.
        outputs = [o if o.role == "step" or reduced else self._copied(o) for o in outputs]
        self.open = False
        return self._compact(outputs, isinstance(result, tuple | list))

    def _copied(self, operand: Operand) -> Operand:
        kind = self.dtype(operand)
        self.steps.append(Step(operation("copy", (kind,), kind), (operand,)))
        self.below.append(self.leaves_of(operand))
        return Operand("step", len(self.steps) - 1)

    def _compact(self, outputs: list[Operand], several: bool) -> tuple[Program, list[int], list[int], bool]:
        """Keep what the outputs depend on."""
        used = {"step": {o.index for o in outputs if o.role == "step"},
                "array": {o.index for o in outputs if o.role == "array"}, "number": set()}  # fmt: skip
        for i in range(len(self.steps) - 1, -1, -1):
            if i in used["step"]:
                for o in self.steps[i].operands:
                    used[o.role].add(o.index)
        order = {role: {old: new for new, old in enumerate(sorted(found))} for role, found in used.items()}

        def moved(o: Operand) -> Operand:
            return Operand(o.role, order[o.role][o.index])

        steps = [Step(self.steps[i].operation, tuple(map(moved, self.steps[i].operands))) for i in order["step"]]
        arrays, numbers = list(order["array"]), list(order["number"])
        if not arrays:
            raise TypeError("a fused function must return what it computes from at least one array")
        pairs = [(moved(a), moved(b)) for a, b in self.same_shapes
                 if a.index in order[a.role] and b.index in order[b.role]]  # fmt: skip
        program = Program(
            [self.leaves[i].dtype for i in arrays], [self.numbers[i] for i in numbers], steps,
            [moved(o) for o in outputs], self.reduction, pairs,
        )  # fmt: skip
        return shared(program), arrays, [self.places[i] for i in numbers], several
