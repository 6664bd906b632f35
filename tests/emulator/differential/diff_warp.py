"""Cases of instructions of a whole warp, of barriers that reduce, and of atomics whose results are determined."""

from __future__ import annotations

from collections.abc import Iterator

from diff_case import Case
from diff_integer import bits

# Some lanes stay away: the mask holds those whose predicate is true.
PART = ".reg .b32 m;\nvote.sync.ballot.b32 m, a1, -1;\n"


def shuffles() -> Iterator[Case]:
    for mode in ("up", "down", "bfly", "idx"):
        # Segments of 32, 16 and 8 lanes.
        for segment in (0x0000, 0x1000, 0x1800):
            clamp = segment | (0 if mode == "up" else 0x1F)
            code = f"shfl.sync.{mode}.b32 d0|d1, a0, a1, {clamp:#x}, -1;"
            yield Case(f"shfl.sync.{mode}.b32 {clamp:#x}", "shuffle", code, ("b32", "lane"), ("b32", "pred"))
        code = f"shfl.sync.{mode}.b32 d0|d1, a0, a1, a2, -1;"
        yield Case(f"shfl.sync.{mode}.b32 with any clamp", "shuffle", code, ("b32", "b32", "lane"), ("b32", "pred"))


def votes() -> Iterator[Case]:
    family = "vote, match, reduction"
    for mode in ("all", "any", "uni"):
        code = f"vote.sync.{mode}.pred d0, a0, -1;"
        yield Case(f"vote.sync.{mode}.pred", family, code, ("pred",), ("pred",))
        # Predicates that mostly agree within a warp.
        code = f"setp.lt.u32 d0, a0, 0xf0000000;\nvote.sync.{mode}.pred d0, d0, -1;"
        yield Case(f"vote.sync.{mode}.pred mostly true", family, code, ("u32",), ("pred",))
        code = f"{PART}setp.lt.u32 d0, a0, 0xe0000000;\n@a1 vote.sync.{mode}.pred d0, d0, m;"
        yield Case(f"vote.sync.{mode}.pred in part", family, code, ("u32", "pred"), ("pred",))
    yield Case("vote.sync.ballot.b32", family, "vote.sync.ballot.b32 d0, a0, -1;", ("pred",), ("b32",))
    yield Case("vote.sync.ballot.b32 !p", family, "vote.sync.ballot.b32 d0, !a0, -1;", ("pred",), ("b32",))
    for w in ("32", "64"):
        few = f"and.b{w} v, a0, 3;"
        code = f".reg .b{w} v;\n{few}\nmatch.any.sync.b{w} d0, v, -1;"
        yield Case(f"match.any.sync.b{w}", family, code, (f"b{w}",), ("b32",))
        code = f".reg .b{w} v;\n{PART}{few}\nmov.b32 d0, 0;\n@a1 match.any.sync.b{w} d0, v, m;"
        yield Case(f"match.any.sync.b{w} in part", family, code, (f"b{w}", "pred"), ("b32",))
        # In half of the warps all values are equal.
        code = (
            f".reg .b{w} v;\n.reg .pred even;\nand.b32 d0, tid, 32;\nsetp.eq.u32 even, d0, 0;\n"
            f"{few}\n@even mov.b{w} v, 7;\nmatch.all.sync.b{w} d0|d1, v, -1;"
        )
        yield Case(f"match.all.sync.b{w}", family, code, (f"b{w}",), ("b32", "pred"))
    for op in ("add.u32", "add.s32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32"):
        yield Case(f"redux.sync.{op}", family, f"redux.sync.{op} d0, a0, -1;", ("b32",), ("b32",))
        code = f"{PART}mov.b32 d0, 0;\n@a1 redux.sync.{op} d0, a0, m;"
        yield Case(f"redux.sync.{op} in part", family, code, ("b32", "pred"), ("b32",))
    yield Case("elect.sync", family, "elect.sync d0|d1, -1;", (), ("b32", "pred"))
    for op, output in (("popc.u32", "b32"), ("and.pred", "pred"), ("or.pred", "pred")):
        yield Case(f"bar.red.{op}", family, f"bar.red.{op} d0, 0, a0;", ("pred",), (output,))


