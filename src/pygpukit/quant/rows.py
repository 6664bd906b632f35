"""Operators over the planes of a quantised weight: its product with rows of activations, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, constant, i32, i64, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import ceil_div, hint, maximum, product
from pygpukit.ops.source import instance
from pygpukit.quant import decode
from pygpukit.quant.formats import CHUNK, CODES, FORMATS, TILE, Rule, rule_of

SKINNY = 64
"""Rows of x up to which a warp multiplies all of them with one decoded fragment."""

FUSED = 512
"""Rows of x up to which decoding inside of the product is faster than decoding the whole weight first."""

_PLANES = (
    Parameter("codes"),
    Parameter("scales"),
    Parameter("high", "optional", None),
    Parameter("extra", "optional", None),
    Parameter("rule", "choice", ""),
    Parameter("n", "number", 0),
    Parameter("k", "number", 0),
    Parameter("owners", "number", TILE),
)
_END = (
    Parameter("bias", "optional", None, True),
    Parameter("activation", "choice", None, True),
    Parameter("residual", "optional", None, True),
)
_KINDS = {"super": "super_block", "superscale": "super_scale"}


def _planes(p: Problem) -> tuple[Argument, ...]:
    """The planes as kernels take them; one that a rule does not have is never read."""
    codes = p["codes"]
    return tuple(constant(p.arrays[name] or codes) for name in ("codes", "high", "scales", "extra"))


def _counts(p: Problem) -> tuple[Argument, ...]:
    return i64(p["codes"].shape[1]), i64(p["scales"].shape[1]), i64(p.integers["owners"])


def _rows(x: Tensor) -> tuple[Any, Any] | None:
    """Return how many rows an array has and the elements between them; None where they lie at no equal distances."""
    if x.ndim == 1:
        return (1, x.shape[0]) if x.is_contiguous() else None
    if x.ndim == 2 and (x.strides[1] == 1 or x.shape[1] == 1):
        return x.shape[0], maximum(x.strides[0], x.shape[1])
    return (product(x.shape[:-1]), x.shape[-1]) if x.is_contiguous() else None


def _rule_text(rule: Rule) -> tuple[str, str]:
    """The rule and its scales' type as CUDA."""
    code = CODES[rule.code]
    kind = _KINDS.get(rule.kind, rule.kind)
    scale = rule.scale
    text = f"{str(rule.code == 'e4m3').lower()}, {code.low}, {code.high}, {code.offset}, pgk::Kind::{kind}"
    return f"pgk::Rule<{text}, pgk::{scale}, {rule.group}>", scale


class Blocking(NamedTuple):
    """How a block multiplies: tiles of w per warp, columns of eight rows of x, chunks of a piece of x, most threads."""

    tiles: int
    columns: int
    span: int
    threads: int


def blocking(rule: Rule, tokens: int) -> Blocking:
    """Return the shape of blocks for up to ``tokens`` rows of x."""
    # As many bytes ahead for four bits as for eight: few warps have to cover the memory's latency where n is small.
    ahead = 8 if CODES[rule.code].low == 4 else 4
    return {
        8: Blocking(1, 1, ahead, 256),
        16: Blocking(1, 2, ahead, 256),
        32: Blocking(1, 4, 4, 256),
        64: Blocking(1, 8, 2, 256),
        128: Blocking(2, 16, 1, 128),
    }[tokens]


@cache
def linear_unit(rule: Rule, x: DataType, tokens: int, end: str = epilogue.PLAIN) -> Unit:
    """Return the source of the product with blocks of ``tokens`` rows of x and an epilogue."""
    shape = blocking(rule, tokens)
    entry = f"pgk_quant_linear_{rule.name}_{x.tag}_{tokens}{epilogue.suffix(end)}"
    text, scale = _rule_text(rule)
    alias = f"using rule_{rule.name} = {text};"
    numbers = f"{shape.tiles}, {shape.columns}, {shape.span}, {shape.threads}"
    line = f"PGK_QUANT_LINEAR({entry}, rule_{rule.name}, {scale}, {x.tag}, {numbers}, {end})"
    return instance("quant/linear.cu", [alias, line], (entry,))


