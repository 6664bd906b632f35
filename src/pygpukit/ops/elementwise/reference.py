"""The CPU device's elementwise operators: each row's NumPy reference at the types its kernel uses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.plan import plan
from pygpukit.ops.elementwise.table import TABLE, Row
from pygpukit.ops.promotion import Input, resolve

_PYTHON_KINDS = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))
_BLOCK, _LINES = 1 << 18, 64
"""Elements of a block, and of an axis of it along which a line of memory lies."""
_SHORT = 16
"""Elements of lines that are shorter than what a line of memory holds: NumPy's own order is as good."""
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
    function = _general(name, tuple(input_of(x) for x in arrays), dtype(out.dtype))
    with np.errstate(all="ignore"):
        function(*arrays, out)


def prepare(name: str, inputs: tuple[Input, ...], out: DataType) -> tuple[Callable[..., Any], bool]:
    """Return the function that computes operator ``name`` on arrays of these types into its last argument.

    Returns
    -------
    tuple
        The function, and whether it is a NumPy ufunc: that takes scalars of the common type, others Python's.

    Raises
    ------
    DTypeError
        As the kernel's plan does.

    Examples
    --------
    >>> prepare("add", (dtype("float32"), "float"), dtype("float32"))
    (<ufunc 'add'>, True)
    """
    made = plan(name, inputs, out)
    row = TABLE[name]
    types = [to_numpy_dtype(made.common if isinstance(x, str) else x) for x in inputs]
    names = {made.common.name, out.name, *(x.name for x in inputs if not isinstance(x, str))}
    is_small = bool(names & _SMALL)
    if isinstance(row.numpy, np.ufunc) and not is_small and not _is_double(row, made.common):
        try:
            loop = row.numpy.resolve_dtypes((*types, None))
        except TypeError:
            loop = ()
        # The very types the kernel computes in: nothing is left to do but to call it.
        computes = loop == (*[to_numpy_dtype(made.common)] * row.arity, to_numpy_dtype(out))
        if computes and row.numpy not in _WRONG_INTO_STRIDES:
            return _KEYWORD_ONLY.get(row.numpy, row.numpy), True
    return _general(name, inputs, out), False


# NumPy 2.4 writes wrong values into a strided output.
_WRONG_INTO_STRIDES = frozenset({np.isnan, np.isinf, np.isfinite, np.signbit})


def _maximum(x: Any, y: Any, out: npt.NDArray[Any]) -> None:
    np.maximum(x, y, out=out)


def _minimum(x: Any, y: Any, out: npt.NDArray[Any]) -> None:
    np.minimum(x, y, out=out)


# NumPy 2.4 warns of an output among their positional arguments, which might be meant as a third operand.
_KEYWORD_ONLY: dict[Callable[..., Any], Callable[..., Any]] = {np.maximum: _maximum, np.minimum: _minimum}


def _general(name: str, inputs: tuple[Input, ...], target: DataType) -> Callable[..., Any]:
    """The operator as its kernel computes it: in the common type, rounded to its own result type and then to out's."""
    common = plan(name, inputs, target).common
    row = TABLE[name]
    if row.rule == "cast" and (common.name == target.name or _is_plain_cast(inputs[0], common, target)):
        return _copy
    kept = common is target and common.name not in _SMALL and inputs[0] == dtype("bool")
    if row.rule == "where" and kept and all(isinstance(x, str) or x is common for x in inputs[1:]):
        return _where
    result = to_numpy_dtype(target if row.rule == "cast" else resolve(row, inputs)[1])
    double = _is_double(row, common)
    # Operands of this type are computed with as they are.
    ready = None if double or (common.name in _SMALL and not row.by_format) else to_numpy_dtype(common)
    chosen, function, widen = row.rule == "where", row.numpy, not row.by_format
    # Python's floats are rounded by the constructor of a float type.
    rounded = ready.type if ready is not None and ready.kind == "f" else None

    def convert(x: Any) -> Any:
        if type(x) is np.ndarray and x.dtype == ready:
            return x
        if rounded is not None and type(x) is float:
            return rounded(x)
        return _convert(x, common, double=double, widen=widen)

    def run(*operands: Any) -> None:
        *arrays, out = operands
        values = [convert(x) for x in arrays[chosen:]]
        if chosen:
            condition = np.asarray(arrays[0])
            values.insert(0, condition if condition.dtype.kind == "b" else condition != 0)
        value = np.asarray(function(*values))
        if not value.dtype == result == out.dtype:
            value = _cast(_cast(value, result), out.dtype)
        np.copyto(out, value, casting="unsafe")

    return run


