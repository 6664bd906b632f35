"""The CPU device's elementwise operators: each row's NumPy reference at the types its kernel uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.plan import plan
from pygpukit.ops.promotion import Input, resolve
from pygpukit.ops.table import TABLE

_PYTHON_KINDS = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))
_SMALL = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})


def input_of(value: Any) -> Input:
    """Return how type promotion sees ``value``: the type of an array or NumPy scalar, the kind of a Python scalar.

    Raises
    ------
    DTypeError
        If it is neither.
    """
    if isinstance(value, np.ndarray | np.generic):
        return dtype(value.dtype)
    for kind, name in _PYTHON_KINDS:
        if isinstance(value, kind):
            return name  # type: ignore[return-value]
    raise DTypeError(f"{value!r} ({type(value).__name__}) is neither an array nor a Python or NumPy scalar")


def apply(name: str, arrays: tuple[Any, ...], out: npt.NDArray[Any]) -> None:
    """Compute operator ``name`` on ``arrays`` into ``out``, with NumPy's broadcasting.

    Parameters
    ----------
    name
        A row of the operator table.
    arrays
        NumPy arrays or scalars.
    out
        Receives the result, cast to its type; may be one of the inputs.

    Raises
    ------
    DTypeError
        As the kernel's plan does.

    Examples
    --------
    >>> out = np.empty(2, np.float32)
    >>> apply("add", (np.float32([1, 2]), 0.5), out)
    >>> out.tolist()
    [1.5, 2.5]
    """
    inputs = tuple(input_of(x) for x in arrays)
    target = dtype(out.dtype)
    common = plan(name, inputs, target).common
    row = TABLE[name]
    result = target if row.rule == "cast" else resolve(row, inputs)[1]
    with np.errstate(all="ignore"):
        if row.rule == "cast" and common.name == target.name:
            np.copyto(out, np.asarray(arrays[0]), casting="unsafe")
            return
        # complex64 functions run in double in the kernels too: in float NumPy's own lose digits.
        double = common.name == "complex64" and row.weight != "light"
        values = [_convert(x, common, double=double) for x in arrays]
        if row.rule == "where":
            values[0] = np.asarray(arrays[0]) != 0
        value = np.asarray(row.numpy(*values))
        np.copyto(out, _cast(_cast(value, to_numpy_dtype(result)), out.dtype), casting="unsafe")


def _convert(value: Any, common: DataType, *, double: bool) -> npt.NDArray[Any]:
    """Return ``value`` rounded to the common type, in the type NumPy computes in."""
    array = _cast(np.asarray(value), to_numpy_dtype(common))
    if double:
        return array.astype(np.complex128)
    return array.astype(np.float32) if common.name in _SMALL else array


def _cast(value: npt.NDArray[Any], to: np.dtype[Any]) -> npt.NDArray[Any]:
    if value.dtype.kind == "c" and to.kind != "c":
        # As a kernel does, and without NumPy's warning; a truth value looks at both parts.
        value = (value != 0) if to.kind == "b" else value.real
    return value.astype(to, copy=False)
