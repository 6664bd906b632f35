"""Programs on the CPU device: the operators' NumPy functions, block by block through buffers that stay in a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pygpukit.dtypes import DataType, to_numpy_dtype
from pygpukit.ops.elementwise.reference import prepare
from pygpukit.ops.fuse.program import Operand, Program
from pygpukit.ops.fuse.scalars import words
from pygpukit.ops.promotion import Input

Array = npt.NDArray[Any]
_BLOCK = 1 << 15
"""Elements of a block; a multiple of what vector instructions take, so that blocks end where vectors do."""


class _Call:
    """A NumPy function of one step: operands, and where the result goes."""

    __slots__ = ("below", "function", "kinds", "operands", "scalar", "to")

    def __init__(
        self,
        function: Callable[..., Any],
        scalar: bool,
        operands: tuple[Operand, ...],
        kinds: tuple[Any, ...],
        to: Any,
        below: frozenset[int],
    ) -> None:
        self.function, self.scalar, self.operands, self.kinds, self.to = function, scalar, operands, kinds, to
        self.below = below


class Chain:
    """The steps of a program as NumPy calls."""

    def __init__(self, program: Program, targets: tuple[DataType, ...]) -> None:
        # Plans outlive programs that nobody uses: they must not keep them.
        self.arrays = len(program.arrays)
        self.numbers = program.numbers
        self.calls: list[_Call] = []
        for step in program.steps:
            made = step.operation
            kinds: list[Input] = [
                program.numbers[o.index].kind if o.role == "number" else program.dtype(o) for o in step.operands
            ]
            if made.row.rule == "where" and isinstance(kinds[0], str):
                kinds[0] = "bool"
            function, scalar = prepare(step.name, tuple(kinds), made.plan.out)
            below = frozenset().union(*(program.leaves(o) for o in step.operands))
            self.calls.append(_Call(function, scalar, step.operands, made.inputs, to_numpy_dtype(made.plan.out), below))
        self.outputs: list[int] = []
        written: set[int] = set()
        for output, target in zip(program.outputs, targets, strict=True):
            kind, index = program.dtype(output), output.index
            if output.role != "step" or kind is not target or index in written:
                function, scalar = prepare("copy", (kind,), target)
                self.calls.append(
                    _Call(function, scalar, (output,), (kind,), to_numpy_dtype(target), program.leaves(output))
                )
                index = len(self.calls) - 1
            written.add(index)
            self.outputs.append(index)
        self._place_buffers()

    def _place_buffers(self) -> None:
        """Give each step that is no result a buffer, which later steps use again."""
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            for o in call.operands:
                if o.role == "step":
                    last[o.index] = i
        self.buffers: list[Any] = []
        self.place: list[int] = []
        free: list[int] = []
        results = set(self.outputs)
        for i, call in enumerate(self.calls):
            if i in results:
                self.place.append(-1)
            else:
                # Not one of this step's operands: not every function may write what it reads.
                found = next((b for b in free if self.buffers[b] == call.to), None)
                if found is None:
                    found = len(self.buffers)
                    self.buffers.append(call.to)
                else:
                    free.remove(found)
                self.place.append(found)
                if i not in last:
                    free.append(found)
            for index in {o.index for o in call.operands if o.role == "step"}:
                if last[index] == i and self.place[index] >= 0:
                    free.append(self.place[index])

    def __call__(self, *given: Any) -> None:
        arrays, outs = given[: self.arrays], given[len(given) - len(self.outputs) :]
        values = iter(given[self.arrays : len(given) - len(self.outputs)])
        numbers = [n.constant[0] if n.constant else next(values) for n in self.numbers]
        fixed = [self._scalars(call, numbers) for call in self.calls]
        shape = outs[0].shape
        small: dict[int, Array] = {}
        if any(x.shape != shape for x in arrays):
            small = self._small(arrays, fixed, shape)
        self._run(arrays, fixed, small, outs, shape)

    def _scalars(self, call: _Call, numbers: list[Any]) -> dict[int, Any]:
        """Return the numbers among the operands of a step, as its function takes them."""
        found = {}
        for i, operand in enumerate(call.operands):
            if operand.role == "number":
                kind, value = self.numbers[operand.index].kind, numbers[operand.index]
                if not isinstance(kind, str):
                    found[i] = np.asarray(value, to_numpy_dtype(kind))
                elif call.scalar:
                    found[i] = to_numpy_dtype(call.kinds[i]).type(value)
                else:
                    # Refuses what an integer type cannot hold, as the operator by itself does.
                    words(value, kind, call.kinds[i])
                    found[i] = bool(value) if call.kinds[i].kind == "b" else value
        return found

    def _small(
        self, arrays: tuple[Array, ...], fixed: list[dict[int, Any]], shape: tuple[int, ...]
    ) -> dict[int, Array]:
        """Compute what has another shape than the results: once, and in its own."""
        done: dict[int, Array] = {}
        for i, call in enumerate(self.calls):
            own = np.broadcast_shapes(*(arrays[k].shape for k in call.below))
            if own != shape:
                done[i] = np.empty(own, call.to)
                call.function(*self._operands(call, fixed[i], arrays, done), done[i])
        return done

    def _operands(self, call: _Call, fixed: dict[int, Any], arrays: Any, steps: Any) -> list[Any]:
        return [
            fixed[i] if o.role == "number" else arrays[o.index] if o.role == "array" else steps[o.index]
            for i, o in enumerate(call.operands)
        ]

    def _run(self, arrays: tuple[Array, ...], fixed: list[dict[int, Any]], small: dict[int, Array],
             outs: tuple[Array, ...], shape: tuple[int, ...]) -> None:  # fmt: skip
        """Compute the results block by block."""
        flat = not small and all(x.flags.c_contiguous and x.shape == shape for x in (*arrays, *outs))
        if flat:
            arrays = tuple(x.reshape(-1) for x in arrays)
            outs = tuple(x.reshape(-1) for x in outs)
            shape = outs[0].shape
        buffers: list[Array] = []
        for index in blocks(shape):
            xs = [block(x, index, len(shape)) for x in arrays]
            ys = [x[index] for x in outs]
            if not buffers:
                buffers = [np.empty(ys[0].size, kind) for kind in self.buffers]
            steps: dict[int, Any] = {i: block(x, index, len(shape)) for i, x in small.items()}
            size, own = ys[0].size, ys[0].shape
            for i, call in enumerate(self.calls):
                if i in steps:
                    continue
                place = self.place[i]
                target = ys[self.outputs.index(i)] if place < 0 else buffers[place][:size].reshape(own)
                call.function(*self._operands(call, fixed[i], xs, steps), target)
                steps[i] = target


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Return indices of parts of about a block of elements that cover an array, the largest first."""
    rest, axis = 1, len(shape)
    while axis and rest * shape[axis - 1] <= _BLOCK:
        axis -= 1
        rest *= shape[axis]
    if not axis:
        yield (Ellipsis,)
        return
    step = max(1, _BLOCK // rest)
    for outer in np.ndindex(*shape[: axis - 1]):
        for start in range(0, shape[axis - 1], step):
            yield (*outer, slice(start, start + step))


def block(x: Array, index: tuple[Any, ...], ndim: int) -> Array:
    """Return the part of an operand that belongs to a part of the results."""
    if index[0] is Ellipsis:
        return x
    found = []
    missing = ndim - x.ndim
    for axis, i in enumerate(index):
        if axis >= missing:
            found.append((slice(None) if isinstance(i, slice) else 0) if x.shape[axis - missing] == 1 else i)
    return x[tuple(found)]
