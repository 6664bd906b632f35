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
    return given or activation_of(p.options["activation"]) != "none"


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
