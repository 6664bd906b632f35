"""Fused functions that end with a reduction: map and reduction in one pass, in the order of the reduction by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, to_numpy_dtype
from pygpukit.errors import ShapeError
from pygpukit.ops import source as files
from pygpukit.ops.fuse.program import PROGRAMS, Program
from pygpukit.ops.fuse.source import Fused, function, long_operators
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i32, i64, nd, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.reduce import kernels
from pygpukit.ops.reduce.layout import axes_of, power_of_two
from pygpukit.ops.reduce.reference import result_type, wide_type
from pygpukit.ops.reduce.table import TABLE, Row
from pygpukit.ops.size import ceil_div, product

_ROW_THREADS = 128
_SLOTS = 32
_FEWEST_COLUMNS = 12
# Elements of all inputs that a thread loads before it computes, and evaluations of long operators in its code.
_IN_FLIGHT = 32
_MOST_LONG = 64


def infer(p: Problem, program: Program) -> list[Result]:
    """Return shape and type of the result."""
    from pygpukit.ops.fuse.plans import shape_of

    r = program.reduction
    assert r is not None
    row, shape, kind = TABLE[r.name], shape_of(p, program, program.outputs[0]), program.dtype(program.outputs[0])
    axes = axes_of(r.axis, len(shape))
    to = result_type(row, kind, r.dtype, p.requested[0] if p.requested else None)
    if row.empty is None:
        n, results = (product(shape[i] for i in range(len(shape)) if (i in axes) == one) for one in (True, False))
        if n == 0 and results != 0:
            raise ShapeError(f"{row.name}() of no elements has no value: an axis of 0 is reduced")
    return [Result(tuple(1 if i in axes else n for i, n in enumerate(shape) if r.keepdims or i not in axes), to)]


def wide_of(program: Program, to: DataType) -> DataType:
    """Return the type that is computed in for a result of type ``to``."""
    assert program.reduction is not None
    return wide_type(TABLE[program.reduction.name], program.dtype(program.outputs[0]), program.reduction.dtype, to)


def unit_of(program: Program) -> Unit:
    """Return the kernels for a result of the reduction's own type."""
    r = program.reduction
    assert r is not None
    to = result_type(TABLE[r.name], program.dtype(program.outputs[0]), r.dtype, None)
    return unit(program, wide_of(program, to), to)


