"""Operands of every kind: special values crossed, then random ones, the same on every machine and NumPy."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable

import numpy as np

_MASK = (1 << 64) - 1


class Stream:
    """Random 64-bit words (splitmix64), written out here since vectors outlive versions of NumPy."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def word(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, limit: int) -> int:
        return (self.word() >> 11) % limit

    def choice(self, items: list[int]) -> int:
        return items[self.below(len(items))]


def _float_specials(exponent: int, mantissa: int) -> list[int]:
    """Bits of the values where floats behave oddly, for a format with these field widths."""
    bias, top = (1 << (exponent - 1)) - 1, ((1 << exponent) - 1) << mantissa
    one, sign = bias << mantissa, 1 << (exponent + mantissa)
    positive = [
        0,
        1,  # smallest subnormal
        (1 << mantissa) - 1,  # largest subnormal
        1 << mantissa,  # smallest normal
        one,
        one + 1,
        one - 1,
        one + (1 << (mantissa - 1)),  # 1.5
        (bias - 1) << mantissa,  # 0.5
        (bias + 2) << mantissa,  # 4
        top - 1,  # largest
        top,  # infinity
    ]
    nans = [top | 1 << (mantissa - 1), top | 1, sign | top | (1 << mantissa) - 1]
    # The first ones matter most: only those are crossed where there are many operands.
    order = [one, 0, sign, top, sign | top, nans[0], 1, sign | 1, top - 1, sign | one]
    rest = [bits | s for bits in positive for s in (0, sign)] + nans
    return list(dict.fromkeys(order + rest))


FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "e4m3": (4, 3), "e5m2": (5, 2)}


def _random_float(stream: Stream, exponent: int, mantissa: int) -> int:
    """Any bits, or a value not far from one, or one with few bits set, so that ties and exact results occur."""
    bits = stream.word() >> (63 - exponent - mantissa)
    how = stream.below(4)
    if how == 0:
        return bits
    bias = (1 << (exponent - 1)) - 1
    spread = min(bias - 1, 12 if exponent > 5 else 6)
    field = bias - spread + stream.below(2 * spread + 1)
    fraction = bits & ((1 << mantissa) - 1)
    if how == 3:
        kept = stream.below(mantissa + 1)
        fraction = fraction >> kept << kept
    return (bits >> (exponent + mantissa)) << (exponent + mantissa) | field << mantissa | fraction


def _near_one(stream: Stream, exponent: int, mantissa: int, spread: int) -> int:
    """A finite value for sums of products; sometimes zero."""
    bits = stream.word() >> (63 - exponent - mantissa)
    if stream.below(16) == 0:
        return 0
    bias = (1 << (exponent - 1)) - 1
    field = bias - spread + stream.below(2 * spread + 1)
    sign = bits >> (exponent + mantissa)
    return sign << (exponent + mantissa) | field << mantissa | bits & ((1 << mantissa) - 1)


def _integer_specials(width: int) -> list[int]:
    top, full = 1 << (width - 1), (1 << width) - 1
    odd = int("5" * 16, 16) & full
    return [0, 1, full, top, top - 1, 2, full - 1, top + 1, odd, full ^ odd, 0x7F & full, 0x80 & full, 0xFF & full, 31]


def _random_integer(stream: Stream, width: int) -> int:
    full = (1 << width) - 1
    word = stream.word() & full
    how = stream.below(3)
    if how == 0:
        return word
    # Small ones of either sign.
    word >>= stream.below(width)
    return word if how == 1 else -word & full


