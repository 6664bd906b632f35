"""Random straight-line kernels: chains of integer, logic and f32 instructions over a few registers, some guarded."""

from __future__ import annotations

from collections.abc import Iterator

from diff_case import Case
from diff_operands import Stream

CHAINS = 96
REGISTERS = 6

# R stands for any register, I for a small number, W for a 64-bit register, H for a 16-bit one, P for a predicate.
# A compiler may take the minimum of a register and itself for that register, NaN or not; hence the sources given.
WORDS = (
    "add.u32 R, R, R;",
    "sub.s32 R, R, R;",
    "add.s32 R, R, I;",
    "add.sat.s32 R, R, R;",
    "mul.lo.u32 R, R, R;",
    "mul.hi.u32 R, R, R;",
    "mul.hi.s32 R, R, R;",
    "mad.lo.s32 R, R, R, R;",
    "mad.hi.u32 R, R, R, R;",
    "min.u32 R, R, R;",
    "max.s32 R, R, R;",
    "sad.u32 R, R, R, R;",
    "and.b32 R, R, R;",
    "or.b32 R, R, R;",
    "xor.b32 R, R, I;",
    "not.b32 R, R;",
    "cnot.b32 R, R;",
    "shl.b32 R, R, I;",
    "shr.u32 R, R, I;",
    "shr.s32 R, R, R;",
    "shf.l.wrap.b32 R, R, R, I;",
    "shf.r.clamp.b32 R, R, R, R;",
    "lop3.b32 R, R, R, R, T;",
    "prmt.b32 R, R, R, I;",
    "bfe.u32 R, R, I, I;",
    "bfe.s32 R, R, I, I;",
    "bfi.b32 R, R, R, I, I;",
    "popc.b32 R, R;",
    "clz.b32 R, R;",
    "brev.b32 R, R;",
    "bfind.s32 R, R;",
    "dp4a.s32.u32 R, R, R, R;",
    "selp.b32 R, R, R, P;",
    "slct.s32.s32 R, R, R, R;",
    "mul.wide.u32 W, R, R;",
    "mad.wide.s32 W, R, R, W;",
    "add.s64 W, W, W;",
    "shr.u64 W, W, I;",
    "mov.b64 W, {R, R};",
    "cvt.u32.u64 R, W;",
    "cvt.s8.s32 R, R;",
    "cvt.u16.u32 H, R;",
    "cvt.s32.s16 R, H;",
    "add.rn.f32 R, R, R;",
    "sub.rn.f32 R, R, R;",
    "mul.rn.f32 R, R, R;",
    "fma.rn.f32 R, R, R, R;",
    "fma.rn.ftz.f32 R, R, R, R;",
    "min.f32 R, r0, r3;",
    "max.f32 R, r4, r1;",
    "cvt.rn.f32.s32 R, R;",
    "cvt.rzi.s32.f32 R, R;",
    "setp.lt.s32 P, R, R;",
    "setp.gt.u32 P, R, I;",
    "setp.neu.f32 P, R, R;",
    "setp.le.or.s32 P, R, R, P;",
    "xor.pred P, P, P;",
)


def chain(number: int) -> Case:
    """A chain from its number alone; the result mixes all its registers."""
    stream = Stream(0xC0FFEE + number * 7919)
    lines = [
        f".reg .b32 r<{REGISTERS}>; .reg .b64 w<2>; .reg .b16 h<2>; .reg .pred p<3>;",
        "mov.b32 r0, a0;",
        "mov.b32 r1, a1;",
        "mov.b32 r2, a2;",
        "mov.b32 r3, a3;",
        "add.u32 r4, tid, 1;",
        "not.b32 r5, a0;",
        "mov.b64 w0, {a1, a2};",
        "mov.b64 w1, {a3, a0};",
        "cvt.u16.u32 h0, a3;",
        "cvt.u16.u32 h1, a2;",
        "setp.lt.s32 p0, a0, a1;",
        "setp.gt.u32 p1, a2, a3;",
        "setp.eq.u32 p2, lane, 5;",
    ]
    counts = {"R": REGISTERS, "W": 2, "H": 2, "P": 3}
    for _ in range(5 + stream.below(16)):
        text = WORDS[stream.below(len(WORDS))]
        opcode, operands = text.split(" ", 1)
        made = ""
        for letter in operands:
            if letter in counts:
                made += f"{letter.lower()}{stream.below(counts[letter])}"
            elif letter == "I":
                made += str(stream.below(32))
            else:
                made += str(stream.below(256)) if letter == "T" else letter
        guard = ("", "", f"@p{stream.below(3)} ", f"@!p{stream.below(3)} ")[stream.below(4)]
        lines.append(f"{guard}{opcode} {made}")
    lines.append("mov.b32 d0, r0;")
    for k in range(1, REGISTERS):
        lines += ["shf.l.wrap.b32 d0, d0, d0, 5;", f"xor.b32 d0, d0, r{k};"]
    lines += ["mov.b64 {r0, r1}, w0;", "mov.b64 {r2, r3}, w1;", "mov.b32 r4, {h0, h1};"]
    lines += ["selp.b32 r5, 3, 5, p0;", "@p1 add.u32 r5, r5, 8;", "@p2 add.u32 r5, r5, 16;"]
    lines.append("mov.b32 d1, r0;")
    for k in range(1, REGISTERS):
        lines += ["shf.l.wrap.b32 d1, d1, d1, 7;", f"xor.b32 d1, d1, r{k};"]
    kinds = ("s32", "f32", "u32", "f32") if number % 2 else ("f32", "f32", "s32", "u32")
    return Case(f"chain {number}", "random chains", "\n".join(lines), kinds, ("b32", "b32"))


def chain_cases() -> Iterator[Case]:
    """All cases of this module."""
    for number in range(CHAINS):
        yield chain(number)
