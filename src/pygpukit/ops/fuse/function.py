"""`fuse`: a Python function of arrays as one kernel."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray, Operator
from pygpukit.errors import ShapeError
from pygpukit.ops.fuse import source
from pygpukit.ops.fuse.plans import MOST_ARRAYS, function_for
from pygpukit.ops.fuse.program import Program
from pygpukit.ops.fuse.scalars import count, kind_of, words
from pygpukit.ops.fuse.trace import Trace
from pygpukit.ops.fuse.tracers import TracedArray, TracedNumber

_TRACED = {TracedArray, TracedNumber}

MOST_TRACES = 64
"""Traces a fused function keeps, and of one class of arguments."""

_NUMBERS = frozenset((int, float, bool, complex))
# Types of options; numbers stand in tuples only.
_OPTIONS = (
    str, bytes, int, float, complex, DataType, np.dtype, np.generic, type(Ellipsis), enum.Enum, type, FunctionType,
    BuiltinFunctionType, ModuleType,
)  # fmt: skip


class Traced(NamedTuple):
    """A program, and how a call gives it its arrays and numbers."""

    program: Program
    arrays: tuple[int, ...]
    places: tuple[int, ...]
    events: tuple[tuple[Any, ...], ...]
    several: bool
    slots: tuple[tuple[int, Any, Any], ...]
    whole_numbers: tuple[tuple[int, Any, Any], ...]
    on_cpu: Callable[..., Any]
    by_kernel: Callable[..., Any]

    def values(self, leaves: list[Any]) -> list[Any] | None:
        """Return the values of a call, or None where the function would take another way."""
        if not self.events:
            return leaves
        values = list(leaves)
        try:
            for event in self.events:
                if event[0] is None:
                    now, then = values[event[1]], event[2]
                    if type(now) is not type(then) or (now != then and (now == now or then == then)):
                        return None
                else:
                    values.append(event[0](*[values[i] for i in event[1]]))
        except Exception:
            # Traced again, it raises the error where the function does.
            return None
        return values

    def call(self, values: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """Return the operator that runs for these values, and its arguments."""
        given = [self.program.number, *[values[i] for i in self.arrays]]
        if given[1].device.kind == "cpu":
            for place, kind, to in self.whole_numbers:
                # Refuses what the type cannot hold now: the work may be deferred.
                words(values[place], kind, to)
            return self.on_cpu, given + [_plain(values[i]) for i in self.places if i >= 0]
        for place, kind, to in self.slots:
            given += words(values[place], kind, to)
        return self.by_kernel, given


class Fused:
    """A function of arrays that runs as one kernel; made by `pygpukit.fuse`.

    Attributes
    ----------
    function
        What was fused.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, Fused):
            function = function.function  # type: ignore[has-type]
        if inspect.isbuiltin(function) or isinstance(function, Operator):
            raise TypeError(f"fuse() takes a function written in Python; {function.__name__} is a kernel by itself")
        if not callable(function):
            raise TypeError(f"fuse() takes a function, not {type(function).__name__}")
        self.function = function
        self.__name__: str = type(function).__name__
        functools.update_wrapper(self, function, updated=())
        try:
            self._signature: inspect.Signature = inspect.signature(function)
        except ValueError as error:
            raise TypeError(f"fuse() needs a function with a signature: {error}") from None
        parameters = self._signature.parameters.values()
        for p in parameters:
            if p.name in ("out", "stream"):
                raise TypeError(f"fuse(): '{p.name}' is an argument of the fused function; rename the parameter")
        self._positional = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        self._only_positional = self._positional == len(self._signature.parameters)
        self._cells, self._globals = _used(function)
        self._outside = bool(self._cells or self._globals)
        self._traces: OrderedDict[Any, list[Traced]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, out: Any = None, stream: Any = None, **kwargs: Any) -> Any:
        """Run the function on arrays and numbers, in one kernel."""
        leaves, names, captured = self._leaves(args, kwargs)
        if _TRACED & set(map(type, leaves)):
            if out is not None or stream is not None:
                raise TypeError("a fused function inside another takes no out= and no stream=")
            return self.function(*args, **kwargs)
        traced, values = self._traced(leaves, names, captured)
        run, given = traced.call(values)
        result = run(*given, out=_outputs(out), stream=stream)
        return (result,) if traced.several and not isinstance(result, tuple) else result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # As a method, a fused function has its object as an argument.
        return self if instance is None else functools.partial(self, instance)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """Return the CUDA source for arguments of these types."""
        from pygpukit.ops.fuse import reduction

        program = self._traced(*self._leaves(args, kwargs))[0].program
        if program.reduction is not None:
            return reduction.unit_of(program).source
        return source.elementwise(program, program.written(())).source

    def trace(self, *args: Any, **kwargs: Any) -> str:
        """Return the operators that were traced for arguments of these types, a line each."""
        traced, values = self._traced(*self._leaves(args, kwargs))
        program = traced.program
        lines = [f"x{i}: {values[at].dtype.name}" for i, at in enumerate(traced.arrays)]
        lines += [f"s{i}: {n.kind if isinstance(n.kind, str) else n.kind.name}" for i, n in enumerate(program.numbers)
                  if not n.constant]  # fmt: skip
        return "\n".join([*lines, *program.lines()])

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the kernel that runs for these arguments, and the bytes that it and the operators apart move."""
        from pygpukit.ops.explain import explain
        from pygpukit.ops.fuse.report import eager

        out = kwargs.pop("out", None)
        traced, values = self._traced(*self._leaves(args, kwargs))
        run, given = traced.call(values)
        found = explain(run, *given, out=_outputs(out))
        arrays = [values[i] for i in traced.arrays]
        operators, moved = eager(traced.program, arrays)
        lines = str(found).splitlines()
        lines[0] = f"{self.__name__}: {operators} operators in one"
        return "\n".join([*lines, f"  the operators apart move {moved} bytes"])

    def __repr__(self) -> str:
        return f"<fused {self.__name__}{self._signature}>"

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tuple[str, ...], list[Any]]:
        """Return the values of a call in order, the names of those given by name, and what the function captures."""
        if kwargs or not self._only_positional or len(args) != self._positional:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.__name__}(): {error}") from None
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        return [*args, *kwargs.values()], tuple(kwargs), self._captured() if self._outside else []

    def _captured(self) -> list[Any]:
        """Return what the function uses from outside: arrays are read, other values belong to the class of a call."""
        found: list[Any] = []
        for cell in self._cells:
            try:
                found.append(cell.cell_contents)
            except ValueError:
                found.append(None)
        for space, name in self._globals:
            found.append(space.get(name))
        return found

    def _traced(self, leaves: list[Any], names: tuple[str, ...], captured: list[Any]) -> tuple[Traced, list[Any]]:
        """Return the trace for a call, and the call's values."""
        arrays = [x for x in captured if type(x) is GPUArray]
        classes = [(x.dtype, x.ndim) if type(x) is GPUArray else type(x) if type(x) in _NUMBERS else _class(x)
                   for x in leaves]  # fmt: skip
        outside = [(x.dtype, x.ndim) if type(x) is GPUArray else _Outside(x) for x in captured]
        key = (names, *classes, *outside)
        known = self._traces.get(key)
        given = [*leaves, *_distinct(arrays)]
        for traced in known or ():
            values = traced.values(given)
            if values is not None:
                if len(self._traces) > MOST_TRACES // 2:
                    self._touch(key)
                return traced, values
        return self._new(key, leaves, names, arrays, given)

    def _touch(self, key: Any) -> None:
        # Only a cache that may overflow soon has to know what was used last.
        with self._lock:
            if key in self._traces:
                self._traces.move_to_end(key)

    def _new(self, key: Any, leaves: list[Any], names: tuple[str, ...], arrays: list[Any], given: list[Any]
             ) -> tuple[Traced, list[Any]]:  # fmt: skip
        trace = Trace(leaves, _distinct(arrays))
        split = len(leaves) - len(names)
        try:
            result = self.function(*trace.tracers[:split], **dict(zip(names, trace.tracers[split:], strict=True)))
            program, used, places, several = trace.finish(result)
        finally:
            trace.open = False
        if len(program.arrays) + len(program.outputs) > MOST_ARRAYS:
            raise ShapeError(
                f"{self.__name__}() reads and writes {len(program.arrays) + len(program.outputs)} arrays, over "
                f"{MOST_ARRAYS} in one kernel: fuse parts of it"
            )
        runtime = {i: place for i, place in enumerate(places) if place >= 0}
        slots = tuple(
            (runtime[s.number], program.numbers[s.number].kind, s.dtype) for s in source.slots(program)
            if s.number in runtime
        )  # fmt: skip
        total = sum(count(to) for _, _, to in slots)
        traced = Traced(
            program, tuple(used), tuple(places), tuple(trace.events), several, slots,
            tuple(slot for slot in slots if slot[2].kind in "iu"),
            function_for(len(used), len(runtime), program.reduction is not None),
            function_for(len(used), total, program.reduction is not None),
        )  # fmt: skip
        with self._lock:
            kept = self._traces.get(key, [])
            # The newest first; lists are replaced, since other threads read them.
            self._traces[key] = [traced, *kept][:MOST_TRACES]
            self._traces.move_to_end(key)
            while len(self._traces) > MOST_TRACES:
                self._traces.popitem(last=False)
        values = traced.values(given)
        return traced, trace.values if values is None else values


