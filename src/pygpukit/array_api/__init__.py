"""The Python array API standard, version 2024.12, over GPUArray.

The namespace that ``x.__array_namespace__()`` gives, so that libraries written for the standard run on arrays of the
package. Most names are the package's own functions. Those that make arrays have the standard's signatures, and float64
where no type is given.

    >>> from pygpukit import array_api as xp
    >>> x = xp.linspace(0.0, 1.0, 3)
    >>> x.dtype, x.__array_namespace__() is xp
    (pygpukit.float64, True)
"""

from __future__ import annotations

from math import e, inf, nan, pi

import pygpukit as _gp
from pygpukit.array_api import fft, linalg
from pygpukit.array_api.creation import (
    arange,
    asarray,
    astype,
    empty,
    empty_like,
    expand_dims,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from pygpukit.array_api.info import __array_namespace_info__
from pygpukit.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from pygpukit.dtypes import bool_ as bool

__array_api_version__ = "2024.12"

newaxis = None

# Functions of the package that are as the standard wants them.
_SHARED = (
    "abs", "acos", "acosh", "add", "all", "any", "argmax", "argmin", "argsort", "asin", "asinh", "atan",
    "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip",
    "concat", "conj", "copysign", "cos", "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff",
    "divide", "equal", "exp", "expm1", "finfo", "flip", "floor", "floor_divide", "greater", "greater_equal",
    "hypot", "iinfo", "imag", "isdtype", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10",
    "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply",
    "negative", "nextafter", "nonzero", "not_equal", "permute_dims", "positive", "pow", "prod", "real",
    "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round", "searchsorted", "sign",
    "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "where",
)  # fmt: skip
globals().update({name: getattr(_gp, name) for name in _SHARED})

__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "arange",
    "asarray",
    "astype",
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "e",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "fft",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "full",
    "full_like",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "linalg",
    "linspace",
    "nan",
    "newaxis",
    "ones",
    "ones_like",
    "pi",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "zeros",
    "zeros_like",
    *_SHARED,
]
