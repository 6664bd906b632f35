"""Launches of the kernels over the planes of a weight: units, blocks, arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Unit,
    blocks_for,
    constant,
    i32,
    i64,
    read,
    write,
)
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import ceil_div, hint, maximum, product
from pygpukit.ops.source import instance
from pygpukit.quant.formats import CHUNK, CODES, FORMATS, SUPER, Rule, rule_of

SKINNY = 64
"""Rows of x up to which a warp multiplies all of them with one decoded fragment."""

FUSED = 512
"""Rows of x up to which the kernels for SM 80 decode inside of the product; more pay for decoding the weight first."""

PLANES = ("codes", "high", "scales", "extra")
"""Planes of a weight in the order of kernels."""

_KINDS = {"super": "super_block", "superscale": "super_scale"}


def planes(p: Problem) -> tuple[Argument, ...]:
    """The planes as kernels take them; one that a rule does not have is never read."""
    codes = p["codes"]
    return tuple(constant(p.arrays[name] or codes) for name in PLANES)


def planes_aligned(p: Problem) -> bool:
    """Do all planes begin at multiples of 16 bytes, as bulk copies read them?"""
    return all(x is None or x.is_aligned(16) for x in (p.arrays[name] for name in PLANES))


def counts(p: Problem) -> tuple[Argument, ...]:
    """Return chunks, records and owners as kernels take them."""
    return i64(p["codes"].shape[1]), i64(p["scales"].shape[1]), i64(p.integers["owners"])


def rows_of(x: Tensor) -> tuple[Any, Any] | None:
    """Return how many rows an array has and the elements between them; None where they lie at no equal distances."""
    if x.ndim == 1:
        return (1, x.shape[0]) if x.is_contiguous() else None
    if x.ndim == 2 and (x.strides[1] == 1 or x.shape[1] == 1):
        return x.shape[0], maximum(x.strides[0], x.shape[1])
    return (product(x.shape[:-1]), x.shape[-1]) if x.is_contiguous() else None


def rule_text(rule: Rule) -> tuple[str, str]:
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


def _warps(tokens: int, m: Any, tiles: Any, sms: Any) -> int:
    """Return warps per block: few where tiles are, so that all SMs read alike; more where x costs as much as w."""
    if tokens > 8:
        return 8 if tiles >= 16 * sms else 4 if tiles >= 4 * sms else 2 if tiles >= 2 * sms else 1
    enough = 32 if m <= 2 else 8
    return 4 if tiles >= enough * sms else 2 if tiles >= 4 * sms else 1


def piece_bytes(rule: Rule, span: int) -> int:
    """Return the bytes of a piece in shared memory, as ``pgk::Pieces`` lays it out."""
    code, is_super = CODES[rule.code], rule.kind in ("super", "superscale")
    scale = 16 * rule.subs * rule.fields * rule.scale_type.itemsize
    extra = 32 * rule.fields if is_super else 16 * rule.subs if rule.kind == "zero" else 0
    chunks = max(rule.group // CHUNK, 1) if rule.group else span
    extras = span * CHUNK // SUPER if is_super else span // chunks
    total = span * 128 * (code.low + code.high) + scale * (span // chunks) + extra * extras
    return -(-total // 128) * 128


@cache
def linear_unit(rule: Rule, x: DataType, tokens: int, end: str = epilogue.PLAIN) -> Unit:
    """Return the source of the product with blocks of ``tokens`` rows of x and an epilogue."""
    shape = blocking(rule, tokens)
    entry = f"pgk_quant_linear_{rule.name}_{x.tag}_{tokens}{epilogue.suffix(end)}"
    text, scale = rule_text(rule)
    alias = f"using rule_{rule.name} = {text};"
    numbers = f"{shape.tiles}, {shape.columns}, {shape.span}, {shape.threads}"
    line = f"PGK_QUANT_LINEAR({entry}, rule_{rule.name}, {scale}, {x.tag}, {numbers}, {end})"
    return instance("quant/linear.cu", [alias, line], (entry,))


@cache
def dequantize_unit(rule: Rule, to: DataType, what: str = "dequantize") -> Unit:
    """Return the source of the kernel that writes a weight's numbers; ``"rows"``: those of some rows."""
    entry = f"pgk_quant_{what}_{rule.name}_{to.tag}"
    text, scale = rule_text(rule)
    alias = f"using rule_{rule.name} = {text};"
    line = f"PGK_QUANT_{what.upper()}({entry}, rule_{rule.name}, {scale}, {to.tag})"
    return instance(f"quant/{what}.cu", [alias, line], (entry,))


def default_rules() -> Iterator[Rule]:
    """Yield the rules that bundles have kernels for: each format as it is made when nothing else is asked for."""
    for found in dict.fromkeys((f.code, f.kind, dtype(f.scales[0]).tag, f.groups[0]) for f in FORMATS.values()):
        yield Rule(*found)


def small(types: Sequence[str]) -> list[DataType]:
    return [kind for kind in map(dtype, types) if kind.name in ("bfloat16", "float16")]


def linear_units(tokens: Sequence[int], types: Sequence[str]) -> Iterator[Unit]:
    return (linear_unit(rule, x, t) for x in small(types) for rule in default_rules() for t in tokens)


