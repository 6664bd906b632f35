"""Plans of programs: results, launches and NumPy functions for a class of arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise.plan import PER_BLOCK_ND, THREADS
from pygpukit.ops.fuse import source
from pygpukit.ops.fuse.program import PROGRAMS, Operand, Program
from pygpukit.ops.fuse.scalars import count
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, blocks_for, i32, i64, nd, read, write
from pygpukit.ops.launch import Number as NumberArgument
from pygpukit.ops.problem import Problem, Result, Tensor, broadcast
from pygpukit.ops.registry import OPERATORS, Operator, Parameter, Variant, register
from pygpukit.ops.size import hint, product

MOST_ARRAYS = 32
"""Arrays a fused function may read and write together: their strides travel in the kernel's arguments."""


def program_of(p: Problem) -> Program:
    """Return the program of a problem."""
    return PROGRAMS[p.options["program"]]


def shape_of(p: Problem, program: Program, operand: Operand) -> tuple[Any, ...]:
    """Return the shape of an operand: that of the arrays below it, broadcast."""
    shape: tuple[Any, ...] = ()
    arrays = list(p.inputs.values())
    for i in sorted(program.leaves(operand)):
        joint = broadcast(shape, arrays[i].shape)
        if joint is None:
            shapes = ", ".join(str(tuple(hint(n) for n in arrays[k].shape)) for k in sorted(program.leaves(operand)))
            raise ShapeError(f"fused function: shapes {shapes} cannot be broadcast together")
        shape = joint
    return shape


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Are two shapes the same?"""
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True))


def infer(p: Problem) -> list[Result]:
    """Return shapes and types of the results."""
    program = program_of(p)
    for one, other in program.same_shapes:
        a, b = shape_of(p, program, one), shape_of(p, program, other)
        if not same_shape(a, b):
            raise ShapeError(
                f"fused function: an in-place operator gives shape {tuple(map(hint, b))}, "
                f"which an array of shape {tuple(map(hint, a))} cannot take"
            )
    if program.reduction is not None:
        from pygpukit.ops.fuse import reduction

        return reduction.infer(p, program)
    shapes = [shape_of(p, program, o) for o in program.outputs]
    for shape in shapes[1:]:
        if not same_shape(shape, shapes[0]):
            shown = ", ".join(str(tuple(map(hint, s))) for s in shapes)
            raise ShapeError(
                f"fused function: its results have shapes {shown}, but one kernel writes results of one shape; "
                "broadcast the smaller ones, or fuse them apart"
            )
    return [Result(shapes[0], kind) for kind in program.written(p.requested)]


def strides_of(tensor: Tensor, shape: Sequence[Any]) -> list[Any]:
    """Return the strides of an array broadcast to a shape."""
    missing = len(shape) - tensor.ndim
    return [0] * missing + [0 if n == 1 else s for n, s in zip(tensor.shape, tensor.strides, strict=True)]


def merged(shape: Sequence[Any], strides: Sequence[Sequence[Any]]) -> tuple[list[Any], list[list[Any]]]:
    """Join neighbouring axes that are one in every operand, and leave out those of one element."""
    sizes: list[Any] = []
    steps: list[list[Any]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [s[axis] for s in strides]
        if sizes and all(before[-1] == now * size for before, now in zip(steps, here, strict=True)):
            sizes[-1] = sizes[-1] * size
            for before, now in zip(steps, here, strict=True):
                before[-1] = now
        else:
            sizes.append(size)
            for before, now in zip(steps, here, strict=True):
                before.append(now)
    return sizes, steps


def numbers_of(program: Program) -> list[Argument]:
    """Return the words of a program's numbers, as arguments of its kernels."""
    from pygpukit.ops.fuse.scalars import words

    found: list[Argument] = []
    at = 0
    for slot in source.slots(program):
        number = program.numbers[slot.number]
        if number.constant:
            found += [i64(w) for w in words(number.constant[0], number.kind, slot.dtype)]
            continue
        for _ in range(count(slot.dtype)):
            found.append(NumberArgument(f"number{at}", _int64()))
            at += 1
    return found


@cache
def _int64() -> Any:
    from pygpukit.dtypes import dtype

    return dtype("int64")


def _dense(p: Problem) -> str | None:
    shape = p.outputs[0].shape
    for out in p.outputs:
        if not out.is_contiguous():
            return "an output is not contiguous"
    for tensor in p.inputs.values():
        if tensor.size == 1:
            continue
        if not tensor.is_contiguous() or not same_shape(tensor.shape, shape):
            return "an operand is neither dense nor a single element"
    return None


def _launch_dense(p: Problem) -> Launch:
    program = program_of(p)
    unit = source.elementwise(program, tuple(t.dtype for t in p.outputs))
    e = source.vector(program, [t.dtype for t in p.outputs])
    n = p.outputs[0].size
    aligned, arguments = True, [write(t) for t in p.outputs]
    inputs: list[Argument] = []
    for tensor in p.inputs.values():
        single = bool(tensor.size == 1)
        aligned = aligned and (single or tensor.is_aligned(e * tensor.dtype.itemsize))
        inputs += [read(tensor), i64(0 if single else 1)]
    for tensor in p.outputs:
        aligned = aligned and tensor.is_aligned(e * tensor.dtype.itemsize)
    blocks = blocks_for(n, THREADS * e, "a fused function")
    all_arguments = (*arguments, *inputs, *numbers_of(program), i64(n), i32(int(aligned)), i32(0))
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (THREADS,), all_arguments),))


def _layout(p: Problem) -> tuple[list[Any], list[list[Any]]]:
    """Return the axes of a call, and their strides in every output and input."""
    shape = p.outputs[0].shape
    return merged(shape, [strides_of(t, shape) for t in (*p.outputs, *p.inputs.values())])


