"""Matrix product: the operator, what it refuses, and its variants in the order they are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.gemm import epilogue, library, mma, simt, wgmma
from pygpukit.ops.gemm.reference import host, reference, rows_host, rows_refuse
from pygpukit.ops.gemm.types import accumulator, arithmetic, matmul_type, wide_type, writable
from pygpukit.ops.operands import as_array
from pygpukit.ops.problem import Problem, Result, Tensor, broadcast
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, export, register
from pygpukit.ops.size import hint

__all__ = ["accumulator", "matmul", "matmul_type", "reference", "transpose", "wide_type"]


def _shown(x: Tensor) -> tuple[int, ...]:
    return tuple(hint(n) for n in x.shape)


def _infer(p: Problem) -> list[Result]:
    a, b = p["a"], p["b"]
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError("matmul needs arrays of at least one dimension; use mul for numbers")
    k, k2 = a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[0]
    if k != k2:
        raise ShapeError(
            f"matmul of shapes {_shown(a)} and {_shown(b)}: the inner sizes {hint(k)} and {hint(k2)} differ"
        )
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise ShapeError(f"matmul of shapes {_shown(a)} and {_shown(b)}: the leading axes cannot be broadcast together")
    how = arithmetic(p)
    kind = p.requested[0] if p.requested else how.result
    if not writable(how, kind):
        raise DTypeError(
            f"matmul of {a.dtype.name} and {b.dtype.name} gives {how.result.name}, which cannot be written to "
            f"{kind.name}; use an out of {how.result.name}"
        )
    shape = (*batch, *(a.shape[-2:-1] if a.ndim > 1 else ()), *(b.shape[-1:] if b.ndim > 1 else ()))
    result = Result(shape, kind)
    epilogue.check(p, result)
    epilogue.check_scales(p, how.how)
    return [result]


def _casts(p: Problem) -> str | None:
    a, b, how = p["a"].dtype, p["b"].dtype, arithmetic(p)
    if how.how in ("plain", "tf32") and not (a is b is how.operands):
        return None
    return f"a and b are {a.name} already"


def _cast_first(p: Problem) -> Callable[..., None]:
    """The same product of operands in the type they are multiplied in."""
    how = arithmetic(p)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b, _, bias, activation, residual, *_ = given
        a, b = (x.astype(how.operands, copy=False) for x in (a, b))
        tf32 = how.how == "tf32"
        matmul(a, b, use_tf32=tf32, bias=bias, activation=activation, residual=residual, out=results[0])

    return run


def _scattered(p: Problem) -> str | None:
    return None if epilogue.refuses(p) else "bias is contiguous"


def _gather_bias(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b, precision, bias, activation, residual, use_tf32, scale_a, scale_b = given
        matmul(a, b, precision=precision, bias=bias.contiguous(), activation=activation, residual=residual,
               use_tf32=use_tf32, scale_a=scale_a, scale_b=scale_b, out=results[0])  # fmt: skip

    return run


def _has_parts(p: Problem) -> str | None:
    return None if epilogue.has_epilogue(p) else "nothing is added after the product"


def _by_parts(p: Problem) -> Callable[..., None]:
    """The product before it is rounded, then the elementwise operators: what a bundle without epilogues has."""
    how = arithmetic(p)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        from pygpukit.array.creation import empty
        from pygpukit.ops.elementwise import rows as e

        a, b, precision, bias, activation, residual, use_tf32, scale_a, scale_b = given
        kind, out = accumulator(how.operands), results[0]
        x = empty(out.shape, kind, device=out.device)
        matmul(a, b, precision=precision, use_tf32=use_tf32, out=x)
        if scale_a is not None:
            by_row = scale_a.size > 1 and b.ndim > 1
            x = e.mul(x, scale_a.reshape((-1, 1) if by_row else (-1,)[: out.ndim]), out=x)
        if scale_b is not None:
            x = e.mul(x, scale_b.reshape((-1,)[: out.ndim]), out=x)
        x = x if bias is None else e.add(x, bias.astype(kind, copy=False), out=x)
        if activation in ("relu", "gelu", "silu"):
            x = getattr(e, activation)(x, out=x)
        elif activation == "relu2":
            x = e.square(e.relu(x, out=x), out=x)
        elif activation == "gelu_erf":
            x = e.mul(e.mul(x, 0.5), e.erfc(e.mul(x, -0.7071067811865476)), out=x)
        x = x if residual is None else e.add(x, residual.astype(kind, copy=False), out=x)
        _native.apply("copy", (x,), out)

    return run


def _unfused(p: Problem) -> str | None:
    if arithmetic(p).how != "plain":
        return f"has no kernel for {arithmetic(p).how}"
    return None


def _around(p: Problem) -> Callable[..., None]:
    """The same product with casts around it: a bundle without kernels for these types has both."""
    wide = wide_type(p["a"].dtype, p["b"].dtype)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        a, b = (x.astype(wide, copy=False) for x in given[:2])
        if results[0].dtype is wide:
            matmul(a, b, use_tf32=False, out=results[0])
        else:
            _native.apply("copy", (matmul(a, b, use_tf32=False),), results[0])

    return run


def _flops(p: Problem) -> int:
    return 2 * hint(p.out.size) * hint(p["a"].shape[-1])


matmul = register(
    Operator(
        name="matmul",
        parameters=(
            Parameter("a", doc="At least one dimension; leading axes broadcast."),
            Parameter("b", doc="At least one dimension."),
            Parameter(
                "precision",
                "choice",
                None,
                True,
                'What elements are multiplied as: ``None`` for the arrays\' own type, ``"tf32"``, '
                '``"bfloat16"``, ``"float16"``, ``"float32"``, ``"float64"``, ``"fp8"`` or ``"int32"``.',
            ),
            Parameter(
                "bias", "optional", None, True, "Added to every row: one element per column, of the result's type."
            ),
            Parameter(
                "activation",
                "choice",
                None,
                True,
                '``"relu"``, ``"gelu"`` (tanh form), ``"gelu_erf"``, ``"silu"`` or ``"relu2"``, after the bias.',
            ),
            Parameter("residual", "optional", None, True, "Added last: shape and type of the result."),
            Parameter(
                "use_tf32",
                "choice",
                None,
                True,
                'True multiplies float32 through tf32, as ``precision="tf32"``; False never does.',
            ),
            Parameter(
                "scale_a",
                "optional",
                None,
                True,
                'With ``precision="fp8"``, float32: the sum is multiplied by it '
                "first; one number, or one per row of a, ``[M]`` or ``[M, 1]``.",
                number_type="float32",
            ),
            Parameter(
                "scale_b",
                "optional",
                None,
                True,
                "And by this: one number, or one per column of b, ``[N]`` or ``[1, N]``.",
                number_type="float32",
            ),
        ),
        infer=_infer,
        reference=reference,
        variants=(
            *wgmma.FEW_ROWS,
            *library.RELAXED,
            *library.DIRECT,
            *wgmma.LARGE,
            *library.OTHERS,
            *mma.VARIANTS,
            *simt.VARIANTS,
            Variant("row by row", "batch_invariant", rows_refuse, host=rows_host),
            Variant("NumPy", "run_to_run", lambda p: None, host=host),
            Variant("a contiguous bias first", "batch_invariant", _scattered, compose=_gather_bias),
            Variant("casts first", "batch_invariant", _casts, compose=_cast_first),
            Variant("the product, then its parts", "batch_invariant", _has_parts, compose=_by_parts),
            Variant("casts around CUDA cores", "batch_invariant", _unfused, compose=_around),
        ),
        doc="""Matrix product, with NumPy's rules for vectors and stacks of matrices.