@cache
def dequantize_unit(rule: Rule, to: DataType) -> Unit:
    """Return the source of the kernel that writes a weight's numbers."""
    entry = f"pgk_quant_dequantize_{rule.name}_{to.tag}"
    text, scale = _rule_text(rule)
    alias = f"using rule_{rule.name} = {text};"
    return instance(
        "quant/dequantize.cu", [alias, f"PGK_QUANT_DEQUANTIZE({entry}, rule_{rule.name}, {scale}, {to.tag})"], (entry,)
    )


def default_rules() -> Iterator[Rule]:
    """Yield the rules that bundles have kernels for: each format as it is made when nothing else is asked for."""
    for found in dict.fromkeys((f.code, f.kind, dtype(f.scales[0]).tag, f.groups[0]) for f in FORMATS.values()):
        yield Rule(*found)


def _small(types: Sequence[str]) -> list[DataType]:
    return [kind for kind in map(dtype, types) if kind.name in ("bfloat16", "float16")]


def _linear_units(tokens: Sequence[int], types: Sequence[str]) -> Iterator[Unit]:
    return (linear_unit(rule, x, t) for x in _small(types) for rule in default_rules() for t in tokens)


def _dequantize_units(types: Sequence[str]) -> Iterator[Unit]:
    kinds = [*_small(types), *(kind for kind in map(dtype, types) if kind.name == "float32")]
    return (dequantize_unit(rule, to) for to in kinds for rule in default_rules())


def _infer_linear(p: Problem) -> list[Result]:
    x, k, n = p["x"], p.integers["k"], p.integers["n"]
    if x.dtype.name not in ("bfloat16", "float16", "float32"):
        raise DTypeError(
            f"a quantised weight multiplies float16, bfloat16 or float32, not {x.dtype.name}: convert with astype"
        )
    if x.ndim == 0:
        raise ShapeError("matmul with a quantised weight needs an array of at least one dimension")
    if x.shape[-1] != k:
        raise ShapeError(
            f"matmul of shapes {tuple(hint(s) for s in x.shape)} and {(hint(k), hint(n))}: the inner sizes "
            f"{hint(x.shape[-1])} and {hint(k)} differ"
        )
    if p.requested and p.requested[0] is not x.dtype:
        raise DTypeError(
            f"the product of {x.dtype.name} with a quantised weight cannot be written to {p.requested[0].name}; use an "
            f"out of {x.dtype.name}"
        )
    result = Result((*x.shape[:-1], n), x.dtype)
    epilogue.check(p, result, n)
    return [result]


def _accepts_rows(p: Problem, most: int) -> str | None:
    x = p["x"]
    if x.dtype.itemsize != 2:
        return f"multiplies 16-bit floats, not {x.dtype.name}"
    if product(x.shape[:-1]) > most:
        return f"for up to {most} rows"
    return None


def _accepts_linear(p: Problem, most: int) -> str | None:
    reason = _accepts_rows(p, most)
    if reason is not None:
        return reason
    if _rows(p["x"]) is None or _rows(p.out) is None:
        return "rows of x or of the result do not lie at equal distances"
    if not _ends(p):
        return "bias or residual does not lie in rows"
    return p.missing(linear_unit(rule_of(p.options["rule"]), p["x"].dtype, min(most, 128), epilogue.device_name(p)))


def _ends(p: Problem) -> bool:
    """Can a kernel read bias and residual as they lie?"""
    bias, residual = p.arrays["bias"], p.arrays["residual"]
    return (bias is None or bias.is_contiguous()) and (residual is None or _rows(residual) is not None)


