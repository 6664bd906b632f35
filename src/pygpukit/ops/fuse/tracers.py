"""The values that stand for arrays and numbers while a function runs once to be fused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.fuse.program import Operand
from pygpukit.ops.fuse.scalars import kind_of
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.registry import methods

if TYPE_CHECKING:
    from pygpukit.ops.fuse.trace import Trace

COVERS = (
    "gp.fuse covers chains of elementwise operators, which one of sum, mean, max, min, prod, any and all may end; "
    "call it outside the fused function"
)


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
            raise TypeError(f"{name}() follows {trace.reduction.name}(), which must be the end: {COVERS}")
        return self._operand

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # isinstance(x, GPUArray) holds, as where the function is not fused.
        return GPUArray

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
        raise TypeError(f"indexing is not elementwise: {COVERS}")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"assignment to elements is not elementwise, gp.where may do instead: {COVERS}")

    def __bool__(self) -> bool:
        raise TypeError(
            "a fused function cannot decide by the values of an array (if, while, and, or, not): it is traced before "
            "they exist. Use gp.where(condition, a, b), gp.logical_and, gp.logical_or or gp.logical_not"
        )

    def _value(self, *_: Any) -> Any:
        raise TypeError(
            f"a fused function cannot read the values of an array: it is traced before they exist. {COVERS}"
        )

    __float__ = __int__ = __complex__ = __index__ = __len__ = __iter__ = __contains__ = _value
    __array__ = __dlpack__ = item = tolist = to_numpy = _value

    def __matmul__(self, other: Any) -> Any:
        raise TypeError(f"matmul() is not elementwise: {COVERS}")

    __rmatmul__ = __matmul__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(GPUArray, name):
            raise AttributeError(f"an array of a fused function has no attribute '{name}'")
        function = methods().get(name)
        if function is None:
            raise TypeError(f"'{name}' of an array is not elementwise: {COVERS}")
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

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # isinstance(n, float) holds as it does for the number; the type is part of the class of a call.
        return self._trace.type_of(self._place)

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
