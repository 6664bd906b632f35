"""Cases of matrix instructions: products of every shape and type, and 8x8 matrices in shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diff_case import Bound, Case

PACKED = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4, "e5m2": 4, "s8": 4, "u8": 4, "s4": 8, "u4": 8, "f64": 1}
# Of the sum of the absolute values of all terms: the ISA leaves order and intermediate precision open.
FRACTIONS = {"f64": 2.0**-50, "f32": 2.0**-22, "f16": 2.0**-9}


def _kind(element: str) -> str:
    count = PACKED[element]
    return f"m_{element}x{count}" if count > 1 else f"m_{element}"


def sum_bound(form: str, fraction: float) -> Bound:
    """This fraction of the sum of all absolute terms."""
    return Bound(form, f"2^{round(math.log2(fraction))} of the terms' sum", products=fraction)


def product(shape: tuple[int, int, int], a: str, b: str, c: str, words: str = "", odd: bool = False) -> Case:
    """One `mma.sync`: fragments of A, B and C are the operands; with `odd`, some are infinite, NaN or subnormal."""
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
    bound = None
    if c != "s32":
        bound = sum_bound(c, FRACTIONS[c])
    code = f"{name} {results}, {', '.join(lists)};"
    if odd:
        inputs, name = tuple(f"o_{kind[2:]}" for kind in inputs), f"{name} of special values"
    return Case(name, "matrix products", code, inputs, (width,) * many[2], bound)


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
        yield product((16, 8, k), a, a, c, odd=True)
    yield product((16, 8, 16), "f64", "f64", "f64", odd=True)
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
            bound = None if c == "s32" else sum_bound(c, FRACTIONS[c])
            yield Case(
                f"{product} {d}", "matrix products", "\n".join(code), (_kind(element),) * 8, ("b32",) * sums, bound
            )


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
    yield from fragments()
    yield from memory()