def _launch_linear(p: Problem, most: int) -> Launch:
    x, n, k = p["x"], p.integers["n"], p.integers["k"]
    rows, out = _rows(x), _rows(p.out)
    assert rows is not None
    assert out is not None
    m, ld = rows
    tokens = 128 if most > SKINNY else next(t for t in (8, 16, 32, 64) if t == SKINNY or m <= t)
    rule = rule_of(p.options["rule"])
    tiles_each, columns, span, _ = blocking(rule, tokens)
    tiles = p["codes"].shape[0]
    # Few tiles are spread over more blocks, so that all SMs read.
    warps = 4 if most > SKINNY or tiles >= 8 * p.sm_count else 2 if tiles >= 4 * p.sm_count else 1
    what = f"product with a weight of {hint(n)} rows"
    grid = (blocks_for(tiles, tiles_each * warps, what), ceil_div(m, 8 * columns))
    aligned = x.is_aligned(16) and ld % 8 == 0
    unit = linear_unit(rule, x.dtype, tokens, epilogue.device_name(p))
    bias, residual = p.arrays["bias"], p.arrays["residual"]
    apart = None if residual is None else _rows(residual)
    end = (*(i64(0) if t is None else read(t) for t in (bias, residual)), i64(apart[1] if apart else 0), i64(1))
    arguments = (
        write(p.out), read(x), *_planes(p), *map(i64, (m, n, k, out[1], ld)), i32(int(aligned)), *_counts(p), *end,
    )  # fmt: skip
    shared = 3 * 8 * columns * (span * CHUNK * 2 + 16)
    return Launch((KernelLaunch(unit, unit.entries[0], grid, (32 * warps,), arguments, shared=shared),))


