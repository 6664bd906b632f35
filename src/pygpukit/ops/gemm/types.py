"""Types of a matrix product: what the elements are multiplied as, summed in, and rounded to."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pygpukit.config import read_settings
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.table import Row
from pygpukit.ops.problem import Problem
from pygpukit.ops.promotion import can_cast, resolve

ROW = Row("matmul", 2, "", np.matmul, np.matmul, "biufc", 2, "Matrix product.")

PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16", "fp8", "int32")
"""What ``precision=`` takes, besides None and data types."""

_SHORT = {"f64": "float64", "f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16",
          "bf16": "bfloat16", "e4m3": "fp8", "float8_e4m3fn": "fp8"}  # fmt: skip


class Arithmetic(NamedTuple):
    """How a product is computed.

    Attributes
    ----------
    operands
        Type that elements are converted to before they are multiplied.
    how
        ``"plain"``: in that type, or exactly in the accumulator's. ``"tf32"``: float32 rounded to 10 bits of mantissa.
        ``"fp8"``: float8_e4m3fn on tensor cores. ``"int32"``: int8, summed exactly in int32.
    result
        Type of the result unless ``out`` has another.
    """

    operands: DataType
    how: str
    result: DataType


def matmul_type(a: DataType, b: DataType) -> DataType:
    """Return the result type of a product.

    Raises
    ------
    DTypeError
        If the types have no common type.
    """
    return resolve(ROW, (a, b))[1]


def accumulator(common: DataType) -> DataType:
    """Return the type products are summed in; integers wrap, so their sign does not matter."""
    if common.kind == "f":
        return dtype("float64" if common.itemsize == 8 else "float32")
    if common.kind in "iu":
        return dtype("uint64" if common.itemsize == 8 else "uint32")
    return dtype("uint8") if common.kind == "b" else common


def wide_type(a: DataType, b: DataType) -> DataType:
    """Return the type to which operands can be cast first: their product in it is the direct one before rounding."""
    common = resolve(ROW, (a, b))[0]
    return accumulator(common) if common.kind == "f" else common


def precision_name(precision: Any) -> str | None:
    """Return the name of a precision; None for the arrays' own.

    Raises
    ------
    ValueError
        If it is none.
    """
    if precision is None:
        return None
    text = precision.name if isinstance(precision, DataType) else precision
    name = _SHORT.get(text, text)
    if name not in PRECISIONS:
        raise ValueError(f"matmul has no precision {precision!r}; use None or one of {', '.join(PRECISIONS)}")
    return str(name)


@cache
def tf32_permitted() -> bool | None:
    """Return what the environment says about tf32: True permits it everywhere, False forbids it, None leaves it."""
    settings = read_settings()
    if settings.tf32_v2:
        import warnings

        warnings.warn("PYGPUKIT_TF32_V2 is ignored: there is one tf32 kernel; ask for it with precision='tf32'",
                      stacklevel=2)  # fmt: skip
    return False if settings.no_tf32 else True if settings.allow_tf32 else None


def chosen(a: DataType, b: DataType, precision: Any = None, use_tf32: Any = None) -> Arithmetic:
    """Return how a product of these types is computed.

    Raises
    ------
    DTypeError
        If the types have no product in this precision.
    ValueError
        If the precision is unknown, or contradicts ``use_tf32``.
    """
    name = precision_name(precision)
    common, own = resolve(ROW, (a, b))
    if use_tf32 and name not in (None, "tf32"):
        raise ValueError(f"matmul(): use_tf32=True and precision={precision!r} contradict each other; give one")
    single = common.name == "float32"
    if name == "tf32" and not single:
        raise DTypeError(f"precision='tf32' rounds float32 operands, not {a.name} and {b.name}")
    if single and name in (None, "tf32"):
        # use_tf32=False keeps float32 also where the environment permits tf32.
        wanted = name == "tf32" or use_tf32 or (use_tf32 is None and tf32_permitted())
        return Arithmetic(common, "tf32" if wanted and tf32_permitted() is not False else "plain", own)
    if name is None:
        return Arithmetic(common, "plain", own)
    if name == "int32":
        if a.name != "int8" or b.name != "int8":
            raise DTypeError(f"precision='int32' multiplies int8 by int8, not {a.name} by {b.name}")
        return Arithmetic(common, "int32", dtype("int32"))
    if name == "fp8":
        if a.name != "float8_e4m3fn" or b.name != "float8_e4m3fn":
            raise DTypeError(
                f"precision='fp8' multiplies float8_e4m3fn, not {a.name} and {b.name}: scale and convert them with "
                "astype first"
            )
        return Arithmetic(common, "fp8", dtype("bfloat16"))
    if common.kind != "f":
        raise DTypeError(f"precision={name!r} is for floating-point operands, not {a.name} and {b.name}")
    return Arithmetic(dtype(name), "plain", own)


def arithmetic(p: Problem) -> Arithmetic:
    """Return how the product of a problem is computed."""
    return chosen(p["a"].dtype, p["b"].dtype, p.options["precision"], p.options["use_tf32"])


def writable(how: Arithmetic, out: DataType) -> bool:
    """May a product be written as ``out``? Also unrounded, where sums have more bits than the result."""
    if how.how == "fp8":
        return out.name in ("bfloat16", "float16", "float32")
    return can_cast(how.result, out)


def sums(how: Arithmetic) -> DataType:
    """Return the type a product is summed in, and an epilogue is computed in."""
    return accumulator(how.operands)
