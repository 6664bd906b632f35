"""What products of matrices should be, in integers: written from the description, not from the emulator.

A group of products is added as in `rust/pygpukit-core/src/emulator/exec/tensor_core.rs`: E is the largest exponent of a
term, terms are cut toward zero to F bits below 2^E, the integers are added, and the sum is rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from diff_case import LANES, Case

# Bits of exponent and fraction, and the bias.
FIELDS = {
    "f16": (5, 10, 15),
    "bf16": (8, 7, 127),
    "tf32": (8, 10, 127),
    "f32": (8, 23, 127),
    "e4m3": (4, 3, 7),
    "e5m2": (5, 2, 15),
}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8}
NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}
NONE = -(1 << 20)


class Numbers(NamedTuple):
    """Finite numbers as integers in units of 2^unit with their exponents; where they are infinite or NaN, as floats."""

    integer: np.ndarray
    unit: np.ndarray
    exponent: np.ndarray
    special: np.ndarray

    def take(self, *at: object) -> Numbers:
        """The same elements of each."""
        return Numbers(*(part[at] for part in self))


def numbers(bits: np.ndarray, kind: str) -> Numbers:
    """Decode bits; `special` is 0 for finite numbers."""
    exponent, fraction, bias = FIELDS[kind]
    bits = bits.astype(np.int64)
    if kind == "tf32":
        bits = bits >> 13
    sign = np.where(bits >> (exponent + fraction) & 1, -1, 1)
    field, rest = bits >> fraction & ((1 << exponent) - 1), bits & ((1 << fraction) - 1)
    top = field == (1 << exponent) - 1
    if kind == "e4m3":
        special = np.where(top & (rest == 7), np.nan, 0.0)
    else:
        special = np.where(top, np.where(rest != 0, np.nan, np.inf * sign), 0.0)
    integer = sign * np.where(field == 0, rest, rest | 1 << fraction)
    power = np.where(field == 0, 1, field) - bias
    return Numbers(integer, power - fraction, np.where(integer == 0, NONE, power), special)


def as_f16(of: Numbers) -> Numbers:
    """8-bit floats converted to f16, where subnormal e4m3 are normal numbers."""
    _, length = np.frexp(np.abs(of.integer).astype(np.float64))
    power = np.maximum(of.unit + length - 1, -14)
    return of._replace(exponent=np.where(of.integer == 0, NONE, power))


def shifted(integer: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Integers times a power of two, cut toward zero."""
    size = np.abs(integer)
    moved = np.where(left >= 0, size << np.clip(left, 0, 40), size >> np.clip(-left, 0, 62))
    return np.sign(integer) * moved


def add_group(c: Numbers, a: Numbers, b: Numbers, fraction: int) -> Numbers:
    """C and the products along the last axis of A and B; exact, so without an exponent of its own."""
    integer, unit = a.integer * b.integer, a.unit + b.unit
    # Of two factors one may be zero: then there is no term.
    exponent = np.where(integer == 0, NONE, a.exponent + b.exponent)
    top = np.maximum(exponent.max(axis=-1), c.exponent)
    low = np.where(top == NONE, 0, top - fraction)
    total = shifted(integer, unit - low[..., None]).sum(axis=-1) + shifted(c.integer, c.unit - low)
    with np.errstate(invalid="ignore"):
        factors = [np.where(x.special != 0, x.special, x.integer.astype(float)) for x in (a, b)]
        found = (a.special != 0) | (b.special != 0)
        special = np.where(found, factors[0] * factors[1], 0.0).sum(axis=-1) + c.special
    return Numbers(total, low, top, special)


def rounded(x: Numbers, kind: str, kept: int | None = None) -> np.ndarray:
    """Bits: f32 toward zero, of `kept` fraction bits; f16 to the nearest."""
    exponent, fraction, bias = FIELDS[kind]
    kept = fraction if kept is None else kept
    size = np.abs(x.integer)
    _, length = np.frexp(size.astype(np.float64))
    top = np.maximum(x.unit + length - 1, 1 - bias)
    drop = top - kept - x.unit
    whole = shifted(size, -drop)
    if kind == "f16":
        rest = (size - shifted(whole, drop)) * 2
        unit = np.where(drop > 0, np.int64(1) << np.clip(drop, 0, 62), 1)
        whole += (rest > unit) | ((rest == unit) & (whole & 1 == 1))
    # A carry into the exponent is right, so fields are added.
    whole <<= fraction - kept
    bits = np.where(whole >> fraction == 0, whole, whole + ((top + bias - 1).astype(np.int64) << fraction))
    infinite = ((1 << exponent) - 1) << fraction
    bits = np.where((x.integer == 0) | (size == 0), 0, np.minimum(bits, infinite))
    bits |= np.where(x.integer < 0, 1, 0) << (exponent + fraction)
    bits = np.where(np.isinf(x.special), np.where(x.special < 0, 1 << (exponent + fraction), 0) | infinite, bits)
    return np.asarray(np.where(np.isnan(x.special), NAN[kind], bits))


