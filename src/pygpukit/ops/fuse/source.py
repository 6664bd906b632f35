"""CUDA sources of programs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pygpukit.dtypes import DataType
from pygpukit.ops.elementwise.plan import PER_BLOCK_ND, THREADS
from pygpukit.ops.fuse.program import Operand, Program
from pygpukit.ops.fuse.scalars import count
from pygpukit.ops.launch import Unit

# Evaluations of long functions one thread may have in its code, and of any operators.
_MOST_LONG = 48
_MOST_STEPS = 4096
# Operators that do not end with a product which the compiler could fuse with a sum of the next operator, and that
# begin with nothing that depends on how an operand was made.
_PLAIN_COMPLEX = frozenset(
    ("add", "sub", "neg", "conj", "where", "copy", "real", "imag", "maximum", "minimum", "fmax", "fmin")
)
_PLAIN = _PLAIN_COMPLEX | frozenset(
    ("mul", "square", "abs", "sign", "lerp", "clamp", "relu", "copysign", "floor", "ceil", "trunc", "round")
)


class Slot(NamedTuple):
    """A number as steps take it: which one, and its element type."""

    number: int
    dtype: DataType


def slots(program: Program) -> list[Slot]:
    """Return the numbers of a program by element type, in the order of the kernels' parameters."""
    found: dict[Slot, None] = {}
    for step in program.steps:
        for operand, kind in zip(step.operands, step.operation.inputs, strict=True):
            if operand.role == "number":
                found[Slot(operand.index, kind)] = None
    return list(found)


def long_operators(program: Program) -> int:
    """Return how many steps have a long expression."""
    return sum(step.operation.row.weight == "heavy" for step in program.steps)