def _is_plain_cast(source: Input, common: DataType, target: DataType) -> bool:
    """Is a cast one of NumPy's own, from the type it is computed in?"""
    if source is not common or common.name in _SMALL:
        return False
    return common.kind != "c" or target.kind == "c"


def in_blocks(function: Callable[..., Any], *operands: Any) -> None:
    """Call an elementwise ``function`` on blocks, for which operands in another order than its own are copied.

    Each line of memory is then read and written once, and the function meets neighbours.
    """
    *given, out = operands
    crossing = [i for i, x in enumerate(given) if np.ndim(x) and x.shape == out.shape and _crosses(x)]
    along = min(range(out.ndim), key=lambda d: _far(given[crossing[0]], d))
    if min(out.shape[along], out.shape[-1]) < _SHORT:
        function(*operands)
        return
    if function is _copy and given[0].dtype == out.dtype:
        _native.copy_transposed(_bits(given[0]), _bits(out))
        return
    sizes = _block(out.shape, along)
    scratch = {_place(given[i]): np.empty(math.prod(sizes), given[i].dtype) for i in crossing}
    for start in itertools.product(*(range(0, n, size) for n, size in zip(out.shape, sizes, strict=True))):
        part = tuple(slice(at, at + size) for at, size in zip(start, sizes, strict=True))
        target, copied, parts = out[part], {}, []
        for i, x in enumerate(given):
            if i not in crossing:
                parts.append(_part(x, part, out.shape))
                continue
            place = _place(x)
            if place not in copied:
                room = copied[place] = scratch[place][: target.size].reshape(target.shape)
                _native.copy_transposed(_bits(x[part]), _bits(room))
            parts.append(copied[place])
        function(*parts, target)


def _far(x: Any, axis: int) -> float:
    return abs(x.strides[axis]) if x.shape[axis] > 1 and x.strides[axis] else math.inf


def _crosses(x: Any) -> bool:
    """Does an array lie along another axis than its last?"""
    return min(_far(x, axis) for axis in range(x.ndim)) < _far(x, x.ndim - 1)


def _block(shape: tuple[int, ...], along: int) -> list[int]:
    """Return the shape of a block that stays in a cache: lines of both orders in it are as long as they can be."""
    sizes = [1] * len(shape)
    sizes[along] = min(shape[along], _LINES)
    for axis in reversed(range(len(shape))):
        room = max(1, _BLOCK // (math.prod(sizes) // sizes[axis]))
        # Whole lines, where there are several.
        sizes[axis] = min(shape[axis], room // _LINES * _LINES or room)
    return sizes


def _part(x: Any, part: tuple[slice, ...], shape: tuple[int, ...]) -> Any:
    """Return the block of an operand that broadcasts to a shape."""
    if not np.ndim(x):
        return x
    ahead = len(shape) - x.ndim
    return x[tuple(part[ahead + d] if x.shape[d] == shape[ahead + d] else slice(None) for d in range(x.ndim))]


def _place(x: Any) -> tuple[Any, ...]:
    return x.__array_interface__["data"][0], x.strides, x.dtype


_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(x: Any) -> Any:
    """Return an array as a buffer: types of ml_dtypes are none."""
    return x.view(_BITS[x.itemsize]) if x.itemsize in _BITS else x


def _is_double(row: Row, common: DataType) -> bool:
    # complex64 functions run in double in the kernels too: in float NumPy's own lose digits.
    return common.name == "complex64" and row.weight != "light"


def _where(condition: Any, x: Any, y: Any, out: npt.NDArray[Any]) -> None:
    out[...] = np.where(condition, x, y)


def _copy(array: Any, out: npt.NDArray[Any]) -> None:
    np.copyto(out, array, casting="unsafe")


def _convert(value: Any, common: DataType, *, double: bool, widen: bool) -> npt.NDArray[Any]:
    """Return ``value`` rounded to the common type, in the type NumPy computes in."""
    array = _cast(np.asarray(value), to_numpy_dtype(common))
    if double:
        return array.astype(np.complex128)
    return array.astype(np.float32) if widen and common.name in _SMALL else array


def _cast(value: npt.NDArray[Any], to: np.dtype[Any]) -> npt.NDArray[Any]:
    if value.dtype.kind == "c" and to.kind != "c":
        # As a kernel does, and without NumPy's warning; a truth value looks at both parts.
        value = (value != 0) if to.kind == "b" else value.real
    return value.astype(to, copy=False)