def nearest_sum(a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    """An ordinary addition of two numbers."""
    float_type, word = (np.float16, np.uint16) if kind == "f16" else (np.float32, np.uint32)
    with np.errstate(all="ignore"):
        total = a.astype(word).view(float_type) + b.astype(word).view(float_type)
    return np.where(np.isnan(total), NAN[kind], total.view(word).astype(np.int64))


def product(types: Sequence[str], a: np.ndarray, b: np.ndarray, c: np.ndarray, group: bool) -> np.ndarray:
    """Bits of A B + C, for bits of A by rows, of B by columns, and of C; of `wgmma` where `group`."""
    kind, of_a, of_b = types
    left, right = numbers(a, of_a), numbers(b, of_b)
    eight = of_a in ("e4m3", "e5m2")
    rows, columns = (slice(None), None), (None, slice(None))
    if group or not eight:
        short = 13 if eight else None
        total = add_group(numbers(c, kind), left.take(*rows), right.take(*columns), short or 25)
        return rounded(total, kind, short if kind == "f32" else None)
    left, right = as_f16(left), as_f16(right)
    k = np.arange(a.shape[-1])
    parts = [k] if len(k) == 16 else [k[k % 4 < 2], k[k % 4 >= 2]]
    sums = np.zeros(c.shape, np.int64)
    for part in parts:
        terms = (x.take(slice(None), part) for x in (left, right))
        of_row, of_column = next(terms).take(*rows), next(terms).take(*columns)
        sums = rounded(add_group(numbers(sums, kind), of_row, of_column, 25), kind)
    return nearest_sum(c, sums, kind)


def _elements(words: np.ndarray, kind: str) -> np.ndarray:
    """Elements of each word, along a new last axis."""
    bits = BITS[kind]
    shifts = np.arange(32 // bits, dtype=np.uint64) * np.uint64(bits)
    return (words[..., None] >> shifts & np.uint64((1 << bits) - 1)).astype(np.int64)


def _rows_of_a(words: np.ndarray, kind: str, tiles: int) -> np.ndarray:
    """A by rows, from the registers (register, lane) of one warp."""
    x = _elements(words, kind)
    count, _, per = x.shape
    steps = count // tiles
    # Register r: tile r % tiles, step r // tiles; lane 4 g + t.
    x = x.reshape(steps, tiles, 8, 4, per).transpose(1, 2, 0, 3, 4)
    return x.reshape(tiles * 8, steps * 4 * per)


def _columns_of_b(words: np.ndarray, kind: str) -> np.ndarray:
    """B by columns, from the registers of one warp."""
    x = _elements(words, kind)
    count, _, per = x.shape
    return x.reshape(count, 8, 4, per).transpose(1, 0, 2, 3).reshape(8, count * 4 * per)


def _sums(words: np.ndarray, kind: str, tiles: int) -> np.ndarray:
    """C or D by rows, from the registers of one warp."""
    x = _elements(words, kind)
    x = x.transpose(0, 2, 1).reshape(tiles, 2, 8, 4).transpose(0, 2, 3, 1)
    return x.reshape(tiles * 8, 8)


MMA = re.compile(r"mma\.sync\.aligned\.m(\d+)n8k\d+\.row\.col\.(f32|f16)\.(\w+)\.(\w+)\.")
WGMMA = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n8k\d+\.(f32|f16)\.(\w+)\.(\w+)")


def is_modelled(case: Case) -> bool:
    """Is this a product whose bits are known from the model?"""
    found = MMA.match(case.name)
    return bool(WGMMA.match(case.name) or (found and found[3] in FIELDS))


def blocks(case: Case, results: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each warp the sums that a device gave, and those of the model."""
    found = MMA.match(case.name)
    group = found is None
    kind, of_a, of_b = WGMMA.match(case.name).groups() if group else found.groups()[1:]  # type: ignore[union-attr]
    tiles = 2 if group else int(found[1]) // 8  # type: ignore[index]
    sums = len(case.outputs)
    words = case.operands
    for first in range(0, LANES, 32):
        lanes = slice(first, first + 32)
        c = _sums(words[-sums:, lanes], kind, tiles)
        if group:
            a = words[:4, lanes]
            # The first 64 lanes of a group hold B: 16 bytes of each of 8 columns, then the next 16.
            start = first // 128 * 128
            b = _elements(words[4, start : start + 64], of_b).reshape(2, 8, -1).transpose(1, 0, 2).reshape(8, -1)
        else:
            count = len(case.inputs) - sums
            split = count * tiles // (tiles + 1)
            a, b = words[:split, lanes], _columns_of_b(words[split:count, lanes], of_b)
        got = _sums(np.stack([row[lanes] for row in results]).astype(np.uint64), kind, tiles)
        yield got, product((kind, of_a, of_b), _rows_of_a(a, of_a, tiles), b, c, group)
