"""Formats of quantised weights, and the rules by which their codes stand for numbers.

A format is what a user names (``"int4"``, ``"q4_k"``); a rule is what a kernel is compiled for. Several formats share
one rule: GGUF's Q4_0 is symmetric int4 with float16 scales in groups of 32.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from pygpukit.dtypes import DataType, dtype

Kind: TypeAlias = Literal["scale", "zero", "minimum", "super", "superscale"]
"""How a code q becomes a number, every step in float32.

``scale``: s * (q - offset). ``zero``: s * (q - z) with a zero point per group. ``minimum``: s * q + m. ``super``:
(d * sc) * q - dmin * mn, with 8-bit sc and mn per group and d, dmin per 256. ``superscale``: (d * sc) * (q - offset).
"""

CHUNK = 64
"""Values of a row that a lane's share of one load holds; rows are padded to a multiple of it."""

TILE = 16
"""Rows that one tile of the tensor cores takes; a weight is padded to a multiple of it."""

SUPER = 256
"""Values of a super-block."""


class Code(NamedTuple):
    """How a code is stored: bits in the plane of codes, bits in the plane of high bits, and what is subtracted."""

    low: int
    high: int
    offset: int


CODES = {
    "e4m3": Code(8, 0, 0),
    "i8": Code(8, 0, 128),
    "i4": Code(4, 0, 8),
    "i5": Code(4, 1, 16),
    "i6": Code(4, 2, 32),
}


class Rule(NamedTuple):
    """What a kernel is compiled for.

    Attributes
    ----------
    code
        Key of `CODES`.
    kind
        See `Kind`.
    scale
        Tag of the scales' element type.
    group
        Values of a row that share a scale; 0 for a whole row.
    """

    code: str
    kind: Kind
    scale: str
    group: int

    @property
    def name(self) -> str:
        """Part of kernel names: ``i4_zero_f16_g128``."""
        return f"{self.code}_{self.kind}_{self.scale}_g{self.group}"

    @property
    def subs(self) -> int:
        """Groups in one chunk of a row; 1 where a group is a chunk or longer."""
        return CHUNK // self.group if 0 < self.group < CHUNK else 1

    @property
    def fields(self) -> int:
        """Numbers per group in the plane of scales."""
        return 2 if self.kind in ("minimum", "super") else 1

    @property
    def scale_type(self) -> DataType:
        """Element type of the plane of scales."""
        return dtype({"super": "uint8", "superscale": "int8"}.get(self.kind, self.scale))

    def records(self, k: int) -> int:
        """Records of scales per tile of a weight of rows of ``k``: one per chunk, or per group if that is longer."""
        if self.group == 0:
            return 1
        return -(-k // max(self.group, CHUNK))


@cache
def rule_of(name: str) -> Rule:
    """Return the rule with a name.

    Examples
    --------
    >>> rule_of("i4_zero_f16_g128").group
    128
    """
    code, kind, scale, group = name.split("_")
    return Rule(code, kind, scale, int(group[1:]))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A format of weights.

    Attributes
    ----------
    name
        As users write it.
    code, kind
        Of its rules.
    bits
        Of a code.
    groups
        Sizes of groups that may be asked for, the default first; 0 is a whole row.
    scales
        Element types that scales may have, the default first.
    block
        GGUF's values and bytes per block; (0, 0) for others.
    makes
        `quantize` can make it; others come from checkpoints only.
    """

    name: str
    code: str
    kind: Kind
    bits: int
    groups: tuple[int, ...]
    scales: tuple[str, ...]
    block: tuple[int, int] = (0, 0)
    makes: bool = True


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp8_e4m3", "e4m3", "scale", 8, (0, 128), ("float32",)),
        Format("int8", "i8", "scale", 8, (0, 32, 64, 128), ("float32", "bfloat16", "float16")),
        Format("int4", "i4", "scale", 4, (128, 64, 32, 0), ("bfloat16", "float16")),
        Format("q4_0", "i4", "scale", 4, (32,), ("float16",), (32, 18)),
        Format("q4_1", "i4", "minimum", 4, (32,), ("float16",), (32, 20)),
        Format("q5_0", "i5", "scale", 5, (32,), ("float16",), (32, 22)),
        Format("q5_1", "i5", "minimum", 5, (32,), ("float16",), (32, 24)),
        Format("q8_0", "i8", "scale", 8, (32,), ("float16",), (32, 34)),
        Format("q4_k", "i4", "super", 4, (32,), ("float16",), (256, 144), makes=False),
        Format("q5_k", "i5", "super", 5, (32,), ("float16",), (256, 176), makes=False),
        Format("q6_k", "i6", "superscale", 6, (16,), ("float16",), (256, 210), makes=False),
    )
}
"""Every format by name."""
