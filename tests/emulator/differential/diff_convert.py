"""Cases of conversions: every pair of types with every rounding, saturation, and the packed formats."""

from __future__ import annotations

from collections.abc import Iterator

from diff_case import Case
from diff_integer import simple

INTS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64"}
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


def register(kind: str) -> str:
    """The register of a type; bytes lie in 32 bits."""
    return FLOATS.get(kind) or {"8": "b32"}.get(kind[1:], f"b{kind[1:]}")


def _range(kind: str) -> tuple[int, int]:
    width = int(kind[1:])
    return (0, (1 << width) - 1) if kind[0] == "u" else (-(1 << (width - 1)), (1 << (width - 1)) - 1)


def integers() -> Iterator[Case]:
    for to in INTS:
        for source in INTS:
            if to == source:
                continue
            yield simple("cvt integer to integer", f"cvt.{to}.{source}", (source,), register(to))
            (low, high), (least, most) = _range(to), _range(source)
            if least < low or most > high:
                yield simple("cvt integer to integer", f"cvt.sat.{to}.{source}", (source,), register(to))
    # Registers may be wider than their types.
    for to, source in (("u8", "s16"), ("s8", "u32"), ("s16", "s8"), ("u16", "u8"), ("s16", "s32")):
        code = f"cvt.{to}.{source} d0, a0;"
        yield Case(f"cvt.{to}.{source} in b64", "cvt integer to integer", code, ("b64",), ("b64",))


def between() -> Iterator[Case]:
    for real in FLOATS:
        # There are no conversions between bytes and bf16.
        for integer in INTS[2:] if real == "bf16" else INTS:
            for rounding in ROUNDINGS:
                name = f"cvt.{rounding}.{real}.{integer}"
                yield simple("cvt integer to float", name, (integer,), register(real))
            for rounding in INTEGRAL:
                name = f"cvt.{rounding}.{integer}.{real}"
                yield simple("cvt float to integer", name, (real,), register(integer))
            if real != "bf16":
                yield simple("cvt float to integer", f"cvt.rni.sat.{integer}.{real}", (real,), register(integer))
            if real == "f32":
                yield simple("cvt float to integer", f"cvt.rpi.ftz.{integer}.f32", ("f32",), register(integer))
    for integer in ("u32", "s64"):
        for real in ("f16", "f32", "f64"):
            yield simple("cvt integer to float", f"cvt.rn.sat.{real}.{integer}", (integer,), register(real))


def floats() -> Iterator[Case]:
    family = "cvt float to float"
    for to in FLOATS:
        for source in FLOATS:
            b, narrows = register(to), WIDTH[to] < WIDTH[source] or {to, source} == {"f16", "bf16"}
            single = "f32" in (to, source)
            if to == source:
                for rounding in INTEGRAL:
                    yield simple(family, f"cvt.{rounding}.{to}.{to}", (to,), b)
                if to != "bf16":
                    yield simple(family, f"cvt.rni.sat.{to}.{to}", (to,), b)
                    yield simple(family, f"cvt.sat.{to}.{to}", (to,), b)
                if single:
                    yield simple(family, "cvt.rmi.ftz.f32.f32", ("f32",), b)
                    yield simple(family, "cvt.ftz.sat.f32.f32", ("f32",), b)
            elif narrows:
                for rounding in ROUNDINGS:
                    yield simple(family, f"cvt.{rounding}.{to}.{source}", (source,), b)
                if "bf16" not in (to, source):
                    yield simple(family, f"cvt.rn.sat.{to}.{source}", (source,), b)
                if single and to != "bf16":
                    yield simple(family, f"cvt.rn.ftz.{to}.{source}", (source,), b)
            else:
                yield simple(family, f"cvt.{to}.{source}", (source,), b)
                if source != "bf16":
                    yield simple(family, f"cvt.sat.{to}.{source}", (source,), b)
                if single and source != "bf16":
                    yield simple(family, f"cvt.ftz.{to}.{source}", (source,), b)
    for to in ("f16", "bf16"):
        for words in ("rn.relu", "rz.relu", "rn.satfinite", "rz.satfinite", "rn.relu.satfinite"):
            yield simple(family, f"cvt.{words}.{to}.f32", ("f32",), "b16")


def packed() -> Iterator[Case]:
    family = "cvt packed"
    pair = ("f32", "f32")
    for to in ("f16x2", "bf16x2"):
        for words in ("rn", "rz", "rn.relu", "rz.relu", "rn.satfinite", "rz.satfinite", "rn.relu.satfinite"):
            yield simple(family, f"cvt.{words}.{to}.f32", pair, "b32")
    for words in ("rna", "rn", "rz", "rn.relu", "rz.relu", "rna.satfinite"):
        yield simple(family, f"cvt.{words}.tf32.f32", ("f32",), "b32")
    for to in ("e4m3x2", "e5m2x2"):
        for relu in ("", ".relu"):
            yield simple(family, f"cvt.rn.satfinite{relu}.{to}.f32", pair, "b16")
            yield simple(family, f"cvt.rn.satfinite{relu}.{to}.f16x2", ("f16x2",), "b16")
            yield simple(family, f"cvt.rn{relu}.f16x2.{to}", (to,), "b32")
    for to in ("u16", "s16"):
        yield simple(family, f"cvt.pack.sat.{to}.s32", ("s32", "s32"), "b32")
    for to in ("u8", "s8"):
        yield simple(family, f"cvt.pack.sat.{to}.s32.b32", ("s32", "s32", "b32"), "b32")
    for to in ("u4", "s4", "u2", "s2"):
        yield simple(family, f"cvt.pack.sat.{to}.s32.b32", ("s32", "s32", "b32"), "b32")


def convert_cases() -> Iterator[Case]:
    """All cases of this module."""
    for table in (integers, between, floats, packed):
        yield from table()
