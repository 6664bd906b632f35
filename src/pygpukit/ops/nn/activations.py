"""Activations with options, gated units, and what follows a matrix product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.registry import export


@export
def gelu(x: Any, /, approximate: bool = True, *, out: GPUArray | None = None, stream: Stream | None = None,
         **options: Any) -> Any:  # fmt: skip
    """Gaussian error linear unit: ``x`` times the normal distribution's share below it.

    Parameters
    ----------
    x : GPUArray or number
    approximate : bool
        The form with tanh, as most models are trained with; False is the exact form with erf.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.
    **options
        ``where`` and ``dtype``, as elementwise operators take them.

    Examples
    --------
    >>> import pygpukit as gp
    >>> [f"{v:.3f}" for v in gp.gelu(gp.asarray([-1.0, 0.0, 1.0])).tolist()]
    ['-0.159', '0.000', '0.841']
    """
    return (e.gelu if approximate else e.gelu_erf)(x, out=out, stream=stream, **options)


@export
def swiglu(gate: Any, up: Any = None, /, *, out: GPUArray | None = None, stream: Stream | None = None) -> Any:
    """``silu(gate) * up``, with the bits of the two operators one after the other, in one pass.

    Parameters
    ----------
    gate : GPUArray
        Without ``up`` an array ``[..., 2 n]`` with the gate's n elements first: a product with joined weights.
    up : GPUArray, optional
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> joined = gp.asarray([[0.0, 100.0, 3.0, 2.0]])
    >>> gp.swiglu(joined).tolist()
    [[0.0, 200.0]]
    """
    gate, up = halves("swiglu", gate, up)
    return e.swiglu(gate, up, out=out, stream=stream)


@export
def geglu(gate: Any, up: Any = None, /, approximate: bool = True, *, out: GPUArray | None = None,
          stream: Stream | None = None) -> Any:  # fmt: skip
    """``gelu(gate) * up``, with the bits of the two operators one after the other, in one pass.

    Parameters
    ----------
    gate : GPUArray
        Without ``up`` an array ``[..., 2 n]`` with the gate's n elements first.
    up : GPUArray, optional
    approximate : bool
        As `gelu` takes it.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.geglu(gp.asarray([0.0, 100.0]), gp.asarray([3.0, 2.0])).tolist()
    [0.0, 200.0]
    """
    gate, up = halves("geglu", gate, up)
    function: Callable[..., Any] = e.geglu if approximate else e.geglu_erf
    return function(gate, up, out=out, stream=stream)


def halves(name: str, gate: Any, up: Any) -> tuple[Any, Any]:
    """Return gate and up; without up, the two halves of the last axis.

    Raises
    ------
    ShapeError
        If the last axis cannot be halved.
    """
    if up is not None:
        return gate, up
    if not isinstance(gate, GPUArray) or gate.ndim == 0 or gate.shape[-1] % 2:
        shape = getattr(gate, "shape", type(gate).__name__)
        raise ShapeError(f"{name}() of one array takes [..., 2 n], the gate first, not {shape}; or give gate and up")
    axis, n = gate.ndim - 1, gate.shape[-1] // 2
    return gate.narrow(axis, 0, n), gate.narrow(axis, n, n)


@export
def bias_add_inplace(out: GPUArray, bias: GPUArray, *, stream: Stream | None = None) -> GPUArray:
    """Add a bias to every row of ``out``, and return it.

    Parameters
    ----------
    out : GPUArray
        ``[..., n]``, updated.
    bias : GPUArray
        ``[n]``.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.bias_add_inplace(gp.zeros((2, 2)), gp.asarray([1.0, 2.0], "float32")).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    _check_bias("bias_add_inplace", out, bias, out.shape[-1] if out.ndim else 0)
    return e.add(out, bias, out=out, stream=stream)


def _check_bias(name: str, out: GPUArray, bias: GPUArray, n: int) -> None:
    if bias.ndim != 1 or bias.shape[0] != n:
        raise ShapeError(f"{name}(): bias has shape {bias.shape}; rows of {n} elements need ({n},)")
    if bias.dtype is not out.dtype:
        raise DTypeError(f"{name}(): bias is {bias.dtype.name}; use {out.dtype.name}")


@export
def linear_bias_gelu(
    x: GPUArray,
    w: GPUArray,
    b: GPUArray,
    /,
    approximate: bool = True,
    *,
    out: GPUArray | None = None,
    stream: Stream | None = None,
) -> GPUArray:
    """``gelu(x @ w.T + b)``: a layer with weights as checkpoints store them.

    Parameters
    ----------
    x : GPUArray
        ``[..., k]``.
    w : GPUArray
        ``[n, k]``.
    b : GPUArray
        ``[n]``.
    approximate : bool
        As `gelu` takes it.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x, w, b = gp.ones((1, 4)), gp.ones((2, 4)), gp.asarray([-4.0, 96.0], "float32")
    >>> gp.linear_bias_gelu(x, w, b).tolist()
    [[0.0, 100.0]]
    """
    if w.ndim != 2 or x.ndim == 0 or x.shape[-1] != w.shape[1]:
        raise ShapeError(f"linear_bias_gelu(): x {x.shape} and w {w.shape} do not fit; they are [..., k] and [n, k]")
    _check_bias("linear_bias_gelu", x, b, w.shape[0])
    activation = "gelu" if approximate else "gelu_erf"
    return matmul(x, w.T, bias=b, activation=activation, out=out, stream=stream)  # type: ignore[no-any-return]
