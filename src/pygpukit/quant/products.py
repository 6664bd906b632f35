"""Products with quantised weights: from a `QuantTensor` to the operators over its planes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pygpukit._pygpukit_rust import DataType, GPUArray, Stream
from pygpukit.dtypes import dtype
from pygpukit.errors import DTypeError, GraphError, ShapeError
from pygpukit.ops.gemm import rows as gemm
from pygpukit.ops.registry import export
from pygpukit.quant.rows import quant_dequantize, quant_matmul, quant_rows

if TYPE_CHECKING:
    from pygpukit.ops.explain import Explanation
    from pygpukit.quant.stored import Stored
    from pygpukit.quant.tensor import QuantTensor


def _planes(w: Stored) -> tuple[Any, ...]:
    arrays = (w.planes["codes"], w.planes["scales"], w.planes.get("high"), w.planes.get("extra"))
    return (*arrays, w.rule.name, w.n, w.k, w.owners)


def decoded(w: Stored, kind: DataType) -> GPUArray:
    """Return the numbers of a weight as it is stored, (n, k), columns in stored order."""
    return quant_dequantize(*_planes(w), kind.name)  # type: ignore[no-any-return]


def decoded_rows(w: Stored, ids: GPUArray, kind: DataType, out: GPUArray | None, stream: Any) -> GPUArray:
    """Return some rows of a weight as it is stored."""
    return quant_rows(ids, *_planes(w), kind.name, out=out, stream=stream)  # type: ignore[no-any-return]


def _kept(w: Stored, kind: DataType) -> GPUArray | None:
    """The decoded float32 copy for activations of a type, on the CPU device."""
    if w.device.kind != "cpu":
        return None

    def make() -> GPUArray | None:
        # On a stream of its own, and waited for: every stream may read the copy.
        side = Stream()
        try:
            side.synchronize()
        except GraphError:
            # A graph is being captured: what it decodes would serve others before it has run.
            return None
        with side:
            made = decoded(w, kind).astype("float32", copy=False)
        side.synchronize()
        return made

    return w.kept.get(kind.name, 4 * w.n * w.k, make)


def _arguments(x: GPUArray, q: QuantTensor) -> tuple[Any, ...]:
    w = q._stored
    if x.ndim and x.shape[-1] != w.k:
        hint = "; the weight's transpose q.T fits" if x.shape[-1] == w.n else ""
        raise ShapeError(
            f"matmul of shapes {x.shape} and {q.shape}: the inner sizes {x.shape[-1]} and {w.k} differ{hint}"
        )
    if w.order is not None:
        x = x[..., w.order]
    return (x, *_planes(w), _kept(w, x.dtype))


def _plain(x: Any, q: Any) -> tuple[Any, Any]:
    """The operands of a product that sums over rows of codes, or has the weight on the left: decoded first."""
    if isinstance(x, GPUArray):
        return x, q.dequantize(x.dtype)
    return x.dequantize(q.dtype), q


def _is_direct(x: Any, q: Any) -> bool:
    return isinstance(x, GPUArray) and not isinstance(q, GPUArray) and q._turned


def matmul(a: Any, b: Any, **options: Any) -> GPUArray:
    """The product of two operands of which one is a `QuantTensor`, with the options of `pygpukit.matmul`."""
    if not any(isinstance(x, GPUArray) for x in (a, b)):
        raise TypeError("matmul() takes a GPUArray and a QuantTensor: call dequantize() on one of two weights")
    if not _is_direct(a, b):
        x, w = _plain(a, b)
        return gemm.matmul(x, w, **options)  # type: ignore[no-any-return]
    return quant_matmul(*_arguments(a, b), **_options(a, options))  # type: ignore[no-any-return]


def _options(x: GPUArray, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a product with a weight: the precision is that of x."""
    kept = dict(options)
    if kept.pop("scale_a", None) is not None or kept.pop("scale_b", None) is not None:
        raise ValueError("matmul(): scale_a and scale_b are for arrays; a quantised weight has scales of its own")
    if kept.pop("precision", None) not in (None, x.dtype.name) or kept.pop("use_tf32", None):
        raise ValueError(
            f"matmul() with a quantised weight computes in the type of x, {x.dtype.name}: convert x with astype"
        )
    return kept