def _f32(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _angle(stream: Stream, turns: int) -> int:
    """An angle of at most 2 pi this many times."""
    reach = (6.28 * turns, 6.28, 0.01, 1.6)[stream.below(4)]
    return _f32((stream.below(1 << 30) / (1 << 29) - 1) * reach)


def _packed(element: Callable[[Stream], int], bits: int, count: int) -> Callable[[Stream], int]:
    return lambda stream: sum(element(stream) << (bits * k) for k in range(count))


def _specials_of(kind: str) -> list[int]:
    if kind.startswith(("m_", "o_", "x_", "z_")):
        return []
    if kind.startswith("nz_"):
        return [bits for bits in _specials_of(kind[3:]) if bits]
    if kind in ("angle", "turns"):
        values = [0.0, -0.0, 1e-40, -1e-40, 1e-30, 3.1415925, -3.1415925, 1.5707964, 6.283185, 0.5, -0.5]
        return [_f32(v) for v in values] + [0x7F800000, 0xFF800000, 0x7FC00000]
    if kind == "shift":
        return [0, 1, 31, 32, 33, 63, 64, 65, 255, 256, 0xFFFFFFFF, 15, 16, 17]
    if kind == "field":
        return [0, 1, 31, 32, 33, 63, 64, 65, 254, 255, 8, 15, 16, 17]
    if kind == "pred":
        return [0, 1]
    if kind == "lane":
        return [0, 31, 1, 30]
    if kind.endswith("x2") and kind[:-2] in FORMATS:
        exponent, mantissa = FORMATS[kind[:-2]]
        single = _float_specials(exponent, mantissa)
        width = 1 + exponent + mantissa
        # Each special value once in each half.
        return [a | b << width for a, b in zip(single, single[7:] + single[:7], strict=True)]
    if kind in FORMATS:
        return _float_specials(*FORMATS[kind])
    if kind == "tf32":
        return _float_specials(*FORMATS["f32"])
    return _integer_specials(int(kind.lstrip("usb"))) if kind.lstrip("usb").isdigit() else _integer_specials(32)


def _random_of(kind: str) -> Callable[[Stream], int]:
    if kind.startswith("nz_"):
        width = int(kind[3:].lstrip("usb"))
        return lambda stream: _random_integer(stream, width) or 1
    if kind in ("angle", "turns"):
        return lambda stream: _angle(stream, 50 if kind == "turns" else 1)
    if kind in ("shift", "field"):
        return lambda stream: stream.below(70)
    if kind == "pred":
        return lambda stream: stream.below(2)
    if kind == "lane":
        return lambda stream: stream.below(32)
    if kind.startswith("m_"):
        return _product_operand(kind[2:])
    if kind.startswith("o_"):
        return _product_operand(kind[2:], 60)
    if kind.startswith(("x_", "z_")):
        return _far_operand(kind[2:], 3 if kind.startswith("z_") else 0)
    if kind.endswith("x2") and kind[:-2] in FORMATS:
        exponent, mantissa = FORMATS[kind[:-2]]
        return _packed(lambda stream: _random_float(stream, exponent, mantissa), 1 + exponent + mantissa, 2)
    if kind in FORMATS:
        exponent, mantissa = FORMATS[kind]
        return lambda stream: _random_float(stream, exponent, mantissa)
    if kind == "tf32":
        return lambda stream: _random_float(stream, 8, 23)
    width = int(kind.lstrip("usb")) if kind.lstrip("usb").isdigit() else 32
    return lambda stream: _random_integer(stream, width)


def _product_operand(kind: str, odd: int = 0) -> Callable[[Stream], int]:
    """Elements of matrices: finite, so that sums stay in range; or one in `odd` is a special value."""
    element, _, count = kind.partition("x")
    packed = int(count) if count else 1
    if element in ("s8", "u8", "s4", "u4"):
        bits = int(element[1:])
        return _packed(lambda stream: stream.word() & ((1 << bits) - 1), bits, packed)
    if element in ("s32", "u32"):
        return lambda stream: _random_integer(stream, 32)
    exponent, mantissa = FORMATS["f32" if element == "tf32" else element]
    spread = 2 if exponent < 8 else 6
    specials = _float_specials(exponent, mantissa)

    def one(stream: Stream) -> int:
        if odd and stream.below(odd) == 0:
            return stream.choice(specials)
        return _near_one(stream, exponent, mantissa, spread)

    return _packed(one, 1 + exponent + mantissa, packed)


def _far_operand(kind: str, zeros: int) -> Callable[[Stream], int]:
    """Elements of matrices with exponents far apart, also subnormal; of four, `zeros` are zero of either sign."""
    element, _, count = kind.partition("x")
    exponent, mantissa = FORMATS["f32" if element == "tf32" else element]
    bias, width = (1 << (exponent - 1)) - 1, 1 + exponent + mantissa

    def one(stream: Stream) -> int:
        bits = stream.word() >> (64 - width)
        sign, fraction = bits >> (width - 1) << (width - 1), bits & ((1 << mantissa) - 1)
        if zeros and stream.below(4) < zeros:
            return sign
        # Of f32 accumulators and bf16 also far below and above what f16 can be.
        reach = min(bias - 1, (2, 6, 12, 40)[stream.below(4)])
        field = 0 if stream.below(24) == 0 else bias - reach + stream.below(2 * reach + 1)
        return sign | field << mantissa | fraction

    return _packed(one, width, int(count) if count else 1)


def _corners(kinds: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Several NaNs at once, and results around the smallest normal number, where `.ftz` draws its line."""
    if len(set(kinds)) != 1 or kinds[0] not in FORMATS or len(kinds) not in (2, 3):
        return []
    exponent, mantissa = FORMATS[kinds[0]]
    bias, sign, least = (1 << (exponent - 1)) - 1, 1 << (exponent + mantissa), 1 << mantissa
    one, top = bias << mantissa, ((1 << exponent) - 1) << mantissa
    nans = [top | 1 << (mantissa - 1) | 2, top | 1, sign | top | (1 << mantissa) - 1]
    rows = [(*pair, *rest) for pair in itertools.permutations(nans, 2) for rest in _tail(kinds, [one, nans[0]])]
    rows += [(one, *pair) for pair in itertools.permutations(nans, 2) if len(kinds) == 3]
    stream = Stream(7)
    for k in range(4):
        fraction = stream.word() & ((1 << mantissa) - 1)
        # One over this fraction, so that the product is close to the smallest normal number.
        inverse = int(2 ** (mantissa + 1) / (1 + fraction / (1 << mantissa))) & ((1 << mantissa) - 1)
        for step in (-1, 0, 1):
            a, b = 1 << mantissa | fraction, (bias - 1) << mantissa | (inverse + step) & ((1 << mantissa) - 1)
            rows += [(a | sign * (k & 1), b, *rest) for rest in _tail(kinds, [0, sign])]
    if len(kinds) == 3:
        small = [(least, least, least | sign), (least | sign, least, least), (1, least, least | sign)]
        rows += [*small, (least, one - 1, 0), (least, one - 1, 1), (least, one - 1, sign | 1)]
    else:
        rows += [(least, one - 1), (one - 1, least | sign), (least, one | 1), (least | 1, one - 1)]
    return rows


def _tail(kinds: tuple[str, ...], third: list[int]) -> list[tuple[int, ...]]:
    return [(word,) for word in third] if len(kinds) == 3 else [()]


def operand_columns(name: str, kinds: tuple[str, ...], lanes: int) -> np.ndarray:
    """Operands of a case as 64-bit words, one row for each, from the case's name alone."""
    stream = Stream(zlib.crc32(name.encode()) * 0x1234567)
    if not kinds:
        return np.zeros((0, lanes), np.uint64)
    specials = [_specials_of(kind) for kind in kinds]
    randoms = [_random_of(kind) for kind in kinds]
    rows: list[tuple[int, ...]] = []
    if all(specials):
        # As many of each as fit when crossed in about half of the lanes.
        limit = {1: lanes, 2: 11, 3: 5}.get(len(kinds), 3)
        crossed = list(itertools.product(*(values[:limit] for values in specials)))
        rows = crossed[: lanes // 2] + _corners(kinds)
    while len(rows) < lanes:
        rows.append(
            tuple(
                stream.choice(special) if special and stream.below(8) == 0 else random(stream)
                for special, random in zip(specials, randoms, strict=True)
            )
        )
    return np.array(rows, np.uint64).T.copy()
