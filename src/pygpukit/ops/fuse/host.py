"""Programs on the CPU device: the operators' NumPy functions, block by block through buffers that stay in a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pygpukit.dtypes import DataType, to_numpy_dtype
from pygpukit.ops.elementwise.reference import prepare
from pygpukit.ops.fuse.program import Number, Program
from pygpukit.ops.fuse.scalars import words
from pygpukit.ops.promotion import Input

Array = npt.NDArray[Any]
BLOCK = 1 << 16
"""Elements of a block; a multiple of what vector instructions take, so that blocks end where vectors do."""


class _Call:
    """A NumPy function of one step: operands and the types they are read as, and the result's type."""

    __slots__ = ("below", "function", "operands", "to")

    def __init__(
        self, function: Callable[..., Any], operands: tuple[tuple[str, int], ...], to: Any, below: frozenset[int]
    ) -> None:
        self.function, self.operands, self.to, self.below = function, operands, to, below


class Chain:
    """The steps of a program as NumPy calls, for results of given types.

    ``whole``, ``flat`` and ``general`` take arrays, numbers of the call, and results. The first two are for arrays that
    all have the shape of the results: of at most `BLOCK` elements, and contiguous ones.
    """

    def __init__(self, program: Program, targets: tuple[DataType, ...]) -> None:
        # Plans outlive programs that are not in use: they must not keep them.
        self.arrays = len(program.arrays)
        self.numbers: list[tuple[int, Callable[[Any], Any]]] = []
        self.constants: list[Any] = []
        self.calls: list[_Call] = []
        self.runtime = [i for i, n in enumerate(program.numbers) if not n.constant]
        known: dict[Any, tuple[str, int]] = {}
        for step in program.steps:
            made = step.operation
            kinds: list[Input] = [
                program.numbers[o.index].kind if o.role == "number" else program.dtype(o) for o in step.operands
            ]
            if made.row.rule == "where" and isinstance(kinds[0], str):
                kinds[0] = "bool"
            function, is_ufunc = prepare(step.name, tuple(kinds), made.plan.out)
            operands = tuple(
                self._number(known, program.numbers[o.index], o.index, kind, is_ufunc) if o.role == "number"
                else (o.role, o.index) for o, kind in zip(step.operands, made.inputs, strict=True)
            )  # fmt: skip
            below = frozenset().union(*map(program.leaves, step.operands))
            self.calls.append(_Call(function, operands, to_numpy_dtype(made.plan.out), below))
        self.outputs: list[int] = []
        for output, target in zip(program.outputs, targets, strict=True):
            kind, index = program.dtype(output), output.index
            if output.role != "step" or kind is not target or index in self.outputs:
                function, _ = prepare("copy", (kind,), target)
                below = program.leaves(output)
                self.calls.append(_Call(function, ((output.role, output.index),), to_numpy_dtype(target), below))
                index = len(self.calls) - 1
            self.outputs.append(index)
        self._place_buffers()
        self._write()

    def _number(
        self, known: dict[Any, tuple[str, int]], number: Number, index: int, to: DataType, is_ufunc: bool
    ) -> tuple[str, int]:
        """Return a number of a step as an operand: one conversion for each type it is read as."""
        key = index, to, is_ufunc
        if key not in known:
            convert = _conversion(number.kind, to, is_ufunc)
            if number.constant:
                with np.errstate(all="ignore"):
                    self.constants.append(convert(number.constant[0]))
                known[key] = "constant", len(self.constants) - 1
            else:
                self.numbers.append((self.runtime.index(index), convert))
                known[key] = "number", len(self.numbers) - 1
        return known[key]

    def _place_buffers(self) -> None:
        """Give each step that is no result a buffer, used again by later steps; a result's memory is one before it."""
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            for role, index in call.operands:
                if role == "step":
                    last[index] = i
        # Buffers -1, -2, ... are the results.
        self.buffers: list[Any] = []
        self.place: list[int] = []
        free = [-1 - k for k in range(len(self.outputs))]
        due = {-1 - k: i for k, i in enumerate(self.outputs)}

        def kind(buffer: int) -> Any:
            return self.calls[due[buffer]].to if buffer < 0 else self.buffers[buffer]

        for i, call in enumerate(self.calls):
            # An elementwise function may write what it reads, where both are the same memory.
            for index in {index for role, index in call.operands if role == "step"}:
                place = self.place[index]
                if last[index] == i and index not in self.outputs and place not in free:
                    free.append(place)
            if i in self.outputs:
                own = -1 - self.outputs.index(i)
                if own in free:
                    free.remove(own)
                self.place.append(own)
                continue
            end = last.get(i, i)
            found = next((b for b in free if kind(b) == call.to and (b >= 0 or end <= due[b])), None)
            if found is None:
                found = len(self.buffers)
                self.buffers.append(call.to)
            else:
                free.remove(found)
            self.place.append(found)
            if i not in last:
                free.append(found)

    def _name(self, role: str, index: int) -> str:
        if role == "step":
            place = self.place[index]
            return f"t{place}" if place >= 0 else f"y{-1 - place}"
        return {"array": "x", "number": "n", "constant": "c"}[role] + str(index)

    def _write(self) -> None:
        """Make the functions of arrays of one shape."""
        xs = [f"x{i}" for i in range(self.arrays)]
        ys = [f"y{i}" for i in range(len(self.outputs))]
        ts = [f"t{i}" for i in range(len(self.buffers))]
        taken = ", ".join([*xs, *(f"r{i}" for i in range(len(self.runtime))), *ys])
        numbers = [f"    n{i} = k{i}(r{at})" for i, (at, _) in enumerate(self.numbers)]
        calls = [
            f"    f{i}({', '.join([*(self._name(*o) for o in call.operands), self._name('step', i)])})"
            for i, call in enumerate(self.calls)
        ]
        lines = [
            f"def whole({taken}):", *numbers,
            *(["    shape = y0.shape"] if ts else []), *(f"    {t} = empty(shape, d{i})" for i, t in enumerate(ts)),
            *calls,
            f"def flat({taken}):", *numbers,
            *(f"    a{v} = {v}.reshape(-1)" for v in (*xs, *ys)),
            "    size = ay0.size",
            *(f"    b{t} = empty({BLOCK}, d{i})" for i, t in enumerate(ts)),
            f"    for start in range(0, size, {BLOCK}):",
            f"        stop = min(start + {BLOCK}, size)",
            *(f"        {v} = a{v}[start:stop]" for v in (*xs, *ys)),
            *(f"        {t} = b{t}[:stop - start]" for t in ts),
            *(f"    {line}" for line in calls),
        ]  # fmt: skip
        space: dict[str, Any] = {"empty": np.empty, "min": min, "range": range}
        space |= {f"f{i}": call.function for i, call in enumerate(self.calls)}
        space |= {f"k{i}": convert for i, (_, convert) in enumerate(self.numbers)}
        space |= {f"c{i}": value for i, value in enumerate(self.constants)}
        space |= {f"d{i}": kind for i, kind in enumerate(self.buffers)}
        exec("\n".join(lines), space)
        self.whole: Callable[..., None] = space["whole"]
        self.flat: Callable[..., None] = space["flat"]

    def general(self, *given: Any) -> None:
        """Compute results of any layout from arrays that broadcast."""
        split = len(given) - len(self.outputs)
        arrays, outs, values = given[: self.arrays], given[split:], given[self.arrays : split]
        numbers = [convert(values[at]) for at, convert in self.numbers]
        shape = outs[0].shape
        # What has another shape than the results is computed once, and in its own.
        small: dict[int, Array] = {}
        if any(x.shape != shape for x in arrays):
            for i, call in enumerate(self.calls):
                own = np.broadcast_shapes(*(arrays[k].shape for k in call.below))
                if own != shape:
                    small[i] = np.empty(own, call.to)
                    call.function(*self._operands(call, numbers, arrays, small), small[i])
        buffers: list[Array] = []
        for index in blocks(shape):
            xs = [block(x, index, len(shape)) for x in arrays]
            ys = [x[index] for x in outs]
            size, own = ys[0].size, ys[0].shape
            if not buffers:
                buffers = [np.empty(size, kind) for kind in self.buffers]
            steps: dict[int, Any] = {i: block(x, index, len(shape)) for i, x in small.items()}
            for i, call in enumerate(self.calls):
                if i in steps:
                    continue
                place = self.place[i]
                target: Array = ys[-1 - place] if place < 0 else buffers[place][:size].reshape(own)
                call.function(*self._operands(call, numbers, xs, steps), target)
                steps[i] = target

    def _operands(self, call: _Call, numbers: list[Any], arrays: Any, steps: Any) -> list[Any]:
        roles = {"array": arrays, "step": steps, "number": numbers, "constant": self.constants}
        return [roles[role][index] for role, index in call.operands]


