"""What reductions give, as NumPy computes it in the types of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.promotion import can_cast
from pygpukit.ops.reduce.table import TABLE, Row

if TYPE_CHECKING:
    import numpy.typing as npt


_CASTS = frozenset({"sum", "prod", "cumsum", "cumprod"})


def cast_first(row: Row, x: DataType, wanted: Any) -> DataType | None:
    """Return the ``dtype`` that elements are cast to before they are reduced; None where only results are.

    Real numbers are, if their own sum or product does not become that type: integers for an unsigned type, and floats
    for an integer one.
    """
    if wanted is None or row.name not in _CASTS or x.kind == "c":
        return None
    kind = dtype(wanted)
    return None if kind.kind == "b" or can_cast(row.result(x), kind) else kind


def result_type(row: Row, x: DataType, wanted: Any, requested: DataType | None) -> DataType:
    """Return the type of the result of a row for elements ``x``, the ``dtype`` asked for, and that of ``out``.

    Raises
    ------
    DTypeError
        If the row is not defined for these types.
    """
    if x.kind not in row.kinds:
        raise DTypeError(f"{row.name} is not defined for {x.name}: convert with astype")
    own = row.result(cast_first(row, x, wanted) or x)
    kind = dtype(wanted) if wanted is not None else requested or own
    if not can_cast(own, kind):
        raise DTypeError(f"the {row.name} of {x.name} is {own.name}, which cannot be written to {kind.name}")
    if requested is not None and not can_cast(kind, requested):
        raise DTypeError(
            f"{row.name}() with dtype {kind.name} cannot be written to out of {requested.name}; "
            f"use an out of {kind.name}"
        )
    return requested or kind


def wide_type(row: Row, x: DataType, wanted: Any, to: DataType) -> DataType:
    """Return the type a row computes in: that of its elements and of what was asked for."""
    return row.accumulator(cast_first(row, x, wanted) or x, to if wanted is None else dtype(wanted))


def compute(
    row: Row,
    x: npt.NDArray[Any],
    axis: Any,
    wide: DataType,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    ddof: float = 0,
) -> Any:
    """Return the result of a row as NumPy computes it in ``wide``, not yet rounded to the type of the result."""
    kind = dtype(x.dtype)
    if row.numpy is None:
        x = np.abs(x.astype(to_numpy_dtype(row.accumulator(kind, kind)) if kind.kind != "c" else x.dtype))
        if row.name == "abs_sum":
            return np.sum(x, axis=axis, keepdims=keepdims)
        return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))
    if wide.kind == "u" and kind.kind == "b":
        wide = kind
    to = to_numpy_dtype(wide)
    if kind.kind == "c" or wide.kind != "c":
        x = x.astype(to, copy=False)
    if row.takes("ddof"):
        given: dict[str, Any] = {} if where is None else {"where": where}
        return row.numpy(x, axis=axis, ddof=ddof, keepdims=keepdims, **given)
    if not isinstance(row.numpy, np.ufunc):
        given = {} if where is None else {"where": where}
        return row.numpy(x, axis=axis, keepdims=keepdims, **given)
    given = {} if initial is None else {"initial": initial}
    given |= {"dtype": to} if row.takes("dtype") else {}
    return row.numpy.reduce(x, axis=axis, keepdims=keepdims, where=True if where is None else where, **given)


def call(name: str, x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, **options: Any) -> Any:
    """Return what an operator of the table gives for NumPy arrays, called as it is."""
    from pygpukit.dtypes import dtype as as_dtype

    row, array = TABLE[name], np.asarray(x)
    kind = as_dtype(array.dtype)
    to = result_type(row, kind, dtype, None)
    if (first := cast_first(row, kind, dtype)) is not None:
        kind, array = first, array.astype(to_numpy_dtype(first))
    if (correction := options.pop("correction", None)) is not None:
        options["ddof"] = correction
    with np.errstate(all="ignore"):
        got = compute(row, array, axis, wide_type(row, kind, dtype, to), keepdims, **options)
        return np.asarray(got).astype(to_numpy_dtype(to), copy=False)
