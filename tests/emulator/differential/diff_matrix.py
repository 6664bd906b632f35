"""Cases of matrix instructions: products of every shape and type, and 8x8 matrices in shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from diff_case import Case

PACKED = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4, "e5m2": 4, "s8": 4, "u8": 4, "s4": 8, "u4": 8, "f64": 1}


def _kind(element: str) -> str:
    count = PACKED[element]
    return f"m_{element}x{count}" if count > 1 else f"m_{element}"


# What is said of operands by the prefix of their kind.
SORTS = {"o": "special values", "x": "wide exponents", "z": "zeros"}


def product(shape: tuple[int, int, int], a: str, b: str, c: str, words: str = "", sort: str = "") -> Case:
    """One `mma.sync`: fragments of A, B and C are the operands.

    Of sort ``"o"`` some are infinite, NaN or subnormal; of ``"x"`` exponents are far apart; of ``"z"`` most are zero.
    """
    m, n, k = shape
    many = (m * k // (32 * PACKED[a]), k * n // (32 * PACKED[b]), m * n // 32 // (2 if c == "f16" else 1))
    sums = "m_f16x2" if c == "f16" else f"m_{c}"
    inputs = (_kind(a),) * many[0] + (_kind(b),) * many[1] + (sums,) * many[2]
    lists, first = [], 0
    for count in many:
        lists.append("{" + ", ".join(f"a{first + i}" for i in range(count)) + "}")
        first += count
    results = "{" + ", ".join(f"d{i}" for i in range(many[2])) + "}"
    name = f"mma.sync.aligned.m{m}n{n}k{k}.row.col{words}.{c}.{a}.{b}.{c}"
    width = "b64" if c == "f64" else "b32"
    code = f"{name} {results}, {', '.join(lists)};"
    if sort:
        inputs, name = tuple(f"{sort}_{kind[2:]}" for kind in inputs), f"{name} of {SORTS[sort]}"
    return Case(name, "matrix products", code, inputs, (width,) * many[2])


def group_product(k: int, a: str, b: str, c: str, sort: str = "m") -> Case:
    """One `wgmma` of 64 rows and 8 columns: A in registers, B from the first 64 lanes by way of shared memory."""
    sums = 2 if c == "f16" else 4
    own = {"m": _kind, "x": lambda element: f"x_{_kind(element)[2:]}", "z": lambda element: f"z_{_kind(element)[2:]}"}
    inputs = (own[sort](a),) * 4 + (own[sort](b),) + (f"{sort}_f16x2" if c == "f16" else f"{sort}_f32",) * sums
    name = f"wgmma.mma_async.sync.aligned.m64n8k{k}.{c}.{a}.{b}"
    registers = ", ".join(f"d{i}" for i in range(sums))
    turned = ", 0" if a in ("f16", "bf16") else ""
    code = [
        ".reg .b32 base, at; .reg .b64 wide, descriptor; .reg .pred part;",
        "bar.sync 0;",
        "and.b32 base, tid, 128;",
        "mov.u32 at, tile;",
        "mad.lo.u32 base, base, 32, at;",
        "and.b32 at, tid, 127;",
        "setp.lt.u32 part, at, 64;",
        "mad.lo.u32 at, at, 4, base;",
        "@part st.shared.b32 [at], a4;",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        "shr.u32 base, base, 4;",
        "cvt.u64.u32 wide, base;",
        # Units of 16 bytes of k lie 128 bytes apart; there is one group of 8 columns.
        "or.b64 descriptor, wide, 0x0000000800080000;",
        *(f"mov.b32 d{i}, a{5 + i};" for i in range(sums)),
        "setp.ge.u32 part, tid, 0;",
        "wgmma.fence.sync.aligned;",
        f"{name} {{{registers}}}, {{a0, a1, a2, a3}}, descriptor, part, 1, 1{turned};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        "bar.sync 0;",
    ]
    if sort != "m":
        name = f"{name} of {SORTS[sort]}"
    return Case(name, "products of warp groups", "\n".join(code), inputs, ("b32",) * sums)


def group_products() -> Iterator[Case]:
    types = [(16, "f16", "f16"), (16, "bf16", "bf16"), (8, "tf32", "tf32"), (32, "e4m3", "e4m3")]
    for sort in ("m", "x", "z"):
        for k, a, b in types:
            yield group_product(k, a, b, "f32", sort)
        yield group_product(16, "f16", "f16", "f16", sort)
    for a, b in (("e5m2", "e5m2"), ("e4m3", "e5m2")):
        yield group_product(32, a, b, "f32", "x")
    yield group_product(32, "e4m3", "e4m3", "f16", "x")


def far_products() -> Iterator[Case]:
    """Products whose terms are far apart, or mostly zero: what is cut, and what the largest term is."""
    for sort in ("x", "z"):
        for k, a, c in (
            (8, "f16", "f32"),
            (16, "f16", "f32"),
            (16, "f16", "f16"),
            (16, "bf16", "f32"),
            (4, "tf32", "f32"),
            (8, "tf32", "f32"),
            (32, "e4m3", "f32"),
            (32, "e5m2", "f32"),
            (32, "e4m3", "f16"),
        ):
            yield product((16, 8, k), a, a, c, sort=sort)


def products() -> Iterator[Case]:
    for k in (8, 16):
        yield product((16, 8, k), "f16", "f16", "f32")
        yield product((16, 8, k), "f16", "f16", "f16")
        yield product((16, 8, k), "bf16", "bf16", "f32")
    for k in (4, 8):
        yield product((16, 8, k), "tf32", "tf32", "f32")
    for a in ("e4m3", "e5m2"):
        for b in ("e4m3", "e5m2"):
            yield product((16, 8, 32), a, b, "f32")
    yield product((16, 8, 16), "e4m3", "e5m2", "f32")
    yield product((16, 8, 32), "e4m3", "e4m3", "f16")
    yield product((8, 8, 4), "f64", "f64", "f64")
    for k in (4, 8, 16):
        yield product((16, 8, k), "f64", "f64", "f64")
    for a, c, k in (
        ("f16", "f32", 16),
        ("f16", "f16", 16),
        ("bf16", "f32", 16),
        ("tf32", "f32", 8),
        ("e5m2", "f32", 32),
    ):
        yield product((16, 8, k), a, a, c, sort="o")
    yield product((16, 8, 16), "f64", "f64", "f64", sort="o")
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            for shape in ((8, 8, 16), (16, 8, 16), (16, 8, 32)):
                yield product(shape, a, b, "s32")
            yield product((16, 8, 32), a, b, "s32", ".satfinite")
    for a, b in (("s4", "s4"), ("u4", "s4")):
        for shape in ((8, 8, 32), (16, 8, 32), (16, 8, 64)):
            yield product(shape, a, b, "s32")


def fragments() -> Iterator[Case]:
    """`wmma`: A and B from shared memory, D back to it; which lane holds what is not specified, the matrices are."""
    orders = (("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row"))
    for element, c, many in (("f16", "f32", 8), ("f16", "f16", 8), ("bf16", "f32", 4), ("s8", "s32", 2)):
        for a, b, d in orders:
            sums = 4 if c == "f16" else 8
            rows = [", ".join(f"{letter}{k}" for k in range(count)) for letter, count in (("x", many), ("y", many))]
            result, zeros = ", ".join(f"z{k}" for k in range(sums)), ", ".join(["z8"] * sums)
            types = f"{c}.{c}" if element == "f16" else f"{c}.{element}.{element}.{c}"
            product = f"wmma.mma.sync.aligned.{a}.{b}.m16n16k16.{types}"
            load = f"wmma.load.{{}}.sync.aligned.{{}}.m16n16k16.shared.{element}"
            code = [
                f".reg .b32 x<{many}>, y<{many}>, z<9>;",
                "bar.warp.sync -1;",
                "st.shared.v4.b32 [sm_own], {a0, a1, a2, a3};",
                "st.shared.v4.b32 [sm_own+512], {a4, a5, a6, a7};",
                "bar.warp.sync -1;",
                "mov.b32 z8, 0;",
                f"{load.format('a', a)} {{{rows[0]}}}, [sm_warp], 16;",
                f"{load.format('b', b)} {{{rows[1]}}}, [sm_warp+512], 16;",
                f"{product} {{{result}}}, {{{rows[0]}}}, {{{rows[1]}}}, {{{zeros}}};",
                "bar.warp.sync -1;",
                f"wmma.store.d.sync.aligned.{d}.m16n16k16.shared.{c} [sm_warp], {{{result}}}, 16;",
                "bar.warp.sync -1;",
                "ld.shared.v4.b32 {d0, d1, d2, d3}, [sm_own];",
                *(["ld.shared.v4.b32 {d4, d5, d6, d7}, [sm_own+512];"] if sums == 8 else []),
                "bar.warp.sync -1;",
            ]
            yield Case(f"{product} {d}", "matrix products", "\n".join(code), (_kind(element),) * 8, ("b32",) * sums)


def memory() -> Iterator[Case]:
    family = "matrices in shared memory"
    fill = "bar.warp.sync -1;\nst.shared.v4.b32 [sm_own], {a0, a1, a2, a3};\nbar.warp.sync -1;"
    words = ("b32",) * 4
    for count in (1, 2, 4):
        registers = ", ".join(f"d{k}" for k in range(count))
        for trans in ("", ".trans"):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            code = f"{fill}\n{name} {{{registers}}}, [sm_own];\nbar.warp.sync -1;"
            yield Case(name, family, code, words, ("b32",) * count)
            name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            sources = ", ".join(f"a{k}" for k in range(count))
            code = (
                f"bar.warp.sync -1;\nst.shared.v4.b32 [sm_own], {{0, 0, 0, 0}};\nbar.warp.sync -1;\n"
                f"{name} [sm_own], {{{sources}}};\nbar.warp.sync -1;\n"
                "ld.shared.v4.b32 {d0, d1, d2, d3}, [sm_own];\nbar.warp.sync -1;"
            )
            yield Case(name, family, code, ("b32",) * count, words)
    name = "movmatrix.sync.aligned.m8n8.trans.b16"
    yield Case(name, family, f"{name} d0, a0;", ("b32",), ("b32",))


def matrix_cases() -> Iterator[Case]:
    """All cases of this module."""
    yield from products()
    yield from far_products()
    yield from group_products()
    yield from fragments()
    yield from memory()
