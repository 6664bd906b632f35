"""Cases of floating-point arithmetic: every rounding and modifier, and approximate instructions with their bounds."""

from __future__ import annotations

from collections.abc import Iterator

from diff_case import Bound, Case
from diff_integer import bits, simple

ROUNDINGS = ("rn", "rz", "rm", "rp")
HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def arithmetic() -> Iterator[Case]:
    for t in ("f32", "f64"):
        family, b = f"{t} arithmetic", bits(t)
        ftzs, sats = (("", ".ftz"), ("", ".sat")) if t == "f32" else (("",), ("",))
        for rounding in ROUNDINGS:
            for ftz in ftzs:
                for sat in sats:
                    if sat and rounding != "rn" and ftz:
                        continue
                    for op in ("add", "sub", "mul"):
                        yield simple(family, f"{op}.{rounding}{ftz}{sat}.{t}", (t, t), b)
                    yield simple(family, f"fma.{rounding}{ftz}{sat}.{t}", (t, t, t), b)
                yield simple(family, f"div.{rounding}{ftz}.{t}", (t, t), b)
                for op in ("rcp", "sqrt"):
                    yield simple(family, f"{op}.{rounding}{ftz}.{t}", (t,), b)
        for ftz in ftzs:
            for op in ("min", "max"):
                yield simple(family, f"{op}{ftz}.{t}", (t, t), b)
            for op in ("neg", "abs"):
                yield simple(family, f"{op}{ftz}.{t}", (t,), b)
        yield simple(family, f"copysign.{t}", (t, t), b)
        for question in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield simple(family, f"testp.{question}.{t}", (t,), "pred")
    for op in ("min", "max"):
        for words in (".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs", ".ftz.NaN.xorsign.abs"):
            yield simple("f32 arithmetic", f"{op}{words}.f32", ("f32", "f32"), "b32")


def halves() -> Iterator[Case]:
    for t in HALVES:
        family, b = f"{t} arithmetic", bits(t)
        f16 = t.startswith("f16")
        for op in ("add", "sub", "mul"):
            for words in ("", ".rn", *((".ftz", ".sat", ".rn.ftz.sat") if f16 else ())):
                yield simple(family, f"{op}{words}.{t}", (t, t), b)
        for words in ("", ".relu", *((".ftz", ".sat", ".ftz.sat", ".ftz.relu") if f16 else ())):
            yield simple(family, f"fma.rn{words}.{t}", (t, t, t), b)
        for op in ("min", "max"):
            for words in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs", *((".ftz", ".ftz.NaN") if f16 else ())):
                yield simple(family, f"{op}{words}.{t}", (t, t), b)
        for op in ("neg", "abs"):
            for ftz in ("", ".ftz") if f16 else ("",):
                yield simple(family, f"{op}{ftz}.{t}", (t,), b)


def _approximate(op: str, inputs: tuple[str, ...], output: str, bound: Bound) -> Case:
    operands = ", ".join(f"a{k}" for k in range(len(inputs)))
    return Case(op, "approximate", f"{op} d0, {operands};", inputs, (output,), bound)


def approximate() -> Iterator[Case]:
    single = ("f32",)
    for ftz in ("", ".ftz"):
        two = Bound("f32", "2 ulp", ulp=2)
        yield _approximate(f"ex2.approx{ftz}.f32", single, "b32", two)
        yield _approximate(f"div.approx{ftz}.f32", ("f32", "f32"), "b32", two)
        yield _approximate(f"div.full{ftz}.f32", ("f32", "f32"), "b32", two)
        yield _approximate(f"rcp.approx{ftz}.f32", single, "b32", Bound("f32", "1 ulp", ulp=1))
        near = Bound("f32", "2^-22 (absolute near 1)", relative=2.0**-22, absolute=2.0**-22)
        yield _approximate(f"lg2.approx{ftz}.f32", single, "b32", near)
        yield _approximate(
            f"rsqrt.approx{ftz}.f32", single, "b32", Bound("f32", "relative 2^-22.9", relative=2.0**-22.9)
        )
        yield _approximate(f"sqrt.approx{ftz}.f32", single, "b32", Bound("f32", "relative 2^-23", relative=2.0**-23))
        for op in ("sin", "cos"):
            name = f"{op}.approx{ftz}.f32"
            turn = Bound("f32", "absolute 2^-20.5", absolute=2.0**-20.5)
            yield _approximate(name, ("angle",), "b32", turn)
            turns = Bound("f32", "absolute 2^-14.7", absolute=2.0**-14.7)
            yield Case(f"{name} to 100 pi", "approximate", f"{name} d0, a0;", ("turns",), ("b32",), turns)
    yield _approximate("tanh.approx.f32", single, "b32", Bound("f32", "relative 2^-11", relative=2.0**-11))
    # Of these the ISA promises nothing; only the upper words are computed with .ftz.
    for op in ("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"):
        yield _approximate(op, ("f64",), "b64", Bound("f64", "none given, 2^-18 asked", relative=2.0**-18))
    yield _approximate("rsqrt.approx.f64", ("f64",), "b64", Bound("f64", "none given, 2^-45 asked", relative=2.0**-45))
    ex2, tanh = (
        Bound("f16", "relative 2^-9.9, one unit if subnormal", relative=2.0**-9.9, ulp=1.0),
        Bound("f16", "absolute 2^-10.987", absolute=2.0**-10.987),
    )
    for pair in ("", "x2"):
        yield _approximate(f"ex2.approx.f16{pair}", (f"f16{pair}",), "b32" if pair else "b16", ex2)
        yield _approximate(f"tanh.approx.f16{pair}", (f"f16{pair}",), "b32" if pair else "b16", tanh)
        bf = Bound("bf16", "relative 2^-7", relative=2.0**-7)
        yield _approximate(f"ex2.approx.ftz.bf16{pair}", (f"bf16{pair}",), "b32" if pair else "b16", bf)
        bf = Bound("bf16", "absolute 2^-8", absolute=2.0**-8)
        yield _approximate(f"tanh.approx.bf16{pair}", (f"bf16{pair}",), "b32" if pair else "b16", bf)


def float_cases() -> Iterator[Case]:
    """All cases of this module."""
    for table in (arithmetic, halves, approximate):
        yield from table()
