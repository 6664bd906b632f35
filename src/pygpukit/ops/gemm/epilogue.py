"""What a matrix product adds before it rounds: bias, activation and residual.

``kernels/common/epilogue.cuh`` is the device's side. Both say the same: the sum, plus bias, through the activation,
plus residual, all in the accumulator's type, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.gemm.layout import result_stack
from pygpukit.ops.launch import Argument, i64, read
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.size import hint

PLAIN = "PLAIN"
"""The device's name of no epilogue at all."""


SCALES = ("scale_a", "scale_b")
"""What sums of fp8 are multiplied by first: of the rows of a, of the columns of b."""

ACTIVATIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "none": ("IDENTITY", lambda x: x),
    "relu": ("RELU", TABLE["relu"].numpy),
    "gelu": ("GELU", TABLE["gelu"].numpy),
    "gelu_erf": ("GELU_ERF", TABLE["gelu_erf"].numpy),
    "silu": ("SILU", TABLE["silu"].numpy),
    "relu2": ("RELU2", TABLE["relu2"].numpy),
}
"""Activations by name: the device's name and the reference over NumPy arrays of the accumulator's type."""


def activation_of(name: Any) -> str:
    """Return an activation's name, ``"none"`` for None.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if name is None:
        return "none"
    if name not in ACTIVATIONS:
        raise ValueError(f"matmul has no activation {name!r}; use None or one of {', '.join(ACTIVATIONS)}")
    return str(name)


def has_epilogue(p: Problem) -> bool:
    """Does a call add or apply anything after the product?"""
    given = p.arrays["bias"] is not None or p.arrays["residual"] is not None
    return given or has_scales(p) or activation_of(p.options["activation"]) != "none"


def has_scales(p: Problem) -> bool:
    """Are rows or columns of the sum multiplied by scales?"""
    return any(p.arrays.get(name) is not None for name in SCALES)


def check_scales(p: Problem, how: str) -> None:
    """Refuse scales that do not fit the operands, or another precision than fp8.

    Raises
    ------
    DTypeError, ShapeError, ValueError
        The text names the value and what would fit.
    """
    if not has_scales(p):
        return
    if how != "fp8":
        raise ValueError("matmul(): scale_a and scale_b are for precision='fp8'; multiply other operands or the result")
    a, b = p["a"], p["b"]
    rows, columns = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    for name, n, what, wide in zip(SCALES, (rows, columns), ("row of a", "column of b"), (0, 1), strict=True):
        x = p.arrays[name]
        if x is None:
            continue
        if x.dtype.name != "float32":
            raise DTypeError(f"matmul(): {name} is {x.dtype.name}, and must be float32: convert it with astype")
        fits = [(), (1,), (n,), (n, 1)[:: -1 if wide else 1], (1, 1)]
        if not any(len(s) == x.ndim and all(i == j for i, j in zip(s, x.shape, strict=True)) for s in fits):
            side = (1, hint(n)) if wide else (hint(n), 1)
            raise ShapeError(
                f"matmul(): {name} has shape {tuple(hint(s) for s in x.shape)}; it is one number, or one per {what}, "
                f"({hint(n)},) or {side}"
            )


def check(p: Problem, result: Result, columns: Any = None) -> None:
    """Refuse a bias, activation or residual that does not fit the result, whose rows have ``columns`` elements.

    Raises
    ------
    DTypeError, ShapeError, ValueError
        The text names the value and what would fit.
    """
    if not has_epilogue(p):
        return
    if result.dtype.kind != "f":
        raise DTypeError(
            f"matmul(): bias, activation and residual need a floating-point result, not {result.dtype.name}"
        )
    n = columns if columns is not None else result.shape[-1] if p["b"].ndim > 1 else 1
    wanted = {"bias": (n,), "residual": tuple(result.shape)}
    for name, shape in wanted.items():
        x = p.arrays[name]
        if x is None:
            continue
        if x.dtype is not result.dtype:
            raise DTypeError(
                f"matmul(): {name} is {x.dtype.name}, and the result {result.dtype.name}: convert it with astype"
            )
        if x.ndim != len(shape) or any(have != want for have, want in zip(x.shape, shape, strict=True)):
            have, want = tuple(hint(s) for s in x.shape), tuple(hint(s) for s in shape)
            raise ShapeError(f"matmul(): {name} has shape {have}; for this product it needs {want}")


def device_name(p: Problem) -> str:
    """Return what kernels call the epilogue of a problem: a value of ``pgk::Activation``."""
    return ACTIVATIONS[activation_of(p.options["activation"])][0] if has_epilogue(p) else PLAIN


def suffix(device: str) -> str:
    """Return what an entry's name ends with for an epilogue."""
    return "" if device == PLAIN else "_" + device.lower()


def arguments(p: Problem) -> tuple[Argument, ...]:
    """Return the kernel arguments of an epilogue: bias, residual, and the residual's strides of a row and a column.

    Strides between the matrices of a residual are the kernel's to pass, with those of the other operands:
    `result_stack` of the residual has them.
    """
    bias, residual = p.arrays["bias"], p.arrays["residual"]
    strides = (0, 0) if residual is None else result_stack(p, residual)[2:4]
    pointers = [i64(0) if x is None else read(x) for x in (bias, residual)]
    return (*pointers, *map(i64, strides))


def scale_arguments(p: Problem) -> tuple[Argument, ...]:
    """Return the kernel arguments of scales: pointers, and the distances between those of rows and of columns."""
    pointers, steps = [], []
    for name in SCALES:
        x = p.arrays.get(name)
        pointers.append(i64(0) if x is None else read(x))
        axis = None if x is None else next((i for i, n in enumerate(x.shape) if n != 1), None)
        steps.append(i64(0 if x is None or axis is None else x.strides[axis]))
    return (*pointers, *steps)


def scaled(total: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """Return the product of NumPy arrays a and b by the scales of rows and columns."""
    if scale_a is not None:
        by_row = scale_a.size > 1 and b.ndim > 1
        total = total * (scale_a.reshape(-1, 1) if by_row else scale_a.reshape(-1))
    if scale_b is not None:
        total = total * scale_b.reshape(-1)
    return total.reshape(()) if a.ndim == b.ndim == 1 else total


def refuses(p: Problem) -> str | None:
    """Return why no kernel can end with this epilogue as it lies; None if one can."""
    bias = p.arrays["bias"]
    return None if bias is None or bias.is_contiguous() else "bias is not contiguous"


def reference(total: Any, bias: Any, activation: Any, residual: Any, out: DataType | None = None) -> Any:
    """Return the epilogue of NumPy arrays, in the type of ``total``."""
    x = np.asarray(total)
    if bias is not None:
        x = x + bias.astype(x.dtype, copy=False)
    x = ACTIVATIONS[activation_of(activation)][1](x)
    if residual is not None:
        x = x + residual.astype(x.dtype, copy=False)
    return x