def _compose_copy(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, *planes, bias, activation, residual = given
        bias, residual = (t if t is None else t.contiguous() for t in (bias, residual))
        made = quant_matmul(x.contiguous(), *planes, bias=bias, activation=activation, residual=residual)
        _native.apply("copy", (made,), results[0])

    return run


def _compose_decoded(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, *planes, _, bias, activation, residual = given
        w = quant_dequantize(*planes, x.dtype.name)
        matmul(x, w.T, bias=bias, activation=activation, residual=residual, out=results[0])

    return run


def _host_kept(p: Problem) -> Callable[..., None]:
    activation, plain = p.options["activation"], not epilogue.has_epilogue(p) and p["x"].dtype.itemsize == 4

    def run(x: Any, *given: Any) -> None:
        *_, w, bias, residual, out = given
        with np.errstate(all="ignore"):
            if plain and out.flags.c_contiguous:
                np.matmul(x, w.T, out)
                return
            made = np.matmul(x.astype(np.float32, copy=False), w.T)
            np.copyto(out, epilogue.reference(made, bias, activation, residual), casting="unsafe")

    return run


def _host(p: Problem) -> Callable[..., None]:
    rule, activation = rule_of(p.options["rule"]), p.options["activation"]

    def run(x: Any, codes: Any, scales: Any, high: Any, extra: Any, n: int, k: int, *given: Any) -> None:
        *_, bias, residual, out = given
        made = decode.product(rule, _named(codes, scales, high, extra), n, x.reshape(-1, k)).reshape(out.shape)
        with np.errstate(all="ignore"):
            np.copyto(out, epilogue.reference(made, bias, activation, residual), casting="unsafe")

    return run


def _named(codes: Any, scales: Any, high: Any, extra: Any) -> dict[str, Any]:
    named = {"codes": codes, "scales": scales, "high": high, "extra": extra}
    return {name: plane for name, plane in named.items() if plane is not None}


def reference(
    x: Any, codes: Any, scales: Any, high: Any = None, extra: Any = None, rule: str = "", n: int = 0, k: int = 0,
    owners: int = TILE, decoded: Any = None, *, bias: Any = None, activation: Any = None, residual: Any = None,
) -> Any:  # fmt: skip
    """Return the product as NumPy computes it: numbers rounded to the type of x, float32 products and sums."""
    made = decode.product(rule_of(rule), _named(codes, scales, high, extra), n, x.reshape(-1, k))
    with np.errstate(all="ignore"):
        total = epilogue.reference(made.reshape(*x.shape[:-1], n), bias, activation, residual)
        return total.astype(x.dtype, copy=False)


def _flops(p: Problem) -> int:
    return 2 * hint(p.out.size) * hint(p.integers["k"])


def _bytes(p: Problem) -> int:
    planes = sum(hint(p[name].nbytes) for name in ("codes", "scales", "high", "extra") if p.arrays[name] is not None)
    return planes + hint(p["x"].nbytes) + hint(p.out.nbytes)


quant_matmul = register(
    Operator(
        name="quant_matmul",
        parameters=(Parameter("x"), *_PLANES, Parameter("decoded", "optional", None), *_END),
        infer=_infer_linear,
        reference=reference,
        variants=(
            Variant(
                "NumPy, with the decoded weight that is kept", "run_to_run",
                lambda p: None if p.arrays["decoded"] is not None else "no decoded copy is kept", host=_host_kept,
            ),
            Variant("NumPy, decoding blocks", "run_to_run", lambda p: None, host=_host),
            Variant(
                "decoded fragments, all rows in a warp", "batch_invariant", partial(_accepts_linear, most=SKINNY),
                launch=partial(_launch_linear, most=SKINNY), units=partial(_linear_units, (8, 16, 32, 64)),
            ),
            Variant(
                "decoded fragments, blocks of 128 rows", "batch_invariant", partial(_accepts_linear, most=FUSED),
                launch=partial(_launch_linear, most=FUSED), units=partial(_linear_units, (128,)),
            ),
            Variant(
                "copies around decoded fragments", "batch_invariant",
                lambda p: _accepts_rows(p, FUSED) or (
                    "the rows lie at equal distances" if _rows(p["x"]) and _rows(p.out) and _ends(p) else None
                ),
                compose=_compose_copy,
            ),
            Variant("decoded into workspace, then matmul", "batch_invariant", lambda p: None, compose=_compose_decoded),
        ),
        doc="Product of rows with a quantised weight: x @ w.T for w of shape (n, k).",
        tolerance={"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-10},
        flops=_flops,
        bytes=_bytes,
        public=False,
    )
)  # fmt: skip


def _infer_dequantize(p: Problem) -> list[Result]:
    return [Result((p.integers["n"], p.integers["k"]), dtype(p.options["to"]))]


def _accepts_dequantize(p: Problem) -> str | None:
    if not p.out.is_contiguous():
        return "out is not contiguous"
    return p.missing(dequantize_unit(rule_of(p.options["rule"]), p.out.dtype))


def _launch_dequantize(p: Problem) -> Launch:
    codes, k = p["codes"], p.integers["k"]
    unit = dequantize_unit(rule_of(p.options["rule"]), p.out.dtype)
    grid = blocks_for(codes.shape[0] * codes.shape[1], 8, "decoding a weight")
    aligned = k % 4 == 0 and p.out.is_aligned(16)
    arguments = (write(p.out), *_planes(p), i64(p.integers["n"]), i64(k), i32(int(aligned)), *_counts(p))
    return Launch((KernelLaunch(unit, unit.entries[0], (grid,), (256,), arguments),))


def _host_dequantize(p: Problem) -> Callable[..., None]:
    rule, to = rule_of(p.options["rule"]), to_numpy_dtype(p.out.dtype)

    def run(codes: Any, scales: Any, high: Any, extra: Any, n: int, k: int, owners: int, out: Any) -> None:
        np.copyto(out, decode.dequantize(rule, _named(codes, scales, high, extra), n, k, to))

    return run


def _dequantize_reference(
    codes: Any, scales: Any, high: Any = None, extra: Any = None, rule: str = "", n: int = 0, k: int = 0,
    owners: int = TILE, to: str = "float32",
) -> Any:  # fmt: skip
    return decode.dequantize(rule_of(rule), _named(codes, scales, high, extra), n, k, to_numpy_dtype(dtype(to)))


def _compose_dequantize(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        _native.apply("copy", (quant_dequantize(*given),), results[0])

    return run


quant_dequantize = register(
    Operator(
        name="quant_dequantize",
        parameters=(*_PLANES, Parameter("to", "choice", "float32")),
        infer=_infer_dequantize,
        reference=_dequantize_reference,
        variants=(
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_dequantize),
            Variant(
                "a warp per chunk", "batch_invariant", _accepts_dequantize, launch=_launch_dequantize,
                units=_dequantize_units,
            ),
            Variant(
                "a contiguous result first", "batch_invariant",
                lambda p: "the result is contiguous" if p.out.is_contiguous() else None, compose=_compose_dequantize,
            ),
        ),
        doc="The numbers of a quantised weight, a matrix of (n, k).",
        public=False,
    )
)  # fmt: skip