def _class(value: Any) -> Any:
    """Return what a trace depends on of an option: the type of a NumPy scalar, other values themselves."""
    kind = type(value)
    if kind_of(value) is not None:
        return kind
    if _is_plain(value):
        return kind, value
    if isinstance(value, np.ndarray):
        raise TypeError(
            "a fused function takes GPUArrays and numbers, not ndarray; convert it with pygpukit.from_numpy()"
        )
    raise TypeError(
        f"a fused function takes arrays, numbers and options that cannot change, such as texts; not {kind.__name__}: "
        "pass the arrays and numbers in it as arguments"
    )


def _is_plain(value: Any) -> bool:
    """Is it a value that stays as it is?"""
    if isinstance(value, tuple | frozenset):
        return all(_is_plain(x) for x in value)
    return value is None or isinstance(value, _OPTIONS)


class _Outside:
    """A value that a function uses from outside, as part of a key: the same if it is equal and plain, or one object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        a, b = self.value, other.value if isinstance(other, _Outside) else None
        if a is b:
            return True
        if type(a) is not type(b) or not (kind_of(a) is not None or _is_plain(a)):
            return False
        # The text tells 0.0 from -0.0.
        return a == b and repr(a) == repr(b)


def _distinct(arrays: list[Any]) -> list[Any]:
    return list({id(x): x for x in arrays}.values())


def _plain(value: Any) -> Any:
    return value if type(value) in _NUMBERS else value.item()


def _outputs(out: Any) -> Any:
    return out[0] if isinstance(out, tuple | list) and len(out) == 1 else tuple(out) if isinstance(out, list) else out


def _used(function: Callable[..., Any]) -> tuple[tuple[Any, ...], tuple[tuple[dict[str, Any], str], ...]]:
    """Return the cells and the global names that a function reads."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(plain, "__code__", None)
    if not isinstance(code, CodeType):
        return (), ()
    names: dict[str, None] = {}
    pending = [code]
    while pending:
        one = pending.pop()
        names |= dict.fromkeys(i.argval for i in dis.get_instructions(one) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        pending += [c for c in one.co_consts if isinstance(c, CodeType)]
    space = plain.__globals__
    # Modules, such as gp itself, are what they are.
    kept = [n for n in names if not inspect.ismodule(space.get(n)) and (n in space or not hasattr(builtins, n))]
    return tuple(plain.__closure__ or ()), tuple((space, n) for n in kept)


def fuse(function: Callable[..., Any]) -> Fused:
    """Make a function of elementwise operators one kernel, which gives the same bits.

    The function is called once per class of arguments (element types and dimensions of arrays, types of numbers) with
    values that stand for them, and what it does to them becomes a kernel. It may end with one of `sum`, `mean`, `max`,
    `min`, `prod`, `any` and `all`. It returns an array, or a tuple of arrays of one shape.

    Parameters
    ----------
    function : function
        Of arrays, numbers and options. It must have no effects other than its result, and may not decide by the values
        of arrays: `where` chooses elements.

    Returns
    -------
    Fused
        Called as the function, with ``out=`` and ``stream=``. ``source``, ``trace`` and ``explain`` take the same
        arguments and tell what runs for them.

    Examples
    --------
    >>> import pygpukit as gp
    >>> @gp.fuse
    ... def scaled(x, y, scale):
    ...     return gp.tanh(x) * scale + y
    >>> scaled(gp.zeros(3), gp.ones(3), 2.0).tolist()
    [1.0, 1.0, 1.0]
    >>> print(scaled.trace(gp.zeros(3), gp.ones(3), 2.0))
    x0: float32
    x1: float32
    s0: float
    v0 = tanh(x0) -> float32
    v1 = mul(v0, s0) -> float32
    v2 = add(v1, x1) -> float32
    return v2
    """
    return Fused(function)