@lru_cache(maxsize=256)
def unit(program: Program, wide: DataType, to: DataType) -> Unit:
    """Return the kernels for rows, columns and partial results."""
    assert program.reduction is not None
    row, kind = TABLE[program.reduction.name], program.dtype(program.outputs[0])
    made = function(program, (kind,))
    entries = kernels.entries(row, kind, wide, to)
    tail = entries[0].removeprefix("pgk_")
    name = f"{made.name}_{tail}"
    names = (name, f"{name}_cols", f"{name}_fold")
    op = f"{row.kernel}<{kind.tag}, {wide.tag}>"
    tags = [x.tag for x in program.arrays]
    pointers = "".join(f"const {t}* p{i}, " for i, t in enumerate(tags))
    k = len(tags)
    common = (
        f"    {to.tag}* out, {op}::State* partial, {pointers}\n    {made.parameters}long long n, long long results, "
    )
    nd = f"const __grid_constant__ Nd<{k}>"
    grids = f"unsigned zero,\n    {nd} kept, {nd} reduced, double correction) {{"
    members = f"{''.join(f'p{i}, ' for i in range(k))}{made.numbers}zero, kept, reduced"
    evaluations = long_operators(program) * kernels.vector(kind)
    in_flight = max(1, min(8, _IN_FLIGHT // (kernels.vector(kind) * k)))
    if evaluations:
        in_flight = max(1, min(in_flight, _MOST_LONG // evaluations))
    lines = [
        "namespace pgk {",
        *made.lines,
        *_elements(program, made, tags, kind.tag, evaluations <= _MOST_LONG),
        f'static_assert(sizeof({op}::State) == {row.state(wide)}, "the host allocates partial results");',
        f'extern "C" __global__ void __launch_bounds__({_ROW_THREADS}) {names[0]}(',
        f"{common}long long chunks, long long lanes, {grids}",
        "    await_predecessor();",
        *made.prologue,
        f"    const {made.name}_inputs f{{{members}}};",
        f"    fused_rows<{op}, {kind.tag}, {to.tag}, {in_flight}>(",
        "        out, partial, f, n, results, chunks, lanes, correction);",
        "}",
        f'extern "C" __global__ void __launch_bounds__(1024) {names[1]}(',
        f"{common}long long chunks, {grids}",
        "    await_predecessor();",
        *made.prologue,
        f"    const {made.name}_inputs f{{{members}}};",
        f"    fused_cols<{op}, {kind.tag}, {to.tag}>(out, partial, f, n, results, chunks, correction);",
        "}",
        f'extern "C" __global__ void __launch_bounds__(1024) {names[2]}(',
        f"    {to.tag}* out, {op}::State* next, const {op}::State* partial, long long n, long long results,",
        "    long long chunks, long long span, double correction) {",
        f"    reduce_fold<{op}, {to.tag}>(out, next, partial, n, results, chunks, span, correction);",
        "}",
        "}  // namespace pgk",
    ]
    text = files.read("reduce/reduce.cu") + files.read("fuse/reduce.cu") + "\n".join(lines) + "\n"
    return Unit(names[0], text, names)


def _elements(program: Program, made: Fused, tags: Sequence[str], kind: str, unrolled: bool) -> list[str]:
    """Return the struct by which the kernels read inputs and evaluate the function."""
    from pygpukit.ops.fuse.source import slots

    inputs, k = range(len(tags)), len(tags)
    numbers = [f"    {slot.dtype.tag} s{i};" for i, slot in enumerate(slots(program))]
    return [
        f"struct {made.name}_inputs {{",
        *(f"    const {tags[i]}* p{i};" for i in inputs),
        *numbers,
        "    u32 zero;",
        f"    const Nd<{k}>& kept;",
        f"    const Nd<{k}>& reduced;",
        "    template <int V> struct Loaded {",
        *(f"        {tags[i]} x{i}[V];" for i in inputs),
        "    };",
        "    struct Line {",
        f"        const {made.name}_inputs& f;",
        f"        i64 at[{k}];",
        "        template <int V> PGK_FN void load(Loaded<V>& to, i64 first, int count, bool on) const {",
        f"            i64 offset[{k}];",
        f"            const Nd<{k}>& nd = f.reduced;",
        "            const i64 last = nd.ndim - 1, position = locate_outer(offset, first, nd);",
        "            count = on ? count : 0;",
        "            if (last < 0 || position + V <= nd.shape[last] || count == 0) {",
        *(f"                {{ const i64 s = last < 0 ? 0 : nd.stride[{i}][last]; "
          f"load_run<V>(to.x{i}, f.p{i} + at[{i}] + offset[{i}] + position * s, s, count); }}" for i in inputs),
        "                return;",
        "            }",
        "#pragma unroll",
        "            for (int e = 0; e < V; ++e) {",
        "                locate_all(offset, e < count ? first + e : first, nd);",
        *(f"                to.x{i}[e] = element(f.p{i} + at[{i}] + offset[{i}], e < count, {tags[i]}{{}});"
          for i in inputs),
        "            }",
        "        }",
        f"        template <int V> PGK_FN void apply(Vec<{kind}, V>& y, const Loaded<V>& x) const {{",
        "#pragma unroll" if unrolled else "#pragma unroll 1",
        f"            for (int e = 0; e < V; ++e) {made.name}_elements::apply(f.zero, "
        + "".join(f"f.s{i}, " for i in range(len(numbers))) + "".join(f"x.x{i}[e], " for i in inputs) + "y.e[e]);",
        "        }",
        "    };",
        "    PGK_FN Line line(i64 r) const {",
        "        Line line{*this, {}};",
        "        locate_all(line.at, r, kept);",
        "        return line;",
        "    }",
        "};",
    ]  # fmt: skip


def accepts(p: Problem) -> str | None:
    """Return why the kernels do not run a problem; None if they do."""
    program = PROGRAMS[p.options["program"]]
    if program.reduction is None:
        return "the function does not end with a reduction"
    return None if p.out.is_contiguous() else "out is not contiguous"


def launch(p: Problem) -> Launch:
    """Return the launches of a map and reduction."""
    from pygpukit.ops.fuse.plans import merged, numbers_of, shape_of, strides_of

    program = PROGRAMS[p.options["program"]]
    assert program.reduction is not None
    row, kind = TABLE[program.reduction.name], program.dtype(program.outputs[0])
    wide = wide_of(program, p.out.dtype)
    source = unit(program, wide, p.out.dtype)
    shape = shape_of(p, program, program.outputs[0])
    axes = axes_of(program.reduction.axis, len(shape))
    tensors = list(p.inputs.values())
    strides = [strides_of(t, shape) for t in tensors]
    stay = [i for i in range(len(shape)) if i not in axes]
    results, n = (product(shape[i] for i in chosen) for chosen in (stay, axes))
    kept, reduced = (merged([shape[i] for i in chosen], [[s[i] for i in chosen] for s in strides])
                     for chosen in (stay, axes))  # fmt: skip
    slots = ceil_div(n, kernels.vector(kind))
    # Both kernels give the same bits; columns read whole cache lines where neighbours are other results.
    across = reduced[0] and not any(s[-1] == 1 for s in reduced[1])
    by_columns = bool(across and kept[0] and any(s[-1] == 1 for s in kept[1]) and kept[0][-1] >= _FEWEST_COLUMNS)
    numbers = numbers_of(program)

    def first(partial: Tensor, chunks: Any, state: int, last: bytes) -> KernelLaunch:
        arguments: list[Argument] = [write(p.out), write(partial), *map(read, tensors), *numbers]
        arguments += [i64(n), i64(results), i64(chunks)]
        tail = (i32(0), nd(*kept), nd(*reduced), last)
        if by_columns:
            parts = power_of_two(slots, _SLOTS)
            blocks = blocks_for(ceil_div(results, 32) * chunks, 1, "a fused reduction")
            shared = parts // 2 * (32 * state)
            return KernelLaunch(source, source.entries[1], (blocks,), (parts * 32,), (*arguments, *tail), shared=shared)
        lanes = power_of_two(slots, _SLOTS)
        blocks = blocks_for(results * chunks * lanes, _ROW_THREADS, "a fused reduction")
        return KernelLaunch(source, source.entries[0], (blocks,), (_ROW_THREADS,), (*arguments, i64(lanes), *tail))

    return kernels.folded(row, source, kind, p.out, wide, (n, results), first)


def by_a_copy(p: Problem) -> Callable[..., None]:
    """Reduce to a new array and copy that to where it was asked for."""
    from pygpukit.ops.fuse.plans import function_for

    arrays = len(p.inputs)
    run = function_for(arrays, len(p.options) - 1, True)
    kind = p.out.dtype

    def compose(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.array.creation import empty

        (out,) = results
        made = run(*given, out=empty(out.shape, kind, device=out.device))
        _native.apply("copy", (made,), out)

    return compose


def host(program: Program, p: Problem) -> Callable[..., None]:
    """Return the function of NumPy views: the steps into a new array, which NumPy reduces as for the operator."""
    from pygpukit.ops.fuse.host import Chain, reduced
    from pygpukit.ops.fuse.plans import shape_of

    r = program.reduction
    assert r is not None
    row, output = TABLE[r.name], program.outputs[0]
    kind = program.dtype(output)
    chain = Chain(program, (kind,)) if output.role == "step" else None
    whole = shape_of(p, program, output)
    reduce = _reduce(row, Tensor("input", 0, kind, whole), p, r)
    # NumPy sums rows one by one: a part of them gives the same bits.
    axes = axes_of(r.axis, len(whole))
    by_rows = axes != () and axes[0] > 0 and axes == tuple(range(axes[0], len(whole)))
    arrays, below, to = len(program.arrays), sorted(program.leaves(output)), to_numpy_dtype(kind)

    def run(*given: Any) -> None:
        if chain is None:
            reduce(given[below[0]], None, given[-1])
            return
        shape = np.broadcast_shapes(*(given[i].shape for i in below))
        reduced(chain, reduce, by_rows, shape, to, given[:arrays], given[arrays:-1], given[-1])

    return run


def _reduce(row: Row, x: Tensor, p: Problem, r: Any) -> Callable[..., None]:
    from pygpukit.ops.reduce.rows import host_of

    inner = Problem(row.name, p.kind, p.arch, p.trace)
    inner.arrays = {"x": x, "where": None}
    inner.options = {"axis": r.axis, "keepdims": r.keepdims, "dtype": r.dtype}
    inner.outputs = p.outputs
    return host_of(row, inner)
