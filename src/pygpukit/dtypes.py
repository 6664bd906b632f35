"""Element types: the `DataType` objects, and the way between them, their names and NumPy's dtypes."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.errors import DTypeError

__all__ = [
    "DTypeLike",
    "DataType",
    "bfloat16",
    "bool_",
    "byte",
    "cdouble",
    "complex64",
    "complex128",
    "csingle",
    "double",
    "dtype",
    "e",
    "euler_gamma",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "half",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "intc",
    "intp",
    "longlong",
    "nan",
    "newaxis",
    "pi",
    "short",
    "single",
    "to_numpy_dtype",
    "ubyte",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uintc",
    "uintp",
    "ulonglong",
    "ushort",
]

DTypeLike: TypeAlias = DataType | str | np.dtype[Any] | type[Any]
"""What is accepted wherever a dtype is: a `DataType`, a name, a NumPy or ml_dtypes dtype, or a Python type."""

bool_ = DataType.from_name("bool")
int8 = DataType.from_name("int8")
int16 = DataType.from_name("int16")
int32 = DataType.from_name("int32")
int64 = DataType.from_name("int64")
uint8 = DataType.from_name("uint8")
uint16 = DataType.from_name("uint16")
uint32 = DataType.from_name("uint32")
uint64 = DataType.from_name("uint64")
float16 = DataType.from_name("float16")
bfloat16 = DataType.from_name("bfloat16")
float32 = DataType.from_name("float32")
float64 = DataType.from_name("float64")
float8_e4m3fn = DataType.from_name("float8_e4m3fn")
float8_e4m3 = float8_e4m3fn
float8_e5m2 = DataType.from_name("float8_e5m2")
complex64 = DataType.from_name("complex64")
complex128 = DataType.from_name("complex128")

# NumPy's other names of the same types.
byte, short, intc, int_, intp, longlong = int8, int16, int32, int64, int64, int64
ubyte, ushort, uintc, uint, uintp, ulonglong = uint8, uint16, uint32, uint64, uint64, uint64
half, single, double, csingle, cdouble = float16, float32, float64, complex64, complex128

e = math.e
euler_gamma = np.euler_gamma
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi

_ALL = (
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    float8_e4m3fn,
    float8_e5m2,
    complex64,
    complex128,
)

# NumPy does not know these by name: they are ml_dtypes' own.
_EXTENSION = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
_NUMPY: dict[str, np.dtype[Any]] = {d.name: np.dtype(_EXTENSION.get(d.name, d.name)) for d in _ALL}
_BY_NUMPY = {_NUMPY[d.name]: d for d in _ALL}
_BY_TYPE: dict[type[Any], DataType] = {bool: bool_, int: int64, float: float64, complex: complex128}
# The tags win over NumPy's type codes: "i8" is int8 here, as in kernel symbols, and never eight bytes.
_BY_NAME = (
    {d.name: d for d in _ALL}
    | {d.tag: d for d in _ALL}
    | {
        "bool_": bool_,
        "complex": complex128,
        "double": float64,
        "float": float64,
        "float8_e4m3": float8_e4m3fn,
        "half": float16,
        "int": int64,
        "single": float32,
    }
)


def dtype(x: DTypeLike) -> DataType:
    """The `DataType` meant by a name, a NumPy or ml_dtypes dtype, or a Python type.

    Parameters
    ----------
    x : DataType, str, numpy.dtype or type
        ``"float32"``, ``"bf16"``, ``np.int8``, ``ml_dtypes.bfloat16``, ``float``, ... Python's ``int``, ``float`` and
        ``complex`` mean what they mean to NumPy: int64, float64 and complex128.

    Returns
    -------
    DataType
        One object per element type.

    Raises
    ------
    DTypeError
        If `x` names no element type of a GPU array.

    Examples
    --------
    >>> dtype("half").name, dtype(float).name, dtype(np.uint8).tag
    ('float16', 'float64', 'u8')
    """
    if isinstance(x, DataType):
        return x
    found: DataType | None
    if isinstance(x, str):
        found = _BY_NAME.get(x)
    else:
        found = _BY_TYPE.get(x) if isinstance(x, type) else None
        if found is None:
            found = _from_numpy(x)
    if found is None:
        shown = repr(x) if isinstance(x, str) else f"{x!r} ({type(x).__name__})"
        raise DTypeError(f"{shown} is not an element type of a GPU array; use one of {', '.join(_NUMPY)}")
    return found


def to_numpy_dtype(d: DTypeLike) -> np.dtype[Any]:
    """The NumPy dtype with the same bits; bfloat16 and float8 come from ml_dtypes.

    Parameters
    ----------
    d : DataType, str, numpy.dtype or type
        Anything `dtype` accepts.

    Returns
    -------
    numpy.dtype
        Of the same item size.

    Examples
    --------
    >>> to_numpy_dtype("float32")
    dtype('float32')
    """
    return _NUMPY[dtype(d).name]


def _from_numpy(x: object) -> DataType | None:
    # np.dtype(None) is float64, and arbitrary classes become object: only real dtypes and scalar types may pass.
    if not isinstance(x, np.dtype | type):
        return None
    try:
        described = np.dtype(x)
    except TypeError:
        return None
    if not described.isnative:
        raise DTypeError(
            f"dtype {described.str!r} has a foreign byte order; convert it first with "
            ".astype(x.dtype.newbyteorder('='))"
        )
    return _BY_NUMPY.get(described)


def _meaning(x: object) -> Any:
    """The element type that `x` names, for comparisons: None where it names no such type, NotImplemented where it is
    nothing that names one."""
    if not isinstance(x, str | np.dtype | type):
        return None if x is None else NotImplemented
    try:
        # NumPy's type codes are compared too, where they are no names of ours.
        return dtype(np.dtype(x) if isinstance(x, str) and x not in _BY_NAME else x)
    except TypeError:
        return None


def _scalar(self: DataType, x: Any = 0) -> Any:
    """A number of this type, as NumPy's scalar, or an array cast to it: ``float32(0.2)``."""
    if isinstance(x, GPUArray):
        return x.astype(self)
    if isinstance(x, list | tuple | np.ndarray):
        raise TypeError(f"{self!r}() takes a number or a GPUArray; write asarray(x, dtype={self.name!r}) for an array")
    return _NUMPY[self.name].type(x)


DataType.__call__ = _scalar  # type: ignore[method-assign]
# NumPy reads these wherever it takes a dtype; before 2.4 only the first.
for _name in ("dtype", "__numpy_dtype__"):
    setattr(DataType, _name, property(to_numpy_dtype))
_native.set_dtype_meaning(_meaning)