def vector(program: Program, targets: Sequence[DataType]) -> int:
    """Return how many elements a thread of the dense kernel has."""
    elements = max(1, 16 // max(x.itemsize for x in (*program.arrays, *targets)))
    long = long_operators(program)
    if long:
        elements = min(elements, 4)
    while elements > 1 and (elements * long > _MOST_LONG or elements * len(program.steps) > _MOST_STEPS):
        elements //= 2
    return elements


def unrolled(program: Program) -> int:
    """Return how many elements a thread of the strided kernel has in flight."""
    operands = len(program.arrays) + len(program.outputs)
    return 1 if vector(program, ()) == 1 or operands > 8 else 2 if operands > 4 else 4


class Fused(NamedTuple):
    """The element function of a program as text, and what calls it.

    Attributes
    ----------
    name
        Of the struct and of kernels.
    lines
        Structs of the operators and of the function.
    parameters
        Of numbers in kernels, as text; empty or with a comma behind each.
    prologue
        Lines that make elements of them.
    numbers
        Arguments of the function that stand for them, with commas behind.
    """

    name: str
    lines: tuple[str, ...]
    parameters: str
    prologue: tuple[str, ...]
    numbers: str


def function(program: Program, targets: Sequence[DataType]) -> Fused:
    """Return the element function of a program, which writes results of the types ``targets``."""
    operators: dict[str, tuple[str, ...]] = {}
    taken = slots(program)
    place = {slot: i for i, slot in enumerate(taken)}

    def read(operand: Operand, kind: DataType) -> str:
        if operand.role == "number":
            return f"s{place[Slot(operand.index, kind)]}"
        return f"{'x' if operand.role == 'array' else 'v'}{operand.index}"

    body: list[str] = []
    for i, step in enumerate(program.steps):
        made = step.operation
        operators[made.name] = made.text
        arguments = [read(o, kind) for o, kind in zip(step.operands, made.inputs, strict=True)]
        plain = step.dtype.kind not in "fc" or step.name in (_PLAIN_COMPLEX if made.plan.common.kind == "c" else _PLAIN)
        if not plain:
            arguments = [f"isolated({a})" for a in arguments]
        arguments += ["none{}"] * (3 - len(arguments))
        tag = step.dtype.tag
        value = f"output<{tag}>({made.name}::apply({', '.join(arguments)}))"
        if not plain and step.dtype.itemsize >= 4:
            value = f"unfused({value}, zero)"
        body.append(f"const {tag} v{i} = {value};")
    for i, (output, target) in enumerate(zip(program.outputs, targets, strict=True)):
        value = read(output, target)
        body.append(f"y{i} = {value if program.dtype(output) is target else f'output<{target.tag}>(widen({value}))'};")
    parameters = [f"{slot.dtype.tag} s{i}" for i, slot in enumerate(taken)]
    parameters += [f"{kind.tag} x{i}" for i, kind in enumerate(program.arrays)]
    parameters += [f"{kind.tag}& y{i}" for i, kind in enumerate(targets)]
    text = "\n".join([*parameters, *body])
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()[:12]
    names = "_".join(step.name for step in program.steps)
    name = f"pgk_fused_{names if len(names) <= 48 else f'{names[:40]}_{len(program.steps)}_operators'}_{digest}"
    lines = [line for struct in operators.values() for line in struct]
    lines += [
        f"struct {name}_elements {{",
        f"    static PGK_FN void apply(u32 zero, {', '.join(parameters)}) {{",
        *(f"        {line}" for line in body),
        "    }",
        "};",
    ]
    words, prologue, at = "", [], 0
    for i, slot in enumerate(taken):
        used = [f"w{at + k}" for k in range(count(slot.dtype))]
        at += len(used)
        words += "".join(f"long long {w}, " for w in used)
        number = program.numbers[slot.number]
        note = f"  // {number.constant[0]!r}" if number.constant else ""
        prologue.append(f"    const {slot.dtype.tag} s{i} = number<{slot.dtype.tag}>({', '.join(used)});{note}")
    return Fused(name, tuple(lines), words, tuple(prologue), "".join(f"s{i}, " for i in range(len(taken))))


@lru_cache(maxsize=256)
def elementwise(program: Program, targets: tuple[DataType, ...]) -> Unit:
    """Return the kernels that write elementwise results: dense, strided, and of vectors along the last axis."""
    made = function(program, targets)
    e, u = vector(program, targets), unrolled(program)
    inputs, outputs = range(len(program.arrays)), range(len(targets))
    operands = len(inputs) + len(outputs)
    tags, results = [x.tag for x in program.arrays], [x.tag for x in targets]
    outs = "".join(f"{results[i]}* o{i}, " for i in outputs)
    dense = "".join(f"const {tags[i]}* p{i}, long long step{i}, " for i in inputs)
    strided = "".join(f"const {tags[i]}* p{i}, " for i in inputs)

    def apply(x: str, y: str) -> str:
        given = "".join(f"x{i}{x}, " for i in inputs) + ", ".join(f"y{i}{y}" for i in outputs)
        return f"{made.name}_elements::apply(zero, {made.numbers}{given});"

    lines = [
        '#include "pygpukit/fuse.cuh"',
        "namespace pgk {",
        *made.lines,
        "",
        f"// {THREADS} threads, {e} elements each; step 0: one element for all; vec: all are aligned to {e} elements.",
        f'extern "C" __global__ void __launch_bounds__({THREADS}) {made.name}(',
        f"    {outs}{dense}",
        f"    {made.parameters}long long n, int vec, unsigned zero) {{",
        "    await_predecessor();",
        *made.prologue,
        f"    constexpr int E = {e}, span = {THREADS} * E;",
        "    const i64 base = static_cast<i64>(blockIdx.x) * span;",
        "    const int left = n - base < span ? static_cast<int>(n - base) : span;",
        "    const int lane = static_cast<int>(threadIdx.x);",
        *(f"    const auto a{i} = Source<Operand<{tags[i]}, u8>>::of({{p{i}, step{i}, 0}}, base, step{i} != 0);"
          for i in inputs),
        *(f"    o{i} += base;" for i in outputs),
        "    int start = 0;",
        "    if (vec) {",
        "        const int at = lane * E;",
        "        const bool on = at + E <= left;",
        *(f"        const auto x{i} = a{i}.vector<E>(at, on);" for i in inputs),
        "        if (on) {",
        *(f"            Vec<{results[i]}, E> y{i};" for i in outputs),
        "#pragma unroll",
        "            for (int i = 0; i < E; ++i) {",
        "                " + apply(".e[i]", ".e[i]"),
        "            }",
        *(f"            store(o{i} + at, y{i});" for i in outputs),
        "        }",
        "        start = left & ~(E - 1);",
        "    }",
        "#pragma unroll 1",
        f"    for (int at = start + lane; at < left; at += {THREADS}) {{",
        *(f"        const {tags[i]} x{i} = a{i}.one(at, true);" for i in inputs),
        *(f"        {results[i]} y{i};" for i in outputs),
        "        " + apply("", ""),
        *(f"        o{i}[at] = y{i};" for i in outputs),
        "    }",
        "}",
        "",
        f"// {THREADS} threads, {PER_BLOCK_ND} elements per block; strides of outputs, then of inputs.",
        f'extern "C" __global__ void __launch_bounds__({THREADS}) {made.name}_nd(',
        f"    {outs}{strided}",
        f"    {made.parameters}long long n, unsigned zero, const __grid_constant__ Nd<{operands}> nd) {{",
        "    await_predecessor();",
        *made.prologue,
        f"    constexpr int U = {u};",
        f"    const i64 base = static_cast<i64>(blockIdx.x) * {PER_BLOCK_ND};",
        "#pragma unroll 1",
        f"    for (int ahead = threadIdx.x; ahead < {PER_BLOCK_ND}; ahead += U * {THREADS}) {{",
        f"        i64 offset[{operands}][U];",
        f"        locate<{operands}, U>(offset, base, ahead, nd);",
        *(f"        {tags[i]} x{i}[U];" for i in inputs),
        "#pragma unroll",
        "        for (int j = 0; j < U; ++j) {",
        f"            const bool on = base + ahead + j * {THREADS} < n;",
        *(f"            x{i}[j] = element(p{i} + offset[{len(outputs) + i}][j], on, {tags[i]}{{}});" for i in inputs),
        "        }",
        "#pragma unroll",
        "        for (int j = 0; j < U; ++j) {",
        f"            if (base + ahead + j * {THREADS} < n) {{",
        *(f"                {results[i]} y{i};" for i in outputs),
        "                " + apply("[j]", ""),
        *(f"                o{i}[offset[{i}][j]] = y{i};" for i in outputs),
        "            }",
        "        }",
        "    }",
        "}",
        "",
        f"// As _nd, with vectors of {e} elements in place of elements. dense: a bit per input contiguous along",
        "// the last axis; of any other one element stands for a vector.",
        f'extern "C" __global__ void __launch_bounds__({THREADS}) {made.name}_vectors(',
        f"    {outs}{strided}",
        f"    {made.parameters}long long n, long long dense, unsigned zero,",
        f"    const __grid_constant__ Nd<{operands}> nd) {{",
        "    await_predecessor();",
        *made.prologue,
        f"    constexpr int E = {e};",
        f"    const i64 base = static_cast<i64>(blockIdx.x) * {PER_BLOCK_ND};",
        "#pragma unroll 1",
        f"    for (int ahead = threadIdx.x; ahead < {PER_BLOCK_ND} && base + ahead < n; ahead += {THREADS}) {{",
        f"        i64 offset[{operands}][1];",
        f"        locate<{operands}, 1>(offset, base, ahead, nd);",
        *(f"        const auto x{i} = vector_of<E>(p{i} + offset[{len(outputs) + i}][0], dense >> {i} & 1);"
          for i in inputs),
        *(f"        Vec<{results[i]}, E> y{i};" for i in outputs),
        "#pragma unroll",
        "        for (int i = 0; i < E; ++i) {",
        "            " + apply(".e[i]", ".e[i]"),
        "        }",
        *(f"        store(o{i} + offset[{i}][0], y{i});" for i in outputs),
        "    }",
        "}",
        "}  // namespace pgk",
    ]  # fmt: skip
    return Unit(made.name, "\n".join(lines) + "\n", (made.name, f"{made.name}_nd", f"{made.name}_vectors"))
