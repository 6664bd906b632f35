"""Result types of operators: NumPy's rules, extended to bfloat16 and float8.

NumPy itself decides wherever it can (``ufunc.resolve_dtypes``, ``np.result_type``); Python scalars are weak. The small
float types take float16's place among NumPy's types, with these rules of our own:

- with bool, int8, uint8 and Python ints and floats, bfloat16 and float8 keep their type;
- with wider integers they promote as float16 does (int16: float32; int32 and int64: float64);
- bfloat16 with float16 is float32; float8 with float16 or bfloat16 is that type;
- float8_e4m3fn with float8_e5m2 is an error, since neither holds the other.

Comparisons of int64 with uint64 happen in float64, as NumPy's arithmetic of the two does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.table import Row

Weak: TypeAlias = Literal["bool", "int", "float", "complex"]
Input: TypeAlias = DataType | Weak
"""An array's element type, or the kind of a Python scalar."""

_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
_SMALL = _FLOAT8 | {"bfloat16"}
_STAND_IN = np.dtype(np.float16)
_PYTHON: dict[str, Any] = {"bool": np.dtype(np.bool_), "int": int, "float": float, "complex": complex}


def describe(inputs: Sequence[Input]) -> str:
    """Return the inputs as they appear in error messages."""
    return ", ".join(f"Python {x}" if isinstance(x, str) else x.name for x in inputs)


def promote(inputs: Sequence[Input]) -> DataType:
    """Return the common type of ``inputs``.

    Raises
    ------
    DTypeError
        If the types have none.

    Examples
    --------
    >>> promote((dtype("bfloat16"), dtype("float16"))).name
    'float32'
    """
    small = {x.name for x in inputs if not isinstance(x, str) and x.name in _SMALL}
    if small >= _FLOAT8:
        raise DTypeError(
            "float8_e4m3fn and float8_e5m2 have no common type; convert one with astype (float16 holds both)"
        )
    described = [_numpy(x) for x in inputs]
    if not small:
        return dtype(_result_type(described))
    joint = _result_type(described)
    if joint != _STAND_IN:
        return dtype(joint)
    keep = "bfloat16" if "bfloat16" in small else small.pop()
    if any(not isinstance(x, str) and x.name == "float16" for x in inputs):
        keep = "float32" if keep == "bfloat16" else "float16"
    return dtype(keep)


def resolve(row: Row, inputs: Sequence[Input]) -> tuple[DataType, DataType]:
    """Return the common type the inputs of ``row`` are converted to, and the type of its result.

    Raises
    ------
    DTypeError
        If the operator is not defined for these types.
    """
    if len(inputs) != row.arity:
        raise DTypeError(f"{row.name} takes {row.arity} inputs, got {len(inputs)} ({describe(inputs)})")
    operands = inputs[1:] if row.rule == "where" else inputs
    common = promote(operands)
    result = common
    if isinstance(row.rule, np.ufunc):
        small = common.name in _SMALL
        types = [_numpy(x, None if small else common) for x in operands]
        try:
            *loop, last = _loop(row.rule, types)
        except TypeError:
            raise _unsupported(row, inputs) from None
        # Several types in one loop: NumPy's exact comparison of int64 with uint64, which has no common type here.
        kind = loop[0] if len(set(loop)) == 1 else np.result_type(*loop)
        result = common if small and last == _STAND_IN else dtype(last)
        if not small or kind != _STAND_IN:
            common = dtype(kind)
    if common.kind not in row.kinds:
        raise _unsupported(row, inputs)
    return common, result


def can_cast(source: DataType, target: DataType) -> bool:
    """Return whether a result of type ``source`` may be written to an array of type ``target``.

    The rule is NumPy's ``same_kind``: precision may be lost, the kind may not.
    """
    return bool(np.can_cast(_numpy(source), _numpy(target), "same_kind"))


def _numpy(x: Input, small: DataType | None = None) -> Any:
    """Return ``x`` as NumPy's promotion takes it; a small float becomes float16, or ``small`` where given."""
    if isinstance(x, str):
        if x not in _PYTHON:
            raise DTypeError(
                f"unknown kind of Python scalar {x!r}; use 'bool', 'int', 'float', 'complex' or a DataType"
            )
        return _PYTHON[x]
    if x.name in _SMALL:
        return to_numpy_dtype(small) if small is not None else _STAND_IN
    return to_numpy_dtype(x)


def _result_type(described: Sequence[Any]) -> np.dtype[Any]:
    return np.result_type(*(x(0) if isinstance(x, type) else x for x in described))


def _loop(rule: np.ufunc, types: Sequence[Any]) -> tuple[np.dtype[Any], ...]:
    if all(isinstance(x, type) for x in types):
        # Nothing but Python scalars: NumPy wants at least one dtype to be weak against.
        types = [_result_type([x]) for x in types]
    return rule.resolve_dtypes((*types, *[None] * rule.nout))


def _unsupported(row: Row, inputs: Sequence[Input]) -> DTypeError:
    kinds = {"b": "bool", "i": "signed integer", "u": "unsigned integer", "f": "float", "c": "complex"}
    offered = ", ".join(kinds[k] for k in row.kinds)
    return DTypeError(f"{row.name} is not defined for {describe(inputs)}; it takes {offered}: convert with astype")
