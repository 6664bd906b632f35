"""Operators over the planes of a quantised weight: its product with rows of activations, and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.gemm import epilogue
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.quant import decode, launches, stream, wgmma
from pygpukit.quant.formats import TILE, rule_of
from pygpukit.quant.launches import FUSED, SKINNY

_PLANES = (
    Parameter("codes"),
    Parameter("scales"),
    Parameter("high", "optional", None),
    Parameter("extra", "optional", None),
    Parameter("rule", "choice", ""),
    Parameter("n", "number", 0),
    Parameter("k", "number", 0),
    Parameter("owners", "number", TILE),
)
_END = (
    Parameter("bias", "optional", None, True),
    Parameter("activation", "choice", None, True),
    Parameter("residual", "optional", None, True),
)


def _infer_linear(p: Problem) -> list[Result]:
    x, k, n = p["x"], p.integers["k"], p.integers["n"]
    if x.dtype.name not in ("bfloat16", "float16", "float32"):
        raise DTypeError(
            f"a quantised weight multiplies float16, bfloat16 or float32, not {x.dtype.name}: convert with astype"
        )
    if x.ndim == 0:
        raise ShapeError("matmul with a quantised weight needs an array of at least one dimension")
    if x.shape[-1] != k:
        raise ShapeError(
            f"matmul of shapes {tuple(hint(s) for s in x.shape)} and {(hint(k), hint(n))}: the inner sizes "
            f"{hint(x.shape[-1])} and {hint(k)} differ"
        )
    if p.requested and p.requested[0] is not x.dtype:
        raise DTypeError(
            f"the product of {x.dtype.name} with a quantised weight cannot be written to {p.requested[0].name}; use an "
            f"out of {x.dtype.name}"
        )
    result = Result((*x.shape[:-1], n), x.dtype)
    epilogue.check(p, result, n)
    return [result]


def _accepts_copy(p: Problem) -> str | None:
    lie = launches.rows_of(p["x"]) and launches.rows_of(p.out) and launches.ends(p)
    return launches.accepts_rows(p, FUSED) or ("the rows lie at equal distances" if lie else None)


def _compose_copy(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, *planes, bias, activation, residual = given
        bias, residual = (t if t is None else t.contiguous() for t in (bias, residual))
        made = quant_matmul(x.contiguous(), *planes, bias=bias, activation=activation, residual=residual)
        _native.apply("copy", (made,), results[0])

    return run


def _compose_decoded(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, *planes, _, bias, activation, residual = given
        w = quant_dequantize(*planes, x.dtype.name)
        matmul(x, w.T, bias=bias, activation=activation, residual=residual, out=results[0])

    return run


def _host_kept(p: Problem) -> Callable[..., None]:
    activation, plain = p.options["activation"], not epilogue.has_epilogue(p) and p["x"].dtype.itemsize == 4

    def run(x: Any, *given: Any) -> None:
        *_, w, bias, residual, out = given
        with np.errstate(all="ignore"):
            if plain and out.flags.c_contiguous:
                np.matmul(x, w.T, out)
                return
            made = np.matmul(x.astype(np.float32, copy=False), w.T)
            np.copyto(out, epilogue.reference(made, bias, activation, residual), casting="unsafe")

    return run


def _host(p: Problem) -> Callable[..., None]:
    rule, activation = rule_of(p.options["rule"]), p.options["activation"]

    def run(x: Any, codes: Any, scales: Any, high: Any, extra: Any, n: int, k: int, *given: Any) -> None:
        *_, bias, residual, out = given
        made = decode.product(rule, _named(codes, scales, high, extra), n, x.reshape(-1, k)).reshape(out.shape)
        with np.errstate(all="ignore"):
            np.copyto(out, epilogue.reference(made, bias, activation, residual), casting="unsafe")

    return run


def _named(codes: Any, scales: Any, high: Any, extra: Any) -> dict[str, Any]:
    named = {"codes": codes, "scales": scales, "high": high, "extra": extra}
    return {name: plane for name, plane in named.items() if plane is not None}


def reference(
    x: Any, codes: Any, scales: Any, high: Any = None, extra: Any = None, rule: str = "", n: int = 0, k: int = 0,
    owners: int = TILE, decoded: Any = None, *, bias: Any = None, activation: Any = None, residual: Any = None,
) -> Any:  # fmt: skip
    """Return the product as NumPy computes it: numbers rounded to the type of x, float32 products and sums."""
    made = decode.product(rule_of(rule), _named(codes, scales, high, extra), n, x.reshape(-1, k))
    with np.errstate(all="ignore"):
        total = epilogue.reference(made.reshape(*x.shape[:-1], n), bias, activation, residual)
        return total.astype(x.dtype, copy=False)


def _flops(p: Problem) -> int:
    return 2 * hint(p.out.size) * hint(p.integers["k"])


def _bytes(p: Problem) -> int:
    planes = sum(hint(p[name].nbytes) for name in ("codes", "scales", "high", "extra") if p.arrays[name] is not None)
    return planes + hint(p["x"].nbytes) + hint(p.out.nbytes)


quant_matmul = register(
    Operator(
        name="quant_matmul",
        parameters=(Parameter("x"), *_PLANES, Parameter("decoded", "optional", None), *_END),
        infer=_infer_linear,
        reference=reference,
        variants=(
            Variant(
                "NumPy, with the decoded weight that is kept", "run_to_run",
                lambda p: None if p.arrays["decoded"] is not None else "no decoded copy is kept", host=_host_kept,
            ),
            Variant("NumPy, decoding blocks", "run_to_run", lambda p: None, host=_host),
            stream.VARIANT,
            wgmma.VARIANT,
            Variant(
                "decoded fragments, all rows in a warp", "batch_invariant",
                partial(launches.accepts_linear, most=SKINNY), launch=partial(launches.launch_linear, most=SKINNY),
                units=partial(launches.linear_units, (8, 16, 32, 64)),
            ),
            Variant(
                "decoded fragments, blocks of rows", "batch_invariant", partial(launches.accepts_linear, most=FUSED),
                launch=partial(launches.launch_linear, most=FUSED), units=partial(launches.linear_units, (128,)),
            ),
            Variant(
                "copies around decoded fragments", "batch_invariant",
                _accepts_copy, compose=_compose_copy,
            ),
            Variant("decoded into workspace, then matmul", "batch_invariant", lambda p: None, compose=_compose_decoded),
        ),
        doc="Product of rows with a quantised weight: x @ w.T for w of shape (n, k).",
        tolerance={"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-10},
        flops=_flops,
        bytes=_bytes,
        public=False,
    )
)  # fmt: skip


def _infer_dequantize(p: Problem) -> list[Result]:
    return [Result((p.integers["n"], p.integers["k"]), dtype(p.options["to"]))]


def _host_dequantize(p: Problem) -> Callable[..., None]:
    rule, to = rule_of(p.options["rule"]), to_numpy_dtype(p.out.dtype)

    def run(codes: Any, scales: Any, high: Any, extra: Any, n: int, k: int, owners: int, out: Any) -> None:
        np.copyto(out, decode.dequantize(rule, _named(codes, scales, high, extra), n, k, to))

    return run


def _dequantize_reference(
    codes: Any, scales: Any, high: Any = None, extra: Any = None, rule: str = "", n: int = 0, k: int = 0,
    owners: int = TILE, to: str = "float32",
) -> Any:  # fmt: skip
    return decode.dequantize(rule_of(rule), _named(codes, scales, high, extra), n, k, to_numpy_dtype(dtype(to)))


def _compose_dequantize(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        _native.apply("copy", (quant_dequantize(*given),), results[0])

    return run


quant_dequantize = register(
    Operator(
        name="quant_dequantize",
        parameters=(*_PLANES, Parameter("to", "choice", "float32")),
        infer=_infer_dequantize,
        reference=_dequantize_reference,
        variants=(
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_dequantize),
            Variant(
                "a warp per chunk", "batch_invariant", launches.accepts_dequantize, launch=launches.launch_dequantize,
                units=partial(launches.dequantize_units, "dequantize"),
            ),
            Variant(
                "a contiguous result first", "batch_invariant",
                lambda p: "the result is contiguous" if p.out.is_contiguous() else None, compose=_compose_dequantize,
            ),
        ),
        doc="The numbers of a quantised weight, a matrix of (n, k).",
        public=False,
    )
)  # fmt: skip


def _infer_rows(p: Problem) -> list[Result]:
    ids = p["ids"]
    if ids.dtype.name not in ("int32", "int64"):
        raise DTypeError(f"rows(): ids are int32 or int64, not {ids.dtype.name}")
    return [Result((*ids.shape, p.integers["k"]), dtype(p.options["to"]))]


def _host_rows(p: Problem) -> Callable[..., None]:
    rule, to = rule_of(p.options["rule"]), to_numpy_dtype(p.out.dtype)

    def run(ids: Any, codes: Any, scales: Any, high: Any, extra: Any, n: int, k: int, owners: int, out: Any) -> None:
        np.copyto(out, decode.rows(rule, _named(codes, scales, high, extra), ids, n, k, to))

    return run


def _rows_reference(
    ids: Any, codes: Any, scales: Any, high: Any = None, extra: Any = None, rule: str = "", n: int = 0, k: int = 0,
    owners: int = TILE, to: str = "float32",
) -> Any:  # fmt: skip
    return decode.rows(rule_of(rule), _named(codes, scales, high, extra), ids, n, k, to_numpy_dtype(dtype(to)))


def _compose_rows(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        ids, *rest = given
        _native.apply("copy", (quant_rows(ids.contiguous(), *rest),), results[0])

    return run


quant_rows = register(
    Operator(
        name="quant_rows",
        parameters=(Parameter("ids"), *_PLANES, Parameter("to", "choice", "float32")),
        infer=_infer_rows,
        reference=_rows_reference,
        variants=(
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_rows),
            Variant(
                "four threads per row and chunk", "batch_invariant", launches.accepts_rows_of_weight,
                launch=launches.launch_rows_of_weight, units=partial(launches.dequantize_units, "rows"),
            ),
            Variant("contiguous copies", "batch_invariant", lambda p: None, compose=_compose_rows),
        ),
        doc="Rows of a quantised weight as numbers.",
        public=False,
    )
)  # fmt: skip
