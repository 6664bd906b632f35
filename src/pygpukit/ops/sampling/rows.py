"""Drawing one token per row of logits, with parameters per row in device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Struct, Unit, Workspace, i64, read, update, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, register
from pygpukit.ops.sampling import reference
from pygpukit.ops.sampling.functions import Penalties, sample, token_logprobs, top_logprobs
from pygpukit.ops.size import ceil_div, hint, maximum, minimum
from pygpukit.ops.source import instance

__all__ = ["Penalties", "sample", "sample_rows", "token_logprobs", "top_logprobs"]

_THREADS = 256
_STEP = 2048
_BINS = 2048
_TIES = 1024
_BLOCKS = 2048
"""Blocks that more rows than fill them make no more of, as far as steps go."""
_AT_A_TIME = 512
_MOST_STEPS = 16
_MOST_ROWS = 65535

# Types of the parameters of rows, and of those with an element per token of the vocabulary.
_PER_ROW = {
    "temperature": ("float32",), "top_k": ("int32",), "top_p": ("float32",), "min_p": ("float32",),
    "seeds": ("uint64", "int64"), "positions": ("int64", "uint64"), "repetition": ("float32",),
    "frequency": ("float32",), "presence": ("float32",),
}  # fmt: skip
_PER_TOKEN = {"counts": ("int32",), "prompt": ("bool", "uint8"), "bias": ("float32",), "allowed": ("int32", "uint32")}
_ADJUSTMENTS = ("bias", "allowed", "counts", "prompt", "repetition", "frequency", "presence")


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


def _is_plain(p: Problem) -> bool:
    """Are the logits what is drawn from, and read by vectors?"""
    logits = p["logits"]
    if any(p.arrays.get(name) is not None for name in _ADJUSTMENTS) or not logits.is_aligned(16):
        return False
    return bool(logits.strides[0] % (16 // logits.dtype.itemsize) == 0)


def _steps(rows: Any, vocabulary: Any, kinds: Sequence[int]) -> Any:
    """Return how often a block takes 2,048 tokens: more with many rows, so that fewer blocks begin.

    Without a top_k, whose first launch counts fewer tokens with many blocks, twice where all blocks then run at a time.
    """
    if _forced is not None:
        return _forced
    parts = maximum(rows, 1) * ceil_div(vocabulary, _STEP)
    steps = maximum(ceil_div(parts, _BLOCKS), 1 if 0 in kinds else minimum(ceil_div(parts, _AT_A_TIME), 2))
    return minimum(steps, 2 if 1 in kinds else _MOST_STEPS)


_forced: int | None = None


def force(steps: int | None) -> None:
    """Let a block take so many times 2,048 tokens, at most 2 with a top_p; None for as many as usual. For tuning."""
    global _forced
    _forced = steps
    _native.clear_plans()


def _launch(p: Problem) -> Launch:
    logits, work = p["logits"], Workspace()
    rows, vocabulary = logits.shape
    kinds = [kind for kind, name in enumerate(("top_k", "top_p")) if p.arrays.get(name) is not None]
    plain = _is_plain(p)
    # 16-bit logits have their order in the first 22 bits.
    digits = 2 if plain and logits.dtype.itemsize == 2 else 3
    stages = [(kind, digit) for kind in kinds for digit in range(digits)]
    steps = _steps(rows, vocabulary, kinds)
    segments = ceil_div(vocabulary, steps * _STEP)
    padded = segments * steps * _STEP
    many = maximum(rows, 1)
    tokens = logits if plain else work.buffer(dtype("uint32"), many, padded)
    winners = work.buffer(dtype("uint64"), many, segments)
    bins = work.buffer(dtype("uint64"), many, max(len(stages), 1) * _BINS)
    states = work.buffer(dtype("uint64"), many, 32)
    ties = work.buffer(dtype("uint16"), 2 if kinds else 1, many if kinds else 1, segments if kinds else 1, _TIES)
    best = work.counters(dtype("uint64"), many, 2)

    def given(name: str) -> Argument:
        x = p.arrays.get(name)
        return i64(0) if x is None else read(x)

    def step(name: str) -> Any:
        x = p.arrays.get(name)
        return 0 if x is None or x.ndim == 1 else x.strides[0]

    def sizes(stride: Any, stage: int = 0, kind: int = 0, digit: int = 0) -> Struct:
        members = (
            vocabulary, stride, segments, steps, len(stages), stage, kind, digit, digits, int(0 in kinds),
            step("bias"), step("counts"), step("prompt"), step("allowed"),
        )  # fmt: skip
        return Struct(tuple(map(i64, members)))

    grid, block = (segments, rows), (_THREADS,)
    first = (look_unit if plain else prepare_unit)(logits.dtype)
    unit = draw_unit(tokens.dtype)
    narrow, draw = unit.entries
    stride = logits.strides[0] if plain else padded
    begins: tuple[Argument, ...] = (write(winners), write(bins), read(logits))
    if not plain:
        begins = (write(tokens), *begins, *map(given, _ADJUSTMENTS))
    launches = [KernelLaunch(first, first.entries[0], grid, block, (*begins, sizes(logits.strides[0])))]
    for stage, (kind, digit) in enumerate(stages):
        arguments: tuple[Argument, ...] = (
            update(bins), update(states), update(ties), read(tokens), read(winners),
            *map(given, ("temperature", "top_k", "top_p", "min_p")), sizes(stride, stage, kind, digit),
        )  # fmt: skip
        launches.append(KernelLaunch(unit, narrow, grid, block, arguments))
    arguments = (
        write(p.out), update(best), read(states), read(bins), read(ties), read(tokens), read(winners),
        *map(given, ("temperature", "top_p", "min_p", "seeds", "positions")), sizes(stride),
    )  # fmt: skip
    launches.append(KernelLaunch(unit, draw, grid, block, arguments))
    return Launch(tuple(launches), tuple(work.pieces))


@cache
def look_unit(x: DataType) -> Unit:
    """Return the source of the first launch for logits that are drawn from as they are."""
    entry = f"pgk_sample_look_{x.tag}"
    return instance("sampling/sample.cu", [f"PGK_SAMPLE_LOOK({entry}, {x.tag})"], (entry,))


@cache
def prepare_unit(x: DataType) -> Unit:
    """Return the source of the first launch for logits that are changed first."""
    entry = f"pgk_sample_prepare_{x.tag}"
    return instance("sampling/sample.cu", [f"PGK_SAMPLE_PREPARE({entry}, {x.tag})"], (entry,))


@cache
def draw_unit(x: DataType) -> Unit:
    """Return the source of the launches behind it, for logits of a type or for keys, uint32."""
    entries = (f"pgk_sample_narrow_{x.tag}", f"pgk_sample_draw_{x.tag}")
    return instance("sampling/sample.cu", [f"PGK_SAMPLE_DRAW({', '.join(entries)}, {x.tag})"], entries)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    found = [dtype(name) for name in types if name in ("float16", "bfloat16", "float32")]
    for x in found:
        yield from (look_unit(x), prepare_unit(x), draw_unit(x))
    if found:
        yield draw_unit(dtype("uint32"))


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