def dequantize_units(what: str, types: Sequence[str]) -> Iterator[Unit]:
    """Yield the kernels that bundles have for a weight's numbers."""
    kinds = [*small(types), *(kind for kind in map(dtype, types) if kind.name == "float32")]
    return (dequantize_unit(rule, to, what) for to in kinds for rule in default_rules())


def accepts_rows(p: Problem, most: int) -> str | None:
    x = p["x"]
    if x.dtype.itemsize != 2:
        return f"multiplies 16-bit floats, not {x.dtype.name}"
    if product(x.shape[:-1]) > most:
        return f"for up to {most} rows"
    return None


def accepts_linear(p: Problem, most: int) -> str | None:
    reason = accepts_rows(p, most)
    if reason is not None:
        return reason
    if rows_of(p["x"]) is None or rows_of(p.out) is None:
        return "rows of x or of the result do not lie at equal distances"
    if not ends(p):
        return "bias or residual does not lie in rows"
    return p.missing(linear_unit(rule_of(p.options["rule"]), p["x"].dtype, min(most, 128), epilogue.device_name(p)))


def ends(p: Problem) -> bool:
    """Can a kernel read bias and residual as they lie?"""
    bias, residual = p.arrays["bias"], p.arrays["residual"]
    return (bias is None or bias.is_contiguous()) and (residual is None or rows_of(residual) is not None)


def end_of(p: Problem) -> tuple[Argument, ...]:
    """Return bias, residual and its strides as kernels take them."""
    bias, residual = p.arrays["bias"], p.arrays["residual"]
    apart = None if residual is None else rows_of(residual)
    return (*(i64(0) if t is None else read(t) for t in (bias, residual)), i64(apart[1] if apart else 0), i64(1))


def pairs(p: Problem) -> Argument:
    """Say whether two neighbours of a row of the result can be written as one word."""
    out = rows_of(p.out)
    assert out is not None
    return i32(int(p.out.is_aligned(4) and out[1] % 2 == 0 and p.integers["n"] % 2 == 0))


def launch_linear(p: Problem, most: int) -> Launch:
    x, n, k = p["x"], p.integers["n"], p.integers["k"]
    rows, out = rows_of(x), rows_of(p.out)
    assert rows is not None
    assert out is not None
    m, ld = rows
    rule, tiles = rule_of(p.options["rule"]), p["codes"].shape[0]
    # Large blocks where there is one for every SM.
    large = most > SKINNY and ceil_div(tiles, 8) * ceil_div(m, 128) >= p.sm_count
    tokens = 128 if large else next(t for t in (8, 16, 32, 64) if t == SKINNY or m <= t)
    tiles_each, columns, span, _ = blocking(rule, tokens)
    warps = 4 if large else _warps(tokens, m, tiles, p.sm_count)
    what = f"product with a weight of {hint(n)} rows"
    grid = (blocks_for(tiles, tiles_each * warps, what), ceil_div(m, 8 * columns))
    aligned = x.is_aligned(16) and ld % 8 == 0
    unit = linear_unit(rule, x.dtype, tokens, epilogue.device_name(p))
    arguments = (
        write(p.out), read(x), *planes(p), *map(i64, (m, n, k, out[1])), pairs(p), i64(ld), i32(int(aligned)),
        *counts(p), *end_of(p),
    )  # fmt: skip
    shared = 3 * 8 * columns * (span * CHUNK * 2 + 16)
    return Launch((KernelLaunch(unit, unit.entries[0], grid, (32 * warps,), arguments, shared=shared),))


def accepts_dequantize(p: Problem) -> str | None:
    if not p.out.is_contiguous():
        return "out is not contiguous"
    return p.missing(dequantize_unit(rule_of(p.options["rule"]), p.out.dtype))


def launch_dequantize(p: Problem) -> Launch:
    codes, k = p["codes"], p.integers["k"]
    unit = dequantize_unit(rule_of(p.options["rule"]), p.out.dtype)
    grid = blocks_for(codes.shape[0] * codes.shape[1], 8, "decoding a weight")
    aligned = k % 4 == 0 and p.out.is_aligned(16)
    arguments = (write(p.out), *planes(p), i64(p.integers["n"]), i64(k), i32(int(aligned)), *counts(p))
    return Launch((KernelLaunch(unit, unit.entries[0], (grid,), (256,), arguments),))


def accepts_rows_of_weight(p: Problem) -> str | None:
    """Return why the kernel cannot decode rows; None if it can."""
    if not p["ids"].is_contiguous() or not p.out.is_contiguous():
        return "ids or the result is not contiguous"
    return p.missing(dequantize_unit(rule_of(p.options["rule"]), p.out.dtype, "rows"))


def launch_rows_of_weight(p: Problem) -> Launch:
    """Return the launch that decodes rows."""
    ids, n, k = p["ids"], p.integers["n"], p.integers["k"]
    unit = dequantize_unit(rule_of(p.options["rule"]), p.out.dtype, "rows")
    grid = blocks_for(ids.size * p["codes"].shape[1], 64, f"decoding {hint(ids.size)} rows")
    arguments = (
        write(p.out), read(ids), *planes(p), *map(i64, (ids.size, n, k)), i32(int(ids.dtype.itemsize == 8)), *counts(p),
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (grid,), (256,), arguments),))