OPERATIONS = {
    "u32": ("add", "min", "max", "inc", "dec"),
    "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max"),
    "s64": ("min", "max"),
    "b32": ("and", "or", "xor", "exch"),
    "b64": ("and", "or", "xor", "exch"),
    "f32": ("add",),
    "f64": ("add",),
}
HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def atomics() -> Iterator[Case]:
    """Every lane at a place of its own: what was there, and what is there afterwards."""
    for t, operations in OPERATIONS.items():
        b = bits(t)
        for op in operations:
            code = f"st.global.{b} [$o1], a0;\natom.global.{op}.{t} d0, [$o1], a1;"
            yield Case(f"atom.global.{op}.{t}", "atomics", code, (t, t), (b, f"m{b[1:]}"))
            code = (
                f"bar.warp.sync -1;\nst.shared.{b} [sm_own], a0;\natom.shared.{op}.{t} d0, [sm_own], a1;\n"
                f"ld.shared.{b} d1, [sm_own];\nbar.warp.sync -1;"
            )
            yield Case(f"atom.shared.{op}.{t}", "atomics", code, (t, t), (b, b))
    for b in ("b16", "b32", "b64"):
        # Half of the lanes compare with what is there.
        code = f".reg .{b} v;\nst.global.{b} [$o1], a0;\nselp.{b} v, a0, a1, a3;\natom.global.cas.{b} d0, [$o1], v, a2;"
        yield Case(f"atom.global.cas.{b}", "atomics", code, (b, b, b, "pred"), (b, f"m{b[1:]}"))
    for t in HALVES:
        b = bits(t)
        code = f"st.global.{b} [$o1], a0;\natom.global.add.noftz.{t} d0, [$o1], a1;"
        yield Case(f"atom.global.add.noftz.{t}", "atomics", code, (t, t), (b, f"m{b[1:]}"))
        count = 2 if t.endswith("x2") else 4
        for op in ("add", "min", "max"):
            name = f"atom.global.{op}.noftz.v{count}.{t}"
            there = "\n".join(f"st.global.{b} [$o{count}+{k * int(b[1:]) // 8}], a{k};" for k in range(count))
            targets = ", ".join(f"d{k}" for k in range(count))
            sources = ", ".join(f"a{k}" for k in range(count, 2 * count))
            code = f"{there}\n{name} {{{targets}}}, [$o{count}], {{{sources}}};"
            yield Case(name, "atomics", code, (t,) * 2 * count, (*(b,) * count, "m64"))
    code = "st.global.b32 [$o2], a0;\nst.global.b32 [$o2+4], a1;\natom.global.add.v2.f32 {d0, d1}, [$o2], {a2, a3};"
    yield Case("atom.global.add.v2.f32", "atomics", code, ("f32",) * 4, ("b32", "b32", "m64"))


def reductions() -> Iterator[Case]:
    """All lanes of a warp at one place: the order does not matter for integers."""
    for t, operations in OPERATIONS.items():
        b = bits(t)
        for op in operations:
            if op == "exch" or t[0] == "f":
                continue
            # All count to the same limit, or the order would matter.
            value = "37" if op in ("inc", "dec") else "a1"
            code = (
                f"st.global.{b} [$o0], a0;\nbar.warp.sync -1;\nred.global.{op}.{t} [$w0], {value};\n"
                f"bar.warp.sync -1;\nld.volatile.global.{b} d1, [$w0];"
            )
            yield Case(f"red.global.{op}.{t} by a warp", "atomics", code, (t, t), (f"m{b[1:]}", b))


def warp_cases() -> Iterator[Case]:
    """All cases of this module."""
    for table in (shuffles, votes, atomics, reductions):
        yield from table()