def _conversion(kind: Input, to: DataType, is_ufunc: bool) -> Callable[[Any], Any]:
    """Return what makes of a number the operand of a NumPy function."""
    numpy = to_numpy_dtype(to)
    if not isinstance(kind, str):
        return lambda value: np.asarray(value, numpy)
    if is_ufunc:
        return numpy.type

    def checked(value: Any) -> Any:
        # Refuses what an integer type cannot hold, as the operator by itself does.
        words(value, kind, to)
        return bool(value) if to.kind == "b" else value

    return checked


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Return indices of parts of at most a block of elements that cover an array."""
    axis, rest = len(shape), 1
    while axis and rest * shape[axis - 1] <= BLOCK:
        axis -= 1
        rest *= shape[axis]
    if not axis:
        yield (Ellipsis,)
        return
    # Parts of one size, but for the last ones.
    step = max(1, BLOCK // rest)
    for outer in np.ndindex(*shape[: axis - 1]):
        for start in range(0, shape[axis - 1], step):
            yield (*outer, slice(start, start + step))


def block(x: Array, index: tuple[Any, ...], ndim: int) -> Array:
    """Return the part of an operand that belongs to a part of the results."""
    if index[0] is Ellipsis:
        return x
    missing = ndim - x.ndim
    found = [
        i if x.shape[axis - missing] != 1 else slice(None) if isinstance(i, slice) else 0
        for axis, i in enumerate(index) if axis >= missing
    ]  # fmt: skip
    return x[tuple(found)]


def reduced(chain: Chain, reduce: Callable[..., None], by_rows: bool, shape: tuple[int, ...], to: Any,
            arrays: tuple[Array, ...], rest: tuple[Any, ...], out: Array) -> None:  # fmt: skip
    """Reduce the results of a chain with one output; ``by_rows`` where only axes behind the first are reduced."""
    if not math.prod(shape):
        reduce(np.empty(shape, to), None, out)
        return
    rows = max(1, BLOCK // math.prod(shape[1:])) if by_rows else shape[0] if shape else 1
    made = np.empty((min(rows, shape[0]), *shape[1:]) if shape else (), to)
    for start in range(0, shape[0] if shape else 1, rows):
        if by_rows:
            stop = min(start + rows, shape[0])
            parts: Any = [x[start:stop] if x.ndim == len(shape) and x.shape[0] != 1 else x for x in arrays]
            here, result = made[: stop - start], out[start:stop]
        else:
            parts, here, result = arrays, made, out
        same = all(x.shape == here.shape for x in parts)
        flat = same and all(x.flags.c_contiguous for x in parts)
        run = chain.whole if same and here.size <= BLOCK else chain.flat if flat else chain.general
        run(*parts, *rest, here)
        reduce(here, None, result)
