"""Drawing one token per row of logits, with parameters per row in device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Struct, Unit, Workspace, i64, read, update, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, register
from pygpukit.ops.sampling import reference
from pygpukit.ops.sampling.functions import Penalties, sample, token_logprobs, top_logprobs
from pygpukit.ops.size import ceil_div, hint, maximum
from pygpukit.ops.source import instance

__all__ = ["Penalties", "sample", "sample_rows", "token_logprobs", "top_logprobs"]

_THREADS = 256
_SEGMENT = 4096
_BINS = 2048
_MOST_ROWS = 65535

# Types of the parameters of rows, and of those with an element per token of the vocabulary.
_PER_ROW = {
    "temperature": ("float32",), "top_k": ("int32",), "top_p": ("float32",), "min_p": ("float32",),
    "seeds": ("uint64", "int64"), "positions": ("int64", "uint64"), "repetition": ("float32",),
    "frequency": ("float32",), "presence": ("float32",),
}  # fmt: skip
_PER_TOKEN = {"counts": ("int32",), "prompt": ("bool", "uint8"), "bias": ("float32",), "allowed": ("int32", "uint32")}


def _shown(x: Tensor) -> str:
    return str(tuple(hint(n) for n in x.shape))


def _infer(p: Problem) -> list[Result]:
    logits = p["logits"]
    if logits.dtype.name not in ("float16", "bfloat16", "float32"):
        raise DTypeError(f"{p.name}: logits are {logits.dtype.name}; use float16, bfloat16 or float32")
    if logits.ndim != 2:
        raise ShapeError(f"{p.name}: logits have shape {_shown(logits)}; they must be [rows, vocabulary]")
    rows, vocabulary = logits.shape
    if vocabulary >= 2**31:
        raise ShapeError(f"{p.name}: a vocabulary of {hint(vocabulary)} tokens; ids are int32")
    if rows > _MOST_ROWS:
        raise ShapeError(f"{p.name}: {hint(rows)} rows; at most {_MOST_ROWS} at a time")
    for name, kinds in (_PER_ROW | _PER_TOKEN).items():
        x = p.arrays.get(name)
        if x is None:
            continue
        if x.dtype.name not in kinds:
            raise DTypeError(f"{p.name}: {name} has type {x.dtype.name}; use {' or '.join(kinds)}")
        if name in _PER_ROW:
            fits = x.ndim == 1 and x.shape[0] == rows
            wanted = f"({hint(rows)},)"
        else:
            n = ceil_div(vocabulary, 32) if name == "allowed" else vocabulary
            fits = x.ndim == 2 and x.shape[0] == rows and x.shape[1] == n
            if name == "bias" and x.ndim == 1:
                fits = x.shape[0] == n
            wanted = f"({hint(rows)}, {hint(n)})" + " or one row" * (name == "bias")
        if not fits:
            raise ShapeError(f"{p.name}: {name} has shape {_shown(x)}; logits {_shown(logits)} need {wanted}")
    if p.requested and p.requested[0].name != "int32":
        raise DTypeError(f"{p.name}: out is {p.requested[0].name}; tokens are int32")
    return [Result((rows,), dtype("int32"))]


def _accepts(p: Problem) -> str | None:
    for name, x in p.inputs.items():
        if x.shape[-1] != 1 and x.strides[-1] != 1:
            return f"the elements of a row of '{name}' do not lie side by side"
    if not p.out.is_contiguous():
        return "out is not contiguous"
    return "an empty vocabulary" if p["logits"].shape[1] == 0 else None


def _launch(p: Problem) -> Launch:
    logits, work = p["logits"], Workspace()
    rows, vocabulary = logits.shape
    segments = ceil_div(vocabulary, _SEGMENT)
    kinds = [kind for kind, name in enumerate(("top_k", "top_p")) if p.arrays.get(name) is not None]
    stages = [(kind, digit) for kind in kinds for digit in range(3)]
    keys = work.buffer(dtype("uint32"), rows, segments * _SEGMENT)
    largest = work.buffer(dtype("uint32"), rows, segments)
    bins = work.buffer(dtype("uint64"), maximum(rows, 1), max(len(stages), 1) * _BINS)
    states = work.buffer(dtype("uint64"), maximum(rows, 1), 32)
    best = work.counters(dtype("uint64"), maximum(rows, 1), 2)

    def given(name: str) -> Argument:
        x = p.arrays.get(name)
        return i64(0) if x is None else read(x)

    def step(name: str) -> Any:
        x = p.arrays.get(name)
        return 0 if x is None or x.ndim == 1 else x.strides[0]

    def sizes(stage: int = 0, kind: int = 0, digit: int = 0) -> Struct:
        members = (
            vocabulary, logits.strides[0], segments, len(stages), stage, kind, digit, int(0 in kinds), step("bias"),
            step("counts"), step("prompt"), step("allowed"),
        )  # fmt: skip
        return Struct(tuple(map(i64, members)))

    grid, block = (segments, rows), (_THREADS,)
    first, unit = prepare_unit(logits.dtype), draw_unit()
    narrow, draw = unit.entries
    launches = [
        KernelLaunch(
            first, first.entries[0], grid, block,
            (write(keys), write(largest), write(bins), read(logits),
             *map(given, ("bias", "allowed", "counts", "prompt", "repetition", "frequency", "presence")), sizes()),
        )
    ]  # fmt: skip
    for stage, (kind, digit) in enumerate(stages):
        arguments: tuple[Argument, ...] = (
            update(bins), update(states), read(keys), read(largest),
            *map(given, ("temperature", "top_k", "top_p", "min_p")), sizes(stage, kind, digit),
        )  # fmt: skip
        launches.append(KernelLaunch(unit, narrow, grid, block, arguments))
    arguments = (
        write(p.out), update(best), read(states), read(bins), read(keys), read(largest),
        *map(given, ("temperature", "top_p", "min_p", "seeds", "positions")), sizes(),
    )  # fmt: skip
    launches.append(KernelLaunch(unit, draw, grid, block, arguments))
    return Launch(tuple(launches), tuple(work.pieces))


@cache
def prepare_unit(x: DataType) -> Unit:
    """Return the source of the first launch for one type of logits."""
    entry = f"pgk_sample_prepare_{x.tag}"
    return instance("sampling/sample.cu", [f"PGK_SAMPLE_PREPARE({entry}, {x.tag})"], (entry,))


@cache
def draw_unit() -> Unit:
    """Return the source of the launches behind it."""
    entries = ("pgk_sample_narrow", "pgk_sample_draw")
    return instance("sampling/sample.cu", [f"PGK_SAMPLE_DRAW({', '.join(entries)})"], entries)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield from (prepare_unit(dtype(name)) for name in types if name in ("float16", "bfloat16", "float32"))
    yield draw_unit()


def _host(p: Problem) -> Callable[..., None]:
    def run(*values: Any) -> None:
        values[-1][...] = reference.sample_rows(*values[:-1])

    return run


def _compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        if given[0].shape[1] == 0:
            results[0].fill(-1)
        else:
            results[0][...] = sample_rows(*[x if x is None else x.contiguous() for x in given])

    return run


_DOCS = {
    "temperature": "float32; 1 without. 0 takes the largest logit, whatever else is asked for.",
    "top_k": "int32: how many of the largest are kept; 0 keeps all.",
    "top_p": "float32: the shortest prefix with that share of the mass is kept; 1 keeps all.",
    "min_p": "float32: those of that share of the largest probability, at least, are kept.",
    "seeds": "uint64 or int64; 0 without.",
    "positions": "int64, the place of the token in its text; 0 without.",
    "repetition": "float32: logits of ids in ``counts`` or ``prompt`` are divided by it, multiplied where negative.",
    "frequency": "float32, subtracted per count.",
    "presence": "float32, subtracted once where the count is not 0.",
    "counts": "int32 ``[rows, vocabulary]``: how often an id has been generated.",
    "prompt": "bool ``[rows, vocabulary]``: whether an id is in the prompt.",
    "bias": "float32 ``[rows, vocabulary]``, or one row for all.",
    "allowed": "int32 ``[rows, vocabulary / 32]``, rounded up: a bit per id, the lowest first: llguidance's.",
}

sample_rows = register(
    Operator(
        name="sample_rows",
        parameters=(
            Parameter("logits", doc="``[rows, vocabulary]``, before any penalty."),
            *(Parameter(name, "optional", None, doc=_DOCS[name]) for name in (*_PER_ROW, *_PER_TOKEN)),
        ),
        infer=_infer,
        reference=reference.sample_rows,
        variants=(
            Variant("histograms of integers", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
            Variant("contiguous copies", "batch_invariant", lambda p: None, compose=_compose),
        ),
        doc="""Draw a token per row, with parameters per row in device memory: nothing is read back, graphs can hold it.

The order of steps is: mask, bias, penalties, temperature, min_p and top_k, top_p, draw. Of tokens with one logit those
with lower ids come first, at the borders of top_k and top_p and in the draw. The token is a function of the row's
logits, parameters, seed and position alone; the CPU device and kernels give the same one. A row without a logit over
-inf gives -1. docs/sampling.md defines all of it.

Examples
--------
>>> import pygpukit as gp
>>> logits = gp.asarray([[0.0, 5.0, 5.0], [1.0, 0.0, 0.0]], "float32")
>>> gp.sample_rows(logits, gp.zeros(2)).tolist()
[1, 0]
""",
        cases=(
            Case({"logits": ("float32", (3, 5000))}),
            Case({"logits": ("bfloat16", (2, 700)), "top_k": ("int32", (2,))}),
            Case({"logits": ("float16", (2, 300)), "bias": ("float32", (300,)), "temperature": ("float32", (2,))}),
            Case({"logits": ("float32", (2, 700))}, rows={"logits": 0}),
        ),
        flops=lambda p: 100 * hint(p["logits"].size),
    )
)
