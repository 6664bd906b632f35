"""One instruction applied to 256 lanes of operands: what a case is, and the PTX that runs several of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from diff_operands import operand_columns

LANES = 256
SLOT = 8  # bytes of an operand or a result in memory, whatever its width
WIDTHS = {"b16": 16, "b32": 32, "b64": 64, "m16": 16, "m32": 32, "m64": 64, "pred": 1}

HEADER = ".version 8.7\n.target {}\n.address_size 64\n"
PROLOGUE = f"""
    .reg .b64 rdi, rdo, rdw;
    .reg .b32 tid, lane, sm_own, sm_warp;
    .shared .align 128 .b8 tile[{LANES * 32}];
    ld.param.u64 rdi, [kernel_param_0];
    ld.param.u64 rdo, [kernel_param_1];
    mov.u32 tid, %tid.x;
    and.b32 lane, tid, 31;
    mad.wide.u32 rdi, tid, {SLOT}, rdi;
    mul.wide.u32 rdw, lane, {SLOT};
    mad.wide.u32 rdo, tid, {SLOT}, rdo;
    sub.u64 rdw, rdo, rdw;
    mov.u32 sm_warp, tile;
    sub.u32 sm_own, tid, lane;
    mad.lo.u32 sm_warp, sm_own, 32, sm_warp;
    mad.lo.u32 sm_own, lane, 16, sm_warp;
"""


@dataclass(frozen=True)
class Bound:
    """What a result may be off by: the largest that holds of several terms, beside rounding to the format."""

    format: str
    text: str
    ulp: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True)
class Case:
    """Instructions that read registers a0, a1, ... and write d0, d1, ...

    In `code`, ``$i0`` is the lane's address of operand 0, ``$o0`` that of result 0, and ``$w0`` that of result 0 of the
    first lane of the warp. A result of width ``m32`` is what the code leaves in memory at ``$oN``.
    """

    name: str
    family: str
    code: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bound: Bound | None = None

    @cached_property
    def operands(self) -> np.ndarray:
        """The operands, as 64-bit words: one row for each."""
        return operand_columns(self.name, self.inputs, LANES)

    @cached_property
    def digest(self) -> int:
        """Changes with the code and with the operands: recorded results are those of this very case."""
        text = repr((self.code, self.inputs, self.outputs)).encode()
        return zlib.crc32(self.operands.tobytes(), zlib.crc32(text))

    def body(self, first_in: int, first_out: int) -> str:
        """PTX of the case; operands and results begin at these bytes."""
        lines: list[str] = []
        for k, kind in enumerate(self.inputs):
            width = register_width(kind)
            at = f"[rdi+{first_in + k * LANES * SLOT}]"
            if width == 1:
                lines += [f".reg .pred a{k}; .reg .b32 ap{k};", f"ld.global.b32 ap{k}, {at};"]
                lines.append(f"setp.ne.u32 a{k}, ap{k}, 0;")
            else:
                lines += [f".reg .b{width} a{k};", f"ld.global.b{width} a{k}, {at};"]
        ends: list[str] = []
        for k, kind in enumerate(self.outputs):
            at = f"[rdo+{first_out + k * LANES * SLOT}]"
            if kind == "pred":
                lines.append(f".reg .pred d{k}; .reg .b32 dp{k};")
                ends += [f"selp.u32 dp{k}, 1, 0, d{k};", f"st.global.b32 {at}, dp{k};"]
            elif not kind.startswith("m"):
                lines.append(f".reg .{kind} d{k};")
                ends.append(f"st.global.{kind} {at}, d{k};")

        def place(match: re.Match[str]) -> str:
            base, first = {"i": ("rdi", first_in), "o": ("rdo", first_out), "w": ("rdw", first_out)}[match[1]]
            return f"{base}+{first + int(match[2]) * LANES * SLOT}"

        code = re.sub(r"\$([iow])(\d+)", place, self.code)
        return "{\n    " + "\n    ".join([*lines, *code.strip().splitlines(), *ends]) + "\n}\n"


def register_width(kind: str) -> int:
    """Bits of the register that holds an operand of this kind; 1 for a predicate."""
    kind = re.sub("^(m|o|x|z|nz)_", "", kind)
    if kind == "pred":
        return 1
    if kind.endswith(("x2", "x4", "x8")):
        count = int(kind[-1])
        element = kind[:-2]
        bits = 4 if element in ("s4", "u4") else 8 if element in ("e4m3", "e5m2", "s8", "u8") else 16
        return max(16, bits * count)
    digits = re.fullmatch(r"[a-z]+(\d+)", kind)
    if digits and kind not in ("tf32",):
        return max(16, int(digits[1])) if kind not in ("u8", "s8") else 32
    return 32


def module(cases: Sequence[Case]) -> str:
    """PTX of one kernel that runs all these cases, one after another."""
    # Warp groups are of one architecture only.
    target = "sm_90a" if any("wgmma" in case.code for case in cases) else "sm_90"
    parts = [
        HEADER.format(target),
        ".visible .entry kernel(.param .u64 kernel_param_0, .param .u64 kernel_param_1)\n{",
        PROLOGUE,
    ]
    first_in = first_out = 0
    for case in cases:
        parts.append(f"// {case.name}\n{case.body(first_in, first_out)}")
        first_in += len(case.inputs) * LANES * SLOT
        first_out += len(case.outputs) * LANES * SLOT
    return "".join([*parts, "ret;\n}\n"])