def _in_vectors(p: Problem) -> str | None:
    e = source.vector(program_of(p), [t.dtype for t in p.outputs])
    sizes, strides = _layout(p)
    if e == 1 or not sizes or sizes[-1] % e != 0:
        return "the last axis is not made of vectors"
    for i, (tensor, steps) in enumerate(zip((*p.outputs, *p.inputs.values()), strides, strict=True)):
        if steps[-1] != 1:
            if i < len(p.outputs) or steps[-1] != 0:
                return "the last axis of an operand is not contiguous"
        elif not tensor.is_aligned(e * tensor.dtype.itemsize) or any(s % e != 0 for s in steps[:-1]):
            return "a row of an operand is not aligned to vectors"
    return None


def _launch_vectors(p: Problem) -> Launch:
    program = program_of(p)
    targets = [t.dtype for t in p.outputs]
    unit, e = source.elementwise(program, tuple(targets)), source.vector(program, targets)
    sizes, strides = _layout(p)
    dense = sum(bool(steps[-1] == 1) << i for i, steps in enumerate(strides[len(targets) :]))
    # One index is a vector.
    sizes = [*sizes[:-1], sizes[-1] // e]
    strides = [[*steps[:-1], steps[-1] * e] for steps in strides]
    n = product(sizes)
    blocks = blocks_for(n, PER_BLOCK_ND, "a fused function")
    numbers = (*numbers_of(program), i64(n), i64(dense), i32(0))
    arguments = (*map(write, p.outputs), *map(read, p.inputs.values()), *numbers, nd(sizes, strides))
    return Launch((KernelLaunch(unit, unit.entries[2], (blocks,), (THREADS,), arguments),))


def _launch_strided(p: Problem) -> Launch:
    program = program_of(p)
    unit = source.elementwise(program, tuple(t.dtype for t in p.outputs))
    n = p.outputs[0].size
    sizes, strides = _layout(p)
    blocks = blocks_for(n, PER_BLOCK_ND, "a fused function")
    arguments = (*map(write, p.outputs), *map(read, p.inputs.values()), *numbers_of(program), i64(n), i32(0),
                 nd(sizes, strides))  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[1], (blocks,), (THREADS,), arguments),))


def _reduced(p: Problem) -> str | None:
    from pygpukit.ops.fuse import reduction

    return reduction.accepts(p)


def _launch_reduction(p: Problem) -> Launch:
    from pygpukit.ops.fuse import reduction

    return reduction.launch(p)


def _by_a_copy(p: Problem) -> Callable[..., None]:
    from pygpukit.ops.fuse import reduction

    return reduction.by_a_copy(p)


def _host(p: Problem) -> Callable[..., None]:
    from pygpukit.ops.fuse.host import BLOCK, Chain

    program = program_of(p)
    if program.reduction is not None:
        from pygpukit.ops.fuse import reduction

        return reduction.host(program, p)
    chain = Chain(program, tuple(t.dtype for t in p.outputs))
    out = p.outputs[0]
    if all(same_shape(t.shape, out.shape) for t in p.inputs.values()):
        if out.size <= BLOCK:
            return chain.whole
        if all(t.is_contiguous() for t in (*p.inputs.values(), *p.outputs)):
            return chain.flat
    return chain.general


def _bytes(p: Problem) -> int:
    return sum(int(t.nbytes) for t in (*p.inputs.values(), *p.outputs))


def _flops(p: Problem) -> int:
    from pygpukit.ops.reduce.table import TABLE

    program = program_of(p)
    each = sum(step.operation.row.flops for step in program.steps)
    if program.reduction is not None:
        each += TABLE[program.reduction.name].flops
    return each * int(product(shape_of(p, program, program.outputs[0])))


_HOST = Variant("NumPy in blocks", "run_to_run", lambda p: None, host=_host)
_ELEMENTWISE = (
    Variant("dense", "batch_invariant", _dense, launch=_launch_dense),
    Variant("vectors along the last axis", "batch_invariant", _in_vectors, launch=_launch_vectors),
    Variant("strided", "batch_invariant", lambda p: None, launch=_launch_strided),
    _HOST,
)
_REDUCTION = (
    Variant("map and reduction", "batch_invariant", _reduced, launch=_launch_reduction),
    _HOST,
    Variant("a copy to out", "batch_invariant", lambda p: None, compose=_by_a_copy),
)
_lock = threading.Lock()
_functions: dict[tuple[int, int, bool], Callable[..., Any]] = {}


def function_for(arrays: int, numbers: int, reduces: bool) -> Callable[..., Any]:
    """Return the operator that runs programs of so many arrays and words of numbers, with or without a reduction.

    The first argument is the program's number. On the CPU device numbers are themselves, not words.
    """
    found = _functions.get((arrays, numbers, reduces))
    if found is not None:
        return found
    with _lock:
        name = f"fused_{'reduction_' if reduces else ''}{arrays}_{numbers}"
        if name not in OPERATORS:
            parameters = [Parameter("program", "choice")]
            parameters += [Parameter(f"array{i}") for i in range(arrays)]
            parameters += [Parameter(f"number{i}", "number") for i in range(numbers)]
            _functions[arrays, numbers, reduces] = register(
                Operator(
                    name=name,
                    parameters=tuple(parameters),
                    infer=infer,
                    reference=_no_reference,
                    variants=_REDUCTION if reduces else _ELEMENTWISE,
                    doc="A program made by `pygpukit.fuse`.",
                    flops=_flops,
                    bytes=_bytes,
                    public=False,
                    in_place=not reduces,
                )
            )
        return _functions[arrays, numbers, reduces]


def _no_reference(*_: Any) -> Any:
    raise TypeError("the reference of a fused program is the function that it was traced from")