float16, bfloat16 and float8 are multiplied and summed in float32 and rounded once; float32 means true float32. The
order of a sum is fixed by K alone, so a row's bits do not depend on the others. Scales, bias, activation and residual
are applied to the unrounded sum, in that order.

Examples
--------
>>> import pygpukit as gp
>>> gp.matmul(gp.ones((2, 3)), gp.ones((3, 1))).tolist()
[[3.0], [3.0]]
>>> gp.matmul(gp.ones((1, 3)), gp.ones((3, 2)), bias=gp.asarray([-5.0, 1.0], "float32"), activation="relu").tolist()
[[0.0, 4.0]]
""",
        tolerance={"float32": 1e-5, "bfloat16": 2**-6, "float16": 2**-9, "float64": 1e-13},
        cases=(
            Case({"a": ("float32", (33, 21)), "b": ("float32", (21, 70))}, rows={"a": 0}),
            Case({"a": ("bfloat16", (5, 136)), "b": ("bfloat16", (136, 72))}, rows={"a": 0}),
            Case({"a": ("float16", (5, 41)), "b": ("float16", (41, 9))}, {"activation": "gelu"}, {"a": 0}),
            Case({"a": ("bfloat16", (2, 1, 5, 40)), "b": ("bfloat16", (3, 40, 7))}),
            Case({"a": ("int32", (19,)), "b": ("int32", (19, 4))}),
            Case({"a": ("int8", (5, 33)), "b": ("int8", (33, 9))}, {"precision": "int32"}),
            Case(
                {
                    "a": ("float32", (3, 20)),
                    "b": ("float32", (20, 9)),
                    "bias": ("float32", (9,)),
                    "residual": ("float32", (3, 9)),
                },
                {"activation": "gelu"},
            ),
        ),
        flops=_flops,
    )
)


@export
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """The axes in another order, reversed by default; a view.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.transpose(gp.ones((2, 3))).shape
    (3, 2)
    """
    x = as_array(x, "transpose()")
    return x.T if axes is None else x.transpose(axes)
