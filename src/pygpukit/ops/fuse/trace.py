"""Tracing: the values that stand for arrays and numbers while a function runs once to be fused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.plan import operation
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.fuse.program import Number, Operand, Program, Reduction, Step, shared
from pygpukit.ops.promotion import Input, can_cast
from pygpukit.ops.registry import methods

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")
_PARAMETERS = {"sum": ("axis", "dtype", "keepdims"), "prod": ("axis", "dtype", "keepdims"),
               "mean": ("axis", "dtype", "keepdims")}  # fmt: skip
_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}
_COVERS = (
    "gp.fuse covers chains of elementwise operators, which one of sum, mean, max, min, prod, any and all may end; "
    "call it outside the fused function"
)


def kind_of(value: Any) -> Input | None:
    """Return how promotion sees a number: the kind of a Python one, the type of a NumPy scalar; None for others."""
    if type(value) in _KINDS:
        return _KINDS[type(value)]  # type: ignore[return-value]
    return dtype(value.dtype) if isinstance(value, np.generic) else None


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
            if place >= len(self.leaves):
                # The type of a result may depend on the values: 2 ** n is an int or a float.
                self.events.append((type, (place,)))
                self.values.append(type(value))
                self.fix(len(self.values) - 1)
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
                from pygpukit.ops.fuse.scalars import words

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
            raise TypeError(f"{name}() in a fused function does not take {refused[0]}=: {_COVERS}")
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
            raise TypeError(f"a fused function ends with one reduction; {name}() would be another: {_COVERS}")
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
        raise TypeError(f"{name}() is not elementwise: {_COVERS}")

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


def _binary(name: str) -> tuple[Any, Any]:
    def forward(self: TracedArray, other: Any) -> Any:
        return self._trace.step(name, (self, other))

    def reflected(self: TracedArray, other: Any) -> Any:
        return self._trace.step(name, (other, self))

    return forward, reflected


def _in_place(name: str) -> Any:
    def method(self: TracedArray, other: Any) -> Any:
        trace, before = self._trace, self.at(self._trace, name)
        if before.role == "array":
            raise TypeError(
                f"the in-place {name} would change an argument of the fused function; give the result a name of its own"
            )
        made = trace.step(name, (self, other))
        to, kind = trace.dtype(before), trace.dtype(made._operand)
        if kind is not to:
            if not can_cast(kind, to):
                raise DTypeError(f"the in-place {name} gives {kind.name}, which an array of {to.name} cannot take")
            made = trace.step("copy", (made,), to)
        trace.same_shapes.append((before, made._operand))
        self._operand = made._operand
        return self

    return method


class TracedArray:
    """An array of which a fused function knows element type and number of dimensions only."""

    __slots__ = ("_operand", "_trace")
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, trace: Trace, operand: Operand) -> None:
        self._trace, self._operand = trace, operand

    def at(self, trace: Trace, name: str, reduced: bool = False) -> Operand:
        """Return the operand, for use by an operator of the same trace."""
        if trace is not self._trace or not trace.open:
            raise RuntimeError(
                f"{name}() got an array of another call of a fused function: such arrays exist only while it is traced"
            )
        if self._operand.role == "reduced" and not reduced:
            assert trace.reduction is not None
            raise TypeError(f"{name}() follows {trace.reduction.name}(), which must be the end: {_COVERS}")
        return self._operand

    def __gp_operator__(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._trace.call(name, args, kwargs)

    @property
    def dtype(self) -> DataType:
        """Element type."""
        return self._trace.dtype(self.at(self._trace, "dtype"))

    @property
    def shape(self) -> tuple[TracedNumber, ...]:
        """Sizes, each a number of the call."""
        trace = self._trace
        below = sorted(trace.leaves_of(self.at(trace, "shape")))
        arrays = [TracedNumber(trace, i) for i in below]

        def size(axis: int) -> Callable[..., int]:
            return lambda *given: np.broadcast_shapes(*(x.shape for x in given))[axis]

        return tuple(trace.compute(size(axis), *arrays) for axis in range(-self.ndim, 0))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        below = self._trace.leaves_of(self.at(self._trace, "ndim"))
        return max(int(self._trace.leaves[i].ndim) for i in below)

    @property
    def size(self) -> Any:
        """Number of elements, a number of the call."""
        result: Any = 1
        for n in self.shape:
            result = n * result
        return result

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def astype(self, dtype_: Any, *, copy: bool = True) -> TracedArray:
        """The array converted to another element type."""
        target = dtype(dtype_)
        return self if target is self.dtype else self._trace.step("copy", (self,), target)

    def copy(self) -> TracedArray:
        """The same values: a fused function changes no array but by in-place operators."""
        return TracedArray(self._trace, self.at(self._trace, "copy"))

    clone = contiguous = __pos__ = __copy__ = copy

    def __deepcopy__(self, memo: Any) -> TracedArray:
        return self.copy()

    def __getitem__(self, key: Any) -> TracedArray:
        if key is Ellipsis or (isinstance(key, tuple) and key in ((), (Ellipsis,))):
            return self
        raise TypeError(f"indexing is not elementwise: {_COVERS}")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"assignment to elements is not elementwise, gp.where may do instead: {_COVERS}")

    def __bool__(self) -> bool:
        raise TypeError(
            "a fused function cannot decide by the values of an array (if, while, and, or, not): it is traced before "
            "they exist. Use gp.where(condition, a, b), gp.logical_and, gp.logical_or or gp.logical_not"
        )

    def _value(self, *_: Any) -> Any:
        raise TypeError(
            f"a fused function cannot read the values of an array: it is traced before they exist. {_COVERS}"
        )

    __float__ = __int__ = __complex__ = __index__ = __len__ = __iter__ = __contains__ = _value
    __array__ = __dlpack__ = item = tolist = to_numpy = _value

    def __matmul__(self, other: Any) -> Any:
        raise TypeError(f"matmul() is not elementwise: {_COVERS}")

    __rmatmul__ = __matmul__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(GPUArray, name):
            raise AttributeError(f"an array of a fused function has no attribute '{name}'")
        function = methods().get(name)
        if function is None:
            raise TypeError(f"'{name}' of an array is not elementwise: {_COVERS}")
        return lambda *args, **kwargs: function(self, *args, **kwargs)

    def __repr__(self) -> str:
        kind = "reduced" if self._operand.role == "reduced" else self._trace.dtype(self._operand).name
        return f"<array of a fused function: {kind}>"


_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "mod",
              "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
              "rshift": "right_shift"}  # fmt: skip
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
                "ge": "greater_equal"}  # fmt: skip

for _python, _name in _OPERATORS.items():
    _forward, _reflected = _binary(_name)
    setattr(TracedArray, f"__{_python}__", _forward)
    setattr(TracedArray, f"__r{_python}__", _reflected)
    setattr(TracedArray, f"__i{_python}__", _in_place(_name))
for _python, _name in _COMPARISONS.items():
    setattr(TracedArray, f"__{_python}__", _binary(_name)[0])
for _python, _name in {"neg": "neg", "abs": "abs", "invert": "invert"}.items():
    setattr(TracedArray, f"__{_python}__", lambda self, name=_name: self._trace.step(name, (self,)))


class TracedNumber:
    """A number that is an argument of a fused function, or computed from such ones.

    Arithmetic on it is done by Python at each call. A decision by its value (``if n > 0``, ``range(n)``) holds for the
    program that is traced, and another outcome traces another.
    """

    __slots__ = ("_place", "_trace")
    __array_ufunc__ = None

    def __init__(self, trace: Trace, place: int) -> None:
        self._trace, self._place = trace, place

    def at(self, trace: Trace) -> int:
        """Return its place among the values."""
        if trace is not self._trace or not trace.open:
            raise RuntimeError("a number of a fused function is used after it was traced")
        return self._place

    def __gp_operator__(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._trace.call(name, args, kwargs)

    def _fixed(self) -> Any:
        self.at(self._trace)
        return self._trace.fix(self._place)

    def __bool__(self) -> bool:
        return bool(self._trace.compute(bool, self)._fixed())

    def __int__(self) -> int:
        return int(self._trace.compute(int, self)._fixed())

    def __float__(self) -> float:
        return float(self._trace.compute(float, self)._fixed())

    def __complex__(self) -> complex:
        return complex(self._trace.compute(complex, self)._fixed())

    def __index__(self) -> int:
        return operator.index(self._fixed())

    def __hash__(self) -> int:
        return hash(self._fixed())

    def __str__(self) -> str:
        return str(self._fixed())

    def __format__(self, spec: str) -> str:
        return format(self._fixed(), spec)

    def __round__(self, digits: Any = None) -> Any:
        return self._trace.compute(round, self) if digits is None else self._trace.compute(round, self, digits)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._fixed(), name)

    def __repr__(self) -> str:
        return f"<number of a fused function: {self._trace.values[self._place]!r}>"


def _arithmetic(python: str, row: str, function: Callable[..., Any]) -> tuple[Any, Any]:
    def forward(self: TracedNumber, other: Any) -> Any:
        if isinstance(other, TracedArray | GPUArray):
            return self._trace.step(row, (self, other))
        if isinstance(other, TracedNumber) or kind_of(other) is not None:
            return self._trace.compute(function, self, other)
        return NotImplemented

    def reflected(self: TracedNumber, other: Any) -> Any:
        if isinstance(other, TracedArray | GPUArray):
            return self._trace.step(row, (other, self))
        return self._trace.compute(function, other, self) if kind_of(other) is not None else NotImplemented

    return forward, reflected


for _python, _name in (_OPERATORS | _COMPARISONS).items():
    _function = getattr(operator, f"{_python}_" if _python in ("and", "or") else _python)
    _forward, _reflected = _arithmetic(_python, _name, _function)
    setattr(TracedNumber, f"__{_python}__", _forward)
    if _python in _OPERATORS:
        setattr(TracedNumber, f"__r{_python}__", _reflected)
for _python, _function in {"neg": operator.neg, "pos": operator.pos, "abs": abs, "invert": operator.invert,
                           "trunc": int}.items():  # fmt: skip
    setattr(TracedNumber, f"__{_python}__", lambda self, f=_function: self._trace.compute(f, self))
