"""Cases of integer, logic and bit instructions, of carries, and of comparisons and selection."""

from __future__ import annotations

from collections.abc import Iterator

from diff_case import Case

INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDE = {"u16": "b32", "s16": "b32", "u32": "b64", "s32": "b64"}
RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED = ("lo", "ls", "hi", "hs")
FLOAT_RELATIONS = (*RELATIONS, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def bits(kind: str) -> str:
    """The untyped register of an integer or float type."""
    return "b32" if kind.endswith("x2") else "b" + kind.lstrip("usbf")


def simple(family: str, op: str, inputs: tuple[str, ...], output: str) -> Case:
    """One instruction named `op` of these operands."""
    operands = ", ".join(f"a{k}" for k in range(len(inputs)))
    return Case(op, family, f"{op} d0, {operands};", inputs, (output,))


def arithmetic() -> Iterator[Case]:
    family = "integer arithmetic"
    for t in INTS:
        b = bits(t)
        for op in (f"add.{t}", f"sub.{t}", f"mul.lo.{t}", f"mul.hi.{t}", f"min.{t}", f"max.{t}"):
            yield simple(family, op, (t, t), b)
        for op in (f"div.{t}", f"rem.{t}"):
            # The result of a division by zero is not specified.
            yield simple(family, op, (t, f"nz_{t}"), b)
        for op in (f"mad.lo.{t}", f"mad.hi.{t}", f"sad.{t}"):
            yield simple(family, op, (t, t, t), b)
        if t in WIDE:
            yield simple(family, f"mul.wide.{t}", (t, t), WIDE[t])
            wide = t[0] + WIDE[t][1:]
            yield simple(family, f"mad.wide.{t}", (t, t, wide), WIDE[t])
        if t[0] == "s":
            yield simple(family, f"neg.{t}", (t,), b)
            yield simple(family, f"abs.{t}", (t,), b)
    yield simple(family, "add.sat.s32", ("s32", "s32"), "b32")
    yield simple(family, "sub.sat.s32", ("s32", "s32"), "b32")
    yield simple(family, "mad.hi.sat.s32", ("s32", "s32", "s32"), "b32")
    for t in ("u32", "s32"):
        for half in ("lo", "hi"):
            yield simple(family, f"mul24.{half}.{t}", (t, t), "b32")
            yield simple(family, f"mad24.{half}.{t}", (t, t, t), "b32")
    yield simple(family, "mad24.hi.sat.s32", ("s32", "s32", "s32"), "b32")
    for t in ("u16x2", "s16x2"):
        for op in ("add", "min", "max"):
            yield simple(family, f"{op}.{t}", ("b32", "b32"), "b32")
    for op in ("min.relu.s16x2", "max.relu.s16x2", "min.relu.s32", "max.relu.s32"):
        yield simple(family, op, ("s32", "s32"), "b32")
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            yield simple(family, f"dp4a.{a}.{b}", ("b32", "b32", "b32"), "b32")
            for half in ("lo", "hi"):
                yield simple(family, f"dp2a.{half}.{a}.{b}", ("b32", "b32", "b32"), "b32")


def carries() -> Iterator[Case]:
    family = "carry chains"
    for w in ("32", "64"):
        t, b = f"u{w}", f"b{w}"
        for op in ("add", "sub"):
            code = f"{op}.cc.{t} d0, a0, a1;\n{op}c.cc.{t} d1, a2, a3;\n{op}c.{t} d2, a0, a3;"
            yield Case(f"{op}.cc.{t} chain", family, code, (t,) * 4, (b,) * 3)
        for sign in ("u", "s"):
            m = f"{sign}{w}"
            code = f"mad.lo.cc.{m} d0, a0, a1, a2;\nmadc.hi.cc.{m} d1, a0, a1, a3;\naddc.{t} d2, 0, 0;"
            yield Case(f"mad.lo.cc.{m} chain", family, code, (m,) * 4, (b,) * 3)
            code = f"mad.hi.cc.{m} d0, a0, a1, a2;\nmadc.lo.cc.{m} d1, a2, a1, a3;\nmadc.hi.{m} d2, a0, a2, a1;"
            yield Case(f"mad.hi.cc.{m} chain", family, code, (m,) * 4, (b,) * 3)
    code = "add.cc.s32 d0, a0, a1;\nsubc.cc.s32 d1, a2, a3;\naddc.cc.s32 d2, a0, a3;\naddc.s32 d3, 0, 0;"
    yield Case("add.cc and subc.cc mixed", family, code, ("s32",) * 4, ("b32",) * 4)


def logic() -> Iterator[Case]:
    family = "logic and shifts"
    for w in ("b16", "b32", "b64"):
        for op in ("and", "or", "xor"):
            yield simple(family, f"{op}.{w}", (w, w), w)
        for op in ("not", "cnot"):
            yield simple(family, f"{op}.{w}", (w,), w)
        yield simple(family, f"shl.{w}", (w, "shift"), w)
        for sign in "bus":
            yield simple(family, f"shr.{sign}{w[1:]}", (w, "shift"), w)
    for op in ("and", "or", "xor"):
        yield simple(family, f"{op}.pred", ("pred", "pred"), "pred")
    yield simple(family, "not.pred", ("pred",), "pred")
    for side in "lr":
        for mode in ("clamp", "wrap"):
            yield simple(family, f"shf.{side}.{mode}.b32", ("b32", "b32", "shift"), "b32")
    for table in (0x80, 0x96, 0xE8, 0xCA, 0x1B, 0xF4, 0x00, 0xFF):
        code = f"lop3.b32 d0, a0, a1, a2, {table:#x};"
        yield Case(f"lop3.b32 {table:#04x}", family, code, ("b32",) * 3, ("b32",))
    code = "lop3.or.b32 d0|d1, a0, a1, a2, 0x6a, a3;"
    yield Case("lop3.or.b32", family, code, ("b32", "b32", "b32", "pred"), ("b32", "pred"))
    yield simple(family, "prmt.b32", ("b32", "b32", "b32"), "b32")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield simple(family, f"prmt.b32.{mode}", ("b32", "b32", "lane"), "b32")


def fields() -> Iterator[Case]:
    family = "bit fields"
    for w in ("32", "64"):
        for op in ("popc", "clz"):
            yield simple(family, f"{op}.b{w}", (f"b{w}",), "b32")
        yield simple(family, f"brev.b{w}", (f"b{w}",), f"b{w}")
        for sign in "us":
            t = f"{sign}{w}"
            yield simple(family, f"bfind.{t}", (t,), "b32")
            yield simple(family, f"bfind.shiftamt.{t}", (t,), "b32")
            yield simple(family, f"bfe.{t}", (t, "field", "field"), f"b{w}")
        yield simple(family, f"bfi.b{w}", (f"b{w}", f"b{w}", "field", "field"), f"b{w}")
    for mode in ("clamp", "wrap"):
        yield simple(family, f"bmsk.{mode}.b32", ("shift", "shift"), "b32")
        for t in ("u32", "s32"):
            yield simple(family, f"szext.{mode}.{t}", (t, "shift"), "b32")
    code = "sub.s32 d0, a2, 16;\nfns.b32 d0, a0, a1, d0;"
    yield Case("fns.b32", family, code, ("b32", "lane", "lane"), ("b32",))


def setp(op: str, inputs: tuple[str, ...], negate: str = "") -> Case:
    """A comparison; of single halves only one predicate is written."""
    outputs = ("pred",) if inputs[0] in ("f16", "bf16") else ("pred", "pred")
    third = f", {negate}a2" if len(inputs) == 3 else ""
    target = "|".join(f"d{k}" for k in range(len(outputs)))
    name = f"{op} !p" if negate else op
    return Case(name, "comparison", f"{op} {target}, a0, a1{third};", inputs, outputs)


def comparisons() -> Iterator[Case]:
    floats = ("f32", "f64", "f16", "bf16")
    for t in (*INTS, "b16", "b32", "b64", *floats):
        if t[0] == "b" and t != "bf16":
            relations: tuple[str, ...] = ("eq", "ne")
        elif t in floats:
            relations = FLOAT_RELATIONS
        else:
            relations = (*RELATIONS, *UNSIGNED) if t[0] == "u" else RELATIONS
        for relation in relations:
            for ftz in ("", ".ftz") if t in ("f32", "f16") else ("",):
                yield setp(f"setp.{relation}{ftz}.{t}", (t, t))
    for t in ("s32", "u64", "f32", "f64", "f16"):
        for combine in ("and", "or", "xor"):
            yield setp(f"setp.lt.{combine}.{t}", (t, t, "pred"))
            yield setp(f"setp.lt.{combine}.{t}", (t, t, "pred"), "!")
    for t in ("f16x2", "bf16x2"):
        for relation in FLOAT_RELATIONS:
            yield setp(f"setp.{relation}.{t}", (t, t))
        yield setp(f"setp.geu.xor.{t}", (t, t, "pred"))


def sets() -> Iterator[Case]:
    family = "set"
    for t in (*INTS, "b32", "f32", "f64", "f16", "bf16"):
        relations = ("eq", "ne") if t == "b32" else ("lt", "ge")
        for relation in (*relations, *(("neu", "nan") if "f" in t else ())):
            for result in ("u32", "f32"):
                if t in ("f16", "bf16") and result == "f32":
                    continue
                yield simple(family, f"set.{relation}.{result}.{t}", (t, t), "b32")
    for t in ("f16", "bf16"):
        yield simple(family, f"set.gtu.{t}.{t}", (t, t), "b16")
        yield simple(family, f"set.le.u16.{t}", (t, t), "b16")
        yield simple(family, f"set.ltu.{t}x2.{t}x2", (f"{t}x2", f"{t}x2"), "b32")
        yield simple(family, f"set.ge.u32.{t}x2", (f"{t}x2", f"{t}x2"), "b32")
    yield simple(family, "set.lt.ftz.u32.f32", ("f32", "f32"), "b32")
    yield simple(family, "set.eq.ftz.f16x2.f16x2", ("f16x2", "f16x2"), "b32")
    for combine in ("and", "or", "xor"):
        yield simple(family, f"set.lt.{combine}.u32.s32", ("s32", "s32", "pred"), "b32")
        yield simple(family, f"set.gt.{combine}.f32.f32", ("f32", "f32", "pred"), "b32")


def selection() -> Iterator[Case]:
    family = "selection"
    for t in (*INTS, "b16", "b32", "b64", "f32", "f64"):
        yield simple(family, f"selp.{t}", (t, t, "pred"), bits(t))
        yield simple(family, f"slct.{t}.s32", (t, t, "s32"), bits(t))
        yield simple(family, f"slct.{t}.f32", (t, t, "f32"), bits(t))
    yield simple(family, "slct.ftz.u32.f32", ("u32", "u32", "f32"), "b32")


def moves() -> Iterator[Case]:
    family = "moves"
    yield Case("mov.b32 pack", family, "mov.b32 d0, {a0, a1};", ("b16", "b16"), ("b32",))
    yield Case("mov.b64 pack", family, "mov.b64 d0, {a0, a1};", ("b32", "b32"), ("b64",))
    yield Case("mov.b64 pack 4", family, "mov.b64 d0, {a0, a1, a2, a3};", ("b16",) * 4, ("b64",))
    yield Case("mov.b32 unpack", family, "mov.b32 {d0, d1}, a0;", ("b32",), ("b16", "b16"))
    yield Case("mov.b64 unpack", family, "mov.b64 {d0, d1}, a0;", ("b64",), ("b32", "b32"))
    yield Case("mov.b64 unpack 4", family, "mov.b64 {d0, d1, d2, d3}, a0;", ("b64",), ("b16",) * 4)
    for t, b in (("u8", 8), ("s8", 8), ("u16", 16), ("s16", 16), ("u32", 32), ("s32", 32)):
        for register in ("b16", "b32", "b64"):
            if b <= int(register[1:]):
                yield Case(f"ld.global.{t} to {register}", family, f"ld.global.{t} d0, [$i0];", ("b64",), (register,))
    yield Case("ld.global.v2.u8", family, "ld.global.v2.u8 {d0, d1}, [$i0];", ("b64",), ("b16", "b16"))
    yield Case("ld.global.v4.s8", family, "ld.global.v4.s8 {d0, d1, d2, d3}, [$i0+4];", ("b64",), ("b32",) * 4)
    code = "st.global.v4.u16 [$o0], {a0, a1, a2, a3};"
    yield Case("st.global.v4.u16", family, code, ("b16",) * 4, ("m64",))
    yield Case("st.global.u8", family, "st.global.u8 [$o0+3], a0;\nst.global.u8 [$o0], a1;", ("b32", "b64"), ("m64",))


def integer_cases() -> Iterator[Case]:
    """All cases of this module."""
    for table in (arithmetic, carries, logic, fields, comparisons, sets, selection, moves):
        yield from table()