def explain(operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """What `pygpukit.explain` shows for a product with a weight."""
    from pygpukit.ops.explain import explain as plain

    if getattr(operator, "__name__", "") not in ("matmul", *NAMES):
        raise TypeError(f"{getattr(operator, '__name__', operator)}() takes no QuantTensor: call dequantize() first")
    names = ("a", "b") if getattr(operator, "__name__", "") == "matmul" else ("x", "q")
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > 2 or any(name not in given for name in names):
        raise TypeError(f"a product takes two operands, {names[0]} and {names[1]}")
    a, b = (given.pop(name) for name in names)
    kwargs = given
    if _is_direct(a, b):
        return plain(quant_matmul, *_arguments(a, b), **_options(a, kwargs))
    return plain(gemm.matmul, *_plain(a, b), **kwargs)


def _named(x: Any, q: Any, name: str, bits: int, one_row: bool, out: Any, stream: Any) -> GPUArray:
    from pygpukit.quant.tensor import QuantTensor

    if not isinstance(q, QuantTensor):
        raise TypeError(
            f"{name}() takes a QuantTensor, not {type(q).__name__}: make one with pygpukit.quant.quantize()"
        )
    if not isinstance(x, GPUArray):
        raise TypeError(f"{name}() takes a GPUArray, not {type(x).__name__}; convert it with pygpukit.asarray()")
    if q.bits != bits:
        raise DTypeError(f"{name}() takes a weight of {bits} bits, not {q.format} of {q.bits}: use pygpukit.matmul()")
    if dtype(x.dtype).name not in ("bfloat16", "float16"):
        raise DTypeError(f"{name}() takes activations of 16 bits, not {x.dtype.name}: convert with astype")
    if one_row and math.prod(x.shape[:-1]) != 1:
        raise ShapeError(f"{name}() takes one row, not shape {x.shape}: use {name.replace('gemv', 'gemm')}()")
    return matmul(x, q, out=out, stream=stream)


@export
def gemv_w8a16(x: GPUArray, q: Any, *, out: GPUArray | None = None, stream: Any = None) -> GPUArray:
    """One row times a weight of 8 bits: float16 or bfloat16 in, and the same type out.

    Parameters
    ----------
    x : GPUArray
        One row of k values.
    q : QuantTensor
        Shape (k, n) and 8 bits: fp8_e4m3, int8 or q8_0.
    out, stream
        As for `matmul`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q = gp.quant.quantize(gp.ones((64, 4)), "int8")
    >>> gp.gemv_w8a16(gp.ones(64, "bfloat16"), q).tolist()
    [64.0, 64.0, 64.0, 64.0]
    """
    return _named(x, q, "gemv_w8a16", 8, True, out, stream)


@export
def gemm_w8a16(x: GPUArray, q: Any, *, out: GPUArray | None = None, stream: Any = None) -> GPUArray:
    """Rows times a weight of 8 bits: float16 or bfloat16 in, and the same type out.

    Parameters
    ----------
    x : GPUArray
        Rows of k values.
    q : QuantTensor
        Shape (k, n) and 8 bits: fp8_e4m3, int8 or q8_0.
    out, stream
        As for `matmul`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q = gp.quant.quantize(gp.ones((64, 4)), "fp8_e4m3")
    >>> gp.gemm_w8a16(gp.ones((2, 64), "float16"), q).shape
    (2, 4)
    """
    return _named(x, q, "gemm_w8a16", 8, False, out, stream)


@export
def gemv_w4a16(x: GPUArray, q: Any, *, out: GPUArray | None = None, stream: Any = None) -> GPUArray:
    """One row times a weight of 4 bits: float16 or bfloat16 in, and the same type out.

    Parameters
    ----------
    x : GPUArray
        One row of k values.
    q : QuantTensor
        Shape (k, n) and 4 bits: int4, AWQ, GPTQ, q4_0, q4_1 or q4_k.
    out, stream
        As for `matmul`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q = gp.quant.quantize(gp.ones((64, 4)), "int4", group=32)
    >>> gp.gemv_w4a16(gp.ones(64, "bfloat16"), q).tolist()
    [64.0, 64.0, 64.0, 64.0]
    """
    return _named(x, q, "gemv_w4a16", 4, True, out, stream)


@export
def gemm_w4a16(x: GPUArray, q: Any, *, out: GPUArray | None = None, stream: Any = None) -> GPUArray:
    """Rows times a weight of 4 bits: float16 or bfloat16 in, and the same type out.

    Parameters
    ----------
    x : GPUArray
        Rows of k values.
    q : QuantTensor
        Shape (k, n) and 4 bits: int4, AWQ, GPTQ, q4_0, q4_1 or q4_k.
    out, stream
        As for `matmul`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q = gp.quant.quantize(gp.ones((64, 4)), "int4", group=32)
    >>> gp.gemm_w4a16(gp.ones((2, 64), "float16"), q).shape
    (2, 4)
    """
    return _named(x, q, "gemm_w4a16", 4, False, out, stream)


NAMES = tuple(f.__name__ for f in (gemv_w8a16, gemm_w8a16, gemv_w4a16, gemm_w4a16))
